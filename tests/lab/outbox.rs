//! The outbox as an operator has it: watched, kept small, its dead rows decided on.

use nix::sys::signal::Signal;

use crate::bad_input::refused;
use crate::support::{Ended, Held, Lab, other_program};

/// Changes the lab's database by hand.
fn by_hand(lab: &Lab, sql: &str) {
    other_program(&lab.path(".lab/outbox.db")).execute_batch(sql).unwrap();
}

/// Makes rows as old as that: "40 seconds".
fn age(lab: &Lab, rows: &str, by: &str) {
    by_hand(
        lab,
        &format!("UPDATE outbox SET created_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-{by}') WHERE {rows}"),
    );
}

/// Gives rows up, as a relay does.
fn bury(lab: &Lab, rows: &str) {
    by_hand(lab, &format!("UPDATE outbox SET dead = 1, attempts = 3, last_error = 'too \"large\"' WHERE {rows}"));
}

/// One column of every outbox row, in id order, as text.
fn column(lab: &Lab, expression: &str) -> Vec<String> {
    let db = other_program(&lab.path(".lab/outbox.db"));
    let mut query = db.prepare(&format!("SELECT {expression} FROM outbox ORDER BY id")).unwrap();
    query.query_map((), |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
}

#[track_caller]
fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

/// The age that `stats` leads with, in seconds.
#[track_caller]
fn oldest(lab: &Lab) -> Option<f64> {
    json(&lab.ok("--json stats"))["oldest_pending_age_seconds"].as_f64()
}

#[test]
fn stats_lead_with_the_age_of_the_oldest_pending_row() {
    let lab = Lab::new();
    lab.ok("fill 4");
    by_hand(&lab, "UPDATE outbox SET published = 1 WHERE id = 1");
    age(&lab, "id = 2", "3 hours");
    age(&lab, "id = 3", "40 seconds");
    // A dead row waits for somebody's decision, and no relay is late with it.
    bury(&lab, "id = 2");
    let age = oldest(&lab).unwrap();
    assert!((40.0..100.0).contains(&age), "{age}");
    let told = lab.ok("stats");
    assert!(told.starts_with("[stats] oldest-pending=4") || told.starts_with("[stats] oldest-pending=5"), "{told}");
    assert!(told.ends_with("s pending=2 dead=1 published=1 attempts=3\n"), "{told}");

    by_hand(&lab, "UPDATE outbox SET published = 1");
    assert_eq!(lab.ok("stats"), "[stats] oldest-pending=none pending=0 dead=0 published=4 attempts=0\n");
    assert_eq!(
        lab.ok("--json stats"),
        "{\"line\":\"stats\",\"oldest_pending_age_seconds\":null,\"pending\":0,\"dead\":0,\"published\":4,\
         \"attempts\":0,\"leases\":[]}\n"
    );
}

#[test]
fn stats_tell_whose_leases_there_are_and_how_long_they_have_to_come() {
    let lab = Lab::new();
    lab.ok("fill 1");
    by_hand(
        &lab,
        "INSERT INTO relay_lease VALUES (0, 'b', 1, (unixepoch() + 600) * 1000), (1, 'b', 1, (unixepoch() + 600) * 1000),
                                        (2, 'a', 2, (unixepoch() - 600) * 1000), (3, 'gone', 3, 0)",
    );
    let told = lab.ok("stats");
    let leases: Vec<_> = told.lines().skip(1).collect();
    assert_eq!(leases.len(), 2, "a lease that was released is none: {told}");
    assert!(leases[0].starts_with("[stats] lease owner=a slots=1 left=-"), "{told}");
    assert!(leases[1].starts_with("[stats] lease owner=b slots=2 left=5"), "{told}");
    let leases = &json(&lab.ok("--json stats"))["leases"];
    assert_eq!((leases[1]["owner"].as_str(), leases[1]["slots"].as_u64()), (Some("b"), Some(2)));
    assert!((500_000..600_001).contains(&leases[1]["left_ms"].as_i64().unwrap()), "{leases}");
    let text = lab.ok("stats --prometheus");
    assert!(text.contains("\noutbox_lease_slots{owner=\"b\"} 2\n"), "{text}");
}

#[test]
fn max_age_is_an_alarm() {
    let lab = Lab::new();
    lab.ok("write 1");
    lab.ok("stats --max-age 7d");
    age(&lab, "true", "40 seconds");
    lab.run("stats --max-age 30s").exits(1).prints("[stats] oldest-pending=4").says("longer than 30s");
    lab.run("stats --max-age 500ms --prometheus").exits(1).prints("outbox_pending_rows 1");
    lab.ok("stats --max-age 1h");
    lab.ok("publish 1");
    lab.ok("stats --max-age 0s");
}

#[test]
fn a_duration_without_a_unit_says_how_to_write_it() {
    let lab = Lab::new();
    for text in ["30", "", "-1s", "soon", "7 dags", "99999999999999999999d"] {
        for option in ["stats --max-age=", "purge --older-than="] {
            let words: Vec<String> = format!("{option}{text}").splitn(2, ' ').map(str::to_owned).collect();
            Ended::of(text, lab.command(words).output().unwrap()).exits(2).says("as in 500ms, 30s, 15m or 7d");
        }
    }
    lab.run("purge").exits(2).says("--older-than <DURATION>");
    lab.run("stats --prometheus --watch").exits(2).says("cannot be used with");
    lab.run("stats --prometheus --json").exits(2).says("cannot be used with");
    assert!(!lab.path(".lab").exists());
}

#[test]
fn a_duration_that_nobody_can_mean_is_refused() {
    let lab = Lab::new();
    for line in ["stats --max-age 200000000y", "purge --older-than 1001y"] {
        lab.run(line).exits(2).says("1000 years are the most");
    }
    lab.ok("write 1");
    assert_eq!(lab.ok("purge --older-than 1000y"), "[purge] deleted=0\n");
}

#[test]
fn a_watch_sees_what_others_commit_and_keeps_no_reset_waiting() {
    let lab = Lab::new();
    lab.ok("reset");
    let line = "stats --watch";
    let mut watch = Held::start(line, lab.command(line.split(' ')));
    watch.until_prints("pending=0 dead=0 published=0");
    lab.ok("write 2");
    watch.until_prints("pending=2 dead=0 published=0");
    lab.ok("publish 1");
    watch.until_prints("pending=1 dead=0 published=1");
    lab.ok("reset");
    watch.until_prints("oldest-pending=none pending=0 dead=0 published=0");
    watch.signal(Signal::SIGINT);
    assert_eq!(watch.end().signal, Some(Signal::SIGINT as i32));
}

#[test]
fn a_watch_ends_when_the_age_is_above_its_bound() {
    let lab = Lab::new();
    lab.ok("write 1");
    let line = "--json stats --watch --max-age 1h";
    let mut watch = Held::start(line, lab.command(line.split(' ')));
    watch.until_prints("\"pending\":1");
    age(&lab, "true", "2 hours");
    watch.end().exits(1).says("longer than 1h");
}

#[test]
fn stats_answer_at_once_whoever_is_at_work() {
    let lab = Lab::new();
    lab.ok("write 2");
    let writer = lab.hold("write 1 --hold-at after-outbox-row");
    assert!(
        lab.ok("stats").ends_with("pending=2 dead=0 published=0 attempts=0\n"),
        "what is not committed is not there"
    );
    writer.kill();
    let relay = lab.hold("publish 2 --hold-at after-mark");
    assert!(lab.ok("stats").ends_with("pending=1 dead=0 published=1 attempts=0\n"));
    relay.kill();
}

#[test]
fn a_purge_deletes_published_rows_that_are_old_enough_and_nothing_else() {
    let lab = Lab::new();
    lab.ok("write 5");
    lab.ok("publish 3");
    age(&lab, "id <> 3", "8 days");
    bury(&lab, "id = 4");
    assert_eq!(lab.ok("purge --older-than 9d"), "[purge] deleted=0\n");
    // 3 is too young, 4 is dead, 5 is pending.
    assert_eq!(lab.ok("--json purge --older-than 7d"), "{\"line\":\"purged\",\"deleted\":2}\n");
    assert_eq!(column(&lab, "event_id"), ["evt-1003", "evt-1004", "evt-1005"]);
    assert_eq!(lab.ok("purge --older-than 0s"), "[purge] deleted=1\n");
    assert_eq!(column(&lab, "event_id || ' ' || dead"), ["evt-1004 1", "evt-1005 0"]);
    let found = lab.ok("reconcile --expect 5/2/3/3");
    assert!(!found.contains("orphan") && !found.contains("phantom") && !found.contains("lost"), "{found}");
}

#[test]
fn an_outbox_that_was_purged_empty_goes_on_where_it_was() {
    let lab = Lab::new();
    lab.ok("write 3");
    lab.ok("publish 3");
    lab.ok("purge --older-than 0s");
    assert_eq!(lab.counts(), [3, 0, 0, 0]);
    lab.ok("reconcile --expect 3/0/3/3");
    refused(&lab, "rollback", 4).says("there is no event id to collide with").says("write first");
    lab.run("publish 1").exits(0).says("nothing was pending");
    assert_eq!(lab.ok("write 1"), "[write] txn i=1 loan=L-1004 event=evt-1004 committed business=4 outbox=1\n");
    assert!(lab.ok("publish 1").contains("outboxId=4 "), "an outbox id is not used twice either");
    assert!(lab.ok("rollback").ends_with("[rollback] business_loan has L-3001 = false\n"));
    lab.ok("reconcile --expect 4/1/4/4");
}

#[test]
fn a_purge_killed_between_two_of_its_transactions_has_done_so_much() {
    let lab = Lab::new();
    lab.ok("fill 2500 --published");
    lab.ok("write 1");
    let mut purge = lab.hold("purge --older-than 0s --hold-at after-purge-chunk --hold-at after-purge-chunk@2");
    assert_eq!(purge.hold_line(), "[purge] HOLD at after-purge-chunk; kill -9 me");
    assert_eq!(lab.counts(), [2501, 1501, 1500, 1]);
    // It holds no lock: others get in between.
    lab.ok("write 1");
    assert_eq!(lab.ok("publish 1").lines().last(), Some("[publish] sent=1 marked=1 unpublished-left=1"));
    purge.go_on();
    purge.until_hold();
    assert_eq!(lab.counts(), [2502, 502, 501, 1]);
    purge.kill();
    assert_eq!(lab.counts(), [2502, 502, 501, 1]);
    assert_eq!(lab.ok("purge --older-than 0s"), "[purge] deleted=501\n");
    assert_eq!(column(&lab, "event_id"), ["evt-3502"], "the pending one");
}

#[test]
fn a_purge_beside_writers_and_relays_loses_nothing() {
    let lab = Lab::new();
    lab.ok("fill 1500 --published");
    lab.ok("write 20");
    let lines = ["write 60", "write 60", "publish 100", "purge --older-than 0s", "purge --older-than 0s", "stats"];
    for ended in lab.at_once(lines) {
        ended.exits(0);
    }
    lab.ok("publish 1000");
    lab.ok("purge --older-than 0s");
    assert_eq!(lab.counts(), [1640, 0, 0, 0]);
    let mut keys = lab.keys();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 140, "each row that was written is published, though its row is gone");
}

#[test]
fn dead_rows_are_listed_with_their_attempts_and_their_last_error() {
    let lab = Lab::new();
    lab.ok("write 3");
    assert_eq!(lab.run("dead list").exits(0).says("no row is dead").stdout, "");
    bury(&lab, "id <> 2");
    assert_eq!(
        lab.ok("dead list"),
        "[dead] outboxId=1 event=evt-1001 aggregate=L-1001 attempts=3 error=\"too \\\"large\\\"\"\n\
         [dead] outboxId=3 event=evt-1003 aggregate=L-1003 attempts=3 error=\"too \\\"large\\\"\"\n"
    );
    assert_eq!(
        lab.ok("--json dead list").lines().last(),
        Some(
            r#"{"line":"dead","outbox_id":3,"event_id":"evt-1003","aggregate_id":"L-1003","attempts":3,"last_error":"too \"large\""}"#
        )
    );
}

#[test]
fn a_dead_row_is_requeued_as_if_it_had_never_been_tried() {
    let lab = Lab::new();
    lab.ok("write 3");
    bury(&lab, "id <> 2");
    by_hand(&lab, "UPDATE outbox SET next_try_at = 99 WHERE id = 1");
    assert_eq!(lab.ok("dead requeue evt-1001 evt-1001"), "[dead] event=evt-1001 requeued\n");
    let row = "event_id || '/' || dead || '/' || attempts || '/' || next_try_at || '/' || coalesce(last_error, 'null')";
    assert_eq!(column(&lab, row), ["evt-1001/0/0/0/null", "evt-1002/0/0/0/null", "evt-1003/1/3/0/too \"large\""]);
    assert_eq!(lab.ok("--json dead requeue evt-1003"), "{\"line\":\"requeued\",\"event_id\":\"evt-1003\"}\n");
    assert_eq!(lab.run("dead list").exits(0).stdout, "");
    assert!(lab.ok("publish 5").ends_with("sent=3 marked=3 unpublished-left=0\n"));
}

#[test]
fn a_dropped_row_is_gone_and_reconcile_says_so() {
    let lab = Lab::new();
    lab.ok("write 3");
    bury(&lab, "id = 2");
    let dropped = lab.run("dead drop evt-1002").exits(0).says("nobody will ever send evt-1002");
    assert_eq!(dropped.stdout, "[dead] event=evt-1002 dropped\n");
    assert_eq!(column(&lab, "event_id"), ["evt-1001", "evt-1003"]);
    lab.ok("publish 5");
    let found = lab.ok("reconcile");
    assert!(found.contains("orphan row L-1002: committed, and no event anywhere"), "{found}");
}

#[test]
fn what_is_not_dead_is_not_decided_on_and_nothing_is_changed() {
    let lab = Lab::new();
    lab.ok("write 3");
    lab.ok("publish 1");
    bury(&lab, "id = 2");
    let before = column(&lab, "event_id || published || dead || attempts");
    for (ids, other) in [
        ("evt-1003", "evt-1003"),
        ("evt-1001", "evt-1001"),
        ("evt-1002 evt-9", "evt-9"),
        ("evt-1003 evt-1002", "evt-1003"),
    ] {
        for what in ["requeue", "drop"] {
            refused(&lab, &format!("dead {what} {ids}"), 4)
                .says(&format!("{other} is not the event of a dead row; nothing was changed"))
                .says("next: see which rows are dead: outbox-lab dead list");
            assert_eq!(column(&lab, "event_id || published || dead || attempts"), before);
        }
    }
    refused(&lab, "dead requeue", 2).says("<EVENT_ID>");
    refused(&lab, "dead", 2).says("list").says("requeue").says("drop");
}

#[test]
fn fill_makes_the_rows_that_write_would_have_made() {
    let (filled, written) = (Lab::new(), Lab::new());
    assert_eq!(filled.ok("fill 12"), "[fill] outbox=12 loans=12 events=evt-1001..evt-1012\n");
    written.ok("write 12");
    for column_of in ["event_id", "aggregate_id", "event_type", "payload", "published", "aggregate_type", "tombstone"] {
        assert_eq!(
            column(&filled, &format!("CAST({column_of} AS TEXT)")),
            column(&written, &format!("CAST({column_of} AS TEXT)"))
        );
    }
    let loans = |lab: &Lab| -> Vec<String> {
        let db = other_program(&lab.path(".lab/outbox.db"));
        let sql = "SELECT concat_ws('/', loan_id, book_id, member_id, status) FROM business_loan ORDER BY rowid";
        db.prepare(sql).unwrap().query_map((), |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
    };
    assert_eq!(loans(&filled), loans(&written));
    for lab in [&filled, &written] {
        assert!(lab.ok("write 1").contains("loan=L-1013 event=evt-1013"), "and goes on behind them");
    }
}

#[test]
fn fill_shares_its_events_out_among_so_many_loans() {
    let lab = Lab::new();
    lab.ok("write 1");
    assert_eq!(
        lab.ok("--json fill 5 --aggregates 2 --published"),
        "{\"line\":\"filled\",\"outbox\":5,\"loans\":2,\"first\":1002,\"last\":1006}\n"
    );
    assert_eq!(lab.counts(), [3, 6, 5, 1]);
    assert_eq!(
        column(&lab, "event_id || ' ' || aggregate_id")[1..],
        ["evt-1002 L-1002", "evt-1003 L-1003", "evt-1004 L-1002", "evt-1005 L-1003", "evt-1006 L-1002"]
    );
    assert_eq!(
        column(&lab, "payload").last().map(String::as_str),
        Some(r#"{"eventId":"evt-1006","loanId":"L-1002","bookId":"B-102"}"#)
    );
    assert!(lab.ok("write 1").contains("loan=L-1007 event=evt-1007"), "a number is a loan's and an event's");
    refused(&lab, "fill 2 --aggregates 3", 2).says("2 events cannot be of 3 aggregates").says("--aggregates 1 to 2");
    refused(&lab, "fill 0", 2).says("is not in 1..=10000000");
}

#[test]
fn what_is_measured_has_one_name_in_text_and_in_json() {
    let lab = Lab::new();
    lab.ok("fill 7");
    let text = lab.ok("measure marks");
    assert!(text.starts_with("[measure] marks times=7 seconds=0."), "{text}");
    let measured = json(&lab.ok("--json measure marks"));
    assert_eq!(
        (&measured["line"], &measured["what"], &measured["times"]),
        (&"measured".into(), &"marks".into(), &0.into())
    );
}

#[test]
fn fill_takes_a_span_that_nobody_has_used() {
    let lab = Lab::new();
    lab.ok("naive");
    assert_eq!(lab.ok("fill 1000"), "[fill] outbox=1000 loans=1000 events=evt-1001..evt-2000\n");
    assert_eq!(lab.ok("fill 1000"), "[fill] outbox=1000 loans=1000 events=evt-2002..evt-3001\n", "L-2001 is taken");
    by_hand(&lab, "INSERT INTO business_loan VALUES ('L-3500', 'B', 'M', 'BORROWED', '2026-01-01')");
    assert_eq!(lab.ok("fill 1000"), "[fill] outbox=1000 loans=1000 events=evt-3501..evt-4500\n");
    assert!(lab.ok("rollback").ends_with("[rollback] business_loan has L-4501 = false\n"), "L-3001 is taken");
    assert!(lab.ok("naive").starts_with("[naive] business row L-4501 committed\n"));
    for ended in lab.at_once(["fill 500", "fill 500", "write 50"]) {
        ended.exits(0);
    }
    assert_eq!(lab.counts()[..2], [4053, 4050]);
}
