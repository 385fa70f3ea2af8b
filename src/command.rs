//! The commands, one file each: they bring store, broker and crash points together, and print.

mod broker;
mod clean;
mod consume;
mod naive;
mod publish;
mod reconcile;
mod reset;
mod rollback;
mod topic;
mod verify;
mod write;

use anyhow::Result;

use crate::broker::check_properties;
use crate::cli::{Cli, Command};
use crate::failure::Exit;
use crate::lab::Lab;
use crate::output::Output;

/// Runs the command that was typed.
///
/// # Errors
/// It could not be done: see `Failure`.
pub fn run(cli: &Cli, lab: &Lab) -> Result<Exit> {
    check_properties(lab)?;
    let out = &Output::new(cli.json);
    match &cli.command {
        Command::Reset(holds) => reset::run(lab, &holds.hold_at, out),
        Command::Naive(holds) => naive::run(lab, &holds.hold_at, false, out),
        Command::NaiveHold(holds) => naive::run(lab, &holds.hold_at, true, out),
        Command::Write(amount) => write::run(lab, amount, false, out),
        Command::WriteHold(amount) => write::run(lab, amount, true, out),
        Command::Rollback(holds) => rollback::run(lab, &holds.hold_at, out),
        Command::Publish { amount, mark_first } => publish::publish(lab, amount, *mark_first, out),
        Command::PublishHold(amount) => publish::publish_hold(lab, amount, out),
        Command::Verify(holds) => verify::run(lab, &holds.hold_at, out),
        Command::Consume => consume::run(lab, out),
        Command::Reconcile { expect } => reconcile::run(lab, *expect, out),
        Command::Broker(command) => broker::run(lab, command, out),
        Command::Clean => clean::run(lab, out),
    }
}
