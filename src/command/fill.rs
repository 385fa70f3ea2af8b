//! `fill`: many rows at once, for measurements.

use anyhow::Result;

use crate::failure::{Exit, Failure};
use crate::lab::Lab;
use crate::output::{Line, Output};
use crate::presence::enter_making;
use crate::store::Store;

pub(super) fn run(lab: &Lab, rows: u32, loans: u32, published: bool, out: &Output) -> Result<Exit> {
    if loans > rows {
        return Err(Failure::usage(
            format!("{rows} events cannot be of {loans} aggregates"),
            format!("--aggregates 1 to {rows}"),
        ));
    }
    let _present = enter_making(lab)?;
    let numbers = Store::make(&lab.db)?.fill(rows, loans, published)?;
    out.line(&Line::Filled { outbox: rows, loans, first: *numbers.start(), last: *numbers.end() })?;
    Ok(Exit::Done)
}
