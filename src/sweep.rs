//! The sweep: every strategy, killed at every passage of every crash point that it has. First it runs without a kill and
//! counts the points (the calibration, and the control that must be clean); then once for each: hold there, SIGKILL,
//! restart, drain, reconcile.

mod matrix;

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::ValueEnum;

use self::matrix::{Found, Harm, Nature};
pub use self::matrix::{Row, head, judge};
use crate::broker::{Cluster, Ending, InFlight, Publisher, Reader, Watch};
use crate::crash::{CrashPoint, HoldAt};
use crate::failure::{Exit, Failure};
use crate::lab::Lab;
use crate::output::hint;
use crate::reconcile::Reconciliation;
use crate::store::Store;
use crate::trial::{Left, Receipt, fresh_folder, process};

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
    /// a consumer whose effects are just made
    NaiveConsumer,
    /// a consumer with an inbox in the effect's transaction
    IdempotentConsumer,
}

use Strategy::{
    ConfirmThenMark, IdempotentConsumer, MarkThenSend, NaiveConsumer, OutboxWrite, SendThenWrite, WriteThenSend,
};

impl Strategy {
    /// As it is named on the command line.
    pub fn name(self) -> &'static str {
        match self {
            WriteThenSend => "write-then-send",
            SendThenWrite => "send-then-write",
            OutboxWrite => "outbox-write",
            ConfirmThenMark => "confirm-then-mark",
            MarkThenSend => "mark-then-send",
            NaiveConsumer => "naive-consumer",
            IdempotentConsumer => "idempotent-consumer",
        }
    }

    /// Is a kill to do harm somewhere, and which?
    pub fn nature(self) -> Nature {
        match self {
            OutboxWrite | ConfirmThenMark | IdempotentConsumer => Nature::Sound,
            WriteThenSend => Nature::Faulty(Harm::OrphanRow),
            SendThenWrite => Nature::Faulty(Harm::PhantomEvent),
            MarkThenSend => Nature::Faulty(Harm::LostEvent),
            NaiveConsumer => Nature::Faulty(Harm::DoubleEffect),
        }
    }

    /// Are the rows written before it starts?
    fn finds_rows(self) -> bool {
        !matches!(self, WriteThenSend | SendThenWrite | OutboxWrite)
    }

    /// What is killed.
    fn command(self, rows: u32) -> String {
        match self {
            WriteThenSend => "naive".to_owned(),
            SendThenWrite => "naive --send-first".to_owned(),
            OutboxWrite => format!("write {rows}"),
            ConfirmThenMark => format!("publish {rows}"),
            MarkThenSend => format!("publish {rows} --mark-first"),
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

    fn is_consumer(self) -> bool {
        matches!(self, NaiveConsumer | IdempotentConsumer)
    }
}

/// What a sweep is about.
pub struct Sweep<'a> {
    /// The lab in whose directory it plays.
    pub lab: &'a Lab,
    /// The strategies, in the order of the matrix.
    pub strategies: &'a [Strategy],
    /// Rows that each strategy works on.
    pub rows: u32,
    /// What sets this run's topics apart on a real Kafka.
    pub suffix: &'a str,
}

/// One kill to be made.
#[derive(Clone, Copy)]
struct Job {
    row: usize,
    strategy: Strategy,
    at: HoldAt,
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
        let bench = Bench::new(self, 0)?;
        for &strategy in self.strategies {
            let (control, points) = bench.calibrate(strategy)?;
            rows.push(control);
            for (point, passages) in points {
                let row = rows.len();
                rows.push(Row::new(strategy.name(), Some(point), passages));
                jobs.extend((1..=passages).map(|nth| Job { row, strategy, at: HoldAt { point, nth } }));
            }
        }
        let benches = self.benches(bench, jobs.len())?;
        let rows = Mutex::new(rows);
        let begun = Instant::now();
        side_by_side(&benches, &jobs, &|bench, job| bench.work(*job, &rows))?;
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
        let benches = self.benches(Bench::new(self, 0)?, jobs.len())?;
        let begun = Instant::now();
        side_by_side(&benches, &jobs, &|bench, _| {
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
    benches: &[Bench],
    jobs: &[J],
    work: &(impl Fn(&Bench, &J) -> Result<()> + Sync),
) -> Result<()> {
    let next = &AtomicUsize::new(0);
    let work_off = move |bench: &Bench| -> Result<()> {
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
        let workers: Vec<_> = benches.iter().map(|bench| scope.spawn(move || work_off(bench))).collect();
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

/// Where one worker plays: a lab directory of its own with a broker of its own, a database and a topic for each trial.
struct Bench<'a> {
    sweep: &'a Sweep<'a>,
    lab: Lab,
    cluster: Cluster,
    watch: Watch,
    receipts: PathBuf,
    trials: AtomicUsize,
}

impl<'a> Bench<'a> {
    fn new(sweep: &'a Sweep<'a>, nth: usize) -> Result<Self> {
        let dir = fresh_folder(sweep.lab, &format!("sweep-{nth}"))?;
        let topic = format!("outbox-lab.sweep-{nth}.{}", sweep.suffix);
        let lab = Lab { db: dir.join("0.db"), dir, topic, ..sweep.lab.clone() };
        process::at_work(&lab);
        let cluster = Cluster::ensure(&lab)?;
        let watch = Watch::connect(&lab, &cluster)?;
        let receipts = sweep.lab.dir.join("receipts.jsonl");
        let bench = Self { sweep, lab, cluster, watch, receipts, trials: AtomicUsize::new(0) };
        for strategy in [ConfirmThenMark, OutboxWrite] {
            bench.make_template(strategy)?;
        }
        Ok(bench)
    }

    /// One job; a kill that is not proved is told of, and missing from its row.
    fn work(&self, job: Job, rows: &Mutex<Vec<Row>>) -> Result<()> {
        match self.kill(job).map_err(Failure::from) {
            Ok(found) => rows.lock().unwrap_or_else(PoisonError::into_inner)[job.row].add_kill(&found),
            Err(failure) if failure.exit == Exit::Inconclusive => {
                hint(&format!("{} at {}: {failure}", job.strategy.name(), job.at));
            }
            Err(failure) => return Err(failure.into()),
        }
        Ok(())
    }

    /// Runs a strategy without a kill: what is left must be clean, and the points that it passed are counted.
    fn calibrate(&self, strategy: Strategy) -> Result<(Row, Vec<(CrashPoint, u32)>)> {
        let lab = self.trial(strategy)?;
        let line = format!("{} --trace", strategy.command(self.sweep.rows));
        let ended = process::run(&lab, &line)?;
        ended.expect(&line, Exit::Done)?;
        let mut points = Vec::new();
        for said in &ended.said {
            if let Some((point, times)) = said.strip_prefix("outbox-lab: passed ").and_then(|rest| rest.split_once(' '))
            {
                let at = HoldAt::from_str(point).map_err(|reason| anyhow::anyhow!(reason))?;
                points.push((at.point, times.parse().context("a count of passages")?));
            }
        }
        self.drain(strategy, &lab)?;
        let mut control = Row::new(strategy.name(), None, 0);
        control.found = self.look(strategy, &mut Store::open(&lab.db)?, &lab)?;
        Ok((control, points))
    }

    /// One trial: hold, kill, restart, drain, reconcile.
    fn kill(&self, job: Job) -> Result<Found> {
        let lab = self.trial(job.strategy)?;
        // Open from first to last: whoever closes a database last folds its -wal in, which takes longer than the trial.
        let mut store = Store::open(&lab.db)?;
        let line = format!("{} --hold-at {}", job.strategy.command(self.sweep.rows), job.at);
        let held = process::hold(&lab, &line)?;
        let in_flight =
            if job.at.point == CrashPoint::Sent { "one record, arrived and not acknowledged" } else { "nothing" };
        if job.at.point == CrashPoint::Sent {
            // Handed to the client is not sent: the record itself is waited for.
            let sent = i64::from(job.at.nth);
            process::wait_for("the record of a held process", || Ok(self.watch.end(&lab.topic)? >= sent))?;
        }
        let before = self.left(&store, &lab)?;
        let at = held.at()?;
        // What it said was committed, it has to have committed.
        let answered = held.printed().iter().filter(|line| line.contains(" committed")).count() as u64;
        let (pid, signal) = held.kill()?;
        let after = self.left(&store, &lab)?;
        let trial = job.strategy.name().to_owned();
        Receipt { trial, at, pid, signal, in_flight: in_flight.to_owned(), before, after }.append(&self.receipts)?;
        let restart = job.strategy.restarted_by(self.sweep.rows);
        process::run(&lab, &restart)?.expect(&restart, Exit::Done)?;
        let mut found = self.look(job.strategy, &mut store, &lab)?;
        found.lost_commits = answered.saturating_sub(after.counts.business_loan);
        remove_database(&lab.db);
        Ok(found)
    }

    /// What drains after a run without a kill.
    fn drain(&self, strategy: Strategy, lab: &Lab) -> Result<()> {
        if strategy == OutboxWrite {
            let line = strategy.restarted_by(self.sweep.rows);
            process::run(lab, &line)?.expect(&line, Exit::Done)?;
        }
        Ok(())
    }

    /// A database and a topic that no other trial sees, as the strategy finds them.
    fn trial(&self, strategy: Strategy) -> Result<Lab> {
        let nth = self.trials.fetch_add(1, Ordering::Relaxed);
        let lab = Lab {
            db: self.lab.dir.join(format!("{nth}.db")),
            topic: format!("{}.{nth}", self.lab.topic),
            ..self.lab.clone()
        };
        fs::copy(self.template(strategy), &lab.db)?;
        // Before anybody asks for its end: the embedded broker would make it with four partitions.
        self.cluster.ensure_topic(&lab)?;
        if strategy.is_consumer() {
            self.publish(&lab)?;
        }
        Ok(lab)
    }

    /// What a relay has done before a consumer comes: every row sent and marked.
    fn publish(&self, lab: &Lab) -> Result<()> {
        let store = Store::open(&lab.db)?;
        let publisher = Publisher::connect(lab, None, false)?;
        for row in store.pending(i64::MIN, self.sweep.rows)? {
            let sent = publisher.send(&row.event, &row.event.event_id).and_then(InFlight::acknowledged);
            sent.map_err(|error| {
                Failure::inconclusive(format!("a trial could not be prepared: {error:?}"), "sweep again")
            })?;
            store.mark(row.id)?;
        }
        Ok(())
    }

    fn template(&self, strategy: Strategy) -> PathBuf {
        self.lab.dir.join(if strategy.finds_rows() { "written.template" } else { "empty.template" })
    }

    /// A database that is copied for each trial. Whoever closed it last has left everything in the file itself.
    fn make_template(&self, strategy: Strategy) -> Result<()> {
        let path = self.template(strategy);
        if path.exists() {
            return Ok(());
        }
        let lab = Lab { db: path.clone(), ..self.lab.clone() };
        if !strategy.finds_rows() {
            return Store::make(&path).map(drop);
        }
        let line = format!("write {}", self.sweep.rows);
        process::run(&lab, &line)?.expect(&line, Exit::Done)
    }

    fn left(&self, store: &Store, lab: &Lab) -> Result<Left> {
        let records = Some(self.watch.end(&lab.topic)?.unsigned_abs());
        Ok(Left { counts: store.counts()?, effects: store.effect_count()?, records })
    }

    /// Database against topic, and effects against both.
    fn look(&self, strategy: Strategy, store: &mut Store, lab: &Lab) -> Result<Found> {
        let (loans, outbox) = store.snapshot()?;
        let mut records = Vec::new();
        if let Some(reader) = Reader::find(lab)? {
            let ending = reader.read(|record| {
                records.push(record);
                Ok(())
            })?;
            if ending != Ending::Whole {
                return Err(Failure::inconclusive(
                    format!("the topic was not read to its end: {ending:?}"),
                    "sweep again",
                ));
            }
        }
        let ids: Vec<String> = records.iter().filter_map(|record| record.event_id().map(ToOwned::to_owned)).collect();
        let effects = if strategy.is_consumer() { Some(store.effects()?) } else { None };
        Ok(Found::of(&Reconciliation::of(&loans, &outbox, &records), &ids, effects.as_deref()))
    }
}

fn remove_database(db: &Path) {
    for suffix in ["", "-wal", "-shm", ".alive.lock"] {
        let mut name = db.as_os_str().to_owned();
        name.push(suffix);
        let _ = fs::remove_file(PathBuf::from(name));
    }
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
