//! The sweep: every cell of the matrix is what the golden says, and a sweep that cannot see is no sweep.

use std::fs;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::scripts::{Stage, dead_before_it_says};
use crate::support::{Ended, Held, Lab, ROOT, on_each_broker};

/// The rows of a sweep in JSON, and its last line.
fn swept(ended: &Ended) -> (Vec<Value>, Value) {
    let mut lines: Vec<Value> = ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let total = lines.pop().unwrap();
    (lines.into_iter().filter(|line| line["line"] == "swept").collect(), total)
}

#[test]
fn every_cell_of_the_matrix_is_what_the_golden_says() {
    let golden = fs::read_to_string(format!("{ROOT}/expected/matrix.txt")).unwrap();
    on_each_broker("every_cell_of_the_matrix_is_what_the_golden_says", |lab| {
        let found = lab.ok("sweep");
        for (cell, expected) in found.lines().zip(golden.lines()) {
            assert_eq!(cell, expected);
        }
        assert_eq!(found, golden);
    });
}

#[test]
fn every_kill_of_a_sweep_leaves_its_receipt() {
    let lab = Lab::new();
    let strategies = ["write-then-send", "send-then-write", "confirm-then-mark", "mark-then-send"];
    let asked: String = strategies.iter().map(|strategy| format!(" --strategy {strategy}")).collect();
    let (rows, total) = swept(&lab.run(&format!("--json sweep --rows 2{asked}")).exits(0));
    assert_eq!(total["verdict"], "confirmed");
    let kills: u64 = rows.iter().map(|row| row["kills"].as_u64().unwrap()).sum();
    assert_eq!(kills, 30, "two strategies of five points and one passage, two of five points and two passages");
    let receipts = fs::read_to_string(lab.path(".lab/receipts.jsonl")).unwrap();
    let receipts: Vec<Value> = receipts.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(receipts.len() as u64, kills);
    for receipt in &receipts {
        assert_eq!(receipt["signal"], 9, "{receipt}");
        assert_eq!(receipt["before"], receipt["after"], "a kill changes nothing that was committed: {receipt}");
        assert_eq!(receipt["run"], receipts[0]["run"], "{receipt}");
        let in_flight: &[&str] = match (receipt["point"].as_str().unwrap(), receipt["trial"].as_str().unwrap()) {
            ("sent", "write-then-send" | "send-then-write") => &["evt-2001"],
            ("sent", _) if receipt["nth"] == 1 => &["evt-1001"],
            ("sent", _) => &["evt-1002"],
            _ => &[],
        };
        assert_eq!(receipt["in_flight"], serde_json::json!(in_flight), "{receipt}");
    }
    assert_eq!(lab.ok("broker status"), "[broker] down\n", "the participant's own broker was not needed");
}

#[test]
fn a_sweep_that_does_not_find_the_losses_of_the_wrong_order_is_refuted() {
    let lab = Lab::new();
    // A lab in which the wrong order is secretly the right one.
    let rights = r#"
        words=()
        for word in "$@"; do
          [ "$word" = --mark-first ] || words+=("$word")
        done
        set -- "${words[@]}"
    "#;
    let stage = Stage::new(&lab).with_lab(rights);
    let ended = stage.play("sweep --rows 1 --strategy confirm-then-mark --strategy mark-then-send");
    ended.exits(1).ends_in("10 kills proved of 10 passages: REFUTED");
    stage.ends();
}

#[test]
fn a_wrong_order_that_does_another_harm_than_its_own_refutes_the_sweep() {
    let lab = Lab::new();
    // A lab in which who is to send first commits first: an orphan row in place of the phantom event.
    let exchanges = r#"
        words=()
        for word in "$@"; do
          [ "$word" = --send-first ] || words+=("$word")
        done
        set -- "${words[@]}"
    "#;
    let stage = Stage::new(&lab).with_lab(exchanges);
    let ended = stage.play("sweep --strategy send-then-write").exits(1);
    assert!(ended.stdout.contains("1 orphan row"), "{ended:?}");
    ended.ends_in("5 kills proved of 5 passages: REFUTED");
    stage.ends();
}

#[test]
fn a_store_that_answers_before_it_has_written_refutes_the_sweep() {
    let lab = Lab::new();
    let delays = r#"
        case "$1 $3" in
          "write --hold-at") set -- "$@" --delayed ;;
        esac
    "#;
    let stage = Stage::new(&lab).with_lab(delays);
    let ended = stage.play("sweep --rows 1 --strategy outbox-write --strategy mark-then-send").exits(1);
    assert!(ended.stdout.contains("1 lost commit"), "{ended:?}");
    stage.ends();
}

#[test]
fn a_sweep_without_a_wrong_order_is_inconclusive() {
    let lab = Lab::new();
    lab.run("sweep --rows 1 --strategy outbox-write").exits(3).says("a second");
}

#[test]
fn a_loss_in_the_right_order_refutes_the_sweep() {
    let lab = Lab::new();
    let wrongs = r#"
        case "$1 $2" in
          "publish "*) set -- "$@" --mark-first ;;
        esac
    "#;
    let stage = Stage::new(&lab).with_lab(wrongs);
    stage.play("sweep --rows 1 --strategy confirm-then-mark").exits(1).ends_in("5 kills proved of 5 passages: REFUTED");
    stage.ends();
}

#[test]
fn a_kill_that_misses_makes_a_sweep_inconclusive() {
    let lab = Lab::new();
    let says = r#"echo "outbox-lab: held at ${!#}, pid $$" >&2
        echo "[publish] HOLD at somewhere; kill -9 me""#;
    let dies = format!(r#"case "$*" in *--hold-at*) {} ;; esac"#, dead_before_it_says(says, "exit 0"));
    let stage = Stage::new(&lab).with_lab(&dies);
    let ended = stage.play("sweep --rows 1 --strategy outbox-write").exits(3);
    ended
        .says("did not die of the kill")
        .ends_in("0 kills proved of 3 passages: INCONCLUSIVE: 3 kills were not proved");
    stage.ends();
}

#[test]
fn a_signal_at_any_moment_of_its_beginning_leaves_no_process() {
    let lab = Lab::new();
    let stage = Stage::new(&lab);
    for delay in (0..80).step_by(4) {
        let sweep = Held::start("sweep", stage.lab_command("sweep"));
        // The moment is what is varied: none is waited for.
        thread::sleep(Duration::from_millis(delay));
        sweep.signal(Signal::SIGINT);
        let ended = sweep.end();
        // Before it listens it dies of the signal itself.
        assert!(matches!(ended.code, Some(130) | None), "after {delay} ms: {ended:#?}");
        stage.ends();
    }
}

#[test]
fn an_unknown_strategy_lists_the_known_ones() {
    let lab = Lab::new();
    let ended = lab.run("sweep --strategy luck").exits(2);
    for name in ["write-then-send", "send-then-write", "outbox-write", "confirm-then-mark", "mark-then-send"] {
        assert!(ended.stderr.contains(name), "{ended:?}");
    }
    lab.run("sweep --rows 0").exits(2);
    lab.run("sweep --rows 1001").exits(2);
}

#[test]
fn a_second_run_in_one_lab_directory_says_that_there_is_a_first() {
    let lab = Lab::new();
    // A first run that waits for ever in its calibration.
    let waits = r#"
        case "$*" in
          *--trace*) echo waits >"$here/waits"; sleep 600 & wait ;;
        esac
    "#;
    let stage = Stage::new(&lab).with_lab(waits);
    let first = Held::start("sweep", stage.lab_command("sweep"));
    crate::support::wait_for("the first run", || lab.path("waits").exists().then_some(()));
    lab.run("sweep").exits(4).says(&format!("another run is at play in the lab directory .lab: pid {}", first.pid()));
    lab.run("run unique-event-id").exits(4).says("another run is at play");
    first.signal(Signal::SIGINT);
    assert_eq!(first.end().code, Some(130));
    stage.ends();
}
