//! outbox-lab: what is left in a database and in Kafka when a process that writes to both is killed between
//! the two. Every crash is a real `kill -9` of a real process, and every count is taken afterwards.

mod broker;
mod cli;
mod clock;
mod command;
mod crash;
mod event;
mod experiment;
mod failure;
mod lab;
mod lock;
mod metrics;
mod output;
mod presence;
mod reconcile;
mod relay;
mod shard;
mod store;
mod sweep;
mod trial;
mod verdict;

use clap::Parser;

use crate::cli::Cli;
use crate::failure::Failure;
use crate::lab::Lab;
use crate::output::hint;

fn main() {
    crash::prepare();
    let cli = Cli::parse();
    let exit = command::run(&cli, &Lab::from(&cli.place)).unwrap_or_else(|error| {
        let failure = Failure::from(error);
        if !failure.is_silent() {
            hint(&failure.to_string());
        }
        failure.exit
    });
    // At once, without returning: the Kafka client's threads would take 100 ms to be joined.
    std::process::exit(exit as i32);
}
