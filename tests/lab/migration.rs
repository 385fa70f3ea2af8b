//! A database of an earlier version is brought to this one by whatever command opens it first, and loses nothing; one of
//! a later version is left alone.

use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, ErrorCode};

use crate::bad_input::refused;
use crate::support::{Held, Lab, bytes, freeze, other_program, wait_for};

/// Version 1 to the letter: the book's columns alone.
const VERSION_1: &str = "
CREATE TABLE business_loan (
  loan_id    TEXT NOT NULL PRIMARY KEY,
  book_id    TEXT NOT NULL,
  member_id  TEXT NOT NULL,
  status     TEXT NOT NULL,
  created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
) STRICT;
CREATE TABLE outbox (
  id           INTEGER PRIMARY KEY AUTOINCREMENT,
  event_id     TEXT    NOT NULL UNIQUE,
  aggregate_id TEXT    NOT NULL,
  event_type   TEXT    NOT NULL,
  payload      TEXT    NOT NULL,
  created_at   TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
  published    INTEGER NOT NULL DEFAULT 0 CHECK (published IN (0, 1))
) STRICT;
CREATE INDEX outbox_pending ON outbox (id) WHERE published = 0;
CREATE TABLE effect (
  id         INTEGER PRIMARY KEY AUTOINCREMENT,
  event_id   TEXT NOT NULL,
  applied_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
) STRICT;
CREATE TABLE inbox (
  event_id TEXT NOT NULL PRIMARY KEY
) STRICT;
CREATE TABLE loan_number (
  family TEXT    NOT NULL PRIMARY KEY,
  first  INTEGER NOT NULL,
  last   INTEGER NOT NULL
) STRICT;
CREATE TABLE lab_note (
  name  TEXT NOT NULL PRIMARY KEY,
  value TEXT NOT NULL
) STRICT;
PRAGMA application_id = 0x4F424C42;
PRAGMA user_version = 1;
PRAGMA journal_mode = WAL;
";

/// Rows published and pending, as `write 6` and `publish 3` left them; the last, evt-1006, was deleted since.
const ROWS: &str = "
INSERT INTO business_loan (loan_id, book_id, member_id, status)
  SELECT 'L-' || value, 'B-' || (value - 900), 'M-' || (value - 900), 'BORROWED'
  FROM json_each('[1001, 1002, 1003, 1004, 1005, 1006]');
INSERT INTO outbox (event_id, aggregate_id, event_type, payload, created_at)
  SELECT 'evt-' || value, 'L-' || value, 'library.loan.created', '{\"loanId\":\"L-' || value || '\"}',
         '2026-01-01T00:00:00.000Z'
  FROM json_each('[1001, 1002, 1003, 1004, 1005, 1006]');
UPDATE outbox SET published = 1 WHERE id <= 3;
DELETE FROM outbox WHERE id = 6;
INSERT INTO loan_number VALUES ('outbox', 1001, 1006);
INSERT INTO effect (event_id) VALUES ('evt-1001');
INSERT INTO inbox VALUES ('evt-1001');
";

/// What a database of version 1 holds, and one of version 2 must hold still.
const EVERYTHING: &str = "
SELECT concat_ws('/', loan_id, book_id, member_id, status, created_at) FROM business_loan
UNION ALL SELECT concat_ws('/', id, event_id, aggregate_id, event_type, payload, created_at, published) FROM outbox
UNION ALL SELECT concat_ws('/', id, event_id, applied_at) FROM effect
UNION ALL SELECT event_id FROM inbox
UNION ALL SELECT concat_ws('/', family, first, last) FROM loan_number
UNION ALL SELECT concat_ws('/', name, seq) FROM sqlite_sequence";

/// How an old database was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// As a command leaves it that ends: everything is in the file.
    Closed,
    /// As a killed command leaves it: the rows are in the -wal, and the file knows nothing of them.
    Killed,
}

use Left::{Closed, Killed};

/// A database of version 1, in a lab of its own.
struct Old {
    lab: Lab,
    db: PathBuf,
    everything: Vec<String>,
}

impl Old {
    fn left(how: Left) -> Self {
        Self::changed(how, "")
    }

    /// With a change made last.
    fn changed(how: Left, change: &str) -> Self {
        let lab = Lab::new();
        let (made, db) = (lab.path("made.db"), lab.path("old.db"));
        let connection = other_program(&made);
        connection.execute_batch(VERSION_1).unwrap();
        connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE); PRAGMA wal_autocheckpoint = 0").unwrap();
        connection.execute_batch(ROWS).unwrap();
        let everything = texts(&connection, EVERYTHING);
        connection.execute_batch(change).unwrap();
        if how == Killed {
            fs::copy(beside(&made, "-wal"), beside(&db, "-wal")).unwrap();
            fs::copy(&made, &db).unwrap();
            assert!(!bytes(&db).windows(8).any(|found| found == b"evt-1001"), "the rows are in the -wal alone");
            return Self { lab, db, everything };
        }
        drop(connection);
        fs::rename(&made, &db).unwrap();
        Self { lab, db, everything }
    }

    #[track_caller]
    fn ok(&self, line: &str) -> String {
        self.lab.ok(&format!("--db old.db {line}"))
    }

    /// Asserts that it is of version 2 now, in every column and index, and that nothing was lost.
    #[track_caller]
    fn is_version_2_and_whole(&self) {
        let fresh = Lab::new();
        fresh.ok("fill 1");
        let (fresh, migrated) = (other_program(&fresh.path(".lab/outbox.db")), other_program(&self.db));
        for schema in [
            "SELECT concat_ws('/', t.name, c.cid, c.name, c.type, c.\"notnull\", c.dflt_value, c.pk)
             FROM sqlite_master AS t, pragma_table_info(t.name) AS c WHERE t.type = 'table' ORDER BY t.name, c.cid",
            "SELECT coalesce(sql, name) FROM sqlite_master WHERE type = 'index' ORDER BY name",
            "SELECT CAST(user_version AS TEXT) FROM pragma_user_version",
            "SELECT integrity_check FROM pragma_integrity_check",
        ] {
            assert_eq!(texts(&migrated, schema), texts(&fresh, schema));
        }
        assert_eq!(texts(&migrated, EVERYTHING), self.everything);
        let untouched = "SELECT DISTINCT concat_ws('/', aggregate_type, tombstone, attempts, next_try_at, dead,
                                                   coalesce(last_error, 'null')) FROM outbox";
        assert_eq!(texts(&migrated, untouched), ["loan/0/0/0/0/null"]);
    }
}

fn texts(db: &Connection, sql: &str) -> Vec<String> {
    db.prepare(sql).unwrap().query_map((), |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    path.with_file_name(format!("{}{suffix}", path.file_name().unwrap().to_str().unwrap()))
}

fn version(db: &Connection) -> i64 {
    db.query_row("SELECT user_version FROM pragma_user_version", (), |row| row.get(0)).unwrap()
}

#[test]
fn whatever_command_opens_it_first_brings_it_to_version_2_and_keeps_every_row() {
    let readers = ["verify", "stats", "--json stats", "stats --prometheus", "dead list", "purge --older-than 99999d"];
    for (line, how) in readers.iter().flat_map(|line| [(line, Closed), (line, Killed)]) {
        let old = Old::left(how);
        old.ok(line);
        old.is_version_2_and_whole();
    }
}

#[test]
fn numbers_and_outbox_ids_go_on_where_they_were() {
    for old in [Closed, Killed].map(Old::left) {
        let written = old.ok("write 1");
        assert_eq!(written, "[write] txn i=1 loan=L-1007 event=evt-1007 committed business=7 outbox=6\n");
        assert!(old.ok("stats").ends_with(" pending=3 dead=0 published=3 attempts=0\n"));
        let published = old.ok("publish 5");
        let ids: Vec<_> = published.lines().filter_map(|line| line.split(' ').nth(1)).collect();
        assert_eq!(ids, ["outboxId=4", "outboxId=5", "outboxId=7", "sent=3"], "6 was given out before");
        assert!(old.ok("rollback").ends_with("= false\n"));
        assert!(old.ok("apply --inbox").ends_with("[apply] deliveries=3 applied=3 skipped=0 effects=4\n"));
    }
}

#[test]
fn what_writes_first_migrates_first() {
    for line in ["naive", "return 1", "fill 1", "write 1 --delayed", "publish 1", "reset"] {
        let old = Old::left(Killed);
        old.ok(line);
        assert_eq!(version(&other_program(&old.db)), 2, "{line}");
        let rows = if line == "reset" { 0 } else { 5 };
        let first = "SELECT event_id FROM outbox WHERE id <= 5";
        assert_eq!(texts(&other_program(&old.db), first).len(), rows, "{line}");
    }
}

#[test]
fn of_many_first_commands_at_once_one_migrates() {
    for old in [Closed, Killed].map(Old::left) {
        let lines = ["verify", "stats", "dead list", "verify", "stats", "dead list", "verify", "stats"];
        for ended in old.lab.at_once(lines.map(|line| format!("--db old.db {line}"))) {
            ended.exits(0);
        }
        old.is_version_2_and_whole();
    }
}

#[test]
fn killed_in_the_middle_of_it_the_database_is_of_version_1_still() {
    let old = Old::left(Closed);
    // Each column added is checked against each row, which takes so many of them a while.
    let many = "WITH RECURSIVE number (n) AS (SELECT 2001 UNION ALL SELECT n + 1 FROM number WHERE n < 102000)
                INSERT INTO outbox (event_id, aggregate_id, event_type, payload)
                SELECT 'evt-' || n, 'L-' || n, 'library.loan.created', '{}' FROM number";
    other_program(&old.db).execute_batch(many).unwrap();
    let other = other_program(&old.db);
    other.busy_timeout(std::time::Duration::ZERO).unwrap();
    let is_locked = || match other.execute_batch("BEGIN IMMEDIATE; ROLLBACK") {
        Ok(()) => false,
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => true,
        Err(error) => panic!("{error}"),
    };
    let before = texts(&other, EVERYTHING);

    let migrating = Held::start("verify", old.lab.command(["--db", "old.db", "verify"]));
    wait_for("the migration to begin", || is_locked().then_some(()));
    freeze(migrating.pid());
    // It stands still with the lock in its hand, so it is neither before its transaction nor behind it.
    assert!(is_locked(), "the migration was over too soon for this test");
    migrating.kill();

    assert_eq!(version(&other), 1);
    assert_eq!(texts(&other, "SELECT name FROM pragma_table_info('outbox')").len(), 7);
    assert_eq!(texts(&other, EVERYTHING), before);
    drop(other);
    assert!(old.ok("verify").ends_with(" outbox=100005 published=3 unpublished=100002\n"));
    assert_eq!(version(&other_program(&old.db)), 2);
}

#[test]
fn a_later_version_is_refused_unchanged_also_where_only_the_wal_knows_it() {
    let later = "ALTER TABLE outbox ADD COLUMN of_later TEXT; PRAGMA user_version = 3";
    for old in [Closed, Killed].map(|how| Old::changed(how, later)) {
        let files = || [bytes(&old.db), fs::read(beside(&old.db, "-wal")).unwrap_or_default()];
        let before = files();
        for line in ["verify", "stats", "write 1", "publish 1", "purge --older-than 0s", "reset", "naive", "reconcile"]
        {
            refused(&old.lab, &format!("--db old.db {line}"), 4)
                .says("is a lab database of version 3, and this lab knows versions up to 2")
                .says("the file was not changed")
                .names_next_step();
            assert!(files() == before, "{line} changed it");
        }
        assert_eq!(version(&other_program(&old.db)), 3);
    }
}
