//! What a key keeps together.

use std::collections::BTreeSet;

use anyhow::Result;

use super::{Experiment, Needs, disturbances};
use crate::event::Record;
use crate::reconcile::listed;
use crate::reconcile::{orders_of, overtaken, spread};
use crate::trial::Trial;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "key-and-order",
    question: "Each loan has two events, created and returned, and the topic has four partitions. Can a reader see returned \
               first?",
    claim: "The relay keys each record by its event id, so that the events of an aggregate share a partition and stay in \
            order.",
    steps: &[
        "write five loans and give all five back",
        "publish the ten events to four partitions, keyed by event id; look where each loan's two events lie",
        "read the partitions one after the other, in every order in which that can be done",
        "the same from the beginning, keyed by loan id",
    ],
    predicted: "keyed by event id L-1001, L-1002 and L-1003 have their events in two partitions, and can be seen returned \
                before created; keyed by loan id none ever",
    lesson: "The book's reason for the key does not hold: each event has an id of its own, so to key by it scatters an \
             aggregate. Key by the aggregate id, and carry the event id in a header to remove duplicates by.",
    proofs: disturbances(1),
    needs: Needs::NOTHING,
    play,
};

const PARTITIONS: [i32; 4] = [0, 1, 2, 3];
const IN_SOME_ORDER: &str = "returned before created, in at least one of the 24 orders";

fn play(trial: &mut Trial) -> Result<()> {
    let records = publish_keyed_by(trial, "event")?;
    let spread = spread(&records);
    // The disturbance: the topic really has its records in several partitions, whichever events those are.
    if records.iter().any(|record| record.at.partition != records[0].at.partition) {
        trial.disturbed();
    }
    trial.check(
        "loans with events in two partitions",
        "L-1001 in 0+2, L-1002 in 0+1, L-1003 in 1+2",
        listed(&spread),
    )?;
    let seen = listed(overtaken(&records, &PARTITIONS));
    trial.check("returned before created, the partitions read in the order 0, 1, 2, 3", "L-1001, L-1003", seen)?;
    trial.check(IN_SOME_ORDER, "L-1001, L-1002, L-1003", in_some_order(&records))?;

    let records = publish_keyed_by(trial, "aggregate")?;
    let keys: BTreeSet<_> =
        records.iter().map(|record| String::from_utf8_lossy(record.key.as_deref().unwrap_or_default())).collect();
    trial.check("keys", "L-1001, L-1002, L-1003, L-1004, L-1005", listed(&keys))?;
    trial.check("loans with events in two partitions", "none", listed(self::spread(&records)))?;
    let used: BTreeSet<i32> = records.iter().map(|record| record.at.partition).collect();
    trial.check("partitions with events", "0, 2, 3", listed(&used))?;
    trial.check(IN_SOME_ORDER, "none", in_some_order(&records))
}

/// A fresh topic of four partitions, with both events of five loans.
fn publish_keyed_by(trial: &mut Trial, key: &str) -> Result<Vec<Record>> {
    trial.run("reset --partitions 4")?;
    trial.run("write 5")?;
    trial.run("return 5")?;
    trial.run(&format!("publish 10 --key {key}"))?;
    let found = trial.reconcile()?;
    trial.check("business rows / outbox rows / records / event ids", "5/10/10/10", found.tally)?;
    trial.records()
}

/// The loans that a reader sees given back before they are made in at least one order of the partitions.
fn in_some_order(records: &[Record]) -> String {
    let seen: BTreeSet<String> = orders_of(&PARTITIONS).iter().flat_map(|order| overtaken(records, order)).collect();
    listed(&seen)
}
