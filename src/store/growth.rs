//! What the poll costs as the table grows, by SQLite's own counter.

use anyhow::Result;
use rusqlite::StatementStatus;

use super::Store;
use super::batch::{Access, poll};

impl Store {
    /// Runs the query by which a relay looks for work, to its end. Returns how many rows it found, and how many steps SQLite's
    /// virtual machine took for it.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn poll_steps(&self, access: Access, limit: u32) -> Result<(usize, i32)> {
        let mut query = self.db.prepare(&poll(access))?;
        let mut rows = query.query((i64::MIN, limit))?;
        let mut found = 0;
        while rows.next()?.is_some() {
            found += 1;
        }
        drop(rows);
        Ok((found, query.get_status(StatementStatus::VmStep)))
    }
}
