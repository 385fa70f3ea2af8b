//! A pass: pending rows from the first to the last, batch by batch. While one batch is read, others are on their way and
//! another is marked. Whatever goes wrong ends the pass: everything in flight is settled first, and the next pass begins
//! again at the first row that is pending. So the order of an aggregate's rows holds without any bookkeeping.

use std::collections::{HashSet, VecDeque};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::careful::{Fate, NoTopic};
use super::marker::Job;
use super::reader::Reader;
use super::scan::{Left, Scan};
use super::{BATCHES_IN_FLIGHT, Event, Link, Relay, stop};
use crate::broker::{Handed, Outcome, send_timeout};
use crate::crash::CrashPoint;
use crate::output::hint;
use crate::store::{Batch, Pending};

/// How long to wait for an event before looking at clocks and signals.
const TICK: Duration = Duration::from_millis(20);

/// How long the broker may be silent before the relay says that it waits.
const SILENCE: Duration = Duration::from_secs(2);

/// How soon rows that were left are looked at again, at the earliest.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

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
    at: Instant,
}

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
    /// What was left when the last row was read, and when to look at it again.
    exhausted: Option<(Left, Instant)>,
    /// Why no more rows are taken.
    ending: Option<End>,
    /// Was it said that sends are in doubt, or were rejected?
    is_in_trouble: bool,
    /// When it was last said that the broker is waited for.
    told: Instant,
}

impl<'p, 'a, 'b> Pass<'p, 'a, 'b> {
    pub(super) fn begin(relay: &'p mut Relay<'a, 'b>, link: &'p mut Link) -> Result<Self> {
        let scan = Scan::new(relay.tenure.lease.slots(), relay.plan.on_poison, relay.suspects.clone());
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
            exhausted: None,
            ending: None,
            is_in_trouble: false,
            told: Instant::now(),
        })
    }

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
            let event = self.link.events.try_recv().or_else(|_| {
                // Only now: what stood in the channel could have been the very acknowledgement.
                self.look_at_the_oldest();
                self.link.events.recv_timeout(TICK)
            });
            match event {
                Ok(event) => self.take(event)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => anyhow::bail!("the relay's own channel is closed"),
            }
        }
        drop(self.reader);
        // What was read and not sent any more is read again by the next pass.
        while self.link.events.try_recv().is_ok() {}
        Ok(self.ending.unwrap_or(End::LookAgain))
    }

    fn take(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Read(batch) => {
                self.asked -= 1;
                self.exhausted = None;
                if self.ending.is_none() {
                    self.relay.holds.reached(CrashPoint::AfterFetch)?;
                    self.send(batch)?;
                }
            }
            Event::Exhausted(left) => {
                let rows = u32::try_from(left.rows()).unwrap_or(u32::MAX);
                self.exhausted = Some((left, Instant::now() + LOOK_AGAIN.max(LOOK_COST * rows)));
            }
            Event::Marked(batch, marks) => {
                self.marking -= 1;
                self.relay.was_marked(&batch, &marks)?;
            }
            Event::Failed(error) => return Err(error),
            Event::Settled(nth) => self.settle(nth)?,
        }
        Ok(())
    }

    /// Is nothing sent that is not marked?
    fn is_idle(&self) -> bool {
        self.flights.is_empty() && self.marking == 0
    }

    /// What the reader left, and what was left since.
    fn all_left(&self) -> Left {
        self.exhausted.map_or(self.left, |(left, _)| left.and(self.left))
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
        if stop::is_asked_for() && self.ending.is_none() {
            if !self.flights.is_empty() {
                hint(&format!("told to stop: {} records in flight are waited for", self.in_flight()));
            }
            self.end(End::Stopped(self.all_left()));
        }
        if self.relay.tenure.is_due() {
            self.keep_lease()?;
        }
        if let (Some((_, look_again)), true) = (self.exhausted, self.is_idle()) {
            let left = self.all_left();
            if !self.relay.plan.follow {
                self.end(End::Drained(left));
            } else if left.rows() > 0 && Instant::now() >= look_again {
                self.end(End::LookAgain);
            }
        }
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.flights.iter().map(|flight| flight.batch.len()).sum()
    }

    /// Gives up on what is in flight where the client has stopped, or for too long, and says that the broker is waited for before that.
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
                self.relay.count(|metrics| metrics.in_doubt(records as u64));
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
        let before = self.relay.tenure.lease.slots();
        let turnover = self.relay.tenure.keep(&mut self.relay.store)?;
        if !turnover.lost.is_empty() {
            hint("the lease was lost: another relay has claimed it, since it was not put off in time");
        }
        // Lost and won back is lost all the same: in between another relay may have sent what was read here.
        if !turnover.lost.is_empty() || self.relay.tenure.lease.slots() != before {
            self.end(End::LookAgain);
        }
        Ok(())
    }

    fn send(&mut self, batch: Batch) -> Result<()> {
        let nth = self.link.next;
        self.link.next += 1;
        self.link.pipeline.begin(nth, batch.len());
        let mut taken = 0;
        for (place, row) in batch.iter().enumerate() {
            // Before each send: whoever was stopped for longer than the lease sends nothing that is another's by now.
            if self.relay.tenure.has_expired() {
                self.keep_lease()?;
            }
            if self.ending.is_some() {
                break;
            }
            if !self.held.is_empty() && self.held.contains(row.aggregate_id) {
                self.left.held_back += 1;
                continue;
            }
            self.relay.holds.reached(CrashPoint::BeforeSend)?;
            match self.hand_over(nth, place, &row)? {
                Handed::Taken => taken += 1,
                Handed::Rejected(why) => {
                    let Fate { is_dead, holds_back } = self.relay.reject(&row, 0, &why)?;
                    if holds_back {
                        self.held.insert(row.aggregate_id.to_owned());
                    }
                    *(if is_dead { &mut self.left.dead } else { &mut self.left.waiting }) += 1;
                }
                Handed::Full => {}
                Handed::Broken(why) => {
                    self.end(End::Trouble(format!("no more records can be handed over: {why}")));
                    self.link.pipeline.purge();
                    break;
                }
            }
        }
        self.relay.holds.reached(CrashPoint::Sent)?;
        self.flights.push_back(Flight { nth, batch, at: Instant::now() });
        self.link.pipeline.end(nth, taken);
        Ok(())
    }

    /// Hands a row over, and waits while the client has no room.
    fn hand_over(&mut self, nth: u64, place: usize, row: &Pending) -> Result<Handed> {
        if self.relay.routes.known(row).is_none() {
            match self.relay.topic_of(row, &self.link.pipeline)? {
                Ok(_) => {}
                Err(NoTopic::Never(why)) => return Ok(Handed::Rejected(why)),
                Err(NoTopic::NotNow(why)) => return Ok(Handed::Broken(why)),
            }
        }
        let begun = Instant::now();
        loop {
            let Some(topic) = self.relay.routes.known(row) else { anyhow::bail!("a topic that was just there") };
            let handed = self.link.pipeline.send(nth, place, &self.relay.routes.record(row, topic));
            if handed != Handed::Full {
                return Ok(handed);
            }
            if begun.elapsed() > send_timeout(self.relay.lab) {
                return Ok(Handed::Broken("its queue stays full".to_owned()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Marks what was acknowledged of a settled batch.
    fn settle(&mut self, nth: u64) -> Result<()> {
        let Some(at) = self.flights.iter().position(|flight| flight.nth == nth) else { return Ok(()) };
        let Some(Flight { batch, .. }) = self.flights.remove(at) else { return Ok(()) };
        let Outcome { acknowledged, rejected, in_doubt } = self.link.pipeline.outcome(nth);
        if acknowledged.contains(&true) {
            self.relay.was_acknowledged(&batch, &acknowledged);
            self.relay.holds.reached(CrashPoint::AfterAck)?;
        }
        if let Some((_, why)) = rejected.first() {
            self.relay.suspects.extend(rejected.iter().map(|(place, _)| batch.row(*place).id));
            self.end(End::Trouble(format!("{} records were rejected together: {why}", rejected.len())));
            self.link.pipeline.purge();
        } else if let Some(why) = in_doubt {
            self.end(End::Trouble(format!("sends are in doubt: {why}")));
            self.link.pipeline.purge();
        }
        if acknowledged.contains(&true) {
            self.marking += 1;
            let (lease, done) = (self.relay.tenure.lease.clone(), self.link.sender.clone());
            self.relay.hand_to_marker(Job { batch, acknowledged, lease, done })?;
        }
        Ok(())
    }
}

/// Says why sends have no acknowledgement, and what that means.
pub(super) fn tell_trouble(why: &str) {
    hint(&format!("{why}; what is not marked stays pending, and is sent again"));
}
