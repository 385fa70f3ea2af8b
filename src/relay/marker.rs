//! Marking beside publishing: a thread with a connection of its own marks one acknowledged batch after the other, while later
//! ones are read and sent.

use std::sync::mpsc::{Receiver, Sender};

use anyhow::Result;

use super::News;
use crate::crash::{CrashPoint, SharedHolds};
use crate::failure::Failure;
use crate::store::{Batch, Lease, Marks, Store};

/// A batch that was acknowledged, in whole or in part.
pub(super) struct Job {
    /// The rows.
    pub batch: Batch,
    /// Of each: was it acknowledged?
    pub acknowledged: Vec<bool>,
    /// Under which lease they were sent.
    pub lease: Lease,
    /// Where to tell what came of it.
    pub done: Sender<News>,
}

/// Marks batches in the order in which they come, until there will be no more.
pub(super) fn work(mut store: Store, holds: &SharedHolds, jobs: &Receiver<Job>) {
    for Job { batch, acknowledged, lease, done } in jobs {
        let news = match mark(&mut store, holds, &lease, &batch, &acknowledged) {
            Ok(marks) => News::Marked(batch, marks),
            Err(error) => News::Failed(error),
        };
        // Nobody listens any more when the relay has failed.
        let _ = done.send(news);
    }
}

/// Marks acknowledged rows. They are in the topic by now: to give up is to send the records twice.
pub(super) fn mark(
    store: &mut Store,
    holds: &SharedHolds,
    lease: &Lease,
    batch: &Batch,
    acknowledged: &[bool],
) -> Result<Marks> {
    holds.reached(CrashPoint::BeforeMark)?;
    let Some(marks) = store.mark_all(lease, batch, acknowledged)? else {
        return Err(Failure::failed(
            "acknowledged rows cannot be marked: another program keeps the database locked",
            "end the program that holds the lock. The rows are pending, so the next relay sends them (again: duplicates, \
             nothing lost)",
        ));
    };
    holds.reached(CrashPoint::AfterMark)?;
    Ok(marks)
}
