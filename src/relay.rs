//! The book's relay (7.1): fetch pending rows in id order, publish each, mark it. The one place, beside the
//! counter-example, where database and broker meet, and they meet one after the other.

use std::time::{Duration, Instant};

use anyhow::Result;
use rusqlite::ErrorCode;

use crate::broker::Publisher;
use crate::crash::{Crash, CrashPoint};
use crate::failure::{Exit, Failure};
use crate::output::{BookHold, Line, Output, hint};
use crate::store::{PendingRow, Store};

/// The relay's crash points.
pub const POINTS: &[CrashPoint] =
    &[CrashPoint::BeforeSend, CrashPoint::Sent, CrashPoint::AfterAck, CrashPoint::BeforeMark, CrashPoint::AfterMark];

/// How many rows are fetched at a time: the relay never holds the whole table.
const PAGE: u32 = 1_000;

/// How long a mark is tried again, beyond SQLite's own wait for a lock.
const MARK_PATIENCE: Duration = Duration::from_secs(60);

/// When a row is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marking {
    /// After its own acknowledgement: the book's `publish`.
    AfterEachAck,
    /// After the acknowledgements of all rows: the book's `publish-hold`.
    AfterAllAcks,
    /// Before its send. The wrong order: a row marked and not sent is an event that nobody sends again.
    BeforeEachSend,
}

/// Sends up to `limit` pending rows and marks them.
///
/// # Errors
/// A send is in doubt or was refused, or a mark cannot be written: every row not marked stays pending.
pub fn relay(
    command: &'static str,
    limit: u32,
    marking: Marking,
    store: &mut Store,
    publisher: &Publisher,
    crash: &mut Crash,
    out: &Output,
) -> Result<Exit> {
    let mut relay = Relay { store, publisher, crash, out, sent: 0, marked: 0 };
    let mut to_mark = Vec::new();
    let mut after = 0;
    while relay.sent < limit {
        let page = relay.store.pending(after, PAGE.min(limit - relay.sent))?;
        let Some(last) = page.last() else { break };
        after = last.id;
        for row in page {
            relay.carry(&row, marking)?;
            if marking == Marking::AfterAllAcks {
                to_mark.push(row);
            }
        }
    }
    for row in to_mark {
        relay.crash.reached_in_book(CrashPoint::BeforeMark, &BookHold::Publish { sent: relay.sent })?;
        relay.mark(&row)?;
        out.line(&Line::Marked { outbox_id: row.id, key: &row.event.event_id, marked: relay.marked })?;
    }
    let (sent, marked) = (relay.sent, relay.marked);
    let unpublished_left = store.counts()?.unpublished;
    out.line(&Line::RelayDone { command, sent, marked, unpublished_left })?;
    if sent == 0 {
        hint("nothing was pending: write first (outbox-lab write 5)");
    }
    Ok(crash.exit())
}

struct Relay<'a, 'b> {
    store: &'a mut Store,
    publisher: &'a Publisher,
    crash: &'a mut Crash<'b>,
    out: &'a Output,
    sent: u32,
    marked: u32,
}

impl Relay<'_, '_> {
    fn carry(&mut self, row: &PendingRow, marking: Marking) -> Result<()> {
        if marking == Marking::BeforeEachSend {
            self.crash.reached(CrashPoint::BeforeMark)?;
            self.mark(row)?;
        }
        self.crash.reached(CrashPoint::BeforeSend)?;
        let in_flight = self.publisher.send(&row.event)?;
        self.crash.reached(CrashPoint::Sent)?;
        let at = in_flight.acknowledged()?;
        self.sent += 1;
        self.crash.reached(CrashPoint::AfterAck)?;
        let (outbox_id, key) = (row.id, row.event.event_id.as_str());
        if marking == Marking::AfterAllAcks {
            return self.out.line(&Line::Sent { outbox_id, key, at });
        }
        if marking == Marking::AfterEachAck {
            self.crash.reached(CrashPoint::BeforeMark)?;
            self.mark(row)?;
        }
        self.out.line(&Line::Published { outbox_id, key, at, marked: self.marked })
    }

    /// Marks a row. The record is in the topic by now, so the mark is tried again as long as somebody else
    /// has the database locked; to give up is to send the record twice.
    fn mark(&mut self, row: &PendingRow) -> Result<()> {
        let deadline = Instant::now() + MARK_PATIENCE;
        loop {
            match self.store.mark(row.id) {
                Ok(()) => break,
                Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {
                    if Instant::now() > deadline {
                        return Err(Failure::failed(
                            format!(
                                "{} is acknowledged and cannot be marked: the database stays locked",
                                row.event.event_id
                            ),
                            "end the program that holds the lock; the row is pending, so the next publish sends it again: \
                             a duplicate, nothing lost",
                        ));
                    }
                    hint(&format!("the mark of {} waits: another program has the database locked", row.event.event_id));
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.marked += 1;
        self.crash.reached(CrashPoint::AfterMark)
    }
}
