//! The chapter's experiments, and the same with other numbers.

use crate::support::{Lab, on_each_broker};

#[test]
fn the_chapter_comes_to_5_5_8_5() {
    on_each_broker("the_chapter_comes_to_5_5_8_5", |lab| {
        assert_eq!(lab.ok("reset"), "[reset] schema ready db=.lab/outbox.db\n");

        let write = lab.hold("write-hold 5");
        assert_eq!(
            write.printed,
            [
                "[write] txn i=1 loan=L-1001 event=evt-1001 committed business=1 outbox=1",
                "[write] txn i=2 loan=L-1002 event=evt-1002 committed business=2 outbox=2",
                "[write] txn i=3 loan=L-1003 event=evt-1003 committed business=3 outbox=3",
                "[write] txn i=4 loan=L-1004 event=evt-1004 committed business=4 outbox=4",
                "[write] txn i=5 loan=L-1005 event=evt-1005 committed business=5 outbox=5",
                "[write] committed all, HOLD before publish; kill -9 me",
            ]
        );
        write.kill();
        assert_eq!(lab.ok("verify"), "[verify] business_loan=5 outbox=5 published=0 unpublished=5\n");

        assert_eq!(
            lab.ok("rollback"),
            "[rollback] outbox insert failed: 2067 UNIQUE constraint failed: outbox.event_id\n\
             [rollback] business_loan has L-3001 = false\n"
        );

        let publish = lab.hold("publish-hold 3");
        assert_eq!(
            publish.printed,
            [
                "[send] outboxId=1 key=evt-1001 partition=0 offset=0",
                "[send] outboxId=2 key=evt-1002 partition=0 offset=1",
                "[send] outboxId=3 key=evt-1003 partition=0 offset=2",
                "[publish-hold] sent=3, NOT marked published; HOLD before mark; kill -9 me",
            ]
        );
        publish.kill();
        assert_eq!(lab.ok("verify"), "[verify] business_loan=5 outbox=5 published=0 unpublished=5\n");

        assert_eq!(
            lab.ok("publish 10"),
            "[publish] outboxId=1 key=evt-1001 offset=3 marked=1\n\
             [publish] outboxId=2 key=evt-1002 offset=4 marked=2\n\
             [publish] outboxId=3 key=evt-1003 offset=5 marked=3\n\
             [publish] outboxId=4 key=evt-1004 offset=6 marked=4\n\
             [publish] outboxId=5 key=evt-1005 offset=7 marked=5\n\
             [publish] sent=5 marked=5 unpublished-left=0\n"
        );
        assert_eq!(lab.ok("verify"), "[verify] business_loan=5 outbox=5 published=5 unpublished=0\n");

        assert_eq!(
            lab.ok("consume"),
            r#"evt-1001,{"eventId":"evt-1001","loanId":"L-1001","bookId":"B-101"}
evt-1002,{"eventId":"evt-1002","loanId":"L-1002","bookId":"B-102"}
evt-1003,{"eventId":"evt-1003","loanId":"L-1003","bookId":"B-103"}
evt-1001,{"eventId":"evt-1001","loanId":"L-1001","bookId":"B-101"}
evt-1002,{"eventId":"evt-1002","loanId":"L-1002","bookId":"B-102"}
evt-1003,{"eventId":"evt-1003","loanId":"L-1003","bookId":"B-103"}
evt-1004,{"eventId":"evt-1004","loanId":"L-1004","bookId":"B-104"}
evt-1005,{"eventId":"evt-1005","loanId":"L-1005","bookId":"B-105"}
"#
        );
        assert_eq!(
            lab.ok("reconcile --expect 5/5/8/5"),
            "[reconcile] business_loan=5 outbox=5 published=5 records=8 distinct_event_ids=5\n\
             [reconcile] duplicate evt-1001 x2 partition=0 offsets=0,3\n\
             [reconcile] duplicate evt-1002 x2 partition=0 offsets=1,4\n\
             [reconcile] duplicate evt-1003 x2 partition=0 offsets=2,5\n\
             [reconcile] 8 records = 5 events + 3 redelivered\n\
             [reconcile] 5/5/8/5 as expected\n"
        );
        let refuted = lab.run("reconcile --expect 5/5/5/5").exits(1);
        assert!(refuted.stdout.ends_with("[reconcile] expected 5/5/5/5, found 5/5/8/5\n"), "{refuted:?}");
    });
}

#[test]
fn a_loan_committed_and_never_sent_is_an_orphan_row() {
    on_each_broker("a_loan_committed_and_never_sent_is_an_orphan_row", |lab| {
        let naive = lab.hold("naive-hold");
        assert_eq!(naive.printed, ["[naive] business row L-2001 committed; HOLD before send; kill -9 me"]);
        naive.kill();
        assert_eq!(lab.ok("verify"), "[verify] business_loan=1 outbox=0 published=0 unpublished=0\n");
        assert_eq!(
            lab.ok("reconcile --expect 1/0/0/0"),
            "[reconcile] business_loan=1 outbox=0 published=0 records=0 distinct_event_ids=0\n\
             [reconcile] orphan row L-2001: committed, and no event anywhere\n\
             [reconcile] 0 records = 0 events + 0 redelivered\n\
             [reconcile] 1/0/0/0 as expected\n"
        );
        assert_eq!(
            lab.ok("naive"),
            "[naive] business row L-2002 committed\n[naive] sent key=evt-2002 partition=0 offset=0\n"
        );
        let found = lab.ok("reconcile --expect 2/0/1/1");
        assert!(found.contains("orphan row L-2001") && !found.contains("L-2002"), "{found}");
        assert_eq!(
            lab.ok("consume"),
            "evt-2002,{\"eventId\":\"evt-2002\",\"loanId\":\"L-2002\",\"bookId\":\"B-1102\"}\n"
        );
    });
}

#[test]
fn naive_held_and_let_go_on_sends_after_all() {
    let lab = Lab::new();
    let naive = lab.hold("naive-hold");
    naive.go_on();
    let ended = naive.end().exits(0);
    assert_eq!(
        ended.stdout,
        "[naive] business row L-2001 committed; HOLD before send; kill -9 me\n\
         [naive] sent key=evt-2001 partition=0 offset=0\n"
    );
    lab.ok("reconcile --expect 1/0/1/1");
}

#[test]
fn seven_written_and_two_sent_twice_come_to_7_7_9_7() {
    on_each_broker("seven_written_and_two_sent_twice_come_to_7_7_9_7", |lab| {
        lab.ok("reset");
        lab.ok("write 7");
        lab.hold("publish-hold 2").kill();
        lab.ok("publish 10");
        lab.ok("reconcile --expect 7/7/9/7");
    });
}

#[test]
fn three_crashes_in_a_row_send_the_same_rows_four_times() {
    let lab = Lab::new();
    lab.ok("write 5");
    for _ in 0..3 {
        lab.hold("publish-hold 2").kill();
        assert_eq!(lab.counts(), [5, 5, 0, 5]);
    }
    lab.ok("publish 10");
    let found = lab.ok("reconcile --expect 5/5/11/5");
    assert!(found.contains("duplicate evt-1001 x4 partition=0 offsets=0,2,4,6\n"), "{found}");
    assert!(found.contains("[reconcile] 11 records = 5 events + 6 redelivered\n"), "{found}");
}

#[test]
fn what_is_written_after_a_publish_is_pending_and_sent_by_the_next() {
    let lab = Lab::new();
    lab.ok("write 2");
    lab.ok("publish 10");
    assert_eq!(lab.ok("write 1"), "[write] txn i=1 loan=L-1003 event=evt-1003 committed business=3 outbox=3\n");
    assert_eq!(lab.counts(), [3, 3, 2, 1]);
    assert_eq!(
        lab.ok("publish 10"),
        "[publish] outboxId=3 key=evt-1003 offset=2 marked=1\n[publish] sent=1 marked=1 unpublished-left=0\n"
    );
    lab.ok("reconcile --expect 3/3/3/3");
}

#[test]
fn publish_sends_no_more_than_it_was_told() {
    let lab = Lab::new();
    lab.ok("write 5");
    assert!(lab.ok("publish 2").ends_with("[publish] sent=2 marked=2 unpublished-left=3\n"));
    assert_eq!(lab.keys(), ["evt-1001", "evt-1002"]);
}

#[test]
fn publish_hold_let_go_on_marks_all_in_id_order() {
    let lab = Lab::new();
    lab.ok("write 5");
    let publish = lab.hold("publish-hold 3");
    assert_eq!(lab.counts(), [5, 5, 0, 5], "it marks none before it is let go on");
    publish.go_on();
    let ended = publish.end().exits(0);
    let after: Vec<_> = ended.stdout.lines().skip(4).collect();
    assert_eq!(
        after,
        [
            "[publish-hold] outboxId=1 key=evt-1001 marked=1",
            "[publish-hold] outboxId=2 key=evt-1002 marked=2",
            "[publish-hold] outboxId=3 key=evt-1003 marked=3",
            "[publish-hold] sent=3 marked=3 unpublished-left=2",
        ]
    );
    assert_eq!(lab.counts(), [5, 5, 3, 2]);
}

#[test]
fn json_says_the_same_as_the_text() {
    let lab = Lab::new();
    let lines = |command: &str| -> Vec<serde_json::Value> {
        lab.ok(&format!("--json {command}")).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    assert_eq!(lines("reset"), [serde_json::json!({"line": "schema-ready", "db": ".lab/outbox.db"})]);
    assert_eq!(
        lines("write 1"),
        [serde_json::json!({
            "line": "written", "i": 1, "loan": "L-1001", "event": "evt-1001", "business_loan": 1, "outbox": 1
        })]
    );
    let held = lab.hold("--json publish 1 --hold-at sent");
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(held.hold_line()).unwrap(),
        serde_json::json!({"line": "hold", "command": "publish", "point": "sent", "nth": 1})
    );
    held.go_on();
    held.end().exits(0);
    assert_eq!(
        lines("consume"),
        [serde_json::json!({
            "line": "record", "partition": 0, "offset": 0, "key": "evt-1001", "headers": [["id", "evt-1001"]],
            "payload": r#"{"eventId":"evt-1001","loanId":"L-1001","bookId":"B-101"}"#
        })]
    );
    let reconciled = lines("reconcile --expect 1/1/1/1");
    assert_eq!(reconciled[0]["records"], 1);
    assert_eq!(reconciled.last().unwrap()["met"], true);
}

#[test]
fn a_relay_that_marks_before_it_sends_loses_what_a_kill_hits() {
    on_each_broker("a_relay_that_marks_before_it_sends_loses_what_a_kill_hits", |lab| {
        lab.ok("reset");
        lab.ok("write 3");
        lab.hold("publish 10 --mark-first --hold-at before-send@2").kill();
        lab.ok("publish 10");
        assert_eq!(lab.counts(), [3, 3, 3, 0], "nothing in the database says so");
        let found = lab.run("reconcile --expect 3/3/3/3").exits(1).stdout;
        assert!(found.contains("lost event evt-1002: marked as published, and no record"), "{found}");
    });
}
