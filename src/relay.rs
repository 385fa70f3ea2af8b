//! Relays: fetch pending rows, publish them, mark them. Database and broker meet here one after the other, never in one
//! step. [`BookRelay`] is the book's (7.1), a row at a time; [`Relay`] is one fit for production, which keeps the book's order
//! of things (send, acknowledge, mark) for batches, beside other relays, poison and outages.

mod book;
mod careful;
mod locked;
mod marker;
mod pass;
mod poison;
mod reader;
mod routes;
mod scan;
mod span;
pub mod stop;
mod tenure;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;

pub use self::book::{BookRelay, Marking};
use self::locked::bears_with_a_lock;
use self::marker::Job;
use self::pass::{End, Pass, tell_trouble};
pub use self::routes::Envelope;
use self::routes::Routes;
pub use self::scan::{Left, OnPoison};
pub use self::span::Span;
use self::tenure::Tenure;
use crate::broker::{Pipeline, Publisher, send_timeout};
use crate::clock::{ms_of, now_ms};
use crate::crash::{CrashPoint, SharedHolds};
use crate::event::{Incarnation, Key};
use crate::failure::{Exit, Failure};
use crate::lab::Lab;
use crate::metrics::Metrics;
use crate::output::{Line, Output, hint};
use crate::shard::{SLOTS, Slots};
use crate::store::{Batch, Leased, Marks, Store, TopicNote};

/// Batches that are sent and not marked, at the most. The rows of so many batches may be sent twice after a kill.
const BATCHES_IN_FLIGHT: usize = 4;

/// For so many times as long as a send may take, a relay that is to end when nothing is pending bears with a broker that
/// acknowledges nothing.
const PATIENCE: u32 = 3;

/// How long a relay waits before it connects again, where the last try came to nothing.
const RECONNECT: Duration = Duration::from_secs(1);

/// Notes in the database, before the first send, where its events go from now on.
///
/// # Errors
/// The database stays locked for longer than the busy timeout.
pub fn bind(store: &mut Store, incarnation: &Incarnation) -> Result<()> {
    store.bind_topic(incarnation)?;
    match store.topic_note()? {
        TopicNote::Scattered(noted, _) => hint(&format!(
            "the earlier events went to the {noted}; these go to the {incarnation}. The rows are safe, but the two topics \
             will not reconcile: reset, with the same --dir, --db and --topic, begins again"
        )),
        TopicNote::ResetUnderWay => hint("a reset was interrupted here: another reset ends it"),
        TopicNote::BoundTo(_) | TopicNote::Unbound => {}
    }
    Ok(())
}

/// How a relay is to work.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Go on when nothing is pending?
    pub follow: bool,
    /// Rows of a batch.
    pub batch: u32,
    /// What the records are keyed by.
    pub key: Key,
    /// What a record looks like, and where it goes.
    pub envelope: Envelope,
    /// How long a lease lasts from each renewal.
    pub lease: Duration,
    /// A name that no other living relay has.
    pub owner: String,
    /// Is every earlier relay of this name known to be dead?
    pub is_own: bool,
    /// The part of the aggregates that is wanted.
    pub slots: Slots,
    /// Rejections after which a row is dead.
    pub max_attempts: u32,
    /// What a dead row means for its aggregate.
    pub on_poison: OnPoison,
    /// What is counted for whoever watches.
    pub metrics: Option<Arc<Metrics>>,
}

/// What a relay has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Done {
    /// Records acknowledged.
    pub acknowledged: u64,
    /// Rows marked.
    pub marked: u64,
    /// Marks refused, since the lease was another relay's by then.
    pub refused: u64,
    /// Rejections counted.
    pub rejected: u64,
    /// Rows parked as dead.
    pub dead: u64,
}

/// What comes in while a relay is at work.
enum News {
    /// A batch was read, and this was left until then.
    Read(Batch, Left),
    /// There is no pending row behind the last that was looked at. Is there one before it, though none was left?
    Exhausted { left: Left, is_behind: bool },
    /// A batch is marked.
    Marked(Batch, Marks),
    /// The reading failed, or the marking.
    Failed(anyhow::Error),
    /// A batch has its outcome.
    Settled(u64),
}

/// The connection to the broker, and what comes in over it. A new one is made when sends are in doubt.
struct Link {
    pipeline: Pipeline,
    news: Receiver<News>,
    sender: Sender<News>,
    /// The number of the next batch.
    next: u64,
}

/// A relay fit for production.
pub struct Relay<'a, 'b> {
    lab: &'a Lab,
    plan: &'a Plan,
    store: Store,
    holds: &'a SharedHolds<'a, 'b>,
    /// Where acknowledged batches are marked.
    jobs: Option<Sender<Job>>,
    out: &'a Output,
    tenure: Tenure,
    routes: Routes,
    /// Rows that were rejected with others, so that nobody knows yet which is at fault.
    suspects: BTreeSet<i64>,
    /// Did rows that have to be sent alone wait for their next turn?
    is_not_done_with_turn: bool,
    /// Sends one record at a time; made when there is a row to be careful with.
    careful: Option<Publisher>,
    /// Other relays that hold a lease, and were told of.
    told_of: BTreeSet<String>,
    /// Was the first send noted in the database?
    is_bound: bool,
    /// What it has done.
    pub done: Done,
    /// When.
    pub span: Span,
}

impl<'a, 'b> Relay<'a, 'b> {
    /// A relay that is about to begin.
    ///
    /// # Errors
    /// Usage: a lease that does not outlast a send.
    pub fn new(
        lab: &'a Lab,
        plan: &'a Plan,
        mut store: Store,
        holds: &'a SharedHolds<'a, 'b>,
        span: Span,
        out: &'a Output,
    ) -> Result<Self> {
        let timeout = send_timeout(lab);
        if plan.lease <= timeout {
            return Err(Failure::usage(
                format!("a lease of {:?} does not outlast a send, which may take {timeout:?}", plan.lease),
                "take a longer --lease, or a shorter -X message.timeout.ms: another relay would send the same rows",
            ));
        }
        store.wait_for_locks(bears_with_a_lock)?;
        let tenure = Tenure::new(&plan.owner, plan.slots, plan.lease, plan.is_own);
        Ok(Self {
            lab,
            plan,
            store,
            holds,
            jobs: None,
            out,
            tenure,
            routes: Routes::new(lab, plan.envelope, plan.key),
            suspects: BTreeSet::new(),
            is_not_done_with_turn: false,
            careful: None,
            told_of: BTreeSet::new(),
            is_bound: false,
            done: Done::default(),
            span,
        })
    }

    /// Sends and marks until nothing is pending that could be sent now, or for ever. Returns what was left.
    ///
    /// # Errors
    /// The broker cannot be reached, or acknowledges nothing for too long; or the database cannot be read or written.
    pub fn run(&mut self) -> Result<Left> {
        let mut marking = self.store.again()?;
        marking.wait_for_locks(bears_with_a_lock)?;
        let holds = self.holds;
        let ran = thread::scope(|scope| {
            let (jobs, to_mark) = channel();
            scope.spawn(move || marker::work(marking, holds, &to_mark));
            self.jobs = Some(jobs);
            let ran = self.passes();
            self.jobs = None;
            ran
        });
        // Whatever happened: whoever comes next need not wait for the lease to expire.
        let released = self.tenure.end(&mut self.store);
        let left = ran?;
        released?;
        Ok(left)
    }

    /// Says who holds what this relay leaves.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn tell_leases(&mut self) -> Result<()> {
        for Leased { owner, slots, left_ms } in self.store.leases(now_ms())? {
            // One that renews its lease is told of once.
            if left_ms > 0 && owner != self.plan.owner && self.told_of.insert(owner.clone()) {
                let seconds = left_ms as f64 / 1_000.0;
                hint(&format!(
                    "{owner} has a lease on {slots} of {SLOTS} slots for {seconds:.1} s more, if it does not renew it"
                ));
            }
        }
        Ok(())
    }

    fn passes(&mut self) -> Result<Left> {
        let begun = Instant::now();
        let mut link = match self.plan.follow {
            false => self.connect()?,
            true => match self.reconnect(begun)? {
                Some(link) => link,
                None => return self.all_that_is_pending(Left::default()),
            },
        };
        self.tenure.keep(&mut self.store)?;
        self.holds.reached(CrashPoint::AfterClaim)?;
        // Since the first trouble after the last thing that was done.
        let mut fruitless_since: Option<Instant> = None;
        loop {
            let before = self.done;
            let end = match self.be_careful(&link.pipeline)? {
                Some(trouble) => {
                    tell_trouble(&trouble);
                    End::Trouble(trouble)
                }
                None => Pass::begin(self, &mut link)?.play()?,
            };
            if self.done != before {
                fruitless_since = None;
            }
            match end {
                // What was rejected with others was never tried alone: what it stood behind may be marked by now. And what is
                // sent alone takes turns with what is sent together.
                End::Drained(_) if !self.suspects.is_empty() && self.done != before => {}
                End::Drained(_) if self.is_not_done_with_turn => {}
                End::Drained(left) => return Ok(left),
                End::Stopped(left) => return self.all_that_is_pending(left),
                // Also for one that is to end: what was lost may be free again.
                End::LookAgain if !self.tenure.is_complete() => {
                    self.tell_leases()?;
                    self.tenure.keep(&mut self.store)?;
                }
                End::LookAgain => {}
                End::Trouble(why) => {
                    let since = *fruitless_since.get_or_insert_with(Instant::now);
                    if !self.plan.follow && since.elapsed() > self.patience() {
                        return Err(self.gives_up(&why));
                    }
                    drop(link);
                    self.careful = None;
                    if self.done == before && !stop::is_asked_for() {
                        // What ends at once each time is not to be tried without a pause.
                        thread::sleep(RECONNECT);
                    }
                    link = match self.reconnect(since)? {
                        Some(link) => link,
                        None => return self.all_that_is_pending(Left::default()),
                    };
                    self.count(Metrics::new_producer);
                }
            }
        }
    }

    /// What was left by reason, and the rows that a relay which was stopped did not come to.
    fn all_that_is_pending(&self, left: Left) -> Result<Left> {
        let unpublished = self.store.counts()?.unpublished;
        match unpublished.checked_sub(left.rows()) {
            Some(unsent) => Ok(Left { unsent, ..left }),
            // Others have marked some of it since it was looked at.
            None => Ok(Left { unsent: unpublished, ..Left::default() }),
        }
    }

    fn connect(&self) -> Result<Link> {
        let (sender, news) = channel();
        let settled = sender.clone();
        let room = self.plan.batch.saturating_mul(BATCHES_IN_FLIGHT as u32 + 1);
        // A new row is to go out at once; where many wait, larger requests cost everybody less.
        let linger_ms = if self.plan.follow { 1 } else { 5 };
        let pipeline = Pipeline::connect(self.lab, room, linger_ms, move |nth| {
            // Nobody listens any more when a new link was made.
            let _ = settled.send(News::Settled(nth));
        })?;
        Ok(Link { pipeline, news, sender, next: 0 })
    }

    /// Connects anew, as long as it takes; `None` if the relay is asked to stop in the meantime.
    fn reconnect(&mut self, fruitless_since: Instant) -> Result<Option<Link>> {
        loop {
            if stop::is_asked_for() {
                return Ok(None);
            }
            match self.connect() {
                Ok(link) => {
                    // It may be another broker, without the topics of the old one.
                    self.routes = Routes::new(self.lab, self.plan.envelope, self.plan.key);
                    self.is_bound = false;
                    return Ok(Some(link));
                }
                Err(error) => {
                    let failure = Failure::from(error);
                    // What the command line asks for will be refused the next time, too.
                    let is_hopeless = failure.exit == Exit::Usage;
                    if is_hopeless || !self.plan.follow && fruitless_since.elapsed() > self.patience() {
                        return Err(failure.into());
                    }
                    hint(&format!("waiting for the broker: {failure}"));
                }
            }
            self.tenure.keep(&mut self.store)?;
            thread::sleep(RECONNECT);
        }
    }

    fn patience(&self) -> Duration {
        send_timeout(self.lab) * PATIENCE
    }

    fn gives_up(&self, why: &str) -> anyhow::Error {
        Failure::failed(
            format!("nothing was acknowledged for {:?}: {why}", self.patience()),
            "see that the broker is up (outbox-lab broker status; scripts/kafka.sh status). The rows are pending: the next \
             relay sends them, which can make duplicates and loses nothing",
        )
    }

    fn was_acknowledged(&mut self, batch: &Batch, acknowledged: &[bool]) {
        self.done.acknowledged += acknowledged.iter().filter(|acknowledged| **acknowledged).count() as u64;
        self.count(|metrics| {
            let now = now_ms();
            let rows = batch.iter().zip(acknowledged).filter(|(_, acknowledged)| **acknowledged);
            metrics.acknowledged(rows.filter_map(|(row, _)| Some(now - ms_of(row.created_at)?)));
        });
        self.span.acknowledged();
    }

    /// Counts for whoever watches, if anybody does.
    fn count(&self, what: impl FnOnce(&Metrics)) {
        if let Some(metrics) = &self.plan.metrics {
            what(metrics);
        }
    }

    fn hand_to_marker(&self, job: Job) -> Result<()> {
        let handed = self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        anyhow::ensure!(handed, "nobody is there to mark");
        Ok(())
    }

    fn was_marked(&mut self, batch: &Batch, marks: &Marks) -> Result<()> {
        let Marks { marked, refused, not_there } = marks;
        self.done.marked += marked;
        self.done.refused += refused.len() as u64;
        self.span.marked();
        self.count(|metrics| {
            metrics.published(*marked);
            metrics.marks_refused(refused.len() as u64);
        });
        for row in batch.iter().filter(|row| refused.contains(&row.id)) {
            self.out.line(&Line::MarkRefused { event: row.event_id })?;
        }
        if *not_there > 0 {
            hint(&format!("{not_there} rows were marked or deleted by somebody else in the meantime"));
        }
        Ok(())
    }
}
