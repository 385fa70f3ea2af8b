//! How a command ends: its exit code, and the error that a user reads.

use std::fmt;

use rusqlite::ErrorCode;

use crate::lab::Lab;

/// How a command ended, as the shell sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done, and what was expected.
    Done = 0,
    /// Done, and not what was expected: a mismatch.
    Unexpected = 1,
    /// The command line was wrong.
    Usage = 2,
    /// Nothing can be concluded: nothing to compare, records gone, a crash point that was never reached.
    Inconclusive = 3,
    /// The lab itself could not do it: no broker, no database, no room.
    Failed = 4,
}

/// An error as the user sees it: what happened and to what, and what to type next.
#[derive(Debug)]
pub struct Failure {
    /// The exit code that goes with it.
    pub exit: Exit,
    what: String,
    next: String,
}

impl Failure {
    /// A wrong command line.
    pub fn usage(what: impl Into<String>, next: impl Into<String>) -> anyhow::Error {
        Self::error(Exit::Usage, what, next)
    }

    /// Nothing can be concluded.
    pub fn inconclusive(what: impl Into<String>, next: impl Into<String>) -> anyhow::Error {
        Self::error(Exit::Inconclusive, what, next)
    }

    /// The lab could not do it.
    pub fn failed(what: impl Into<String>, next: impl Into<String>) -> anyhow::Error {
        Self::error(Exit::Failed, what, next)
    }

    /// Standard output was closed by its reader (`… | head -1`): the command stops and says nothing, as
    /// tools in a pipe do. What it had done stays done.
    pub fn output_closed() -> anyhow::Error {
        Self::error(Exit::Failed, "", "")
    }

    fn error(exit: Exit, what: impl Into<String>, next: impl Into<String>) -> anyhow::Error {
        Self { exit, what: what.into(), next: next.into() }.into()
    }

    /// Is there anything to tell the user?
    pub fn is_silent(&self) -> bool {
        self.what.is_empty()
    }

    /// Turns whatever went wrong into something a user can act on. Library errors that nobody below has
    /// put into words end here, so that none is printed bare.
    pub fn explain(error: anyhow::Error, lab: &Lab) -> Self {
        match error.downcast::<Self>() {
            Ok(failure) => failure,
            Err(error) => {
                let sqlite = error.chain().find_map(|cause| cause.downcast_ref::<rusqlite::Error>());
                let (what, next) = match sqlite {
                    Some(cause) => explain_sqlite(cause, lab),
                    None => (
                        format!("{error:#}"),
                        format!("check the lab directory {}; or take another with --dir", lab.dir.display()),
                    ),
                };
                Self { exit: Exit::Failed, what, next }
            }
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  next: {}", self.what, self.next)
    }
}

impl std::error::Error for Failure {}

/// SQLite's own words, with what they mean for the lab's database and what to do.
fn explain_sqlite(error: &rusqlite::Error, lab: &Lab) -> (String, String) {
    let db = lab.db.display();
    let (what, next) = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => (
            format!("the database {db} was locked by another program for longer than the lab waits"),
            "end the program that holds the lock (an open sqlite3 shell?), then type the command again; the transaction \
             that waited changed nothing"
                .to_owned(),
        ),
        Some(ErrorCode::DatabaseCorrupt) => (
            format!("the database {db} is damaged (was the file cut short?)"),
            format!("keep {db} if you want to look into it, and take another path with --db"),
        ),
        Some(ErrorCode::NotADatabase) => (
            format!("{db} is not an SQLite database"),
            "name another path with --db; the file was not changed".to_owned(),
        ),
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => (
            format!("the database {db} cannot be written"),
            // The star: a reader of a read-only database leaves a -wal and a -shm beside it with the same rights.
            format!("allow it (chmod u+w {db}*, and its folder), or take another path with --db"),
        ),
        Some(ErrorCode::CannotOpen) => (
            format!("the database {db} cannot be opened"),
            format!("look at the rights of {db} and of its folder, or take another path with --db"),
        ),
        Some(ErrorCode::DiskFull) => {
            (format!("no room on the disk for the database {db}"), "make room, then type the command again".to_owned())
        }
        _ => (
            format!("the database {db} refused"),
            format!("look at {db} with the sqlite3 shell, or take another path with --db"),
        ),
    };
    (format!("{what} (SQLite: {error})"), next)
}
