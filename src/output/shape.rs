//! How a line is written whose value has more to it than fields that follow each other.

use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use crate::event::{Position, Record};
use crate::store::Stats;
use crate::verdict::{Proofs, Verdict};

/// The age leads: it tells of a relay that stands still before the number of rows does.
pub(super) fn stats_text(stats: &Stats, w: &mut dyn Write) -> io::Result<()> {
    let Stats { oldest_pending_age_seconds, pending, dead, published, attempts, leases } = stats;
    match oldest_pending_age_seconds {
        Some(age) => write!(w, "[stats] oldest-pending={age:.3}s")?,
        None => write!(w, "[stats] oldest-pending=none")?,
    }
    write!(w, " pending={pending} dead={dead} published={published} attempts={attempts}")?;
    for lease in leases {
        let left = lease.left_ms as f64 / 1_000.0;
        write!(w, "\n[stats] lease owner={} slots={} left={left:.3}s", lease.owner, lease.slots)?;
    }
    Ok(())
}

/// What an experiment came to, with its proofs.
pub(super) fn judged_text(verdict: &Verdict, proved: Proofs, skipped: usize, w: &mut dyn Write) -> io::Result<()> {
    write!(w, "verdict    {verdict}")?;
    let proved: Vec<_> = [(proved.kills, "kill"), (proved.disturbances, "disturbance")]
        .into_iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, noun)| n_of(n.into(), noun))
        .collect();
    if !proved.is_empty() {
        write!(w, ", {} proved", proved.join(" and "))?;
    }
    match skipped {
        0 => Ok(()),
        n => write!(w, "; {} SKIPPED", n_of(n as u64, "part")),
    }
}

/// "1 record", "2 records".
pub(super) fn n_of(n: u64, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

pub(super) fn path_text<S: serde::Serializer>(path: &Path, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(&path.to_string_lossy())
}

/// The JSON shape of a record.
#[derive(Serialize)]
struct RecordJson<'a> {
    #[serde(flatten)]
    at: Position,
    key: Option<String>,
    headers: Vec<(&'a str, Option<String>)>,
    payload: Option<String>,
}

pub(super) fn record_json<S: serde::Serializer>(record: &&Record, s: S) -> Result<S::Ok, S::Error> {
    let text = |bytes: &Option<Vec<u8>>| bytes.as_ref().map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    RecordJson {
        at: record.at,
        key: text(&record.key),
        headers: record.headers.iter().map(|(name, value)| (name.as_str(), text(value))).collect(),
        payload: text(&record.payload),
    }
    .serialize(s)
}
