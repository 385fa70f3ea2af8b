//! What a lab command came to, and what it told on the way.

use std::process::ExitStatus;

use anyhow::Result;

use crate::crash::HoldAt;
use crate::failure::{Exit, Failure};

/// A lab command that has ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its standard output since it was last looked at.
    pub printed: Vec<String>,
    /// Its standard error.
    pub said: Vec<String>,
    pub(super) status: ExitStatus,
}

impl Ended {
    /// Is there a line of its standard output that contains this?
    pub fn prints(&self, text: &str) -> bool {
        self.printed.iter().any(|line| line.contains(text))
    }

    /// Is there a line of its standard error that contains this?
    pub fn says(&self, text: &str) -> bool {
        self.said.iter().any(|line| line.contains(text))
    }

    /// How often it passed each crash point, in the order in which it came to them first, as it told with `--trace`.
    pub fn passages(&self) -> Vec<HoldAt> {
        passages(self.said.iter())
    }

    /// Did it end with this exit code?
    pub fn exited(&self, exit: Exit) -> bool {
        self.status.code() == Some(exit as i32)
    }

    /// It has to have ended like this.
    ///
    /// # Errors
    /// Inconclusive, with the last lines that it printed.
    pub fn expect(&self, line: &str, exit: Exit) -> Result<()> {
        if self.exited(exit) {
            return Ok(());
        }
        Err(inconclusive(
            line,
            &format!("ended with {}, not with exit code {}", self.status, exit as i32),
            &self.last_lines(),
        ))
    }

    pub(super) fn last_lines(&self) -> String {
        last_lines(self.printed.iter().chain(&self.said))
    }
}

/// What lines tell of how often crash points were passed.
pub(super) fn passages<'a>(said: impl Iterator<Item = &'a String>) -> Vec<HoldAt> {
    let passed = said.filter_map(|line| line.strip_prefix("outbox-lab: passed "));
    passed.filter_map(|told| told.replace(' ', "@").parse().ok()).collect()
}

pub(super) fn inconclusive(line: &str, what: &str, last_lines: &str) -> anyhow::Error {
    Failure::inconclusive(
        format!("outbox-lab {line} {what}\n  {last_lines}"),
        "play it again; the receipts tell what was proved",
    )
}

pub(super) fn last_lines<'a>(lines: impl Iterator<Item = &'a String>) -> String {
    let all: Vec<_> = lines.map(String::as_str).collect();
    all[all.len().saturating_sub(5)..].join("\n  ")
}
