//! Bad input: a clear error that says what to type next, and nothing changed.

use std::net::TcpListener;

use super::{all_marked, by_hand, start};
use crate::support::{Lab, bytes};

/// The command is refused, the reason and the next step are told, and nothing was sent, marked or leased.
#[track_caller]
fn refused(lab: &Lab, line: &str, code: i32, why: &str) {
    let ended = lab.run(line).exits(code).says(why);
    assert_eq!(ended.stdout, "", "{line}");
    // A usage error of the command line itself names its options instead.
    assert!(ended.stderr.contains("\n  next: ") || ended.stderr.contains("For more information"), "{ended:#?}");
    assert_eq!(lab.counts(), [2, 2, 0, 2], "after {line}");
    assert_eq!(lab.ok("stats").lines().count(), 1, "no lease after {line}");
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_changed() {
    let lab = Lab::new();
    lab.ok("write 2");
    refused(&lab, "relay --lease 10s", 2, "a lease of 10s does not outlast a send, which may take 10s");
    refused(&lab, "relay --lease 0s", 2, "does not outlast a send");
    refused(&lab, "relay --lease 2s -X message.timeout.ms=2000", 2, "-X message.timeout.ms");
    refused(&lab, "relay --lease 2s -X delivery.timeout.ms=2000", 2, "does not outlast a send");
    for shard in ["0/2", "3/2", "1/0", "1/65", "1", "a/b"] {
        refused(&lab, &format!("relay --shard {shard}"), 2, "write I/N, as in 1/2 and 2/2");
    }
    refused(&lab, "relay --batch 0", 2, "is not in 1..=100000");
    refused(&lab, "relay --max-attempts 0", 2, "is not in 1..=1000");
    refused(&lab, "relay --lease 86400001ms", 2, "a day (24h) is the most");
    refused(&lab, "relay --lease 200000000y", 2, "1000 years are the most");
    refused(&lab, "relay --lease 30", 2, "as in 500ms, 30s, 15m or 7d");
    refused(&lab, "relay --owner a/b", 2, "a name is 1 to 64 letters");
    refused(&lab, "relay --once --follow", 2, "cannot be used with");
    refused(&lab, "relay --metrics-anywhere", 2, "--metrics");
    for property in [
        "enable.idempotence=false",
        "enable.gapless.guarantee=false",
        "max.in.flight=5",
        "max.in.flight.requests.per.connection=5",
        "retries=0",
        "message.send.max.retries=0",
        "queue.buffering.max.messages=1",
        "queuing.strategy=lifo",
        "transactional.id=t",
    ] {
        refused(&lab, &format!("relay -X {property}"), 2, "the relay's order stands on the property");
    }
    for property in ["acks=0", "partitioner=random", "delivery.report.only.error=true", "message.timeout.ms=0"] {
        lab.run(&format!("relay -X {property}")).exits(2);
    }
    assert_eq!(lab.counts(), [2, 2, 0, 2]);
    assert_eq!(lab.ok("broker status"), "[broker] down\n");
}

#[test]
fn a_lease_may_last_a_day() {
    let lab = Lab::new();
    lab.ok("write 2");
    lab.ok("relay --lease 1d");
    assert_eq!(lab.counts(), [2, 2, 2, 0]);
}

#[test]
fn two_living_relays_cannot_have_one_name() {
    let lab = Lab::new();
    lab.ok("write 2");
    let held = lab.hold("relay --owner one --hold-at after-fetch");
    lab.run("relay --owner one")
        .exits(4)
        .says("a relay of the name one is at work on .lab/outbox.db: pid ")
        .says(&format!("pid {}", held.pid()))
        .says("take another --owner")
        .names_next_step();
    held.kill();
    lab.ok("relay --owner one");
    assert_eq!(lab.counts(), [2, 2, 2, 0]);
}

#[test]
fn a_metrics_address_that_is_taken_or_that_others_reach_is_refused() {
    let lab = Lab::new();
    lab.ok("write 2");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    refused(&lab, &format!("relay --metrics 127.0.0.1:{port}"), 4, &format!("127.0.0.1:{port}"));
    refused(&lab, "relay --metrics 0.0.0.0:0", 2, "--metrics-anywhere");
    lab.run("relay --metrics 0.0.0.0:0 --metrics-anywhere").exits(0).says("metrics at http://0.0.0.0:");
    assert_eq!(lab.counts(), [2, 2, 2, 0]);
}

#[test]
fn without_a_database_nothing_is_made() {
    let lab = Lab::new();
    for line in ["relay", "relay --owner one", "relay --follow --metrics 127.0.0.1:0"] {
        lab.run(line).exits(4).says("there is no lab database at .lab/outbox.db").says("reset").names_next_step();
        assert!(!lab.path(".lab").exists(), "after {line}");
    }
}

#[test]
fn a_database_of_a_later_version_is_left_as_it_is() {
    let lab = Lab::new();
    lab.ok("write 2");
    by_hand(&lab, "PRAGMA user_version = 99; PRAGMA wal_checkpoint(TRUNCATE)");
    let before = bytes(&lab.path(".lab/outbox.db"));
    for line in ["relay", "relay --owner one --follow"] {
        lab.run(line).exits(4).says("is a lab database of version 99").names_next_step();
    }
    assert_eq!(bytes(&lab.path(".lab/outbox.db")), before);
}

#[test]
fn a_database_that_is_taken_away_ends_a_relay_that_follows() {
    let lab = Lab::new();
    lab.ok("write 1");
    let relay = start(&lab, "relay --follow --lease 1500ms -X message.timeout.ms=1000");
    all_marked(&lab);
    std::fs::rename(lab.path(".lab/outbox.db"), lab.path("elsewhere.db")).unwrap();
    relay.end().exits(4).says("was removed or replaced while this command was at work").names_next_step();
}
