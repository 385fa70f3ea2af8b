//! `purge`: published rows are deleted once they are old enough, in small transactions. Writers and relays get in between,
//! and a kill leaves what was deleted until then deleted, and everything else as it was.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::crash::{CrashPoint, Holds};
use crate::failure::Exit;
use crate::lab::Lab;
use crate::output::{Line, Output, hint};
use crate::presence::enter;
use crate::store::Store;

/// How long the database is left to others at the most, between two transactions.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) fn run(lab: &Lab, older_than: Duration, holds: &mut Holds, out: &Output) -> Result<Exit> {
    let _present = enter(lab)?;
    let mut store = Store::open(&lab.db)?;
    let (mut deleted, mut after) = (0, i64::MIN);
    loop {
        let begun = Instant::now();
        let (rows, end) = store.purge(after, older_than).inspect_err(|_| {
            hint(&format!("{deleted} published rows were deleted before; the next purge goes on where this one ends"));
        })?;
        let Some(end) = end else { break };
        let took = begun.elapsed();
        (deleted, after) = (deleted + rows, end);
        holds.reached(CrashPoint::AfterPurgeChunk)?;
        // SQLite's lock is not handed on in turn: whoever takes it again at once starves those who wait for it.
        thread::sleep(took.min(PAUSE));
    }
    out.line(&Line::Purged { deleted })?;
    Ok(Exit::Done)
}
