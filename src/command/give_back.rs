//! `return`: loans are given back. A second event of the same aggregate, in one transaction with the change.

use anyhow::Result;

use super::write::refused;
use crate::crash::{CrashPoint, Holds};
use crate::failure::{Exit, Failure};
use crate::lab::Lab;
use crate::output::{Line, Output};
use crate::presence::enter;
use crate::store::Store;

pub(super) fn run(lab: &Lab, n: u32, holds: &mut Holds, out: &Output) -> Result<Exit> {
    let _present = enter(lab)?;
    let mut store = Store::open(&lab.db)?;
    for i in 1..=n {
        let txn = store.begin()?;
        let Some(loan) = txn.give_back_oldest()? else {
            return Err(Failure::failed(
                format!("no loan of {} is out any more: {} given back", lab.db.display(), i - 1),
                "write first: outbox-lab write 5",
            ));
        };
        holds.reached(CrashPoint::AfterLoanRow)?;
        let event = loan.returned();
        if let Err(refusal) = txn.insert_outbox(&event)? {
            return Err(refused(&event, &refusal));
        }
        holds.reached(CrashPoint::AfterOutboxRow)?;
        txn.commit()?;
        let outbox = store.counts()?.outbox;
        out.line(&Line::GivenBack { i, loan: &loan.loan_id, event: &event.event_id, outbox })?;
        holds.reached(CrashPoint::AfterCommit)?;
    }
    Ok(Exit::Done)
}
