//! `naive` and `naive-hold`: the counter-example. A loan is committed, then its event is sent, and nothing
//! in the database knows of the second step (the book's orphan row, 7.1).

use anyhow::Result;

use super::provenance::{connect, not_acknowledged};
use crate::broker::Publisher;
use crate::crash::{CrashPoint, Holds};
use crate::event::Loan;
use crate::failure::Exit;
use crate::lab::Lab;
use crate::output::{BookHold, Line, Output};
use crate::presence::enter_making;
use crate::relay::bind;
use crate::store::{Family, Store, Txn};

/// What becomes of an event whose send failed.
const NO_OUTBOX: &str = "Its loan is committed, and there is no outbox row: nothing will send it again";

/// With `hold` the book's line stands for the commit and the hold together.
pub(super) fn run(lab: &Lab, hold: bool, holds: &mut Holds, out: &Output) -> Result<Exit> {
    let _present = enter_making(lab)?;
    let mut store = Store::make(&lab.db)?;
    let publisher = connect(lab, holds)?;

    let txn = store.begin()?;
    let loan = txn.next_loan(Family::Naive)?;
    commit(txn, &loan, holds, |loan| if hold { Ok(()) } else { out.line(&Line::NaiveCommitted { loan }) })?;
    holds.reached_in_book(CrashPoint::BeforeSend, Some(&BookHold::Naive { loan: loan.loan_id.clone() }))?;
    send(&mut store, &publisher, &loan, NO_OUTBOX, holds, out)?;
    Ok(Exit::Done)
}

/// `naive --send-first`: the other order. Who dies between the two has told the world of a loan that never was.
pub(super) fn send_first(lab: &Lab, holds: &mut Holds, out: &Output) -> Result<Exit> {
    let _present = enter_making(lab)?;
    let mut store = Store::make(&lab.db)?;
    let publisher = connect(lab, holds)?;

    // Kept before anything is sent, so that the number of a phantom event is never given to another loan.
    let txn = store.begin()?;
    let loan = txn.next_loan(Family::Naive)?;
    txn.commit()?;
    holds.reached(CrashPoint::BeforeSend)?;
    send(&mut store, &publisher, &loan, "Its loan is not committed", holds, out)?;
    commit(store.begin()?, &loan, holds, |loan| out.line(&Line::NaiveCommitted { loan }))?;
    Ok(Exit::Done)
}

fn commit(txn: Txn, loan: &Loan, holds: &mut Holds, tell: impl FnOnce(&str) -> Result<()>) -> Result<()> {
    txn.insert_loan(loan)?;
    holds.reached(CrashPoint::AfterLoanRow)?;
    txn.commit()?;
    tell(&loan.loan_id)?;
    holds.reached(CrashPoint::AfterCommit)
}

fn send(
    store: &mut Store,
    publisher: &Publisher,
    loan: &Loan,
    then: &str,
    holds: &mut Holds,
    out: &Output,
) -> Result<()> {
    bind(store, publisher.incarnation())?;
    let event = loan.created();
    let failed = |error| not_acknowledged(&event.event_id, &error, then);
    let in_flight = publisher.send(&event, &event.event_id).map_err(failed)?;
    holds.reached(CrashPoint::Sent)?;
    let at = in_flight.acknowledged().map_err(failed)?;
    holds.reached(CrashPoint::AfterAck)?;
    out.line(&Line::NaiveSent { key: &event.event_id, at })
}
