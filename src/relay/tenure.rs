//! How a relay keeps its lease: claimed before the first row is read, put off in time, and looked at before each send.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::clock::now_ms;
use crate::shard::{Slots, slot_of};
use crate::store::{Lease, Store, Turnover};

/// How soon a relay that lacks slots looks again whether they are free.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A lease, and how it is kept.
pub struct Tenure {
    /// What is held.
    pub lease: Lease,
    /// What is wanted: the slots of the shard.
    pub wanted: Slots,
    /// When it was last claimed or put off.
    kept: Instant,
    /// How long the lease lasts from each renewal, in milliseconds.
    length: i64,
    /// Is every earlier relay of this name known to be dead?
    is_own: bool,
}

impl Tenure {
    /// One that holds nothing yet.
    pub fn new(owner: &str, wanted: Slots, length: Duration, is_own: bool) -> Self {
        let length = i64::try_from(length.as_millis()).unwrap_or(i64::MAX / 2);
        Self { lease: Lease::of(owner), wanted, kept: Instant::now(), length, is_own }
    }

    /// Puts the end of the lease off, and claims what is wanted and free.
    ///
    /// # Errors
    /// The database stays locked for longer than the busy timeout.
    pub fn keep(&mut self, store: &mut Store) -> Result<Turnover> {
        self.kept = Instant::now();
        let now = now_ms();
        store.hold(&mut self.lease, self.wanted, self.is_own, now, now + self.length)
    }

    /// Has it expired? Another relay may hold the slots by now.
    pub fn has_expired(&self) -> bool {
        now_ms() >= self.lease.expires_at
    }

    /// Is it time to put its end off, or to see whether what others hold is free by now?
    pub fn is_due(&self) -> bool {
        now_ms() >= self.lease.expires_at - self.length / 3 * 2
            || (!self.is_complete() && self.kept.elapsed() > LOOK_AGAIN)
    }

    /// Is all that is wanted held?
    pub fn is_complete(&self) -> bool {
        self.wanted.without(self.lease.slots()).is_empty()
    }

    /// Is an aggregate's slot held, as far as this relay knows?
    pub fn holds(&self, aggregate_id: &str) -> bool {
        self.lease.slots().contains(slot_of(aggregate_id))
    }

    /// Gives back what is held.
    ///
    /// # Errors
    /// The database stays locked for longer than the busy timeout.
    pub fn end(&mut self, store: &mut Store) -> Result<()> {
        store.release(&mut self.lease)
    }
}
