//! Kafka is too slow for a while, and is back.

use anyhow::Result;

use super::{Experiment, GIVES_UP_SOON, Needs, disturbances};
use crate::clock::now_ms;
use crate::failure::Exit;
use crate::reconcile::{Finding, Reconciliation, listed};
use crate::trial::Trial;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "slow-broker",
    question: "The broker takes longer than a send may take, and comes back. Who sees to it that the relay does?",
    claim: "The relay is stuck, and the pending rows become more and more. Every send needs a timeout; what timed out is left \
            to the next round.",
    steps: &[
        "the book's relay: hold it before its second send, freeze the broker, let the relay go on until it gives up; let the \
         broker go on",
        "from the beginning with the relay for production: two rows published; of three more one is sent, and it is held \
         before the second; freeze the broker, let the relay go on until its sends are in doubt",
        "look at the attempts counted; write three loans more; wait until the relay says that it waits for the broker",
        "let the broker go on, and do nothing else until the relay ends",
    ],
    predicted: "the book's relay ends, with evt-1002 pending; the other comes back by itself: 8 events, none lost, no attempt \
                counted, and copies of evt-1003, evt-1004 and evt-1005 at the most",
    lesson: "An outage is nobody's fault, so it counts against no row: the relay waits, says what for, connects anew and sends \
             again what is in doubt. That can make duplicates among what was in flight, and nowhere else.",
    proofs: disturbances(2),
    needs: Needs::FREEZING,
    play,
};

const TALLY: &str = "business rows / outbox rows / event ids";
const IN_FLIGHT: [&str; 3] = ["evt-1003", "evt-1004", "evt-1005"];

fn play(trial: &mut Trial) -> Result<()> {
    trial.run("write 2")?;
    let held = trial.hold(&format!("publish 2 {GIVES_UP_SOON} --hold-at before-send@2"))?;
    trial.freeze_broker()?;
    trial.to_end(held, Exit::Failed)?;
    trial.tell("(the relay has given up, and is gone)")?;
    trial.thaw_broker()?;
    trial.check("pending, the broker back", "evt-1002", trial.pending()?)?;

    trial.run("reset")?;
    trial.run("write 2")?;
    trial.run("relay")?;
    trial.run("write 3")?;
    let mut held = trial.hold(&format!("relay --batch 1 {GIVES_UP_SOON} --hold-at before-send@2"))?;
    // So that its connection is warm: what it sends next is on the wire at once.
    trial.await_records(3)?;
    trial.freeze_broker()?;
    trial.go_on(&mut held)?;
    held.await_word("are in doubt")?;
    trial.tell("(the relay says that its sends are in doubt)")?;
    trial.check("attempts counted", 0, trial.store()?.stats(now_ms())?.attempts)?;
    trial.run("write 3")?;
    held.await_word("waiting for the broker")?;
    trial.tell("(the relay says that it waits for the broker)")?;
    trial.thaw_broker()?;
    trial.await_end(held, Exit::Done)?;
    trial.check("pending", "none", trial.pending()?)?;
    let found = trial.reconcile()?;
    let tally = found.tally;
    trial.check(TALLY, "8/8/8", format!("{}/{}/{}", tally.business_loan, tally.outbox, tally.distinct_event_ids))?;
    trial.check("duplicates of what was not in flight", "none", beyond(&found))?;
    trial.check("lost events", "none", found.lost_events())
}

/// The duplicates that the outage does not explain.
fn beyond(found: &Reconciliation) -> String {
    listed(found.findings.iter().filter_map(|finding| match finding {
        Finding::Duplicate { event_id, .. } if !IN_FLIGHT.contains(&event_id.as_str()) => Some(event_id),
        _ => None,
    }))
}
