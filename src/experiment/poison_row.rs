//! A row that the broker will never take.

use anyhow::Result;

use super::{Experiment, Needs, TOO_LARGE, disturbances};
use crate::trial::Trial;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "poison-row",
    question: "One row is too large for the broker, and will be every time. What becomes of the rows behind it?",
    claim: "A row whose send always fails blocks those behind it: limit the tries, pass it by and raise an alarm, and do not \
            try for ever.",
    steps: &[
        "write three loans, the second with a note of 2,000 bytes; give the first two back",
        "the book's relay, with a client that takes no more than 1,000 bytes, twice",
        "the relay for production with the same client, which gives a row up at its second rejection; once more when it is \
         time for the next try",
        "a relay that goes on past dead rows within their loan, too",
        "requeue the dead row, and publish it with a client that takes it",
    ],
    predicted: "the book's relay stops at evt-1002 both times, and three rows behind it wait; the other parks evt-1002 at its \
                second rejection, and only evt-1002-returned waits for it; in the end all five are published, none twice",
    lesson: "A rejection that would come every time is the row's own fault: count it, park the row, and let the others pass. \
             The later rows of its aggregate are a question of their own: to let them pass is to give up their order.",
    proofs: disturbances(2),
    needs: Needs::NOTHING,
    play,
};

fn play(trial: &mut Trial) -> Result<()> {
    trial.run("write 1")?;
    trial.write_large()?;
    trial.run("write 1")?;
    trial.run("return 2")?;

    for _ in 0..2 {
        let ended = trial.run_failing(&format!("publish 10 {TOO_LARGE}"))?;
        trial.check("the book's relay stops at evt-1002", true, ended.says("evt-1002"))?;
        trial.check("the topic", "evt-1001", trial.topic()?)?;
    }
    trial.check("pending", "evt-1002, evt-1003, evt-1001-returned, evt-1002-returned", trial.pending()?)?;

    let relay = format!("relay --max-attempts 2 {TOO_LARGE}");
    let rejected = trial.run(&relay)?;
    // The disturbance: the row was rejected.
    if rejected.prints("evt-1002 rejected") {
        trial.disturbed();
    }
    trial.check("the topic", "evt-1001, evt-1003, evt-1001-returned", trial.topic()?)?;
    trial.check("dead", "none", trial.dead()?)?;
    trial.await_next_try()?;
    let rejected = trial.run(&relay)?;
    if rejected.prints("evt-1002 rejected") {
        trial.disturbed();
    }
    trial.check("dead", "evt-1002", trial.dead()?)?;
    trial.check("pending", "evt-1002-returned", trial.pending()?)?;

    trial.run(&format!("{relay} --on-poison skip"))?;
    trial.check("the topic", "evt-1001, evt-1003, evt-1001-returned, evt-1002-returned", trial.topic()?)?;
    trial.run("dead list")?;
    trial.run("dead requeue evt-1002")?;
    trial.run("relay")?;
    trial.check("dead", "none", trial.dead()?)?;
    trial.check("pending", "none", trial.pending()?)?;
    let found = trial.reconcile()?;
    trial.check("business rows / outbox rows / records / event ids", "3/5/5/5", found.tally)?;
    trial.check("duplicates", "none", found.duplicates())?;
    trial.check("lost events", "none", found.lost_events())
}
