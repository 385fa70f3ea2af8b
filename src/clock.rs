//! The time, as the database keeps it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970. Relays that share a database compare these, so their machines' clocks have to agree.
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// The time that a row bears, such as "2026-09-01T08:00:00.000Z", in milliseconds since 1970; `None` if it is none.
pub fn ms_of(created_at: &str) -> Option<i64> {
    let since = humantime::parse_rfc3339(created_at).ok()?.duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(since.as_millis()).ok()
}
