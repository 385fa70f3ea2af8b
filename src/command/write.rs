//! `write` and `write-hold`: the outbox. A loan and its event share one local transaction, so that the intent
//! to send survives whatever happens to the process (7.1).

use anyhow::Result;

use crate::crash::{CrashPoint, Holds};
use crate::event::Counts;
use crate::failure::{Exit, Failure};
use crate::lab::Lab;
use crate::output::{BookHold, Line, Output};
use crate::presence::enter_making;
use crate::store::{Family, Store};

pub(super) fn run(lab: &Lab, n: u32, holds: &mut Holds, out: &Output) -> Result<Exit> {
    let _present = enter_making(lab)?;
    let mut store = Store::make(&lab.db)?;
    let mut tally = Running::of(&store)?;
    for i in 1..=n {
        let txn = store.begin()?;
        let loan = txn.next_loan(Family::Outbox)?;
        let event = loan.created();
        txn.insert_loan(&loan)?;
        holds.reached(CrashPoint::AfterLoanRow)?;
        if let Err(refusal) = txn.insert_outbox(&event)? {
            return Err(Failure::failed(
                format!("the outbox refused {}: {} ({})", event.event_id, refusal.reason, refusal.code),
                "look at its rows with the sqlite3 shell: was the schema changed by hand? This transaction left nothing",
            ));
        }
        holds.reached(CrashPoint::AfterOutboxRow)?;
        txn.commit()?;
        let Counts { business_loan, outbox, .. } = tally.one_more(&store)?;
        out.line(&Line::Written { i, loan: &loan.loan_id, event: &event.event_id, business_loan, outbox })?;
        holds.reached_in_book(CrashPoint::AfterCommit, Some(&BookHold::Write {}))?;
    }
    Ok(Exit::Done)
}

/// The counts that the book prints behind each commit, without counting the tables again each time.
struct Running {
    counts: Counts,
    version: i64,
}

impl Running {
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
