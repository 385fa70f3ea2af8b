//! Who is at work in a lab directory: every command says that it is alive, so that a `reset` can refuse and name it.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::failure::Failure;
use crate::lab::Lab;
use crate::lock::{Kind, LockFile};
use crate::output::hint;

/// How long a command waits for a `reset` that is at work.
const RESET_PATIENCE: Duration = Duration::from_secs(5);

/// How long a command that has to be alone waits for others that are just dying.
const DYING_PATIENCE: Duration = Duration::from_millis(300);

/// The proof that this command is at work in its lab directory. Dropped, it says that the command has ended.
#[must_use = "dropped at once, it says that the command has ended"]
pub struct Presence {
    _lock: Option<LockFile>,
}

/// Says that a command is alive in this lab directory. Where there is no directory there is nothing to reset either, so
/// nothing to say.
///
/// # Errors
/// A `reset` is at work here and does not end; or the directory cannot be written.
pub fn enter(lab: &Lab) -> Result<Presence> {
    if !lab.dir.is_dir() {
        return Ok(Presence { _lock: None });
    }
    let alive = lab.lock_file("alive.lock")?;
    match wait_for(&alive, Kind::Shared, RESET_PATIENCE)? {
        Wait::Got => Ok(Presence { _lock: Some(alive) }),
        Wait::HeldBy(pid) => Err(Failure::failed(
            format!("a reset is at work in the lab directory {}: pid {pid}", lab.dir.display()),
            format!("let it end (if it is held: kill -9 {pid}), or take another --dir"),
        )),
    }
}

/// As [`enter`], for a command that takes away what others stand on: alone or not at all.
///
/// # Errors
/// Another command of this lab directory is alive; its pid is named.
pub fn enter_alone(lab: &Lab) -> Result<Presence> {
    let alive = lab.lock_file("alive.lock")?;
    match wait_for(&alive, Kind::Exclusive, DYING_PATIENCE)? {
        Wait::Got => Ok(Presence { _lock: Some(alive) }),
        Wait::HeldBy(pid) => Err(Failure::failed(
            format!("another command is alive in the lab directory {}: pid {pid}", lab.dir.display()),
            format!("let it end, or kill -9 {pid}; then type the command again. Nothing was changed"),
        )),
    }
}

enum Wait {
    Got,
    HeldBy(u32),
}

fn wait_for(lock: &LockFile, kind: Kind, patience: Duration) -> Result<Wait> {
    let deadline = Instant::now() + patience;
    let mut told = false;
    loop {
        if lock.try_lock(kind)? {
            return Ok(Wait::Got);
        }
        // None: whoever had it has just let go of it.
        if let Some(pid) = lock.holder(kind)? {
            if Instant::now() >= deadline {
                return Ok(Wait::HeldBy(pid));
            }
            if kind == Kind::Shared && !told {
                hint(&format!("waiting for the reset of pid {pid}"));
                told = true;
            }
        }
        thread::sleep(Duration::from_millis(2));
    }
}
