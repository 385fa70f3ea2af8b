//! What a consumer made of the topic: the records that it could read, held against the effects that it had. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crate::event::Record;

/// The effects of a consumer that is done with a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effects {
    /// Effects, repeated ones included.
    pub count: usize,
    double: BTreeMap<String, usize>,
    lost: BTreeSet<String>,
}

impl Effects {
    /// Compares the records of the whole topic with the event ids that were applied.
    pub fn of(records: &[Record], applied: &[String]) -> Self {
        let published: BTreeSet<String> =
            records.iter().filter_map(|record| record.event_id().map(ToOwned::to_owned)).collect();
        let mut times: BTreeMap<String, usize> = BTreeMap::new();
        for event_id in applied {
            *times.entry(event_id.clone()).or_default() += 1;
        }
        let lost = published.iter().filter(|event_id| !times.contains_key(*event_id)).cloned().collect();
        times.retain(|_, times| *times > 1);
        Self { count: applied.len(), double: times, lost }
    }

    /// The events that were applied more than once, each with how often; "none" where there is none. So too the lost ones.
    pub fn double(&self) -> String {
        super::listed(self.double.iter().map(|(event_id, times)| format!("{event_id} x{times}")))
    }

    /// The events that lie in the topic and were never applied.
    pub fn lost(&self) -> String {
        super::listed(self.lost.iter().cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::Effects;
    use crate::event::Record;

    fn topic(event_ids: &[&str]) -> Vec<Record> {
        let record = |id: &&str| Record { key: Some(id.as_bytes().to_vec()), ..Record::default() };
        event_ids.iter().map(record).collect()
    }

    fn effects(records: &[&str], applied: &[&str]) -> [String; 2] {
        let applied: Vec<String> = applied.iter().map(ToString::to_string).collect();
        let effects = Effects::of(&topic(records), &applied);
        [effects.double(), effects.lost()]
    }

    #[test]
    fn one_effect_for_each_event_is_clean_however_many_copies_there_are() {
        assert_eq!(effects(&["evt-1", "evt-1", "evt-2"], &["evt-1", "evt-2"]), ["none", "none"]);
    }

    #[test]
    fn an_event_applied_twice_is_a_double_effect() {
        assert_eq!(effects(&["evt-1", "evt-2"], &["evt-1", "evt-2", "evt-2"]), ["evt-2 x2", "none"]);
    }

    #[test]
    fn a_double_effect_does_not_make_up_for_a_lost_one() {
        assert_eq!(effects(&["evt-1", "evt-2"], &["evt-2", "evt-2"]), ["evt-2 x2", "evt-1"]);
    }
}
