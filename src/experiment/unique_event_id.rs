//! The book's rollback.

use anyhow::Result;

use super::{Experiment, Needs, disturbances};
use crate::trial::Trial;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "unique-event-id",
    question: "The outbox refuses an event id that it has already. What becomes of the loan in the same transaction?",
    claim: "The loan goes with it. The unique event id also keeps the business from writing one event twice.",
    steps: &[
        "write one loan",
        "a new loan, and the first one's event id, in one transaction: the outbox refuses the id",
    ],
    predicted: "neither row: L-3001 is not there, and evt-1001 is still the event of L-1001 alone",
    lesson: "A shared transaction shares every fate, a refusal as well as a crash. In two transactions the loan would be an \
             orphan row now.",
    proofs: disturbances(1),
    needs: Needs::NOTHING,
    play,
};

fn play(trial: &mut Trial) -> Result<()> {
    trial.run("write 1")?;
    let ended = trial.run_judging("rollback")?;
    // The disturbance: the transaction was tried, whatever came of it.
    if ended.printed.iter().any(|line| line.starts_with("[rollback] ")) {
        trial.disturbed();
    }
    trial.check("loans", "L-1001", trial.loans()?)?;
    trial.check("outbox rows", "evt-1001", trial.outbox()?)?;
    trial.run("publish 10")?;
    let found = trial.reconcile()?;
    trial.check("business rows / outbox rows / records / event ids", "1/1/1/1", found.tally)?;
    trial.check("orphan rows", "none", found.orphan_rows())
}
