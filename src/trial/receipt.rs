//! Receipts: the proof of each kill, a JSON line each.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::crash::HoldAt;
use crate::event::Counts;
use crate::lab::Lab;

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
    /// The ids of the events that it had sent and not had acknowledged.
    pub in_flight: Vec<String>,
    /// The counts while it was held, before the broker was frozen if it was.
    pub before: Left,
    /// The counts after its death.
    pub after: Left,
}

/// The receipts of a lab directory. Those of a run come behind those of the runs before it, and each bears its run.
pub struct Receipts {
    run: String,
    path: PathBuf,
}

impl Receipts {
    /// For a run that begins now.
    pub fn of_new_run(lab: &Lab) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        Self { run: format!("{now}-{}", std::process::id()), path: lab.dir.join("receipts.jsonl") }
    }

    /// The id of the run. On a real Kafka it sets the run's topics apart.
    pub fn run(&self) -> &str {
        &self.run
    }

    /// Adds one, as one write.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add(&self, receipt: &Receipt) -> Result<()> {
        #[derive(Serialize)]
        struct Line<'a> {
            run: &'a str,
            #[serde(flatten)]
            receipt: &'a Receipt,
        }
        let mut line = serde_json::to_vec(&Line { run: &self.run, receipt })?;
        line.push(b'\n');
        let file = OpenOptions::new().create(true).append(true).open(&self.path);
        file.and_then(|mut file| file.write_all(&line))
            .with_context(|| format!("{} cannot be written", self.path.display()))
    }
}
