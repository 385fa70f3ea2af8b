//! The relay beside others who are at the same database.

use std::os::unix::fs::symlink;

use nix::sys::signal::Signal;

use super::{all_marked, by_hand, copies, events, relay, start, told};
use crate::support::{Lab, on_each_broker, other_program, wait_for};

#[test]
fn rows_written_while_it_is_at_work_are_not_missed() {
    on_each_broker("rows_written_while_it_is_at_work_are_not_missed", |lab| {
        lab.ok("reset");
        let relay = start(lab, "--json relay --follow --batch 7");
        let write = ["write 50"; 4];
        for ended in lab.at_once(write) {
            ended.exits(0);
        }
        all_marked(lab);
        // One at a time, each to a relay that waits.
        for _ in 0..5 {
            lab.ok("write 1");
            all_marked(lab);
        }
        relay.signal(Signal::SIGTERM);
        assert_eq!(told(&relay.end().exits(0))["marked"], 205);
        assert_eq!(copies(lab).len(), 205);
    });
}

#[test]
fn a_row_that_somebody_deletes_or_marks_in_the_meantime_is_told_of_and_does_no_harm() {
    let lab = Lab::new();
    lab.ok("write 5");
    let held = lab.hold("--json relay --hold-at before-mark");
    by_hand(&lab, "DELETE FROM outbox WHERE id = 2; UPDATE outbox SET published = 1 WHERE id = 4");
    held.go_on();
    let ended = held.end().exits(0).says("2 rows were marked or deleted by somebody else in the meantime");
    assert_eq!((&told(&ended)["acknowledged"], &told(&ended)["marked"]), (&5.into(), &3.into()));
    assert_eq!(lab.counts(), [5, 4, 4, 0]);
    assert_eq!(copies(&lab).len(), 5);
}

#[test]
fn a_purge_beside_a_relay_takes_nothing_that_is_pending() {
    on_each_broker("a_purge_beside_a_relay_takes_nothing_that_is_pending", |lab| {
        lab.ok("reset");
        let relay = start(lab, "--json relay --follow --batch 10");
        for ended in lab.at_once(["write 100", "purge --older-than 0s", "write 100", "purge --older-than 0s"]) {
            ended.exits(0);
        }
        all_marked(lab);
        lab.ok("purge --older-than 0s");
        assert_eq!(lab.counts(), [200, 0, 0, 0]);
        let mut sent: Vec<_> = copies(lab).into_iter().map(|copy| copy.event).collect();
        sent.sort();
        sent.dedup();
        assert_eq!(sent.len(), 200);
        relay.signal(Signal::SIGTERM);
        relay.end().exits(0);
    });
}

#[test]
fn a_reset_refuses_while_a_relay_is_alive() {
    let lab = Lab::new();
    lab.ok("write 1");
    let relay = start(&lab, "relay --follow");
    all_marked(&lab);
    lab.run("reset").exits(4).says(&format!("pid {}", relay.pid())).names_next_step();
    assert_eq!(lab.counts(), [1, 1, 1, 0]);
    relay.signal(Signal::SIGINT);
    relay.end().exits(0);
    lab.ok("reset");
}

/// For longer than SQLite's own wait, with the lease due in the meantime.
#[test]
fn a_lock_of_another_program_is_waited_for() {
    let lab = Lab::new();
    lab.ok("write 3");
    let relay = start(&lab, "--json relay --follow --lease 1500ms -X message.timeout.ms=1000");
    all_marked(&lab);
    let other = other_program(&lab.path(".lab/outbox.db"));
    other.execute_batch("BEGIN IMMEDIATE; INSERT INTO outbox (event_id, aggregate_id, event_type, payload) VALUES ('evt-9', 'L-9', 't', '{}')").unwrap();
    // Said every 2 s: that is longer than the 5 s that a command waits.
    for _ in 0..3 {
        relay.until_says("waiting: another program has the database locked");
    }
    other.execute_batch("COMMIT").unwrap();
    all_marked(&lab);
    relay.signal(Signal::SIGTERM);
    assert_eq!(told(&relay.end().exits(0))["marked"], 4);
    assert_eq!(copies(&lab).len(), 4);
}

/// What came in while the mark waited is an acknowledgement, and not in doubt.
#[test]
fn what_is_acknowledged_while_a_mark_waits_is_not_sent_again() {
    let lab = Lab::new();
    lab.ok("write 40");
    let line = "--json relay --batch 10 --lease 30s -X message.timeout.ms=700 --hold-at before-mark";
    let held = lab.hold(line);
    let other = other_program(&lab.path(".lab/outbox.db"));
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    held.go_on();
    held.until_says("waiting: another program has the database locked");
    other.execute_batch("COMMIT").unwrap();
    let ended = held.end().exits(0);
    assert!(!ended.stderr.contains("in doubt"), "{ended:#?}");
    assert_eq!(copies(&lab).len(), 40);
}

#[test]
fn the_books_publish_and_a_relay_side_by_side_lose_nothing() {
    on_each_broker("the_books_publish_and_a_relay_side_by_side", |lab| {
        lab.ok("reset");
        lab.ok("write 40");
        for ended in lab.at_once(["publish 40", "relay --batch 3", "write 10"]) {
            ended.exits(0);
        }
        relay(lab, "");
        assert_eq!(events(lab, "published = 0"), [""; 0]);
        wait_for("nothing but what reconciles", || (lab.run("reconcile").code == Some(0)).then_some(()));
        assert!(lab.ok("reconcile").contains("distinct_event_ids=50"));
    });
}

#[test]
fn a_row_that_is_made_pending_again_is_sent_again() {
    let lab = Lab::new();
    lab.ok("write 2");
    let relay = start(&lab, "relay --follow");
    all_marked(&lab);
    by_hand(&lab, "UPDATE outbox SET published = 0 WHERE event_id = 'evt-1001'");
    wait_for("its second copy", || (copies(&lab).len() == 3).then_some(()));
    all_marked(&lab);
    relay.signal(Signal::SIGTERM);
    relay.end().exits(0);
}

#[test]
fn a_database_that_is_named_by_a_symbolic_link_is_the_same() {
    let lab = Lab::new();
    lab.ok("write 1");
    let relay = start(&lab, "relay --follow --owner x");
    all_marked(&lab);
    symlink(lab.path(".lab/outbox.db"), lab.path("link.db")).unwrap();
    lab.run("--dir other --db link.db reset").exits(4).says("another command is alive").names_next_step();
    lab.run("--db link.db relay --owner x").exits(4).says("a relay of the name x is at work");
    relay.signal(Signal::SIGTERM);
    relay.end().exits(0);
}

#[test]
fn events_that_went_to_two_topics_are_not_called_lost() {
    let lab = Lab::new();
    lab.ok("write 1");
    lab.ok("relay");
    lab.ok("write 1");
    lab.run("relay --envelope debezium").exits(0).says("the two topics will not reconcile");
    let found = lab.run("reconcile").exits(3).says("the records are gone from here in part").names_next_step();
    assert!(!found.stdout.contains("lost event"), "{found:?}");
}

#[test]
fn what_somebody_does_by_hand_neither_hides_a_row_nor_ends_the_watch() {
    let lab = Lab::new();
    lab.ok("write 2");
    // Dead is what was rejected; anything else would be sent and not be listed.
    assert!(other_program(&lab.path(".lab/outbox.db")).execute("UPDATE outbox SET dead = 1", ()).is_err());
    by_hand(&lab, "UPDATE outbox SET created_at = 'yesterday' WHERE event_id = 'evt-1001'");
    assert!(lab.ok("stats").contains("pending=2"));
    lab.ok("relay");
}

#[test]
fn no_relay_can_be_named_like_one_without_a_name() {
    let lab = Lab::new();
    lab.ok("write 1");
    let held = lab.hold("relay --hold-at after-fetch");
    let owner =
        lab.ok("stats").lines().find_map(|line| line.split("owner=").nth(1)?.split(' ').next().map(str::to_owned));
    lab.run(&format!("relay --owner {}", owner.unwrap())).exits(2);
    held.kill();
}
