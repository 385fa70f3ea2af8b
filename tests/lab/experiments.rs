//! The experiments, each of which has to come to its verdict, with its proofs, and to leave nothing behind.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::scripts::{Stage, tool_path, topics};
use crate::support::{Ended, Held, Lab, ROOT, not_run, on_each_broker_alone, wait_for};

/// What the embedded broker cannot show at all.
pub const NEEDS_KAFKA: &[&str] = &["kafka-transaction"];

/// What cannot be shown on a Kafka that the lab may not freeze.
pub const NEEDS_FREEZING: &[&str] =
    &["send-timeout", "killed-in-doubt", "broker-outage", "idempotent-producer", "slow-broker"];

/// What plays only in part on some brokers, so that its transcript is not the same on each.
const PLAYS_IN_PART: &[&str] = &["idempotent-producer"];

/// What kills nobody and disturbs nothing.
const ONLY_LOOK: &[&str] = &["table-growth"];

impl Stage<'_> {
    /// A lab command whose trials play with the lab under test.
    pub fn lab_command(&self, line: &str) -> Command {
        let mut command = self.lab.command(line.split_whitespace());
        let kafka = std::env::var_os("KAFKA_DIR").unwrap_or_else(|| OsString::from(format!("{ROOT}/.lab/kafka")));
        command.env("OUTBOX_LAB_BIN", &self.program).env("KAFKA_DIR", kafka);
        command
    }

    pub fn play(&self, line: &str) -> Ended {
        Held::start(line, self.lab_command(line)).end()
    }

    /// The receipts, a JSON value each.
    pub fn receipts(&self) -> Vec<Value> {
        let lines = fs::read_to_string(self.lab.path(".lab/receipts.jsonl")).unwrap_or_default();
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Waits until none of its processes is left: one that was killed may still be on its way out.
    #[track_caller]
    pub fn ends(&self) {
        wait_for("the end of every process", || self.processes().is_empty().then_some(()));
    }
}

/// Every experiment's name, with its question.
pub fn listed(lab: &Lab) -> Vec<(String, String)> {
    let list = lab.ok("list");
    let pair = |line: &str| line.split_once(' ').map(|(name, question)| (name.to_owned(), question.trim().to_owned()));
    list.lines().map(|line| pair(line).unwrap()).collect()
}

#[test]
fn every_experiment_is_confirmed_with_the_same_transcript_on_each_broker() {
    const TEST: &str = "every_experiment_is_confirmed_with_the_same_transcript_on_each_broker";
    let transcripts = RefCell::new(BTreeMap::<String, String>::new());
    on_each_broker_alone(TEST, |lab| {
        let stage = Stage::new(lab);
        for (name, question) in listed(lab) {
            let run = Held::start(&name, stage.lab_command(&format!("run {name}")));
            let run_id = format!("-{}", run.pid());
            let ended = run.end();
            if ended.stdout.contains("\nverdict    SKIPPED") {
                let may_be = if lab.kafka.is_some() { NEEDS_FREEZING } else { NEEDS_KAFKA };
                assert!(may_be.contains(&name.as_str()), "{ended:#?}");
                if lab.kafka.is_some() {
                    not_run(&format!("{TEST}: {name}"), "this Kafka was not started by scripts/kafka.sh");
                }
                // Nothing was played at all.
                ended.exits(3).ends_in("1 experiments: 0 confirmed, 0 refuted, 0 inconclusive, 1 skipped");
                continue;
            }
            let (of_verdict, of_total) = match ended.stdout.matches("\nSKIPPED ").count() {
                0 => ("", ""),
                1 => ("; 1 part SKIPPED", "; 1 part skipped"),
                _ => ("; 2 parts SKIPPED", "; 2 parts skipped"),
            };
            assert!(of_verdict.is_empty() || PLAYS_IN_PART.contains(&name.as_str()), "{ended:#?}");
            // One that only looks has nothing to prove.
            let proved = if ONLY_LOOK.contains(&name.as_str()) { "\nverdict    confirmed" } else { " proved" };
            let ended = ended
                .exits(0)
                .prints(&format!("# {name}\nquestion   {question}\npredicted  "))
                .prints("\nverdict    confirmed")
                .prints(&format!("{proved}{of_verdict}\nlesson     "))
                .prints(&format!("\n1 experiments: 1 confirmed, 0 refuted, 0 inconclusive, 0 skipped{of_total}\n"));
            if let Some((servers, _)) = &lab.kafka {
                let left: Vec<_> = topics(servers).into_iter().filter(|topic| topic.ends_with(&run_id)).collect();
                assert_eq!(left, [""; 0], "topics of {name}");
            }
            let first = transcripts.borrow_mut().entry(name.clone()).or_insert_with(|| ended.stdout.clone()).clone();
            if !PLAYS_IN_PART.contains(&name.as_str()) {
                assert_eq!(ended.stdout, first, "the transcript of {name} is not the same on each broker");
            }
        }
        stage.ends();
    });
}

#[test]
fn an_unknown_experiment_is_a_usage_error_that_lists_the_known_ones() {
    let lab = Lab::new();
    let names: Vec<_> = listed(&lab).into_iter().map(|(name, _)| name).collect();
    for line in ["run no-such", "explain no-such", "run commit-then-send no-such"] {
        let refused = lab.run(line).exits(2).says("there is no experiment \"no-such\"").says(&names.join(", "));
        assert_eq!(refused.names_next_step().stdout, "", "nothing is played");
    }
    assert!(!lab.path(".lab").exists(), "a usage error changes nothing");
}

#[test]
fn explain_tells_question_claim_steps_prediction_and_lesson() {
    let lab = Lab::new();
    for (name, question) in listed(&lab) {
        let told = lab.ok(&format!("explain {name}"));
        let mut lines = told.lines();
        assert_eq!(lines.next(), Some(format!("# {name}").as_str()));
        assert_eq!(lines.next(), Some(format!("question   {question}").as_str()));
        let rest: Vec<_> = lines.collect();
        let steps = rest.iter().filter(|line| line.starts_with("step ")).count();
        assert!(steps > 0, "{told}");
        let words = ["the book   ", "step 1     ", "predict    ", "lesson     "];
        for word in words {
            let tells = rest.iter().filter_map(|line| line.strip_prefix(word)).any(|text| !text.trim().is_empty());
            assert!(tells, "no \"{word}\" in {told}");
        }
        assert_eq!(rest.len(), steps + words.len() - 1, "{told}");
    }
}

#[test]
fn a_kill_leaves_its_receipt() {
    let lab = Lab::new();
    let stage = Stage::new(&lab).with_lab(r#"case $1 in publish-hold) echo $$ >"$here/pid" ;; esac"#);
    stage.play("run confirm-then-mark").exits(0).prints("\nverdict    confirmed, 1 kill proved\n");
    let receipts = stage.receipts();
    assert_eq!(receipts.len(), 1, "{receipts:#?}");
    let receipt = &receipts[0];
    let pid: u64 = fs::read_to_string(lab.path("pid")).unwrap().trim().parse().unwrap();
    assert_eq!(receipt["trial"], "confirm-then-mark");
    assert_eq!((&receipt["point"], &receipt["nth"]), (&"before-mark".into(), &1.into()));
    assert_eq!(receipt["pid"], pid);
    assert_eq!(receipt["signal"], 9);
    assert_eq!(receipt["in_flight"], Value::Array(Vec::new()));
    for when in ["before", "after"] {
        let left = ["business_loan", "outbox", "published", "unpublished", "records"].map(|name| &receipt[when][name]);
        assert_eq!(left, [5, 5, 0, 5, 3], "{when} the kill");
    }
    // Further receipts come behind those that are there, and bear another run.
    stage.play("run shared-transaction").exits(0).prints("2 kills proved");
    let receipts = stage.receipts();
    let points: Vec<_> = receipts.iter().map(|receipt| &receipt["point"]).collect();
    assert_eq!(points, ["before-mark", "after-loan-row", "after-outbox-row"]);
    assert_eq!(receipts[1]["run"], receipts[2]["run"]);
    assert_ne!(receipts[0]["run"], receipts[1]["run"]);
}

#[test]
fn a_verdict_is_told_in_json_with_what_it_rests_on() {
    let lab = Lab::new();
    let told = Stage::new(&lab).play("--json run shared-transaction").exits(0).stdout;
    let lines: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let judged: Vec<_> = lines.iter().filter(|line| line["line"] == "judged").collect();
    assert_eq!(judged.len(), 1, "{told}");
    assert_eq!((&judged[0]["experiment"], &judged[0]["verdict"]), (&"shared-transaction".into(), &"confirmed".into()));
    assert_eq!(judged[0]["proved"]["kills"], 2);
    assert_eq!(judged[0]["skipped"], Value::Array(Vec::new()));
    let checks = judged[0]["checks"].as_array().unwrap();
    assert!(checks.len() > 4 && checks.iter().all(|check| check["found"] == check["predicted"]), "{told}");
}

#[test]
fn a_part_that_was_skipped_is_told_in_json_by_name_and_reason() {
    let lab = Lab::new();
    let told = Stage::new(&lab).play("--json run idempotent-producer kafka-transaction").exits(0).stdout;
    let lines: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let judged: Vec<_> = lines.iter().filter(|line| line["line"] == "judged").collect();
    let (in_part, not_at_all) = (judged[0], judged[1]);
    let skipped = serde_json::json!([{
        "part": "the client's own retry, idempotent",
        "why": "the embedded broker does not deduplicate",
        "not_owed": { "kills": 0, "disturbances": 1 },
    }]);
    assert_eq!((&in_part["verdict"], &in_part["skipped"]), (&"confirmed".into(), &skipped));
    assert_eq!(in_part["proved"], serde_json::json!({ "kills": 1, "disturbances": 1 }));
    assert_eq!((&not_at_all["verdict"], &not_at_all["skipped"]), (&"skipped".into(), &Value::Array(Vec::new())));
    let totals = "2 experiments: 1 confirmed, 0 refuted, 0 inconclusive, 1 skipped; 1 part skipped";
    assert_eq!(lines.last().unwrap()["text"], totals);
}

#[test]
fn a_second_run_in_one_lab_directory_names_the_first() {
    let lab = Lab::new();
    let stage = Stage::new(&lab).with_lab(&stands_still(&lab, "naive-hold"));
    let first = Held::start("run", stage.lab_command("run commit-then-send"));
    wait_for("the first run to be at work", || lab.path("there").exists().then_some(()));
    let second = stage.play("run outbox-survives").exits(4).names_next_step();
    assert!(second.stderr.contains(&format!("another run is at play in the lab directory .lab: pid {}", first.pid())));
    assert_eq!(second.stdout, "");
    // In another directory it plays beside the first.
    stage.play("--dir other run outbox-survives").exits(0);
    first.signal(Signal::SIGINT);
    first.end().exits(130);
    stage.ends();
    stage.play("run outbox-survives").exits(0);
}

/// A lab whose command stands still for ever once it has made the file `there`, in a child of its own.
pub fn stands_still(lab: &Lab, command: &str) -> String {
    symlink(tool_path("sleep").unwrap(), lab.path("bin.sleep")).unwrap();
    // Below bin/, where the processes of a stage are known by.
    format!(
        r#"case $1 in
            {command})
                ln -s "$here/bin.sleep" "$here/bin/sleep"
                : >"$here/there"
                "$here/bin/sleep" 1000
                ;;
        esac"#
    )
}

/// A signal to the run alone, and not to what it has started.
#[test]
fn a_signal_in_the_middle_leaves_no_process_and_no_frozen_broker() {
    on_each_broker_alone("a_signal_in_the_middle_leaves_no_process_and_no_frozen_broker", |lab| {
        // In a command that the run waits for; at a hold whose HOLD line never comes; while the broker is frozen.
        let held_unheard = r#"case $1 in publish-hold) "$real" "$@" >/dev/null 2>"$here/there" ;; esac"#;
        for (middle, signal, code) in [
            ("command", Signal::SIGINT, 130),
            ("hold", Signal::SIGINT, 130),
            ("hold", Signal::SIGTERM, 143),
            ("hold", Signal::SIGHUP, 129),
            ("frozen", Signal::SIGINT, 130),
        ] {
            let mut own = Lab::new();
            own.kafka.clone_from(&lab.kafka);
            let mut stage = Stage::new(&own);
            match middle {
                "command" => stage = stage.with_lab(&stands_still(&own, "publish")),
                "hold" => stage = stage.with_lab(held_unheard),
                _ => {}
            }
            let experiment = if middle == "frozen" { "send-timeout" } else { "confirm-then-mark" };
            let mut run = Held::start(experiment, stage.lab_command(&format!("run {experiment}")));
            match middle {
                "command" => wait_for("the command", || own.path("there").exists().then_some(())),
                "hold" => wait_for("the hold", || {
                    fs::read_to_string(own.path("there")).ok().filter(|said| said.contains("held at")).map(|_| ())
                }),
                _ if own.kafka.is_some() && !can_freeze(&stage) => {
                    not_run("a frozen broker", "this Kafka was not started by scripts/kafka.sh");
                    run.end();
                    continue;
                }
                _ => run.until_prints("(the broker is frozen)"),
            }
            let run_id = format!("-{}", run.pid());
            run.signal(signal);
            let ended = run.end().exits(code);
            assert!(!ended.stdout.contains("verdict"), "{ended:#?}");
            stage.ends();
            if let Some((servers, _)) = &own.kafka {
                // A frozen one would not answer.
                let left: Vec<_> = topics(servers).into_iter().filter(|topic| topic.ends_with(&run_id)).collect();
                assert_eq!(left, [""; 0]);
            }
            // What was interrupted can be played again.
            fs::remove_file(own.path("bin/sleep")).unwrap_or_default();
            let mut again = own.command(["run", "confirm-then-mark"]);
            Ended::of("run confirm-then-mark", again.env_remove("OUTBOX_LAB_BIN").output().unwrap()).exits(0);
        }
    });
}

/// May the lab freeze this Kafka?
pub fn can_freeze(stage: &Stage) -> bool {
    let kafka = stage.lab_command("list");
    let dir = kafka.get_envs().find(|(name, _)| *name == "KAFKA_DIR").and_then(|(_, dir)| dir).unwrap();
    Path::new(dir).join("how").exists()
}

#[test]
fn a_skip_counts_neither_way() {
    let Some(lab) = Lab::on_kafka("a_skip_counts_neither_way") else { return };
    let stage = Stage::new(&lab);
    let play = |line: &str| {
        // As if the lab had not started it.
        let mut command = stage.lab_command(line);
        Ended::of(line, command.env("KAFKA_DIR", lab.path("nowhere")).output().unwrap())
    };
    let why = "\nverdict    SKIPPED: the broker has to be frozen, and the lab did not start this one\n";
    play("run send-timeout").exits(3).prints(why).ends_in("1 experiments: 0 confirmed");
    play("run send-timeout outbox-survives").exits(0).prints(why).ends_in("2 experiments: 1 confirmed, 0 refuted");
    play("run idempotent-producer")
        .exits(0)
        .prints("\nverdict    confirmed, 1 kill proved; 2 parts SKIPPED\n")
        .ends_in("1 experiments: 1 confirmed, 0 refuted, 0 inconclusive, 0 skipped; 2 parts skipped");
}

#[test]
fn a_folder_that_the_lab_did_not_make_is_not_emptied() {
    let lab = Lab::new();
    let notes = lab.path(".lab/trials/unique-event-id/notes.txt");
    fs::create_dir_all(notes.parent().unwrap()).unwrap();
    fs::write(&notes, "mine\n").unwrap();
    lab.run("run unique-event-id").exits(4).says("the lab did not make it: nothing was deleted").names_next_step();
    assert_eq!(fs::read_to_string(&notes).unwrap(), "mine\n");
    fs::remove_dir_all(notes.parent().unwrap()).unwrap();
    lab.ok("run unique-event-id");
    // What an earlier run left there is its own, and goes: all of it, or as little as a run leaves that is killed at its start.
    fs::write(&notes, "theirs\n").unwrap();
    lab.ok("run unique-event-id");
    assert!(!notes.exists());
    fs::remove_dir_all(notes.parent().unwrap()).unwrap();
    fs::create_dir(notes.parent().unwrap()).unwrap();
    lab.ok("run unique-event-id");
}
