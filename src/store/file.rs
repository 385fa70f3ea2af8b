//! The database file: made, recognised, opened. A file that is not a lab database is refused and never
//! changed, and a path where nothing is never reads as "everything was lost".

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
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
///
/// Never while this process has the file open: closing it would take the connection's locks away
/// (<https://www.sqlite.org/howtocorrupt.html#_posix_advisory_locks_canceled_by_a_separate_thread_doing_close_>).
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

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Opens a database that this process has open, and leaves its file alone.
pub(super) fn open_again(path: &Path) -> Result<Connection> {
    open_file(path)
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
