//! Verdicts. Pure: what was predicted, what was found and what was proved go in, a verdict comes out.

use std::fmt;

use serde::Serialize;

use crate::failure::Exit;

/// A finding, beside what was predicted of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at.
    pub what: String,
    /// What was predicted.
    pub predicted: String,
    /// What was found.
    pub found: String,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, predicted, found } = self;
        match predicted == found {
            true => write!(f, "found      {what}: {found}"),
            false => write!(f, "found      {what}: {found} (predicted {predicted})"),
        }
    }
}

/// What has to be proved, or was: processes that died of signal 9, and disturbances that are not a kill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Proofs {
    /// Deaths by signal 9, each with its receipt.
    pub kills: u32,
    /// Brokers frozen and let go on, processes let go on, refusals.
    pub disturbances: u32,
}

impl Proofs {
    /// These, but for those.
    #[must_use]
    pub fn without(self, those: Self) -> Self {
        Self {
            kills: self.kills.saturating_sub(those.kills),
            disturbances: self.disturbances.saturating_sub(those.disturbances),
        }
    }
}

/// A part of an experiment that was not played: this broker cannot show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SkippedPart {
    /// Which.
    pub part: String,
    /// Why not.
    pub why: String,
    /// What need not be proved for that reason.
    pub not_owed: Proofs,
}

/// What an experiment comes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub enum Verdict {
    /// Everything was found as predicted, and every kill was proved.
    Confirmed,
    /// Something was found otherwise.
    Refuted,
    /// Nothing can be concluded.
    Inconclusive { why: String },
    /// It was not played: this broker cannot show it.
    Skipped { why: String },
}

impl Verdict {
    /// Judges a play that came to its end. A kill that is missing makes it inconclusive, whatever was found; and so does
    /// a play in which nothing was looked at.
    pub fn of(declared: Proofs, proved: Proofs, checks: &[Check]) -> Self {
        if proved.kills < declared.kills {
            let why = format!("{} kills of {} were proved", proved.kills, declared.kills);
            return Self::Inconclusive { why };
        }
        if proved.disturbances < declared.disturbances {
            let why = format!("{} disturbances of {} were proved", proved.disturbances, declared.disturbances);
            return Self::Inconclusive { why };
        }
        if checks.is_empty() {
            return Self::Inconclusive { why: "nothing was compared".to_owned() };
        }
        if checks.iter().all(|check| check.predicted == check.found) { Self::Confirmed } else { Self::Refuted }
    }

    /// What several come to: refuted goes before inconclusive, and a skip counts neither way. Where nothing was played at
    /// all, nothing can be concluded.
    pub fn exit_of(verdicts: &[Self]) -> Exit {
        let any = |wanted: fn(&Self) -> bool| verdicts.iter().any(wanted);
        if any(|verdict| *verdict == Self::Refuted) {
            Exit::Unexpected
        } else if any(|verdict| matches!(verdict, Self::Inconclusive { .. }))
            || !any(|verdict| *verdict == Self::Confirmed)
        {
            Exit::Inconclusive
        } else {
            Exit::Done
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Confirmed => f.write_str("confirmed"),
            Self::Refuted => f.write_str("REFUTED"),
            Self::Inconclusive { why } => write!(f, "INCONCLUSIVE: {why}"),
            Self::Skipped { why } => write!(f, "SKIPPED: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Check, Proofs, Verdict};
    use crate::failure::Exit;

    fn check(predicted: &str, found: &str) -> Check {
        Check { what: "orphan rows".to_owned(), predicted: predicted.to_owned(), found: found.to_owned() }
    }

    const ONE_KILL: Proofs = Proofs { kills: 1, disturbances: 0 };

    #[test]
    fn as_predicted_and_proved_is_confirmed() {
        assert_eq!(Verdict::of(ONE_KILL, ONE_KILL, &[check("L-2001", "L-2001")]), Verdict::Confirmed);
    }

    #[test]
    fn otherwise_than_predicted_is_refuted() {
        let checks = [check("L-2001", "L-2001"), check("none", "L-2002")];
        assert_eq!(Verdict::of(ONE_KILL, ONE_KILL, &checks), Verdict::Refuted);
    }

    #[test]
    fn a_kill_that_missed_is_inconclusive_even_where_everything_is_as_predicted() {
        let verdict = Verdict::of(ONE_KILL, Proofs::default(), &[check("L-2001", "L-2001")]);
        assert_eq!(verdict, Verdict::Inconclusive { why: "0 kills of 1 were proved".to_owned() });
    }

    #[test]
    fn a_disturbance_that_did_not_happen_is_inconclusive() {
        let declared = Proofs { kills: 0, disturbances: 1 };
        assert!(matches!(Verdict::of(declared, Proofs::default(), &[check("1", "1")]), Verdict::Inconclusive { .. }));
    }

    #[test]
    fn the_proofs_of_a_part_that_was_skipped_are_not_owed_and_all_others_are() {
        let declared = Proofs { kills: 1, disturbances: 2 };
        let owed = declared.without(Proofs { kills: 0, disturbances: 1 });
        assert_eq!(owed, Proofs { kills: 1, disturbances: 1 });
        assert_eq!(Verdict::of(owed, owed, &[check("1", "1")]), Verdict::Confirmed);
        assert!(matches!(Verdict::of(owed, ONE_KILL, &[check("1", "1")]), Verdict::Inconclusive { .. }));
    }

    #[test]
    fn a_play_that_compares_nothing_is_no_pass() {
        assert!(matches!(Verdict::of(ONE_KILL, ONE_KILL, &[]), Verdict::Inconclusive { .. }));
    }

    #[test]
    fn refuted_goes_before_inconclusive_and_a_skip_counts_neither_way() {
        let inconclusive = Verdict::Inconclusive { why: String::new() };
        let skipped = Verdict::Skipped { why: String::new() };
        assert_eq!(Verdict::exit_of(&[Verdict::Confirmed, skipped.clone()]), Exit::Done);
        assert_eq!(Verdict::exit_of(&[Verdict::Confirmed, inconclusive.clone()]), Exit::Inconclusive);
        assert_eq!(Verdict::exit_of(&[inconclusive, Verdict::Refuted, Verdict::Confirmed]), Exit::Unexpected);
        assert_eq!(Verdict::exit_of(&[skipped]), Exit::Inconclusive, "nothing was played at all");
        assert_eq!(Verdict::exit_of(&[]), Exit::Inconclusive);
    }
}
