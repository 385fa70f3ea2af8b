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

#[test]
fn a_topic_that_somebody_else_made_anew_is_another_one() {
    let test = "a_topic_that_somebody_else_made_anew_is_another_one";
    let (Some(first), Some(mut second)) = (Lab::on_kafka(test), Lab::on_kafka(test)) else { return };
    second.kafka = first.kafka.clone();
    first.ok("write 1");
    first.ok("publish 1");
    // As if it had been deleted by hand: this lab directory still has its topic on record.
    let record = first.path(".lab/topics");
    let aside = first.path("topics");
    std::fs::rename(&record, &aside).unwrap();
    std::fs::create_dir(&record).unwrap();
    copy(&aside, &record);
    first.ok("clean");
    std::fs::remove_dir_all(&record).unwrap();
    std::fs::rename(&aside, &record).unwrap();
    second.ok("naive");
    first.run("reconcile").exits(3).says("the records are gone from here");
    first.run("reset").exits(4).says("nothing was deleted");
    assert_eq!(first.ok("clean"), "", "nor does it give back what is not its own");
    second.ok("reconcile --expect 1/0/1/1");
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    let copied = std::process::Command::new("cp").arg("-R").arg(from.join(".")).arg(to).status().unwrap();
    assert!(copied.success());
}

#[test]
fn an_open_transaction_of_another_program_is_not_read_past() {
    use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
    let Some(lab) = Lab::on_kafka("an_open_transaction_of_another_program_is_not_read_past") else { return };
    let (servers, topic) = lab.kafka.clone().unwrap();
    lab.ok("write 3");
    lab.ok("publish 1");
    let other: BaseProducer = rdkafka::ClientConfig::new()
        .set("bootstrap.servers", &servers)
        .set("transactional.id", format!("other.{topic}"))
        .create()
        .unwrap();
    other.init_transactions(crate::support::DEADLINE).unwrap();
    other.begin_transaction().unwrap();
    other.send(BaseRecord::to(&topic).key("evt-0").payload("{}")).unwrap();
    other.flush(crate::support::DEADLINE).unwrap();
    lab.ok("publish 2");
    for line in ["reconcile", "consume"] {
        lab.run(line).exits(3).says("the reading ended short").says("a Kafka transaction that is still open");
    }
    other.abort_transaction(crate::support::DEADLINE).unwrap();
    // What was aborted is no record, and its offsets are no count.
    lab.ok("reconcile --expect 3/3/3/3");
}

#[test]
fn first_commands_at_once_agree_on_the_topic() {
    let Some(lab) = Lab::on_kafka("first_commands_at_once_agree_on_the_topic") else { return };
    let commands: Vec<_> = (0..6)
        .map(|_| {
            lab.command(["naive"])
                .stdout(std::process::Stdio::piped())
                .stderr(std::process::Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for command in commands {
        crate::support::Ended::of("naive", command.wait_with_output().unwrap()).exits(0);
    }
    lab.ok("reconcile --expect 6/0/6/6");
}

#[test]
fn a_reset_killed_anywhere_is_mended_by_the_next_and_its_topic_given_back() {
    let Some(lab) = Lab::on_kafka("a_reset_killed_anywhere_is_mended_by_the_next_and_its_topic_given_back") else {
        return;
    };
    for nth in 0..12_u64 {
        let mut child = lab
            .command(["reset"])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // Not a synchronisation: the point of death is to vary.
        std::thread::sleep(std::time::Duration::from_millis(nth * 4));
        child.kill().unwrap();
        child.wait().unwrap();
        lab.ok("reset");
        if nth % 3 == 0 {
            lab.ok("clean");
        }
    }
    lab.ok("write 1");
    lab.ok("publish 1");
    lab.ok("reconcile --expect 1/1/1/1");
}
