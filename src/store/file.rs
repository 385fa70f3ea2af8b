//! The database file: made, recognised, opened. A file that is not a lab database is refused and never
//! changed, and a path where nothing is never reads as "everything was lost".

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};

use crate::failure::Failure;

/// How long SQLite waits for another process's lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Marks a lab database in the file's header ("OBLB"), so that no other program's file is taken for one.
const APPLICATION_ID: i32 = 0x4F42_4C42;

/// The schema's version.
const USER_VERSION: i32 = 1;

/// The book's two tables (7.1), and two small ones of the lab's own: the loan numbers given out, and what the
/// lab noted about the topic.
const SCHEMA: &str = "
CREATE TABLE business_loan (
  loan_id    TEXT NOT NULL PRIMARY KEY,
  book_id    TEXT NOT NULL,
  member_id  TEXT NOT NULL,
  status     TEXT NOT NULL,
  created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
) STRICT;
CREATE TABLE outbox (
  id           INTEGER PRIMARY KEY AUTOINCREMENT,
  event_id     TEXT    NOT NULL UNIQUE,
  aggregate_id TEXT    NOT NULL,
  event_type   TEXT    NOT NULL,
  payload      TEXT    NOT NULL,
  created_at   TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
  published    INTEGER NOT NULL DEFAULT 0 CHECK (published IN (0, 1))
) STRICT;
CREATE INDEX outbox_pending ON outbox (id) WHERE published = 0;
CREATE TABLE loan_number (
  family TEXT    NOT NULL PRIMARY KEY,
  first  INTEGER NOT NULL,
  last   INTEGER NOT NULL
) STRICT;
CREATE TABLE lab_note (
  name  TEXT NOT NULL PRIMARY KEY,
  value TEXT NOT NULL
) STRICT;
";

const DROP_SCHEMA: &str = "
DROP TABLE IF EXISTS business_loan;
DROP TABLE IF EXISTS outbox;
DROP TABLE IF EXISTS loan_number;
DROP TABLE IF EXISTS lab_note;
";

/// What lies at a path.
enum Found {
    Nothing,
    LabDatabase,
    /// A lab database whose schema may not be committed yet: it is just being made, or its maker died.
    HalfMade,
}

/// Opens the lab database at `path`; makes it, and the folders above it, where nothing is.
///
/// # Errors
/// Something else is there, or it cannot be made.
pub(super) fn make(path: &Path) -> Result<Connection> {
    // Looked for before the database itself is: a database that is just being made has its -wal only when
    // its own file has content.
    let old_wal = beside(path, "-wal");
    let has_old_wal = old_wal.exists();
    match inspect(path)? {
        Found::LabDatabase => return open_file(path),
        Found::Nothing if has_old_wal => {
            return Err(Failure::failed(
                format!(
                    "{} is left of a database that is gone; SQLite would take its pages for a new one",
                    old_wal.display()
                ),
                format!("move it away, or take another path with --db: {} was not made", path.display()),
            ));
        }
        Found::Nothing | Found::HalfMade => {}
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(|error| {
            Failure::failed(
                format!("the folder {} cannot be made ({error})", folder.display()),
                "take another path with --db, or another lab directory with --dir",
            )
        })?;
    }
    let mut db = connect(path, OpenFlags::SQLITE_OPEN_CREATE)?;
    // The schema before the switch to WAL: so the main file bears the application id from its first page on.
    let txn = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if !has_schema(&txn)? {
        txn.execute_batch(SCHEMA)?;
        txn.pragma_update(None, "application_id", APPLICATION_ID)?;
        txn.pragma_update(None, "user_version", USER_VERSION)?;
    }
    txn.commit()?;
    settle(&db)?;
    Ok(db)
}

/// Opens the lab database at `path`, and nothing else.
///
/// # Errors
/// None is there, or something else is.
pub(super) fn open(path: &Path) -> Result<Connection> {
    match inspect(path)? {
        Found::LabDatabase => return open_file(path),
        Found::HalfMade => {
            // What a dead maker had begun, SQLite takes back here.
            let db = connect(path, OpenFlags::empty())?;
            if has_schema(&db)? {
                settle(&db)?;
                return Ok(db);
            }
        }
        Found::Nothing => {}
    }
    Err(Failure::failed(
        format!("there is no lab database at {}", path.display()),
        "check the path (--db, --dir), or make one with reset; nothing is known to be lost",
    ))
}

/// Empties a lab database where it lies, in the caller's transaction: a file unlinked or renamed would leave
/// its -wal behind, and still take writes that nobody will ever see.
pub(super) fn empty(txn: &rusqlite::Transaction) -> rusqlite::Result<()> {
    txn.execute_batch(DROP_SCHEMA)?;
    txn.execute_batch(SCHEMA)
}

/// Looks at the file's header without SQLite, which may change a file in the course of opening it.
/// Layout: <https://www.sqlite.org/fileformat2.html#the_database_header>
fn inspect(path: &Path) -> Result<Found> {
    let refuse = |what: String| Failure::failed(what, "name another path with --db; the file was not changed");
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => return Err(refuse(format!("{} cannot be looked at ({error})", path.display()))),
    };
    if metadata.is_dir() {
        return Err(refuse(format!("{} is a folder, not a database", path.display())));
    }
    if !metadata.is_file() {
        return Err(refuse(format!("{} is not a file", path.display())));
    }
    let unreadable = |error: io::Error| refuse(format!("{} cannot be read ({error})", path.display()));
    let file = File::open(path).map_err(unreadable)?;
    let mut header = Vec::new();
    (&file).take(100).read_to_end(&mut header).map_err(unreadable)?;
    if header.is_empty() {
        return Ok(Found::Nothing);
    }
    let number = |at: usize| header.get(at..at + 4).map_or(0, |b| i32::from_be_bytes([b[0], b[1], b[2], b[3]]));
    if header.len() < 100 || !header.starts_with(b"SQLite format 3\0") {
        return Err(refuse(format!("{} is not an SQLite database", path.display())));
    }
    if number(68) != APPLICATION_ID {
        return Err(refuse(format!("{} is another program's SQLite database, not a lab's", path.display())));
    }
    if number(60) != USER_VERSION {
        return Err(refuse(format!(
            "{} is a lab database of version {}, and this lab knows version {USER_VERSION}",
            path.display(),
            number(60)
        )));
    }
    let page_size = match u64::from(u16::from_be_bytes([header[16], header[17]])) {
        1 => 65_536,
        size => size,
    };
    let whole = u64::from(number(28).unsigned_abs()) * page_size;
    // The order counts. Once the header is there, the other pages come before the -journal or the -wal goes, so
    // a length that is taken last, with neither of them left, is that of a file at rest.
    if beside(path, "-journal").exists() {
        return Ok(Found::HalfMade);
    }
    let wal_is_empty = fs::metadata(beside(path, "-wal")).map_or(0, |wal| wal.len()) == 0;
    let has = file.metadata().map_err(unreadable)?.len();
    // Pages may still lie in the -wal. Where that is empty, a file shorter than its own header says was cut.
    if has < whole && wal_is_empty {
        return Err(refuse(format!("{} is damaged: it says that it has {whole} bytes, and has {has}", path.display())));
    }
    Ok(Found::LabDatabase)
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn connect(path: &Path, more: OpenFlags) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | more;
    let db = Connection::open_with_flags(path, flags)?;
    db.busy_timeout(BUSY_TIMEOUT)?;
    Ok(db)
}

fn has_schema(db: &Connection) -> Result<bool> {
    Ok(db.query_row("SELECT count(*) > 0 FROM sqlite_schema", (), |row| row.get(0))?)
}

fn open_file(path: &Path) -> Result<Connection> {
    let db = connect(path, OpenFlags::empty())?;
    settle(&db)?;
    Ok(db)
}

/// Sets what a commit has to mean here: it is answered when it is durable.
fn settle(db: &Connection) -> Result<()> {
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
    Ok(())
}
