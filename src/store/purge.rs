//! Growth: published rows are deleted in small transactions, so that writers and relays get in between.

use std::time::Duration;

use anyhow::Result;
use rusqlite::TransactionBehavior;

use super::Store;

/// How many ids one transaction looks at.
const CHUNK: i64 = 1_000;

impl Store {
    /// Deletes the published rows among the next rows behind `after` that were written longer ago than `age`. Returns how
    /// many, and the last id that was looked at; `None` at the end of the table. A pending or a dead row is never deleted.
    ///
    /// # Errors
    /// The database stays locked for longer than the busy timeout.
    pub fn purge(&mut self, after: i64, age: Duration) -> Result<(u64, Option<i64>)> {
        self.is_in_place()?;
        let txn = self.db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let end = "SELECT max(id) FROM (SELECT id FROM outbox WHERE id > ?1 ORDER BY id LIMIT ?2)";
        let end: Option<i64> = txn.prepare_cached(end)?.query_row((after, CHUNK), |row| row.get(0))?;
        let Some(end) = end else { return Ok((0, None)) };
        // The format of created_at sorts as time does.
        let delete = "DELETE FROM outbox NOT INDEXED WHERE id > ?1 AND id <= ?2 AND published = 1
                      AND created_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-' || ?3 || ' seconds')";
        let deleted = txn.prepare_cached(delete)?.execute((after, end, age.as_secs_f64()))?;
        txn.commit()?;
        Ok((deleted as u64, Some(end)))
    }

    /// The wrong way, to see what it loses: deletes every row that was written until now, published or not.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn delete_by_age(&self) -> Result<()> {
        self.db.execute("DELETE FROM outbox WHERE created_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now')", ())?;
        Ok(())
    }
}
