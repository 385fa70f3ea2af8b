//! Faults in mid-work: brokers that stop, die or are others than one thought, locks, commands that meet.

use std::fs;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};

use crate::support::{Companion, Lab, bytes, freeze, is_alive, on_each_broker, other_program, wait_for};

#[test]
fn a_broker_stopped_in_mid_publish_leaves_the_row_pending_and_in_doubt() {
    let lab = Lab::new();
    lab.ok("write 3");
    let held = lab.hold("publish 3 --hold-at before-send@2 -X message.timeout.ms=1000");
    let broker = lab.broker_pid();
    freeze(broker);
    held.go_on();
    let ended = held.end();
    kill(broker, Signal::SIGCONT).unwrap();
    ended
        .exits(4)
        .says("evt-1002 is in doubt: sent, and not acknowledged")
        .says("Its row is pending: the next publish sends it")
        .names_next_step();
    assert_eq!(lab.counts(), [3, 3, 1, 2]);
    wait_for("the record in doubt", || (lab.keys().len() == 2).then_some(()));
    lab.ok("publish 10");
    // It had arrived all the same: the book's third row of the table.
    lab.ok("reconcile --expect 3/3/4/3");
}

#[test]
fn a_broker_killed_in_mid_publish_leaves_the_rows_pending() {
    let lab = Lab::new();
    lab.ok("write 3");
    let held = lab.hold("publish 3 --hold-at before-send@2 -X message.timeout.ms=1000");
    kill(lab.broker_pid(), Signal::SIGKILL).unwrap();
    held.go_on();
    held.end().exits(4).says("evt-1002 is in doubt").names_next_step();
    assert_eq!(lab.counts(), [3, 3, 1, 2]);
}

#[test]
fn records_that_went_with_a_killed_broker_are_gone_and_not_lost() {
    let lab = Lab::new();
    lab.ok("reset");
    lab.ok("write 3");
    lab.ok("publish 2");
    kill(lab.broker_pid(), Signal::SIGKILL).unwrap();
    for line in ["reconcile", "reconcile --expect 3/3/2/2", "consume"] {
        let ended = lab.run(line).exits(3).says("the records are gone from here").says("begin again with reset");
        assert!(!ended.stdout.contains("lost event"), "{ended:?}");
    }
    // The relay goes on with what is pending, and says what that means.
    lab.run("publish 10").exits(0).says("the two topics will not reconcile");
    lab.run("reconcile").exits(3).says("the records are gone from here");
    lab.ok("reset");
    lab.ok("write 1");
    lab.ok("publish 1");
    lab.ok("reconcile --expect 1/1/1/1");
}

#[test]
fn another_topic_or_another_broker_is_not_taken_for_the_one_that_was_sent_to() {
    let lab = Lab::new();
    lab.ok("write 1");
    lab.ok("publish 1");
    lab.run("--topic another reconcile").exits(3).says("the records are gone from here");
    lab.ok("--topic another --db other.db naive");
    lab.run("--topic another reconcile").exits(3).says("the records are gone from here");
    lab.ok("reconcile --expect 1/1/1/1");
    // A reset for one database takes the topic of the other away.
    lab.run("--db other.db reset").exits(0).says("the other topics of this lab directory went, too");
    lab.run("reconcile").exits(3).says("the records are gone from here");
}

#[test]
fn a_stale_record_of_a_broker_is_not_trusted() {
    let lab = Lab::new();
    lab.ok("write 1");
    lab.ok("broker start");
    let record = bytes(&lab.path(".lab/broker.json"));
    kill(lab.broker_pid(), Signal::SIGKILL).unwrap();
    // Its pid and its port belong to other programs now.
    let mut stale: serde_json::Value = serde_json::from_slice(&record).unwrap();
    let other = Companion(Command::new("sleep").arg("600").stdout(Stdio::null()).spawn().unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    stale["pid"] = other.0.id().into();
    stale["control"] = listener.local_addr().unwrap().port().into();
    stale["bootstrap"] = listener.local_addr().unwrap().to_string().into();
    fs::write(lab.path(".lab/broker.json"), stale.to_string()).unwrap();
    assert_eq!(lab.ok("broker status"), "[broker] down\n");
    assert_eq!(lab.ok("broker stop"), "[broker] down\n");
    lab.ok("publish 1");
    assert_ne!(lab.broker_pid().as_raw().unsigned_abs(), other.0.id());
    lab.ok("reconcile --expect 1/1/1/1");
    // Nor is half a record; a broker that finds itself no longer on record leaves, since nobody can find it.
    let broker = lab.broker_pid();
    fs::write(lab.path(".lab/broker.json"), &record[..record.len() / 2]).unwrap();
    assert_eq!(lab.ok("broker status"), "[broker] down\n");
    wait_for("the end of the broker", || (!is_alive(broker)).then_some(()));
}

#[test]
fn a_stopped_broker_is_named_with_what_to_type() {
    let lab = Lab::new();
    lab.ok("broker start");
    let broker = lab.broker_pid();
    freeze(broker);
    let ended = lab.run("broker status");
    kill(broker, Signal::SIGCONT).unwrap();
    ended.exits(4).says("does not answer").says(&format!("kill -CONT {broker}")).names_next_step();
    lab.ok("broker status");
}

#[test]
fn the_embedded_broker_starts_on_demand_and_outlives_a_killed_command() {
    let lab = Lab::new();
    assert_eq!(lab.ok("broker status"), "[broker] down\n");
    lab.ok("write 1");
    assert_eq!(lab.ok("broker status"), "[broker] down\n", "writing needs no broker");
    lab.hold("publish 1 --hold-at after-ack").kill();
    let up = lab.ok("broker status");
    assert!(up.starts_with("[broker] up 127.0.0.1:"), "{up}");
    assert_eq!(lab.keys(), ["evt-1001"]);
    let started = lab.run("broker start").exits(0).says("Java clients").says("scripts/kafka.sh");
    assert_eq!(started.stdout, up, "it is the same broker");
    let broker = lab.broker_pid();
    assert_eq!(lab.ok("broker stop"), "[broker] stopped\n");
    wait_for("the end of the broker", || (!is_alive(broker)).then_some(()));
    assert_eq!(lab.ok("broker status"), "[broker] down\n");
}

#[test]
fn the_embedded_broker_leaves_when_its_lab_directory_is_gone() {
    let lab = Lab::new();
    lab.ok("broker start");
    let broker = lab.broker_pid();
    fs::remove_dir_all(lab.path(".lab")).unwrap();
    wait_for("the end of the broker", || (!is_alive(broker)).then_some(()));
}

#[test]
fn the_embedded_broker_leaves_when_no_command_has_asked_for_long() {
    let lab = Lab::new();
    fs::create_dir(lab.path(".lab")).unwrap();
    let mut broker = Companion(lab.command(["broker", "serve", "--idle", "1"]).stdout(Stdio::null()).spawn().unwrap());
    wait_for("the broker", || (lab.ok("broker status") != "[broker] down\n").then_some(()));
    let status = wait_for("the end of the broker", || broker.0.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
    assert!(!lab.path(".lab/broker.json").exists());
}

#[test]
fn the_embedded_broker_keeps_no_file_of_the_command_that_started_it_open() {
    let lab = Lab::new();
    // Whoever reads the other end of descriptor 9 would wait for the broker's end, a day long.
    let script = format!("exec 9>&1; '{}' broker start", crate::support::BINARY);
    let shell = lab.program("sh", ["-c", &script]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(shell.wait_with_output()));
    ended.recv_timeout(Duration::from_secs(30)).expect("the pipe ends with the command").unwrap();
}

#[test]
fn a_mark_that_meets_a_lock_is_tried_again_and_the_record_is_not() {
    let lab = Lab::new();
    lab.ok("write 2");
    let held = lab.hold("publish 2 --hold-at after-ack");
    let other = other_program(&lab.path(".lab/outbox.db"));
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    held.go_on();
    held.until_says("the mark of evt-1001 waits");
    other.execute_batch("ROLLBACK").unwrap();
    held.end().exits(0);
    assert_eq!(lab.counts(), [2, 2, 2, 0]);
    lab.ok("reconcile --expect 2/2/2/2");
}

#[test]
fn reset_is_refused_while_another_command_is_alive() {
    on_each_broker("reset_is_refused_while_another_command_is_alive", |lab| {
        lab.ok("reset");
        let held = lab.hold("write-hold 2");
        let pid = held.pid();
        let refused = lab.run("reset").exits(4).says(&format!("pid {pid}")).names_next_step();
        assert_eq!(refused.stdout, "");
        assert_eq!(lab.counts(), [2, 2, 0, 2], "nothing was changed");
        held.kill();
        lab.ok("reset");
        assert_eq!(lab.counts(), [0; 4]);
    });
}

#[test]
fn a_command_that_meets_a_held_reset_names_it() {
    let lab = Lab::new();
    lab.ok("write 1");
    let held = lab.hold("reset --hold-at after-topic");
    lab.run("verify")
        .exits(4)
        .says(&format!("a reset is at work on this lab directory or database: pid {}", held.pid()));
    let waits = lab.command(["write", "1"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    held.go_on();
    held.end().exits(0);
    let written = crate::support::Ended::of("write 1", waits.wait_with_output().unwrap()).exits(0);
    assert!(written.stdout.contains("loan=L-1001"), "after the reset: {written:?}");
}

#[test]
fn two_relays_at_once_may_send_twice_and_lose_nothing() {
    let lab = Lab::new();
    lab.ok("write 5");
    let first = lab.hold("publish 10 --hold-at before-send");
    lab.ok("publish 10");
    first.go_on();
    first.end().exits(0);
    assert_eq!(lab.counts(), [5, 5, 5, 0]);
    lab.ok("reconcile --expect 5/5/10/5");

    lab.ok("write 200");
    let relays: Vec<_> = (0..2)
        .map(|_| lab.command(["publish", "200"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
        .collect();
    for relay in relays {
        crate::support::Ended::of("publish 200", relay.wait_with_output().unwrap()).exits(0);
    }
    assert_eq!(lab.counts(), [205, 205, 205, 0]);
    let found = lab.ok("reconcile");
    assert!(!found.contains("lost event"), "{found}");
}

#[test]
fn nothing_pending_is_no_error() {
    let lab = Lab::new();
    lab.ok("reset");
    let ended = lab.run("publish 10").exits(0).says("nothing was pending: write first");
    assert_eq!(ended.stdout, "[publish] sent=0 marked=0 unpublished-left=0\n");
}

#[test]
fn a_log_that_was_cut_at_its_beginning_proves_nothing() {
    let lab = Lab::new();
    lab.ok("reset");
    lab.ok("write 1");
    lab.ok("publish 1");
    // The embedded broker keeps 5 MiB of a partition and drops what is older.
    for _ in 0..15 {
        lab.send_foreign(Some("evt-0"), &"x".repeat(500_000));
    }
    lab.run("reconcile").exits(3).says("records are gone: partition 0 begins at offset").names_next_step();
    lab.run("consume").exits(3).says("records are gone");
}

#[test]
fn a_send_that_fails_says_what_becomes_of_the_event() {
    let lab = Lab::new();
    lab.ok("write 1");
    let held = lab.hold("publish 1 --mark-first --hold-at before-send -X message.timeout.ms=1000");
    kill(lab.broker_pid(), Signal::SIGKILL).unwrap();
    held.go_on();
    held.end().exits(4).says("evt-1001 is in doubt").says("nothing will send it again");
    let held = lab.hold("naive --hold-at before-send -X message.timeout.ms=1000");
    kill(lab.broker_pid(), Signal::SIGKILL).unwrap();
    held.go_on();
    held.end().exits(4).says("evt-2001 is in doubt").says("there is no outbox row: nothing will send it again");
}

#[test]
fn an_acknowledgement_cannot_be_waived() {
    let lab = Lab::new();
    lab.ok("write 1");
    for property in ["acks=0", "request.required.acks=0", "auto.offset.reset=latest", "message.timeout.ms=60000"] {
        lab.run(&format!("publish 1 -X {property}")).exits(2);
    }
    assert_eq!(lab.counts(), [1, 1, 0, 1]);
}

#[test]
fn clean_is_refused_while_another_command_is_alive() {
    let lab = Lab::new();
    lab.ok("write 1");
    let held = lab.hold("publish 1 --hold-at before-send");
    lab.run("clean").exits(4).says(&format!("pid {}", held.pid()));
    held.go_on();
    held.end().exits(0);
    lab.ok("reconcile --expect 1/1/1/1");
}

/// Dies at random points of its first steps: what a kill in the making of a database leaves is mended by the next command.
#[test]
fn a_kill_while_the_database_is_made_leaves_nothing_that_stands_in_the_way() {
    let lab = Lab::new();
    for nth in 0..40 {
        let db = format!("{nth}.db");
        let mut child =
            lab.command(["--db", &db, "write", "1"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // Not a synchronisation: the point of death is to vary.
        std::thread::sleep(Duration::from_micros(nth * 150));
        child.kill().unwrap();
        child.wait().unwrap();
        lab.ok(&format!("--db {db} write 1"));
        lab.ok(&format!("--db {db} verify"));
    }
}

#[test]
fn a_database_that_is_removed_under_a_command_takes_no_more_writes() {
    let lab = Lab::new();
    lab.ok("write 2");
    let write = lab.hold("write 2 --hold-at after-commit");
    let publish = lab.hold("publish 2 --hold-at after-ack");
    fs::remove_file(lab.path(".lab/outbox.db")).unwrap();
    for held in [write, publish] {
        held.go_on();
        let ended = held.end().exits(4).says("was removed or replaced while this command was at work");
        assert_eq!(ended.stdout.lines().filter(|line| line.contains("marked=")).count(), 0);
    }
}

#[test]
fn a_row_that_is_gone_is_not_said_to_be_marked() {
    let lab = Lab::new();
    lab.ok("write 2");
    let publish = lab.hold("publish 2 --hold-at after-ack");
    other_program(&lab.path(".lab/outbox.db")).execute_batch("DELETE FROM outbox").unwrap();
    publish.go_on();
    let ended = publish.end().says("the row of evt-1001 is gone");
    assert!(
        ended.stdout.contains("[publish] sent=2 marked=0 unpublished-left=0")
            || ended.stdout.contains("sent=2 marked=0")
    );
}

#[test]
fn a_broker_that_left_before_anything_was_sent_took_nothing_along() {
    let lab = Lab::new();
    lab.ok("reset");
    lab.ok("broker stop");
    lab.ok("write 2");
    lab.ok("reconcile --expect 2/2/0/0");
    lab.ok("publish 5");
    lab.ok("reconcile --expect 2/2/2/2");
}

#[test]
fn reset_is_refused_while_a_command_of_another_lab_directory_is_at_the_same_database() {
    let lab = Lab::new();
    lab.ok("--db shared.db write 1");
    let held = lab.hold("--dir other --db shared.db publish 1 --hold-at after-ack");
    lab.run("--db shared.db reset").exits(4).says(&format!("pid {}", held.pid()));
    held.go_on();
    held.end().exits(0);
    lab.ok("--dir other --db shared.db reconcile --expect 1/1/1/1");
    lab.ok("--dir other clean");
}

#[test]
fn a_signal_that_comes_before_the_hold_does_not_void_it() {
    let lab = Lab::new();
    let mut held = lab.hold("write 2 --hold-at after-commit@1 --hold-at after-commit@2");
    // Two at once: the second must not let the second hold go on, too.
    freeze(held.pid());
    held.go_on();
    held.go_on();
    held.signal(Signal::SIGCONT);
    held.until_hold();
    held.kill();
    assert_eq!(lab.counts(), [2, 2, 0, 2]);
}
