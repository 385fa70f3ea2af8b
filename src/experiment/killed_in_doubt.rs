//! Sent, not acknowledged, dead: and it arrives all the same.

use anyhow::Result;

use super::{Experiment, Needs, kills};
use crate::trial::Trial;
use crate::verdict::Proofs;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "killed-in-doubt",
    question: "The relay dies while a send is under way. Is the record in the topic, or not?",
    claim: "A send that was not acknowledged may have arrived; the event id removes what a resend doubles.",
    steps: &[
        "publish the first of two rows, so that the connection is warm, and hold before the second",
        "freeze the broker; let the relay go on until the second record is sent, and its request on the wire",
        "kill -9 the relay, then let the broker go on",
        "publish what is pending",
    ],
    predicted: "1 record that no one knows of; 1 duplicate after the restart; 0 lost",
    lesson: "In doubt is a state of its own. The relay must treat it as not sent, and the consumer as perhaps sent.",
    proofs: Proofs { disturbances: 1, ..kills(1) },
    needs: Needs::FREEZING,
    play,
};

fn play(trial: &mut Trial) -> Result<()> {
    trial.run("write 2")?;
    let mut held = trial.hold("publish 2 --hold-at before-send@2 --hold-at sent@2")?;
    let before = trial.left()?;
    trial.freeze_broker()?;
    trial.to_next_hold(&mut held)?;
    held.await_word("on the wire")?;
    trial.kill_after(held, &["evt-1002"], before)?;
    trial.thaw_broker()?;
    trial.await_records(2)?;
    trial.check("the topic, before anyone sends again", "evt-1001, evt-1002", trial.topic()?)?;
    trial.check("pending", "evt-1002", trial.pending()?)?;
    trial.run("publish 10")?;
    let found = trial.reconcile()?;
    trial.check("business rows / outbox rows / records / event ids", "2/2/3/2", found.tally)?;
    trial.check("duplicates", "evt-1002 x2", found.duplicates())?;
    trial.check("lost events", "none", found.lost_events())
}
