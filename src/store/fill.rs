//! Many rows at once, as `write` would have made them one by one.

use std::ops::RangeInclusive;

use anyhow::Result;
use rusqlite::TransactionBehavior;

use super::batch::MARK;
use super::{Family, Store, number};
use crate::event::{BOOKS_BEHIND_LOANS, CREATED};

/// The numbers from `?1` to `?2`.
const NUMBERS: &str = "WITH RECURSIVE number (n) AS (SELECT ?1 UNION ALL SELECT n + 1 FROM number WHERE n < ?2)";

impl Store {
    /// So many outbox rows, shared out in turn among so many new loans, in one transaction. Returns the numbers of their
    /// events.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn fill(&mut self, rows: u32, loans: u32, published: bool) -> Result<RangeInclusive<i64>> {
        self.is_in_place()?;
        let txn = self.db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let numbers = number::span(&txn, Family::Outbox, rows)?;
        let (first, last) = (*numbers.start(), *numbers.end());
        let sql = format!(
            "INSERT INTO business_loan (loan_id, book_id, member_id, status) {NUMBERS}
             SELECT 'L-' || n, 'B-' || (n - ?3), 'M-' || (n - ?3), 'BORROWED' FROM number"
        );
        txn.execute(&sql, (first, first + i64::from(loans) - 1, BOOKS_BEHIND_LOANS))?;
        let sql = format!(
            r#"INSERT INTO outbox (event_id, aggregate_id, event_type, payload, published) {NUMBERS}
               SELECT 'evt-' || n, 'L-' || loan, ?5,
                      '{{"eventId":"evt-' || n || '","loanId":"L-' || loan || '","bookId":"B-' || (loan - ?3) || '"}}', ?6
               FROM (SELECT n, ?1 + (n - ?1) % ?4 AS loan FROM number)"#
        );
        txn.execute(&sql, (first, last, BOOKS_BEHIND_LOANS, loans, CREATED, published))?;
        txn.commit()?;
        Ok(numbers)
    }

    /// Marks the next so many pending rows, by the statement of every relay that marks batches, and nothing else. Returns how
    /// many.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn mark_next(&mut self, rows: u32) -> Result<u64> {
        let txn = self.db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let ends = "SELECT min(id), max(id) FROM (SELECT id FROM outbox WHERE published = 0 ORDER BY id LIMIT ?1)";
        let ends: (Option<i64>, Option<i64>) =
            txn.prepare_cached(ends)?.query_row([rows], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let marked = txn.prepare_cached(MARK)?.execute(ends)?;
        txn.commit()?;
        Ok(marked as u64)
    }
}
