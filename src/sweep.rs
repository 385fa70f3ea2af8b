//! The sweep: every strategy, killed at every passage of every crash point that it has. First it runs without a kill and
//! counts the points (the calibration, and the control that must be clean); then once for each: hold there, SIGKILL,
//! restart, drain, reconcile.

mod bench;
mod matrix;

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::Result;
use clap::ValueEnum;

use self::bench::{Bench, Job};
use self::matrix::{Harm, Nature};
pub use self::matrix::{Row, head, judge};
use crate::crash::HoldAt;
use crate::lab::Lab;
use crate::trial::{Receipts, process};

/// A way to write to two systems, or to read from one into the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Strategy {
    /// commit the loan, then send its event
    WriteThenSend,
    /// send the event, then commit the loan
    SendThenWrite,
    /// loan and outbox row in one transaction
    OutboxWrite,
    /// the relay, in the right order
    ConfirmThenMark,
    /// the relay, in the wrong order
    MarkThenSend,
    /// the relay for production: batches of two rows, under a lease
    Relay,
    /// a consumer whose effects are just made
    NaiveConsumer,
    /// a consumer with an inbox in the effect's transaction
    IdempotentConsumer,
}

use Strategy::{
    ConfirmThenMark, IdempotentConsumer, MarkThenSend, NaiveConsumer, OutboxWrite, Relay, SendThenWrite, WriteThenSend,
};

/// Rows of a relay's batch.
const BATCH: u32 = 2;

impl Strategy {
    /// As it is named on the command line.
    pub fn name(self) -> &'static str {
        match self {
            WriteThenSend => "write-then-send",
            SendThenWrite => "send-then-write",
            OutboxWrite => "outbox-write",
            ConfirmThenMark => "confirm-then-mark",
            MarkThenSend => "mark-then-send",
            Relay => "relay",
            NaiveConsumer => "naive-consumer",
            IdempotentConsumer => "idempotent-consumer",
        }
    }

    /// Is a kill to do harm somewhere, and which?
    pub fn nature(self) -> Nature {
        match self {
            OutboxWrite | ConfirmThenMark | Relay | IdempotentConsumer => Nature::Sound,
            WriteThenSend => Nature::Faulty(Harm::OrphanRow),
            SendThenWrite => Nature::Faulty(Harm::PhantomEvent),
            MarkThenSend => Nature::Faulty(Harm::LostEvent),
            NaiveConsumer => Nature::Faulty(Harm::DoubleEffect),
        }
    }

    /// Can several records be in flight when it is killed? Then how many of them are sent again may vary.
    fn sends_several(self) -> bool {
        self == Relay
    }

    /// How many records there are when it is held at its nth *sent*.
    fn sent_by(self, nth: u32, rows: u32) -> u32 {
        if self == Relay { rows.min(nth * BATCH) } else { nth }
    }

    /// What it starts with.
    fn finds(self) -> Rows {
        match self {
            WriteThenSend | SendThenWrite | OutboxWrite => Rows::None,
            ConfirmThenMark | MarkThenSend | Relay => Rows::Written,
            NaiveConsumer | IdempotentConsumer => Rows::Published,
        }
    }

    /// What is killed.
    fn command(self, rows: u32) -> String {
        match self {
            WriteThenSend => "naive".to_owned(),
            SendThenWrite => "naive --send-first".to_owned(),
            OutboxWrite => format!("write {rows}"),
            ConfirmThenMark => format!("publish {rows}"),
            MarkThenSend => format!("publish {rows} --mark-first"),
            // Under its name it takes over at once from the one that was killed.
            Relay => format!("relay --batch {BATCH} --owner sweep"),
            NaiveConsumer => "apply".to_owned(),
            IdempotentConsumer => "apply --inbox".to_owned(),
        }
    }

    /// The restart, and what drains after it. A strategy without an outbox has nothing to resume: its restart is the next
    /// loan.
    fn restarted_by(self, rows: u32) -> String {
        match self {
            OutboxWrite => format!("publish {rows}"),
            _ => self.command(rows),
        }
    }
}

/// The rows that a strategy finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rows {
    /// None: it writes them itself.
    None,
    /// Loans, and their pending outbox rows.
    Written,
    /// The same, as a relay has left them: sent and marked. The strategy is a consumer.
    Published,
}

/// What a sweep is about.
pub struct Sweep<'a> {
    /// The lab in whose directory it plays.
    pub lab: &'a Lab,
    /// The strategies, in the order of the matrix.
    pub strategies: &'a [Strategy],
    /// Rows that each strategy works on.
    pub rows: u32,
    /// Where each kill leaves its proof.
    pub receipts: &'a Receipts,
}

impl Sweep<'_> {
    /// Plays it. Kills that are not proved are missing from their rows; why, is told on
    /// standard error.
    ///
    /// # Errors
    /// A strategy cannot be calibrated, or the lab cannot play at all.
    pub fn play(&self) -> Result<Swept> {
        let mut rows = Vec::new();
        let mut jobs = Vec::new();
        let mut bench = Bench::new(self, 0)?;
        for &strategy in self.strategies {
            let (control, points) = bench.calibrate(strategy)?;
            rows.push(control);
            for HoldAt { point, nth: passages } in points {
                let row = rows.len();
                let varies = strategy.sends_several();
                rows.push(Row { varies, ..Row::new(strategy.name(), Some(point), passages) });
                jobs.extend((1..=passages).map(|nth| Job { row, strategy, at: HoldAt { point, nth } }));
            }
        }
        let mut benches = self.benches(bench, jobs.len())?;
        let rows = Mutex::new(rows);
        let begun = Instant::now();
        side_by_side(&mut benches, &jobs, &|bench, job| bench.work(*job, &rows))?;
        let seconds = begun.elapsed().as_secs_f64();
        benches.iter().try_for_each(|bench| process::clean(&bench.lab))?;
        Ok(Swept { rows: rows.into_inner().unwrap_or_else(PoisonError::into_inner), seconds })
    }

    /// The bare loop that a sweep is measured against: spawn, commit, acknowledgement, kill, and nothing else. Returns the
    /// seconds that it took.
    ///
    /// # Errors
    /// The lab cannot play at all.
    pub fn bare(&self, kills: u32) -> Result<f64> {
        let jobs: Vec<u32> = (0..kills).collect();
        let mut benches = self.benches(Bench::new(self, 0)?, jobs.len())?;
        let begun = Instant::now();
        side_by_side(&mut benches, &jobs, &|bench, _| {
            process::hold(&bench.lab, "naive --hold-at after-ack")?.kill().map(|_| ())
        })?;
        let seconds = begun.elapsed().as_secs_f64();
        benches.iter().try_for_each(|bench| process::clean(&bench.lab))?;
        Ok(seconds)
    }

    /// As many benches as there are cores, or jobs if those are fewer.
    fn benches<'a>(&'a self, first: Bench<'a>, jobs: usize) -> Result<Vec<Bench<'a>>> {
        let workers = thread::available_parallelism().map_or(1, usize::from).min(jobs.max(1));
        let mut benches = vec![first];
        for nth in 1..workers {
            benches.push(Bench::new(self, nth)?);
        }
        Ok(benches)
    }
}

/// Works jobs off, a thread for each bench.
fn side_by_side<J: Sync>(
    benches: &mut [Bench],
    jobs: &[J],
    work: &(impl Fn(&mut Bench, &J) -> Result<()> + Sync),
) -> Result<()> {
    let next = &AtomicUsize::new(0);
    let work_off = move |bench: &mut Bench| -> Result<()> {
        loop {
            let nth = next.fetch_add(1, Ordering::Relaxed);
            progress(nth.min(jobs.len()), jobs.len());
            match jobs.get(nth) {
                Some(job) => work(bench, job)?,
                None => return Ok(()),
            }
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = benches.iter_mut().map(|bench| scope.spawn(move || work_off(bench))).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(done) => done,
            Err(_) => anyhow::bail!("a worker of the sweep died"),
        })
    })
}

/// What a sweep comes to.
pub struct Swept {
    /// The matrix.
    pub rows: Vec<Row>,
    /// How long the kills took, calibration not counted.
    pub seconds: f64,
}

/// A bar for whoever watches a terminal.
fn progress(done: usize, all: usize) {
    const WIDTH: usize = 40;
    let mut err = io::stderr();
    if !err.is_terminal() {
        return;
    }
    let filled = WIDTH * done / all.max(1);
    let end = if done == all { "\r\x1b[K" } else { "" };
    let bar = format!("\r[{}{}] {done}/{all}{end}", "#".repeat(filled), ".".repeat(WIDTH - filled));
    let _ = err.write_all(bar.as_bytes());
}
