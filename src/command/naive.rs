//! `naive` and `naive-hold`: the counter-example. A loan is committed, then its event is sent, and nothing
//! in the database knows of the second step (the book's orphan row, 7.1).

use anyhow::Result;

use super::topic::connect;
use crate::crash::{Crash, CrashPoint, HoldAt};
use crate::failure::Exit;
use crate::lab::Lab;
use crate::output::{BookHold, Line, Output};
use crate::store::{Family, Store};

const POINTS: &[CrashPoint] = &[
    CrashPoint::AfterLoanRow,
    CrashPoint::AfterCommit,
    CrashPoint::BeforeSend,
    CrashPoint::Sent,
    CrashPoint::AfterAck,
];

pub(super) fn run(lab: &Lab, hold_at: &[HoldAt], hold: bool, out: &Output) -> Result<Exit> {
    let command = if hold { "naive-hold" } else { "naive" };
    let book = hold.then_some(HoldAt::new(CrashPoint::BeforeSend, 1));
    let mut crash = Crash::new(command, POINTS, hold_at, book, out)?;
    lab.make_dir()?;
    let _alive = lab.enter()?;
    let mut store = Store::make(&lab.db)?;
    let publisher = connect(lab, &store, crash.may_hold_at(CrashPoint::Sent))?;

    let txn = store.begin()?;
    let loan = txn.next_loan(Family::Naive)?;
    txn.insert_loan(&loan)?;
    crash.reached(CrashPoint::AfterLoanRow)?;
    txn.commit()?;
    crash.reached(CrashPoint::AfterCommit)?;
    if !hold {
        out.line(&Line::NaiveCommitted { loan: &loan.loan_id })?;
    }
    crash.reached_in_book(CrashPoint::BeforeSend, &BookHold::Naive { loan: loan.loan_id.clone() })?;
    let event = loan.created();
    let in_flight = publisher.send(&event)?;
    crash.reached(CrashPoint::Sent)?;
    let at = in_flight.acknowledged()?;
    crash.reached(CrashPoint::AfterAck)?;
    out.line(&Line::NaiveSent { key: &event.event_id, at })?;
    Ok(crash.exit())
}
