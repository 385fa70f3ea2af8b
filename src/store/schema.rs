//! The schema, and how a database of an earlier version comes to it.

use anyhow::Result;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, Transaction, TransactionBehavior};

use crate::failure::Failure;

/// Marks a lab database in the file's header ("OBLB"), so that no other program's file is taken for one.
pub(super) const APPLICATION_ID: i32 = 0x4F42_4C42;

/// The schema's version.
pub(super) const USER_VERSION: i32 = 2;

/// The book's two tables (7.1); a consumer's effects and its inbox; the leases of relays; and two small ones of the lab's
/// own: the loan numbers given out, and what the lab noted about the topic.
///
/// The outbox has the book's columns first. What follows them is what a relay for production needs of a row: where it is
/// routed, whether its record is a tombstone, and what became of tries to send it. All of it is 0 or null in a row that
/// nothing went wrong with, which takes no room, so that a mark rewrites a row in place.
const SCHEMA: &str = "
CREATE TABLE business_loan (
  loan_id    TEXT NOT NULL PRIMARY KEY,
  book_id    TEXT NOT NULL,
  member_id  TEXT NOT NULL,
  status     TEXT NOT NULL,
  created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
) STRICT;
CREATE TABLE outbox (
  id             INTEGER PRIMARY KEY AUTOINCREMENT,
  event_id       TEXT    NOT NULL UNIQUE,
  aggregate_id   TEXT    NOT NULL,
  event_type     TEXT    NOT NULL,
  payload        TEXT    NOT NULL,
  created_at     TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
  published      INTEGER NOT NULL DEFAULT 0 CHECK (published IN (0, 1)),
  aggregate_type TEXT    NOT NULL DEFAULT 'loan',
  tombstone      INTEGER NOT NULL DEFAULT 0 CHECK (tombstone IN (0, 1)),
  attempts       INTEGER NOT NULL DEFAULT 0,
  next_try_at    INTEGER NOT NULL DEFAULT 0,
  dead           INTEGER NOT NULL DEFAULT 0 CHECK (dead = 0 OR (dead = 1 AND attempts > 0)),
  last_error     TEXT
) STRICT;
CREATE INDEX outbox_pending ON outbox (id) WHERE published = 0;
CREATE INDEX outbox_tried ON outbox (id) WHERE published = 0 AND attempts > 0;
CREATE TABLE relay_lease (
  slot       INTEGER NOT NULL PRIMARY KEY,
  owner      TEXT    NOT NULL,
  token      INTEGER NOT NULL,
  expires_at INTEGER NOT NULL
) STRICT;
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
";

const DROP_SCHEMA: &str = "
DROP TABLE IF EXISTS business_loan;
DROP TABLE IF EXISTS outbox;
DROP TABLE IF EXISTS relay_lease;
DROP TABLE IF EXISTS effect;
DROP TABLE IF EXISTS inbox;
DROP TABLE IF EXISTS loan_number;
DROP TABLE IF EXISTS lab_note;
";

/// From version 1, which had the book's columns alone, to version 2.
const TO_VERSION_2: &str = "
ALTER TABLE outbox ADD COLUMN aggregate_type TEXT NOT NULL DEFAULT 'loan';
ALTER TABLE outbox ADD COLUMN tombstone INTEGER NOT NULL DEFAULT 0 CHECK (tombstone IN (0, 1));
ALTER TABLE outbox ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0;
ALTER TABLE outbox ADD COLUMN next_try_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE outbox ADD COLUMN dead INTEGER NOT NULL DEFAULT 0 CHECK (dead = 0 OR (dead = 1 AND attempts > 0));
ALTER TABLE outbox ADD COLUMN last_error TEXT;
CREATE INDEX outbox_tried ON outbox (id) WHERE published = 0 AND attempts > 0;
CREATE TABLE relay_lease (
  slot       INTEGER NOT NULL PRIMARY KEY,
  owner      TEXT    NOT NULL,
  token      INTEGER NOT NULL,
  expires_at INTEGER NOT NULL
) STRICT;
";

/// Lays the schema in an empty database, and marks it as a lab's.
pub(super) fn lay(db: &Connection) -> rusqlite::Result<()> {
    db.execute_batch(SCHEMA)?;
    db.pragma_update(None, "application_id", APPLICATION_ID)?;
    db.pragma_update(None, "user_version", USER_VERSION)
}

/// Empties a lab database where it lies, in the caller's transaction: a file unlinked or renamed would leave
/// its -wal behind, and still take writes that nobody will ever see.
pub(super) fn empty(txn: &Transaction) -> rusqlite::Result<()> {
    txn.execute_batch(DROP_SCHEMA)?;
    txn.execute_batch(SCHEMA)
}

/// Brings an open database to this lab's version, in one transaction that keeps every row.
///
/// # Errors
/// It is of a later version, and was not changed; or it stays locked for longer than the busy timeout.
pub(super) fn migrate(db: &mut Connection) -> Result<()> {
    let version = |db: &Connection| db.pragma_query_value(None, "user_version", |row| row.get::<_, i32>(0));
    if version(db)? == USER_VERSION {
        return Ok(());
    }
    let txn = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have done it while this one waited for the lock.
    match version(&txn)? {
        1 => {
            txn.execute_batch(TO_VERSION_2)?;
            txn.pragma_update(None, "user_version", USER_VERSION)?;
            Ok(txn.commit()?)
        }
        USER_VERSION => Ok(()),
        other => {
            drop(txn);
            // As the last to close it, SQLite would take the -wal into the file.
            db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
            Err(Failure::failed(
                format!("this is a lab database of version {other}, and this lab knows versions up to {USER_VERSION}"),
                "take the lab that made it, or another path with --db; the file was not changed",
            ))
        }
    }
}
