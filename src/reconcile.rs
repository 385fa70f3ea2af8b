//! Reconciliation: what the database says, held against what lies in the topic. Pure: rows and records go
//! in, counts and findings come out, so that any history can be judged, including one written by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use crate::event::Record;

/// The four counts of the book's `verify`, from the database alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Committed loans.
    pub business_loan: u64,
    /// Outbox rows, pending and published.
    pub outbox: u64,
    /// Outbox rows that are marked.
    pub published: u64,
    /// Outbox rows that are pending.
    pub unpublished: u64,
}

/// An outbox row, as far as a reconciliation looks at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxRow {
    /// The event's id.
    pub event_id: String,
    /// The loan that it tells of.
    pub aggregate_id: String,
    /// Marked?
    pub published: bool,
}

/// One discrepancy, with the ids that it is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "finding", rename_all = "kebab-case")]
pub enum Finding {
    /// The same event more than once in the topic. `copies` are `(partition, offset)`, in that order.
    Duplicate { event_id: String, copies: Vec<(i32, i64)> },
    /// A committed loan with no outbox row and no record: nothing anywhere knows that its event is missing.
    OrphanRow { loan_id: String },
    /// A record whose loan was never committed.
    PhantomEvent { event_id: String, partition: i32, offset: i64 },
    /// An outbox row that is marked, and no record: the relay will never send it again.
    LostEvent { event_id: String },
    /// A record that bears no event id at all: not the lab's.
    ForeignRecord { partition: i32, offset: i64 },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Duplicate { event_id, copies } => {
                write!(f, "duplicate {event_id} x{}", copies.len())?;
                let partitions: BTreeSet<_> = copies.iter().map(|(partition, _)| partition).collect();
                for partition in partitions {
                    let of = copies.iter().filter(|(p, _)| p == partition);
                    let offsets: Vec<_> = of.map(|(_, offset)| offset.to_string()).collect();
                    write!(f, " partition={partition} offsets={}", offsets.join(","))?;
                }
                Ok(())
            }
            Self::OrphanRow { loan_id } => write!(f, "orphan row {loan_id}: committed, and no event anywhere"),
            Self::PhantomEvent { event_id, partition, offset } => {
                write!(
                    f,
                    "phantom event {event_id} partition={partition} offset={offset}: its loan was never committed"
                )
            }
            Self::LostEvent { event_id } => {
                write!(f, "lost event {event_id}: marked as published, and no record; nothing will send it again")
            }
            Self::ForeignRecord { partition, offset } => {
                write!(f, "foreign record partition={partition} offset={offset}: no event id in header or key")
            }
        }
    }
}

/// Database and topic, compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reconciliation {
    /// From the database.
    #[serde(flatten)]
    pub counts: Counts,
    /// Records read, copies included.
    pub records: u64,
    /// Event ids among them, each counted once.
    pub distinct_event_ids: u64,
    /// The discrepancies: duplicates, then orphan rows, phantom events, lost events, foreign records.
    #[serde(skip)]
    pub findings: Vec<Finding>,
}

impl Reconciliation {
    /// Compares the committed loans (by id) and outbox rows with the records of the whole topic.
    pub fn of(loans: &[String], outbox: &[OutboxRow], records: &[Record]) -> Self {
        let committed: BTreeSet<&str> = loans.iter().map(String::as_str).collect();
        let loan_of: BTreeMap<&str, &str> =
            outbox.iter().map(|row| (row.event_id.as_str(), row.aggregate_id.as_str())).collect();
        let mut copies: BTreeMap<&str, Vec<&Record>> = BTreeMap::new();
        for record in records {
            if let Some(event_id) = record.event_id() {
                copies.entry(event_id).or_default().push(record);
            }
        }

        let with_outbox_row: BTreeSet<&str> = outbox.iter().map(|row| row.aggregate_id.as_str()).collect();
        let mut with_record: BTreeSet<String> = BTreeSet::new();
        let mut phantoms = Vec::new();
        for (event_id, copies) in &copies {
            let loan = loan_of.get(event_id).map(|loan| (*loan).to_owned()).or_else(|| copies[0].loan_id());
            match loan {
                Some(loan) if committed.contains(loan.as_str()) => {
                    with_record.insert(loan);
                }
                _ => phantoms.push(Finding::PhantomEvent {
                    event_id: (*event_id).to_owned(),
                    partition: copies[0].partition,
                    offset: copies[0].offset,
                }),
            }
        }

        let duplicates = copies.iter().filter(|(_, copies)| copies.len() > 1).map(|(event_id, copies)| {
            let copies = copies.iter().map(|record| (record.partition, record.offset)).collect();
            Finding::Duplicate { event_id: (*event_id).to_owned(), copies }
        });
        let orphans = loans
            .iter()
            .filter(|loan| !with_outbox_row.contains(loan.as_str()) && !with_record.contains(*loan))
            .map(|loan| Finding::OrphanRow { loan_id: loan.clone() });
        let lost = outbox
            .iter()
            .filter(|row| row.published && !copies.contains_key(row.event_id.as_str()))
            .map(|row| Finding::LostEvent { event_id: row.event_id.clone() });
        let foreign = records
            .iter()
            .filter(|record| record.event_id().is_none())
            .map(|record| Finding::ForeignRecord { partition: record.partition, offset: record.offset });

        let published = outbox.iter().filter(|row| row.published).count() as u64;
        let counts = Counts {
            business_loan: loans.len() as u64,
            outbox: outbox.len() as u64,
            published,
            unpublished: outbox.len() as u64 - published,
        };
        let distinct_event_ids = copies.len() as u64;
        let findings = duplicates.chain(orphans).chain(phantoms).chain(lost).chain(foreign).collect();
        Self { counts, records: records.len() as u64, distinct_event_ids, findings }
    }

    /// Business rows, outbox rows, records and distinct event ids: the book's 5/5/8/5.
    pub fn four(&self) -> [u64; 4] {
        [self.counts.business_loan, self.counts.outbox, self.records, self.distinct_event_ids]
    }

    /// Records without an event id.
    pub fn foreign(&self) -> u64 {
        self.findings.iter().filter(|finding| matches!(finding, Finding::ForeignRecord { .. })).count() as u64
    }

    /// Does it come to these four numbers, and for a good reason? A lost event and a phantom event can make
    /// up the right sum together, so neither passes. Orphan rows and duplicates show in the numbers.
    pub fn meets(&self, expected: [u64; 4]) -> bool {
        let wrong = |finding: &Finding| !matches!(finding, Finding::Duplicate { .. } | Finding::OrphanRow { .. });
        self.four() == expected && !self.findings.iter().any(wrong)
    }
}

#[cfg(test)]
mod tests;
