//! Freezing a broker that the lab started: the embedded one, or the Kafka of `scripts/kafka.sh`, which leaves on record
//! (`how`) which process or container it is.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::process::{undisturbed, wait_for};
use crate::broker::embedded;
use crate::failure::Failure;
use crate::lab::Lab;

/// What is frozen now, by the folder of the trial, so that an interrupt leaves nothing frozen behind.
static FROZEN: Mutex<Vec<(PathBuf, Broker)>> = Mutex::new(Vec::new());

#[derive(Clone, Debug, PartialEq, Eq)]
enum Broker {
    Process(u32),
    Container(String),
}

impl Broker {
    /// The broker of this lab, if the lab started it.
    fn of(lab: &Lab) -> Result<Option<Self>> {
        match &lab.kafka {
            None => Ok(embedded::find(lab)?.map(|broker| Self::Process(broker.pid))),
            Some(servers) => Ok(by_script(servers)),
        }
    }

    /// Does it stand still? `docker pause` returns when it does.
    fn is_stopped(&self) -> Result<bool> {
        let Self::Process(pid) = self else { return Ok(true) };
        let state = Command::new("ps").args(["-o", "state=", "-p", &pid.to_string()]).output();
        let state = state.context("ps cannot be run")?.stdout;
        Ok(String::from_utf8_lossy(&state).trim_start().starts_with('T'))
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        match self {
            Self::Process(pid) => {
                let pid = Pid::from_raw(i32::try_from(*pid)?);
                kill(pid, signal).with_context(|| format!("the broker, pid {pid}, cannot be signalled"))
            }
            Self::Container(name) => {
                let verb = if signal == Signal::SIGSTOP { "pause" } else { "unpause" };
                let done = Command::new("docker").args([verb, name]).output().context("docker cannot be run")?;
                anyhow::ensure!(
                    done.status.success(),
                    "docker {verb} {name}: {}",
                    String::from_utf8_lossy(&done.stderr)
                );
                Ok(())
            }
        }
    }
}

/// The Kafka that `scripts/kafka.sh` has on record, if it is the one at these servers.
fn by_script(servers: &str) -> Option<Broker> {
    let dir = std::env::var_os("KAFKA_DIR").map_or_else(|| PathBuf::from(".lab/kafka"), PathBuf::from);
    let record = std::fs::read_to_string(dir.join("how")).ok()?;
    let (how, address) = record.trim().split_once('\n')?;
    if address != servers {
        return None;
    }
    match how.split_once(' ')? {
        ("pid", pid) => {
            // After a crash the pid may belong to any program.
            let command = Command::new("ps").args(["-ww", "-o", "command=", "-p", pid]).output().ok()?.stdout;
            let is_kafka = String::from_utf8_lossy(&command).contains("kafka.Kafka");
            is_kafka.then(|| pid.parse().ok()).flatten().map(Broker::Process)
        }
        ("docker", container) => Some(Broker::Container(container.to_owned())),
        _ => None,
    }
}

/// May the lab freeze this broker? The embedded one, once it runs, always.
pub fn can_freeze(lab: &Lab) -> bool {
    lab.kafka.as_deref().is_none_or(|servers| by_script(servers).is_some())
}

/// Freezes the lab's broker.
///
/// # Errors
/// It is not one that the lab started.
pub(super) fn freeze(lab: &Lab) -> Result<()> {
    let Some(broker) = Broker::of(lab)? else {
        return Err(Failure::inconclusive(
            "the broker is not one that the lab started, so it cannot be frozen",
            "take the embedded broker, or bring up a Kafka with scripts/kafka.sh",
        ));
    };
    // On record first: an interrupt in between thaws a broker that is not frozen, which does no harm. After it none is frozen.
    frozen().push((lab.dir.clone(), broker.clone()));
    undisturbed(|| broker.signal(Signal::SIGSTOP))?;
    // The signal is only on its way when the call returns: until it has stopped, a broker can acknowledge yet.
    wait_for("the broker to stop", || broker.is_stopped())
}

/// Lets it go on; says how many were frozen.
///
/// # Errors
/// It is gone.
pub(super) fn thaw(lab: &Lab) -> Result<u32> {
    let is_mine = |(dir, _): &(PathBuf, Broker)| *dir == lab.dir;
    let mine: Vec<Broker> = frozen().iter().filter(|known| is_mine(known)).map(|(_, broker)| broker.clone()).collect();
    mine.iter().try_for_each(|broker| broker.signal(Signal::SIGCONT))?;
    // Forgotten last: an interrupt in between lets it go on once more, which does no harm.
    frozen().retain(|known| !is_mine(known));
    Ok(u32::try_from(mine.len())?)
}

/// Is the broker of this lab frozen by the lab?
pub(super) fn is_frozen(lab: &Lab) -> bool {
    frozen().iter().any(|(dir, _)| *dir == lab.dir)
}

fn frozen() -> std::sync::MutexGuard<'static, Vec<(PathBuf, Broker)>> {
    FROZEN.lock().unwrap_or_else(PoisonError::into_inner)
}
