//! Rows that have to be sent alone: those that were rejected before, and those of which nobody knows yet whether they or
//! their neighbours were at fault.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::poison::Fate;
use super::routes::NoTopic;
use super::scan::OnPoison;
use super::{Relay, marker, stop};
use crate::broker::{InFlight, Pipeline, Publisher, SendError};
use crate::clock::now_ms;
use crate::crash::CrashPoint;
use crate::failure::Failure;
use crate::lab::Lab;
use crate::store::{Batch, Pending};

/// For how long at a time rows are sent alone, while all others wait.
const TURN: Duration = Duration::from_millis(200);

/// How many at a time, at the most.
const MOST: u32 = 1_000;

/// What came of sending a row alone.
enum Alone {
    /// It is in the topic.
    Sent,
    /// It never will be, as it is.
    Rejected(Fate),
    /// It is another relay's by now.
    Left,
    /// The broker does not answer.
    Trouble(String),
}

impl Relay<'_, '_> {
    /// Sends what has to be sent alone and is due, one row at a time, each acknowledged and marked before the next. Returns
    /// why it stopped, if the broker did not answer.
    pub(super) fn be_careful(&mut self, pipeline: &Pipeline) -> Result<Option<String>> {
        let due = self.store.due(now_ms(), MOST)?;
        let rows: BTreeSet<i64> = self.suspects.iter().copied().take(MOST as usize).chain(due).collect();
        let begun = Instant::now();
        self.is_not_done_with_turn = rows.len() >= MOST as usize;
        let mut before = self.pending_before(&rows)?;
        for id in rows {
            // What is not done in this turn is held back by the pass, and done in the next.
            if stop::is_asked_for() || begun.elapsed() > TURN {
                self.is_not_done_with_turn = true;
                break;
            }
            // First of all: a row that was read before may be sent by another relay by now.
            if self.tenure.is_due() {
                self.tenure.keep(&mut self.store)?;
            }
            let (batch, attempts) = self.store.pending_row(id)?;
            let Some(row) = batch.iter().next() else {
                self.suspects.remove(&id);
                continue;
            };
            let queue = before.entry(row.aggregate_id.to_owned()).or_default();
            if !self.tenure.holds(row.aggregate_id) || queue.front().is_some_and(|first| *first != id) {
                continue;
            }
            match self.send_alone(&batch, &row, attempts, pipeline)? {
                Alone::Sent => {
                    queue.pop_front();
                    self.suspects.remove(&id);
                }
                Alone::Rejected(Fate { holds_back, .. }) => {
                    if !holds_back {
                        queue.pop_front();
                    }
                    self.suspects.remove(&id);
                }
                Alone::Left => {}
                Alone::Trouble(why) => return Ok(Some(why)),
            }
        }
        Ok(None)
    }

    /// By aggregate of these rows, the pending rows up to the last of them: the first of each is the one that may be sent.
    fn pending_before(&self, rows: &BTreeSet<i64>) -> Result<HashMap<String, VecDeque<i64>>> {
        let Some(last) = rows.last() else { return Ok(HashMap::new()) };
        let dead_ones = self.plan.on_poison == OnPoison::HoldKey;
        let mut queues: HashMap<String, VecDeque<i64>> = HashMap::new();
        for id in rows {
            let (batch, _) = self.store.pending_row(*id)?;
            queues.extend(batch.iter().map(|row| (row.aggregate_id.to_owned(), VecDeque::new())));
        }
        self.store.each_pending(*last, dead_ones, |id, aggregate_id| {
            if let Some(queue) = queues.get_mut(aggregate_id) {
                queue.push_back(id);
            }
        })?;
        Ok(queues)
    }

    fn send_alone(&mut self, batch: &Batch, row: &Pending, attempts: u32, pipeline: &Pipeline) -> Result<Alone> {
        let topic = match self.topic_of(row, pipeline)? {
            Ok(topic) => topic,
            Err(NoTopic::Never(why)) => return Ok(Alone::Rejected(self.reject(row, attempts, &why)?)),
            Err(NoTopic::NotNow(why)) => return Ok(Alone::Trouble(why)),
        };
        let publisher = match self.careful.take() {
            Some(publisher) => publisher,
            None => match Publisher::connect(&Lab { topic: topic.clone(), ..self.lab.clone() }, None, false) {
                Ok(publisher) => publisher,
                Err(error) => return Ok(Alone::Trouble(Failure::from(error).what())),
            },
        };
        // Connecting took its time. What changed hands meanwhile was read too early, even if it is back.
        if self.tenure.has_expired() && !self.tenure.keep(&mut self.store)?.lost.is_empty() {
            return Ok(Alone::Left);
        }
        self.holds.reached(CrashPoint::BeforeSend)?;
        let sent = match publisher.send_record(&self.routes.record(row, &topic)) {
            Ok(in_flight) => {
                self.holds.reached(CrashPoint::Sent)?;
                InFlight::acknowledged(in_flight)
            }
            Err(error) => Err(error),
        };
        let alone = match sent {
            Ok(_) => {
                self.was_acknowledged(batch, &[true]);
                self.holds.reached(CrashPoint::AfterAck)?;
                let marks = marker::mark(&mut self.store, self.holds, &self.tenure.lease, batch, &[true])?;
                self.was_marked(batch, &marks)?;
                Alone::Sent
            }
            Err(SendError::Rejected(why)) => Alone::Rejected(self.reject(row, attempts, &why)?),
            Err(SendError::Refused(why) | SendError::InDoubt(why)) => {
                self.count(|metrics| metrics.in_doubt(1));
                return Ok(Alone::Trouble(format!("{} has no acknowledgement: {why}", row.event_id)));
            }
        };
        self.careful = Some(publisher);
        Ok(alone)
    }
}
