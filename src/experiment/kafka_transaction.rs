//! The book's second crash, with a Kafka transaction around the sends.

use anyhow::Result;

use super::{Experiment, Needs, kills};
use crate::reconcile::Reconciliation;
use crate::trial::Trial;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "kafka-transaction",
    question: "Does a Kafka transaction around the sends remove the relay's duplicates?",
    claim: "It makes Kafka's own steps atomic. The database is not part of it, so between the two commits the gap stays.",
    steps: &[
        "write three loans; send them in a Kafka transaction; kill -9 before the broker commits it",
        "start the relay again: it aborts what was open, and publishes and marks all three",
        "write three more; send them likewise; kill -9 after the broker's commit, before the marks",
        "start the relay again",
    ],
    predicted: "read committed: no copy of the aborted records; after the broker's commit 3 duplicates all the same",
    lesson: "A Kafka transaction hides what it aborted. It cannot mark the outbox rows, so a crash after its commit \
             repeats them: at-least-once, as before.",
    proofs: kills(2),
    needs: Needs::REAL_KAFKA,
    play,
};

fn play(trial: &mut Trial) -> Result<()> {
    trial.run("write 3")?;
    let held = trial.hold("publish 10 --transactional --hold-at before-broker-commit")?;
    trial.kill(held, &[])?;
    trial.run("publish 10 --transactional")?;
    let found = trial.reconcile()?;
    trial.check("business rows / outbox rows / records / event ids", "3/3/3/3", found.tally)?;
    trial.check("duplicates, read committed", "none", found.duplicates())?;
    let aborted = "evt-1001 x2, evt-1002 x2, evt-1003 x2";
    trial.check("copies in the topic, aborted ones among them", aborted, copies(trial)?)?;

    trial.run("write 3")?;
    let held = trial.hold("publish 10 --transactional --hold-at after-broker-commit")?;
    trial.kill(held, &[])?;
    trial.run("publish 10 --transactional")?;
    let found = trial.reconcile()?;
    trial.check("business rows / outbox rows / records / event ids", "6/6/9/6", found.tally)?;
    trial.check("duplicates, read committed", "evt-1004 x2, evt-1005 x2, evt-1006 x2", found.duplicates())?;
    trial.check("lost events", "none", found.lost_events())
}

/// What lies in the topic more than once, whatever became of its transaction.
fn copies(trial: &Trial) -> Result<String> {
    let (loans, outbox) = trial.store()?.snapshot()?;
    Ok(Reconciliation::of(&loans, &outbox, &trial.records_of_any_transaction()?).duplicates())
}
