//! How aggregates are shared out among relays: each belongs to one of a fixed number of slots, whatever else there is.
//! A lease is held on slots, so that two relays never send rows of one aggregate at the same time.

use std::str::FromStr;

/// How many slots there are, and so how many relays can share the work.
pub const SLOTS: u32 = 64;

/// The slot of an aggregate: FNV-1a of its id. It is the same in every build, since relays of two builds may share a
/// database.
pub fn slot_of(aggregate_id: &str) -> u32 {
    let hash = aggregate_id
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    // The low bits of FNV-1a are its weak ones.
    ((hash >> 32) ^ hash) as u32 % SLOTS
}

/// A set of slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slots(u64);

impl Slots {
    /// Every slot.
    pub const ALL: Self = Self(u64::MAX);

    /// Is it in there?
    pub fn contains(self, slot: u32) -> bool {
        self.0 & (1 << slot) != 0
    }

    /// Adds one.
    pub fn insert(&mut self, slot: u32) {
        self.0 |= 1 << slot;
    }

    /// These, but for those.
    #[must_use]
    pub fn without(self, those: Self) -> Self {
        Self(self.0 & !those.0)
    }

    /// None at all?
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those of the set, in order.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        (0..SLOTS).filter(move |slot| self.contains(*slot))
    }
}

impl FromIterator<u32> for Slots {
    fn from_iter<I: IntoIterator<Item = u32>>(slots: I) -> Self {
        let mut set = Self::default();
        slots.into_iter().for_each(|slot| set.insert(slot));
        set
    }
}

/// `I/N`: the Ith of N shards, from 1. Every aggregate is in exactly one of the N.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    nth: u32,
    of: u32,
}

impl Shard {
    /// The slots of this shard.
    pub fn slots(self) -> Slots {
        (0..SLOTS).filter(|slot| slot % self.of == self.nth - 1).collect()
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/').and_then(|(nth, of)| Some((nth.parse().ok()?, of.parse().ok()?)));
        match numbers {
            Some((nth, of)) if (1..=of).contains(&nth) && of <= SLOTS => Ok(Self { nth, of }),
            _ => Err(format!("write I/N, as in 1/2 and 2/2: I from 1 to N, and N at most {SLOTS}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{SLOTS, Shard, Slots, slot_of};

    #[test]
    fn every_aggregate_is_in_exactly_one_shard() {
        for of in [1, 2, 3, 7, 64] {
            let shards: Vec<Slots> = (1..=of).map(|nth| Shard { nth, of }.slots()).collect();
            for slot in 0..SLOTS {
                assert_eq!(shards.iter().filter(|shard| shard.contains(slot)).count(), 1, "slot {slot} of {of}");
            }
        }
    }

    #[test]
    fn loans_are_spread_over_the_slots() {
        let mut loans = [0; SLOTS as usize];
        (1001..7401).for_each(|number| loans[slot_of(&format!("L-{number}")) as usize] += 1);
        assert!(loans.iter().all(|n| (50..=150).contains(n)), "{loans:?}");
    }

    #[test]
    fn a_slot_is_the_same_in_every_build() {
        // Two relays of different builds must never take one aggregate for two.
        assert_eq!(["L-1001", "L-1002", "L-2001", ""].map(slot_of), [37, 28, 30, 1]);
    }

    #[test]
    fn a_shard_outside_of_its_number_is_refused() {
        for text in ["0/2", "3/2", "1/0", "1/65", "1", "a/b", "1/2/3", "-1/2", ""] {
            assert!(text.parse::<Shard>().is_err(), "{text}");
        }
        assert_eq!("2/2".parse(), Ok(Shard { nth: 2, of: 2 }));
    }
}
