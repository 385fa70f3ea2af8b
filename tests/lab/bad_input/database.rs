//! A database that is not one, not there, not whole, not free.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::time::{Duration, Instant};

use crate::bad_input::{MAKERS, READERS, content, refused};
use crate::support::{Ended, Lab, bytes, other_program};

#[test]
fn what_is_not_a_lab_database_is_refused_and_stays_as_it_was() {
    let lab = Lab::new();
    let data = lab.path("data");
    fs::create_dir(&data).unwrap();
    fs::create_dir(data.join("folder")).unwrap();
    fs::write(
        data.join("notes.txt"),
        "a file of some other kind, and longer than the hundred bytes of a header\n".repeat(9),
    )
    .unwrap();
    fs::write(data.join("short.txt"), "hello\n").unwrap();
    other_program(&data.join("other.db")).execute_batch("CREATE TABLE t (a); INSERT INTO t VALUES (1)").unwrap();
    // Open, and with rows that lie in its -wal only.
    let at_work = other_program(&data.join("at-work.db"));
    at_work.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE t (a); INSERT INTO t VALUES (1)").unwrap();
    // The book's own tables, made by hand.
    let by_hand = other_program(&data.join("by-hand.db"));
    by_hand.execute_batch("CREATE TABLE business_loan (loan_id TEXT); CREATE TABLE outbox (id INTEGER)").unwrap();
    lab.ok("--db data/newer.db write 3");
    other_program(&data.join("newer.db")).execute_batch("PRAGMA user_version = 3").unwrap();

    let before = content(&data);
    for (db, reason) in [
        ("data/folder", "data/folder is a folder, not a database"),
        ("data/notes.txt", "data/notes.txt is not an SQLite database"),
        ("data/short.txt", "data/short.txt is not an SQLite database"),
        ("data/other.db", "data/other.db is another program's SQLite database, not a lab's"),
        ("data/at-work.db", "data/at-work.db is another program's SQLite database, not a lab's"),
        ("data/by-hand.db", "data/by-hand.db is another program's SQLite database, not a lab's"),
        ("data/newer.db", "data/newer.db is a lab database of version 3, and this lab knows versions up to 2"),
        ("/dev/null", "/dev/null is not a file"),
    ] {
        for command in MAKERS.iter().chain(&READERS).chain(&["--json verify"]) {
            refused(&lab, &format!("--db {db} {command}"), 4).says(reason).names_next_step().says("--db");
            assert!(content(&data) == before, "{command} changed {db}");
        }
    }
    for db in ["data/folder", "data/notes.txt", "data/other.db", "data/at-work.db", "data/newer.db"] {
        refused(&lab, &format!("--db {db} consume"), 4).names_next_step();
    }
    assert!(content(&data) == before);
}

#[test]
fn a_path_where_nothing_is_never_reads_as_everything_lost() {
    let lab = Lab::new();
    for place in ["", "--db nowhere/lab.db ", "--dir nowhere "] {
        for command in READERS {
            refused(&lab, &format!("{place}{command}"), 4)
                .says("there is no lab database at ")
                .names_next_step()
                .says("nothing is known to be lost")
                .says("reset");
        }
        refused(&lab, &format!("{place}consume"), 3).says("there is no topic v2c7.outbox to read").says("reset");
    }
    for command in ["broker status", "broker stop", "clean"] {
        lab.ok(command);
    }
    assert!(content(&lab.path("")).is_empty(), "they create nothing: {:?}", content(&lab.path("")));
}

#[test]
fn a_database_that_was_cut_short_is_refused_and_stays_as_it_is() {
    let lab = Lab::new();
    lab.ok("--db whole.db write 300");
    assert!(!lab.path("whole.db-wal").exists(), "everything is in the file itself");
    let whole = bytes(&lab.path("whole.db"));
    fs::create_dir(lab.path("data")).unwrap();
    for length in [whole.len() - 1, whole.len() / 2, 4096, 100, 99, 1] {
        fs::write(lab.path("data/cut.db"), &whole[..length]).unwrap();
        let before = content(&lab.path("data"));
        let reason = match length {
            0..100 => "is not an SQLite database".to_owned(),
            _ => format!("is damaged: it says that it has {} bytes, and has {length}", whole.len()),
        };
        // A file that seems cut is looked at for a while, so not every command has its turn at every length.
        let every: Vec<_> = MAKERS.into_iter().chain(READERS).chain(["consume"]).collect();
        for command in if length == whole.len() / 2 { &every[..] } else { &["verify", "write 1"] } {
            refused(&lab, &format!("--db data/cut.db {command}"), 4).says(&reason).names_next_step();
            assert!(content(&lab.path("data")) == before, "{command} changed a file of {length} bytes");
        }
    }
}

#[test]
fn damage_in_the_middle_is_named_as_such() {
    let lab = Lab::new();
    lab.ok("write 300");
    let db = lab.path(".lab/outbox.db");
    let mut damaged = bytes(&db);
    // Everything behind the first page, which holds the schema.
    damaged[4096..].fill(0xAA);
    fs::write(&db, &damaged).unwrap();
    for command in ["verify", "write 1", "rollback", "publish 1", "reconcile"] {
        refused(&lab, command, 4).says("the database .lab/outbox.db is damaged").names_next_step();
    }
}

#[test]
fn a_database_that_stays_locked_ends_a_command_after_five_seconds_and_nothing_is_changed() {
    let lab = Lab::new();
    lab.ok("write 3");
    let other = other_program(&lab.path(".lab/outbox.db"));
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(lab.counts(), [3, 3, 0, 3], "whoever only reads is not kept waiting");
    let begun = Instant::now();
    let writers = ["write 1", "write-hold 2", "naive", "rollback", "publish 1", "publish-hold 1"];
    for ended in lab.at_once(writers.iter().chain(&["purge --older-than 0s", "dead drop evt-1001", "fill 1"])) {
        assert_eq!(ended.stdout, "");
        ended.exits(4).says("the database .lab/outbox.db was locked by another program").names_next_step();
    }
    let waited = begun.elapsed();
    assert!((Duration::from_secs(4)..Duration::from_secs(30)).contains(&waited), "{waited:?}");
    assert_eq!(lab.counts(), [3, 3, 0, 3]);
    assert_eq!(lab.keys(), [""; 0], "nor was anything sent");
    other.execute_batch("ROLLBACK").unwrap();
    assert_eq!(lab.ok("write 1"), "[write] txn i=1 loan=L-1004 event=evt-1004 committed business=4 outbox=4\n");
}

#[test]
fn a_reset_that_meets_a_lock_empties_nothing_and_says_what_is_certain() {
    let lab = Lab::new();
    for place in ["", "--dir half-way "] {
        lab.ok(&format!("{place}write 3"));
        lab.ok(&format!("{place}publish 1"));
    }
    let half_way = lab.hold("--dir half-way reset --hold-at after-topic");
    let others = [".lab/outbox.db", "half-way/outbox.db"].map(|db| other_program(&lab.path(db)));
    for other in &others {
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
    }
    half_way.go_on();
    refused(&lab, "reset", 4).says("was locked by another program").names_next_step();
    let half_way = half_way.end().exits(4).says("was locked by another program").names_next_step();
    assert!(!half_way.stderr.contains("; nothing was changed"), "its topic is a new one: {half_way:?}");
    for other in &others {
        other.execute_batch("ROLLBACK").unwrap();
    }
    lab.ok("reconcile --expect 3/3/1/1");
    assert!(lab.ok("--dir half-way verify").contains("business_loan=3 outbox=3 "));
    lab.run("--dir half-way reconcile").exits(3).says("was interrupted").says("another reset");
    lab.ok("--dir half-way reset");
    assert!(lab.ok("--dir half-way verify").contains("business_loan=0 outbox=0 "));
    lab.ok("--dir half-way clean");
}

#[test]
fn a_wal_left_of_a_database_that_is_gone_is_refused_and_not_eaten() {
    let lab = Lab::new();
    lab.hold("write-hold 3").kill();
    let (db, wal) = (lab.path(".lab/outbox.db"), lab.path(".lab/outbox.db-wal"));
    let left = bytes(&wal);
    assert!(!left.is_empty(), "a killed process leaves its -wal");
    fs::rename(&db, lab.path("moved.db")).unwrap();
    for command in MAKERS {
        refused(&lab, command, 4)
            .says(".lab/outbox.db-wal is left of a database that is gone")
            .names_next_step()
            .says("move it away");
    }
    for command in READERS {
        refused(&lab, command, 4).says("there is no lab database at .lab/outbox.db");
    }
    assert!(!db.exists());
    assert!(bytes(&wal) == left);
    // An empty file in its place is no database either.
    fs::write(&db, "").unwrap();
    refused(&lab, "write 1", 4).says("is an empty file, not a database");
    assert!(bytes(&wal) == left);
    fs::rename(lab.path("moved.db"), &db).unwrap();
    assert_eq!(lab.counts(), [3, 3, 0, 3], "put back, it has everything");
}

#[test]
fn rollback_on_an_empty_outbox_says_to_write_first() {
    let lab = Lab::new();
    lab.ok("reset");
    for _ in 0..2 {
        refused(&lab, "rollback", 4)
            .says("the outbox of .lab/outbox.db is empty: there is no event id to collide with")
            .names_next_step()
            .says("write first: outbox-lab write 5");
        lab.ok("naive");
    }
    assert_eq!(lab.counts(), [2, 0, 0, 0]);
}

#[test]
fn nothing_to_compare_is_inconclusive() {
    let lab = Lab::new();
    lab.ok("reset");
    for line in ["reconcile", "reconcile --expect 0/0/0/0", "--json reconcile"] {
        refused(&lab, line, 3).says("there is nothing to compare").names_next_step().says("outbox-lab write 5");
    }
}

#[test]
fn a_topic_that_is_not_there_cannot_be_consumed() {
    let lab = Lab::new();
    lab.ok("write 1");
    refused(&lab, "consume", 3).says("there is no topic v2c7.outbox to read").names_next_step();
    lab.ok("broker start");
    refused(&lab, "--topic another consume", 3).says("there is no topic another to read").names_next_step();
    assert_eq!(lab.counts(), [1, 1, 0, 1]);
}

#[test]
fn a_path_need_not_be_utf_8() {
    let lab = Lab::new();
    let name = OsString::from_vec(b"caf\xe9".to_vec());
    for option in ["--db", "--dir"] {
        let run = |line: &str| {
            let output = lab.command([option]).arg(&name).args(line.split_whitespace()).output().unwrap();
            assert!(output.status.code().is_some(), "{output:?}");
            Ended::of(line, output)
        };
        // macOS has file systems that take no such name.
        if cfg!(target_os = "macos") {
            run("write 1");
            continue;
        }
        run("reset").exits(0);
        run("write 2").exits(0);
        run("publish 1").exits(0);
        assert_eq!(run("verify").exits(0).stdout, "[verify] business_loan=2 outbox=2 published=1 unpublished=1\n");
        run("reconcile --expect 2/2/1/1").exits(0);
        let reset = lab.command([option]).arg(&name).arg("reset").output().unwrap();
        let db = if option == "--db" { &b"caf\xe9\n"[..] } else { b"caf\xe9/outbox.db\n" };
        assert!(reset.stdout.ends_with(db), "the path is printed as it is: {reset:?}");
        let json = run("--json reset").exits(0).stdout;
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert!(json["db"].as_str().unwrap().starts_with("caf\u{fffd}"), "{json}");
        run("clean").exits(0);
        fs::rename(lab.path("").join(&name), lab.path("done")).unwrap();
        fs::remove_dir_all(lab.path("done")).or_else(|_| fs::remove_file(lab.path("done"))).unwrap();
    }
}
