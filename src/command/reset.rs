//! `reset`: an empty schema and a fresh topic whose offsets start at 0.

use anyhow::Result;

use crate::broker::Cluster;
use crate::crash::{CrashPoint, Holds};
use crate::failure::Exit;
use crate::lab::Lab;
use crate::output::{Line, Output, hint};
use crate::presence::enter_alone;
use crate::store::Store;

/// The topic first, then the schema; what lies between the two is noted in the database beforehand, so that a
/// reset that died there reads as one, and a second reset mends it.
pub(super) fn run(lab: &Lab, holds: &mut Holds, out: &Output) -> Result<Exit> {
    let _alone = enter_alone(lab)?;
    let mut store = Store::make(&lab.db)?;
    let (incarnation, topics_gone) = Cluster::ensure(lab)?.fresh_topic(lab, || store.begin_reset())?;
    if topics_gone > 0 {
        hint(&format!(
            "the other topics of this lab directory went, too: on the embedded broker a reset takes all {topics_gone}"
        ));
    }
    holds.reached(CrashPoint::AfterTopic)?;
    store.finish_reset(&incarnation)?;
    out.line(&Line::SchemaReady { db: &lab.db })?;
    Ok(Exit::Done)
}
