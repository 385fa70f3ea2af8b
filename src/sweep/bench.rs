//! A worker's place, and one trial after the other in it: hold, kill, restart, drain, reconcile.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::Result;

use super::Strategy::OutboxWrite;
use super::matrix::{Found, Row};
use super::{BATCH, Rows, Strategy, Sweep};
use crate::broker::{Cluster, InFlight, Publisher, Watch};
use crate::crash::{CrashPoint, HoldAt};
use crate::event::{Incarnation, Record};
use crate::failure::{Exit, Failure};
use crate::lab::Lab;
use crate::output::hint;
use crate::reconcile::Reconciliation;
use crate::store::{Store, beside};
use crate::trial::{Held, Left, Receipt, fresh_folder, process};

/// One kill to be made.
#[derive(Clone, Copy)]
pub(super) struct Job {
    /// The row of the matrix that it counts for.
    pub row: usize,
    pub strategy: Strategy,
    pub at: HoldAt,
}

/// Where one worker plays: a lab directory of its own with a broker of its own, a database and a topic for each trial.
pub(super) struct Bench<'a> {
    sweep: &'a Sweep<'a>,
    pub lab: Lab,
    cluster: Cluster,
    watch: Watch,
    /// Of the records that a consumer finds; none before there was one.
    publisher: Option<Publisher>,
    trials: u32,
}

impl<'a> Bench<'a> {
    pub(super) fn new(sweep: &'a Sweep<'a>, nth: usize) -> Result<Self> {
        let dir = fresh_folder(sweep.lab, &format!("sweep-{nth}"))?;
        let topic = format!("outbox-lab.sweep-{nth}.{}", sweep.receipts.run());
        let lab = Lab { db: dir.join("0.db"), dir, topic, ..sweep.lab.clone() };
        process::at_work(&lab);
        let cluster = process::undisturbed(|| Cluster::ensure(&lab))?;
        let watch = Watch::connect(&lab, &cluster)?;
        let bench = Self { sweep, lab, cluster, watch, publisher: None, trials: 0 };
        sweep.strategies.iter().try_for_each(|strategy| bench.make_template(strategy.finds()))?;
        Ok(bench)
    }

    /// One job; a kill that is not proved is told of, and missing from its row.
    pub(super) fn work(&mut self, job: Job, rows: &Mutex<Vec<Row>>) -> Result<()> {
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
    pub(super) fn calibrate(&mut self, strategy: Strategy) -> Result<(Row, Vec<HoldAt>)> {
        let lab = self.trial(strategy)?;
        let line = format!("{} --trace", strategy.command(self.sweep.rows));
        let ended = process::run(&lab, &line)?;
        ended.expect(&line, Exit::Done)?;
        self.drain(strategy, &lab)?;
        let mut control = Row::new(strategy.name(), None, 0);
        control.found = look(strategy, &mut Store::open(&lab.db)?, &self.watch.read(&lab.topic)?)?;
        Ok((control, ended.passages()))
    }

    /// One trial: hold, kill, restart, drain, reconcile.
    fn kill(&mut self, job: Job) -> Result<Found> {
        let lab = self.trial(job.strategy)?;
        // Open from first to last: whoever closes a database last folds its -wal in, which takes longer than the trial.
        let mut store = Store::open(&lab.db)?;
        // What a relay with several records under way has passed tells what has to arrive.
        let trace = if job.strategy.sends_several() { " --trace" } else { "" };
        let line = format!("{}{trace} --hold-at {}", job.strategy.command(self.sweep.rows), job.at);
        let held = process::hold(&lab, &line)?;
        self.settle(job, &held, &store, &lab)?;
        let before = self.left(&store, &lab)?;
        let at = held.at()?;
        // What it said was committed, it has to have committed.
        let answered = held.printed().iter().filter(|line| line.contains(" committed")).count() as u64;
        let (pid, signal) = held.kill()?;
        let after = self.left(&store, &lab)?;
        let unmarked = self.sent_and_not_marked(job, &mut store, &lab)?;
        let in_flight = match job.at.point {
            _ if job.strategy.sends_several() => unmarked.iter().cloned().collect(),
            // Those before it were acknowledged.
            CrashPoint::Sent => self.event_ids(&lab)?.into_iter().skip(job.at.nth as usize - 1).collect(),
            _ => Vec::new(),
        };
        let trial = job.strategy.name().to_owned();
        self.sweep.receipts.add(&Receipt { trial, at, pid, signal, in_flight, before, after })?;
        let restart = job.strategy.restarted_by(self.sweep.rows);
        process::run(&lab, &restart)?.expect(&restart, Exit::Done)?;
        let records = self.watch.read(&lab.topic)?;
        let mut found = look(job.strategy, &mut store, &records)?;
        if job.strategy.finds() == Rows::Written {
            found.unexplained_copies = copies_but_for(unmarked, &records);
        }
        found.lost_commits = answered.saturating_sub(after.counts.business_loan);
        remove_database(&lab.db);
        Ok(found)
    }

    /// Waits until all that a held process has handed over has arrived: handed to the client is not sent. And while one of its
    /// threads is held another comes to its next crash point, and may mark a batch on the way.
    fn settle(&self, job: Job, held: &Held, store: &Store, lab: &Lab) -> Result<()> {
        let gone_beyond = |point| held.passed(point).saturating_sub(u32::from(job.at.point == point));
        let (sent, marked) = match job.strategy.sends_several() {
            true => (gone_beyond(CrashPoint::BeforeSend), gone_beyond(CrashPoint::BeforeMark) * BATCH),
            false if job.at.point == CrashPoint::Sent => (job.at.nth, 0),
            false => return Ok(()),
        };
        let (sent, marked) = (i64::from(sent), u64::from(marked.min(self.sweep.rows)));
        process::wait_for("the records of a held process", || Ok(self.watch.end(&lab.topic)? >= sent))?;
        process::wait_for("the marks of a held process", || Ok(store.counts()?.published >= marked))
    }

    /// The events that a restart may send once more: those whose rows are pending and, where several are on their way at a
    /// time, that have a record.
    fn sent_and_not_marked(&self, job: Job, store: &mut Store, lab: &Lab) -> Result<BTreeSet<String>> {
        let (_, rows) = store.snapshot()?;
        let mut events: BTreeSet<String> =
            rows.into_iter().filter(|row| !row.published).map(|row| row.event.event_id).collect();
        if job.strategy.sends_several() {
            let sent: BTreeSet<String> = self.event_ids(lab)?.into_iter().collect();
            events.retain(|event_id| sent.contains(event_id));
        }
        Ok(events)
    }

    fn event_ids(&self, lab: &Lab) -> Result<Vec<String>> {
        Ok(event_ids(&self.watch.read(&lab.topic)?))
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
    fn trial(&mut self, strategy: Strategy) -> Result<Lab> {
        let nth = self.trials;
        self.trials += 1;
        let lab = Lab {
            db: self.lab.dir.join(format!("{nth}.db")),
            topic: format!("{}.{nth}", self.lab.topic),
            ..self.lab.clone()
        };
        fs::copy(self.template(strategy.finds()), &lab.db)?;
        // Before anybody asks for its end: the embedded broker would make it with four partitions.
        let topic = self.cluster.ensure_topic(&lab)?;
        if strategy.finds() == Rows::Published {
            self.publish(&lab, topic)?;
        }
        Ok(lab)
    }

    /// Sends what the template has marked.
    fn publish(&mut self, lab: &Lab, topic: Incarnation) -> Result<()> {
        let publisher = match self.publisher.take() {
            Some(publisher) => publisher.turned_to(topic)?,
            // It would start a broker that is gone.
            None => process::undisturbed(|| Publisher::connect(lab, None, false))?,
        };
        let (_, rows) = Store::open(&lab.db)?.snapshot()?;
        let sent: Vec<_> = rows.iter().map(|row| publisher.send(&row.event, &row.event.event_id)).collect();
        for sent in sent {
            sent.and_then(InFlight::acknowledged).map_err(|error| {
                Failure::inconclusive(format!("a trial could not be prepared: {error:?}"), "sweep again")
            })?;
        }
        self.publisher = Some(publisher);
        Ok(())
    }

    fn template(&self, rows: Rows) -> PathBuf {
        self.lab.dir.join(format!("{rows:?}.template"))
    }

    /// A database that is copied for each trial. Whoever closed it last has left everything in the file itself.
    fn make_template(&self, rows: Rows) -> Result<()> {
        let path = self.template(rows);
        if path.exists() {
            return Ok(());
        }
        if rows == Rows::None {
            return Store::make(&path).map(drop);
        }
        let line = format!("write {}", self.sweep.rows);
        process::run(&Lab { db: path.clone(), ..self.lab.clone() }, &line)?.expect(&line, Exit::Done)?;
        if rows == Rows::Published {
            let store = Store::open(&path)?;
            for row in store.pending(i64::MIN, self.sweep.rows)? {
                store.mark(row.id)?;
            }
        }
        Ok(())
    }

    fn left(&self, store: &Store, lab: &Lab) -> Result<Left> {
        let records = Some(self.watch.end(&lab.topic)?.unsigned_abs());
        Ok(Left { counts: store.counts()?, effects: store.effect_count()?, records })
    }
}

fn event_ids(records: &[Record]) -> Vec<String> {
    records.iter().filter_map(|record| record.event_id().map(ToOwned::to_owned)).collect()
}

/// Database against topic, and effects against both.
fn look(strategy: Strategy, store: &mut Store, records: &[Record]) -> Result<Found> {
    let (loans, outbox) = store.snapshot()?;
    let effects = if strategy.finds() == Rows::Published { Some(store.effects()?) } else { None };
    Ok(Found::of(&Reconciliation::of(&loans, &outbox, records), &event_ids(records), effects.as_deref()))
}

/// Copies but for one of each of these.
fn copies_but_for(mut unmarked: BTreeSet<String>, records: &[Record]) -> u64 {
    let mut seen = BTreeSet::new();
    let copies = records.iter().filter_map(|record| record.event_id()).filter(|event_id| !seen.insert(*event_id));
    copies.filter(|event_id| !unmarked.remove(*event_id)).count() as u64
}

fn remove_database(db: &Path) {
    for suffix in ["", "-wal", "-shm", ".alive.lock", ".relay-sweep.lock"] {
        let _ = fs::remove_file(beside(db, suffix));
    }
}
