//! Who is at work: every command says that it is alive, in its lab directory and at its database, so that a `reset` can
//! refuse and name it. Two lab directories can share a database, and a database can outlive a lab directory.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::failure::Failure;
use crate::lab::Lab;
use crate::lock::{Kind, LockFile};
use crate::output::hint;
use crate::store;

/// How long a command waits for a `reset` that is at work.
const RESET_PATIENCE: Duration = Duration::from_secs(5);

/// How long a command that has to be alone waits for others that are just dying.
const DYING_PATIENCE: Duration = Duration::from_secs(1);

/// The proof that this command is at work. Dropped, it says that the command has ended.
#[must_use = "dropped at once, it says that the command has ended"]
pub struct Presence {
    _locks: Vec<LockFile>,
}

/// For a command that takes what is there. It makes nothing: where there is no lab directory and no database, there is
/// nothing to reset either, so nothing to say.
///
/// # Errors
/// A `reset` is at work here and does not end; the lab directory cannot be written; or the database is none of a lab's.
pub fn enter(lab: &Lab) -> Result<Presence> {
    let mut locks = Vec::new();
    if lab.has_dir()? {
        locks.push(lab.lock_file("alive.lock")?);
    }
    if lab.db.exists() {
        store::refuse_others(&lab.db)?;
        locks.push(lab.open_lock(&beside_database(lab, ".alive.lock"))?);
    }
    stand(locks, Kind::Shared)
}

/// As [`enter`], for a command that sends: where there is a database, the lab directory is made first. The embedded broker
/// will want it; made later, it would not say that this command is alive.
///
/// # Errors
/// As [`enter`]; or the lab directory cannot be made.
pub fn enter_to_send(lab: &Lab) -> Result<Presence> {
    if lab.db.exists() {
        lab.make_dir()?;
    }
    enter(lab)
}

/// For a command that makes what is missing.
///
/// # Errors
/// As [`enter`]; or the lab directory, or the database's folder, cannot be made.
pub fn enter_making(lab: &Lab) -> Result<Presence> {
    stand(both(lab)?, Kind::Shared)
}

/// For the command that takes away what others stand on: alone or not at all.
///
/// # Errors
/// Another command is alive; its pid is named.
pub fn enter_alone(lab: &Lab) -> Result<Presence> {
    stand(both(lab)?, Kind::Exclusive)
}

/// As [`enter_alone`], for a command that leaves the database be.
///
/// # Errors
/// Another command is alive in the lab directory; its pid is named.
pub fn enter_directory_alone(lab: &Lab) -> Result<Presence> {
    stand(vec![lab.lock_file("alive.lock")?], Kind::Exclusive)
}

/// For a command that plays in the lab directory: one at a time, while others may be at work beside it.
///
/// # Errors
/// Another one is at it.
pub fn enter_to_play(lab: &Lab) -> Result<Presence> {
    lab.make_dir()?;
    let lock = lab.lock_file("play.lock")?;
    if lock.try_lock(Kind::Exclusive)? {
        return Ok(Presence { _locks: vec![lock] });
    }
    let pid = lock.holder(Kind::Exclusive)?.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string());
    Err(Failure::failed(
        format!("another run is at play in the lab directory {}: pid {pid}", lab.dir.display()),
        "let it end, or take another --dir",
    ))
}

fn both(lab: &Lab) -> Result<Vec<LockFile>> {
    lab.has_dir()?;
    store::refuse_others(&lab.db)?;
    lab.make_dir()?;
    lab.make_folder_of_database()?;
    Ok(vec![lab.lock_file("alive.lock")?, lab.open_lock(&beside_database(lab, ".alive.lock"))?])
}

/// A file beside the database, by what its name has more.
pub fn beside_database(lab: &Lab, suffix: &str) -> PathBuf {
    // By whatever way it is named: a symbolic link leads to the same database.
    store::beside(&lab.db.canonicalize().unwrap_or_else(|_| lab.db.clone()), suffix)
}

fn stand(locks: Vec<LockFile>, kind: Kind) -> Result<Presence> {
    let deadline = Instant::now() + if kind == Kind::Shared { RESET_PATIENCE } else { DYING_PATIENCE };
    let mut told = false;
    for lock in &locks {
        while !lock.try_lock(kind)? {
            let holder = lock.holder(kind)?;
            if Instant::now() >= deadline {
                return Err(in_the_way(kind, holder));
            }
            if let (Some(pid), Kind::Shared, false) = (holder, kind, told) {
                hint(&format!("waiting for the reset of pid {pid}"));
                told = true;
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
    Ok(Presence { _locks: locks })
}

fn in_the_way(kind: Kind, holder: Option<u32>) -> anyhow::Error {
    let (pid, kill) = match holder {
        Some(pid) => (format!("pid {pid}"), format!("kill -9 {pid}")),
        None => ("a process that does not say who it is".to_owned(), "look for it with lsof".to_owned()),
    };
    match kind {
        Kind::Shared => Failure::failed(
            format!("a reset is at work on this lab directory or database: {pid}"),
            format!("let it end (if it is held: {kill}), or take another --dir and --db"),
        ),
        Kind::Exclusive => Failure::failed(
            format!("another command is alive on this lab directory or database: {pid}"),
            format!("let it end, or {kill}; then type the command again. Nothing was changed"),
        ),
    }
}
