//! Leases: who sends which rows, and until when.

use std::time::{Duration, Instant};

use super::{all_marked, copies, duplicates, events, nothing_is_lost_or_out_of_order, relay, start, told};
use crate::support::{Lab, on_each_broker, wait_for};

/// A short lease, and a send timeout that is shorter. A real Kafka's first acknowledgement takes up to a second.
fn short(lab: &Lab) -> &'static str {
    if lab.kafka.is_some() {
        "--lease 2500ms -X message.timeout.ms=2400"
    } else {
        "--lease 600ms -X message.timeout.ms=500"
    }
}

#[test]
fn a_relay_leaves_what_another_has_leased_and_says_who() {
    let lab = Lab::new();
    lab.ok("write 3");
    let held = lab.hold("relay --owner first --hold-at after-fetch");
    let ended = lab.run("--json relay --owner second").exits(0).says("first has a lease on 64 of 64 slots for ");
    let told = told(&ended);
    assert_eq!((&told["left"]["leased"], &told["acknowledged"]), (&3.into(), &0.into()));
    assert!(!ended.stderr.contains("nothing was pending"), "{ended:#?}");
    lab.run("relay --owner second")
        .exits(0)
        .ends_in("[relay] acknowledged=0 marked=0 refused=0 rejected=0 dead=0 left=3 (3 leased by others)");
    held.go_on();
    held.end().exits(0).ends_in("[relay] acknowledged=3 marked=3 refused=0 rejected=0 dead=0 left=0");
    assert_eq!(copies(&lab).len(), 3);
}

#[test]
fn a_lease_that_was_given_back_is_free_at_once() {
    let lab = Lab::new();
    for owner in ["--owner first", "--owner second", "", "--owner first"] {
        lab.ok("write 2");
        assert_eq!(relay(&lab, owner)["marked"], 2, "{owner}");
        assert_eq!(lab.ok("stats").lines().count(), 1, "nobody has a lease");
    }
}

#[test]
fn the_rows_of_a_killed_relay_go_on_when_its_lease_is_over() {
    on_each_broker("the_rows_of_a_killed_relay_go_on_when_its_lease_is_over", |lab| {
        lab.ok("reset --partitions 4");
        lab.ok("fill 40 --aggregates 7");
        let options = format!("--key aggregate --batch 10 {}", short(lab));
        let first = lab.hold(&format!("relay --owner first {options} --hold-at before-mark@2"));
        let standby = start(lab, &format!("--json relay --follow --owner standby {options}"));
        first.kill();
        let killed = Instant::now();
        all_marked(lab);
        // At most one lease, and the time that it takes to send 40 rows on a busy machine.
        assert!(killed.elapsed() < Duration::from_secs(10), "{:?}", killed.elapsed());
        let copies = copies(lab);
        nothing_is_lost_or_out_of_order(lab, &copies);
        standby.signal(nix::sys::signal::Signal::SIGTERM);
        assert!(told(&standby.end().exits(0))["marked"].as_u64() >= Some(10));
    });
}

#[test]
fn a_relay_that_is_let_go_on_within_its_lease_goes_on() {
    on_each_broker("a_relay_that_is_let_go_on_within_its_lease_goes_on", |lab| {
        lab.ok("reset");
        lab.ok("write 3");
        for (point, nth) in [("after-fetch", 1), ("before-send", 2)] {
            let mut first = lab.hold(&format!("--json relay --owner first --hold-at {point}@{nth}"));
            assert_eq!(relay(lab, "--owner second")["left"]["leased"], 3);
            first.go_on();
            first.printed.clear();
            let told = told(&first.end().exits(0));
            assert_eq!((&told["marked"], &told["refused"]), (&3.into(), &0.into()), "{point}");
            lab.ok("write 3");
        }
        assert_eq!(copies(lab).len(), 6);
    });
}

/// Another relay has sent and marked everything by the time that the first goes on.
fn overtaken(lab: &Lab, point: &str) -> super::Value {
    lab.ok("reset");
    lab.ok("write 3");
    let first = lab.hold(&format!("--json relay --owner first {} --hold-at {point}", short(lab)));
    wait_for("the end of the lease", || {
        relay(lab, &format!("--owner second {}", short(lab)));
        events(lab, "published = 0").is_empty().then_some(())
    });
    assert_eq!(copies(lab).len(), 3);
    first.go_on();
    let ended = first.end().exits(0).says("the lease was lost: another relay has claimed it");
    if point == "before-send" {
        assert!(ended.stdout.contains(r#"{"line":"mark-refused","event":"evt-1001"}"#), "{ended:#?}");
    }
    told(&ended)
}

#[test]
fn let_go_on_after_its_lease_it_sends_nothing() {
    on_each_broker("let_go_on_after_its_lease_it_sends_nothing", |lab| {
        let told = overtaken(lab, "after-fetch");
        assert_eq!((&told["acknowledged"], &told["refused"]), (&0.into(), &0.into()));
        assert_eq!(copies(lab).len(), 3);
    });
}

#[test]
fn stopped_between_its_look_at_the_lease_and_the_send_it_makes_one_duplicate_and_marks_nothing() {
    on_each_broker("stopped_between_its_look_at_the_lease_and_the_send", |lab| {
        let told = overtaken(lab, "before-send");
        assert_eq!(told["line"], "relayed");
        assert_eq!((&told["acknowledged"], &told["marked"], &told["refused"]), (&1.into(), &0.into(), &1.into()));
        let copies = copies(lab);
        assert_eq!(copies.len(), 4);
        assert_eq!(duplicates(&copies).into_iter().collect::<Vec<_>>(), ["evt-1001"]);
    });
}
