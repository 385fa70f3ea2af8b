//! `verify`: the four counts, from the database alone (7.1).

use anyhow::Result;

use crate::crash::{CrashPoint, Holds};
use crate::failure::Exit;
use crate::lab::Lab;
use crate::output::{Line, Output};
use crate::presence::enter;
use crate::store::Store;

pub(super) fn run(lab: &Lab, holds: &mut Holds, out: &Output) -> Result<Exit> {
    let _present = enter(lab)?;
    let store = Store::open(&lab.db)?;
    holds.reached(CrashPoint::BeforeCount)?;
    out.line(&Line::Verified(store.counts()?))?;
    Ok(Exit::Done)
}
