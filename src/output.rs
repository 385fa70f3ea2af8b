//! The one place where commands print: each line is one value, which is either the text that the book
//! shows or one JSON object, so that the two cannot drift apart.
//!
//! Nothing that goes to standard output holds a pid, a time or a random id, but for what `stats` and `measure` print: times are
//! what they are asked for, and a relay without a name of its own signs its lease with its pid.

mod shape;

use std::fmt;
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;

use self::shape::{judged_text, n_of, path_text, record_json, stats_text};
use crate::crash::{CrashPoint, HoldAt};
use crate::event::{Counts, Position, Record};
use crate::failure::Failure;
use crate::reconcile::{Finding, Reconciliation, Tally};
use crate::relay::{Done, Left};
use crate::store::{DeadRow, Stats};
use crate::sweep::Row;
use crate::verdict::{Check, Proofs, SkippedPart, Verdict};

/// A hint, a warning or an error, on standard error.
pub fn hint(text: &str) {
    // In one piece, since others write there too. Where standard error is closed there is nobody to tell.
    let _ = io::stderr().write_all(format!("outbox-lab: {text}\n").as_bytes());
}

/// Standard output, as text or as JSON lines.
pub struct Output {
    json: bool,
    out: Mutex<BufWriter<io::Stdout>>,
}

impl Output {
    /// Text, or one JSON object a line.
    pub fn new(json: bool) -> Self {
        Self { json, out: Mutex::new(BufWriter::new(io::stdout())) }
    }

    fn out(&self) -> MutexGuard<'_, BufWriter<io::Stdout>> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Prints a line and sees it out: whoever reads it knows that what it says has happened.
    ///
    /// # Errors
    /// Standard output is closed or full.
    pub fn line(&self, line: &Line) -> Result<()> {
        self.buffered(line)?;
        self.flush()
    }

    /// Prints a line of a command that only reads and has many; [`Output::flush`] sees them out.
    ///
    /// # Errors
    /// Standard output is closed or full.
    pub fn buffered(&self, line: &Line) -> Result<()> {
        let mut out = self.out();
        let written = if self.json {
            serde_json::to_vec(line).map_err(io::Error::from).and_then(|bytes| out.write_all(&bytes))
        } else {
            line.write_text(&mut *out)
        };
        written.and_then(|()| out.write_all(b"\n")).map_err(output_failure)
    }

    /// Prints a line of a transcript.
    ///
    /// # Errors
    /// Standard output is closed or full.
    pub fn told(&self, text: &str) -> Result<()> {
        self.line(&Line::Told { text })
    }

    /// Sees out what has been printed.
    ///
    /// # Errors
    /// Standard output is closed or full.
    pub fn flush(&self) -> Result<()> {
        self.out().flush().map_err(output_failure)
    }
}

fn output_failure(error: io::Error) -> anyhow::Error {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return Failure::output_closed();
    }
    Failure::failed(
        format!("standard output cannot be written ({error}); the command stopped there"),
        "give it somewhere to write, and see by verify what was committed and marked before",
    )
}

/// The three holds for which the book has a line of its own.
#[derive(Serialize)]
#[serde(untagged)]
pub enum BookHold {
    /// naive-hold: between the commit of this loan and the send.
    Naive { loan: String },
    /// write-hold: after the last commit.
    Write {},
    /// publish-hold: between the acknowledgements of so many records and the marks.
    Publish { sent: u32 },
}

/// What is measured, for a relay to be held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measured {
    /// The records of the pending rows, sent from memory, with no database: no relay is faster
    Sends,
    /// The marks of the pending rows, in transactions of 5000, with no broker: no relay is faster
    Marks,
    /// The relay's query for the next 100 pending rows
    Polls,
    /// Records of a topic of one partition, by its high watermark
    Ends,
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.to_possible_value().as_ref().map_or("", |value| value.get_name()))
    }
}

/// What a command has to say: one line of standard output. Texts are the book's (7.1), to the letter, where
/// the book prints them.
#[derive(Serialize)]
#[serde(tag = "line", rename_all = "kebab-case")]
pub enum Line<'a> {
    /// A process is held at a crash point: by `--hold-at`, or at one where the book holds and has words of its own.
    Hold {
        command: &'static str,
        point: CrashPoint,
        nth: u32,
        #[serde(flatten)]
        book: Option<&'a BookHold>,
    },
    /// reset is done.
    SchemaReady {
        #[serde(serialize_with = "path_text")]
        db: &'a Path,
    },
    /// naive: the loan is committed.
    NaiveCommitted { loan: &'a str },
    /// naive: the event is acknowledged.
    NaiveSent {
        key: &'a str,
        #[serde(flatten)]
        at: Position,
    },
    /// write: a loan and its outbox row are committed.
    Written { i: u32, loan: &'a str, event: &'a str, business_loan: u64, outbox: u64 },
    /// rollback: the outbox row was refused. `code` is SQLite's extended result code.
    OutboxRefused { code: i32, reason: &'a str },
    /// rollback: whether the loan of the same transaction is there.
    LoanPresent { loan: &'a str, present: bool },
    /// publish-hold: a row is sent and acknowledged, and not marked.
    Sent {
        outbox_id: i64,
        key: &'a str,
        #[serde(flatten)]
        at: Position,
    },
    /// A row that was sent before is marked; `marked` counts the rows marked by this process.
    Marked { command: &'static str, outbox_id: i64, key: &'a str, marked: u32 },
    /// publish: a row is sent, acknowledged and marked; `marked` counts the rows marked by this process.
    Published {
        outbox_id: i64,
        key: &'a str,
        #[serde(flatten)]
        at: Position,
        marked: u32,
    },
    /// The relay is done.
    RelayDone { command: &'static str, sent: u32, marked: u32, unpublished_left: u64 },
    /// relay: a row was rejected for the nth time; a dead one is not tried again.
    Rejected { event: &'a str, attempt: u32, of: u32, error: &'a str, is_dead: bool },
    /// relay: a row was sent, and another relay has its lease by now.
    MarkRefused { event: &'a str },
    /// relay: it has ended.
    Relayed {
        #[serde(flatten)]
        done: Done,
        left: Left,
    },
    /// measure: how long so many took.
    Measured { what: Measured, times: u64, seconds: f64 },
    /// apply: what became of a record; `effects` counts the effects in the database.
    Applied {
        key: &'a str,
        #[serde(flatten)]
        at: Position,
        skipped: bool,
        effects: u64,
    },
    /// apply: done.
    AppliedAll { deliveries: u32, applied: u32, skipped: u32, effects: u64 },
    /// return: a loan is given back, with the outbox row of its second event.
    GivenBack { i: u32, loan: &'a str, event: &'a str, outbox: u64 },
    /// verify: the four counts.
    Verified(Counts),
    /// consume: a record. A key or payload that is not UTF-8 is printed as it is, and in JSON with U+FFFD.
    #[serde(serialize_with = "record_json")]
    Record(&'a Record),
    /// reconcile: what was counted on both sides.
    Reconciled(&'a Reconciliation),
    /// reconcile: one discrepancy.
    Finding(&'a Finding),
    /// reconcile: the records explained by the events.
    Sum { records: u64, events: u64, redelivered: u64, without_event_id: u64 },
    /// reconcile: how it compares with `--expect`.
    Expectation { expected: Tally, found: Tally, met: bool },
    /// stats: what is watched of the outbox; in text with a line for each lease. It holds times, which no transcript is made
    /// of.
    Stats(&'a Stats),
    /// purge: so many published rows are deleted.
    Purged { deleted: u64 },
    /// dead list: a dead row.
    Dead(&'a DeadRow),
    /// dead requeue: this one is pending again.
    Requeued { event_id: &'a str },
    /// dead drop: this one is deleted.
    Dropped { event_id: &'a str },
    /// fill: so many outbox rows of so many loans, with the events of these numbers.
    Filled { outbox: u32, loans: u32, first: i64, last: i64 },
    /// run and sweep: a line of the transcript.
    Told { text: &'a str },
    /// run: what an experiment came to.
    Judged {
        experiment: &'static str,
        #[serde(flatten)]
        verdict: &'a Verdict,
        proved: Proofs,
        skipped: &'a [SkippedPart],
        checks: &'a [Check],
    },
    /// sweep: a row of the matrix.
    Swept(&'a Row),
    /// sweep: what it comes to.
    SweptAll {
        kills: u32,
        passages: u32,
        #[serde(flatten)]
        verdict: &'a Verdict,
    },
    /// list: an experiment.
    Listed { experiment: &'static str, question: &'static str },
    /// broker start and status: where the embedded broker is. Its address is the one thing that is not the
    /// same in every run, and what is asked for.
    BrokerUp { bootstrap: &'a str },
    /// broker status: none is running.
    BrokerDown,
    /// broker stop: it has ended.
    BrokerStopped,
    /// clean: a topic that this lab directory made is deleted.
    TopicDeleted { topic: &'a str },
}

impl Line<'_> {
    fn write_text(&self, w: &mut dyn Write) -> io::Result<()> {
        match self {
            Self::Hold { command, point, nth, book: None } => {
                write!(w, "[{command}] HOLD at {}; kill -9 me", HoldAt { point: *point, nth: *nth })
            }
            Self::Hold { book: Some(BookHold::Naive { loan }), .. } => {
                write!(w, "[naive] business row {loan} committed; HOLD before send; kill -9 me")
            }
            Self::Hold { book: Some(BookHold::Write {}), .. } => {
                write!(w, "[write] committed all, HOLD before publish; kill -9 me")
            }
            Self::Hold { book: Some(BookHold::Publish { sent }), .. } => {
                write!(w, "[publish-hold] sent={sent}, NOT marked published; HOLD before mark; kill -9 me")
            }
            Self::SchemaReady { db } => {
                w.write_all(b"[reset] schema ready db=")?;
                w.write_all(db.as_os_str().as_bytes())
            }
            Self::NaiveCommitted { loan } => write!(w, "[naive] business row {loan} committed"),
            Self::NaiveSent { key, at } => {
                write!(w, "[naive] sent key={key} partition={} offset={}", at.partition, at.offset)
            }
            Self::Written { i, loan, event, business_loan, outbox } => {
                write!(
                    w,
                    "[write] txn i={i} loan={loan} event={event} committed business={business_loan} outbox={outbox}"
                )
            }
            Self::OutboxRefused { code, reason } => write!(w, "[rollback] outbox insert failed: {code} {reason}"),
            Self::LoanPresent { loan, present } => write!(w, "[rollback] business_loan has {loan} = {present}"),
            Self::Sent { outbox_id, key, at } => {
                write!(w, "[send] outboxId={outbox_id} key={key} partition={} offset={}", at.partition, at.offset)
            }
            Self::Marked { command, outbox_id, key, marked } => {
                write!(w, "[{command}] outboxId={outbox_id} key={key} marked={marked}")
            }
            Self::Published { outbox_id, key, at, marked } => {
                write!(w, "[publish] outboxId={outbox_id} key={key} offset={} marked={marked}", at.offset)
            }
            Self::RelayDone { command, sent, marked, unpublished_left } => {
                write!(w, "[{command}] sent={sent} marked={marked} unpublished-left={unpublished_left}")
            }
            Self::Rejected { event, attempt, of, error, is_dead } => {
                let then = if *is_dead { ": dead" } else { "" };
                write!(w, "[relay] {event} rejected, attempt {attempt} of {of}: {error}{then}")
            }
            Self::MarkRefused { event } => write!(w, "[relay] mark of {event} refused: another relay has its lease"),
            Self::Relayed { done, left } => {
                let Done { acknowledged, marked, refused, rejected, dead } = done;
                write!(w, "[relay] acknowledged={acknowledged} marked={marked} refused={refused} ")?;
                write!(w, "rejected={rejected} dead={dead} left={}", left.rows())?;
                if left.rows() > 0 { write!(w, " ({left})") } else { Ok(()) }
            }
            Self::Measured { what, times, seconds } => {
                write!(w, "[measure] {what} times={times} seconds={seconds:.6}")
            }
            Self::Applied { key, at, skipped, effects } => {
                let what = if *skipped { "skipped" } else { "applied" };
                write!(w, "[apply] key={key} partition={} offset={} {what} effects={effects}", at.partition, at.offset)
            }
            Self::AppliedAll { deliveries, applied, skipped, effects } => {
                write!(w, "[apply] deliveries={deliveries} applied={applied} skipped={skipped} effects={effects}")
            }
            Self::GivenBack { i, loan, event, outbox } => {
                write!(w, "[return] txn i={i} loan={loan} event={event} committed outbox={outbox}")
            }
            Self::Verified(counts) => write!(
                w,
                "[verify] business_loan={} outbox={} published={} unpublished={}",
                counts.business_loan, counts.outbox, counts.published, counts.unpublished
            ),
            Self::Record(record) => {
                w.write_all(record.key.as_deref().unwrap_or(b"null"))?;
                w.write_all(b",")?;
                w.write_all(record.payload.as_deref().unwrap_or(b"null"))
            }
            Self::Reconciled(Reconciliation { tally, published, .. }) => write!(
                w,
                "[reconcile] business_loan={} outbox={} published={published} records={} distinct_event_ids={}",
                tally.business_loan, tally.outbox, tally.records, tally.distinct_event_ids
            ),
            Self::Finding(finding) => write!(w, "[reconcile] {finding}"),
            Self::Sum { records, events, redelivered, without_event_id } => {
                write!(
                    w,
                    "[reconcile] {} = {} + {redelivered} redelivered",
                    n_of(*records, "record"),
                    n_of(*events, "event")
                )?;
                match without_event_id {
                    0 => Ok(()),
                    n => write!(w, " + {n} without an event id"),
                }
            }
            Self::Expectation { found, met: true, .. } => write!(w, "[reconcile] {found} as expected"),
            Self::Expectation { expected, found, met: false } if expected == found => {
                write!(
                    w,
                    "[reconcile] {found}, but made up of events that should not be there or are missing: see above"
                )
            }
            Self::Expectation { expected, found, met: false } => {
                write!(w, "[reconcile] expected {expected}, found {found}")
            }
            Self::Stats(stats) => stats_text(stats, w),
            Self::Purged { deleted } => write!(w, "[purge] deleted={deleted}"),
            Self::Dead(DeadRow { outbox_id, event_id, aggregate_id, attempts, last_error }) => write!(
                w,
                "[dead] outboxId={outbox_id} event={event_id} aggregate={aggregate_id} attempts={attempts} \
                 error={last_error:?}"
            ),
            Self::Requeued { event_id } => write!(w, "[dead] event={event_id} requeued"),
            Self::Dropped { event_id } => write!(w, "[dead] event={event_id} dropped"),
            Self::Filled { outbox, loans, first, last } => {
                write!(w, "[fill] outbox={outbox} loans={loans} events=evt-{first}..evt-{last}")
            }
            Self::Told { text } => w.write_all(text.as_bytes()),
            Self::Judged { verdict, proved, skipped, .. } => judged_text(verdict, *proved, skipped.len(), w),
            Self::Swept(row) => write!(w, "{row}"),
            Self::SweptAll { kills, passages, verdict } => {
                write!(w, "{kills} kills proved of {passages} passages: {verdict}")
            }
            Self::Listed { experiment, question } => write!(w, "{experiment:<20} {question}"),
            Self::BrokerUp { bootstrap } => write!(w, "[broker] up {bootstrap}"),
            Self::BrokerDown => write!(w, "[broker] down"),
            Self::BrokerStopped => write!(w, "[broker] stopped"),
            Self::TopicDeleted { topic } => write!(w, "[clean] topic deleted {topic}"),
        }
    }
}
