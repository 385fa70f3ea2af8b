//! What is watched of an outbox.

use anyhow::Result;
use serde::Serialize;

use super::lease::Leased;
use super::{Store, count};

/// An outbox at one moment. The age leads: it tells of a relay that stands still before the number of rows does (7.1).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stats {
    /// How long the oldest pending row has waited, in seconds; `None` where none is pending.
    pub oldest_pending_age_seconds: Option<f64>,
    /// Rows that wait to be sent, those for their next try among them.
    pub pending: u64,
    /// Rows parked as dead.
    pub dead: u64,
    /// Rows marked.
    pub published: u64,
    /// Rejections of rows that are still pending or dead.
    pub attempts: u64,
    /// The leases of relays.
    pub leases: Vec<Leased>,
}

impl Store {
    /// What is watched, of one moment.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn stats(&mut self, now: i64) -> Result<Stats> {
        let txn = self.db.unchecked_transaction()?;
        let sql = "SELECT (SELECT count(*) FROM outbox), (SELECT count(*) FROM outbox WHERE published = 0),
                          (SELECT count(*) FROM outbox WHERE published = 0 AND attempts > 0 AND dead = 1),
                          (SELECT coalesce(sum(attempts), 0) FROM outbox WHERE published = 0 AND attempts > 0)";
        let (rows, unpublished, dead, attempts) =
            txn.query_row(sql, (), |row| Ok((count(row, 0)?, count(row, 1)?, count(row, 2)?, count(row, 3)?)))?;
        let stats = Stats {
            oldest_pending_age_seconds: self.oldest_pending_age()?,
            pending: unpublished - dead,
            dead,
            published: rows - unpublished,
            attempts,
            leases: self.leases(now)?,
        };
        txn.finish()?;
        Ok(stats)
    }
}
