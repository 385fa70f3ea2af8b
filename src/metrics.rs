//! What is counted of a relay at work, and how it is told to Prometheus.

mod exposition;
mod serve;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub use self::exposition::exposition;
pub use self::serve::{loopback_only, serve};

/// The upper bounds of the histogram's buckets, in milliseconds: around the 10 ms that a relay which is woken by a commit
/// takes, and up to a minute, where somebody should be looking.
const BOUNDS_MS: [i64; 15] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000];

/// The bounds, and beyond.
const BUCKETS: usize = BOUNDS_MS.len() + 1;

/// The counters of one relay since its start. They are told batch by batch, so that half a million rows a second cost a few
/// additions each; whoever reads them in between may see a batch in one and not yet in another.
#[derive(Debug, Default)]
pub struct Metrics {
    published_rows: AtomicU64,
    refused_marks: AtomicU64,
    rejections: AtomicU64,
    sends_in_doubt: AtomicU64,
    new_producers: AtomicU64,
    commit_to_ack: [AtomicU64; BUCKETS],
    commit_to_ack_sum_ms: AtomicU64,
}

impl Metrics {
    /// All at 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records acknowledged, each so many milliseconds after its row was written. Less than none is none: two machines'
    /// clocks never agree to the millisecond.
    pub fn acknowledged(&self, after_ms: impl IntoIterator<Item = i64>) {
        let (mut buckets, mut sum) = ([0; BUCKETS], 0);
        for ms in after_ms {
            buckets[BOUNDS_MS.partition_point(|bound| *bound < ms)] += 1;
            sum += ms.max(0).unsigned_abs();
        }
        for (bucket, n) in self.commit_to_ack.iter().zip(buckets).filter(|(_, n)| *n > 0) {
            bucket.fetch_add(n, Relaxed);
        }
        self.commit_to_ack_sum_ms.fetch_add(sum, Relaxed);
    }

    /// Rows marked as published.
    pub fn published(&self, rows: u64) {
        self.published_rows.fetch_add(rows, Relaxed);
    }

    /// Marks refused: the lease was another relay's by then.
    pub fn marks_refused(&self, rows: u64) {
        self.refused_marks.fetch_add(rows, Relaxed);
    }

    /// Records that the broker rejected for good.
    pub fn rejected(&self, records: u64) {
        self.rejections.fetch_add(records, Relaxed);
    }

    /// Sends whose outcome is unknown.
    pub fn in_doubt(&self, sends: u64) {
        self.sends_in_doubt.fetch_add(sends, Relaxed);
    }

    /// Another producer was made, since sends over the last one were in doubt or rejected.
    pub fn new_producer(&self) {
        self.new_producers.fetch_add(1, Relaxed);
    }
}

#[cfg(test)]
mod tests;
