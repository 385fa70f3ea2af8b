//! `naive` and `naive-hold`: the counter-example. A loan is committed, then its event is sent, and nothing
//! in the database knows of the second step (the book's orphan row, 7.1).

use anyhow::Result;

use super::provenance::{connect, not_acknowledged};
use crate::crash::{CrashPoint, Holds};
use crate::failure::Exit;
use crate::lab::Lab;
use crate::output::{BookHold, Line, Output};
use crate::presence::enter_making;
use crate::relay::bind;
use crate::store::{Family, Store};

/// What becomes of an event whose send failed.
const NO_OUTBOX: &str = "Its loan is committed, and there is no outbox row: nothing will send it again";

/// With `hold` the book's line stands for the commit and the hold together.
pub(super) fn run(lab: &Lab, hold: bool, holds: &mut Holds, out: &Output) -> Result<Exit> {
    let _present = enter_making(lab)?;
    let mut store = Store::make(&lab.db)?;
    let publisher = connect(lab, holds)?;

    let txn = store.begin()?;
    let loan = txn.next_loan(Family::Naive)?;
    txn.insert_loan(&loan)?;
    holds.reached(CrashPoint::AfterLoanRow)?;
    txn.commit()?;
    if !hold {
        out.line(&Line::NaiveCommitted { loan: &loan.loan_id })?;
    }
    holds.reached(CrashPoint::AfterCommit)?;
    holds.reached_in_book(CrashPoint::BeforeSend, Some(&BookHold::Naive { loan: loan.loan_id.clone() }))?;
    bind(&mut store, &publisher)?;
    let event = loan.created();
    let failed = |error| not_acknowledged(&event.event_id, &error, NO_OUTBOX);
    let in_flight = publisher.send(&event).map_err(failed)?;
    holds.reached(CrashPoint::Sent)?;
    let at = in_flight.acknowledged().map_err(failed)?;
    holds.reached(CrashPoint::AfterAck)?;
    out.line(&Line::NaiveSent { key: &event.event_id, at })?;
    Ok(Exit::Done)
}
