//! `write` and `write-hold`: the outbox. A loan and its event share one local transaction, so that the intent
//! to send survives whatever happens to the process (7.1).

use anyhow::{Result, bail};

use crate::cli::Amount;
use crate::crash::{Crash, CrashPoint, HoldAt};
use crate::failure::Exit;
use crate::lab::Lab;
use crate::output::{BookHold, Line, Output};
use crate::reconcile::Counts;
use crate::store::{Family, Store};

const POINTS: &[CrashPoint] = &[CrashPoint::AfterLoanRow, CrashPoint::AfterOutboxRow, CrashPoint::AfterCommit];

pub(super) fn run(lab: &Lab, amount: &Amount, hold: bool, out: &Output) -> Result<Exit> {
    let command = if hold { "write-hold" } else { "write" };
    let book = hold.then_some(HoldAt::new(CrashPoint::AfterCommit, amount.n));
    let mut crash = Crash::new(command, POINTS, &amount.holds.hold_at, book, out)?;
    lab.make_dir()?;
    let _alive = lab.enter()?;
    let mut store = Store::make(&lab.db)?;
    let mut tally = Tally::of(&store)?;
    for i in 1..=amount.n {
        let txn = store.begin()?;
        let loan = txn.next_loan(Family::Outbox)?;
        let event = loan.created();
        txn.insert_loan(&loan)?;
        crash.reached(CrashPoint::AfterLoanRow)?;
        if let Err(refusal) = txn.insert_outbox(&event)? {
            bail!("the outbox refused {}: {}", event.event_id, refusal.reason);
        }
        crash.reached(CrashPoint::AfterOutboxRow)?;
        txn.commit()?;
        let Counts { business_loan: business, outbox, .. } = tally.one_more(&store)?;
        out.line(&Line::Written { i, loan: &loan.loan_id, event: &event.event_id, business, outbox })?;
        crash.reached_in_book(CrashPoint::AfterCommit, &BookHold::Write {})?;
    }
    Ok(crash.exit())
}

/// The counts that the book prints behind each commit, without counting the tables again each time.
struct Tally {
    counts: Counts,
    version: i64,
}

impl Tally {
    fn of(store: &Store) -> Result<Self> {
        // The version first: a commit in between is then counted again, and not missed.
        let version = store.data_version()?;
        Ok(Self { version, counts: store.counts()? })
    }

    /// After a commit of one loan and one outbox row.
    fn one_more(&mut self, store: &Store) -> Result<Counts> {
        if store.data_version()? == self.version {
            self.counts.business_loan += 1;
            self.counts.outbox += 1;
        } else {
            *self = Self::of(store)?;
        }
        Ok(self.counts)
    }
}
