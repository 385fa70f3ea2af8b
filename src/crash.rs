//! Crash points: the typed, named places where a lab process can die, and the hold that parks it there
//! until an external `kill -9`.
//!
//! A lab process never crashes itself. It stops at the point and waits, so that the death comes from
//! outside, as in the book (7.1), and leaves no time for any cleanup.

use std::fmt;
use std::str::FromStr;

use anyhow::Result;
use clap::ValueEnum;
use nix::sys::signal::{SigSet, Signal};

use crate::failure::{Exit, Failure};
use crate::output::{BookHold, Line, Output, hint};

/// A place where a lab process can die.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CrashPoint {
    /// reset: the topic is fresh, the schema still the old one
    AfterTopic,
    /// verify: before it counts
    BeforeCount,
    /// in the transaction, the loan row inserted
    AfterLoanRow,
    /// in the transaction, the outbox row inserted too
    AfterOutboxRow,
    /// the transaction committed
    AfterCommit,
    /// the next step is the send
    BeforeSend,
    /// handed to the Kafka client, not yet acknowledged; the client's own threads go on while it is held
    Sent,
    /// the broker has acknowledged
    AfterAck,
    /// the next step is the transaction that marks a row as published
    BeforeMark,
    /// that row is marked
    AfterMark,
}

impl fmt::Display for CrashPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.to_possible_value().as_ref().map_or("", |value| value.get_name()))
    }
}

/// `POINT[@NTH]`: hold when this point is reached for the nth time in the process, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldAt {
    /// Where to hold.
    pub point: CrashPoint,
    /// At which passage, from 1.
    pub nth: u32,
}

impl HoldAt {
    /// The nth passage of a point.
    pub fn new(point: CrashPoint, nth: u32) -> Self {
        Self { point, nth }
    }
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

/// Every crash point with its meaning, a line each.
pub fn catalogue() -> String {
    let row = |point: &CrashPoint| {
        let value = point.to_possible_value();
        let help = value.as_ref().and_then(|value| value.get_help()).map(ToString::to_string);
        format!("  {point:<17} {}", help.unwrap_or_default())
    };
    CrashPoint::value_variants().iter().map(row).collect::<Vec<_>>().join("\n")
}

/// Keeps SIGUSR1 for the holds of this process. To be called first in `main`: threads inherit the mask, and
/// a thread without it would die of the signal that is meant to let a held process go on.
pub fn prepare() {
    // The only possible error is a signal set that the system does not know; SIGUSR1 it does.
    let _ = go_on().thread_block();
}

fn go_on() -> SigSet {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGUSR1);
    signals
}

/// The holds of one process: where to stop, and how often each point has been passed.
pub struct Crash<'a> {
    command: &'static str,
    out: &'a Output,
    wanted: Vec<HoldAt>,
    book: Option<HoldAt>,
    passages: Vec<(CrashPoint, u32)>,
    missed: Vec<HoldAt>,
}

impl<'a> Crash<'a> {
    /// `command` has the crash points `points`; it is to stop at each of `wanted`, and with the book's words
    /// at `book`.
    ///
    /// # Errors
    /// Usage, if a wanted point is not one of the command's: it would silently never be reached.
    pub fn new(
        command: &'static str,
        points: &[CrashPoint],
        wanted: &[HoldAt],
        book: Option<HoldAt>,
        out: &'a Output,
    ) -> Result<Self> {
        if let Some(hold) = wanted.iter().find(|hold| !points.contains(&hold.point)) {
            let names: Vec<_> = points.iter().map(ToString::to_string).collect();
            return Err(Failure::usage(
                format!("{command} never reaches the crash point {}", hold.point),
                format!("its crash points are {}", names.join(", ")),
            ));
        }
        let missed = wanted.iter().copied().chain(book).collect();
        Ok(Self { command, out, wanted: wanted.to_vec(), book, passages: Vec::new(), missed })
    }

    /// Can this process be held at this point at all?
    pub fn may_hold_at(&self, point: CrashPoint) -> bool {
        self.wanted.iter().any(|hold| hold.point == point)
    }

    /// The process has come to `point`: if it is to stop here, it says so and waits to be killed.
    pub fn reached(&mut self, point: CrashPoint) -> Result<()> {
        let here = self.pass(point);
        self.hold_if_wanted(here)
    }

    /// As [`Crash::reached`], for the three places where the book prints a HOLD line of its own.
    pub fn reached_in_book(&mut self, point: CrashPoint, book: &BookHold) -> Result<()> {
        let here = self.pass(point);
        if self.book == Some(here) {
            self.hold(here, Some(book))?;
        }
        self.hold_if_wanted(here)
    }

    /// How a command that has come to its end exits: a hold that was asked for and never reached is
    /// inconclusive, since whoever asked for it wanted to kill there.
    pub fn exit(&self) -> Exit {
        for hold in &self.missed {
            let times = self.times(hold.point);
            hint(&format!(
                "{} ended without reaching {hold}: it came to {} {times} time{}. Nothing was held, nothing killed.",
                self.command,
                hold.point,
                if times == 1 { "" } else { "s" }
            ));
        }
        if self.missed.is_empty() { Exit::Done } else { Exit::Inconclusive }
    }

    fn times(&self, point: CrashPoint) -> u32 {
        self.passages.iter().find(|(passed, _)| *passed == point).map_or(0, |(_, times)| *times)
    }

    fn pass(&mut self, point: CrashPoint) -> HoldAt {
        let nth = self.times(point) + 1;
        self.passages.retain(|(passed, _)| *passed != point);
        self.passages.push((point, nth));
        HoldAt { point, nth }
    }

    fn hold_if_wanted(&mut self, here: HoldAt) -> Result<()> {
        if self.wanted.contains(&here) {
            self.hold(here, None)?;
        }
        Ok(())
    }

    fn hold(&mut self, here: HoldAt, book: Option<&BookHold>) -> Result<()> {
        self.missed.retain(|hold| *hold != here);
        let pid = std::process::id();
        // The hint first: whoever waits for the HOLD line may kill as soon as it is there.
        hint(&format!("held at {here}, pid {pid}: kill -9 {pid} (or kill -USR1 {pid} to let it go on)"));
        self.out.line(&Line::Hold { command: self.command, at: here.to_string(), book })?;
        // sigwait uses no processor. SIGKILL, Ctrl-C and SIGTERM end the process as they always do.
        go_on().wait()?;
        Ok(())
    }
}
