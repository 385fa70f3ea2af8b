//! The matrix of a sweep. Pure: what each kill left goes in, rows and a verdict come out.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use crate::crash::CrashPoint;
use crate::reconcile::{Finding, Reconciliation};
use crate::verdict::Verdict;

/// What was found, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Found {
    /// Committed loans whose event never reached the topic.
    pub orphan_rows: u64,
    /// Published events whose loan was never committed.
    pub phantom_events: u64,
    /// Rows marked whose record is not there.
    pub lost_events: u64,
    /// Records that are copies of others.
    pub duplicates: u64,
    /// Copies of events whose row was marked before the kill: whoever marks after the acknowledgement never makes one.
    pub unexplained_copies: u64,
    /// Effects beyond the first of an event.
    pub double_effects: u64,
    /// Events in the topic that had no effect.
    pub lost_effects: u64,
    /// Commits that were answered, and are not there.
    pub lost_commits: u64,
    /// Rows that are pending after everything was to be drained.
    pub undrained: u64,
}

impl Found {
    /// What a reconciliation found; and, where there is a consumer, its effects held against the topic.
    pub fn of(reconciliation: &Reconciliation, topic: &[String], effects: Option<&[String]>) -> Self {
        let mut found = Self {
            duplicates: reconciliation.redelivered(),
            undrained: reconciliation.tally.outbox - reconciliation.published,
            ..Self::default()
        };
        for finding in &reconciliation.findings {
            match finding {
                Finding::OrphanRow { .. } => found.orphan_rows += 1,
                Finding::PhantomEvent { .. } | Finding::ForeignRecord { .. } => found.phantom_events += 1,
                Finding::LostEvent { .. } => found.lost_events += 1,
                Finding::Duplicate { .. } => {}
            }
        }
        if let Some(effects) = effects {
            let mut times: BTreeMap<&str, u64> = topic.iter().map(|event_id| (event_id.as_str(), 0)).collect();
            for event_id in effects {
                *times.entry(event_id).or_default() += 1;
            }
            found.lost_effects = times.values().filter(|times| **times == 0).count() as u64;
            found.double_effects = times.values().map(|times| times.saturating_sub(1)).sum();
        }
        found
    }

    fn add(&mut self, other: &Self) {
        self.orphan_rows += other.orphan_rows;
        self.phantom_events += other.phantom_events;
        self.lost_events += other.lost_events;
        self.duplicates += other.duplicates;
        self.unexplained_copies += other.unexplained_copies;
        self.double_effects += other.double_effects;
        self.lost_effects += other.lost_effects;
        self.lost_commits += other.lost_commits;
        self.undrained += other.undrained;
    }

    /// Has anything been lost for good: an event that no one will send, or an effect that no one will make?
    pub fn is_loss(&self) -> bool {
        self.orphan_rows + self.lost_events + self.lost_effects + self.lost_commits > 0
    }

    /// Is anything there twice?
    pub fn is_duplicated(&self) -> bool {
        self.duplicates + self.double_effects > 0
    }

    /// What is wrong that a duplicate's removal does not mend.
    fn harms(&self) -> impl Iterator<Item = Harm> {
        let harms = [
            (self.orphan_rows, Harm::OrphanRow),
            (self.phantom_events, Harm::PhantomEvent),
            (self.lost_events, Harm::LostEvent),
            (self.double_effects, Harm::DoubleEffect),
            (self.lost_effects, Harm::LostEffect),
            (self.lost_commits, Harm::LostCommit),
            (self.undrained, Harm::UndrainedRow),
            (self.unexplained_copies, Harm::UnexplainedCopy),
        ];
        harms.into_iter().filter(|(times, _)| *times > 0).map(|(_, harm)| harm)
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [
            (self.orphan_rows, "orphan row", "orphan rows"),
            (self.phantom_events, "phantom event", "phantom events"),
            (self.lost_events, "lost event", "lost events"),
            (self.duplicates, "duplicate", "duplicates"),
            (self.double_effects, "double effect", "double effects"),
            (self.lost_effects, "lost effect", "lost effects"),
            (self.lost_commits, "lost commit", "lost commits"),
            (self.undrained, "undrained row", "undrained rows"),
            (self.unexplained_copies, "unexplained copy", "unexplained copies"),
        ];
        let named = kinds.iter().filter(|(times, ..)| *times > 0);
        let named: Vec<_> =
            named.map(|(times, one, many)| format!("{times} {}", if *times == 1 { one } else { many })).collect();
        f.pad(&if named.is_empty() { "nothing".to_owned() } else { named.join(", ") })
    }
}

/// One row of the matrix: a strategy, killed at every passage of a point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The strategy.
    pub strategy: &'static str,
    /// Where it died; `None` is the control, which was not killed.
    pub point: Option<CrashPoint>,
    /// Passages that the calibration counted.
    pub passages: u32,
    /// Deaths by signal 9 that were proved.
    pub kills: u32,
    /// Is only the bound of its duplicates the same in every sweep, and not their number? So it is where several records are
    /// in flight at the kill.
    pub varies: bool,
    /// What was found, all of them together.
    #[serde(flatten)]
    pub found: Found,
}

impl Row {
    /// A row to which nothing has been added.
    pub fn new(strategy: &'static str, point: Option<CrashPoint>, passages: u32) -> Self {
        Self { strategy, point, passages, kills: 0, varies: false, found: Found::default() }
    }

    /// Adds what one proved kill left.
    pub fn add_kill(&mut self, found: &Found) {
        self.kills += 1;
        self.found.add(found);
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let point = self.point.map_or_else(|| "(no kill)".to_owned(), |point| point.to_string());
        let yes = |is: bool| if is { "yes" } else { "no" };
        let lost = yes(self.found.is_loss());
        let (found, doubled) = match self.varies && self.point.is_some() && self.found.unexplained_copies == 0 {
            true => (Found { duplicates: 0, ..self.found }, "in flight"),
            false => (self.found, yes(self.found.is_duplicated())),
        };
        write!(f, "{:<24} {point:<20} {:>5}  {found:<18} {lost:<5} {doubled}", self.strategy, self.kills)
    }
}

/// The head of the matrix.
pub fn head() -> String {
    format!("{:<24} {:<20} {:>5}  {:<18} {:<5} {}", "strategy", "killed at", "kills", "found", "lost", "duplicated")
}

/// What a kill can do that a duplicate's removal does not mend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Harm {
    /// A committed loan whose event never reached the topic.
    OrphanRow,
    /// A published event whose loan was never committed.
    PhantomEvent,
    /// A row marked whose record is not there.
    LostEvent,
    /// An event that had an effect more than once.
    DoubleEffect,
    /// An event that had none.
    LostEffect,
    /// A commit that was answered, and is not there.
    LostCommit,
    /// A row that no restart sends.
    UndrainedRow,
    /// A copy of an event whose row was marked before the kill.
    UnexplainedCopy,
}

/// What a strategy is known to be: a judge that does not find the faults of the wrong ones is no judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nature {
    /// A kill must never do more than make a duplicate record.
    Sound,
    /// Somewhere a kill must do this harm, and none may do another.
    Faulty(Harm),
}

impl Nature {
    fn harm(self) -> Option<Harm> {
        match self {
            Self::Sound => None,
            Self::Faulty(harm) => Some(harm),
        }
    }
}

/// Judges a sweep: every passage killed at and proved, the controls clean, the sound strategies without harm, and of each
/// faulty one its own harm found.
pub fn judge(rows: &[Row], natures: &[(&'static str, Nature)]) -> Verdict {
    let unproved = rows.iter().filter(|row| row.point.is_some()).map(|row| row.passages - row.kills.min(row.passages));
    let unproved: u32 = unproved.sum();
    let kills: u32 = rows.iter().map(|row| row.kills).sum();
    let is_clean = |row: &Row| row.point.is_some() || row.found == Found::default();
    // A strategy that passed no point was not swept.
    let is_swept = |strategy: &str| rows.iter().any(|row| row.strategy == strategy && row.kills > 0);
    let not_swept: Vec<_> =
        natures.iter().map(|(strategy, _)| *strategy).filter(|strategy| !is_swept(strategy)).collect();
    let has_faulty = natures.iter().any(|(_, nature)| *nature != Nature::Sound);
    let harms = |strategy: &str| -> BTreeSet<Harm> {
        rows.iter().filter(|row| row.strategy == strategy).flat_map(|row| row.found.harms()).collect()
    };
    let as_it_should = natures.iter().all(|(strategy, nature)| harms(strategy).into_iter().eq(nature.harm()))
        && rows.iter().all(is_clean);
    if unproved > 0 {
        Verdict::Inconclusive { why: format!("{unproved} kills were not proved") }
    } else if !not_swept.is_empty() || kills == 0 {
        Verdict::Inconclusive { why: format!("no kill at all of {}", not_swept.join(", ")) }
    } else if !as_it_should {
        Verdict::Refuted
    } else if !has_faulty {
        let why = "no wrong order was swept, so nobody knows that a loss would have been found";
        Verdict::Inconclusive { why: why.to_owned() }
    } else {
        Verdict::Confirmed
    }
}

#[cfg(test)]
mod tests;
