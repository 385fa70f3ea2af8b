//! Two relays at one outbox.

use anyhow::Result;

use super::{Experiment, Needs, disturbances};
use crate::failure::Exit;
use crate::trial::Trial;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "two-relays",
    question: "Two relays have fetched the same pending rows. Nobody dies: how often is each event sent?",
    claim: "Once by each relay: the outbox does not settle who sends a row. That takes row locks, SKIP LOCKED, or a share of \
            the ids for each relay.",
    steps: &[
        "write five loans",
        "relay 1 fetches all five rows, and holds before its first send",
        "relay 2 publishes and marks all five",
        "relay 1 goes on (SIGUSR1) with what it has fetched, to its end",
    ],
    predicted: "exactly 10 records, 5 event ids: each event twice",
    lesson: "What was read may be stale when it is used. With a second relay the duplicates need no crash: all of them come \
             twice.",
    proofs: disturbances(1),
    needs: Needs::NOTHING,
    play,
};

fn play(trial: &mut Trial) -> Result<()> {
    trial.run("write 5")?;
    let relay_1 = trial.hold("publish 5 --hold-at before-send")?;
    trial.run("publish 5")?;
    trial.check("pending, while relay 1 is held", "none", trial.pending()?)?;
    trial.to_end(relay_1, Exit::Done)?;
    // It was seen at its hold, and came to its end from there.
    trial.disturbed();
    let found = trial.reconcile()?;
    trial.check("business rows / outbox rows / records / event ids", "5/5/10/5", found.tally)?;
    trial.check("duplicates", "evt-1001 x2, evt-1002 x2, evt-1003 x2, evt-1004 x2, evt-1005 x2", found.duplicates())?;
    trial.check("lost events", "none", found.lost_events())
}
