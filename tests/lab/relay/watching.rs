//! What a relay tells of itself while it is at work, and what it costs while it is not.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::{by_hand, start};
use crate::support::{Held, Lab, wait_for};

/// The body that is served at that address.
fn scrape(at: &str) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    body.to_owned()
}

/// The value of a series.
#[track_caller]
fn value(body: &str, series: &str) -> f64 {
    let line = body.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in {body}")).parse().unwrap()
}

/// The address that a relay says it serves at.
fn address(relay: &Held) -> String {
    let said = relay.says_next("metrics at http://");
    said.split_once("http://").unwrap().1.strip_suffix("/metrics").unwrap().to_owned()
}

#[test]
fn the_metrics_agree_with_what_happened() {
    let lab = Lab::new();
    lab.ok("write 3");
    by_hand(&lab, "UPDATE outbox SET payload = '\"' || hex(zeroblob(2000)) || '\"' WHERE id = 2");
    let line = "relay --follow --owner one --max-attempts 2 -X message.max.bytes=1500 --metrics 127.0.0.1:0";
    let relay = start(&lab, line);
    let at = address(&relay);
    wait_for("the dead row", || (lab.ok("dead list").lines().count() == 1).then_some(()));
    lab.ok("write 2");
    let body = wait_for("the last mark to be counted", || {
        let body = scrape(&at);
        (value(&body, "outbox_relay_published_rows_total") == 4.0).then_some(body)
    });
    for (series, wanted) in [
        ("outbox_pending_rows", 0.0),
        ("outbox_dead_rows", 1.0),
        ("outbox_published_rows", 4.0),
        ("outbox_rejected_attempts", 2.0),
        ("outbox_oldest_pending_age_seconds", 0.0),
        ("outbox_lease_slots{owner=\"one\"}", 64.0),
        ("outbox_relay_rejected_records_total", 2.0),
        ("outbox_relay_refused_marks_total", 0.0),
        ("outbox_relay_in_doubt_sends_total", 0.0),
        ("outbox_relay_commit_to_ack_seconds_count", 4.0),
        ("outbox_relay_commit_to_ack_seconds_bucket{le=\"+Inf\"}", 4.0),
    ] {
        assert_eq!(value(&body, series), wanted, "{series} in {body}");
    }
    relay.signal(Signal::SIGTERM);
    relay.end().exits(0);
}

/// Its processor time so far, in whole seconds where the system does not say it closer.
fn cpu_time(pid: Pid) -> f64 {
    let told = Command::new("ps").args(["-o", "time=", "-p", &pid.to_string()]).output().unwrap().stdout;
    let told = String::from_utf8_lossy(&told);
    let days_off = told.trim().rsplit('-').next().unwrap_or_default();
    days_off.split(':').fold(0.0, |sum, part| sum * 60.0 + part.parse::<f64>().unwrap())
}

/// The time goes by on purpose: what is looked at is what it costs.
#[test]
fn a_relay_with_nothing_to_do_does_next_to_nothing() {
    let lab = Lab::new();
    lab.ok("write 2");
    // One that waits for rows, and one that waits for a lease while a dead row lies there.
    by_hand(&lab, "UPDATE outbox SET dead = 1, attempts = 1 WHERE id = 2");
    let relays = ["first", "second"].map(|owner| start(&lab, &format!("relay --follow --owner {owner}")));
    wait_for("the one that can be sent", || (lab.counts()[2] == 1).then_some(()));
    let before = relays.each_ref().map(|relay| cpu_time(relay.pid()));
    let begun = Instant::now();
    std::thread::sleep(Duration::from_secs(4));
    for (relay, before) in relays.iter().zip(before) {
        let spent = cpu_time(relay.pid()) - before;
        let passed = begun.elapsed().as_secs_f64();
        // A busy loop takes all of it. Told in whole seconds, next to nothing can be one.
        assert!(spent <= 1.0_f64.max(passed / 4.0), "{spent} s of {passed} s");
    }
    lab.ok("write 1");
    wait_for("the row that it waited for", || (lab.counts()[2] == 2).then_some(()));
}
