//! The book's first crash.

use anyhow::Result;

use super::{Experiment, Needs, kills};
use crate::trial::Trial;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "outbox-survives",
    question: "Five loans are committed, each with its outbox row, and nothing is sent. What does a crash leave to resend?",
    claim: "All five intents to send: the outbox rows are still there, and the restart sends them. Nothing lost, nothing \
            twice.",
    steps: &["write five loans", "kill -9 after the last commit, before anything is sent", "publish what is pending"],
    predicted: "5 pending after the crash; 5/5/5/5 after the restart, 0 lost",
    lesson: "The intent to send is a row now, in the loan's own transaction, and outlives the process.",
    proofs: kills(1),
    needs: Needs::NOTHING,
    play,
};

fn play(trial: &mut Trial) -> Result<()> {
    const ALL: &str = "evt-1001, evt-1002, evt-1003, evt-1004, evt-1005";
    let held = trial.hold("write-hold 5")?;
    trial.kill(held, &[])?;
    trial.check("pending", ALL, trial.pending()?)?;
    trial.check("the topic", "none", trial.topic()?)?;
    trial.run("publish 10")?;
    trial.check("pending", "none", trial.pending()?)?;
    trial.check("the topic", ALL, trial.topic()?)?;
    let found = trial.reconcile()?;
    trial.check("business rows / outbox rows / records / event ids", "5/5/5/5", found.tally)?;
    trial.check("lost events", "none", found.lost_events())
}
