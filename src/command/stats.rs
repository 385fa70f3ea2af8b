//! `stats`: what to watch of the outbox. It writes nothing, once the database is of this version (an older one is migrated, as
//! by every command), and relays, writers and even a `reset` may be at work meanwhile.

use std::thread;
use std::time::Duration;

use anyhow::Result;

use crate::cli::StatsArgs;
use crate::clock::now_ms;
use crate::failure::Exit;
use crate::lab::Lab;
use crate::metrics::exposition;
use crate::output::{Line, Output, hint};
use crate::presence::enter;
use crate::store::{Stats, Store};

/// How often `--watch` looks again.
const PERIOD: Duration = Duration::from_secs(1);

pub(super) fn run(lab: &Lab, args: &StatsArgs, out: &Output) -> Result<Exit> {
    loop {
        let stats = look(lab)?;
        if args.prometheus {
            out.told(exposition(&stats, None).trim_end())?;
        } else {
            out.line(&Line::Stats(&stats))?;
        }
        let age = Duration::try_from_secs_f64(stats.oldest_pending_age_seconds.unwrap_or(0.0)).unwrap_or_default();
        if let Some(max) = args.max_age.filter(|max| age > *max) {
            let max = humantime::format_duration(max);
            hint(&format!(
                "the oldest pending row has waited longer than {max}: does a relay run, and is the broker up?"
            ));
            return Ok(Exit::Unexpected);
        }
        if !args.watch {
            return Ok(Exit::Done);
        }
        thread::sleep(PERIOD);
    }
}

/// Opened anew each time: whoever watches for hours is not to keep a `reset` waiting, and sees the database that is there.
fn look(lab: &Lab) -> Result<Stats> {
    let _present = enter(lab)?;
    Store::open(&lab.db)?.stats(now_ms())
}
