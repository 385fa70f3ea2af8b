//! SQLite's errors in words: what each means for a lab's database, and what to do.

use std::path::Path;

use rusqlite::ErrorCode;

use crate::failure::Failure;

/// Puts an error that comes from SQLite into words; any other passes as it is.
pub fn in_words(error: anyhow::Error, path: &Path) -> anyhow::Error {
    if error.is::<Failure>() {
        return error;
    }
    let Some(sqlite) = error.chain().find_map(|cause| cause.downcast_ref::<rusqlite::Error>()) else {
        return error;
    };
    let db = path.display();
    let (what, next) = match sqlite.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => (
            format!("the database {db} was locked by another program for longer than the lab waits"),
            "end the program that holds the lock (an open sqlite3 shell?), and see by verify what was committed before"
                .to_owned(),
        ),
        Some(ErrorCode::DatabaseCorrupt) => (
            format!("the database {db} is damaged (was the file cut short?)"),
            format!("keep {db} if you want to look into it, and take another path with --db"),
        ),
        Some(ErrorCode::NotADatabase) => {
            (format!("{db} is not an SQLite database"), "name another path with --db".to_owned())
        }
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => (
            format!("the database {db} cannot be written"),
            // The star: a reader of a read-only database leaves a -wal and a -shm beside it with the same rights.
            format!("allow it (chmod u+w {db}*, and its folder), or take another path with --db"),
        ),
        Some(ErrorCode::CannotOpen) => (
            format!("the database {db} cannot be opened"),
            format!("look at the rights of {db} and of its folder, or take another path with --db"),
        ),
        Some(ErrorCode::DiskFull) => (
            format!("no room on the disk for the database {db}"),
            "make room, and see by verify what was committed before".to_owned(),
        ),
        _ => (
            format!("the database {db} refused"),
            format!("look at {db} with the sqlite3 shell, or take another path with --db"),
        ),
    };
    Failure::failed(format!("{what} (SQLite: {sqlite})"), next)
}
