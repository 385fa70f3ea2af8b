//! Labs, processes and kills that are not what they should be. None may be confirmed: what does otherwise than predicted is
//! refuted, and where a proof is missing nothing can be concluded.

use std::collections::BTreeSet;
use std::thread;

use serde_json::Value;

use crate::experiments::{NEEDS_FREEZING, NEEDS_KAFKA, can_freeze, listed, stands_still};
use crate::scripts::{Stage, dead_before_it_says};
use crate::support::{Lab, not_run, on_each_broker};

/// A relay that marks before it sends, where it was not told to.
const MARKS_FIRST: &str = r#"
case "$*" in
  *--mark-first*) ;;
  "publish "*) exec "$real" "$@" --mark-first ;;
esac
"#;

#[test]
fn a_relay_that_marks_first_is_refuted() {
    on_each_broker("a_relay_that_marks_first_is_refuted", |lab| {
        let stage = Stage::new(lab).with_lab(MARKS_FIRST);
        stage
            .play("run outbox-survives two-relays")
            .exits(1)
            // Relay 1 has marked its first row by then, so relay 2 passes it by.
            .prints("\nfound      business rows / outbox rows / records / event ids: 5/5/9/5 (predicted 5/5/10/5)\n")
            .prints("\nverdict    REFUTED, 4 disturbances proved\n")
            .ends_in("2 experiments: 1 confirmed, 1 refuted, 0 inconclusive, 0 skipped");
        stage.ends();
    });
}

/// `(experiment, a lab that does otherwise, what is then found)`: what the experiment is there to find.
type Otherwise = (&'static str, &'static str, &'static str);

const OTHERWISE: &[Otherwise] = &[
    (
        "commit-then-send",
        r#"case $1 in naive-hold) "$real" naive >/dev/null ;; esac"#,
        "orphan rows: L-2002 (predicted L-2001)",
    ),
    ("send-then-commit", r#"exec "$real" "${@/--send-first/--trace}""#, "phantom events: none (predicted evt-2001)"),
    ("send-timeout", MARKS_FIRST, "pending: none (predicted evt-1002)"),
    ("killed-in-doubt", MARKS_FIRST, "pending: none (predicted evt-1002)"),
    (
        "shared-transaction",
        r#"case "$*" in *--hold-at*) "$real" write 1 >/dev/null ;; esac"#,
        "loans: L-1001 (predicted none)",
    ),
    (
        "unique-event-id",
        r#"case $1 in rollback) "$real" naive >/dev/null; exec "$real" rollback ;; esac"#,
        "loans: L-1001, L-2001 (predicted L-1001)",
    ),
    (
        "delayed-write",
        r#"exec "$real" "${@/--delayed/--trace}""#,
        "loans of the delayed store: L-1001, L-1002, L-1003, L-1004, L-1005 (predicted none)",
    ),
    (
        "outbox-survives",
        r#"case $1 in write-hold) "$real" write 1 >/dev/null ;; esac"#,
        "pending: evt-1001, evt-1002, evt-1003, evt-1004, evt-1005, evt-1006 (predicted evt-1001, evt-1002, evt-1003,",
    ),
    (
        "confirm-then-mark",
        r#"case $1 in publish-hold) "$real" publish 2 >/dev/null ;; esac"#,
        "duplicates: evt-1003 x2, evt-1004 x2, evt-1005 x2 (predicted evt-1001 x2, evt-1002 x2, evt-1003 x2)",
    ),
    ("mark-then-send", r#"exec "$real" "${@/--mark-first/--trace}""#, "lost events: none (predicted evt-1002)"),
    (
        "idempotent-producer",
        // Begun anew where it was to be started again.
        r#"case "$1 $2" in "publish 10") "$real" reset >/dev/null; "$real" write 5 >/dev/null ;; esac"#,
        "duplicates across a restart: none (predicted evt-1001 x2, evt-1002 x2, evt-1003 x2)",
    ),
    (
        "naive-consumer",
        r#"case $1 in apply) exec "$real" "$@" --inbox ;; esac"#,
        "double effects: none (predicted evt-1003 x2)",
    ),
    ("naive-consumer", r#"exec "$real" "${@/--commit-first/--trace}""#, "lost effects: none (predicted evt-1003)"),
    (
        "idempotent-consumer",
        r#"exec "$real" "${@/--inbox/--trace}""#,
        "double effects: evt-1001 x2, evt-1002 x3, evt-1003 x2 (predicted none)",
    ),
    ("two-relays", MARKS_FIRST, "duplicates: evt-1002 x2, evt-1003 x2, evt-1004 x2, evt-1005 x2 (predicted "),
    (
        "two-relays",
        // Where it may go on to its end, a relay that knows of no leases.
        r#"case $* in relay) exec "$real" publish 5 ;; esac"#,
        "relay 2 leaves all five to relay 1: false (predicted true)",
    ),
    (
        "broker-outage",
        MARKS_FIRST,
        "age of the oldest pending row: shorter than the outage (predicted longer than the outage)",
    ),
    (
        "key-and-order",
        r#"exec "$real" "${@/#event/aggregate}""#,
        "returned before created, in at least one of the 24 orders: none (predicted L-1001, L-1002, L-1003)",
    ),
    (
        "table-growth",
        r#"case $* in "fill 5") sqlite3 "$OUTBOX_LAB_DB" "DROP INDEX outbox_pending" ;; esac"#,
        "steps with the index: more than 500 times as many (predicted the same)",
    ),
    (
        "poison-row",
        // A relay that lets nobody wait for a dead row.
        r#"case $* in *skip) ;; "relay --max-attempts 2"*) exec "$real" "$@" --on-poison skip ;; esac"#,
        "pending: none (predicted evt-1002-returned)",
    ),
    (
        "purge-under-kill",
        r#"case $1 in purge) sqlite3 "$OUTBOX_LAB_DB" "DELETE FROM outbox WHERE published + dead = 0" ;; esac"#,
        "pending: none (predicted evt-3502, evt-3503)",
    ),
    ("slow-broker", MARKS_FIRST, "pending, the broker back: none (predicted evt-1002)"),
    (
        "relay-crash",
        // What is pending is taken for published when the relay is started again.
        r#"case $* in *relay-1) sqlite3 "$OUTBOX_LAB_DB" "UPDATE outbox SET published = 1" ;; esac"#,
        "lost events: evt-1001, evt-1002, evt-1003, evt-1004 (after-claim), ",
    ),
    (
        "relay-crash",
        // A stranger that knows of no leases.
        r#"case $* in *relay-2) exec "$real" publish 4 ;; esac"#,
        "relay-2 leaves the four rows to the dead relay: false (predicted true)",
    ),
];

/// As [`OTHERWISE`], where a real Kafka has to show it.
const OTHERWISE_ON_KAFKA: &[Otherwise] = &[
    (
        "idempotent-producer",
        r#"exec "$real" "${@/enable.idempotence=true/enable.idempotence=false}""#,
        "duplicates within one session: evt-1002 x2 (predicted none)",
    ),
    (
        "kafka-transaction",
        // Dead before the broker's commit, where it says that it has come behind it.
        r#"case "$*" in
            *after-broker-commit*)
                exec "$real" "${@/after-broker-commit/before-broker-commit}" \
                    2> >(while read -r line; do echo "${line/before-broker-commit/after-broker-commit}"; done >&2)
                ;;
        esac"#,
        "duplicates, read committed: none (predicted evt-1004 x2, evt-1005 x2, evt-1006 x2)",
    ),
];

/// That a lab which does otherwise is seen.
#[track_caller]
fn is_refuted(lab: &Lab, (experiment, otherwise, found): Otherwise) {
    let stage = Stage::new(lab).with_lab(otherwise);
    if lab.kafka.is_some() && NEEDS_FREEZING.contains(&experiment) && !can_freeze(&stage) {
        return not_run(experiment, "this Kafka was not started by scripts/kafka.sh");
    }
    stage
        .play(&format!("run {experiment}"))
        .exits(1)
        .prints(&format!("\nfound      {found}"))
        .prints("\nverdict    REFUTED")
        .ends_in("1 experiments: 0 confirmed, 1 refuted");
    stage.ends();
}

#[test]
fn every_experiment_can_be_refuted() {
    // Most of the time they wait: for brokers that answer late, for leases to run out.
    thread::scope(|scope| {
        for some in OTHERWISE.chunks(OTHERWISE.len().div_ceil(4)) {
            scope.spawn(|| some.iter().for_each(|otherwise| is_refuted(&Lab::new(), *otherwise)));
        }
    });
}

#[test]
fn what_a_real_kafka_shows_can_be_refuted() {
    for otherwise in OTHERWISE_ON_KAFKA {
        let test = format!("what_a_real_kafka_shows_can_be_refuted: {}", otherwise.0);
        if let Some(lab) = Lab::alone_on_kafka(&test) {
            is_refuted(&lab, *otherwise);
        }
    }
}

#[test]
fn no_experiment_is_without_a_lab_that_does_otherwise() {
    let names = |table: &[Otherwise]| table.iter().map(|(name, ..)| (*name).to_owned()).collect::<BTreeSet<_>>();
    let (on_any, on_kafka) = (names(OTHERWISE), names(OTHERWISE_ON_KAFKA));
    let there_are: BTreeSet<_> = listed(&Lab::new()).into_iter().map(|(name, _)| name).collect();
    assert_eq!(&on_any | &on_kafka, there_are);
    let on_kafka_alone: Vec<_> = on_kafka.difference(&on_any).collect();
    assert_eq!(on_kafka_alone, NEEDS_KAFKA);
}

#[test]
fn a_process_that_ends_by_itself_is_inconclusive_with_its_last_lines() {
    let lab = Lab::new();
    let ends = r#"case $1 in naive-hold) echo one; echo two; echo "the last thing that it said" >&2; exit 0 ;; esac"#;
    let stage = Stage::new(&lab).with_lab(ends);
    stage
        .play("run commit-then-send")
        .exits(3)
        .prints("\nverdict    INCONCLUSIVE: outbox-lab naive-hold ended by itself, with exit status: 0, and came to no hold")
        .prints("\n  one\n  two\n  the last thing that it said\n")
        .ends_in("1 experiments: 0 confirmed, 0 refuted, 1 inconclusive, 0 skipped");
    assert_eq!(stage.receipts(), [Value::Null; 0]);
    stage.ends();
}

#[test]
fn a_process_that_neither_holds_nor_ends_in_time_is_inconclusive_with_its_last_lines_and_ended() {
    for (command, then, late) in [
        ("naive-hold", ":", "naive-hold came to no hold in time"),
        ("publish", ":", "publish 10 did not end in time"),
        // Nothing more will be heard of this one, and it lives on.
        ("publish", "exec >&-", "publish 10 did not end in time"),
    ] {
        let lab = Lab::new();
        let says = format!(
            r#"case $1 in {command}) echo one; echo two; echo "the last thing that it said" >&2; {then} ;; esac"#
        );
        let stage = Stage::new(&lab).with_lab(&format!("{says}\n{}", stands_still(&lab, command)));
        stage
            .play("run --patience 3 commit-then-send")
            .exits(3)
            .prints(&format!(
                "\nverdict    INCONCLUSIVE: outbox-lab {late}\n  one\n  two\n  the last thing that it said\n"
            ))
            .ends_in("1 experiments: 0 confirmed, 0 refuted, 1 inconclusive, 0 skipped");
        stage.ends();
    }
}

#[test]
fn a_sweep_has_no_more_patience_than_it_is_given() {
    let lab = Lab::new();
    let stage = Stage::new(&lab).with_lab(&stands_still(&lab, "write"));
    stage.play("sweep --patience 3 --rows 1").exits(3).says("outbox-lab write 1 did not end in time");
    stage.ends();
    for refused in ["run --patience 0", "sweep --patience 0", "run --patience 3601", "sweep --patience soon"] {
        lab.run(refused).exits(2).says("--patience <SECONDS>");
    }
}

#[test]
fn a_process_that_died_before_the_kill_or_of_another_signal_is_inconclusive() {
    for (death, status) in [
        ("exit 0", "exit status: 0"),
        ("exit 3", "exit status: 3"),
        // Not one that the run keeps to itself.
        ("kill -USR2 $$", "signal: 12"),
    ] {
        let lab = Lab::new();
        let says = r#"echo "outbox-lab: held at before-mark, pid $$" >&2
            echo "[publish-hold] sent=3, HOLD""#;
        let dies = dead_before_it_says(says, death);
        let dies = format!(r#"case $1 in publish-hold) "$real" publish 3 >/dev/null; {dies} ;; esac"#);
        let stage = Stage::new(&lab).with_lab(&dies);
        let ended = stage.play("run confirm-then-mark").exits(3);
        let ended = ended.prints("INCONCLUSIVE: outbox-lab publish-hold 3 did not die of the kill: ");
        assert!(!cfg!(target_os = "linux") || ended.stdout.contains(status), "{ended:#?}");
        assert_eq!(stage.receipts(), [Value::Null; 0], "no receipt for a kill that missed");
        stage.ends();
    }
}

#[test]
fn a_renamed_crash_point_is_inconclusive() {
    for (renames, status) in [
        // One that there is not; one of another command; one that is not reached.
        (r#"exec "$real" "${@/before-send/before-sending}""#, 2),
        (r#"exec "$real" "${@/before-send/after-effect}""#, 2),
        (r#"exec "$real" "${@/before-send@2/before-send@9}""#, 3),
    ] {
        let lab = Lab::new();
        let stage = Stage::new(&lab).with_lab(renames);
        stage
            .play("run mark-then-send")
            .exits(3)
            .prints("\nverdict    INCONCLUSIVE: ")
            .prints(&format!("ended by itself, with exit status: {status}, and came to no hold"));
        assert_eq!(stage.receipts(), [Value::Null; 0]);
        stage.ends();
    }
}

#[test]
fn a_disturbance_that_was_not_seen_is_inconclusive() {
    let lab = Lab::new();
    // Neither row is there, as predicted: but nothing was refused.
    let stage = Stage::new(&lab).with_lab("case $1 in rollback) exit 0 ;; esac");
    stage
        .play("run unique-event-id")
        .exits(3)
        .prints("\nfound      loans: L-1001\n")
        .prints("\nverdict    INCONCLUSIVE: 0 disturbances of 1 were proved\n");
}

#[test]
fn a_hold_at_another_point_is_inconclusive() {
    let lab = Lab::new();
    let stage = Stage::new(&lab).with_lab(r#"exec "$real" "${@/after-outbox-row/after-commit}""#);
    let ended = stage.play("run shared-transaction").exits(3);
    assert!(ended.stdout.contains("is held at after-commit, which nobody asked for"), "{ended:#?}");
    stage.ends();
}

#[test]
fn a_held_relay_that_does_not_tell_what_it_passed_is_inconclusive() {
    let lab = Lab::new();
    let stage = Stage::new(&lab).with_lab(r#"case "$*" in *--hold-at*) exec "$real" "${@/--trace/--once}" ;; esac"#);
    stage.play("run relay-crash").exits(3).prints(
        "\nverdict    INCONCLUSIVE: the relay that is held at before-send did not tell how often it had passed before-send",
    );
    stage.ends();
}
