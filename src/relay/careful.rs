//! Rows that have to be sent alone: those that were rejected before, and those of which nobody knows yet whether they or
//! their neighbours were at fault.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;

use super::marker;
use super::scan::OnPoison;
use super::{Relay, bind, stop};
use crate::broker::{InFlight, Pipeline, Publisher, SendError};
use crate::clock::now_ms;
use crate::crash::CrashPoint;
use crate::failure::Failure;
use crate::lab::Lab;
use crate::output::{Line, hint};
use crate::store::{Batch, Next, Pending};

/// How long a row waits after its first rejection, at the most; after each further one twice as long.
const FIRST_BACKOFF: Duration = Duration::from_millis(200);

/// The longest wait.
const LONGEST_BACKOFF: Duration = Duration::from_secs(60);

/// How long a row waits after so many rejections: anywhere in the second half of a time that doubles, so that rows that
/// were rejected together do not come back together.
fn backoff(attempts: u32) -> Duration {
    let full = FIRST_BACKOFF.saturating_mul(1 << attempts.saturating_sub(1).min(16)).min(LONGEST_BACKOFF);
    full.mul_f64(0.5 + fastrand::f64() / 2.0)
}

/// Why a row has no topic to go to.
pub(super) enum NoTopic {
    /// None can have that name.
    Never(String),
    /// The broker does not answer, or does not make it.
    NotNow(String),
}

/// What becomes of a row that was rejected.
pub(super) struct Fate {
    /// Is it parked?
    pub(super) is_dead: bool,
    /// Do later rows of its aggregate have to wait?
    pub(super) holds_back: bool,
}

impl Relay<'_, '_> {
    /// Sends what has to be sent alone and is due, one row at a time, each acknowledged and marked before the next. Returns
    /// why it stopped, if the broker did not answer.
    pub(super) fn be_careful(&mut self, pipeline: &Pipeline) -> Result<Option<String>> {
        let mut rows: BTreeMap<i64, u32> = self.suspects.iter().map(|id| (*id, 0)).collect();
        let now = now_ms();
        rows.extend(self.store.tried()?.iter().filter(|row| row.next_try_at <= now).map(|row| (row.id, row.attempts)));
        for (id, attempts) in rows {
            if stop::is_asked_for() {
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
            if let Some(trouble) = self.send_alone(&batch, &row, attempts, pipeline)? {
                return Ok(Some(trouble));
            }
            self.suspects.remove(&id);
        }
        Ok(None)
    }

    fn send_alone(
        &mut self,
        batch: &Batch,
        row: &Pending,
        attempts: u32,
        pipeline: &Pipeline,
    ) -> Result<Option<String>> {
        let topic = match self.topic_of(row, pipeline)? {
            Ok(topic) => topic,
            Err(NoTopic::Never(why)) => {
                self.reject(row, attempts, &why)?;
                return Ok(None);
            }
            Err(NoTopic::NotNow(why)) => return Ok(Some(why)),
        };
        if self.careful.is_none() {
            let lab = Lab { topic: topic.clone(), ..self.lab.clone() };
            match Publisher::connect(&lab, None, false) {
                Ok(publisher) => self.careful = Some(publisher),
                Err(error) => return Ok(Some(Failure::from(error).what())),
            }
        }
        // Connecting took its time.
        if self.tenure.has_expired() {
            self.tenure.keep(&mut self.store)?;
            if !self.tenure.holds(row.aggregate_id) {
                return Ok(None);
            }
        }
        self.holds.reached(CrashPoint::BeforeSend)?;
        let record = self.routes.record(row, &topic);
        let Some(publisher) = &self.careful else { return Ok(None) };
        let sent = match publisher.send_record(&record) {
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
                Ok(None)
            }
            Err(SendError::Rejected(why)) => {
                self.reject(row, attempts, &why)?;
                Ok(None)
            }
            Err(SendError::Refused(why) | SendError::InDoubt(why)) => {
                Ok(Some(format!("{} has no acknowledgement: {why}", row.event_id)))
            }
        }
    }

    /// The topic of a row, made if it is not there; the inner error says why there is none.
    pub(super) fn topic_of(&mut self, row: &Pending, pipeline: &Pipeline) -> Result<Result<String, NoTopic>> {
        if let Some(topic) = self.routes.known(row) {
            return Ok(Ok(topic.to_owned()));
        }
        let topic = match self.routes.topic(row) {
            Ok(topic) => topic,
            Err(why) => return Ok(Err(NoTopic::Never(why))),
        };
        let (incarnation, partitions) = match pipeline.ensure_topic(&Lab { topic: topic.clone(), ..self.lab.clone() }) {
            Ok(found) => found,
            Err(error) => return Ok(Err(NoTopic::NotNow(Failure::from(error).what()))),
        };
        if partitions > 1 && !self.routes.keeps_aggregates_together() {
            hint(&format!(
                "{topic} has {partitions} partitions: keyed by event id, the events of one loan lie in several, in no order \
                 among them; --key aggregate keeps them together"
            ));
        }
        if !self.is_bound {
            bind(&mut self.store, &incarnation)?;
            self.is_bound = true;
        }
        self.routes.learn(row, topic.clone());
        Ok(Ok(topic))
    }

    /// Counts a rejection.
    pub(super) fn reject(&mut self, row: &Pending, attempts: u32, why: &str) -> Result<Fate> {
        let attempts = attempts + 1;
        let is_dead = attempts >= self.plan.max_attempts;
        let next = match is_dead {
            true => Next::Dead,
            false => Next::TryAt(now_ms() + i64::try_from(backoff(attempts).as_millis()).unwrap_or(i64::MAX / 2)),
        };
        if self.store.rejected(&self.tenure.lease, row.id, row.aggregate_id, why, next)? {
            self.done.rejected += 1;
            self.count(|metrics| metrics.rejected(1));
            self.done.dead += u64::from(is_dead);
            let of = self.plan.max_attempts;
            self.out.line(&Line::Rejected { event: row.event_id, attempt: attempts, of, error: why, is_dead })?;
        }
        Ok(Fate { is_dead, holds_back: !is_dead || self.plan.on_poison == OnPoison::HoldKey })
    }
}

#[cfg(test)]
mod tests {
    use super::{FIRST_BACKOFF, LONGEST_BACKOFF, backoff};

    #[test]
    fn each_wait_is_about_twice_as_long_as_the_one_before_up_to_a_minute() {
        for (attempts, full) in
            [(1, FIRST_BACKOFF), (2, FIRST_BACKOFF * 2), (4, FIRST_BACKOFF * 8), (40, LONGEST_BACKOFF)]
        {
            let wait = backoff(attempts);
            assert!(full / 2 <= wait && wait <= full, "{wait:?} after {attempts}");
        }
    }
}
