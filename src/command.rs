//! The commands, a file each: they bring store, broker and crash points together, and print.

mod apply;
mod broker;
mod clean;
mod consume;
mod dead;
mod fill;
mod give_back;
mod list;
mod measure;
mod naive;
mod play;
mod provenance;
mod publish;
mod purge;
mod reconcile;
mod relay;
mod reset;
mod rollback;
mod stats;
mod sweep;
mod verify;
mod write;

use anyhow::Result;

use crate::broker::check_properties;
use crate::cli::{Cli, Command, HoldArgs};
use crate::crash::{CrashPoint, Holds};
use crate::event::Key;
use crate::failure::Exit;
use crate::lab::Lab;
use crate::output::Output;
use crate::relay::Marking;
use crate::store::in_words;
use crate::trial::patience::be_patient;

/// Runs the command that was typed.
///
/// # Errors
/// It could not be done: see `Failure`.
pub fn run(cli: &Cli, lab: &Lab) -> Result<Exit> {
    lab.check()?;
    check_properties(lab)?;
    let out = &Output::new(cli.json);
    dispatch(&cli.command, lab, out).map_err(|error| in_words(error, &lab.db))
}

fn dispatch(command: &Command, lab: &Lab, out: &Output) -> Result<Exit> {
    // Where the book holds, and has a line of its own for it.
    let before_send = Some((CrashPoint::BeforeSend, 1));
    let after_last_commit = |n| Some((CrashPoint::AfterCommit, n));
    let before_marks = Some((CrashPoint::BeforeMark, 1));
    match command {
        Command::Reset { holds: args, partitions } => {
            held("reset", args, None, out, |holds| reset::run(lab, *partitions, holds, out))
        }
        Command::Naive { holds: args, send_first } => held("naive", args, None, out, |holds| match send_first {
            false => naive::run(lab, false, holds, out),
            true => naive::send_first(lab, holds, out),
        }),
        Command::NaiveHold(args) => {
            held("naive-hold", args, before_send, out, |holds| naive::run(lab, true, holds, out))
        }
        Command::Write { amount, delayed } => held("write", &amount.holds, None, out, |holds| match delayed {
            false => write::run(lab, amount.n, holds, out),
            true => write::delayed(lab, amount.n, holds, out),
        }),
        Command::Return(amount) => {
            held("return", &amount.holds, None, out, |holds| give_back::run(lab, amount.n, holds, out))
        }
        Command::WriteHold(amount) => held("write-hold", &amount.holds, after_last_commit(amount.n), out, |holds| {
            write::run(lab, amount.n, holds, out)
        }),
        Command::Rollback(args) => held("rollback", args, None, out, |holds| rollback::run(lab, holds, out)),
        Command::Publish { amount, mark_first, transactional, key } => {
            let marking = match (mark_first, transactional) {
                (true, _) => Marking::BeforeEachSend,
                (_, true) => Marking::AfterBrokerCommit,
                (false, false) => Marking::AfterEachAck,
            };
            held("publish", &amount.holds, None, out, |holds| publish::run(lab, amount.n, marking, *key, holds, out))
        }
        Command::PublishHold(amount) => held("publish-hold", &amount.holds, before_marks, out, |holds| {
            publish::run(lab, amount.n, Marking::AfterAllAcks, Key::Event, holds, out)
        }),
        Command::Relay(args) => held("relay", &args.holds, None, out, |holds| relay::run(lab, args, holds, out)),
        Command::Verify(args) => held("verify", args, None, out, |holds| verify::run(lab, holds, out)),
        Command::Apply { holds: args, inbox, commit_first } => {
            held("apply", args, None, out, |holds| apply::run(lab, *inbox, *commit_first, holds, out))
        }
        Command::Consume => consume::run(lab, out),
        Command::Reconcile { expect } => reconcile::run(lab, *expect, out),
        Command::Stats(args) => stats::run(lab, args, out),
        Command::Purge { holds: args, older_than } => {
            held("purge", args, None, out, |holds| purge::run(lab, *older_than, holds, out))
        }
        Command::Dead(command) => dead::run(lab, command, out),
        Command::Fill { n, aggregates, published } => fill::run(lab, *n, aggregates.unwrap_or(*n), *published, out),
        Command::Measure { what, key } => measure::run(lab, *what, *key, out),
        Command::List => list::list(out),
        Command::Explain { name } => list::explain(name, out),
        Command::Run { names, waiting } => {
            be_patient(waiting.patience);
            play::run(lab, names, out)
        }
        Command::Sweep { strategy, rows, waiting, bare } => {
            be_patient(waiting.patience);
            sweep::run(lab, strategy, *rows, *bare, out)
        }
        Command::Broker(command) => broker::run(lab, command, out),
        Command::Clean => clean::run(lab, out),
    }
}

/// Runs a command that has crash points, and sees to it that a hold that was never reached does not pass.
fn held(
    command: &'static str,
    args: &HoldArgs,
    book: Option<(CrashPoint, u32)>,
    out: &Output,
    run: impl FnOnce(&mut Holds) -> Result<Exit>,
) -> Result<Exit> {
    let mut holds = Holds::new(command, args, book, out)?;
    let exit = run(&mut holds)?;
    Ok(holds.settle(exit))
}
