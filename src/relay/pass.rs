//! A pass: pending rows from the first to the last, batch by batch. While one batch is read, others are on their way and
//! another is marked. Whatever goes wrong ends the pass: everything in flight is settled first, and the next pass begins
//! again at the first row that is pending. So the order of an aggregate's rows holds without any bookkeeping.

use std::collections::{HashSet, VecDeque};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::marker::Job;
use super::poison::Fate;
use super::reader::Reader;
use super::routes::NoTopic;
use super::scan::{Left, Scan};
use super::{BATCHES_IN_FLIGHT, Link, News, Relay, stop};
use crate::broker::{Handed, Outcome, send_timeout};
use crate::crash::CrashPoint;
use crate::output::hint;
use crate::shard::SLOTS;
use crate::store::{Batch, Lease, Pending};

/// How long to wait for an event before looking at clocks and signals.
const TICK: Duration = Duration::from_millis(20);

/// How long the broker may be silent before the relay says that it waits.
const SILENCE: Duration = Duration::from_secs(2);

/// How soon rows that were left are looked at again, at the earliest.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// And at the latest, where there is always something under way.
const LOOK_AT_THE_LATEST: Duration = Duration::from_secs(1);

/// How much later for each row that was left: a look costs about a microsecond a row, and is to take a small part of the
/// time.
const LOOK_COST: Duration = Duration::from_micros(20);

/// How a pass ended.
pub(super) enum End {
    /// Nothing is pending but what was left.
    Drained(Left),
    /// What was left may be sent by now.
    LookAgain,
    /// The relay was asked to stop.
    Stopped(Left),
    /// Sends are in doubt, or were rejected.
    Trouble(String),
}

/// A batch that was handed over.
struct Flight {
    nth: u64,
    batch: Batch,
    /// Under which it is sent.
    lease: Lease,
    at: Instant,
}

/// A pass under way: what was asked of the reader, what was handed to the client, what is being marked.
pub(super) struct Pass<'p, 'a, 'b> {
    relay: &'p mut Relay<'a, 'b>,
    link: &'p mut Link,
    reader: Reader,
    flights: VecDeque<Flight>,
    /// Batches that are being marked.
    marking: usize,
    /// Batches that were asked for and have not come.
    asked: usize,
    /// Aggregates of which a row was rejected in this pass.
    held: HashSet<String>,
    /// Rows that were read, and left for that reason.
    left: Left,
    /// What the reader has left so far.
    left_unread: Left,
    /// Is a row pending that lies before the last that was read, and was not left?
    is_behind: bool,
    /// When to look again at what was left, if the last row was read.
    exhausted: Option<Instant>,
    begun: Instant,
    /// Why no more rows are taken.
    ending: Option<End>,
    /// Was it said that sends are in doubt, or were rejected?
    is_in_trouble: bool,
    /// When it was last said that the broker is waited for.
    told: Instant,
}

impl<'p, 'a, 'b> Pass<'p, 'a, 'b> {
    /// Begins to read; nothing is sent yet.
    ///
    /// # Errors
    /// The database was removed or replaced.
    pub(super) fn begin(relay: &'p mut Relay<'a, 'b>, link: &'p mut Link) -> Result<Self> {
        let scan =
            Scan::new(relay.tenure.wanted, relay.tenure.lease.slots(), relay.plan.on_poison, relay.suspects.clone());
        let reader = Reader::start(&relay.store, scan, relay.plan.batch, link.sender.clone())?;
        Ok(Self {
            relay,
            link,
            reader,
            flights: VecDeque::new(),
            marking: 0,
            asked: 0,
            held: HashSet::new(),
            left: Left::default(),
            left_unread: Left::default(),
            is_behind: false,
            exhausted: None,
            begun: Instant::now(),
            ending: None,
            is_in_trouble: false,
            told: Instant::now(),
        })
    }

    /// Reads, sends and marks until the pass ends, for whatever reason. Then nothing is in flight.
    ///
    /// # Errors
    /// The database cannot be read or written, or standard output is closed.
    pub(super) fn play(mut self) -> Result<End> {
        loop {
            self.look_at_the_clock()?;
            if let (Some(_), true) = (&self.ending, self.is_idle()) {
                break;
            }
            let under_way = self.flights.len() + self.marking + self.asked;
            if self.ending.is_none() && under_way < BATCHES_IN_FLIGHT && self.asked < 2 {
                self.reader.ask();
                self.asked += 1;
            }
            let news = self.link.news.try_recv().or_else(|_| {
                // Only now: what stood in the channel could have been the very acknowledgement.
                self.look_at_the_oldest();
                self.link.news.recv_timeout(TICK)
            });
            match news {
                Ok(news) => self.take(news)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => anyhow::bail!("the relay's own channel is closed"),
            }
        }
        drop(self.reader);
        // What was read and not sent any more is read again by the next pass.
        while self.link.news.try_recv().is_ok() {}
        Ok(self.ending.unwrap_or(End::LookAgain))
    }

    fn take(&mut self, news: News) -> Result<()> {
        match news {
            News::Read(batch, left) => {
                self.asked -= 1;
                self.left_unread = left;
                self.exhausted = None;
                if self.ending.is_none() {
                    self.relay.holds.reached(CrashPoint::AfterFetch)?;
                    self.send(batch)?;
                }
            }
            News::Exhausted { left, is_behind } => {
                self.is_behind = is_behind;
                self.left_unread = left;
                self.exhausted = Some(Instant::now() + LOOK_AGAIN.max(look_cost(left.rows())));
            }
            News::Marked(batch, marks) => {
                self.marking -= 1;
                self.relay.was_marked(&batch, &marks)?;
            }
            News::Failed(error) => return Err(error),
            News::Settled(nth) => self.settle(nth)?,
        }
        Ok(())
    }

    /// Is nothing sent that is not marked?
    fn is_idle(&self) -> bool {
        self.flights.is_empty() && self.marking == 0
    }

    /// What the reader left, and what was left since.
    fn all_left(&self) -> Left {
        self.left_unread.and(self.left)
    }

    /// Ends the pass, unless it is ending already. Rows that are in flight are settled first.
    fn end(&mut self, end: End) {
        if let End::Trouble(why) = &end
            && !std::mem::replace(&mut self.is_in_trouble, true)
        {
            tell_trouble(why);
        }
        self.ending.get_or_insert(end);
    }

    fn look_at_the_clock(&mut self) -> Result<()> {
        self.heed_the_stop();
        if self.relay.tenure.is_due() {
            self.keep_lease()?;
        }
        match self.exhausted {
            Some(_) if !self.relay.plan.follow && self.is_idle() => self.end(End::Drained(self.all_left())),
            _ if self.relay.plan.follow && self.is_time_to_look_again() => self.end(End::LookAgain),
            _ => {}
        }
        Ok(())
    }

    fn heed_the_stop(&mut self) {
        if stop::is_asked_for() && self.ending.is_none() {
            if !self.flights.is_empty() {
                hint(&format!("told to stop: {} records in flight are waited for", self.in_flight()));
            }
            self.end(End::Stopped(self.all_left()));
        }
    }

    /// May rows that were left be sent by now? A pass that began is what looks at them, so also one that always has something
    /// under way has to end.
    fn is_time_to_look_again(&self) -> bool {
        let rows = self.all_left().may_go();
        let at_the_latest = self.begun + LOOK_AT_THE_LATEST.max(look_cost(rows));
        let due = self.exhausted.filter(|_| self.is_idle()).map_or(at_the_latest, |soon| soon.min(at_the_latest));
        (rows > 0 || self.is_behind && self.exhausted.is_some() && self.is_idle()) && Instant::now() >= due
    }

    fn in_flight(&self) -> usize {
        self.flights.iter().map(|flight| flight.batch.len()).sum()
    }

    /// Gives up on what is in flight where the client has stopped, or for too long, and says that the broker is waited for
    /// before that.
    fn look_at_the_oldest(&mut self) {
        if !self.flights.is_empty()
            && !self.is_in_trouble
            && let Some(why) = self.link.pipeline.broken()
        {
            self.end(End::Trouble(why));
            self.link.pipeline.purge();
        }
        let timeout = send_timeout(self.relay.lab);
        if let Some(oldest) = self.flights.front().map(|flight| flight.at.elapsed()) {
            let records = self.in_flight();
            if oldest > timeout {
                let why = self.link.pipeline.complaint();
                self.end(End::Trouble(format!("{records} sends are in doubt after {timeout:?}{why}")));
                self.link.pipeline.purge();
            } else if oldest > SILENCE && self.told.elapsed() > SILENCE {
                self.told = Instant::now();
                hint(&format!(
                    "waiting for the broker: {records} records are sent and not acknowledged for {:.0} s",
                    oldest.as_secs_f64()
                ));
            }
        }
    }

    /// Puts the end of the lease off. If slots change hands, what this pass reads is not what the relay may send.
    fn keep_lease(&mut self) -> Result<()> {
        let turnover = self.relay.tenure.keep(&mut self.relay.store)?;
        if !turnover.lost.is_empty() {
            hint("the lease was lost: another relay has claimed it, since it was not put off in time");
        }
        if !turnover.won.is_empty() {
            hint(&format!(
                "took over {} of {SLOTS} slots, whose lease had run out or was given back",
                turnover.won.iter().count()
            ));
        }
        // Lost and won back is lost all the same: in between another relay may have sent what was read here.
        if !turnover.lost.is_empty() || !turnover.won.is_empty() {
            self.end(End::LookAgain);
        }
        Ok(())
    }

    fn send(&mut self, batch: Batch) -> Result<()> {
        let nth = self.link.next;
        self.link.next += 1;
        self.link.pipeline.begin(nth, batch.len());
        let lease = self.relay.tenure.lease.clone();
        let mut taken = 0;
        for (place, row) in batch.iter().enumerate() {
            if !self.held.is_empty() && self.held.contains(row.aggregate_id) {
                self.left.held_back += 1;
                continue;
            }
            // Before the look at the lease: it can take its time.
            if self.relay.routes.known(&row).is_none() && !self.find_topic(&row)? {
                if self.ending.is_some() {
                    break;
                }
                continue;
            }
            // Before each send: whoever was stopped for longer than the lease sends nothing that is another's by now.
            if self.relay.tenure.has_expired() {
                self.keep_lease()?;
            }
            if self.ending.is_some() {
                break;
            }
            self.relay.holds.reached(CrashPoint::BeforeSend)?;
            match self.hand_over(nth, place, &row)? {
                Handed::Taken => taken += 1,
                Handed::Rejected(why) => self.reject(&row, &why)?,
                Handed::Full => self.give_up("the client's queue stays full"),
                Handed::Broken(why) => self.give_up(&why),
            }
        }
        self.relay.holds.reached(CrashPoint::Sent)?;
        self.flights.push_back(Flight { nth, batch, lease, at: Instant::now() });
        self.link.pipeline.end(nth, taken);
        Ok(())
    }

    /// Sees to it that a row has a topic to go to; `false` if it has none.
    fn find_topic(&mut self, row: &Pending) -> Result<bool> {
        match self.relay.topic_of(row, &self.link.pipeline)? {
            Ok(_) => return Ok(true),
            Err(NoTopic::Never(why)) => self.reject(row, &why)?,
            Err(NoTopic::NotNow(why)) => self.give_up(&why),
        }
        Ok(false)
    }

    /// Ends the pass, since nothing more can be sent.
    fn give_up(&mut self, why: &str) {
        self.end(End::Trouble(format!("no more records can be handed over: {why}")));
        self.link.pipeline.purge();
    }

    /// Counts the rejection of a row that was never tried before.
    fn reject(&mut self, row: &Pending, why: &str) -> Result<()> {
        let Fate { is_dead, holds_back } = self.relay.reject(row, 0, why)?;
        if holds_back {
            self.held.insert(row.aggregate_id.to_owned());
        }
        *(if is_dead { &mut self.left.dead } else { &mut self.left.waiting }) += 1;
        // Each is a transaction of its own, so a batch of nothing but these takes long.
        self.heed_the_stop();
        Ok(())
    }

    /// Hands a row over, and waits while the client has no room: for as long as a send may take, and the lease lasts.
    fn hand_over(&self, nth: u64, place: usize, row: &Pending) -> Result<Handed> {
        let Some(topic) = self.relay.routes.known(row) else { anyhow::bail!("a row without a topic") };
        let record = self.relay.routes.record(row, topic);
        let begun = Instant::now();
        loop {
            let handed = self.link.pipeline.send(nth, place, &record);
            let is_late = || begun.elapsed() > send_timeout(self.relay.lab) || self.relay.tenure.has_expired();
            if handed != Handed::Full || is_late() {
                return Ok(handed);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Marks what was acknowledged of a settled batch.
    fn settle(&mut self, nth: u64) -> Result<()> {
        let Some(at) = self.flights.iter().position(|flight| flight.nth == nth) else { return Ok(()) };
        let Some(Flight { batch, lease, .. }) = self.flights.remove(at) else { return Ok(()) };
        let Outcome { acknowledged, rejected, in_doubt, why } = self.link.pipeline.outcome(nth);
        self.relay.count(|metrics| metrics.in_doubt(in_doubt));
        if acknowledged.contains(&true) {
            self.relay.was_acknowledged(&batch, &acknowledged);
            self.relay.holds.reached(CrashPoint::AfterAck)?;
        }
        if let Some((_, why)) = rejected.first() {
            self.relay.suspects.extend(rejected.iter().map(|(place, _)| batch.row(*place).id));
            self.end(End::Trouble(format!("{} records were rejected together: {why}", rejected.len())));
            self.link.pipeline.purge();
        } else if let Some(why) = why {
            self.end(End::Trouble(format!("sends are in doubt: {why}")));
            self.link.pipeline.purge();
        }
        if acknowledged.contains(&true) {
            self.marking += 1;
            let done = self.link.sender.clone();
            self.relay.hand_to_marker(Job { batch, acknowledged, lease, done })?;
        }
        Ok(())
    }
}

/// How much later so many rows that were left are looked at again.
fn look_cost(rows: u64) -> Duration {
    LOOK_COST.saturating_mul(u32::try_from(rows).unwrap_or(u32::MAX))
}

/// Says why sends have no acknowledgement, and what that means.
pub(super) fn tell_trouble(why: &str) {
    hint(&format!("{why}; what is not marked stays pending, and is sent again"));
}
