//! Receipts: the proof of each kill, a JSON line each.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::crash::HoldAt;
use crate::event::Counts;

/// What is left in database and topic at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Left {
    /// Rows.
    #[serde(flatten)]
    pub counts: Counts,
    /// A consumer's effects.
    pub effects: u64,
    /// Records, those of an open or aborted Kafka transaction among them; `None` while the broker is frozen.
    pub records: Option<u64>,
}

/// The proof of a kill.
#[derive(Clone, Debug, Serialize)]
pub struct Receipt {
    /// The experiment, or the strategy of the sweep.
    pub trial: String,
    /// Where it died.
    #[serde(flatten)]
    pub at: HoldAt,
    /// The process that died.
    pub pid: u32,
    /// The signal that it died of, from its wait status.
    pub signal: i32,
    /// What it had sent and not had acknowledged.
    pub in_flight: String,
    /// The counts while it was held, before the broker was frozen if it was.
    pub before: Left,
    /// The counts after its death.
    pub after: Left,
}

impl Receipt {
    /// Adds it to the receipts of the lab directory, as one write.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn append(&self, path: &Path) -> Result<()> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        let file = OpenOptions::new().create(true).append(true).open(path);
        file.and_then(|mut file| file.write_all(&line)).with_context(|| format!("{} cannot be written", path.display()))
    }
}
