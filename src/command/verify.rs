//! `verify`: the four counts, from the database alone (7.1).

use anyhow::Result;

use crate::crash::{Crash, CrashPoint, HoldAt};
use crate::failure::Exit;
use crate::lab::Lab;
use crate::output::{Line, Output};
use crate::store::Store;

pub(super) fn run(lab: &Lab, hold_at: &[HoldAt], out: &Output) -> Result<Exit> {
    let mut crash = Crash::new("verify", &[CrashPoint::BeforeCount], hold_at, None, out)?;
    let _alive = lab.enter()?;
    let store = Store::open(&lab.db)?;
    crash.reached(CrashPoint::BeforeCount)?;
    out.line(&Line::Verified(store.counts()?))?;
    Ok(crash.exit())
}
