//! What the idempotent producer removes, and what it cannot.

use anyhow::Result;

use super::{Experiment, Needs, disturbances, kills};
use crate::failure::Exit;
use crate::trial::{Trial, can_freeze};
use crate::verdict::Proofs;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "idempotent-producer",
    question: "Does Kafka's idempotent producer remove the relay's duplicates?",
    claim: "No. It removes the copies that a client's own retries make within one session; a relay that was started again \
            is another session, and sends new messages. Only the event id tells that they are the same.",
    steps: &[
        "write five loans; send three with enable.idempotence=true, mark none, kill -9",
        "publish what is pending, with enable.idempotence=true again",
        "within one session: hold the relay before its second send, freeze the broker, let the relay go on until its \
         request is on the wire and has timed out, let the broker go on: the client sends again by itself",
        "once without enable.idempotence, and once with it",
    ],
    predicted: "3 duplicates all the same; the client's own retry: 1 duplicate without it, none with it",
    lesson: "The idempotent producer removes what one session repeats. What a restart repeats only the consumer can remove, \
             by the event id.",
    proofs: Proofs { disturbances: 2, ..kills(1) },
    needs: Needs::NOTHING,
    play,
};

const FROZEN_ONCE: Proofs = disturbances(1);

fn play(trial: &mut Trial) -> Result<()> {
    trial.run("write 5")?;
    let held = trial.hold("publish-hold 3 -X enable.idempotence=true")?;
    trial.kill(held, &[])?;
    trial.run("publish 10 -X enable.idempotence=true")?;
    let found = trial.reconcile()?;
    trial.check("business rows / outbox rows / records / event ids", "5/5/8/5", found.tally)?;
    trial.check("duplicates across a restart", "evt-1001 x2, evt-1002 x2, evt-1003 x2", found.duplicates())?;
    trial.check("lost events", "none", found.lost_events())?;

    let freezes = can_freeze(&trial.lab);
    let why_not_frozen = "the broker has to be frozen, and the lab did not start this one";
    if freezes {
        own_retry(trial, false, "2/2/3/2", "evt-1002 x2")?;
    } else {
        trial.skip("the client's own retry, not idempotent", why_not_frozen, FROZEN_ONCE)?;
    }
    let part = "the client's own retry, idempotent";
    if trial.lab.kafka.is_none() {
        trial.skip(part, "the embedded broker does not deduplicate", FROZEN_ONCE)
    } else if freezes {
        own_retry(trial, true, "2/2/2/2", "none")
    } else {
        trial.skip(part, why_not_frozen, FROZEN_ONCE)
    }
}

/// One session: the answer to a request comes too late for the client, which sends the record again.
fn own_retry(trial: &mut Trial, idempotence: bool, tally: &str, duplicates: &str) -> Result<()> {
    trial.run("reset")?;
    trial.run("write 2")?;
    let mut held = trial.hold(&format!(
        "publish 2 --hold-at before-send@2 --hold-at sent@2 -X enable.idempotence={idempotence} -X socket.timeout.ms=1000"
    ))?;
    trial.freeze_broker()?;
    trial.to_next_hold(&mut held)?;
    held.await_word("on the wire")?;
    held.await_word("timed out")?;
    trial.thaw_broker()?;
    held.await_word("sent again")?;
    trial.tell("(the client has sent evt-1002 again, by itself)")?;
    trial.to_end(held, Exit::Done)?;
    let found = trial.reconcile()?;
    trial.check("business rows / outbox rows / records / event ids", tally, found.tally)?;
    trial.check("duplicates within one session", duplicates, found.duplicates())
}
