//! Reconciliation: what the database says, held against what lies in the topic. Pure: rows and records go
//! in, counts and findings come out, so that any history can be judged, including one written by hand.

mod effects;
mod order;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use serde::Serialize;

pub use self::effects::Effects;
pub use self::order::{orders_of, overtaken, spread};
use crate::event::{OutboxRow, Position, Record};

/// Business rows, outbox rows, records and distinct event ids: the book's 5/5/8/5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Committed loans.
    pub business_loan: u64,
    /// Outbox rows.
    pub outbox: u64,
    /// Records read, copies included.
    pub records: u64,
    /// Event ids among them, each counted once.
    pub distinct_event_ids: u64,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { business_loan, outbox, records, distinct_event_ids } = self;
        write!(f, "{business_loan}/{outbox}/{records}/{distinct_event_ids}")
    }
}

impl FromStr for Tally {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Option<Vec<u64>> = text.split('/').map(|number| number.parse().ok()).collect();
        match numbers.as_deref() {
            Some(&[business_loan, outbox, records, distinct_event_ids]) => {
                Ok(Self { business_loan, outbox, records, distinct_event_ids })
            }
            _ => Err("write four numbers, as in 5/5/8/5".to_owned()),
        }
    }
}

/// One discrepancy, with the ids that it is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "finding", rename_all = "kebab-case")]
pub enum Finding {
    /// The same event more than once in the topic.
    Duplicate { event_id: String, copies: Vec<Position> },
    /// A committed loan with no outbox row and no record: nothing anywhere knows that its event is missing.
    OrphanRow { loan_id: String },
    /// A record whose loan was never committed.
    PhantomEvent { event_id: String, at: Position },
    /// An outbox row that is marked, and no record: the relay will never send it again.
    LostEvent { event_id: String },
    /// A record that bears no event id at all: not the lab's.
    ForeignRecord { at: Position },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Duplicate { event_id, copies } => {
                write!(f, "duplicate {event_id} x{}", copies.len())?;
                let partitions: BTreeSet<_> = copies.iter().map(|at| at.partition).collect();
                for partition in partitions {
                    let of = copies.iter().filter(|at| at.partition == partition);
                    let offsets: Vec<_> = of.map(|at| at.offset.to_string()).collect();
                    write!(f, " partition={partition} offsets={}", offsets.join(","))?;
                }
                Ok(())
            }
            Self::OrphanRow { loan_id } => write!(f, "orphan row {loan_id}: committed, and no event anywhere"),
            Self::PhantomEvent { event_id, at: Position { partition, offset } } => {
                write!(
                    f,
                    "phantom event {event_id} partition={partition} offset={offset}: its loan was never committed"
                )
            }
            Self::LostEvent { event_id } => {
                write!(f, "lost event {event_id}: marked as published, and no record; nothing will send it again")
            }
            Self::ForeignRecord { at: Position { partition, offset } } => {
                write!(f, "foreign record partition={partition} offset={offset}: no event id in header or key")
            }
        }
    }
}

/// Database and topic, compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reconciliation {
    /// What was counted on both sides.
    #[serde(flatten)]
    pub tally: Tally,
    /// Outbox rows that are marked.
    pub published: u64,
    /// The discrepancies: duplicates, then orphan rows, phantom events, lost events, foreign records.
    #[serde(skip)]
    pub findings: Vec<Finding>,
}

impl Reconciliation {
    /// Compares the committed loans (by id) and outbox rows with the records of the whole topic.
    pub fn of(loans: &[String], outbox: &[OutboxRow], records: &[Record]) -> Self {
        let committed: BTreeSet<&str> = loans.iter().map(String::as_str).collect();
        let loan_of: BTreeMap<&str, &str> =
            outbox.iter().map(|row| (row.event.event_id.as_str(), row.event.aggregate_id.as_str())).collect();
        let mut copies: BTreeMap<&str, Vec<&Record>> = BTreeMap::new();
        for record in records {
            if let Some(event_id) = record.event_id() {
                copies.entry(event_id).or_default().push(record);
            }
        }

        let with_outbox_row: BTreeSet<&str> = outbox.iter().map(|row| row.event.aggregate_id.as_str()).collect();
        let mut with_record: BTreeSet<String> = BTreeSet::new();
        let mut phantoms = Vec::new();
        for (event_id, copies) in &copies {
            let loan = loan_of.get(event_id).map(|loan| (*loan).to_owned()).or_else(|| copies[0].loan_id());
            match loan {
                Some(loan) if committed.contains(loan.as_str()) => {
                    with_record.insert(loan);
                }
                _ => phantoms.push(Finding::PhantomEvent { event_id: (*event_id).to_owned(), at: copies[0].at }),
            }
        }

        let duplicates = copies.iter().filter(|(_, copies)| copies.len() > 1).map(|(event_id, copies)| {
            let copies = copies.iter().map(|record| record.at).collect();
            Finding::Duplicate { event_id: (*event_id).to_owned(), copies }
        });
        let orphans = loans
            .iter()
            .filter(|loan| !with_outbox_row.contains(loan.as_str()) && !with_record.contains(*loan))
            .map(|loan| Finding::OrphanRow { loan_id: loan.clone() });
        let lost = outbox
            .iter()
            .filter(|row| row.published && !copies.contains_key(row.event.event_id.as_str()))
            .map(|row| Finding::LostEvent { event_id: row.event.event_id.clone() });
        let foreign = records
            .iter()
            .filter(|record| record.event_id().is_none())
            .map(|record| Finding::ForeignRecord { at: record.at });

        let tally = Tally {
            business_loan: loans.len() as u64,
            outbox: outbox.len() as u64,
            records: records.len() as u64,
            distinct_event_ids: copies.len() as u64,
        };
        let published = outbox.iter().filter(|row| row.published).count() as u64;
        let findings = duplicates.chain(orphans).chain(phantoms).chain(lost).chain(foreign).collect();
        Self { tally, published, findings }
    }

    /// Records that are copies of others.
    pub fn redelivered(&self) -> u64 {
        self.tally.records - self.tally.distinct_event_ids - self.foreign()
    }

    /// The orphan rows by id; "none" where there is none. So too the next three.
    pub fn orphan_rows(&self) -> String {
        self.named(|finding| match finding {
            Finding::OrphanRow { loan_id } => Some(loan_id.clone()),
            _ => None,
        })
    }

    /// The phantom events.
    pub fn phantom_events(&self) -> String {
        self.named(|finding| match finding {
            Finding::PhantomEvent { event_id, .. } => Some(event_id.clone()),
            _ => None,
        })
    }

    /// The lost events.
    pub fn lost_events(&self) -> String {
        self.named(|finding| match finding {
            Finding::LostEvent { event_id } => Some(event_id.clone()),
            _ => None,
        })
    }

    /// The duplicates, each with the number of its copies.
    pub fn duplicates(&self) -> String {
        self.named(|finding| match finding {
            Finding::Duplicate { event_id, copies } => Some(format!("{event_id} x{}", copies.len())),
            _ => None,
        })
    }

    fn named(&self, name: impl Fn(&Finding) -> Option<String>) -> String {
        listed(self.findings.iter().filter_map(name))
    }

    /// Records without an event id.
    pub fn foreign(&self) -> u64 {
        self.findings.iter().filter(|finding| matches!(finding, Finding::ForeignRecord { .. })).count() as u64
    }

    /// Does it come to these four numbers, and for a good reason? A lost event and a phantom event can make
    /// up the right sum together, so neither passes. Orphan rows and duplicates show in the numbers.
    pub fn meets(&self, expected: Tally) -> bool {
        let wrong = |finding: &Finding| !matches!(finding, Finding::Duplicate { .. } | Finding::OrphanRow { .. });
        self.tally == expected && !self.findings.iter().any(wrong)
    }
}

/// Things by name, one after the other; "none" where there is none.
pub fn listed<T: ToString>(things: impl IntoIterator<Item = T>) -> String {
    let things: Vec<String> = things.into_iter().map(|thing| thing.to_string()).collect();
    if things.is_empty() { "none".to_owned() } else { things.join(", ") }
}

#[cfg(test)]
mod tests;
