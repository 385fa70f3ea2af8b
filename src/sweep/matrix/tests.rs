//! Rows written by hand, and what must be said of them.

use super::{Found, Harm, Nature, Row, judge};
use crate::crash::CrashPoint;
use crate::event::{ID_HEADER, Loan, OutboxRow, Position, Record};
use crate::reconcile::Reconciliation;
use crate::verdict::Verdict;

const BOTH: &[(&str, Nature)] = &[("good", Nature::Sound), ("bad", Nature::Faulty(Harm::LostEvent))];

fn row(strategy: &'static str, point: CrashPoint, found: Found) -> Row {
    let mut row = Row::new(strategy, Some(point), 1);
    row.add_kill(&found);
    row
}

fn duplicate() -> Found {
    Found { duplicates: 1, ..Found::default() }
}

fn lost() -> Found {
    Found { lost_events: 1, ..Found::default() }
}

#[test]
fn a_sound_strategy_may_duplicate_and_a_faulty_one_must_lose() {
    let rows = [row("good", CrashPoint::AfterAck, duplicate()), row("bad", CrashPoint::AfterMark, lost())];
    assert_eq!(judge(&rows, BOTH), Verdict::Confirmed);
}

#[test]
fn a_loss_of_a_sound_strategy_refutes_the_sweep() {
    let rows = [row("good", CrashPoint::AfterAck, lost()), row("bad", CrashPoint::AfterMark, lost())];
    assert_eq!(judge(&rows, BOTH), Verdict::Refuted);
}

#[test]
fn a_double_effect_of_a_sound_strategy_refutes_the_sweep() {
    let doubled = Found { double_effects: 1, ..Found::default() };
    let rows = [row("good", CrashPoint::AfterEffect, doubled), row("bad", CrashPoint::AfterMark, lost())];
    assert_eq!(judge(&rows, BOTH), Verdict::Refuted);
}

#[test]
fn the_harm_of_a_faulty_strategy_that_is_not_found_refutes_the_sweep() {
    let rows = [row("good", CrashPoint::AfterAck, duplicate()), row("bad", CrashPoint::AfterMark, duplicate())];
    assert_eq!(judge(&rows, BOTH), Verdict::Refuted);
}

#[test]
fn another_harm_in_place_of_the_one_that_it_must_show_refutes_the_sweep() {
    let others = [
        Found { orphan_rows: 1, ..Found::default() },
        Found { phantom_events: 1, ..Found::default() },
        Found { double_effects: 1, ..Found::default() },
        Found { lost_effects: 1, ..Found::default() },
        Found { lost_commits: 1, ..Found::default() },
        Found { undrained: 1, ..Found::default() },
    ];
    for other in others {
        let rows = [row("good", CrashPoint::AfterAck, duplicate()), row("bad", CrashPoint::AfterMark, other)];
        assert_eq!(judge(&rows, BOTH), Verdict::Refuted, "{other}");
    }
}

#[test]
fn another_harm_beside_the_one_that_it_must_show_refutes_the_sweep() {
    let stuck = Found { undrained: 1, ..Found::default() };
    let good = row("good", CrashPoint::AfterAck, duplicate());
    let rows = [good, row("bad", CrashPoint::AfterMark, lost()), row("bad", CrashPoint::BeforeMark, stuck)];
    assert_eq!(judge(&rows, BOTH), Verdict::Refuted);
}

#[test]
fn each_faulty_strategy_has_a_harm_of_its_own() {
    let rows = [
        row("orphans", CrashPoint::BeforeSend, Found { orphan_rows: 1, ..Found::default() }),
        row("doubles", CrashPoint::AfterEffect, Found { double_effects: 1, ..Found::default() }),
    ];
    let own = [("orphans", Nature::Faulty(Harm::OrphanRow)), ("doubles", Nature::Faulty(Harm::DoubleEffect))];
    assert_eq!(judge(&rows, &own), Verdict::Confirmed);
    let exchanged = [("orphans", Nature::Faulty(Harm::DoubleEffect)), ("doubles", Nature::Faulty(Harm::OrphanRow))];
    assert_eq!(judge(&rows, &exchanged), Verdict::Refuted);
}

#[test]
fn a_control_that_is_not_clean_refutes_the_sweep() {
    let mut control = Row::new("good", None, 0);
    control.found = duplicate();
    let rows =
        [control, row("good", CrashPoint::AfterAck, Found::default()), row("bad", CrashPoint::AfterMark, lost())];
    assert_eq!(judge(&rows, BOTH), Verdict::Refuted);
}

#[test]
fn a_kill_that_missed_is_inconclusive_whatever_was_found() {
    let missed = Row::new("good", Some(CrashPoint::AfterAck), 2);
    let rows = [missed, row("bad", CrashPoint::AfterMark, duplicate())];
    assert_eq!(judge(&rows, BOTH), Verdict::Inconclusive { why: "2 kills were not proved".to_owned() });
}

#[test]
fn a_sweep_that_killed_nobody_is_inconclusive() {
    assert!(matches!(judge(&[Row::new("good", None, 0)], &BOTH[..1]), Verdict::Inconclusive { .. }));
}

#[test]
fn a_copy_of_an_event_that_was_marked_refutes_the_sweep() {
    let again = Found { duplicates: 1, unexplained_copies: 1, ..Found::default() };
    let rows = [row("good", CrashPoint::AfterMark, again), row("bad", CrashPoint::AfterMark, lost())];
    assert_eq!(judge(&rows, BOTH), Verdict::Refuted);
}

#[test]
fn duplicates_that_vary_are_told_by_their_bound() {
    let varying = Row { varies: true, ..row("good", CrashPoint::AfterAck, duplicate()) };
    assert!(varying.to_string().ends_with("nothing            no    in flight"), "{varying}");
    let again = Found { unexplained_copies: 1, ..duplicate() };
    let beyond = Row { varies: true, ..row("good", CrashPoint::AfterAck, again) };
    assert!(beyond.to_string().ends_with("1 duplicate, 1 unexplained copy no    yes"), "{beyond}");
}

#[test]
fn an_answered_commit_that_is_not_there_refutes_the_sweep() {
    let gone = Found { lost_commits: 1, ..Found::default() };
    let rows = [row("good", CrashPoint::AfterCommit, gone), row("bad", CrashPoint::AfterMark, lost())];
    assert_eq!(judge(&rows, BOTH), Verdict::Refuted);
}

#[test]
fn a_restart_that_drains_nothing_refutes_the_sweep() {
    let stuck = Found { undrained: 5, ..Found::default() };
    let rows = [row("good", CrashPoint::AfterCommit, stuck), row("bad", CrashPoint::AfterMark, lost())];
    assert_eq!(judge(&rows, BOTH), Verdict::Refuted);
}

#[test]
fn a_sweep_without_a_wrong_order_is_inconclusive() {
    let rows = [row("good", CrashPoint::AfterAck, duplicate())];
    assert!(matches!(judge(&rows, &BOTH[..1]), Verdict::Inconclusive { .. }));
}

#[test]
fn a_strategy_that_passed_no_point_is_inconclusive() {
    let rows = [Row::new("good", None, 0), row("bad", CrashPoint::AfterMark, lost())];
    assert_eq!(judge(&rows, BOTH), Verdict::Inconclusive { why: "no kill at all of good".to_owned() });
}

#[test]
fn effects_are_held_against_the_topic() {
    let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
    let nothing = Reconciliation::of(&[], &[], &[]);
    let found = Found::of(&nothing, &ids(&["a", "b", "c", "c"]), Some(&ids(&["a", "b", "b"])));
    assert_eq!((found.double_effects, found.lost_effects), (1, 1));
    assert!(found.is_loss() && found.is_duplicated());
    let found = Found::of(&nothing, &ids(&["a", "a"]), Some(&ids(&["a"])));
    assert_eq!(found, Found::default(), "a copy that was skipped is no harm");
}

#[test]
fn what_was_found_is_told_in_the_singular_and_in_the_plural() {
    let found = Found { duplicates: 3, unexplained_copies: 2, undrained: 1, ..Found::default() };
    assert_eq!(found.to_string(), "3 duplicates, 1 undrained row, 2 unexplained copies");
    assert_eq!(Found { unexplained_copies: 1, ..Found::default() }.to_string(), "1 unexplained copy");
    assert_eq!(Found::default().to_string(), "nothing");
}

#[test]
fn a_reconciliation_is_counted_by_kind() {
    let event = |number| Loan::numbered(number).created();
    let record = |number, offset| Record {
        at: Position { partition: 0, offset },
        headers: vec![(ID_HEADER.to_owned(), Some(event(number).event_id.into_bytes()))],
        payload: Some(event(number).payload.into_bytes()),
        ..Record::default()
    };
    let row = |number| OutboxRow { id: number, event: event(number), published: true };
    let loans = ["L-1001", "L-1002", "L-1003"].map(str::to_owned);
    let reconciliation =
        Reconciliation::of(&loans, &[row(1001), row(1002)], &[record(1001, 0), record(1001, 1), record(3001, 2)]);
    let found = Found::of(&reconciliation, &[], None);
    assert_eq!(found.to_string(), "1 orphan row, 1 phantom event, 1 lost event, 1 duplicate");
}
