//! Emptying an outbox that is in use.

use anyhow::Result;

use super::{Experiment, Needs, TOO_LARGE, kills};
use crate::failure::Exit;
use crate::trial::Trial;
use crate::verdict::Proofs;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "purge-under-kill",
    question: "Old rows are deleted from an outbox in which others wait, and the purge dies in the middle. What is gone?",
    claim: "Published rows are to be archived or deleted by their age, or the table grows for ever.",
    steps: &[
        "2,500 events, all published, then one that is dead and two that are pending; delete what is older than now, whatever \
         it is, and look for what is left to send",
        "the same from the beginning: a relay has sent the two and not marked them; a purge meanwhile, kill -9 after its first \
         small transaction",
        "a second purge to its end, then let the relay mark what it sent; a third purge",
        "write one loan more; requeue the dead row; publish",
    ],
    predicted: "after the naive deletion 3 orphan rows; by the purge, killed or not, only published rows go; the numbers of \
                deleted rows are not used again",
    lesson: "Age does not say that a row may go: its mark does. A purge that goes by the mark, in small transactions, can be \
             killed anywhere, and run beside relays and writers.",
    proofs: Proofs { disturbances: 1, ..kills(1) },
    needs: Needs::NOTHING,
    play,
};

const PURGE: &str = "purge --older-than 0s";
const WAITING: &str = "evt-3502, evt-3503";

fn play(trial: &mut Trial) -> Result<()> {
    fill(trial)?;
    trial.delete_by_age()?;
    trial.run("relay")?;
    trial.check("orphan rows", "L-3501, L-3502, L-3503", trial.reconcile()?.orphan_rows())?;

    trial.run("reset")?;
    fill(trial)?;
    let relay = trial.hold("relay --hold-at before-mark")?;
    let purge = trial.hold(&format!("{PURGE} --hold-at after-purge-chunk"))?;
    trial.kill(purge, &[])?;
    what_waits_is_there(trial, "1503")?;
    trial.run(PURGE)?;
    what_waits_is_there(trial, "3")?;
    trial.to_end(relay, Exit::Done)?;
    // Its mark came behind the purges, to rows that it had read before them.
    trial.disturbed();
    trial.check("pending", "none", trial.pending()?)?;
    trial.run(PURGE)?;
    trial.check("outbox rows", "evt-3501", trial.outbox()?)?;

    trial.run("write 1")?;
    trial.check("outbox rows", "evt-3501, evt-3504", trial.outbox()?)?;
    trial.run("dead requeue evt-3501")?;
    trial.run("relay")?;
    let found = trial.reconcile()?;
    trial.check("business rows / outbox rows / records / event ids", "2504/2/2504/2504", found.tally)?;
    trial.check("orphan rows", "none", found.orphan_rows())?;
    trial.check("lost events", "none", found.lost_events())?;
    trial.check("duplicates", "none", found.duplicates())
}

/// Many published rows, one that is dead and two that are pending.
fn fill(trial: &mut Trial) -> Result<()> {
    trial.run("fill 2500")?;
    trial.run("relay")?;
    trial.write_large()?;
    trial.run(&format!("relay --max-attempts 1 {TOO_LARGE}"))?;
    trial.run("write 2")?;
    what_waits_is_there(trial, "2503")
}

fn what_waits_is_there(trial: &mut Trial, rows: &str) -> Result<()> {
    trial.check("outbox rows", rows, trial.store()?.counts()?.outbox)?;
    trial.check("dead", "evt-3501", trial.dead()?)?;
    trial.check("pending", WAITING, trial.pending()?)
}
