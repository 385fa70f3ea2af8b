//! Loan numbers. Each family counts from a start of its own and skips what another has used. A number that
//! was committed is not given out again before the next reset, not even after its rows were purged: a consumer that remembers
//! its event id would take the new event for a duplicate. One that was rolled back may be.

use std::ops::RangeInclusive;

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
    let mut number = first_candidate(txn, family)?;
    while let Some(used_to) = used(txn, number)? {
        number = after(used_to)?;
    }
    keep(txn, family, number..=number)?;
    Ok(number)
}

/// As [`next`], for so many numbers on end.
pub(super) fn span(txn: &Transaction, family: Family, length: u32) -> Result<RangeInclusive<i64>> {
    let mut first = first_candidate(txn, family)?;
    loop {
        let last = first.checked_add(i64::from(length) - 1).context(AT_THEIR_END)?;
        match used_within(txn, first, last)? {
            Some(used_to) => first = after(used_to)?,
            None => {
                keep(txn, family, first..=last)?;
                return Ok(first..=last);
            }
        }
    }
}

const AT_THEIR_END: &str = "the loan numbers have come to their end";

fn after(number: i64) -> Result<i64> {
    number.checked_add(1).context(AT_THEIR_END)
}

fn first_candidate(txn: &Transaction, family: Family) -> Result<i64> {
    let last = "SELECT coalesce(max(last), 0) FROM loan_number WHERE family = ?1";
    let last: i64 = txn.prepare_cached(last)?.query_row([family.name()], |row| row.get(0))?;
    Ok(family.start().max(after(last)?))
}

fn keep(txn: &Transaction, family: Family, numbers: RangeInclusive<i64>) -> Result<()> {
    let keep = "INSERT INTO loan_number (family, first, last) VALUES (?1, ?2, ?3)
                ON CONFLICT (family) DO UPDATE SET last = excluded.last";
    txn.prepare_cached(keep)?.execute((family.name(), numbers.start(), numbers.end()))?;
    Ok(())
}

/// As [`used`], of any of these numbers. It reads both tables whole, once for a million numbers as for one.
fn used_within(txn: &Transaction, first: i64, last: i64) -> Result<Option<i64>> {
    let sql = "SELECT max(n) FROM (
                 SELECT last AS n FROM loan_number WHERE first <= ?2 AND last >= ?1
                 UNION ALL SELECT n FROM (SELECT CAST(substr(loan_id, 3) AS INTEGER) AS n FROM business_loan)
                           WHERE n BETWEEN ?1 AND ?2
                 UNION ALL SELECT n FROM (SELECT CAST(substr(event_id, 5) AS INTEGER) AS n FROM outbox)
                           WHERE n BETWEEN ?1 AND ?2)";
    Ok(txn.query_row(sql, (first, last), |row| row.get(0))?)
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
