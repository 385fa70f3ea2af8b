//! `kill -9` at every passage of every crash point of the relay, and what the next one makes of it.

use std::collections::BTreeSet;

use super::{copies, duplicates, events, nothing_is_lost_or_out_of_order, relay};
use crate::support::{Lab, on_each_broker, wait_for};

const LINE: &str = "relay --key aggregate --batch 2 --owner one";

/// Four rows, two of them of one loan.
fn prepare(lab: &Lab) {
    lab.ok("reset --partitions 4");
    lab.ok("write 3");
    lab.ok("return 1");
}

/// Each crash point that a relay passes here, with how often.
fn passages(lab: &Lab) -> Vec<(String, u32)> {
    prepare(lab);
    let traced = lab.run(&format!("{LINE} --trace")).exits(0).stderr;
    let passed = traced.lines().filter_map(|line| line.split_once("passed ")?.1.rsplit_once(' '));
    passed.map(|(point, times)| (point.to_owned(), times.parse().unwrap())).collect()
}

#[test]
fn killed_at_every_passage_of_every_crash_point_it_loses_nothing_and_repeats_only_what_was_in_flight() {
    const TEST: &str = "killed_at_every_passage_of_every_crash_point";
    on_each_broker(TEST, |lab| {
        let passages = passages(lab);
        let points: Vec<_> = passages.iter().map(|(point, _)| point.as_str()).collect();
        let all = ["after-claim", "after-fetch", "before-send", "sent", "after-ack", "before-mark", "after-mark"];
        assert_eq!(points, all, "a crash point is killed at nowhere");
        for (point, times) in &passages {
            for nth in 1..=*times {
                prepare(lab);
                let held = lab.hold(&format!("{LINE} --hold-at {point}@{nth}"));
                held.kill();
                let pending: BTreeSet<_> = events(lab, "published = 0").into_iter().collect();
                let left = relay(lab, "--key aggregate --batch 2 --owner one");
                let copies = copies(lab);
                let at = format!("{point}@{nth}: {copies:#?}");
                assert_eq!(left["marked"], pending.len(), "the lease of the dead one is its own: {at}");
                nothing_is_lost_or_out_of_order(lab, &copies);
                assert!(duplicates(&copies).is_subset(&pending), "{at}");
                if ["after-claim", "after-fetch"].contains(&point.as_str()) && nth == 1 {
                    assert_eq!(copies.len(), 4, "nothing was sent by then: {at}");
                }
                if point == "after-ack" && nth == 1 {
                    assert!(copies.len() > 4, "what was acknowledged and not marked is sent again: {at}");
                }
                lab.ok("reconcile");
            }
        }
    });
}

/// With one row there is one record in flight, so that what a kill leaves is certain.
#[test]
fn one_row_killed_before_and_after_its_mark() {
    on_each_broker("one_row_killed_before_and_after_its_mark", |lab| {
        for (point, records) in
            [("before-send", 1), ("sent", 2), ("after-ack", 2), ("before-mark", 2), ("after-mark", 1)]
        {
            lab.ok("reset");
            lab.ok("write 1");
            let held = lab.hold(&format!("relay --owner one --hold-at {point}"));
            if point == "sent" {
                wait_for("the record of the held process", || (copies(lab).len() == 1).then_some(()));
            }
            held.kill();
            relay(lab, "--owner one");
            assert_eq!(copies(lab).len(), records, "killed at {point}");
            lab.ok(&format!("reconcile --expect 1/1/{records}/1"));
        }
    });
}
