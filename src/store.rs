//! The business database: loans, and the outbox that shares their transaction. It knows nothing of Kafka;
//! that gap is the lesson.

mod batch;
mod delayed;
mod file;
mod fill;
mod growth;
mod lease;
mod note;
mod number;
mod poison;
mod purge;
mod schema;
mod stats;
mod words;

use std::path::{Path, PathBuf};

use anyhow::Result;
use rusqlite::{Connection, ErrorCode, OptionalExtension, Transaction, TransactionBehavior};

pub use self::batch::{Access, Batch, Marks, Pending, Standing};
pub use self::delayed::DelayedStore;
pub use self::file::{beside, refuse_others};
pub use self::lease::{Lease, Leased, Turnover};
pub use self::note::TopicNote;
pub use self::number::Family;
pub use self::poison::{DeadRow, Decision, Next};
pub use self::stats::Stats;
pub use self::words::in_words;
use crate::event::{CREATED, Counts, Event, Loan, OutboxRow, RETURNED};
use crate::failure::Failure;

/// A lab database, open.
pub struct Store {
    db: Connection,
    path: PathBuf,
    /// The file that was opened. Behind `db`, which is to be closed before it.
    file: file::InUse,
}

/// What came of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marked {
    /// The row is marked.
    Done,
    /// There is no such row any more.
    NotThere,
    /// Another program has the database locked.
    Busy,
}

/// Why an insert into the outbox was refused, in SQLite's own words.
#[derive(Debug)]
pub struct Refusal {
    /// SQLite's extended result code; 2067 is a unique constraint.
    pub code: i32,
    /// SQLite's message.
    pub reason: String,
}

impl Store {
    /// Opens the lab database at `path`, and makes it where nothing is.
    ///
    /// # Errors
    /// Something is there that is not a lab database; it is left as it was.
    pub fn make(path: &Path) -> Result<Self> {
        Self::of(file::make(path)?, path)
    }

    /// Opens the lab database at `path`.
    ///
    /// # Errors
    /// None is there, or something that is not one.
    pub fn open(path: &Path) -> Result<Self> {
        Self::of(file::open(path)?, path)
    }

    /// The path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Another connection to this very database, for another thread.
    ///
    /// # Errors
    /// The database was removed or replaced, or cannot be opened.
    pub fn again(&self) -> Result<Self> {
        self.is_in_place()?;
        Self::open(&self.path)
    }

    /// Leaves it to `goes_on` how long a lock of another program is waited for: it is called again and again, with how often
    /// it was called for this lock, and waits for a moment or gives up.
    ///
    /// # Errors
    /// SQLite does not take it.
    pub fn wait_for_locks(&mut self, goes_on: fn(i32) -> bool) -> Result<()> {
        Ok(self.db.busy_handler(Some(goes_on))?)
    }

    fn of(db: Connection, path: &Path) -> Result<Self> {
        Ok(Self { db, path: path.to_owned(), file: file::InUse::of(path)? })
    }

    /// Refuses to write where nobody will ever see it: into a file that was removed or replaced since it was opened.
    fn is_in_place(&self) -> Result<()> {
        if self.file.is_at(&self.path) {
            return Ok(());
        }
        Err(Failure::failed(
            format!("the database {} was removed or replaced while this command was at work", self.path.display()),
            "what it had committed went with the old file; begin again: outbox-lab reset",
        ))
    }

    /// The write transaction in which a loan and its event stand or fall together. `BEGIN IMMEDIATE`: a
    /// deferred one that turns to writing fails at once when another has written, whatever the timeout.
    ///
    /// # Errors
    /// The database stays locked for longer than the busy timeout.
    pub fn begin(&mut self) -> Result<Txn<'_>> {
        self.is_in_place()?;
        Ok(Txn { txn: self.db.transaction_with_behavior(TransactionBehavior::Immediate)? })
    }

    /// The four counts, of one moment.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn counts(&self) -> Result<Counts> {
        let sql = "SELECT (SELECT count(*) FROM business_loan), (SELECT count(*) FROM outbox),
                          (SELECT count(*) FROM outbox WHERE published = 0)";
        Ok(self.db.query_row(sql, (), |row| {
            let (business_loan, outbox, unpublished) = (count(row, 0)?, count(row, 1)?, count(row, 2)?);
            Ok(Counts { business_loan, outbox, published: outbox - unpublished, unpublished })
        })?)
    }

    /// A number that changes when another connection has committed since it was last asked for.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn data_version(&self) -> Result<i64> {
        Ok(self.db.query_row("PRAGMA data_version", (), |row| row.get(0))?)
    }

    /// Up to `limit` pending rows behind `after` in id order, read out whole: no statement stays open while
    /// Kafka is waited for.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn pending(&self, after: i64, limit: u32) -> Result<Vec<OutboxRow>> {
        // "published = 0" as the partial index has it: with another wording SQLite would scan the table.
        let sql = "SELECT id, event_id, aggregate_id, payload, tombstone FROM outbox
                   WHERE published = 0 AND id > ?1 ORDER BY id LIMIT ?2";
        let mut query = self.db.prepare_cached(sql)?;
        let rows = query
            .query_map((after, limit), |row| Ok(OutboxRow { id: row.get(0)?, event: event(row)?, published: false }))?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// Records a row as published, in a transaction of its own: the send and the mark can never be one.
    ///
    /// # Errors
    /// The database cannot be written, for another reason than a lock.
    pub fn mark(&self, id: i64) -> Result<Marked> {
        self.is_in_place()?;
        match self.db.prepare_cached("UPDATE outbox SET published = 1 WHERE id = ?1")?.execute([id]) {
            Ok(0) => Ok(Marked::NotThere),
            Ok(_) => Ok(Marked::Done),
            Err(error) if is_busy(&error) => Ok(Marked::Busy),
            Err(error) => Err(error.into()),
        }
    }

    /// Is this loan committed?
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn has_loan(&self, loan_id: &str) -> Result<bool> {
        let sql = "SELECT count(*) FROM business_loan WHERE loan_id = ?1";
        Ok(self.db.query_row(sql, [loan_id], |row| row.get::<_, i64>(0))? > 0)
    }

    /// The event of the oldest outbox row.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn first_event_id(&self) -> Result<Option<String>> {
        let sql = "SELECT event_id FROM outbox ORDER BY id LIMIT 1";
        Ok(self.db.query_row(sql, (), |row| row.get(0)).optional()?)
    }

    /// Every loan id and every outbox row, of one moment, in the order in which they were written.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn snapshot(&mut self) -> Result<(Vec<String>, Vec<OutboxRow>)> {
        let txn = self.db.transaction()?;
        let loans = txn
            .prepare("SELECT loan_id FROM business_loan ORDER BY rowid")?
            .query_map((), |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        let outbox = txn
            .prepare("SELECT id, event_id, aggregate_id, payload, tombstone, published FROM outbox ORDER BY id")?
            .query_map((), |row| Ok(OutboxRow { id: row.get(0)?, event: event(row)?, published: row.get(5)? }))?
            .collect::<rusqlite::Result<_>>()?;
        Ok((loans, outbox))
    }

    /// How long the oldest row that waits to be sent has waited, in seconds; `None` where none does. A dead row waits for
    /// somebody's decision, and is none of these.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn oldest_pending_age(&self) -> Result<Option<f64>> {
        let sql = "SELECT round((julianday('now') - julianday(created_at)) * 86400, 3) FROM outbox
                   WHERE published = 0 AND dead = 0 AND julianday(created_at) IS NOT NULL ORDER BY id LIMIT 1";
        Ok(self.db.query_row(sql, (), |row| row.get(0)).optional()?)
    }

    /// The event ids of a consumer's effects, in the order in which they were applied.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn effects(&self) -> Result<Vec<String>> {
        let mut query = self.db.prepare("SELECT event_id FROM effect ORDER BY id")?;
        Ok(query.query_map((), |row| row.get(0))?.collect::<rusqlite::Result<_>>()?)
    }

    /// How many effects there are.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn effect_count(&self) -> Result<u64> {
        Ok(self.db.query_row("SELECT count(*) FROM effect", (), |row| count(row, 0))?)
    }
}

/// The one transaction. Dropped without [`Txn::commit`], it leaves nothing.
pub struct Txn<'a> {
    txn: Transaction<'a>,
}

impl Txn<'_> {
    /// The next loan of a family whose number was never committed.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn next_loan(&self, family: Family) -> Result<Loan> {
        Ok(Loan::numbered(number::next(&self.txn, family)?))
    }

    /// The business row.
    ///
    /// # Errors
    /// SQLite refuses it.
    pub fn insert_loan(&self, loan: &Loan) -> Result<()> {
        let sql = "INSERT INTO business_loan (loan_id, book_id, member_id, status) VALUES (?1, ?2, ?3, 'BORROWED')";
        self.txn.prepare_cached(sql)?.execute((&loan.loan_id, &loan.book_id, &loan.member_id))?;
        Ok(())
    }

    /// The oldest loan that is still out, now given back.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn give_back_oldest(&self) -> Result<Option<Loan>> {
        let sql = "UPDATE business_loan SET status = 'RETURNED'
                   WHERE rowid = (SELECT min(rowid) FROM business_loan WHERE status = 'BORROWED') RETURNING loan_id";
        let loan_id: Option<String> = self.txn.query_row(sql, (), |row| row.get(0)).optional()?;
        Ok(loan_id.and_then(|id| id.strip_prefix("L-")?.parse().ok()).map(Loan::numbered))
    }

    /// Applies an event: one effect. With the inbox its id is inserted first, and `false` says that it was there.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn apply(&self, event_id: &str, inbox: bool) -> Result<bool> {
        if inbox {
            let first = "INSERT INTO inbox (event_id) VALUES (?1) ON CONFLICT DO NOTHING";
            if self.txn.prepare_cached(first)?.execute([event_id])? == 0 {
                return Ok(false);
            }
        }
        self.txn.prepare_cached("INSERT INTO effect (event_id) VALUES (?1)")?.execute([event_id])?;
        Ok(true)
    }

    /// The outbox row: the intent to send, in the same transaction. The inner result is SQLite's refusal of an
    /// event id that exists already.
    ///
    /// # Errors
    /// Anything but a broken constraint.
    pub fn insert_outbox(&self, event: &Event) -> Result<Result<(), Refusal>> {
        let sql =
            "INSERT INTO outbox (event_id, aggregate_id, event_type, payload, tombstone) VALUES (?1, ?2, ?3, ?4, ?5)";
        let event_type = if event.event_id.ends_with("-returned") { RETURNED } else { CREATED };
        let row = (&event.event_id, &event.aggregate_id, event_type, &event.payload, event.is_tombstone);
        match self.txn.prepare_cached(sql)?.execute(row) {
            Ok(_) => Ok(Ok(())),
            Err(rusqlite::Error::SqliteFailure(code, reason)) if code.code == ErrorCode::ConstraintViolation => {
                Ok(Err(Refusal { code: code.extended_code, reason: reason.unwrap_or_default() }))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The only atomic decision: both rows, or neither.
    ///
    /// # Errors
    /// SQLite cannot write.
    pub fn commit(self) -> Result<()> {
        Ok(self.txn.commit()?)
    }

    /// Takes everything of this transaction back.
    ///
    /// # Errors
    /// SQLite cannot write.
    pub fn rollback(self) -> Result<()> {
        Ok(self.txn.rollback()?)
    }
}

/// The event of a row whose second column is its id.
fn event(row: &rusqlite::Row) -> rusqlite::Result<Event> {
    Ok(Event { event_id: row.get(1)?, aggregate_id: row.get(2)?, payload: row.get(3)?, is_tombstone: row.get(4)? })
}

fn is_busy(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
}

fn count(row: &rusqlite::Row, column: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(column).map(i64::unsigned_abs)
}
