//! SIGTERM and Ctrl-C: the relay takes no new rows, waits for what is in flight, marks it and gives its lease back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::Result;

use crate::crash;

static STOPPING: AtomicBool = AtomicBool::new(false);

/// From here on the first signal asks the relay to stop, and the second ends it at once; so does the first, where the
/// process is held. To be called before any thread is started: they inherit the mask.
///
/// # Errors
/// The signals cannot be waited for.
pub fn on_signal() -> Result<()> {
    let signals = crash::ending_signals();
    signals.thread_block()?;
    thread::spawn(move || {
        while let Ok(signal) = signals.wait() {
            if STOPPING.swap(true, Ordering::SeqCst) || crash::is_held() {
                std::process::exit(128 + signal as i32);
            }
        }
    });
    Ok(())
}

/// Has a signal asked the relay to stop?
pub fn is_asked_for() -> bool {
    STOPPING.load(Ordering::SeqCst)
}
