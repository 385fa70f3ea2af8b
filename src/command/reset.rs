//! `reset`: an empty schema and a fresh topic whose offsets start at 0.

use anyhow::Result;

use crate::broker::{embedded, fresh_topic};
use crate::crash::{Crash, CrashPoint, HoldAt};
use crate::failure::Exit;
use crate::lab::Lab;
use crate::output::{Line, Output, hint};
use crate::store::Store;

/// The topic first, then the schema; what lies between the two is noted in the database beforehand, so that a
/// reset that died there reads as one, and a second reset mends it.
pub(super) fn run(lab: &Lab, hold_at: &[HoldAt], out: &Output) -> Result<Exit> {
    let mut crash = Crash::new("reset", &[CrashPoint::AfterTopic], hold_at, None, out)?;
    lab.make_dir()?;
    let _alone = lab.enter_alone()?;
    let mut store = Store::make(&lab.db)?;
    let incarnation = match &lab.kafka {
        Some(servers) => fresh_topic(lab, servers, || store.begin_reset())?,
        None => {
            let broker = embedded::ensure(lab)?;
            store.begin_reset()?;
            let (broker, topics_gone) = broker.fresh(&lab.topic)?;
            if topics_gone > 0 {
                hint("the embedded broker has a new cluster: every topic of this lab directory went with the old one");
            }
            broker.incarnation(&lab.topic)
        }
    };
    crash.reached(CrashPoint::AfterTopic)?;
    store.finish_reset(incarnation.as_str())?;
    out.line(&Line::SchemaReady { db: &lab.db })?;
    Ok(crash.exit())
}
