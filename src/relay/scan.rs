//! Which pending rows a relay takes, and which it leaves for now. Pure: rows go in, in id order, and decisions come out.

use std::collections::{BTreeSet, HashSet};
use std::fmt;

use clap::ValueEnum;
use serde::Serialize;

use crate::shard::{Slots, slot_of};
use crate::store::Standing;

/// What a dead row means for the later rows of its aggregate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnPoison {
    /// They wait until somebody has decided on the dead row
    HoldKey,
    /// They go on without it
    Skip,
}

/// Pending rows that a relay left, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Left {
    /// Leased by others.
    pub leased: u64,
    /// Of other shards.
    pub of_other_shards: u64,
    /// Waiting for their next try.
    pub waiting: u64,
    /// Behind an earlier row of their aggregate that waits, or that is dead.
    pub held_back: u64,
    /// Parked as dead.
    pub dead: u64,
    /// Not marked when the relay was stopped.
    pub unsent: u64,
}

impl Left {
    /// These, and those.
    #[must_use]
    pub fn and(self, those: Self) -> Self {
        Self {
            leased: self.leased + those.leased,
            of_other_shards: self.of_other_shards + those.of_other_shards,
            waiting: self.waiting + those.waiting,
            held_back: self.held_back + those.held_back,
            dead: self.dead + those.dead,
            unsent: self.unsent + those.unsent,
        }
    }

    /// How many in all.
    pub fn rows(&self) -> u64 {
        self.may_go() + self.of_other_shards + self.unsent
    }

    /// How many may become this relay's to send without being written anew.
    pub fn may_go(&self) -> u64 {
        self.leased + self.waiting + self.held_back + self.dead
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reasons = [
            (self.leased, "leased by others"),
            (self.of_other_shards, "of other shards"),
            (self.waiting, "waiting for the next try"),
            (self.held_back, "held back behind an earlier row of the aggregate"),
            (self.dead, "dead"),
            (self.unsent, "not marked when it was stopped"),
        ];
        let told: Vec<_> = reasons.iter().filter(|(n, _)| *n > 0).map(|(n, reason)| format!("{n} {reason}")).collect();
        f.write_str(&told.join(", "))
    }
}

/// One look at the pending rows, from the first on.
pub struct Scan {
    /// The slots of the relay's shard.
    wanted: Slots,
    /// Those that it holds.
    slots: Slots,
    on_poison: OnPoison,
    /// Rows that were rejected with others, so that nobody knows yet which is at fault.
    suspects: BTreeSet<i64>,
    /// Aggregates of which an earlier row was left.
    held: HashSet<String>,
    /// What was left so far.
    pub left: Left,
}

impl Scan {
    /// One for a relay that wants these slots, and holds those.
    pub fn new(wanted: Slots, slots: Slots, on_poison: OnPoison, suspects: BTreeSet<i64>) -> Self {
        Self { wanted, slots, on_poison, suspects, held: HashSet::new(), left: Left::default() }
    }

    /// Is the next row in id order to be sent now? Whatever is left holds back the later rows of its aggregate, and nothing
    /// else. What another relay has leased is that one's to order.
    pub fn takes(&mut self, row: &Standing) -> bool {
        // Most relays hold everything: then no row's slot has to be known.
        let slot = if self.slots == Slots::ALL { 0 } else { slot_of(row.aggregate_id) };
        if !self.wanted.contains(slot) {
            self.left.of_other_shards += 1;
            return false;
        }
        if row.is_dead {
            self.left.dead += 1;
            if self.on_poison == OnPoison::HoldKey {
                self.hold(row.aggregate_id);
            }
            return false;
        }
        if !self.slots.contains(slot) {
            self.left.leased += 1;
            return false;
        }
        if !self.held.is_empty() && self.held.contains(row.aggregate_id) {
            self.left.held_back += 1;
            return false;
        }
        if row.attempts > 0 || (!self.suspects.is_empty() && self.suspects.contains(&row.id)) {
            self.left.waiting += 1;
            self.hold(row.aggregate_id);
            return false;
        }
        true
    }

    fn hold(&mut self, aggregate_id: &str) {
        if !self.held.contains(aggregate_id) {
            self.held.insert(aggregate_id.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{Left, OnPoison, Scan};
    use crate::shard::{Slots, slot_of};
    use crate::store::Standing;

    fn row(id: i64, aggregate_id: &str) -> Standing<'_> {
        Standing { id, aggregate_id, attempts: 0, is_dead: false }
    }

    fn waiting(id: i64, aggregate_id: &str) -> Standing<'_> {
        Standing { attempts: 1, ..row(id, aggregate_id) }
    }

    fn dead(id: i64, aggregate_id: &str) -> Standing<'_> {
        Standing { attempts: 5, is_dead: true, ..row(id, aggregate_id) }
    }

    fn taken(scan: &mut Scan, rows: &[Standing]) -> Vec<i64> {
        rows.iter().filter(|row| scan.takes(row)).map(|row| row.id).collect()
    }

    fn scan(on_poison: OnPoison) -> Scan {
        Scan::new(Slots::ALL, Slots::ALL, on_poison, BTreeSet::new())
    }

    #[test]
    fn a_row_that_waits_for_its_next_try_holds_back_its_aggregate_and_nothing_else() {
        let mut scan = scan(OnPoison::Skip);
        let rows = [row(1, "a"), waiting(2, "a"), row(3, "a"), row(4, "b"), row(5, "a")];
        assert_eq!(taken(&mut scan, &rows), [1, 4]);
        assert_eq!(scan.left, Left { waiting: 1, held_back: 2, ..Left::default() });
        assert_eq!(
            scan.left.to_string(),
            "1 waiting for the next try, 2 held back behind an earlier row of the aggregate"
        );
    }

    #[test]
    fn behind_a_dead_row_its_aggregate_waits_or_goes_on() {
        let rows = [dead(1, "a"), row(2, "a"), row(3, "b")];
        assert_eq!(taken(&mut scan(OnPoison::HoldKey), &rows), [3]);
        assert_eq!(taken(&mut scan(OnPoison::Skip), &rows), [2, 3]);
    }

    #[test]
    fn a_suspect_is_not_sent_with_others() {
        let mut scan = Scan::new(Slots::ALL, Slots::ALL, OnPoison::HoldKey, BTreeSet::from([2]));
        assert_eq!(taken(&mut scan, &[row(1, "a"), row(2, "b"), row(3, "b"), row(4, "c")]), [1, 4]);
    }

    #[test]
    fn what_others_have_leased_is_left_to_them() {
        let mine = Slots::from_iter([slot_of("a")]);
        assert_ne!(slot_of("a"), slot_of("b"));
        let mut scan = Scan::new(Slots::ALL, mine, OnPoison::HoldKey, BTreeSet::new());
        assert_eq!(taken(&mut scan, &[row(1, "b"), row(2, "a"), waiting(3, "b")]), [2]);
        assert_eq!(scan.left, Left { leased: 2, ..Left::default() });
    }

    #[test]
    fn what_is_of_another_shard_is_no_concern_of_this_relay() {
        let mine = Slots::from_iter([slot_of("a")]);
        let mut scan = Scan::new(mine, mine, OnPoison::HoldKey, BTreeSet::new());
        assert_eq!(taken(&mut scan, &[row(1, "b"), row(2, "a"), dead(3, "b"), waiting(4, "b")]), [2]);
        assert_eq!(scan.left, Left { of_other_shards: 3, ..Left::default() });
        assert_eq!((scan.left.rows(), scan.left.may_go()), (3, 0));
    }

    #[test]
    fn order_is_kept_over_several_looks_at_the_same_scan() {
        let mut scan = scan(OnPoison::HoldKey);
        assert_eq!(taken(&mut scan, &[waiting(1, "a")]), [0; 0]);
        assert_eq!(taken(&mut scan, &[row(2, "a"), row(3, "b")]), [3]);
    }
}
