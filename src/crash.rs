//! Crash points: the typed, named places where a lab process can die, and the hold that parks it there
//! until an external `kill -9`.
//!
//! A lab process never crashes itself. It stops at the point and waits, so that the death comes from
//! outside, as in the book (7.1), and leaves no time for any cleanup.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use clap::ValueEnum;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;

use crate::cli::HoldArgs;
use crate::failure::{Exit, Failure};
use crate::output::{BookHold, Line, Output, hint};

/// A place where a lab process can die.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CrashPoint {
    /// the topic is fresh, the schema still the old one
    AfterTopic,
    /// the next step is the count
    BeforeCount,
    /// in the transaction, the loan row inserted
    AfterLoanRow,
    /// in the transaction, the outbox row inserted too
    AfterOutboxRow,
    /// the transaction committed
    AfterCommit,
    /// the relay has claimed its lease
    AfterClaim,
    /// the relay has read a batch of rows
    AfterFetch,
    /// the next step is the send
    BeforeSend,
    /// handed to the Kafka client, not yet acknowledged; the client's own threads go on while it is held
    Sent,
    /// acknowledged by the broker
    AfterAck,
    /// the next step is the transaction that marks a row as published
    BeforeMark,
    /// marked as published
    AfterMark,
    /// all rows are sent in a Kafka transaction, and the next step is its commit
    BeforeBrokerCommit,
    /// the broker has committed the Kafka transaction
    AfterBrokerCommit,
    /// the consumer's effect is committed
    AfterEffect,
    /// the consumer's offset is committed
    AfterOffsetCommit,
    /// a small transaction of the purge is committed, with what it deleted
    AfterPurgeChunk,
}

use CrashPoint::{
    AfterAck, AfterBrokerCommit, AfterClaim, AfterCommit, AfterEffect, AfterFetch, AfterLoanRow, AfterMark,
    AfterOffsetCommit, AfterOutboxRow, AfterPurgeChunk, AfterTopic, BeforeBrokerCommit, BeforeCount, BeforeMark,
    BeforeSend, Sent,
};

/// Which command passes which points, in the order in which it comes to them first.
const POINTS: &[(&str, &[CrashPoint])] = &[
    ("reset", &[AfterTopic]),
    ("naive", &[AfterLoanRow, AfterCommit, BeforeSend, Sent, AfterAck]),
    ("naive-hold", &[AfterLoanRow, AfterCommit, BeforeSend, Sent, AfterAck]),
    ("write", &[AfterLoanRow, AfterOutboxRow, AfterCommit]),
    ("write-hold", &[AfterLoanRow, AfterOutboxRow, AfterCommit]),
    ("return", &[AfterLoanRow, AfterOutboxRow, AfterCommit]),
    ("rollback", &[AfterLoanRow]),
    ("publish", &[BeforeSend, Sent, AfterAck, BeforeBrokerCommit, AfterBrokerCommit, BeforeMark, AfterMark]),
    ("publish-hold", &[BeforeSend, Sent, AfterAck, BeforeMark, AfterMark]),
    ("relay", &[AfterClaim, AfterFetch, BeforeSend, Sent, AfterAck, BeforeMark, AfterMark]),
    ("verify", &[BeforeCount]),
    ("apply", &[AfterEffect, AfterOffsetCommit]),
    ("purge", &[AfterPurgeChunk]),
];

impl fmt::Display for CrashPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.to_possible_value().as_ref().map_or("", |value| value.get_name()))
    }
}

/// `POINT[@NTH]`: hold when this point is reached for the nth time in the process, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HoldAt {
    /// Where to hold.
    pub point: CrashPoint,
    /// At which passage, from 1.
    pub nth: u32,
}

impl fmt::Display for HoldAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.nth {
            1 => write!(f, "{}", self.point),
            nth => write!(f, "{}@{nth}", self.point),
        }
    }
}

impl FromStr for HoldAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, nth) = text.split_once('@').unwrap_or((text, "1"));
        let point = CrashPoint::from_str(name, false)
            .map_err(|_| format!("there is no crash point \"{name}\"; the crash points are\n{}", catalogue()))?;
        match nth.parse() {
            Ok(nth) if nth > 0 => Ok(Self { point, nth }),
            _ => Err(format!("\"{nth}\" is not a passage: write {name}@1 for the first, {name}@2 for the second")),
        }
    }
}

/// Every crash point with its meaning and the commands that pass it, a line each.
fn catalogue() -> String {
    let row = |point: &CrashPoint| {
        let value = point.to_possible_value();
        let help = value.as_ref().and_then(|value| value.get_help()).map(ToString::to_string);
        let passed_by = POINTS.iter().filter(|(_, points)| points.contains(point)).map(|(command, _)| *command);
        format!("  {point:<20} {} ({})", help.unwrap_or_default(), passed_by.collect::<Vec<_>>().join(", "))
    };
    CrashPoint::value_variants().iter().map(row).collect::<Vec<_>>().join("\n")
}

/// Keeps SIGUSR1 for the holds of this process, and heeds the signals that are to end it. To be called first in `main`:
/// threads inherit the mask, and a thread without it would die of the signal that is meant to let a held process go on.
pub fn prepare() {
    // The only possible error is a signal set that the system does not know; these it does.
    let _ = go_on().thread_block();
    // A run waits for these itself, and what it starts inherits that.
    let _ = ending_signals().thread_unblock();
}

/// The signals by which a user or a system ends a process: Ctrl-C, SIGTERM, and the end of its terminal.
pub fn ending_signals() -> SigSet {
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect()
}

/// A SIGUSR1 that came before the hold was meant for another: it must not let this one go on. One more of the same
/// kind makes certain that there is one to take away; signals of a kind do not queue.
fn forget_early_signals() -> Result<()> {
    kill(Pid::this(), Signal::SIGUSR1)?;
    go_on().wait()?;
    Ok(())
}

fn go_on() -> SigSet {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGUSR1);
    signals
}

/// The holds of a process whose threads come to crash points. While one is held, the others go no further than to the next.
pub struct SharedHolds<'a, 'b> {
    holds: Mutex<&'a mut Holds<'b>>,
    /// Nothing is asked of a process that is neither to be held nor to count.
    is_asked: bool,
}

impl<'a, 'b> SharedHolds<'a, 'b> {
    /// Those of this process.
    pub fn of(holds: &'a mut Holds<'b>) -> Self {
        let is_asked = holds.trace || !holds.wanted.is_empty();
        Self { holds: Mutex::new(holds), is_asked }
    }

    /// As [`Holds::reached`].
    ///
    /// # Errors
    /// Standard output is closed or full.
    pub fn reached(&self, point: CrashPoint) -> Result<()> {
        if !self.is_asked {
            return Ok(());
        }
        self.holds.lock().unwrap_or_else(PoisonError::into_inner).reached(point)
    }
}

static HELD: AtomicBool = AtomicBool::new(false);

/// Is this process held at this moment?
pub fn is_held() -> bool {
    HELD.load(Ordering::SeqCst)
}

/// The holds of one process: where to stop, and how often each point has been passed.
pub struct Holds<'a> {
    command: &'static str,
    out: &'a Output,
    wanted: Vec<Hold>,
    passages: Vec<(CrashPoint, u32)>,
    trace: bool,
}

struct Hold {
    at: HoldAt,
    /// With the words that the book has for it?
    in_book: bool,
    reached: bool,
}

impl<'a> Holds<'a> {
    /// `command` is to stop at each of those that `args` asks for, and with the book's words at `book`.
    ///
    /// # Errors
    /// Usage, if one of them is not a point of the command: it would silently never be reached.
    pub fn new(
        command: &'static str,
        args: &HoldArgs,
        book: Option<(CrashPoint, u32)>,
        out: &'a Output,
    ) -> Result<Self> {
        let hold_at = &args.hold_at;
        let points = POINTS.iter().find(|(name, _)| *name == command).map_or(&[][..], |(_, points)| points);
        if let Some(hold) = hold_at.iter().find(|hold| !points.contains(&hold.point)) {
            let names: Vec<_> = points.iter().map(ToString::to_string).collect();
            return Err(Failure::usage(
                format!("{command} never reaches the crash point {}", hold.point),
                format!("its crash points are {}", names.join(", ")),
            ));
        }
        let book = book.map(|(point, nth)| HoldAt { point, nth });
        // Asked for twice, one passage is still one hold; and the book's words go before the general ones.
        let plain = hold_at.iter().copied().filter(|hold| Some(*hold) != book);
        let wanted = book.map(|at| Hold { at, in_book: true, reached: false }).into_iter();
        let wanted = wanted.chain(plain.map(|at| Hold { at, in_book: false, reached: false })).collect();
        Ok(Self { command, out, wanted, passages: Vec::new(), trace: args.trace })
    }

    /// The command whose holds these are.
    pub fn command(&self) -> &'static str {
        self.command
    }

    /// Is it to be said how often each point was passed, and how long it took?
    pub fn is_traced(&self) -> bool {
        self.trace
    }

    /// Can this process be held at this point at all?
    pub fn may_hold_at(&self, point: CrashPoint) -> bool {
        self.wanted.iter().any(|hold| hold.at.point == point)
    }

    /// The process has come to `point`: if it is to stop here, it says so and waits to be killed.
    pub fn reached(&mut self, point: CrashPoint) -> Result<()> {
        self.reached_in_book(point, None)
    }

    /// As [`Holds::reached`], for the three places where the book prints a HOLD line of its own.
    pub fn reached_in_book(&mut self, point: CrashPoint, book: Option<&BookHold>) -> Result<()> {
        let here = self.pass(point);
        let Some(hold) = self.wanted.iter_mut().find(|hold| hold.at == here) else { return Ok(()) };
        hold.reached = true;
        let book = book.filter(|_| hold.in_book);
        self.tell_passages();
        forget_early_signals()?;
        let pid = std::process::id();
        // The hint first: whoever waits for the HOLD line may kill as soon as it is there.
        hint(&format!("held at {here}, pid {pid}: kill -9 {pid} (or kill -USR1 {pid} to let it go on)"));
        self.out.line(&Line::Hold { command: self.command, point, nth: here.nth, book })?;
        // sigwait uses no processor. SIGKILL, Ctrl-C and SIGTERM end the process as they always do.
        HELD.store(true, Ordering::SeqCst);
        go_on().wait()?;
        HELD.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// How a command that has come to its end exits: a hold that was asked for and never reached is
    /// inconclusive, since whoever asked for it wanted to kill there.
    pub fn settle(&self, exit: Exit) -> Exit {
        self.tell_passages();
        let mut exit = exit;
        for hold in self.wanted.iter().filter(|hold| !hold.reached) {
            let times = self.passages.iter().find(|(point, _)| *point == hold.at.point).map_or(0, |(_, times)| *times);
            hint(&format!(
                "{} ended without reaching {}: it came to {} {times} time{}. Nothing was held, nothing killed.",
                self.command,
                hold.at,
                hold.at.point,
                if times == 1 { "" } else { "s" }
            ));
            if exit == Exit::Done {
                exit = Exit::Inconclusive;
            }
        }
        exit
    }

    fn tell_passages(&self) {
        for (point, times) in self.passages.iter().filter(|_| self.trace) {
            hint(&format!("passed {point} {times}"));
        }
    }

    fn pass(&mut self, point: CrashPoint) -> HoldAt {
        let nth = match self.passages.iter_mut().find(|(passed, _)| *passed == point) {
            Some((_, times)) => {
                *times += 1;
                *times
            }
            None => {
                self.passages.push((point, 1));
                1
            }
        };
        HoldAt { point, nth }
    }
}
