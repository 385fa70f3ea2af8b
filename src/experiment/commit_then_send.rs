//! The first row of the book's table of dual writes.

use anyhow::Result;

use super::{Experiment, Needs, kills};
use crate::trial::Trial;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "commit-then-send",
    question: "A loan is committed, then its event is sent. What is left if the process dies between the two?",
    claim: "There is a loan in the database, and nothing downstream ever hears of it; only a reconciliation finds it.",
    steps: &["commit a loan", "kill -9 before the send", "start the relay again, and look for something to resend"],
    predicted: "1 orphan row; a restart has nothing to resend",
    lesson: "The intent to send was in memory only, and died with the process.",
    proofs: kills(1),
    needs: Needs::NOTHING,
    play,
};

fn play(trial: &mut Trial) -> Result<()> {
    let held = trial.hold("naive-hold")?;
    trial.kill(held, &[])?;
    trial.run("publish 10")?;
    let found = trial.reconcile()?;
    trial.check("business rows / outbox rows / records / event ids", "1/0/0/0", found.tally)?;
    trial.check("orphan rows", "L-2001", found.orphan_rows())?;
    trial.check("left to resend", 0, trial.store()?.counts()?.unpublished)
}
