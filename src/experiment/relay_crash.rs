//! A relay with batches and leases, killed wherever it can be.

use std::collections::BTreeSet;

use anyhow::Result;

use super::{Experiment, GIVES_UP_SOON, Needs, kills};
use crate::clock::now_ms;
use crate::crash::{CrashPoint, HoldAt};
use crate::event::Record;
use crate::failure::{Exit, Failure};
use crate::reconcile::{Finding, Reconciliation, listed};
use crate::trial::{Held, Trial, process};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "relay-crash",
    question: "A relay sends and marks whole batches, several at a time. What does a kill leave, at each point where it can die?",
    claim: "The window between send and mark is there, whatever one does: what a crash finds in it is sent again, and nothing \
            is lost.",
    steps: &[
        "write four loans; a relay with batches of two publishes them and counts the crash points that it passes",
        "for each passage of each, from the beginning: write four loans; hold the relay there, wait for all that it has handed \
         over to arrive, kill -9; start it again under the same name",
        "once more, and start a relay of another name instead: at once, and when the lease of the dead one has expired",
    ],
    predicted: "15 passages; nothing lost, no phantom event, nothing left pending, and copies of just those rows that were in \
                flight at the kill: sent, and not marked. A relay of another name waits for one lease at the most",
    lesson: "What a kill of a relay costs is bounded: a copy of each row that was in flight, and for a stranger one lease. The \
             larger the batches and the more of them at a time, the more copies; none is ever lost.",
    proofs: kills(16),
    needs: Needs::NOTHING,
    play,
};

const WRITE: &str = "write 4";
const RELAY: &str = "relay --batch 2 --owner relay-1";
const BATCH: u64 = 2;

/// How often the relay passes each crash point.
const PASSAGES: &str = "after-claim, after-fetch@2, before-send@4, sent@2, after-ack@2, before-mark@2, after-mark@2";

fn play(trial: &mut Trial) -> Result<()> {
    trial.run(WRITE)?;
    let points = trial.run(&format!("{RELAY} --trace"))?.passages();
    trial.check("passages of crash points", PASSAGES, listed(&points))?;
    trial.tell("(now for each of these: reset, four loans, held there, killed, started again)")?;
    let mut toll = Toll::default();
    for HoldAt { point, nth: passages } in points {
        for nth in 1..=passages {
            let died = kill_at(trial, HoldAt { point, nth })?;
            quietly(trial, RELAY)?;
            toll.add(&died, &trial.reconcile()?, &trial.pending()?);
        }
    }
    toll.judge(trial)?;
    trial.check("some rows were in flight", true, toll.in_flight > 0)?;
    by_a_stranger(trial)
}

/// A kill, and what was sent and not marked then.
struct Died {
    at: HoldAt,
    in_flight: BTreeSet<String>,
}

/// What all the kills left, each with the point where it was.
#[derive(Default)]
struct Toll {
    lost: Vec<String>,
    phantom: Vec<String>,
    pending: Vec<String>,
    unexplained: Vec<String>,
    spared: Vec<String>,
    in_flight: usize,
}

impl Toll {
    fn add(&mut self, died: &Died, found: &Reconciliation, pending: &str) {
        let told = |what: &str| (what != "none").then(|| format!("{what} ({})", died.at));
        self.lost.extend(told(&found.lost_events()));
        self.phantom.extend(told(&found.phantom_events()));
        self.pending.extend(told(pending));
        let mut spared = died.in_flight.clone();
        for finding in &found.findings {
            if let Finding::Duplicate { event_id, copies } = finding
                && (!spared.remove(event_id) || copies.len() > 2)
            {
                self.unexplained.extend(told(&format!("{event_id} x{}", copies.len())));
            }
        }
        self.spared.extend(told(&listed(spared)));
        self.in_flight += died.in_flight.len();
    }

    fn judge(&self, trial: &mut Trial) -> Result<()> {
        trial.check("lost events", "none", listed(&self.lost))?;
        trial.check("phantom events", "none", listed(&self.phantom))?;
        trial.check("pending after a restart", "none", listed(&self.pending))?;
        trial.check("copies of rows that were not in flight", "none", listed(&self.unexplained))?;
        trial.check("rows in flight, and not sent twice", "none", listed(&self.spared))
    }
}

/// A command line that is told of once for all.
fn quietly(trial: &Trial, line: &str) -> Result<()> {
    process::run(&trial.lab, line)?.expect(line, Exit::Done)
}

/// Four loans, and a relay killed at this passage.
fn kill_at(trial: &mut Trial, at: HoldAt) -> Result<Died> {
    quietly(trial, "reset")?;
    quietly(trial, WRITE)?;
    let held = process::hold(&trial.lab, &format!("{RELAY} --trace --hold-at {at}"))?;
    kill(trial, held)
}

/// Kills a relay that is held, when all that it has handed over has arrived. While one of its threads is held the other comes
/// to its next crash point, and may mark a batch on the way; that is waited for, too.
fn kill(trial: &mut Trial, held: Held) -> Result<Died> {
    let at = held.at()?;
    // This passage is told of, too; where the line is missing, nobody knows what has to arrive.
    let gone_beyond = |point| {
        let before = held.passed(point).checked_sub(u32::from(at.point == point));
        before.ok_or_else(|| {
            Failure::inconclusive(
                format!("the relay that is held at {at} did not tell how often it had passed {point}"),
                "play it again; --trace has to tell of each crash point at a hold",
            )
        })
    };
    trial.await_records(usize::try_from(gone_beyond(CrashPoint::BeforeSend)?)?)?;
    trial.await_published(BATCH * u64::from(gone_beyond(CrashPoint::BeforeMark)?))?;
    let pending = trial.pending_ids()?;
    let sent = trial.records()?;
    let sent: BTreeSet<&str> = sent.iter().filter_map(Record::event_id).collect();
    let in_flight: BTreeSet<String> = pending.into_iter().filter(|event_id| sent.contains(event_id.as_str())).collect();
    trial.kill(held, &in_flight.iter().map(String::as_str).collect::<Vec<_>>())?;
    Ok(Died { at, in_flight })
}

fn by_a_stranger(trial: &mut Trial) -> Result<()> {
    trial.run("reset")?;
    trial.run(WRITE)?;
    let held = trial.hold(&format!("{RELAY} --lease 5s {GIVES_UP_SOON} --trace --hold-at after-ack"))?;
    let died = kill(trial, held)?;
    let now = now_ms();
    let left_ms = trial.store()?.leases(now)?.iter().map(|lease| lease.left_ms).max().unwrap_or_default();
    let stranger = trial.run("relay --owner relay-2")?;
    if now_ms() >= now + left_ms {
        return Err(Failure::inconclusive(
            "the lease of relay-1 had expired before relay-2 came to its end",
            "play it again, on a quieter machine",
        ));
    }
    trial.check(
        "relay-2 leaves the four rows to the dead relay",
        true,
        stranger.prints("left=4 (4 leased by others)"),
    )?;
    trial.check("they wait for one lease at the most", true, left_ms <= 5_000)?;
    trial.await_leases_expired()?;
    trial.run("relay --owner relay-2")?;
    let mut toll = Toll::default();
    toll.add(&died, &trial.reconcile()?, &trial.pending()?);
    toll.judge(trial)
}
