//! Rows that are rejected for good, and those that have nothing to do with it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_executor::block_on;
use nix::sys::signal::Signal;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use serde_json::Value;

use super::{all_marked, by_hand, copies, events, first_copies, relay, rows, start};
use crate::support::{Lab, on_each_broker, other_program, wait_for};

/// What the client takes: less than a poisoned row.
const LIMIT: &str = "-X message.max.bytes=1500";

/// Makes the payload of these rows too large.
fn poison(lab: &Lab, condition: &str) {
    by_hand(lab, &format!("UPDATE outbox SET payload = '\"' || hex(zeroblob(2000)) || '\"' WHERE {condition}"));
}

/// One number of a row.
fn number(lab: &Lab, expression: &str, event: &str) -> i64 {
    let db = other_program(&lab.path(".lab/outbox.db"));
    let sql = format!("SELECT {expression} FROM outbox WHERE event_id = ?1");
    db.query_row(&sql, [event], |row| row.get(0)).unwrap()
}

#[test]
fn a_row_that_the_client_rejects_counts_alone_and_holds_back_its_own_aggregate() {
    on_each_broker("a_row_that_the_client_rejects_counts_alone", |lab| {
        lab.ok("reset");
        lab.ok("write 3");
        lab.ok("return 2");
        poison(lab, "event_id = 'evt-1001'");
        let told = relay(lab, &format!("--key aggregate {LIMIT}"));
        assert_eq!((&told["marked"], &told["rejected"], &told["dead"]), (&3.into(), &1.into(), &0.into()));
        assert_eq!((&told["left"]["waiting"], &told["left"]["held_back"]), (&1.into(), &1.into()));
        assert_eq!(events(lab, "published = 0"), ["evt-1001", "evt-1001-returned"]);
        assert_eq!(events(lab, "attempts > 0"), ["evt-1001"], "the others do not count an attempt");
        lab.run(&format!("relay --key aggregate {LIMIT} --max-attempts 2"))
            .exits(0)
            .ends_in("[relay] acknowledged=0 marked=0 refused=0 ");
        // Mended, it goes first.
        by_hand(lab, "UPDATE outbox SET payload = '{}', next_try_at = 0 WHERE event_id = 'evt-1001'");
        assert_eq!(relay(lab, &format!("--key aggregate {LIMIT}"))["marked"], 2);
        assert_eq!(first_copies(&copies(lab))["L-1001"], ["evt-1001", "evt-1001-returned"]);
    });
}

#[test]
fn each_rejection_is_told_and_the_last_one_parks_the_row() {
    let lab = Lab::new();
    lab.ok("write 2");
    poison(&lab, "event_id = 'evt-1002'");
    for (attempt, then) in [(1, ""), (2, ""), (3, ": dead")] {
        by_hand(&lab, "UPDATE outbox SET next_try_at = 0");
        let ended = lab.run(&format!("relay --max-attempts 3 {LIMIT}")).exits(0);
        let line = format!("[relay] evt-1002 rejected, attempt {attempt} of 3: ");
        let told: Vec<_> = ended.stdout.lines().filter(|line| line.contains("rejected, attempt")).collect();
        assert!(told.len() == 1 && told[0].starts_with(&line), "{ended:#?}");
        assert_eq!(told[0].ends_with(": dead"), !then.is_empty(), "{ended:#?}");
    }
    let listed = lab.ok("dead list");
    assert!(listed.starts_with("[dead] outboxId=2 event=evt-1002 aggregate=L-1002 attempts=3 error=\""), "{listed}");
    lab.run("relay").exits(0).ends_in("[relay] acknowledged=0 marked=0 refused=0 rejected=0 dead=0 left=1 (1 dead)");
}

#[test]
fn each_wait_is_longer_than_the_one_before() {
    let lab = Lab::new();
    lab.ok("write 1");
    poison(&lab, "true");
    for (attempt, full) in [(1, 200), (2, 400), (3, 800), (4, 1_600)] {
        by_hand(&lab, "UPDATE outbox SET next_try_at = 0");
        let before = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as i64;
        relay(&lab, &format!("--max-attempts 9 {LIMIT}"));
        let wait = number(&lab, "next_try_at", "evt-1001") - before;
        // From half of it on, and what the relay itself takes on a busy machine.
        assert!(wait >= full / 2 && wait <= full + 20_000, "{wait} ms after {attempt}");
        by_hand(&lab, "UPDATE outbox SET next_try_at = (unixepoch() + 60) * 1000");
        let early = relay(&lab, LIMIT);
        assert_eq!((&early["rejected"], &early["left"]["waiting"]), (&0.into(), &1.into()), "not before its time");
    }
}

#[test]
fn behind_a_dead_row_its_aggregate_waits_or_goes_on() {
    for (what, marked, held_back) in [("hold-key", 3, 1), ("skip", 4, 0)] {
        let lab = Lab::new();
        lab.ok("write 3");
        lab.ok("return 2");
        poison(&lab, "event_id = 'evt-1001'");
        let options = format!("--key aggregate --max-attempts 1 --on-poison {what} {LIMIT}");
        let told = relay(&lab, &options);
        assert_eq!((&told["marked"], &told["dead"]), (&marked.into(), &1.into()), "{what}");
        assert_eq!((&told["left"]["dead"], &told["left"]["held_back"]), (&1.into(), &held_back.into()), "{what}");
        // And so it stays.
        lab.ok("write 1");
        assert_eq!(relay(&lab, &options)["marked"], 1, "{what}");
    }
}

#[test]
fn a_dead_row_is_decided_on_while_a_relay_follows() {
    on_each_broker("a_dead_row_is_decided_on_while_a_relay_follows", |lab| {
        lab.ok("reset");
        lab.ok("write 3");
        lab.ok("return 2");
        poison(lab, "event_id IN ('evt-1001', 'evt-1002')");
        let relay = start(lab, &format!("relay --follow --key aggregate --max-attempts 2 {LIMIT}"));
        wait_for("two dead rows", || (lab.ok("dead list").lines().count() == 2).then_some(()));
        wait_for("the one that is not held back", || (copies(lab).len() == 1).then_some(()));
        lab.ok("dead drop evt-1002");
        wait_for("its aggregate to go on", || (copies(lab).len() == 2).then_some(()));
        by_hand(lab, "UPDATE outbox SET payload = '{}' WHERE event_id = 'evt-1001'");
        lab.ok("dead requeue evt-1001");
        all_marked(lab);
        relay.signal(Signal::SIGTERM);
        relay
            .end()
            .exits(0)
            .prints("[relay] evt-1001 rejected, attempt 2 of 2: ")
            .ends_in("[relay] acknowledged=4 marked=4 refused=0 rejected=4 dead=2 left=0");
        let copies = copies(lab);
        assert_eq!(first_copies(&copies)["L-1001"], ["evt-1001", "evt-1001-returned"]);
        assert_eq!(first_copies(&copies)["L-1002"], ["evt-1002-returned"]);
    });
}

/// The time goes by on purpose: how long it was idle has nothing to do with when a row is tried again.
#[test]
fn a_row_is_tried_again_in_time_however_long_the_relay_had_nothing_to_do() {
    let lab = Lab::new();
    lab.ok("write 1");
    let relay = start(&lab, &format!("relay --follow --envelope debezium --max-attempts 3 {LIMIT}"));
    all_marked(&lab);
    std::thread::sleep(Duration::from_secs(2));
    let row = "('evt-x', 'L-1001', 't', '{}', 'no topic')";
    by_hand(
        &lab,
        &format!("INSERT INTO outbox (event_id, aggregate_id, event_type, payload, aggregate_type) VALUES {row}"),
    );
    let begun = Instant::now();
    wait_for("the dead row", || (number(&lab, "dead", "evt-x") == 1).then_some(()));
    // Two waits, of 0.2 and 0.4 s at the most, and what a busy machine takes; not twenty times what it was idle for.
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    relay.signal(Signal::SIGTERM);
    relay.end().exits(0);
}

/// Sent together and rejected together: the broker does not say which record of a request is at fault.
#[test]
fn a_row_that_the_broker_rejects_does_not_count_against_those_that_were_sent_with_it() {
    let Some(mut lab) = Lab::on_kafka("a_row_that_the_broker_rejects_does_not_count_against_others") else { return };
    let topic = take_topic_of(&mut lab, "4000");
    lab.ok("write 12");
    lab.ok("return 12");
    by_hand(&lab, "UPDATE outbox SET payload = '\"' || hex(zeroblob(3000)) || '\"' WHERE event_id = 'evt-1005'");
    let ended = lab.run("relay --key aggregate --max-attempts 1").exits(0).says("records were rejected together");
    let ended = ended.ends_in("[relay] acknowledged=22 marked=22 refused=0 rejected=1 dead=1 left=2 ");
    assert!(ended.stdout.contains("[relay] evt-1005 rejected, attempt 1 of 1: "), "{ended:#?}");
    assert_eq!(events(&lab, "attempts > 0"), ["evt-1005"]);
    assert_eq!(events(&lab, "published = 0"), ["evt-1005", "evt-1005-returned"]);
    let copies = copies(&lab);
    for (key, events) in first_copies(&copies) {
        let number = key.strip_prefix("L-").unwrap();
        assert_eq!(events, [format!("evt-{number}"), format!("evt-{number}-returned")], "{key}");
    }
    drop(topic);
}

/// Another topic of this test's own, with a limit of the broker's on the size of a request; it goes with the value.
struct Small(AdminClient<DefaultClientContext>, String);

fn take_topic_of(lab: &mut Lab, max_bytes: &str) -> Small {
    let (servers, topic) = lab.kafka.clone().unwrap();
    let topic = format!("{topic}.small");
    let admin: AdminClient<_> = ClientConfig::new().set("bootstrap.servers", &servers).create().unwrap();
    let small = NewTopic::new(&topic, 1, TopicReplication::Fixed(1)).set("max.message.bytes", max_bytes);
    block_on(admin.create_topics([&small], &AdminOptions::new())).unwrap().remove(0).unwrap();
    lab.kafka = Some((servers, topic.clone()));
    Small(admin, topic)
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = block_on(self.0.delete_topics(&[&self.1], &AdminOptions::new()));
    }
}

/// The client stops at the gap that it leaves, with most of the batch unsent: that is no reason to wait for a time-out.
#[test]
fn a_row_that_the_broker_rejects_does_not_hold_the_others_up() {
    let Some(mut lab) = Lab::on_kafka("a_row_that_the_broker_rejects_does_not_hold_the_others_up") else { return };
    let _topic = take_topic_of(&mut lab, "1048588");
    lab.ok("fill 20000 --aggregates 40");
    by_hand(&lab, "UPDATE outbox SET payload = '\"' || hex(zeroblob(700000)) || '\"' WHERE id = 3000");
    let begun = Instant::now();
    let told = relay(&lab, "--key aggregate --on-poison skip --max-attempts 1 -X message.max.bytes=4000000");
    assert_eq!((&told["marked"], &told["rejected"], &told["dead"]), (&19_999.into(), &1.into(), &1.into()));
    // A send may take 10 s; all of this takes two.
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
    assert_eq!(events(&lab, "attempts > 0"), ["evt-4000"]);
    let copies = copies(&lab);
    let sent: BTreeMap<String, Vec<String>> = first_copies(&copies)
        .into_iter()
        .map(|(key, events)| (key.to_owned(), events.into_iter().map(ToOwned::to_owned).collect()))
        .collect();
    let mut written: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (event, aggregate) in rows(&lab, "published = 1") {
        written.entry(aggregate).or_default().push(event);
    }
    assert_eq!(sent, written, "in order");
}

#[test]
fn a_type_that_no_topic_can_be_named_after_is_the_rows_own_fault() {
    let lab = Lab::new();
    lab.ok("write 3");
    by_hand(&lab, "UPDATE outbox SET aggregate_type = 'loan of/a book' WHERE id = 2");
    let ended = lab.run("--json relay --envelope debezium --max-attempts 1").exits(0);
    let rejected: Value = serde_json::from_str(ended.stdout.lines().next().unwrap()).unwrap();
    assert_eq!(rejected["event"], "evt-1002");
    assert_eq!(rejected["error"], "no topic can be named \"outbox.event.loan of/a book\"");
    assert_eq!(events(&lab, "published = 0"), ["evt-1002"]);
    assert!(lab.ok("dead list").contains("no topic can be named"));
}

#[test]
fn a_payload_that_is_no_text_goes_out_byte_for_byte_and_an_id_that_is_none_is_named() {
    let lab = Lab::new();
    lab.ok("write 3");
    by_hand(&lab, "UPDATE outbox SET payload = CAST(x'00ff80' AS TEXT) WHERE event_id = 'evt-1002'");
    assert_eq!(relay(&lab, "")["marked"], 3);
    let consumed = lab.command(["consume"]).output().unwrap().stdout;
    assert!(consumed.windows(4).any(|bytes| bytes == b",\0\xff\x80"), "{}", String::from_utf8_lossy(&consumed));

    lab.ok("write 1");
    by_hand(&lab, "UPDATE outbox SET aggregate_id = CAST(x'ff' AS TEXT) WHERE event_id = 'evt-1004'");
    lab.run("relay").exits(4).says("the outbox row 4 is not UTF-8 in its column aggregate_id").names_next_step();
    by_hand(&lab, "UPDATE outbox SET aggregate_id = 'L-1004' WHERE event_id = 'evt-1004'");
    assert_eq!(relay(&lab, "")["marked"], 1);
}
