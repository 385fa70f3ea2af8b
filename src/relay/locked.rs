//! What a relay does while another program has the database locked.

use std::thread;
use std::time::Duration;

use super::stop;
use crate::output::hint;

/// How long a lock of another program is waited for between two looks.
const LOCK_LOOK: Duration = Duration::from_millis(10);

/// After so many looks the relay says that it waits, and again after as many.
const LOCK_SILENCE: i32 = 200;

/// After so many looks, a minute, it gives up.
const LOCK_PATIENCE: i32 = 6_000;

/// And after so many, some seconds, when it is to stop.
const LOCK_PATIENCE_STOPPING: i32 = 500;

/// Waits while another program has the database locked: what is acknowledged by now would have to be sent twice, and what is
/// leased would be left to nobody.
pub(super) fn bears_with_a_lock(looks: i32) -> bool {
    if looks % LOCK_SILENCE == LOCK_SILENCE - 1 {
        hint("waiting: another program has the database locked");
    }
    thread::sleep(LOCK_LOOK);
    looks < if stop::is_asked_for() { LOCK_PATIENCE_STOPPING } else { LOCK_PATIENCE }
}
