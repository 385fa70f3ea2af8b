//! An outbox that nobody empties.

use anyhow::Result;

use super::{Experiment, Needs, kills};
use crate::store::Access;
use crate::trial::Trial;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "table-growth",
    question: "Published rows stay in the outbox. What does the relay's poll cost when there are 1,000 times as many of them?",
    claim: "Published rows have to be archived or deleted, or the poll becomes slower and slower.",
    steps: &[
        "100 published rows, five pending ones behind them; count the steps that SQLite's virtual machine takes for one poll",
        "99,900 published rows more; count again",
        "the same query both times without the partial index on the pending rows",
    ],
    predicted: "without the index more than 500 times as many steps for the same five rows; with it not one step more",
    lesson: "Slower it becomes only where it passes by what was published. The poll has to cost what is pending, and not what was ever published: a partial index with the very predicate of \
             the query sees to that. It does not make the table smaller; that takes a purge.",
    proofs: kills(0),
    needs: Needs::NOTHING,
    play,
};

/// Rows of one poll.
const LIMIT: u32 = 1_000;

fn play(trial: &mut Trial) -> Result<()> {
    trial.run("fill 100 --published")?;
    trial.run("fill 5")?;
    let small = Polls::of(trial)?;
    trial.run("fill 99900 --published")?;
    let large = Polls::of(trial)?;
    trial.check("rows that each poll finds", "5, 5, 5, 5", [small.found(), large.found()].join(", "))?;
    trial.check("steps without the index", "more than 500 times as many", growth(small.scanned.1, large.scanned.1))?;
    trial.check("steps with the index", "the same", growth(small.indexed.1, large.indexed.1))
}

/// The poll with and without the index: rows found, and steps taken.
struct Polls {
    indexed: (usize, i32),
    scanned: (usize, i32),
}

impl Polls {
    fn of(trial: &Trial) -> Result<Self> {
        let store = trial.store()?;
        Ok(Self {
            indexed: store.poll_steps(Access::AsIs, LIMIT)?,
            scanned: store.poll_steps(Access::NotIndexed, LIMIT)?,
        })
    }

    fn found(&self) -> String {
        format!("{}, {}", self.indexed.0, self.scanned.0)
    }
}

fn growth(small: i32, large: i32) -> &'static str {
    match (large - 1) / small.max(1) {
        _ if large == small => "the same",
        500.. => "more than 500 times as many",
        _ => "up to 500 times as many",
    }
}
