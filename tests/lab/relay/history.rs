//! Histories of writers, relays, kills and purges, made at random and held against a model.
//!
//! They are the same each time; `OUTBOX_LAB_HISTORIES=1000` plays so many, of which these are the first.
//!
//! No step goes by the clock: a lease is long, and that of a relay which was killed goes over to the next of its name.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::sample::select;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use super::{copies, duplicates, events, first_copies, relay, start};
use crate::support::{Held, Lab, on_each_broker, other_program};

/// The names of relays; no two of one name live at a time.
const OWNERS: usize = 3;

const POINTS: [&str; 7] =
    ["after-claim", "after-fetch", "before-send", "sent", "after-ack", "before-mark", "after-mark"];

/// What happens next.
#[derive(Clone, Debug)]
enum Step {
    /// So many loans, with one event each.
    Write(u32),
    /// So many events of so many loans, in turn.
    Fill(u32, u32),
    /// A second event of so many loans.
    Return(u32),
    /// A relay runs to its end, or until it stands at a crash point.
    Relay { owner: usize, options: String, hold: Option<(&'static str, u32)> },
    /// Two relays with half of the aggregates each, and a writer, at the same time.
    AtOnce(u32),
    /// One that stands at a crash point is killed.
    Kill(usize),
    /// One that stands at a crash point goes on, to its end.
    GoOn(usize),
    /// What is published is deleted.
    Purge,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let shard = select(vec!["", "--shard 1/2", "--shard 2/2", "--shard 2/3"]);
    let options = (1..6_u32, shard).prop_map(|(batch, shard)| format!("--batch {batch} {shard}"));
    let hold = prop_oneof![1 => Just(None), 3 => (select(&POINTS[..]), 1..5_u32).prop_map(Some)];
    let relay = (0..OWNERS, options, hold).prop_map(|(owner, options, hold)| Step::Relay { owner, options, hold });
    let step = prop_oneof![
        2 => (1..4_u32).prop_map(Step::Write),
        2 => (1..4_u32, 3..12_u32).prop_map(|(loans, events)| Step::Fill(events, loans)),
        1 => (1..4_u32).prop_map(Step::Return),
        6 => relay,
        1 => (1..20_u32).prop_map(Step::AtOnce),
        2 => any::<usize>().prop_map(Step::Kill),
        2 => any::<usize>().prop_map(Step::GoOn),
        1 => Just(Step::Purge),
    ];
    vec(step, 4..14)
}

/// What has to have happened by now.
struct Model<'a> {
    lab: &'a Lab,
    /// `(event, aggregate)` of each row that was ever committed, in id order.
    written: Vec<(String, String)>,
    last_id: i64,
    /// Those that stand at a crash point, with their names.
    held: Vec<(usize, Held)>,
    /// Events that were pending when a relay was killed: it may have sent them.
    may_repeat: BTreeSet<String>,
}

impl<'a> Model<'a> {
    fn new(lab: &'a Lab) -> Self {
        lab.ok("reset --partitions 4");
        Self { lab, written: Vec::new(), last_id: 0, held: Vec::new(), may_repeat: BTreeSet::new() }
    }

    fn play(&mut self, step: &Step) {
        match step {
            Step::Write(n) => drop(self.lab.ok(&format!("write {n}"))),
            Step::Fill(n, loans) => drop(self.lab.ok(&format!("fill {n} --aggregates {loans}"))),
            // Refused where no loan is out any more.
            Step::Return(n) => drop(self.lab.run(&format!("return {n}"))),
            Step::Relay { owner, options, hold } => self.relay(*owner, options, *hold),
            Step::AtOnce(n) => {
                let relay = |nth| format!("relay --key aggregate --batch 2 --shard {nth}/2");
                for ended in self.lab.at_once([format!("fill {n}"), relay(1), relay(2)]) {
                    ended.exits(0);
                }
            }
            Step::Kill(nth) if !self.held.is_empty() => {
                let (_, held) = self.held.remove(nth % self.held.len());
                self.kill(held);
            }
            Step::GoOn(nth) if !self.held.is_empty() => {
                let (_, held) = self.held.remove(nth % self.held.len());
                held.go_on();
                held.end().exits(0);
            }
            Step::Kill(_) | Step::GoOn(_) => {}
            Step::Purge => drop(self.lab.ok("purge --older-than 0s")),
        }
        self.look();
    }

    fn relay(&mut self, owner: usize, options: &str, hold: Option<(&str, u32)>) {
        if self.held.iter().any(|(held, _)| *held == owner) {
            return;
        }
        let line = format!("relay --key aggregate --owner r{owner} {options}");
        let Some((point, nth)) = hold else { return drop(self.lab.ok(&line)) };
        let mut held = start(self.lab, &format!("{line} --hold-at {point}@{nth}"));
        if held.comes_to_hold() {
            self.held.push((owner, held));
        } else {
            // It had nothing to do that would have brought it there.
            held.end().exits(3);
        }
    }

    fn kill(&mut self, held: Held) {
        held.kill();
        self.may_repeat.extend(events(self.lab, "published = 0"));
    }

    /// Takes down which rows were committed, before anything can delete them.
    fn look(&mut self) {
        let db = other_program(&self.lab.path(".lab/outbox.db"));
        let mut query = db.prepare("SELECT id, event_id, aggregate_id FROM outbox WHERE id > ?1 ORDER BY id").unwrap();
        let mut rows = query.query([self.last_id]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            self.last_id = row.get(0).unwrap();
            self.written.push((row.get(1).unwrap(), row.get(2).unwrap()));
        }
    }

    /// Everybody dies, everybody comes back, and nothing is lost.
    fn end(mut self) {
        for (_, held) in std::mem::take(&mut self.held) {
            self.kill(held);
        }
        for owner in 0..OWNERS {
            relay(self.lab, &format!("--key aggregate --owner r{owner}"));
        }
        let left = relay(self.lab, "--key aggregate");
        assert_eq!(left["left"]["leased"], 0, "{left}");
        assert_eq!(events(self.lab, "published = 0"), [""; 0], "nothing stays behind");

        let copies = copies(self.lab);
        let wanted = by_aggregate(self.written.iter().map(|(event, aggregate)| (aggregate.as_str(), event.as_str())));
        assert_eq!(first_copies(&copies), wanted, "no loss, no phantom event, first copies in order");
        let repeated = duplicates(&copies);
        assert!(repeated.is_subset(&self.may_repeat), "unexplained: {:?}", repeated.difference(&self.may_repeat));

        self.lab.ok("apply --inbox");
        let db = other_program(&self.lab.path(".lab/outbox.db"));
        let mut query = db.prepare("SELECT event_id FROM effect ORDER BY id").unwrap();
        let applied: Vec<String> = query.query_map((), |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap();
        let aggregates: BTreeMap<_, _> = self.written.iter().map(|(e, a)| (e.as_str(), a.as_str())).collect();
        let applied = by_aggregate(applied.iter().map(|event| (aggregates[event.as_str()], event.as_str())));
        assert_eq!(applied, wanted, "each event is applied once, those of an aggregate in order");
    }
}

fn by_aggregate<'e>(events: impl Iterator<Item = (&'e str, &'e str)>) -> BTreeMap<&'e str, Vec<&'e str>> {
    let mut all: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    events.for_each(|(aggregate, event)| all.entry(aggregate).or_default().push(event));
    all
}

#[test]
fn whatever_happens_nothing_is_lost_and_the_order_holds() {
    on_each_broker("whatever_happens_nothing_is_lost_and_the_order_holds", |lab| {
        // The same histories each time. A real Kafka's first acknowledgement takes up to a second, so there are fewer.
        let cases = match std::env::var("OUTBOX_LAB_HISTORIES") {
            Ok(more) => more.parse().unwrap(),
            Err(_) if lab.kafka.is_some() => 4,
            Err(_) => 24,
        };
        let config = Config { cases, failure_persistence: None, max_shrink_iters: 60, ..Config::default() };
        let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
        let outcome = runner.run(&steps(), |steps| {
            let mut model = Model::new(lab);
            steps.iter().for_each(|step| model.play(step));
            model.end();
            Ok::<(), TestCaseError>(())
        });
        if let Err(failed) = outcome {
            panic!("{failed}");
        }
    });
}
