//! Kafka does not answer, and the loans go on.

use anyhow::Result;

use super::{Experiment, Needs, disturbances};
use crate::failure::Exit;
use crate::reconcile::listed;
use crate::trial::Trial;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "broker-outage",
    question: "Kafka does not answer for a while, and loans go on being written. What is lost, and how is it seen?",
    claim: "Nothing is lost: the rows wait. The age of the oldest pending row tells that the relay or Kafka is down, better \
            than the number of rows does.",
    steps: &[
        "publish the first of two rows, and hold before the second",
        "freeze the broker; let the relay go on until the second row is in doubt and the relay gives up",
        "write three loans; look at the pending rows, and at the age of the oldest",
        "let the broker go on; wait for the record in doubt; publish what is pending",
    ],
    predicted: "pending rows and the age of the oldest rise, then drain to 0; none lost; evt-1002, in doubt, twice",
    lesson: "An outage makes the outbox longer and older, and loses nothing. Watch the age of the oldest pending row.",
    proofs: disturbances(1),
    needs: Needs::FREEZING,
    play,
};

fn play(trial: &mut Trial) -> Result<()> {
    trial.run("write 2")?;
    let held = trial.hold("publish 2 --hold-at before-send@2 -X message.timeout.ms=1000")?;
    trial.freeze_broker()?;
    trial.to_end(held, Exit::Failed)?;
    trial.tell("(the relay has given up: evt-1002 is in doubt)")?;
    let (pending, age) = pending(trial)?;
    trial.check("pending, the broker frozen", "evt-1002", pending)?;

    trial.run("write 3")?;
    let (pending_later, age_later) = self::pending(trial)?;
    trial.check("pending later", "evt-1002, evt-1003, evt-1004, evt-1005", pending_later)?;
    let rose = age.zip(age_later).is_some_and(|(before, after)| before < after);
    trial.check("age of the oldest pending row", "risen", if rose { "risen" } else { "not risen" })?;

    trial.thaw_broker()?;
    trial.await_records(2)?;
    trial.run("publish 10")?;
    let (pending, age) = self::pending(trial)?;
    trial.check("pending, the broker back", "none", pending)?;
    trial.check("age of the oldest pending row", "none", if age.is_none() { "none" } else { "some" })?;
    let found = trial.reconcile()?;
    trial.check("business rows / outbox rows / records / event ids", "5/5/6/5", found.tally)?;
    trial.check("duplicates", "evt-1002 x2", found.duplicates())?;
    trial.check("lost events", "none", found.lost_events())
}

/// The pending rows by event id, and the age of the oldest.
fn pending(trial: &Trial) -> Result<(String, Option<f64>)> {
    let store = trial.store()?;
    let ids = listed(store.pending(i64::MIN, 100)?.into_iter().map(|row| row.event.event_id));
    Ok((ids, store.oldest_pending_age()?))
}
