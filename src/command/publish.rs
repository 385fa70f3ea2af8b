//! `publish` and `publish-hold`: the book's relay, with its marks after each send or after all of them.

use anyhow::Result;

use super::topic::connect;
use crate::cli::Amount;
use crate::crash::{Crash, CrashPoint, HoldAt};
use crate::failure::Exit;
use crate::lab::Lab;
use crate::output::Output;
use crate::relay::{self, Marking};
use crate::store::Store;

pub(super) fn publish(lab: &Lab, amount: &Amount, mark_first: bool, out: &Output) -> Result<Exit> {
    let marking = if mark_first { Marking::BeforeEachSend } else { Marking::AfterEachAck };
    run(lab, "publish", amount, marking, None, out)
}

pub(super) fn publish_hold(lab: &Lab, amount: &Amount, out: &Output) -> Result<Exit> {
    let book = HoldAt::new(CrashPoint::BeforeMark, 1);
    run(lab, "publish-hold", amount, Marking::AfterAllAcks, Some(book), out)
}

fn run(
    lab: &Lab,
    command: &'static str,
    amount: &Amount,
    marking: Marking,
    book: Option<HoldAt>,
    out: &Output,
) -> Result<Exit> {
    let mut crash = Crash::new(command, relay::POINTS, &amount.holds.hold_at, book, out)?;
    let _alive = lab.enter()?;
    let mut store = Store::open(&lab.db)?;
    let publisher = connect(lab, &store, crash.may_hold_at(CrashPoint::Sent))?;
    relay::relay(command, amount.n, marking, &mut store, &publisher, &mut crash, out)
}
