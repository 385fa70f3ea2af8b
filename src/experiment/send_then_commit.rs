//! The second row of the book's table of dual writes.

use anyhow::Result;

use super::{Experiment, Needs, kills};
use crate::trial::Trial;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "send-then-commit",
    question: "The event is sent, then its loan is committed. What is left if the process dies between the two?",
    claim: "Downstream hears of a loan that is not in the database.",
    steps: &["send the event of a loan", "kill -9 after the acknowledgement, before the commit"],
    predicted: "1 phantom event",
    lesson: "The other order has the other fault: the world was told of what never happened.",
    proofs: kills(1),
    needs: Needs::NOTHING,
    play,
};

fn play(trial: &mut Trial) -> Result<()> {
    let held = trial.hold("naive --send-first --hold-at after-ack")?;
    trial.kill(held, &[])?;
    let found = trial.reconcile()?;
    trial.check("business rows / outbox rows / records / event ids", "0/0/1/1", found.tally)?;
    trial.check("phantom events", "evt-2001", found.phantom_events())
}
