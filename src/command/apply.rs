//! `apply`: a consumer. It reads behind its group's stored offset, applies each record as one effect in the database,
//! and commits the offset by hand: two systems and no common transaction, once more.

use anyhow::Result;

use super::provenance::{same_topic, whole};
use crate::broker::Reader;
use crate::crash::{CrashPoint, Holds};
use crate::event::Record;
use crate::failure::{Exit, Failure};
use crate::lab::Lab;
use crate::output::{Line, Output};
use crate::presence::enter;
use crate::store::Store;

pub(super) fn run(lab: &Lab, inbox: bool, commit_first: bool, holds: &mut Holds, out: &Output) -> Result<Exit> {
    let _present = enter(lab)?;
    let store = Store::open(&lab.db)?;
    let reader = Reader::find(lab)?;
    same_topic(lab, &store.topic_note()?, reader.as_ref().map(Reader::incarnation))?;
    let Some(reader) = reader else {
        return Err(Failure::inconclusive(
            format!("there is no topic {} to apply", lab.topic),
            "write and publish first: outbox-lab write 5, outbox-lab publish 5",
        ));
    };
    let mut consumer = Consumer { store, reader: &reader, holds, out, inbox, deliveries: 0, skipped: 0 };
    let ending = reader.read_on(|record| {
        if commit_first {
            consumer.commit(&record)?;
            consumer.effect(&record)
        } else {
            consumer.effect(&record)?;
            consumer.commit(&record)
        }
    })?;
    let Consumer { store, deliveries, skipped, .. } = consumer;
    let applied = deliveries - skipped;
    out.line(&Line::AppliedAll { deliveries, applied, skipped, effects: store.effect_count()? })?;
    whole(&ending)?;
    Ok(Exit::Done)
}

struct Consumer<'a, 'b> {
    store: Store,
    reader: &'a Reader,
    holds: &'a mut Holds<'b>,
    out: &'a Output,
    inbox: bool,
    deliveries: u32,
    skipped: u32,
}

impl Consumer<'_, '_> {
    /// One delivery, one effect, unless the inbox knows the event. A record without an event id is left alone.
    fn effect(&mut self, record: &Record) -> Result<()> {
        let Some(key) = record.event_id() else { return Ok(()) };
        let txn = self.store.begin()?;
        let applied = txn.apply(key, self.inbox)?;
        txn.commit()?;
        self.deliveries += 1;
        self.skipped += u32::from(!applied);
        self.out.line(&Line::Applied { key, at: record.at, skipped: !applied, effects: self.store.effect_count()? })?;
        self.holds.reached(CrashPoint::AfterEffect)
    }

    fn commit(&mut self, record: &Record) -> Result<()> {
        self.reader.commit(record.at)?;
        self.holds.reached(CrashPoint::AfterOffsetCommit)
    }
}
