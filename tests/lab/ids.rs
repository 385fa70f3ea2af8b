//! No id that was committed or sent is ever used twice.

use std::collections::BTreeSet;

use rusqlite::Connection;
use tempfile::TempDir;

use crate::support::{Lab, on_each_broker, other_program};

/// A lab whose database lies in memory, where the system has a folder for that: thousands of commits need no disk.
struct InMemory {
    lab: Lab,
    folder: TempDir,
}

impl InMemory {
    fn new() -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        Self { lab: Lab::new(), folder }
    }

    #[track_caller]
    fn ok(&self, line: &str) -> String {
        self.lab.ok(&format!("--db {}/outbox.db {line}", self.folder.path().display()))
    }

    fn rows(&self) -> Connection {
        other_program(&self.folder.path().join("outbox.db"))
    }
}

/// The loans of the lines that `write` printed.
fn loans(written: &str) -> Vec<&str> {
    written.lines().map(|line| line.split_once("loan=").unwrap().1.split(' ').next().unwrap()).collect()
}

/// The outbox ids of the lines that `publish` printed.
fn outbox_ids(published: &str) -> Vec<u64> {
    published.lines().filter_map(|line| line.split_once("outboxId=")?.1.split(' ').next()?.parse().ok()).collect()
}

/// One column of one query, as text.
fn column(db: &Connection, sql: &str) -> Vec<String> {
    db.prepare(sql).unwrap().query_map((), |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
}

/// Asserts that no id stands twice, and returns how many there are.
#[track_caller]
fn all_different<T: Ord + std::fmt::Debug>(ids: &[T]) -> usize {
    let mut seen = BTreeSet::new();
    for id in ids {
        assert!(seen.insert(id), "{id:?} was used twice");
    }
    ids.len()
}

#[test]
fn each_family_goes_on_behind_what_another_has_used() {
    let lab = InMemory::new();
    assert_eq!(loans(&lab.ok("write 2500")).last(), Some(&"L-3500"));
    assert!(lab.ok("naive").starts_with("[naive] business row L-3501 committed\n"), "L-2001 is taken");
    assert!(lab.ok("rollback").ends_with("[rollback] business_loan has L-3502 = false\n"), "L-3001 is taken");
    assert_eq!(loans(&lab.ok("write 1")), ["L-3502"], "what was rolled back is free");
    assert!(lab.ok("naive").starts_with("[naive] business row L-3503 committed\n"));
    assert!(lab.ok("publish 3000").ends_with("[publish] sent=2501 marked=2501 unpublished-left=0\n"));

    let rows = lab.rows();
    assert_eq!(all_different(&column(&rows, "SELECT loan_id FROM business_loan")), 2503);
    assert_eq!(all_different(&column(&rows, "SELECT event_id FROM outbox")), 2501);
    let consumed = lab.ok("consume");
    let keys: Vec<_> = consumed.lines().map(|line| line.split_once(',').unwrap().0).collect();
    assert_eq!(all_different(&keys), 2503);
    lab.ok("reconcile --expect 2503/2501/2503/2503");
}

#[test]
fn numbers_are_counted_and_never_sorted_as_text() {
    let lab = InMemory::new();
    assert_eq!(loans(&lab.ok("write 8999")).last(), Some(&"L-9999"));
    assert_eq!(loans(&lab.ok("write 2")), ["L-10000", "L-10001"]);
    assert_eq!(loans(&lab.ok("write 1")), ["L-10002"], "as text it would come before L-9999");
    assert!(lab.ok("naive").starts_with("[naive] business row L-10003 committed\n"));
    assert!(lab.ok("rollback").ends_with("[rollback] business_loan has L-10004 = false\n"));
    assert_eq!(loans(&lab.ok("write 1")), ["L-10004"]);
    assert_eq!(all_different(&column(&lab.rows(), "SELECT loan_id FROM business_loan")), 9004);
}

#[test]
fn numbers_that_naive_has_used_are_skipped() {
    let lab = InMemory::new();
    for loan in ["L-2001", "L-2002", "L-2003"] {
        assert!(lab.ok("naive").starts_with(&format!("[naive] business row {loan} committed\n")));
    }
    // Whether their rows are there or not: a consumer has seen their events.
    lab.rows().execute_batch("DELETE FROM business_loan WHERE loan_id = 'L-2002'").unwrap();
    let written = lab.ok("write 1005");
    let written = loans(&written);
    assert_eq!(written[0], "L-1001");
    assert_eq!(written[998..], ["L-1999", "L-2000", "L-2004", "L-2005", "L-2006", "L-2007", "L-2008"]);
    assert!(lab.ok("naive").starts_with("[naive] business row L-2009 committed\n"));
    assert_eq!(all_different(&column(&lab.rows(), "SELECT loan_id FROM business_loan")), 1008);
}

#[test]
fn what_was_purged_is_not_used_again() {
    let lab = Lab::new();
    let purge = |sql: &str| other_program(&lab.path(".lab/outbox.db")).execute_batch(sql).unwrap();
    lab.ok("write 3");
    lab.ok("naive");
    assert_eq!(outbox_ids(&lab.ok("publish 10")), [1, 2, 3]);
    purge("DELETE FROM business_loan; DELETE FROM outbox");
    assert_eq!(lab.counts(), [0; 4]);
    assert_eq!(loans(&lab.ok("write 2")), ["L-1004", "L-1005"]);
    assert!(lab.ok("naive").starts_with("[naive] business row L-2002 committed\n"));
    assert_eq!(outbox_ids(&lab.ok("publish 1")), [4]);

    // The newest alone, sent or not.
    purge(
        "DELETE FROM business_loan WHERE loan_id >= 'L-1005'; DELETE FROM outbox WHERE event_id = 'evt-1005'; VACUUM",
    );
    assert_eq!(loans(&lab.ok("write 1")), ["L-1006"]);
    assert!(lab.ok("naive").starts_with("[naive] business row L-2003 committed\n"));
    assert_eq!(outbox_ids(&lab.ok("publish 10")), [6]);
    assert!(lab.ok("rollback").ends_with("L-3001 = false\n"));
    purge("DELETE FROM business_loan; DELETE FROM outbox; VACUUM");
    assert_eq!(loans(&lab.ok("write 1")), ["L-1007"]);
    assert_eq!(outbox_ids(&lab.ok("publish 10")), [7]);
    assert_eq!(all_different(&lab.keys()), 9);
}

#[test]
fn what_was_rolled_back_may_be_used_again() {
    let lab = Lab::new();
    for point in ["after-loan-row", "after-outbox-row"] {
        lab.hold(&format!("write 1 --hold-at {point}")).kill();
        assert_eq!(lab.counts(), [0; 4]);
    }
    assert_eq!(loans(&lab.ok("write 1")), ["L-1001"]);
    assert_eq!(outbox_ids(&lab.ok("publish 1")), [1]);
    lab.hold("write 3 --hold-at after-outbox-row@2").kill();
    assert_eq!(loans(&lab.ok("write 1")), ["L-1003"], "L-1002 was committed");
    assert_eq!(outbox_ids(&lab.ok("publish 10")), [2, 3]);
    lab.hold("naive --hold-at after-loan-row").kill();
    assert!(lab.ok("naive").starts_with("[naive] business row L-2001 committed\n"));
    for _ in 0..2 {
        assert!(lab.ok("rollback").ends_with("L-3001 = false\n"));
    }
    assert_eq!(all_different(&lab.keys()), 4);
}

#[test]
fn what_was_committed_is_used_although_its_process_died() {
    let lab = Lab::new();
    lab.hold("write 1 --hold-at after-commit").kill();
    assert_eq!(loans(&lab.ok("write 1")), ["L-1002"]);
    lab.hold("publish-hold 2").kill();
    for point in ["after-commit", "before-send", "after-ack"] {
        lab.hold(&format!("naive --hold-at {point}")).kill();
    }
    assert!(lab.ok("naive").starts_with("[naive] business row L-2004 committed\n"));
    assert_eq!(lab.keys(), ["evt-1001", "evt-1002", "evt-2003", "evt-2004"]);
}

#[test]
fn rows_inserted_by_hand_are_skipped() {
    let lab = Lab::new();
    lab.ok("reset");
    let insert = |sql: &str| other_program(&lab.path(".lab/outbox.db")).execute_batch(sql).unwrap();
    let loan = |number: u32| {
        insert(&format!(
            "INSERT INTO business_loan (loan_id, book_id, member_id, status) VALUES ('L-{number}', 'B-1', 'M-1', 'BORROWED')"
        ));
    };
    loan(1001);
    assert_eq!(loans(&lab.ok("write 2")), ["L-1002", "L-1003"]);
    // An event id is as good as a loan id: the two go together.
    insert("INSERT INTO outbox (event_id, aggregate_id, event_type, payload) VALUES ('evt-1004', 'L-9', 't', '{}')");
    assert_eq!(loans(&lab.ok("write 1")), ["L-1005"]);
    loan(2001);
    assert!(lab.ok("naive").starts_with("[naive] business row L-2002 committed\n"));
    loan(3001);
    assert!(lab.ok("rollback").ends_with("[rollback] business_loan has L-3002 = false\n"));
    // Skipped once, it stays used, whoever purges it.
    insert("DELETE FROM business_loan; DELETE FROM outbox");
    assert_eq!(loans(&lab.ok("write 1")), ["L-1006"]);
}

#[test]
fn sixteen_first_commands_at_once_share_one_database_and_no_number() {
    let lab = Lab::new();
    for round in 0..10 {
        let place = format!("--dir round/{round}/.lab --db round/{round}/data/outbox.db");
        let ended = lab.at_once(vec![format!("{place} write 3"); 16]);
        let written: Vec<_> = ended.into_iter().map(|ended| ended.exits(0).stdout).collect();
        let given_out: Vec<_> = written.iter().flat_map(|written| loans(written)).collect();
        assert_eq!(all_different(&given_out), 48);
        let rows = other_program(&lab.path(&format!("round/{round}/data/outbox.db")));
        assert_eq!(column(&rows, "SELECT loan_id FROM business_loan ORDER BY loan_id").len(), 48);
        let ids = column(&rows, "SELECT id || ' ' || event_id FROM outbox ORDER BY id");
        let counted: Vec<_> = (1..=48).map(|id| format!("{id} evt-{}", 1000 + id)).collect();
        assert_eq!(ids, counted);
    }
}

#[test]
fn first_senders_at_once_share_one_broker_and_one_topic() {
    let lab = Lab::new();
    for round in 0..5 {
        let place = format!("--dir round/{round}/.lab");
        let lines = [format!("{place} naive"), format!("{place} write 3")].into_iter().cycle().take(16);
        for ended in lab.at_once(lines) {
            ended.exits(0);
        }
        let consumed = lab.ok(&format!("{place} consume"));
        let keys: Vec<_> = consumed.lines().map(|line| line.split_once(',').unwrap().0).collect();
        assert_eq!(all_different(&keys), 8);
        lab.ok(&format!("{place} reconcile --expect 32/24/8/8"));
        lab.ok(&format!("{place} clean"));
    }
}

#[test]
fn first_commands_of_every_kind_at_once_succeed_or_say_why_not() {
    let lab = Lab::new();
    for round in 0..5 {
        let place = format!("--dir round/{round}/.lab");
        let commands = ["write 3", "naive", "verify", "reset"];
        let lines = commands.iter().cycle().take(16).map(|command| format!("{place} {command}"));
        for ended in lab.at_once(lines) {
            if ended.code == Some(0) {
                continue;
            }
            let ended = ended.exits(4).names_next_step();
            let reasons: &[&str] = match ended.line.rsplit(' ').next() {
                Some("verify") => &["there is no lab database at ", "a reset is at work"],
                Some("reset") => &["another command is alive"],
                _ => &["a reset is at work"],
            };
            assert!(reasons.iter().any(|reason| ended.stderr.contains(reason)), "{ended:#?}");
        }
        // Whatever came last, database and topic belong together.
        let found = lab.run(&format!("{place} reconcile"));
        match found.code {
            Some(0) => assert!(
                !["orphan", "phantom", "lost", "duplicate"].iter().any(|f| found.stdout.contains(f)),
                "{found:#?}"
            ),
            _ => drop(found.exits(3).says("there is nothing to compare")),
        }
        lab.ok(&format!("{place} reset"));
        assert_eq!(loans(&lab.ok(&format!("{place} write 1"))), ["L-1001"]);
        lab.ok(&format!("{place} clean"));
    }
}

#[test]
fn after_a_reset_everything_is_numbered_from_the_start() {
    on_each_broker("after_a_reset_everything_is_numbered_from_the_start", |lab| {
        lab.ok("reset");
        for _ in 0..2 {
            assert_eq!(loans(&lab.ok("write 2")), ["L-1001", "L-1002"]);
            assert!(lab.ok("naive").ends_with("[naive] sent key=evt-2001 partition=0 offset=0\n"));
            assert!(lab.ok("rollback").ends_with("L-3001 = false\n"));
            assert_eq!(outbox_ids(&lab.ok("publish 1")), [1]);
            assert_eq!(lab.keys(), ["evt-2001", "evt-1001"]);
            lab.ok("reset");
        }
    });
}
