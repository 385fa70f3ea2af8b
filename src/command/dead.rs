//! `dead`: the rows that a relay has given up, for somebody to decide on.

use anyhow::Result;

use crate::cli::Dead;
use crate::failure::{Exit, Failure};
use crate::lab::Lab;
use crate::output::{Line, Output, hint};
use crate::presence::enter;
use crate::store::{Decision, Store};

pub(super) fn run(lab: &Lab, command: &Dead, out: &Output) -> Result<Exit> {
    let _present = enter(lab)?;
    let mut store = Store::open(&lab.db)?;
    match command {
        Dead::List => list(&store, out)?,
        Dead::Requeue(ids) => {
            decide(&mut store, &ids.event_ids, Decision::Requeue, |event_id| out.line(&Line::Requeued { event_id }))?;
        }
        Dead::Drop(ids) => {
            decide(&mut store, &ids.event_ids, Decision::Drop, |event_id| {
                out.line(&Line::Dropped { event_id })?;
                hint(&format!("nobody will ever send {event_id}: its row is deleted, and what it tells of stays done"));
                Ok(())
            })?;
        }
    }
    Ok(Exit::Done)
}

fn list(store: &Store, out: &Output) -> Result<()> {
    let dead = store.dead()?;
    for row in &dead {
        out.buffered(&Line::Dead(row))?;
    }
    out.flush()?;
    if dead.is_empty() {
        hint("no row is dead");
    }
    Ok(())
}

/// Decides on all of them or on none, and tells of each.
fn decide(
    store: &mut Store,
    event_ids: &[String],
    decision: Decision,
    tell: impl Fn(&str) -> Result<()>,
) -> Result<()> {
    // Named twice, one row is still one row.
    let mut once: Vec<String> = Vec::new();
    for event_id in event_ids {
        if !once.contains(event_id) {
            once.push(event_id.clone());
        }
    }
    if let Err(event_id) = store.decide(&once, decision)? {
        return Err(Failure::failed(
            format!("{event_id} is not the event of a dead row; nothing was changed"),
            "see which rows are dead: outbox-lab dead list",
        ));
    }
    once.iter().try_for_each(|event_id| tell(event_id))
}
