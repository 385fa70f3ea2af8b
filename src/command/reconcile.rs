//! `reconcile`: database against topic, every discrepancy by its ids, and the sum explained.

use anyhow::Result;

use super::provenance::{same_topic, whole};
use crate::broker::Reader;
use crate::failure::{Exit, Failure};
use crate::lab::Lab;
use crate::output::{Line, Output, hint};
use crate::presence::enter;
use crate::reconcile::{Reconciliation, Tally};
use crate::store::Store;

pub(super) fn run(lab: &Lab, expect: Option<Tally>, out: &Output) -> Result<Exit> {
    let _present = enter(lab)?;
    let mut store = Store::open(&lab.db)?;
    let before = store.data_version()?;
    let counted = store.snapshot()?;
    let mut records = Vec::new();
    let reader = Reader::find(lab)?;
    same_topic(lab, &store.topic_note()?, reader.as_ref().map(Reader::incarnation))?;
    match reader {
        Some(reader) => whole(&reader.read(|record| {
            records.push(record);
            Ok(())
        })?)?,
        None => hint(&format!("there is no topic {} yet: it counts as empty", lab.topic)),
    }
    // The version is quick to ask for, and no proof: of a database that may only be read SQLite says at each
    // reading that it has changed.
    if store.data_version()? != before && store.snapshot()? != counted {
        return Err(Failure::inconclusive(
            "the database changed while the topic was read: the two were not counted at one moment",
            "let the command that is at work end, then type reconcile again",
        ));
    }
    let (loans, outbox) = counted;
    if loans.is_empty() && outbox.is_empty() && records.is_empty() {
        return Err(Failure::inconclusive(
            "there is nothing to compare: no loan, no outbox row, no record",
            "write and publish first: outbox-lab write 5, outbox-lab publish 5",
        ));
    }
    report(&Reconciliation::of(&loans, &outbox, &records), expect, out)
}

fn report(found: &Reconciliation, expect: Option<Tally>, out: &Output) -> Result<Exit> {
    out.buffered(&Line::Reconciled(found))?;
    for finding in &found.findings {
        out.buffered(&Line::Finding(finding))?;
    }
    out.buffered(&Line::Sum {
        records: found.tally.records,
        events: found.tally.distinct_event_ids,
        redelivered: found.redelivered(),
        without_event_id: found.foreign(),
    })?;
    let mut exit = Exit::Done;
    if let Some(expected) = expect {
        let met = found.meets(expected);
        out.buffered(&Line::Expectation { expected, found: found.tally, met })?;
        exit = if met { Exit::Done } else { Exit::Unexpected };
    }
    out.flush()?;
    Ok(exit)
}
