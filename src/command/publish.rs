//! `publish` and `publish-hold`: the book's relay, with its marks after each send or after all of them.

use anyhow::Result;

use super::provenance::{connect, not_acknowledged};
use crate::crash::Holds;
use crate::failure::Exit;
use crate::lab::Lab;
use crate::output::{Line, Output, hint};
use crate::presence::enter;
use crate::relay::{Marking, Relay};
use crate::store::Store;

pub(super) fn run(lab: &Lab, limit: u32, marking: Marking, holds: &mut Holds, out: &Output) -> Result<Exit> {
    if lab.db.exists() {
        // The embedded broker will want it; made later, it would not say that this command is alive.
        lab.make_dir()?;
    }
    let _present = enter(lab)?;
    let mut store = Store::open(&lab.db)?;
    let publisher = connect(lab, holds)?;
    let command = holds.command();
    let mut relay = Relay { store: &mut store, publisher: &publisher, holds, out, sent: 0, marked: 0 };
    if let Err(stopped) = relay.run(limit, marking)? {
        let then = match stopped.marked {
            false => "Its row is pending: the next publish sends it, which can make a duplicate and loses nothing",
            true => "Its row was marked before it was sent: nothing will send it again",
        };
        return Err(not_acknowledged(&stopped.event_id, &stopped.error, then));
    }
    let Relay { sent, marked, .. } = relay;
    out.line(&Line::RelayDone { command, sent, marked, unpublished_left: store.counts()?.unpublished })?;
    if sent == 0 {
        hint("nothing was pending: write first (outbox-lab write 5)");
    }
    Ok(Exit::Done)
}
