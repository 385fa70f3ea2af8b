//! The experiments, a file each, and the registry that feeds `list`, `explain` and `run`.
//!
//! A new experiment is a new file with one `Experiment` in it, and its line in `experiments!`.

use anyhow::Result;

use crate::failure::Failure;
use crate::trial::Trial;
use crate::verdict::Proofs;

/// Declares the files and the registry, so that an experiment has one line here.
macro_rules! experiments {
    ($($name:ident,)*) => {
        $(mod $name;)*

        /// Every experiment, in the order in which they are told.
        pub const EXPERIMENTS: &[&Experiment] = &[$(&$name::EXPERIMENT,)*];
    };
}

experiments! {
    commit_then_send,
    send_then_commit,
    send_timeout,
    killed_in_doubt,
    shared_transaction,
    unique_event_id,
    delayed_write,
    outbox_survives,
    confirm_then_mark,
    mark_then_send,
    idempotent_producer,
    kafka_transaction,
    naive_consumer,
    idempotent_consumer,
    two_relays,
    broker_outage,
    key_and_order,
    table_growth,
    poison_row,
    slow_broker,
    purge_under_kill,
    relay_crash,
}

/// A claim of the book's, made to prove itself.
pub struct Experiment {
    /// In kebab case.
    pub name: &'static str,
    /// What is asked.
    pub question: &'static str,
    /// What the book says of it (7.1).
    pub claim: &'static str,
    /// What is done.
    pub steps: &'static [&'static str],
    /// What is to be found, in words.
    pub predicted: &'static str,
    /// What it teaches.
    pub lesson: &'static str,
    /// What has to be proved for a verdict: fewer, and it is inconclusive.
    pub proofs: Proofs,
    /// What the broker has to be able to do.
    pub needs: Needs,
    /// Plays it. An error that is inconclusive is a verdict; any other ends the run.
    pub play: fn(&mut Trial) -> Result<()>,
}

/// What an experiment needs of the broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// To be frozen, so it must be one that the lab started.
    pub freezing: bool,
    /// To be a real Kafka.
    pub real_kafka: bool,
}

impl Needs {
    /// Any broker will do.
    pub const NOTHING: Self = Self { freezing: false, real_kafka: false };
    /// A real Kafka.
    pub const REAL_KAFKA: Self = Self { freezing: false, real_kafka: true };
    /// One that can be frozen.
    pub const FREEZING: Self = Self { freezing: true, real_kafka: false };
}

/// Kills that have to be proved.
pub const fn kills(kills: u32) -> Proofs {
    Proofs { kills, disturbances: 0 }
}

/// Disturbances that have to be proved, where nobody is killed.
pub const fn disturbances(disturbances: u32) -> Proofs {
    Proofs { kills: 0, disturbances }
}

/// Makes a relay give up soon on a send that nobody answers. Not sooner: an idempotent producer needs up to a second before
/// its first acknowledgement, and more on a loaded Kafka; that one is to come.
const GIVES_UP_SOON: &str = "-X message.timeout.ms=3000";

/// Makes a client take no record as large as [`Trial::write_large`] makes one, whatever the broker would take.
const TOO_LARGE: &str = "-X message.max.bytes=1000";

/// The experiment of this name.
///
/// # Errors
/// Usage: there is none, and these there are.
pub fn find(name: &str) -> Result<&'static Experiment> {
    EXPERIMENTS.iter().copied().find(|experiment| experiment.name == name).ok_or_else(|| {
        let known: Vec<_> = EXPERIMENTS.iter().map(|experiment| experiment.name).collect();
        Failure::usage(
            format!("there is no experiment \"{name}\""),
            format!("the experiments are {}", known.join(", ")),
        )
    })
}
