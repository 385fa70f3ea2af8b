//! The rows of a trial's database: what they are, and what becomes of them in time.

use anyhow::Result;

use super::{Trial, process};
use crate::clock::now_ms;
use crate::event::OutboxRow;
use crate::reconcile::listed;
use crate::store::Family;

impl Trial<'_> {
    /// The ids of the loans; "none" where there is none. So too the next three.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn loans(&self) -> Result<String> {
        Ok(listed(self.store()?.snapshot()?.0))
    }

    /// The event ids of the outbox rows.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn outbox(&self) -> Result<String> {
        Ok(listed(self.store()?.snapshot()?.1.into_iter().map(|row| row.event.event_id)))
    }

    /// The event ids of the pending rows, but for those parked as dead.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn pending(&self) -> Result<String> {
        Ok(listed(self.pending_ids()?))
    }

    /// As [`Trial::pending`], one by one.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn pending_ids(&self) -> Result<Vec<String>> {
        let mut store = self.store()?;
        let dead: Vec<i64> = store.dead()?.iter().map(|row| row.outbox_id).collect();
        let waits = |row: &OutboxRow| !row.published && !dead.contains(&row.id);
        Ok(store.snapshot()?.1.into_iter().filter(waits).map(|row| row.event.event_id).collect())
    }

    /// The event ids of the rows parked as dead.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn dead(&self) -> Result<String> {
        Ok(listed(self.store()?.dead()?.into_iter().map(|row| row.event_id)))
    }

    /// Writes a loan as `write` does, but for its payload, which bears a note of 2,000 bytes.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn write_large(&self) -> Result<()> {
        let mut store = self.store()?;
        let txn = store.begin()?;
        let loan = txn.next_loan(Family::Outbox)?;
        let mut event = loan.created();
        let end = event.payload.len() - 1;
        event.payload.insert_str(end, &format!(r#","note":"{}""#, "x".repeat(2_000)));
        txn.insert_loan(&loan)?;
        anyhow::ensure!(txn.insert_outbox(&event)?.is_ok(), "the outbox refuses {}", event.event_id);
        txn.commit()?;
        self.tell(&format!("(a loan is written with a note of 2,000 bytes: {})", event.event_id))
    }

    /// Deletes every row that was written before now, as somebody would who goes by the age alone.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn delete_by_age(&self) -> Result<()> {
        self.tell("(by hand: DELETE FROM outbox WHERE created_at <= now)")?;
        self.store()?.delete_by_age()
    }

    /// Waits until so many rows are marked.
    ///
    /// # Errors
    /// Inconclusive: it does not come to that in time. Or the database cannot be read.
    pub fn await_published(&self, rows: u64) -> Result<()> {
        let store = self.store()?;
        process::wait_for(&format!("{rows} rows marked"), || Ok(store.counts()?.published >= rows))
    }

    /// Waits until every row that was rejected may be tried again, by the time that relays go by.
    ///
    /// # Errors
    /// Inconclusive: it does not come to that in time. Or the database cannot be read.
    pub fn await_next_try(&self) -> Result<()> {
        let store = self.store()?;
        process::wait_for("the next try", || Ok(store.last_try_at()?.is_none_or(|at| at <= now_ms())))?;
        self.tell("(it is time for the next try)")
    }

    /// Waits until every lease has expired by the time that relays go by. Whoever has one is held, and does not renew it.
    ///
    /// # Errors
    /// Inconclusive: it does not come to that in time. Or the database cannot be read.
    pub fn await_leases_expired(&self) -> Result<()> {
        let store = self.store()?;
        process::wait_for("the leases to expire", || {
            Ok(store.leases(now_ms())?.iter().all(|lease| lease.left_ms <= 0))
        })?;
        self.tell("(the lease has expired)")
    }
}
