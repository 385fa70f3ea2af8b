//! The database file: made, recognised, opened. A file that is not a lab database is refused and never
//! changed, and a path where nothing is never reads as "everything was lost".

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::schema::{self, APPLICATION_ID, USER_VERSION};
use crate::failure::Failure;

/// How long SQLite waits for another process's lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Refuses a path where something else than a lab database lies.
///
/// # Errors
/// It does; nothing was changed.
pub fn refuse_others(path: &Path) -> Result<()> {
    inspect(path).map(|_| ())
}

/// A database file that this process has open, by device and inode.
///
/// Such a file is not looked into again: to close it would take away every POSIX lock that the process has on it. The next
/// program to leave would take itself for the last one, and delete the -wal under the connection that is open here; what
/// that commits afterwards nobody sees. (SQLite 3.51 is more careful when it leaves; the shell on a laptop is older.)
/// <https://www.sqlite.org/howtocorrupt.html#_posix_advisory_locks_canceled_by_a_separate_thread_doing_close_>
pub(super) struct InUse((u64, u64));

/// Once for each connection.
static IN_USE: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

fn in_use() -> MutexGuard<'static, Vec<(u64, u64)>> {
    IN_USE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn identity(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

impl InUse {
    /// The file at `path` is in use from now on.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let file = identity(&fs::metadata(path)?);
        in_use().push(file);
        Ok(Self(file))
    }

    /// Is it there still, neither removed nor replaced?
    pub(super) fn is_at(&self, path: &Path) -> bool {
        fs::metadata(path).is_ok_and(|metadata| identity(&metadata) == self.0)
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut in_use = in_use();
        if let Some(at) = in_use.iter().position(|file| *file == self.0) {
            in_use.swap_remove(at);
        }
    }
}

/// What lies at a path.
enum Found {
    Nothing,
    LabDatabase,
}

/// Opens the lab database at `path`; makes it where nothing is.
///
/// # Errors
/// Something else is there, or it cannot be made.
pub(super) fn make(path: &Path) -> Result<Connection> {
    // Looked for before the database itself is: a database that others are just making has its -wal only after its own
    // file is there.
    let old_wal = beside(path, "-wal");
    let has_old_wal = old_wal.exists();
    if let Found::LabDatabase = inspect(path)? {
        return open_file(path);
    }
    if has_old_wal {
        return Err(Failure::failed(
            format!(
                "{} is left of a database that is gone; SQLite would take its pages for a new one",
                old_wal.display()
            ),
            format!("move it away, or take another path with --db: {} was not made", path.display()),
        ));
    }
    put_in_place(path)?;
    match inspect(path)? {
        Found::LabDatabase => open_file(path),
        Found::Nothing => anyhow::bail!("{} was made and is gone again", path.display()),
    }
}

/// Makes an empty lab database appear at `path` whole: a process that dies on the way leaves nothing there, and of
/// several that do this at once one is the first and the others find its file.
fn put_in_place(path: &Path) -> Result<()> {
    let mut empty = Connection::open_in_memory()?;
    schema::lay(&empty)?;
    let pages = empty.serialize("main")?;
    let draft = beside(path, &format!(".draft.{}", std::process::id()));
    let place = || -> io::Result<()> {
        let mut file = File::create(&draft)?;
        file.write_all(&pages)?;
        file.sync_all()?;
        // Unlike a rename, a link never takes the place of a file that is there.
        fs::hard_link(&draft, path)
    };
    let placed = place();
    let _ = fs::remove_file(&draft);
    match placed {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(Failure::failed(
            format!("the database {} cannot be made ({error})", path.display()),
            "look at the rights of its folder, or take another path with --db",
        )),
        _ => Ok(()),
    }
}

/// Opens the lab database at `path`, and nothing else.
///
/// # Errors
/// None is there, or something else is.
pub(super) fn open(path: &Path) -> Result<Connection> {
    match inspect(path)? {
        Found::LabDatabase => open_file(path),
        Found::Nothing => Err(Failure::failed(
            format!("there is no lab database at {}", path.display()),
            "check the path (--db, --dir), or make one with reset; nothing is known to be lost",
        )),
    }
}

/// Looks at the file's header without SQLite, which may change a file in the course of opening it.
/// Layout: <https://www.sqlite.org/fileformat2.html#the_database_header>
fn inspect(path: &Path) -> Result<Found> {
    let refuse = |what: String| Failure::failed(what, "name another path with --db; the file was not changed");
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Found::Nothing);
        }
        Err(error) => return Err(refuse(format!("{} cannot be looked at ({error})", path.display()))),
    };
    if metadata.is_dir() {
        return Err(refuse(format!("{} is a folder, not a database", path.display())));
    }
    if !metadata.is_file() {
        return Err(refuse(format!("{} is not a file", path.display())));
    }
    if metadata.len() == 0 {
        return Err(refuse(format!("{} is an empty file, not a database", path.display())));
    }
    if in_use().contains(&identity(&metadata)) {
        return Ok(Found::LabDatabase);
    }
    let mut header = Vec::new();
    File::open(path)
        .and_then(|file| file.take(100).read_to_end(&mut header))
        .map_err(|error| refuse(format!("{} cannot be read ({error})", path.display())))?;
    let number = |at: usize| header.get(at..at + 4).map_or(0, |b| i32::from_be_bytes([b[0], b[1], b[2], b[3]]));
    if header.len() < 100 || !header.starts_with(b"SQLite format 3\0") {
        return Err(refuse(format!("{} is not an SQLite database", path.display())));
    }
    if number(68) != APPLICATION_ID {
        return Err(refuse(format!("{} is another program's SQLite database, not a lab's", path.display())));
    }
    if !(1..=USER_VERSION).contains(&number(60)) {
        return Err(refuse(format!(
            "{} is a lab database of version {}, and this lab knows versions up to {USER_VERSION}",
            path.display(),
            number(60)
        )));
    }
    if let Some((says, has)) = cut_short(path, number) {
        return Err(refuse(format!("{} is damaged: it says that it has {says} bytes, and has {has}", path.display())));
    }
    Ok(Found::LabDatabase)
}

/// The bytes that a file should have by its header and those that it has, where these are fewer and no -wal or journal
/// is there in which pages could still lie. Another process may be writing at this moment, so a file that seems cut is
/// looked at again.
fn cut_short(path: &Path, header: impl Fn(usize) -> i32) -> Option<(u64, u64)> {
    let page_size = match u64::from(header(16).unsigned_abs() >> 16) {
        1 => 65_536,
        size => size,
    };
    let says = u64::from(header(28).unsigned_abs()) * page_size;
    let length = |path: &Path| fs::metadata(path).map_or(0, |metadata| metadata.len());
    for _ in 0..20 {
        let has = length(path);
        if has >= says || length(&beside(path, "-wal")) > 0 || length(&beside(path, "-journal")) > 0 {
            return None;
        }
        thread::sleep(Duration::from_millis(10));
    }
    Some((says, length(path)))
}

/// A file beside the one at `path`, by what its name has more.
pub fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Opens a lab database and sets what a commit has to mean here: it is answered when it is durable.
fn open_file(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut db = Connection::open_with_flags(path, flags)?;
    db.busy_timeout(BUSY_TIMEOUT)?;
    // The switch of a fresh file to WAL does not run the busy handler.
    let deadline = Instant::now() + BUSY_TIMEOUT;
    loop {
        match db.query_row("PRAGMA journal_mode = WAL", (), |row| row.get::<_, String>(0)) {
            Ok(mode) if mode == "wal" => break,
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(2));
            }
            Err(error) => return Err(error.into()),
            Ok(mode) => anyhow::bail!("SQLite keeps the journal mode {mode} where it was asked for WAL"),
        }
    }
    db.pragma_update(None, "synchronous", "FULL")?;
    let synchronous: i64 = db.query_row("PRAGMA synchronous", (), |row| row.get(0))?;
    anyhow::ensure!(synchronous == 2, "SQLite keeps synchronous={synchronous} where it was asked for FULL");
    schema::migrate(&mut db)?;
    Ok(db)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::process::Command;

    use nix::fcntl::{FcntlArg, fcntl};
    use nix::libc::{F_UNLCK, F_WRLCK, SEEK_SET, flock};

    use super::{File, InUse, Path, refuse_others};
    use crate::store::Store;

    const DB: &str = "OUTBOX_LAB_TEST_DB";

    /// The other program of the test below: it asks what SQLite asks when it leaves. A process does not see its own locks.
    #[test]
    fn another_program_sees_that_it_is_not_alone() {
        let Some(path) = std::env::var_os(DB) else { return };
        // The bytes that SQLite's shared lock is on: <https://www.sqlite.org/src/file/src/os.h>
        let (l_start, l_len) = (0x4000_0002, 510);
        let mut lock = flock { l_type: F_WRLCK as _, l_whence: SEEK_SET as _, l_start, l_len, l_pid: 0 };
        fcntl(File::open(Path::new(&path)).unwrap(), FcntlArg::F_GETLK(&mut lock)).unwrap();
        let free: i16 = F_UNLCK as _;
        assert_ne!(lock.l_type, free, "nobody has it open");
    }

    #[test]
    fn who_opens_a_database_again_takes_no_lock_from_the_first_connection() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("outbox.db");
        let first = Store::make(&path).unwrap();
        refuse_others(&path).unwrap();
        drop(Store::open(&path).unwrap());
        drop(first.again().unwrap());
        let mut other = Command::new(std::env::current_exe().unwrap());
        other.args(["--exact", "store::file::tests::another_program_sees_that_it_is_not_alone"]).env(DB, &path);
        let outcome = |other: &mut Command| String::from_utf8(other.output().unwrap().stdout).unwrap();
        assert!(outcome(&mut other).contains("1 passed"), "the lock is there");
        drop(first);
        assert!(outcome(&mut other).contains("1 failed"), "and only as long as the first connection is");
    }

    #[test]
    fn a_file_is_in_use_as_long_as_any_connection_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "not a database").unwrap();
        let both = [InUse::of(&path).unwrap(), InUse::of(&path).unwrap()];
        for in_use in both {
            assert!(refuse_others(&path).is_ok());
            drop(in_use);
        }
        assert!(refuse_others(&path).is_err());
    }
}
