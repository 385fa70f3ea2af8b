//! Rows that the broker rejects: attempts are counted, later tries put off, and at last the row is parked as dead, for
//! somebody to decide.

use anyhow::Result;
use rusqlite::TransactionBehavior;
use serde::Serialize;

use super::Store;
use super::lease::{Lease, lost};
use crate::shard::slot_of;

/// What becomes of a row that was just rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It is tried again at this time, in milliseconds since 1970.
    TryAt(i64),
    /// It is parked as dead.
    Dead,
}

/// A row parked as dead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeadRow {
    /// The row's id.
    pub outbox_id: i64,
    /// Its event.
    pub event_id: String,
    /// Whose event it is.
    pub aggregate_id: String,
    /// How often it was rejected.
    pub attempts: u32,
    /// Why, the last time.
    pub last_error: String,
}

/// What to do with a dead row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Pending again, as if it had never been tried.
    Requeue,
    /// Delete it: nobody will ever send this event.
    Drop,
}

impl Store {
    /// The ids of up to `limit` rows that were rejected, are not dead, and may be tried again by now, in order.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn due(&self, now: i64, limit: u32) -> Result<Vec<i64>> {
        let sql = "SELECT id FROM outbox WHERE published = 0 AND attempts > 0 AND dead = 0 AND next_try_at <= ?1
                   ORDER BY id LIMIT ?2";
        let mut query = self.db.prepare_cached(sql)?;
        Ok(query.query_map((now, limit), |row| row.get(0))?.collect::<rusqlite::Result<_>>()?)
    }

    /// When the last of the rows that were rejected and are not dead may be tried again, in milliseconds since 1970.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn last_try_at(&self) -> Result<Option<i64>> {
        let sql = "SELECT max(next_try_at) FROM outbox WHERE published = 0 AND attempts > 0 AND dead = 0";
        Ok(self.db.query_row(sql, (), |row| row.get(0))?)
    }

    /// Counts a rejection of a row. `false` says that its lease is another relay's by now, or that it is pending no more, or
    /// dead: then nothing was changed.
    ///
    /// # Errors
    /// The database stays locked for longer than the busy timeout.
    pub fn rejected(&mut self, lease: &Lease, id: i64, aggregate_id: &str, error: &str, next: Next) -> Result<bool> {
        self.is_in_place()?;
        let txn = self.db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if lost(&txn, lease)?.contains(slot_of(aggregate_id)) {
            return Ok(false);
        }
        let (next_try_at, is_dead) = match next {
            Next::TryAt(at) => (at, false),
            Next::Dead => (0, true),
        };
        let sql = "UPDATE outbox SET attempts = attempts + 1, last_error = ?2, next_try_at = ?3, dead = ?4
                   WHERE id = ?1 AND published = 0 AND dead = 0";
        let changed = txn.prepare_cached(sql)?.execute((id, error, next_try_at, is_dead))?;
        txn.commit()?;
        Ok(changed == 1)
    }

    /// The dead rows, in id order.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn dead(&self) -> Result<Vec<DeadRow>> {
        let sql = "SELECT id, event_id, aggregate_id, attempts, coalesce(last_error, '') FROM outbox
                   WHERE published = 0 AND attempts > 0 AND dead = 1 ORDER BY id";
        let mut query = self.db.prepare(sql)?;
        let rows = query.query_map((), |row| {
            Ok(DeadRow {
                outbox_id: row.get(0)?,
                event_id: row.get(1)?,
                aggregate_id: row.get(2)?,
                attempts: row.get(3)?,
                last_error: row.get(4)?,
            })
        })?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// Decides on dead rows, by event id: all of them, or, if one of these is not dead, none; that one is the inner error.
    ///
    /// # Errors
    /// The database stays locked for longer than the busy timeout.
    pub fn decide(&mut self, event_ids: &[String], decision: Decision) -> Result<Result<(), String>> {
        self.is_in_place()?;
        let txn = self.db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let sql = match decision {
            Decision::Requeue => {
                "UPDATE outbox SET dead = 0, attempts = 0, next_try_at = 0, last_error = NULL
                 WHERE event_id = ?1 AND published = 0 AND dead = 1"
            }
            Decision::Drop => "DELETE FROM outbox WHERE event_id = ?1 AND published = 0 AND dead = 1",
        };
        for event_id in event_ids {
            if txn.prepare_cached(sql)?.execute([event_id])? == 0 {
                return Ok(Err(event_id.clone()));
            }
        }
        txn.commit()?;
        Ok(Ok(()))
    }
}
