//! `measure`: what `scripts/bench-relay.sh` holds a relay against: the sends and the marks that it cannot beat, its query for
//! pending rows, and the end of the topic that it sent to.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::broker::{Cluster, Watch, send_from_memory};
use crate::event::Key;
use crate::failure::Exit;
use crate::lab::Lab;
use crate::output::{Line, Measured, Output};
use crate::presence::enter;
use crate::store::Store;

/// Rows of a transaction of marks.
const BATCH: u32 = 5_000;

/// How often the query is asked.
const POLLS: u32 = 2_000;

pub(super) fn run(lab: &Lab, what: Measured, key: Key, out: &Output) -> Result<Exit> {
    let _present = enter(lab)?;
    let mut store = Store::open(&lab.db)?;
    let (times, took) = match what {
        Measured::Sends => {
            let rows = store.pending(i64::MIN, u32::MAX)?;
            let records = rows
                .iter()
                .map(|row| row.event.outgoing(&lab.topic, key.of(&row.event.event_id, &row.event.aggregate_id)));
            (rows.len() as u64, send_from_memory(lab, &records.collect::<Vec<_>>())?)
        }
        Measured::Marks => {
            let begun = Instant::now();
            let mut marked = 0;
            while let n @ 1.. = store.mark_next(BATCH)? {
                marked += n;
            }
            (marked, begun.elapsed())
        }
        Measured::Ends => {
            let cluster = Cluster::ensure(lab)?;
            let end = Watch::connect(lab, &cluster)?.end(&lab.topic)?;
            (end.unsigned_abs(), Duration::ZERO)
        }
        Measured::Polls => {
            let mut took = Duration::ZERO;
            for _ in 0..POLLS {
                let begun = Instant::now();
                store.batch(i64::MIN, 100, |_| true)?;
                took += begun.elapsed();
            }
            (POLLS.into(), took)
        }
    };
    out.line(&Line::Measured { what, times, seconds: took.as_secs_f64() })?;
    Ok(Exit::Done)
}
