//! How long a trial waits. Nothing that it waits for is certain to come.

use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::failure::Failure;

/// How many seconds anything in a trial may take before it is inconclusive, where nobody asks for another patience.
pub const PATIENCE: u32 = 60;

static ASKED_FOR: OnceLock<u32> = OnceLock::new();

/// From here on anything in a trial may take so many seconds.
pub fn be_patient(seconds: u32) {
    // A run asks once, before it plays.
    let _ = ASKED_FOR.set(seconds);
}

/// When what begins now is late.
pub(super) fn deadline() -> Instant {
    let seconds = ASKED_FOR.get().copied().unwrap_or(PATIENCE);
    Instant::now() + Duration::from_secs(seconds.into())
}

/// Waits for a state, with a deadline.
///
/// # Errors
/// Inconclusive: it does not come.
pub fn wait_for(what: &str, mut state: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = deadline();
    while !state()? {
        if Instant::now() > deadline {
            return Err(Failure::inconclusive(
                format!("waited in vain for {what}"),
                "play it again, on a quieter machine or with a longer --patience",
            ));
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
