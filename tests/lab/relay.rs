//! The relay fit for production, as an operator runs it: killed, shared, let down by its broker, told to stop.

mod beside;
mod envelope;
mod history;
mod kills;
mod leases;
mod outage;
mod poison;
mod refusals;
mod several;
mod stopping;
mod watching;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::support::{Ended, Held, Lab, ROOT, freeze, not_run, on_each_broker, other_program, wait_for};

/// Starts a command line, and waits for nothing yet.
pub fn start(lab: &Lab, line: &str) -> Held {
    Held::start(line, lab.command(line.split_whitespace()))
}

/// What a relay that was run with `--json` says at its end.
#[track_caller]
pub fn told(ended: &Ended) -> Value {
    let last = ended.stdout.lines().last().unwrap_or_else(|| panic!("nothing is told: {ended:#?}"));
    let told: Value = serde_json::from_str(last).unwrap();
    assert_eq!(told["line"], "relayed", "{ended:#?}");
    told
}

/// Runs a relay that must succeed, with these options, and returns what it says at its end.
#[track_caller]
pub fn relay(lab: &Lab, options: &str) -> Value {
    told(&lab.run(&format!("--json relay {options}")).exits(0))
}

/// A record, as a consumer reads it.
#[derive(Debug)]
pub struct Copy {
    pub partition: i64,
    pub key: String,
    pub event: String,
    pub payload: Option<String>,
}

/// The whole topic, partition by partition in offset order.
#[track_caller]
pub fn copies(lab: &Lab) -> Vec<Copy> {
    copies_in(lab, "")
}

/// As [`copies`], of another topic than the lab's.
#[track_caller]
pub fn copies_in(lab: &Lab, place: &str) -> Vec<Copy> {
    let read = |line: &str| {
        let record: Value = serde_json::from_str(line).unwrap();
        assert_eq!(record["headers"].as_array().map(Vec::len), Some(1), "{record}");
        assert_eq!(record["headers"][0][0], "id", "{record}");
        Copy {
            partition: record["partition"].as_i64().unwrap(),
            key: record["key"].as_str().unwrap().to_owned(),
            event: record["headers"][0][1].as_str().unwrap().to_owned(),
            payload: record["payload"].as_str().map(ToOwned::to_owned),
        }
    };
    let all = lab.run(&format!("--json {place} consume"));
    all.stdout.lines().map(read).collect()
}

/// The events of each key in the order of their first copies. A key lies in one partition.
#[track_caller]
pub fn first_copies(copies: &[Copy]) -> BTreeMap<&str, Vec<&str>> {
    let mut partitions: BTreeMap<&str, i64> = BTreeMap::new();
    let mut events: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for copy in copies {
        let partition = *partitions.entry(&copy.key).or_insert(copy.partition);
        assert_eq!(partition, copy.partition, "{} lies in two partitions", copy.key);
        let seen = events.entry(&copy.key).or_default();
        if !seen.contains(&copy.event.as_str()) {
            seen.push(&copy.event);
        }
    }
    events
}

/// The events that are there more than once.
pub fn duplicates(copies: &[Copy]) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    copies.iter().filter(|copy| !seen.insert(&copy.event)).map(|copy| copy.event.clone()).collect()
}

/// The outbox as `(event, aggregate)` in id order, where that holds of a row.
pub fn rows(lab: &Lab, condition: &str) -> Vec<(String, String)> {
    let db = other_program(&lab.path(".lab/outbox.db"));
    let mut query =
        db.prepare(&format!("SELECT event_id, aggregate_id FROM outbox WHERE {condition} ORDER BY id")).unwrap();
    query.query_map((), |row| Ok((row.get(0)?, row.get(1)?))).unwrap().collect::<Result<_, _>>().unwrap()
}

/// The events of the rows of which that holds, in id order.
pub fn events(lab: &Lab, condition: &str) -> Vec<String> {
    rows(lab, condition).into_iter().map(|(event, _)| event).collect()
}

/// Changes the lab's database by hand.
pub fn by_hand(lab: &Lab, sql: &str) {
    other_program(&lab.path(".lab/outbox.db")).execute_batch(sql).unwrap();
}

/// Every row's event is there, keyed by its aggregate, those of one aggregate in id order, and nothing else.
#[track_caller]
pub fn nothing_is_lost_or_out_of_order(lab: &Lab, copies: &[Copy]) {
    let mut written: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (event, aggregate) in rows(lab, "true") {
        written.entry(aggregate).or_default().push(event);
    }
    let sent: BTreeMap<String, Vec<String>> = first_copies(copies)
        .into_iter()
        .map(|(key, events)| (key.to_owned(), events.into_iter().map(ToOwned::to_owned).collect()))
        .collect();
    assert_eq!(sent, written);
    assert_eq!(events(lab, "published = 0"), [""; 0], "all of it is marked");
}

/// The lab's broker, frozen until this goes out of scope, however the test ends.
pub struct Frozen(pub Pid);

impl Frozen {
    /// `None` where this Kafka was not started by scripts/kafka.sh.
    pub fn broker_of(lab: &Lab, test: &str) -> Option<Self> {
        let pid = match lab.kafka {
            None => Some(lab.broker_pid()),
            Some(_) => kafka_pid(test),
        };
        let frozen = Self(pid?);
        freeze(frozen.0);
        Some(frozen)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

fn kafka_pid(test: &str) -> Option<Pid> {
    let dir = std::env::var("KAFKA_DIR").unwrap_or_else(|_| format!("{ROOT}/.lab/kafka"));
    let how = std::fs::read_to_string(Path::new(&dir).join("how")).unwrap_or_default();
    let pid = how.lines().next().and_then(|line| line.strip_prefix("pid ")?.parse().ok());
    if pid.is_none() {
        not_run(test, "this Kafka was not started by scripts/kafka.sh as a process");
    }
    pid.map(Pid::from_raw)
}

/// Waits until no row is pending.
#[track_caller]
pub fn all_marked(lab: &Lab) {
    wait_for("the last mark", || events(lab, "published = 0").is_empty().then_some(()));
}

#[test]
fn everything_pending_is_sent_and_marked_once() {
    on_each_broker("everything_pending_is_sent_and_marked_once", |lab| {
        lab.ok("reset --partitions 4");
        lab.ok("write 10");
        lab.ok("return 4");
        for batch in ["--batch 1", "--batch 3", "--once"] {
            lab.ok("return 2");
            let ended = lab.run(&format!("relay --key aggregate {batch}")).exits(0);
            let n = if batch == "--batch 1" { 16 } else { 2 };
            ended.ends_in(&format!("[relay] acknowledged={n} marked={n} refused=0 rejected=0 dead=0 left=0"));
        }
        let copies = copies(lab);
        assert_eq!(copies.len(), 20);
        nothing_is_lost_or_out_of_order(lab, &copies);
        let ended = lab.run("relay").exits(0).says("nothing was pending: write first");
        ended.ends_in("[relay] acknowledged=0 marked=0 refused=0 rejected=0 dead=0 left=0");
        lab.ok("reconcile --expect 10/20/20/20");
    });
}

#[test]
fn the_last_line_is_told_in_json_too() {
    let lab = Lab::new();
    lab.ok("write 3");
    let left = json!({ "leased": 0, "of_other_shards": 0, "waiting": 0, "held_back": 0, "dead": 0, "unsent": 0 });
    let all = json!({
        "line": "relayed", "acknowledged": 3, "marked": 3, "refused": 0, "rejected": 0, "dead": 0, "left": left,
    });
    assert_eq!(relay(&lab, ""), all);
}

#[test]
fn without_a_batch_that_is_one_nothing_is_done() {
    let lab = Lab::new();
    lab.ok("write 1");
    for batch in ["0", "100001", "-1", "x"] {
        lab.run(&format!("relay --batch={batch}")).exits(2);
    }
    assert_eq!(lab.counts(), [1, 1, 0, 1]);
}

#[test]
fn keyed_by_event_over_several_partitions_it_says_what_it_does_not_promise() {
    let lab = Lab::new();
    lab.ok("reset --partitions 4");
    lab.ok("write 2");
    lab.run("relay").exits(0).says("v2c7.outbox has 4 partitions").says("--key aggregate keeps them together");
    lab.ok("write 1");
    let ended = lab.run("relay --key aggregate").exits(0);
    assert!(!ended.stderr.contains("partitions"), "{ended:#?}");
    lab.ok("reset");
    lab.ok("write 1");
    let ended = lab.run("relay").exits(0);
    assert!(!ended.stderr.contains("partitions"), "{ended:#?}");
    let [copy] = &copies(&lab)[..] else { panic!("one record") };
    assert_eq!((copy.key.as_str(), copy.event.as_str()), ("evt-1001", "evt-1001"), "as in the book");
}
