//! What only a real Kafka can show.

use crate::support::{Lab, ROOT, not_run};

#[test]
fn kafkas_own_console_consumer_prints_the_books_eight_records() {
    let test = "kafkas_own_console_consumer_prints_the_books_eight_records";
    let Some(lab) = Lab::on_kafka(test) else { return };
    let (servers, topic) = lab.kafka.clone().unwrap();
    let script = |args: &[&str]| lab.program(format!("{ROOT}/scripts/kafka.sh"), args).output().unwrap();
    let status = String::from_utf8(script(&["status"]).stdout).unwrap();
    if !status.starts_with(&format!("kafka: up {servers} ")) {
        return not_run(test, "that Kafka is not the one of scripts/kafka.sh, which has the console consumer");
    }
    lab.ok("reset");
    lab.ok("write 5");
    lab.hold("publish-hold 3").kill();
    lab.ok("publish 10");
    let consumed = script(&["console-consumer", &topic]);
    let printed = String::from_utf8(consumed.stdout).unwrap();
    assert_eq!(printed.lines().count(), 8, "{printed}{}", String::from_utf8_lossy(&consumed.stderr));
    assert_eq!(printed, lab.ok("consume"));
}

#[test]
fn a_topic_that_the_lab_did_not_make_is_never_deleted() {
    let test = "a_topic_that_the_lab_did_not_make_is_never_deleted";
    let (Some(owner), Some(mut stranger)) = (Lab::on_kafka(test), Lab::on_kafka(test)) else { return };
    stranger.kafka = owner.kafka.clone();
    owner.ok("write 2");
    owner.ok("publish 2");
    stranger.ok("write 1");
    stranger.run("reset").exits(4).says("this lab directory did not make it: nothing was deleted").says("--topic");
    assert_eq!(stranger.counts(), [1, 1, 0, 1], "and the database is as it was");
    assert_eq!(stranger.ok("clean"), "", "it has nothing to give back");
    owner.ok("reconcile --expect 2/2/2/2");
    let topic = owner.kafka.as_ref().unwrap().1.clone();
    assert_eq!(owner.ok("clean"), format!("[clean] topic deleted {topic}\n"));
    owner.run("reconcile").exits(3).says("the records are gone from here");
}

#[test]
fn a_topic_made_anew_by_a_reset_holds_none_of_another_databases_records() {
    let Some(lab) = Lab::on_kafka("a_topic_made_anew_by_a_reset_holds_none_of_another_databases_records") else {
        return;
    };
    lab.ok("--db first.db write 1");
    lab.ok("--db first.db publish 1");
    lab.ok("--db first.db reconcile --expect 1/1/1/1");
    lab.ok("--db second.db reset");
    lab.run("--db first.db reconcile").exits(3).says("the records are gone from here");
    lab.ok("--db second.db write 1");
    let sent = lab.ok("--db second.db publish 1");
    assert!(sent.contains("offset=0"), "offsets start at 0: {sent}");
}

#[test]
fn records_on_another_kafka_are_gone_and_not_lost() {
    let Some(mut lab) = Lab::on_kafka("records_on_another_kafka_are_gone_and_not_lost") else { return };
    lab.ok("write 1");
    lab.ok("publish 1");
    let kafka = lab.kafka.take();
    lab.run("reconcile").exits(3).says("the records are gone from here").says("of the Kafka cluster");
    lab.kafka = kafka;
    lab.ok("reconcile --expect 1/1/1/1");
}
