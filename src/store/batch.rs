//! Batches: pending rows read out in id order, and marked together once they are acknowledged.

use anyhow::Result;
use rusqlite::{Row, TransactionBehavior};

use super::lease::{Lease, lost};
use super::{Store, is_busy};
use crate::failure::Failure;
use crate::shard::slot_of;

/// Pending rows in id order, read out whole: no statement stays open while Kafka is waited for. Their texts lie end to end,
/// so that a row costs no allocation.
#[derive(Debug, Default)]
pub struct Batch {
    rows: Vec<Place>,
    text: String,
    /// As they are: a payload need not be UTF-8.
    payloads: Vec<u8>,
}

/// A batch with so many bytes of payloads takes no more rows.
const LARGE: usize = 16 * 1024 * 1024;

/// Where a row's texts end.
#[derive(Debug)]
struct Place {
    id: i64,
    is_tombstone: bool,
    created_at: usize,
    event_id: usize,
    aggregate_id: usize,
    aggregate_type: usize,
    payload: usize,
}

/// A pending row, as a relay sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending<'a> {
    /// The row's id.
    pub id: i64,
    /// The event that it tells of.
    pub event_id: &'a str,
    /// Whose event it is.
    pub aggregate_id: &'a str,
    /// What that is: "loan".
    pub aggregate_type: &'a str,
    /// The record's value; `None` is a tombstone.
    pub payload: Option<&'a [u8]>,
    /// When it was written: "2026-09-01T08:00:00.000Z".
    pub created_at: &'a str,
}

/// What a relay has to know of a row before it takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing<'a> {
    /// The row's id.
    pub id: i64,
    /// Whose event it is.
    pub aggregate_id: &'a str,
    /// How often the broker has rejected it.
    pub attempts: u32,
    /// Was it given up?
    pub is_dead: bool,
}

/// What came of the marks of a batch.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Rows marked.
    pub marked: u64,
    /// Rows whose lease is another relay's by now: theirs to send and to mark.
    pub refused: Vec<i64>,
    /// Rows that were marked or deleted by somebody else.
    pub not_there: u64,
}

impl Batch {
    /// How many rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// None?
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The row at a place, from 0.
    pub fn row(&self, nth: usize) -> Pending<'_> {
        let place = &self.rows[nth];
        let (begin, payload) = match nth.checked_sub(1) {
            Some(before) => (self.rows[before].aggregate_type, self.rows[before].payload),
            None => (0, 0),
        };
        let payload = &self.payloads[payload..place.payload];
        Pending {
            id: place.id,
            created_at: &self.text[begin..place.created_at],
            event_id: &self.text[place.created_at..place.event_id],
            aggregate_id: &self.text[place.event_id..place.aggregate_id],
            aggregate_type: &self.text[place.aggregate_id..place.aggregate_type],
            payload: (!place.is_tombstone).then_some(payload),
        }
    }

    /// The rows in order.
    pub fn iter(&self) -> impl Iterator<Item = Pending<'_>> {
        (0..self.len()).map(|nth| self.row(nth))
    }

    fn push(&mut self, row: &Row) -> Result<()> {
        let mut end = |column| -> Result<usize> {
            self.text.push_str(text(row, column)?);
            Ok(self.text.len())
        };
        let (created_at, event_id, aggregate_id, aggregate_type) = (end(1)?, end(2)?, end(3)?, end(4)?);
        self.payloads.extend_from_slice(row.get_ref(5)?.as_bytes()?);
        self.rows.push(Place {
            id: row.get(0)?,
            is_tombstone: row.get(6)?,
            created_at,
            event_id,
            aggregate_id,
            aggregate_type,
            payload: self.payloads.len(),
        });
        Ok(())
    }
}

const COLUMNS: &str = "id, created_at, event_id, aggregate_id, aggregate_type, payload, tombstone, attempts, dead";

/// Marks the pending rows from one id to another. By the rowid: the partial index would be read while it is written.
pub(super) const MARK: &str =
    "UPDATE outbox NOT INDEXED SET published = 1 WHERE id BETWEEN ?1 AND ?2 AND published = 0";

/// How the poll finds the pending rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// As SQLite sees fit: by the partial index.
    AsIs,
    /// Without any index.
    NotIndexed,
}

/// The query of the production relay that looks for work; the book's relay has its own, [`Store::pending`].
pub(super) fn poll(access: Access) -> String {
    let access = match access {
        Access::AsIs => "",
        Access::NotIndexed => "NOT INDEXED",
    };
    // "published = 0" as the partial index has it: with another wording SQLite would scan the table.
    format!("SELECT {COLUMNS} FROM outbox {access} WHERE published = 0 AND id > ?1 ORDER BY id LIMIT ?2")
}

impl Store {
    /// Reads up to `limit` pending rows, fewer if they are large, behind `after` in id order, and puts those that `takes` wants
    /// in a batch. The number is the last id that was looked at; `None` where there was no row behind `after`.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn batch(
        &self,
        after: i64,
        limit: u32,
        mut takes: impl FnMut(&Standing) -> bool,
    ) -> Result<(Batch, Option<i64>)> {
        let mut query = self.db.prepare_cached(&poll(Access::AsIs))?;
        let mut rows = query.query((after, limit))?;
        let mut batch = Batch::default();
        let mut last = None;
        while let Some(row) = rows.next()? {
            let standing = standing(row)?;
            last = Some(standing.id);
            if takes(&standing) {
                batch.push(row)?;
            }
            if batch.payloads.len() >= LARGE {
                break;
            }
        }
        Ok((batch, last))
    }

    /// The pending row of an id, as a batch of its own, and how often it was rejected; empty where it is pending no more, or
    /// dead.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn pending_row(&self, id: i64) -> Result<(Batch, u32)> {
        let mut attempts = 0;
        let (batch, _) = self.batch(id - 1, 1, |row| {
            attempts = row.attempts;
            row.id == id && !row.is_dead
        })?;
        Ok((batch, attempts))
    }

    /// The id of the first pending row.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn first_pending(&self) -> Result<Option<i64>> {
        let sql = "SELECT min(id) FROM outbox WHERE published = 0";
        Ok(self.db.prepare_cached(sql)?.query_row((), |row| row.get(0))?)
    }

    /// Shows the id and the aggregate of each pending row up to `last`, in id order; with `dead_ones` those of dead rows, too.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn each_pending(&self, last: i64, dead_ones: bool, mut show: impl FnMut(i64, &str)) -> Result<()> {
        let sql = "SELECT id, created_at, event_id, aggregate_id FROM outbox
                   WHERE published = 0 AND id <= ?1 AND (dead = 0 OR ?2) ORDER BY id";
        let mut query = self.db.prepare_cached(sql)?;
        let mut rows = query.query((last, dead_ones))?;
        while let Some(row) = rows.next()? {
            show(row.get(0)?, text(row, 3)?);
        }
        Ok(())
    }

    /// Records the acknowledged rows of a batch as published, in one transaction, but for those whose lease was lost in the
    /// meantime. `acknowledged` says of each row whether it was. The inner result is `None` while another program has the
    /// database locked.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn mark_all(&mut self, lease: &Lease, batch: &Batch, acknowledged: &[bool]) -> Result<Option<Marks>> {
        self.is_in_place()?;
        let txn = match self.db.transaction_with_behavior(TransactionBehavior::Immediate) {
            Err(error) if is_busy(&error) => return Ok(None),
            begun => begun?,
        };
        let lost = lost(&txn, lease)?;
        let mut marks = Marks::default();
        let mut runs: Vec<(i64, i64)> = Vec::new();
        let mut rows = 0;
        for nth in (0..batch.len()).filter(|nth| acknowledged[*nth]) {
            let id = batch.rows[nth].id;
            if !lost.is_empty() && lost.contains(slot_of(batch.row(nth).aggregate_id)) {
                marks.refused.push(id);
                continue;
            }
            rows += 1;
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == id => *last = id,
                _ => runs.push((id, id)),
            }
        }
        {
            let mut mark = txn.prepare_cached(MARK)?;
            for run in runs {
                marks.marked += mark.execute(run)? as u64;
            }
        }
        txn.commit()?;
        marks.not_there = rows - marks.marked;
        Ok(Some(marks))
    }
}

/// A text of a row that has to be one.
fn text<'a>(row: &'a Row, column: usize) -> Result<&'a str> {
    let value = row.get_ref(column)?;
    value.as_str().map_err(|_| {
        let (id, name) =
            (row.get::<_, i64>(0).unwrap_or_default(), COLUMNS.split(", ").nth(column).unwrap_or_default());
        Failure::failed(
            format!("the outbox row {id} is not UTF-8 in its column {name}, so no relay can name it"),
            format!("mend or delete it with the sqlite3 shell: UPDATE outbox SET {name} = … WHERE id = {id}"),
        )
    })
}

fn standing<'a>(row: &'a Row) -> Result<Standing<'a>> {
    let attempts = row.get(7)?;
    // A row is dead after so many attempts, so most rows need no second look.
    let is_dead = attempts > 0 && row.get(8)?;
    Ok(Standing { id: row.get(0)?, aggregate_id: text(row, 3)?, attempts, is_dead })
}
