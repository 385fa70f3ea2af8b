//! A commit that is answered before it is written: what the book's database does by default, and its chapter leaves out.

use anyhow::Result;

use super::{Experiment, Needs, kills};
use crate::failure::Failure;
use crate::trial::Trial;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "delayed-write",
    question: "The database answers a commit before it has written it. What is left if the process dies at once?",
    claim: "After the crash all five loans are there, and all five outbox rows. The book writes to an H2 in file mode, which \
            writes up to half a second after its answer: killed at once, that one keeps none of them.",
    steps: &[
        "five commits in a store that copies itself to its file every 500 ms; kill -9 when the fifth is answered",
        "the same in the lab's own store, whose answer comes after the write",
    ],
    predicted: "0 loans and 0 outbox rows, though the answer was \"committed\"; then 5 and 5",
    lesson: "One transaction gives both rows one fate, not a good one. The outbox needs a commit that is durable when it is \
             answered. (Here the process dies, not the machine: what a power cut leaves is not shown.)",
    proofs: kills(2),
    needs: Needs::NOTHING,
    play,
};

fn play(trial: &mut Trial) -> Result<()> {
    let held = trial.hold("write 5 --delayed --hold-at after-commit@5")?;
    trial.kill(held, &[])?;
    let rows = trial.left()?.counts.business_loan;
    if (1..5).contains(&rows) {
        // After the fifth answer nothing is copied any more.
        return Err(Failure::inconclusive(
            format!("the store copied itself to its file in the middle, with {rows} rows in it"),
            "play it again, on a quieter machine: five commits are to take less than 500 ms",
        ));
    }
    trial.check("loans of the delayed store", "none", trial.loans()?)?;
    trial.check("outbox rows of the delayed store", "none", trial.outbox()?)?;

    let held = trial.hold("write 5 --hold-at after-commit@5")?;
    trial.kill(held, &[])?;
    trial.check("loans of the lab's store", "L-1001, L-1002, L-1003, L-1004, L-1005", trial.loans()?)?;
    trial.check("outbox rows of the lab's store", "evt-1001, evt-1002, evt-1003, evt-1004, evt-1005", trial.outbox()?)
}
