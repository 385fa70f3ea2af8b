//! Two relays at one outbox, without leases and with them.

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
        "write five loans; relay 1 fetches all five rows, and holds before its first send; relay 2 publishes and marks all \
         five; relay 1 goes on (SIGUSR1) with what it has fetched, to its end",
        "from the beginning with relays that take leases: relay 1 has fetched the five rows and holds; relay 2 looks for \
         work; relay 1 goes on within its lease",
        "the same, but relay 1 is held for longer than its lease, and relay 2 publishes all five meanwhile",
        "the same, but relay 1 is held between its look at the lease and its first send; relay 2 still has its lease when \
         relay 1 goes on",
    ],
    predicted: "without leases exactly 10 records, 5 event ids: each event twice; with leases 5 records, whether relay 1 goes \
                on within its lease or after it; 6 where it was stopped between the look and the send: evt-1001 twice, and \
                its mark is refused",
    lesson: "What was read may be stale when it is used. A lease shrinks that window to the step between the look and the \
             send, and cannot close it, since Kafka asks for no token; the mark asks for one, so the late relay is told. The \
             consumer removes the rest by the event id.",
    proofs: disturbances(4),
    needs: Needs::NOTHING,
    play,
};

const TALLY: &str = "business rows / outbox rows / records / event ids";
const NONE: &str = "none";

/// A lease that has soon expired. It has to outlast a send, and that takes its time on a loaded Kafka.
const SHORT_LEASE: &str = "--lease 2500ms -X message.timeout.ms=2000";

fn play(trial: &mut Trial) -> Result<()> {
    without_leases(trial)?;
    within_the_lease(trial)?;
    after_the_lease(trial)?;
    between_look_and_send(trial)
}

fn without_leases(trial: &mut Trial) -> Result<()> {
    trial.run("write 5")?;
    let relay_1 = trial.hold("publish 5 --hold-at before-send")?;
    trial.run("publish 5")?;
    trial.check("pending, while relay 1 is held", NONE, trial.pending()?)?;
    trial.to_end(relay_1, Exit::Done)?;
    // It was seen at its hold, and came to its end from there. So too in the other parts.
    trial.disturbed();
    let found = trial.reconcile()?;
    trial.check(TALLY, "5/5/10/5", found.tally)?;
    trial.check("duplicates", "evt-1001 x2, evt-1002 x2, evt-1003 x2, evt-1004 x2, evt-1005 x2", found.duplicates())?;
    trial.check("lost events", NONE, found.lost_events())
}

fn within_the_lease(trial: &mut Trial) -> Result<()> {
    begin_again(trial)?;
    let relay_1 = trial.hold("relay --hold-at after-fetch")?;
    let relay_2 = trial.run("relay")?;
    trial.check("relay 2 leaves all five to relay 1", true, relay_2.prints("left=5 (5 leased by others)"))?;
    trial.to_end(relay_1, Exit::Done)?;
    judge(trial, "5/5/5/5", NONE)
}

fn after_the_lease(trial: &mut Trial) -> Result<()> {
    begin_again(trial)?;
    let relay_1 = trial.hold(&format!("relay {SHORT_LEASE} --hold-at after-fetch"))?;
    trial.await_leases_expired()?;
    trial.run("relay")?;
    trial.check("pending, while relay 1 is held", NONE, trial.pending()?)?;
    let ended = trial.to_end(relay_1, Exit::Done)?;
    trial.check("relay 1 sends nothing", true, ended.prints("acknowledged=0 "))?;
    judge(trial, "5/5/5/5", NONE)
}

fn between_look_and_send(trial: &mut Trial) -> Result<()> {
    begin_again(trial)?;
    let relay_1 = trial.hold(&format!("relay {SHORT_LEASE} --hold-at before-send"))?;
    trial.await_leases_expired()?;
    let relay_2 = trial.hold("relay --hold-at after-mark")?;
    trial.check("pending, while both are held", NONE, trial.pending()?)?;
    let ended = trial.to_end(relay_1, Exit::Done)?;
    trial.check("the mark of evt-1001 is refused", true, ended.prints("mark of evt-1001 refused"))?;
    trial.to_end(relay_2, Exit::Done)?;
    judge(trial, "5/5/6/5", "evt-1001 x2")
}

fn begin_again(trial: &Trial) -> Result<()> {
    trial.run("reset")?;
    trial.run("write 5")?;
    Ok(())
}

fn judge(trial: &mut Trial, tally: &str, duplicates: &str) -> Result<()> {
    trial.disturbed();
    let found = trial.reconcile()?;
    trial.check(TALLY, tally, found.tally)?;
    trial.check("duplicates", duplicates, found.duplicates())?;
    trial.check("pending", NONE, trial.pending()?)?;
    trial.check("lost events", NONE, found.lost_events())
}
