//! Leases: which relay sends the rows of which slots, and until when. A claim has a token that never comes again; a mark
//! bears it, so that whoever lost the lease in the meantime marks nothing.

use anyhow::Result;
use rusqlite::{Transaction, TransactionBehavior};

use super::Store;
use crate::shard::{SLOTS, Slots};

/// The slots that a relay holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Who holds them: a name that no other living relay has.
    pub owner: String,
    /// Until when, in milliseconds since 1970.
    pub expires_at: i64,
    /// The token of each slot's claim; `None` where it is not held.
    tokens: [Option<i64>; SLOTS as usize],
}

impl Lease {
    /// One that holds nothing yet.
    pub fn of(owner: &str) -> Self {
        Self { owner: owner.to_owned(), expires_at: 0, tokens: [None; SLOTS as usize] }
    }

    /// The slots that it holds, as far as it knows.
    pub fn slots(&self) -> Slots {
        (0..SLOTS).filter(|slot| self.tokens[*slot as usize].is_some()).collect()
    }
}

/// What changed hands when a lease was renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turnover {
    /// Claimed now.
    pub won: Slots,
    /// Another relay's by now.
    pub lost: Slots,
}

/// A lease as the database has it: so many slots of one owner.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Leased {
    /// Who holds them.
    pub owner: String,
    /// How many slots.
    pub slots: u32,
    /// For how many milliseconds to come; 0 or less is expired.
    pub left_ms: i64,
}

impl Store {
    /// Puts the end of a lease off, and claims those of the `wanted` slots that it lacks and that are free, or whose lease has
    /// expired. With `is_own`, also those of an earlier relay of the same name, of which the caller knows that it is dead.
    /// What has expired goes on if nobody else has claimed it; what is another relay's by now comes off the lease, and is not
    /// claimed in the same step, free as it may be: what is in flight of it is to be refused its mark.
    ///
    /// # Errors
    /// The database stays locked for longer than the busy timeout.
    pub fn hold(
        &mut self,
        lease: &mut Lease,
        wanted: Slots,
        is_own: bool,
        now: i64,
        expires_at: i64,
    ) -> Result<Turnover> {
        self.is_in_place()?;
        let txn = self.db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let held = lease.slots();
        let kept = held.without(lost(&txn, lease)?);
        let lost = held.without(kept);
        put_off(&txn, kept, expires_at)?;
        let claim = "INSERT INTO relay_lease (slot, owner, token, expires_at)
                     SELECT value, ?2, (SELECT coalesce(max(token), 0) + 1 FROM relay_lease), ?4 FROM json_each(?1)
                     WHERE true
                     ON CONFLICT (slot) DO UPDATE
                     SET owner = excluded.owner, token = excluded.token, expires_at = excluded.expires_at
                     WHERE relay_lease.expires_at <= ?3 OR (?5 AND relay_lease.owner = ?2)
                     RETURNING slot, token";
        let won: Vec<(u32, i64)> = txn
            .prepare_cached(claim)?
            .query_map((json(wanted.without(held))?, &lease.owner, now, expires_at, is_own), |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?
            .collect::<rusqlite::Result<_>>()?;
        txn.commit()?;
        lost.iter().for_each(|slot| lease.tokens[slot as usize] = None);
        won.iter().for_each(|(slot, token)| lease.tokens[*slot as usize] = Some(*token));
        lease.expires_at = expires_at;
        Ok(Turnover { won: won.into_iter().map(|(slot, _)| slot).collect(), lost })
    }

    /// Gives back what is still held: whoever comes next need not wait for the lease to expire.
    ///
    /// # Errors
    /// The database stays locked for longer than the busy timeout.
    pub fn release(&mut self, lease: &mut Lease) -> Result<()> {
        self.is_in_place()?;
        let txn = self.db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let held = lease.slots().without(lost(&txn, lease)?);
        // The row stays, with its token: the next claim needs a higher one.
        put_off(&txn, held, 0)?;
        txn.commit()?;
        *lease = Lease::of(&lease.owner);
        Ok(())
    }

    /// The leases that have not been released, by owner.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn leases(&self, now: i64) -> Result<Vec<Leased>> {
        let sql = "SELECT owner, count(*), max(expires_at) - ?1 FROM relay_lease WHERE expires_at > 0
                   GROUP BY owner ORDER BY owner";
        let mut query = self.db.prepare_cached(sql)?;
        let leases = query
            .query_map([now], |row| Ok(Leased { owner: row.get(0)?, slots: row.get(1)?, left_ms: row.get(2)? }))?;
        Ok(leases.collect::<rusqlite::Result<_>>()?)
    }
}

/// When the lease of these slots ends from now on.
fn put_off(txn: &Transaction, slots: Slots, expires_at: i64) -> Result<()> {
    let sql = "UPDATE relay_lease SET expires_at = ?2 WHERE slot IN (SELECT value FROM json_each(?1))";
    txn.prepare_cached(sql)?.execute((json(slots)?, expires_at))?;
    Ok(())
}

fn json(slots: Slots) -> Result<String> {
    Ok(serde_json::to_string(&slots.iter().collect::<Vec<_>>())?)
}

/// The slots that are not a lease's: another has claimed them, whether or not the lease knows it by now.
pub(super) fn lost(txn: &Transaction, lease: &Lease) -> rusqlite::Result<Slots> {
    let mut query = txn.prepare_cached("SELECT slot, token FROM relay_lease")?;
    let mut kept = Slots::default();
    let mut rows = query.query(())?;
    while let Some(row) = rows.next()? {
        let (slot, token): (u32, i64) = (row.get(0)?, row.get(1)?);
        if lease.tokens.get(slot as usize).is_some_and(|held| *held == Some(token)) {
            kept.insert(slot);
        }
    }
    Ok(Slots::ALL.without(kept))
}
