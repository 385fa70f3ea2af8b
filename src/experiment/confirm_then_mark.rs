//! The book's second crash.

use anyhow::Result;

use super::{Experiment, Needs, kills};
use crate::trial::Trial;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "confirm-then-mark",
    question: "The relay marks a row after the broker has acknowledged it. What does a crash between the two leave?",
    claim: "The rows are sent again after the restart: three duplicates, and no loss.",
    steps: &["write five loans", "send three, mark none, kill -9", "publish what is pending"],
    predicted: "5/5/8/5; evt-1001, evt-1002 and evt-1003 twice",
    lesson: "Confirm, then mark: at-least-once. The loss that could not be repaired is now a duplicate that can be removed.",
    proofs: kills(1),
    needs: Needs::NOTHING,
    play,
};

fn play(trial: &mut Trial) -> Result<()> {
    trial.run("write 5")?;
    let held = trial.hold("publish-hold 3")?;
    trial.kill(held, &[])?;
    trial.run("publish 10")?;
    let found = trial.reconcile()?;
    trial.check("business rows / outbox rows / records / event ids", "5/5/8/5", found.tally)?;
    trial.check("duplicates", "evt-1001 x2, evt-1002 x2, evt-1003 x2", found.duplicates())?;
    trial.check("lost events", "none", found.lost_events())
}
