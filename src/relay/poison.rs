//! What becomes of a row that the broker rejects.

use std::time::Duration;

use anyhow::Result;

use super::Relay;
use super::scan::OnPoison;
use crate::clock::now_ms;
use crate::output::Line;
use crate::store::{Next, Pending};

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

/// What becomes of a row that was rejected.
pub(super) struct Fate {
    /// Is it parked?
    pub(super) is_dead: bool,
    /// Do later rows of its aggregate have to wait?
    pub(super) holds_back: bool,
}

impl Relay<'_, '_> {
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
