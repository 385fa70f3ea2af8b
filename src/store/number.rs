//! Loan numbers. Each family counts from a start of its own and skips what another has used. A number that
//! was committed is not given out again before the next reset, not even after its rows were purged: a consumer that remembers
//! its event id would take the new event for a duplicate. One that was rolled back may be.

use anyhow::{Context, Result};
use rusqlite::Transaction;

use crate::event::Loan;

/// The three rows of numbers that the book uses (7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `write`: L-1001 on.
    Outbox,
    /// `naive`: L-2001 on.
    Naive,
    /// `rollback`: L-3001 on.
    Rollback,
}

impl Family {
    fn name(self) -> &'static str {
        match self {
            Self::Outbox => "outbox",
            Self::Naive => "naive",
            Self::Rollback => "rollback",
        }
    }

    fn start(self) -> i64 {
        match self {
            Self::Outbox => 1001,
            Self::Naive => 2001,
            Self::Rollback => 3001,
        }
    }
}

/// Gives out the family's next free number, and keeps it in the same transaction.
///
/// A family keeps the span from its first number to its last. Whatever lies in a span is used, by that family
/// or by the one over whose numbers it went, so three spans hold the whole history.
pub(super) fn next(txn: &Transaction, family: Family) -> Result<i64> {
    let last = "SELECT coalesce(max(last), 0) FROM loan_number WHERE family = ?1";
    let last: i64 = txn.prepare_cached(last)?.query_row([family.name()], |row| row.get(0))?;
    let after = |number: i64| number.checked_add(1).context("the loan numbers have come to their end");
    let mut number = family.start().max(after(last)?);
    while let Some(used_to) = used(txn, number)? {
        number = after(used_to)?;
    }
    let keep = "INSERT INTO loan_number (family, first, last) VALUES (?1, ?2, ?2)
                ON CONFLICT (family) DO UPDATE SET last = excluded.last";
    txn.prepare_cached(keep)?.execute((family.name(), number))?;
    Ok(number)
}

/// The end of the used numbers that `number` lies in, if it is used: by a span, or by a row that somebody
/// inserted by hand.
fn used(txn: &Transaction, number: i64) -> Result<Option<i64>> {
    let span = "SELECT max(last) FROM loan_number WHERE ?1 BETWEEN first AND last";
    let span: Option<i64> = txn.prepare_cached(span)?.query_row([number], |row| row.get(0))?;
    if span.is_some() {
        return Ok(span);
    }
    let row = "SELECT EXISTS (SELECT 1 FROM business_loan WHERE loan_id = ?1)
                   OR EXISTS (SELECT 1 FROM outbox WHERE event_id = ?2)";
    let event = Loan::numbered(number).created();
    let row: bool = txn.prepare_cached(row)?.query_row((event.aggregate_id, event.event_id), |row| row.get(0))?;
    Ok(row.then_some(number))
}
