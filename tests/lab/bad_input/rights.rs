//! Files and folders that this user may not write, or not read, and a lab directory that is none.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::bad_input::{MAKERS, READERS, content, refused};
use crate::support::{BINARY, Ended, Lab, all_to_their_ends, bytes};

/// Who commands run as where the tests run as root, whom no right of a file binds.
const NOBODY: u32 = 65_534;

/// A lab whose commands are bound by the rights of files.
struct Bound {
    lab: Lab,
    binary: PathBuf,
    runs_as: Option<u32>,
}

impl Bound {
    fn new() -> Self {
        let lab = Lab::new();
        let folder = lab.path("");
        if fs::metadata(&folder).unwrap().uid() != 0 {
            return Self { lab, binary: BINARY.into(), runs_as: None };
        }
        // The build's own folder may be closed to others. Copied by another process: a file that this one had open for
        // writing could still be open in a child that another test is just starting, and is then not executed.
        let binary = folder.join("outbox-lab");
        assert!(Command::new("cp").arg(BINARY).arg(&binary).status().unwrap().success());
        for path in [&folder, &binary] {
            chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        Self { lab, binary, runs_as: Some(NOBODY) }
    }

    fn run(&self, line: &str) -> Ended {
        let mut command = self.lab.program(&self.binary, line.split_whitespace());
        if let Some(id) = self.runs_as {
            command.uid(id).gid(id);
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        all_to_their_ends(vec![(line.to_owned(), command)]).remove(0)
    }

    #[track_caller]
    fn ok(&self, line: &str) -> String {
        self.run(line).exits(0).stdout
    }

    #[track_caller]
    fn refused(&self, line: &str) -> Ended {
        let ended = self.run(line).exits(4).names_next_step();
        assert_eq!(ended.stdout, "");
        ended
    }

    /// Other rights for a file or folder, for as long as the value lives: a folder that nobody may write could not
    /// be removed.
    fn rights(&self, name: &str, mode: u32) -> Rights {
        let path = self.lab.path(name);
        let before = fs::metadata(&path).unwrap().permissions();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        Rights { path, before }
    }
}

struct Rights {
    path: PathBuf,
    before: Permissions,
}

impl Drop for Rights {
    fn drop(&mut self) {
        let _ = fs::set_permissions(&self.path, self.before.clone());
    }
}

/// A folder of the lab's user.
fn folder_of(bound: &Bound, name: &str) -> PathBuf {
    let folder = bound.lab.path(name);
    fs::create_dir(&folder).unwrap();
    if let Some(id) = bound.runs_as {
        chown(&folder, Some(id), Some(id)).unwrap();
    }
    folder
}

#[test]
fn a_read_only_database_is_read_and_not_written() {
    let bound = Bound::new();
    bound.ok("write 3");
    bound.ok("publish 1");
    let db = bound.lab.path(".lab/outbox.db");
    let before = bytes(&db);
    let read_only = bound.rights(".lab/outbox.db", 0o444);
    for command in MAKERS.iter().chain(&["rollback", "publish 1", "publish-hold 1"]) {
        bound
            .refused(command)
            .says("the database .lab/outbox.db cannot be written")
            .says("chmod u+w .lab/outbox.db*, and its folder");
        // More than once: the first reader leaves files beside it that the next one finds.
        for _ in 0..2 {
            assert_eq!(bound.ok("verify"), "[verify] business_loan=3 outbox=3 published=1 unpublished=2\n");
            bound.ok("reconcile --expect 3/3/1/1");
            assert_eq!(bound.ok("consume").lines().count(), 1);
        }
        assert!(bytes(&db) == before, "{command} changed it");
    }
    drop(read_only);
    // What the error says to type.
    let advice = ["-c", "chmod u+w .lab/outbox.db*"];
    assert!(bound.lab.program("sh", advice).status().unwrap().success());
    assert!(bound.ok("write 1").contains("loan=L-1004 "));
}

#[test]
fn a_database_in_a_read_only_folder_is_refused_and_stays_as_it_was() {
    for mode in [0o444, 0o644] {
        let bound = Bound::new();
        let data = folder_of(&bound, "data");
        bound.ok("--db data/lab.db write 3");
        let before = content(&data);
        let _file = bound.rights("data/lab.db", mode);
        let _folder = bound.rights("data", 0o555);
        for command in MAKERS.iter().chain(&READERS).chain(&["consume"]) {
            bound
                .refused(&format!("--db data/lab.db {command}"))
                .says("the database data/lab.db cannot be written")
                .says("chmod u+w data/lab.db*, and its folder");
            assert!(content(&data) == before, "{command} changed something");
        }
        for command in MAKERS {
            bound
                .refused(&format!("--db data/new.db {command}"))
                .says("the database data/new.db cannot be written: its lock");
            bound.refused(&format!("--db data/sub/new.db {command}")).says("the folder data/sub cannot be made");
        }
        assert!(content(&data) == before);
    }
}

#[test]
fn a_database_that_may_not_be_read_is_refused() {
    let bound = Bound::new();
    folder_of(&bound, "data");
    bound.ok("--db data/lab.db write 3");
    let before = bytes(&bound.lab.path("data/lab.db"));
    let unreadable = bound.rights("data/lab.db", 0o000);
    for command in MAKERS.iter().chain(&READERS) {
        bound.refused(&format!("--db data/lab.db {command}")).says("data/lab.db cannot be read (Permission denied");
    }
    drop(unreadable);
    let closed = bound.rights("data", 0o000);
    for command in MAKERS.iter().chain(&READERS) {
        bound
            .refused(&format!("--db data/lab.db {command}"))
            .says("data/lab.db cannot be looked at (Permission denied");
    }
    drop(closed);
    assert!(bytes(&bound.lab.path("data/lab.db")) == before);
}

#[test]
fn a_lab_directory_that_cannot_be_written_is_named() {
    let bound = Bound::new();
    let folder = folder_of(&bound, "closed");
    let closed = bound.rights("closed", 0o555);
    for command in MAKERS.iter().chain(&READERS).chain(&["consume", "broker start", "broker status", "clean"]) {
        bound
            .refused(&format!("--dir closed {command}"))
            .says("the lab directory closed cannot be written")
            .says("chmod u+rwx closed")
            .says("--dir");
    }
    for command in MAKERS.iter().chain(&["broker start"]) {
        bound.refused(&format!("--dir closed/lab {command}")).says("the lab directory closed/lab cannot be made");
    }
    for command in READERS {
        bound.refused(&format!("--dir closed/lab {command}")).says("there is no lab database at closed/lab/outbox.db");
    }
    assert!(content(&folder).is_empty());
    drop(closed);
    bound.ok("--dir closed write 1");
}

#[test]
fn a_lab_directory_that_is_a_file_is_named() {
    let lab = Lab::new();
    fs::write(lab.path("file"), "not a directory\n").unwrap();
    let before = content(&lab.path(""));
    let others = ["consume", "broker start", "broker status", "broker stop", "clean"];
    for command in MAKERS.iter().chain(&READERS).chain(&others) {
        refused(&lab, &format!("--dir file {command}"), 4)
            .says("the lab directory file is no directory")
            .names_next_step()
            .says("--dir");
    }
    for command in MAKERS {
        refused(&lab, &format!("--dir file/lab {command}"), 4)
            .says("the lab directory file/lab cannot be made")
            .names_next_step();
    }
    assert_eq!(content(&lab.path("")), before);
}
