//! How long a relay took, for whoever measures it.

use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};

use crate::output::hint;

/// From when to when a relay was at work.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    begun: Instant,
    first_ack: Option<Instant>,
    last_mark: Option<Instant>,
}

impl Span {
    /// Begins now: on the first line of a command.
    pub fn begin() -> Self {
        Self { begun: Instant::now(), first_ack: None, last_mark: None }
    }

    /// An acknowledgement came.
    pub fn acknowledged(&mut self) {
        self.first_ack.get_or_insert_with(Instant::now);
    }

    /// Rows were marked.
    pub fn marked(&mut self) {
        self.last_mark = Some(Instant::now());
    }

    /// Says how long it took, and in how much memory, on standard error.
    pub fn tell(&self, rows: u64) {
        if let (Some(first), Some(last)) = (self.first_ack, self.last_mark) {
            let (to_first, from_first) = ((first - self.begun).as_secs_f64(), (last - first).as_secs_f64());
            hint(&format!(
                "first acknowledgement after {to_first:.6} s; {rows} rows in {from_first:.6} s from there to the last mark; \
                 peak memory {} MB",
                peak_memory() / 1_000_000
            ));
        }
    }
}

/// The most memory that this process has had, in bytes; 0 where the system does not tell.
fn peak_memory() -> i64 {
    // Linux counts in KiB, macOS in bytes.
    let unit = if cfg!(target_os = "macos") { 1 } else { 1024 };
    getrusage(UsageWho::RUSAGE_SELF).map_or(0, |usage| usage.max_rss() * unit)
}
