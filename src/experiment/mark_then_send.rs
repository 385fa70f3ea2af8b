//! The relay in the wrong order.

use anyhow::Result;

use super::{Experiment, Needs, kills};
use crate::trial::Trial;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "mark-then-send",
    question: "The relay marks a row before it sends it. What does a crash between the two leave?",
    claim: "A row that is marked, and an event that was never sent: the restart passes it by, and it is lost for good.",
    steps: &[
        "write three loans",
        "a relay that marks first sends the first row and marks the second; kill -9 before its send",
        "start it again, and ask the database what is left to do",
    ],
    predicted: "1 lost event, evt-1002, and nothing in the database says so",
    lesson: "The order decides between a duplicate and a loss. A mark is a statement about the broker: only its \
             acknowledgement makes it true.",
    proofs: kills(1),
    needs: Needs::NOTHING,
    play,
};

fn play(trial: &mut Trial) -> Result<()> {
    trial.run("write 3")?;
    let held = trial.hold("publish 10 --mark-first --hold-at before-send@2")?;
    trial.kill(held, &[])?;
    trial.run("publish 10 --mark-first")?;
    trial.run("verify")?;
    trial.check("pending", "none", trial.pending()?)?;
    trial.check("the topic", "evt-1001, evt-1003", trial.topic()?)?;
    let found = trial.reconcile()?;
    trial.check("business rows / outbox rows / records / event ids", "3/3/2/2", found.tally)?;
    trial.check("lost events", "evt-1002", found.lost_events())
}
