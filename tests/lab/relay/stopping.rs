//! SIGTERM and Ctrl-C.

use std::time::Instant;

use nix::sys::signal::Signal;

use super::{Frozen, all_marked, copies, relay, start, told};
use crate::support::{Lab, on_each_broker, on_each_broker_alone, wait_for};

#[test]
fn a_relay_that_is_told_to_stop_gives_its_lease_back_and_is_done() {
    on_each_broker("a_relay_that_is_told_to_stop", |lab| {
        lab.ok("reset");
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            lab.ok("write 2");
            let first = start(lab, "--json relay --follow --owner first");
            all_marked(lab);
            first.signal(signal);
            let told = told(&first.end().exits(0));
            assert_eq!((&told["marked"], &told["left"]["unsent"]), (&2.into(), &0.into()));
            lab.ok("write 1");
            assert_eq!(relay(lab, "--owner second")["marked"], 1, "after {signal}");
        }
        assert_eq!(copies(lab).len(), 9);
    });
}

#[test]
fn what_is_in_flight_is_waited_for_and_marked() {
    const TEST: &str = "what_is_in_flight_is_waited_for_and_marked";
    on_each_broker_alone(TEST, |lab| {
        lab.ok("reset");
        lab.ok("write 3");
        let relay = start(lab, "--json relay --follow");
        all_marked(lab);
        let Some(broker) = Frozen::broker_of(lab, TEST) else { return };
        lab.ok("fill 2");
        relay.until_says("waiting for the broker: ");
        relay.signal(Signal::SIGTERM);
        relay.until_says("told to stop: 2 records in flight are waited for");
        lab.ok("write 4");
        drop(broker);
        let told = told(&relay.end().exits(0));
        assert_eq!((&told["acknowledged"], &told["marked"]), (&5.into(), &5.into()), "{told}");
        assert_eq!(told["left"]["unsent"], 4, "nothing new is taken, though it is there: {told}");
        assert_eq!(copies(lab).len(), 5, "nothing is sent twice");
    });
}

#[test]
fn one_that_is_stopped_in_an_outage_ends_within_its_send_timeout_and_says_what_it_left() {
    let lab = Lab::new();
    lab.ok("write 1");
    let relay = start(&lab, "--json relay --follow -X message.timeout.ms=2500");
    all_marked(&lab);
    let broker = Frozen::broker_of(&lab, "").unwrap();
    lab.ok("write 2");
    relay.until_says("waiting for the broker: ");
    relay.signal(Signal::SIGTERM);
    let begun = Instant::now();
    let ended = relay.end();
    drop(broker);
    let ended = ended.exits(0).says("sends are in doubt");
    assert!(begun.elapsed().as_secs() < 8, "{:?}", begun.elapsed());
    assert_eq!(told(&ended)["left"]["unsent"], 2);
    assert!(!ended.stderr.contains("nothing was pending"), "{ended:#?}");
    assert_eq!(lab.counts(), [3, 3, 1, 2]);
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let lab = Lab::new();
    lab.ok("write 1");
    let relay = start(&lab, "relay --follow");
    all_marked(&lab);
    let broker = Frozen::broker_of(&lab, "").unwrap();
    lab.ok("fill 2");
    relay.until_says("waiting for the broker: ");
    relay.signal(Signal::SIGTERM);
    relay.until_says("told to stop: 2 records in flight are waited for");
    relay.signal(Signal::SIGINT);
    let ended = relay.end();
    drop(broker);
    ended.exits(130);
    assert_eq!(lab.counts(), [3, 3, 1, 2]);
}

#[test]
fn a_held_relay_ends_at_the_first_signal() {
    let lab = Lab::new();
    lab.ok("write 1");
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130), (Signal::SIGHUP, 129)] {
        let held = lab.hold("relay --owner one --hold-at before-send");
        held.until_says("held at before-send");
        // It is held a moment after it has said so.
        wait_for("its end", || {
            held.signal(signal);
            (!crate::support::is_alive(held.pid())).then_some(())
        });
        held.end().exits(code);
        assert_eq!(lab.counts(), [1, 1, 0, 1]);
    }
}
