//! Kafka does not answer, and the loans go on.

use std::time::Instant;

use anyhow::Result;

use super::{Experiment, GIVES_UP_SOON, Needs, disturbances};
use crate::failure::Exit;
use crate::trial::Trial;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "broker-outage",
    question: "Kafka does not answer for a while, and loans go on being written. What is lost, and how is it seen?",
    claim: "Nothing is lost: the rows wait. The age of the oldest pending row tells that the relay or Kafka is down, better \
            than the number of rows does.",
    steps: &[
        "publish the first of two rows, and hold before the second",
        "freeze the broker; let the relay go on until the second row is in doubt and the relay gives up",
        "write three loans; look again at the pending rows, and hold the age of the oldest against the time since the freeze",
        "let the broker go on; wait for the record in doubt; publish what is pending",
    ],
    predicted: "pending rows rise, the oldest of them older than the outage, then drain to 0; none lost; evt-1002, in doubt, \
                twice",
    lesson: "An outage makes the outbox longer and older, and loses nothing. Watch the age of the oldest pending row.",
    proofs: disturbances(1),
    needs: Needs::FREEZING,
    play,
};

const AGE: &str = "age of the oldest pending row";
const LONGER: &str = "longer than the outage";
const NONE: &str = "none";

fn play(trial: &mut Trial) -> Result<()> {
    trial.run("write 2")?;
    let held = trial.hold(&format!("publish 2 {GIVES_UP_SOON} --hold-at before-send@2"))?;
    trial.freeze_broker()?;
    let frozen = Instant::now();
    trial.to_end(held, Exit::Failed)?;
    trial.tell("(the relay has given up: evt-1002 is in doubt)")?;
    trial.check("pending, the broker frozen", "evt-1002", trial.pending()?)?;
    trial.check(AGE, LONGER, beside_the_outage(trial, frozen)?)?;

    trial.run("write 3")?;
    trial.check("pending later", "evt-1002, evt-1003, evt-1004, evt-1005", trial.pending()?)?;
    trial.check(AGE, LONGER, beside_the_outage(trial, frozen)?)?;

    trial.thaw_broker()?;
    trial.await_records(2)?;
    trial.run("publish 10")?;
    trial.check("pending, the broker back", NONE, trial.pending()?)?;
    trial.check(AGE, NONE, beside_the_outage(trial, frozen)?)?;
    let found = trial.reconcile()?;
    trial.check("business rows / outbox rows / records / event ids", "5/5/6/5", found.tally)?;
    trial.check("duplicates", "evt-1002 x2", found.duplicates())?;
    trial.check("lost events", NONE, found.lost_events())
}

/// The age of the oldest pending row against the time since the freeze. That is shorter than the age of a row from before it
/// alone: were the row in doubt marked, or the age that of the newest row, it would be seen.
fn beside_the_outage(trial: &Trial, frozen: Instant) -> Result<&'static str> {
    let outage = frozen.elapsed().as_secs_f64();
    Ok(match trial.store()?.oldest_pending_age()? {
        None => NONE,
        Some(age) if age > outage => LONGER,
        Some(_) => "shorter than the outage",
    })
}
