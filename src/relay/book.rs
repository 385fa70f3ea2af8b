//! The book's relay (7.1): fetch pending rows in id order, publish each, mark it. Database and broker meet here one after
//! the other, never in one step.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::{Span, bind};
use crate::broker::{Publisher, SendError};
use crate::crash::{CrashPoint, Holds};
use crate::event::{Key, OutboxRow, Position};
use crate::failure::Failure;
use crate::output::{BookHold, Line, Output, hint};
use crate::store::{Marked, Store};

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
    /// After the broker has committed the Kafka transaction in which all rows were sent.
    AfterBrokerCommit,
    /// Before its send. The wrong order: a row marked and not sent is an event that nobody sends again.
    BeforeEachSend,
}

impl Marking {
    /// Does the mark wait until every row is sent?
    fn is_put_off(self) -> bool {
        matches!(self, Self::AfterAllAcks | Self::AfterBrokerCommit)
    }
}

/// Why the relay stopped at a row.
pub struct Stopped {
    /// The event that it stopped at.
    pub event_id: String,
    /// Is its row marked? Then nothing will send it again.
    pub marked: bool,
    /// What came of the send.
    pub error: SendError,
}

/// The book's relay at work, and what it has done so far.
pub struct BookRelay<'a, 'b> {
    /// Where the rows are.
    pub store: &'a mut Store,
    /// Where they go.
    pub publisher: &'a Publisher,
    /// What the records are keyed by.
    pub key: Key,
    /// Where it may be stopped.
    pub holds: &'a mut Holds<'b>,
    /// Where it tells of each row.
    pub out: &'a Output,
    /// Rows acknowledged.
    pub sent: u32,
    /// Rows marked.
    pub marked: u32,
    /// When.
    pub span: Span,
}

impl BookRelay<'_, '_> {
    /// Sends up to `limit` pending rows and marks them.
    ///
    /// # Errors
    /// The inner one: a send is in doubt or was refused. The outer one: a mark cannot be written, or the database not
    /// read. Every row that is not marked stays pending.
    pub fn run(&mut self, limit: u32, marking: Marking) -> Result<Result<(), Stopped>> {
        let mut to_mark: Vec<(i64, String)> = Vec::new();
        let mut after = i64::MIN;
        if marking == Marking::AfterBrokerCommit {
            self.publisher.begin_transaction()?;
        }
        while self.sent < limit {
            let page = self.store.pending(after, PAGE.min(limit - self.sent))?;
            let Some(last) = page.last() else { break };
            after = last.id;
            for row in page {
                if let Err(stopped) = self.carry(&row, marking)? {
                    return Ok(Err(stopped));
                }
                if marking.is_put_off() {
                    to_mark.push((row.id, row.event.event_id));
                }
            }
        }
        if marking == Marking::AfterBrokerCommit {
            self.holds.reached(CrashPoint::BeforeBrokerCommit)?;
            self.publisher.commit_transaction()?;
            self.holds.reached(CrashPoint::AfterBrokerCommit)?;
        }
        for (id, event_id) in to_mark {
            let book = BookHold::Publish { sent: self.sent };
            self.holds.reached_in_book(CrashPoint::BeforeMark, Some(&book))?;
            self.mark(id, &event_id)?;
            self.out.line(&Line::Marked {
                command: self.holds.command(),
                outbox_id: id,
                key: &event_id,
                marked: self.marked,
            })?;
        }
        Ok(Ok(()))
    }

    fn carry(&mut self, row: &OutboxRow, marking: Marking) -> Result<Result<(), Stopped>> {
        let (outbox_id, key) = (row.id, row.event.event_id.as_str());
        let mark_first = marking == Marking::BeforeEachSend;
        if mark_first {
            self.holds.reached(CrashPoint::BeforeMark)?;
            self.mark(outbox_id, key)?;
        }
        let at = match self.send(row)? {
            Ok(at) => at,
            Err(error) => return Ok(Err(Stopped { event_id: key.to_owned(), marked: mark_first, error })),
        };
        self.sent += 1;
        self.span.acknowledged();
        self.holds.reached(CrashPoint::AfterAck)?;
        if marking.is_put_off() {
            self.out.line(&Line::Sent { outbox_id, key, at })?;
            return Ok(Ok(()));
        }
        if marking == Marking::AfterEachAck {
            self.holds.reached(CrashPoint::BeforeMark)?;
            self.mark(outbox_id, key)?;
        }
        self.out.line(&Line::Published { outbox_id, key, at, marked: self.marked })?;
        Ok(Ok(()))
    }

    fn send(&mut self, row: &OutboxRow) -> Result<Result<Position, SendError>> {
        self.holds.reached(CrashPoint::BeforeSend)?;
        if self.sent == 0 {
            bind(self.store, self.publisher.incarnation())?;
        }
        let key = self.key.of(&row.event.event_id, &row.event.aggregate_id);
        let in_flight = match self.publisher.send(&row.event, key) {
            Ok(in_flight) => in_flight,
            Err(error) => return Ok(Err(error)),
        };
        self.holds.reached(CrashPoint::Sent)?;
        Ok(in_flight.acknowledged())
    }

    /// Marks a row. The record is in the topic by now, so the mark is tried again as long as somebody else
    /// has the database locked; to give up is to send the record twice.
    fn mark(&mut self, id: i64, event_id: &str) -> Result<()> {
        let deadline = Instant::now() + MARK_PATIENCE;
        loop {
            match self.store.mark(id)? {
                Marked::Done => break,
                Marked::NotThere => {
                    hint(&format!("the row of {event_id} is gone: somebody deleted it, so there is nothing to mark"));
                    return Ok(());
                }
                Marked::Busy if Instant::now() > deadline => {
                    return Err(Failure::failed(
                        format!("{event_id} cannot be marked: another program keeps the database locked"),
                        "end the program that holds the lock. The row is pending, so the next publish sends it (again: a \
                         duplicate, nothing lost)",
                    ));
                }
                Marked::Busy => {
                    hint(&format!("the mark of {event_id} waits: another program has the database locked"));
                }
            }
        }
        self.marked += 1;
        self.span.marked();
        self.holds.reached(CrashPoint::AfterMark)
    }
}
