//! The first phase of the book's table of the outbox: in the transaction.

use anyhow::Result;

use super::{Experiment, Needs, kills};
use crate::trial::Trial;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "shared-transaction",
    question: "A loan and its outbox row share one transaction. What is left if the process dies in the middle of it?",
    claim: "Everything is rolled back: the business did not happen, so no event is missing.",
    steps: &[
        "kill -9 in the transaction, after the loan row",
        "kill -9 in the transaction again, after the outbox row, the commit still to come",
        "the same command with nobody killed, and publish",
    ],
    predicted: "nothing at all remains, both times; then 1/1/1/1, under the number that the dead ones had",
    lesson: "There is one point of decision, the commit. Before it neither row is there, after it both are.",
    proofs: kills(2),
    needs: Needs::NOTHING,
    play,
};

fn play(trial: &mut Trial) -> Result<()> {
    for point in ["after-loan-row", "after-outbox-row"] {
        let held = trial.hold(&format!("write 1 --hold-at {point}"))?;
        trial.kill(held, &[])?;
        trial.check("loans", "none", trial.loans()?)?;
        trial.check("outbox rows", "none", trial.outbox()?)?;
    }
    trial.run("write 1")?;
    trial.run("publish 10")?;
    trial.check("loans", "L-1001", trial.loans()?)?;
    trial.check("outbox rows", "evt-1001", trial.outbox()?)?;
    let found = trial.reconcile()?;
    trial.check("business rows / outbox rows / records / event ids", "1/1/1/1", found.tally)?;
    trial.check("phantom events", "none", found.phantom_events())
}
