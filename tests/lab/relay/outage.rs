//! The broker is away: for a while, for good, or as another one.

use nix::sys::signal::Signal;

use super::{Frozen, all_marked, copies, events, nothing_is_lost_or_out_of_order, start, told};
use crate::support::{Lab, on_each_broker_alone};

/// A send timeout that a test can wait for; a real Kafka's first acknowledgement takes up to a second.
fn timeout(lab: &Lab) -> &'static str {
    if lab.kafka.is_some() { "-X message.timeout.ms=2500" } else { "-X message.timeout.ms=1000" }
}

/// The broker is frozen while a relay stands at that crash point, until it has said that it waits, and goes on.
fn outlasts(lab: &Lab, test: &str, how: &str, at: &str) {
    lab.ok("reset --partitions 4");
    lab.ok("write 10");
    lab.ok("return 5");
    let options = format!("{how} --key aggregate --batch 3 {}", timeout(lab));
    let relay = lab.hold(&format!("--json relay {options} --hold-at {at}"));
    let Some(broker) = Frozen::broker_of(lab, test) else { return };
    relay.go_on();
    relay.until_says("what is not marked stays pending, and is sent again");
    if how == "--follow" && at != "before-send" {
        relay.until_says("waiting for the broker: ");
    }
    drop(broker);
    all_marked(lab);
    if how == "--follow" {
        relay.signal(Signal::SIGTERM);
    }
    let told = told(&relay.end().exits(0));
    assert_eq!((&told["marked"], &told["rejected"], &told["dead"]), (&15.into(), &0.into(), &0.into()));
    assert_eq!(events(lab, "attempts > 0"), [""; 0], "an outage is not poison");
    nothing_is_lost_or_out_of_order(lab, &copies(lab));
}

#[test]
fn a_relay_that_follows_outlasts_a_broker_that_is_away_for_longer_than_a_send_may_take() {
    const TEST: &str = "a_relay_that_follows_outlasts_a_broker_that_is_away";
    on_each_broker_alone(TEST, |lab| outlasts(lab, TEST, "--follow", "before-send@6"));
}

#[test]
fn a_relay_that_is_to_end_outlasts_it_too() {
    const TEST: &str = "a_relay_that_is_to_end_outlasts_it_too";
    on_each_broker_alone(TEST, |lab| outlasts(lab, TEST, "--once", "before-send@6"));
}

#[test]
fn a_broker_that_is_away_before_the_first_send_is_waited_for_too() {
    const TEST: &str = "a_broker_that_is_away_before_the_first_send_is_waited_for_too";
    on_each_broker_alone(TEST, |lab| outlasts(lab, TEST, "--follow", "before-send"));
}

#[test]
fn when_the_broker_does_not_come_back_a_relay_that_is_to_end_says_what_to_do() {
    let lab = Lab::new();
    lab.ok("write 3");
    let relay = lab.hold("relay --once -X message.timeout.ms=500 --hold-at before-send@2");
    let broker = Frozen::broker_of(&lab, "").unwrap();
    relay.go_on();
    let (ended, pid) = (relay.end(), broker.0);
    drop(broker);
    ended.exits(4).says("does not answer").says(&format!("kill -CONT {pid}")).names_next_step();
    // The first may have been acknowledged while the relay was held.
    let [_, _, marked, pending] = lab.counts();
    assert!(marked <= 1 && marked + pending == 3, "{marked} marked, {pending} pending");
    assert_eq!(lab.ok("stats").lines().count(), 1, "its lease was given back");
    lab.ok("relay");
    let sent = copies(&lab);
    nothing_is_lost_or_out_of_order_by_event(&lab, &sent);
}

#[test]
fn where_no_broker_answers_nothing_is_claimed() {
    let lab = Lab::new();
    lab.ok("write 1");
    // Nobody listens there.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    lab.run(&format!("--bootstrap 127.0.0.1:{port} relay"))
        .exits(4)
        .says(&format!("no Kafka answers at 127.0.0.1:{port}"))
        .names_next_step();
    assert_eq!(lab.counts(), [1, 1, 0, 1]);
    assert_eq!(lab.ok("stats").lines().count(), 1);
}

#[test]
fn a_relay_that_follows_goes_over_to_the_broker_that_takes_the_place_of_one_that_ended() {
    let lab = Lab::new();
    lab.ok("write 1");
    let relay = start(&lab, "relay --follow -X message.timeout.ms=1000");
    all_marked(&lab);
    lab.ok("broker stop");
    lab.ok("write 2");
    relay.until_says("the earlier events went to the topic v2c7.outbox of the embedded broker (generation ");
    all_marked(&lab);
    // What was sent to the old one is gone with it, and consume says so.
    let read = lab.run("--json consume").exits(3).says("the records are gone");
    let partitions = read.stdout.lines().filter(|line| line.contains(r#""partition":0"#)).count();
    assert_eq!((read.stdout.lines().count(), partitions), (2, 2), "{read:#?}");
    relay.signal(Signal::SIGTERM);
    relay.end().exits(0);
}

fn nothing_is_lost_or_out_of_order_by_event(lab: &Lab, copies: &[super::Copy]) {
    let mut sent: Vec<_> = copies.iter().map(|copy| copy.event.clone()).collect();
    sent.sort();
    sent.dedup();
    assert_eq!(sent, events(lab, "published = 1"));
}
