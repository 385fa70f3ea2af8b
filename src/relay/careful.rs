//! Rows that have to be sent alone: those that were rejected before, and those of which nobody knows yet whether they or
//! their neighbours were at fault.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::routes::NoTopic;
use super::scan::OnPoison;
use super::{Relay, marker, stop};
use crate::broker::{InFlight, Pipeline, Publisher, SendError};
use crate::clock::now_ms;
use crate::crash::CrashPoint;
use crate::failure::Failure;
use crate::lab::Lab;
use crate::store::{Batch, Pending};

/// For how long at a time a relay that follows sends rows alone, while all others wait.
const TURN: Duration = Duration::from_millis(200);

/// What came of sending a row alone.
enum Alone {
    /// It is in the topic, or was rejected.
    Settled,
    /// It is another relay's by now.
    Left,
    /// The broker does not answer.
    Trouble(String),
}

impl Relay<'_, '_> {
    /// Sends what has to be sent alone and is due, one row at a time, each acknowledged and marked before the next. Returns
    /// why it stopped, if the broker did not answer.
    pub(super) fn be_careful(&mut self, pipeline: &Pipeline) -> Result<Option<String>> {
        let mut rows: BTreeMap<i64, u32> = self.suspects.iter().map(|id| (*id, 0)).collect();
        let (now, begun) = (now_ms(), Instant::now());
        rows.extend(self.store.tried()?.iter().filter(|row| row.next_try_at <= now).map(|row| (row.id, row.attempts)));
        for (id, attempts) in rows {
            // What is not done in this turn is held back by the pass, and done in the next.
            if stop::is_asked_for() || (self.plan.follow && begun.elapsed() > TURN) {
                break;
            }
            // First of all: a row that was read before may be sent by another relay by now.
            if self.tenure.is_due() {
                self.tenure.keep(&mut self.store)?;
            }
            let batch = self.store.pending_row(id)?;
            let Some(row) = batch.iter().next() else {
                self.suspects.remove(&id);
                continue;
            };
            let dead_ones = self.plan.on_poison == OnPoison::HoldKey;
            if !self.tenure.holds(row.aggregate_id) || self.store.is_behind_another(id, row.aggregate_id, dead_ones)? {
                continue;
            }
            match self.send_alone(&batch, &row, attempts, pipeline)? {
                Alone::Settled => drop(self.suspects.remove(&id)),
                Alone::Left => {}
                Alone::Trouble(why) => return Ok(Some(why)),
            }
        }
        Ok(None)
    }

    fn send_alone(&mut self, batch: &Batch, row: &Pending, attempts: u32, pipeline: &Pipeline) -> Result<Alone> {
        let topic = match self.topic_of(row, pipeline)? {
            Ok(topic) => topic,
            Err(NoTopic::Never(why)) => {
                self.reject(row, attempts, &why)?;
                return Ok(Alone::Settled);
            }
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
        match sent {
            Ok(_) => {
                self.was_acknowledged(batch, &[true]);
                self.holds.reached(CrashPoint::AfterAck)?;
                let marks = marker::mark(&mut self.store, self.holds, &self.tenure.lease, batch, &[true])?;
                self.was_marked(batch, &marks)?;
            }
            Err(SendError::Rejected(why)) => {
                self.reject(row, attempts, &why)?;
            }
            Err(SendError::Refused(why) | SendError::InDoubt(why)) => {
                self.count(|metrics| metrics.in_doubt(1));
                return Ok(Alone::Trouble(format!("{} has no acknowledgement: {why}", row.event_id)));
            }
        }
        self.careful = Some(publisher);
        Ok(Alone::Settled)
    }
}
