//! The time, as the database keeps it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970. Relays that share a database compare these, so their machines' clocks have to agree.
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
