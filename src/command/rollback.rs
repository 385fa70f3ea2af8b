//! `rollback`: the shared fate. A new loan, then an event id that exists already, in one transaction: the
//! outbox row is refused, and the loan must go with it (7.1).

use anyhow::Result;

use crate::crash::{CrashPoint, Holds};
use crate::event::Event;
use crate::failure::{Exit, Failure};
use crate::lab::Lab;
use crate::output::{Line, Output};
use crate::presence::enter;
use crate::store::{Family, Store};

pub(super) fn run(lab: &Lab, holds: &mut Holds, out: &Output) -> Result<Exit> {
    let _present = enter(lab)?;
    let mut store = Store::open(&lab.db)?;
    let Some(event_id) = store.first_event_id()? else {
        return Err(Failure::failed(
            format!("the outbox of {} is empty: there is no event id to collide with", lab.db.display()),
            "write first: outbox-lab write 5",
        ));
    };
    let txn = store.begin()?;
    let loan = txn.next_loan(Family::Rollback)?;
    txn.insert_loan(&loan)?;
    holds.reached(CrashPoint::AfterLoanRow)?;
    let refused = txn.insert_outbox(&Event { event_id, ..loan.created() })?;
    // Whatever came of it, this transaction is not to leave anything.
    txn.rollback()?;
    if let Err(refusal) = &refused {
        out.line(&Line::OutboxRefused { code: refusal.code, reason: &refusal.reason })?;
    }
    let present = store.has_loan(&loan.loan_id)?;
    out.line(&Line::LoanPresent { loan: &loan.loan_id, present })?;
    Ok(if refused.is_ok() || present { Exit::Unexpected } else { Exit::Done })
}
