//! `publish` and `publish-hold`: the book's relay, with its marks after each send or after all of them.

use anyhow::Result;

use super::provenance::{connect_for, not_acknowledged};
use crate::crash::Holds;
use crate::event::Key;
use crate::failure::Exit;
use crate::lab::Lab;
use crate::output::{Line, Output, hint};
use crate::presence::enter_to_send;
use crate::relay::{BookRelay, Marking, Span};
use crate::store::Store;

pub(super) fn run(lab: &Lab, limit: u32, marking: Marking, key: Key, holds: &mut Holds, out: &Output) -> Result<Exit> {
    let span = Span::begin();
    let _present = enter_to_send(lab)?;
    let mut store = Store::open(&lab.db)?;
    let publisher = connect_for(lab, holds, marking == Marking::AfterBrokerCommit)?;
    let command = holds.command();
    let mut relay = BookRelay { store: &mut store, publisher: &publisher, key, holds, out, sent: 0, marked: 0, span };
    if let Err(stopped) = relay.run(limit, marking)? {
        let then = match stopped.marked {
            false => "Its row is pending: the next publish sends it, which can make a duplicate and loses nothing",
            true => "Its row was marked before it was sent: nothing will send it again",
        };
        return Err(not_acknowledged(&stopped.event_id, &stopped.error, then));
    }
    let BookRelay { sent, marked, span, .. } = relay;
    if holds.is_traced() {
        span.tell(marked.into());
    }
    out.line(&Line::RelayDone { command, sent, marked, unpublished_left: store.counts()?.unpublished })?;
    if sent == 0 {
        hint("nothing was pending: write first (outbox-lab write 5)");
    }
    Ok(Exit::Done)
}
