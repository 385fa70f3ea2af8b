//! Order: Kafka keeps it within a partition only, and a reader may take the partitions in any order. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::event::Record;

/// A loan whose events lie in several partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spread {
    /// The aggregate.
    pub loan_id: String,
    /// Where its events lie.
    pub partitions: BTreeSet<i32>,
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let partitions: Vec<_> = self.partitions.iter().map(ToString::to_string).collect();
        write!(f, "{} in {}", self.loan_id, partitions.join("+"))
    }
}

/// The loans whose events lie in several partitions, by id.
pub fn spread(records: &[Record]) -> Vec<Spread> {
    let mut partitions: BTreeMap<String, BTreeSet<i32>> = BTreeMap::new();
    for record in records {
        if let Some(loan_id) = record.loan_id() {
            partitions.entry(loan_id).or_default().insert(record.at.partition);
        }
    }
    let spread = partitions.into_iter().filter(|(_, partitions)| partitions.len() > 1);
    spread.map(|(loan_id, partitions)| Spread { loan_id, partitions }).collect()
}

/// The loans that a reader sees given back before they are made, by id: it takes the partitions in this order, and each
/// in the order of its offsets.
pub fn overtaken(records: &[Record], order: &[i32]) -> Vec<String> {
    let mut created: BTreeSet<String> = BTreeSet::new();
    let mut overtaken: BTreeSet<String> = BTreeSet::new();
    for partition in order {
        let mut lies_there: Vec<&Record> = records.iter().filter(|record| record.at.partition == *partition).collect();
        lies_there.sort_by_key(|record| record.at);
        for record in lies_there {
            let Some(loan_id) = record.loan_id() else { continue };
            if !record.event_id().is_some_and(|event_id| event_id.ends_with("-returned")) {
                created.insert(loan_id);
            } else if !created.contains(&loan_id) {
                overtaken.insert(loan_id);
            }
        }
    }
    overtaken.into_iter().collect()
}

/// Every order in which these partitions can be taken, the lowest first.
pub fn orders_of(partitions: &[i32]) -> Vec<Vec<i32>> {
    if partitions.is_empty() {
        return vec![Vec::new()];
    }
    let begun_with = |first: &i32| {
        let rest: Vec<i32> = partitions.iter().copied().filter(|partition| partition != first).collect();
        orders_of(&rest).into_iter().map(|rest| [vec![*first], rest].concat()).collect::<Vec<_>>()
    };
    partitions.iter().flat_map(begun_with).collect()
}

#[cfg(test)]
mod tests {
    use super::{orders_of, overtaken, spread};
    use crate::event::{Loan, Position, Record};

    fn record(partition: i32, offset: i64, event: &crate::event::Event) -> Record {
        Record {
            at: Position { partition, offset },
            key: Some(event.event_id.clone().into_bytes()),
            payload: Some(event.payload.clone().into_bytes()),
            ..Record::default()
        }
    }

    #[test]
    fn two_events_in_two_partitions_are_seen_in_either_order() {
        let loan = Loan::numbered(1001);
        let records = [record(0, 0, &loan.created()), record(1, 0, &loan.returned())];
        assert_eq!(spread(&records).iter().map(ToString::to_string).collect::<Vec<_>>(), ["L-1001 in 0+1"]);
        assert!(overtaken(&records, &[0, 1]).is_empty());
        assert_eq!(overtaken(&records, &[1, 0]), ["L-1001"]);
    }

    #[test]
    fn two_events_in_one_partition_are_seen_as_they_were_sent() {
        let (loan, other) = (Loan::numbered(1001), Loan::numbered(1002));
        let records = [
            record(1, 1, &loan.returned()),
            record(1, 0, &loan.created()),
            record(0, 0, &other.created()),
            record(0, 1, &other.returned()),
        ];
        assert!(spread(&records).is_empty());
        assert!(orders_of(&[0, 1]).iter().all(|order| overtaken(&records, order).is_empty()));
    }

    #[test]
    fn sent_in_the_wrong_order_they_are_seen_so_even_in_one_partition() {
        let loan = Loan::numbered(1001);
        let records = [record(0, 0, &loan.returned()), record(0, 1, &loan.created())];
        assert_eq!(overtaken(&records, &[0]), ["L-1001"]);
    }

    #[test]
    fn three_partitions_can_be_taken_in_six_orders() {
        let orders = orders_of(&[0, 1, 2]);
        assert_eq!(orders.len(), 6);
        assert_eq!((&orders[0], &orders[5]), (&vec![0, 1, 2], &vec![2, 1, 0]));
    }
}
