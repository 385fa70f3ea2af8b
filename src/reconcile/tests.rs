//! Histories written by hand, each with a name, and what must be said of it.
#![allow(clippy::unwrap_used)]

use super::{Finding, Reconciliation, Tally};
use crate::event::{ID_HEADER, Loan, OutboxRow, Position, Record};

/// A history: what was committed, and what lies in the topic.
#[derive(Default)]
struct History {
    loans: Vec<String>,
    outbox: Vec<OutboxRow>,
    records: Vec<Record>,
}

impl History {
    /// A loan and its outbox row, committed together.
    fn written(mut self, number: i64) -> Self {
        let event = Loan::numbered(number).created();
        self.loans.push(event.aggregate_id.clone());
        self.outbox.push(OutboxRow { id: number, event, published: false });
        self
    }

    /// A loan committed without an outbox row.
    fn naive(mut self, number: i64) -> Self {
        self.loans.push(Loan::numbered(number).loan_id);
        self
    }

    /// The event of this loan, acknowledged on partition 0.
    fn sent(self, number: i64) -> Self {
        self.sent_to(0, number)
    }

    fn sent_to(mut self, partition: i32, number: i64) -> Self {
        let event = Loan::numbered(number).created();
        let offset = self.records.iter().filter(|record| record.at.partition == partition).count() as i64;
        self.records.push(Record {
            at: Position { partition, offset },
            key: Some(event.event_id.clone().into_bytes()),
            headers: vec![(ID_HEADER.to_owned(), Some(event.event_id.into_bytes()))],
            payload: Some(event.payload.into_bytes()),
        });
        self
    }

    fn marked(mut self, number: i64) -> Self {
        let event_id = Loan::numbered(number).created().event_id;
        self.outbox.iter_mut().filter(|row| row.event.event_id == event_id).for_each(|row| row.published = true);
        self
    }

    /// The outbox row deleted: by a purge, if it was marked; by somebody who dropped it, if it was dead.
    fn purged(mut self, number: i64) -> Self {
        let event_id = Loan::numbered(number).created().event_id;
        self.outbox.retain(|row| row.event.event_id != event_id);
        self
    }

    fn last_record(mut self, change: impl FnOnce(&mut Record)) -> Self {
        self.records.last_mut().map(change);
        self
    }

    fn judged(&self) -> Reconciliation {
        Reconciliation::of(&self.loans, &self.outbox, &self.records)
    }

    fn tally(&self) -> String {
        self.judged().tally.to_string()
    }

    /// Does it pass for this tally?
    fn meets(&self, expected: &str) -> bool {
        self.judged().meets(expected.parse::<Tally>().unwrap())
    }

    fn findings(&self) -> Vec<String> {
        self.judged().findings.iter().map(Finding::to_string).collect()
    }
}

#[test]
fn the_books_two_crashes() {
    let mut history = (1001..=1005).fold(History::default(), History::written);
    history = (1001..=1003).fold(history, History::sent);
    history = (1001..=1005).fold(history, |history, number| history.sent(number).marked(number));
    assert_eq!(history.tally(), "5/5/8/5");
    assert_eq!(history.judged().published, 5);
    assert_eq!(history.judged().redelivered(), 3);
    assert_eq!(
        history.findings(),
        [
            "duplicate evt-1001 x2 partition=0 offsets=0,3",
            "duplicate evt-1002 x2 partition=0 offsets=1,4",
            "duplicate evt-1003 x2 partition=0 offsets=2,5",
        ]
    );
    assert!(history.meets("5/5/8/5"));
    assert!(!history.meets("5/5/5/5"));
}

#[test]
fn a_pending_row_is_neither_lost_nor_an_orphan() {
    assert_eq!(History::default().written(1001).findings(), [""; 0]);
}

#[test]
fn a_row_sent_and_not_yet_marked_is_no_finding() {
    assert_eq!(History::default().written(1001).sent(1001).findings(), [""; 0]);
}

#[test]
fn a_loan_that_nothing_knows_of_is_an_orphan_row() {
    let history = History::default().naive(2001).naive(2002).sent(2002);
    assert_eq!(history.findings(), ["orphan row L-2001: committed, and no event anywhere"]);
    assert!(history.meets("2/0/1/1"));
}

#[test]
fn an_event_without_a_committed_loan_is_a_phantom_event() {
    let history = History::default().sent(1001);
    assert_eq!(history.findings(), ["phantom event evt-1001 partition=0 offset=0: its loan was never committed"]);
    assert!(!history.meets("0/0/1/1"), "the right sum does not excuse it");
}

#[test]
fn a_marked_row_without_a_record_is_a_lost_event() {
    let history = History::default().written(1001).written(1002).sent(1001).marked(1001).marked(1002);
    assert_eq!(
        history.findings(),
        ["lost event evt-1002: marked as published, and no record; nothing will send it again"]
    );
}

#[test]
fn a_lost_and_a_phantom_event_do_not_cancel_out() {
    let history = History::default().written(1001).marked(1001).sent(3001);
    assert_eq!(history.tally(), "1/1/1/1");
    assert!(!history.meets("1/1/1/1"));
}

#[test]
fn copies_on_several_partitions_are_told_apart() {
    let history = History::default().written(1001).sent_to(0, 1001).sent_to(2, 1001).sent_to(2, 1001);
    assert_eq!(history.findings(), ["duplicate evt-1001 x3 partition=0 offsets=0 partition=2 offsets=0,1"]);
}

#[test]
fn the_header_counts_and_not_the_key() {
    let by_loan = |record: &mut Record| record.key = Some(b"L-1001".to_vec());
    let history = History::default().written(1001).sent(1001).last_record(by_loan).sent(1001);
    assert_eq!(history.findings(), ["duplicate evt-1001 x2 partition=0 offsets=0,1"]);
}

#[test]
fn a_record_without_a_header_goes_by_its_key() {
    let history = History::default().written(1001).sent(1001).last_record(|record| record.headers.clear());
    assert_eq!(history.tally(), "1/1/1/1");
    assert_eq!(history.findings(), [""; 0]);
}

#[test]
fn a_record_that_bears_no_event_id_is_foreign() {
    let history = History::default().written(1001).sent(1001).sent(1001).last_record(|record| {
        record.key = None;
        record.headers.clear();
    });
    let found = history.judged();
    assert_eq!(history.tally(), "1/1/2/1");
    assert_eq!((found.foreign(), found.redelivered()), (1, 0));
    assert_eq!(history.findings(), ["foreign record partition=0 offset=1: no event id in header or key"]);
    assert!(!history.meets("1/1/2/1"));
}

#[test]
fn somebody_elses_record_with_a_key_is_a_phantom_event() {
    let foreign = |record: &mut Record| {
        *record = Record { key: Some(b"hello".to_vec()), payload: Some(b"not json".to_vec()), ..Record::default() };
    };
    let history = History::default().sent(1001).last_record(foreign);
    assert_eq!(history.findings(), ["phantom event hello partition=0 offset=0: its loan was never committed"]);
}

#[test]
fn a_tombstone_of_a_written_event_is_a_record_of_it() {
    let history = History::default().written(1001).sent(1001).last_record(|record| record.payload = None);
    assert_eq!(history.findings(), [""; 0]);
}

#[test]
fn a_row_purged_after_its_event_was_published_is_no_finding() {
    let history = (1001..=1003).fold(History::default(), |history, n| history.written(n).sent(n).marked(n));
    let history = history.purged(1001).purged(1002);
    assert_eq!(history.findings(), [""; 0]);
    assert_eq!(history.tally(), "3/1/3/3");
    assert!(history.meets("3/1/3/3"));
    assert_eq!(history.purged(1003).findings(), [""; 0], "nor in an outbox that was purged empty");
}

#[test]
fn a_duplicate_is_one_also_after_its_row_was_purged() {
    let history = History::default().written(1001).sent(1001).sent(1001).marked(1001).purged(1001);
    assert_eq!(history.findings(), ["duplicate evt-1001 x2 partition=0 offsets=0,1"]);
}

#[test]
fn a_lost_event_whose_row_was_purged_too_is_an_orphan_row() {
    // Nothing in the database knows any more that it was ever to be sent.
    let history = History::default().written(1001).marked(1001).purged(1001);
    assert_eq!(history.findings(), ["orphan row L-1001: committed, and no event anywhere"]);
}

#[test]
fn a_dead_row_that_was_dropped_leaves_an_orphan_row() {
    let history = History::default().written(1001).written(1002).sent(1002).marked(1002).purged(1001);
    assert_eq!(history.findings(), ["orphan row L-1001: committed, and no event anywhere"]);
}

#[test]
fn a_purged_tombstone_is_no_phantom_event() {
    let tombstone = |record: &mut Record| record.payload = None;
    let by_event = History::default().written(1001).sent(1001).last_record(tombstone).marked(1001).purged(1001);
    assert_eq!(by_event.findings(), [""; 0]);
    let by_loan = by_event.last_record(|record| record.key = Some(b"L-1001".to_vec()));
    assert_eq!(by_loan.findings(), [""; 0]);
    let of_nobody = by_loan.last_record(|record| record.key = Some(b"L-1".to_vec()));
    assert_eq!(of_nobody.findings().len(), 2, "an orphan row and a phantom event: {:?}", of_nobody.findings());
}

#[test]
fn a_loan_with_a_purged_and_a_pending_event_is_no_finding() {
    let mut history = History::default().written(1001).sent(1001).marked(1001).purged(1001);
    history.outbox.push(OutboxRow { id: 2, event: Loan::numbered(1001).returned(), published: false });
    assert_eq!(history.findings(), [""; 0]);
}
