//! The third row of the book's table of dual writes.

use anyhow::Result;

use super::{Experiment, GIVES_UP_SOON, Needs, disturbances};
use crate::failure::Exit;
use crate::trial::Trial;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "send-timeout",
    question: "A send times out, so the event is sent again. Nobody died: what is in the topic?",
    claim: "A send that timed out may have arrived all the same; the one that makes up for it is then a duplicate, which \
            the event id removes.",
    steps: &[
        "publish the first of two rows, so that the connection is warm, and hold before the second",
        "freeze the broker, and let the relay go on until it gives up on the second send",
        "let the broker go on; the request that the relay gave up on arrives",
        "publish what is pending",
    ],
    predicted: "1 duplicate, though nobody died: evt-1002 twice",
    lesson: "A timeout says that no answer came, and nothing about the record. In doubt, the relay sends again; only the \
             event id tells the copies apart.",
    proofs: disturbances(1),
    needs: Needs::FREEZING,
    play,
};

fn play(trial: &mut Trial) -> Result<()> {
    trial.run("write 2")?;
    let held = trial.hold(&format!("publish 2 {GIVES_UP_SOON} --hold-at before-send@2"))?;
    trial.freeze_broker()?;
    let ended = trial.to_end(held, Exit::Failed)?;
    trial.thaw_broker()?;
    trial.check("the relay says that evt-1002 is in doubt", true, ended.says("evt-1002 is in doubt"))?;
    trial.await_records(2)?;
    trial.check("the topic, after the relay gave up on it", "evt-1001, evt-1002", trial.topic()?)?;
    trial.check("pending", "evt-1002", trial.pending()?)?;
    trial.run("publish 10")?;
    let found = trial.reconcile()?;
    trial.check("business rows / outbox rows / records / event ids", "2/2/3/2", found.tally)?;
    trial.check("duplicates", "evt-1002 x2", found.duplicates())?;
    trial.check("lost events", "none", found.lost_events())
}
