//! The other half of the outbox: the inbox.

use anyhow::Result;

use super::{Experiment, Needs, kills};
use crate::reconcile::Effects;
use crate::trial::Trial;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "idempotent-consumer",
    question: "The topic has duplicates, and the consumer dies before its offset commit. How many effects are there?",
    claim: "Duplicates can be removed downstream by the event id: one unique key, where a loss would need a reconciliation.",
    steps: &[
        "make the book's eight records: three sent and not marked, kill -9, publish",
        "apply them, each event id in an inbox row of the effect's own transaction; kill -9 after the second effect, before \
         its offset commit",
        "start the consumer again",
    ],
    predicted: "5 effects from 8 records in 9 deliveries: 4 skipped, the 3 copies and the one read again",
    lesson: "At-least-once delivery and an inbox in the effect's own transaction make it effectively-once.",
    proofs: kills(2),
    needs: Needs::NOTHING,
    play,
};

fn play(trial: &mut Trial) -> Result<()> {
    trial.run("write 5")?;
    let held = trial.hold("publish-hold 3")?;
    trial.kill(held, &[])?;
    trial.run("publish 10")?;
    let found = trial.reconcile()?;
    trial.check("business rows / outbox rows / records / event ids", "5/5/8/5", found.tally)?;

    let held = trial.hold("apply --inbox --hold-at after-effect@2")?;
    let mut printed = held.printed().to_vec();
    trial.kill(held, &[])?;
    printed.extend(trial.run("apply --inbox")?.printed);
    let deliveries: Vec<_> = printed.iter().filter_map(|line| Delivery::told(line)).collect();
    let skipped: Vec<_> =
        deliveries.iter().filter(|delivery| delivery.skipped).map(|it| format!("{}@{}", it.key, it.offset)).collect();
    trial.check("deliveries", 9, deliveries.len())?;
    trial.check("skipped, id@offset", "evt-1002@1, evt-1001@3, evt-1002@4, evt-1003@5", skipped.join(", "))?;
    let applied = trial.store()?.effects()?;
    trial.check("effects", "evt-1001, evt-1002, evt-1003, evt-1004, evt-1005", applied.join(", "))?;
    let effects = Effects::of(&trial.records()?, &applied);
    trial.check("double effects", "none", effects.double())?;
    trial.check("lost effects", "none", effects.lost())
}

/// A record, delivered to the consumer.
struct Delivery<'a> {
    key: &'a str,
    offset: &'a str,
    skipped: bool,
}

impl<'a> Delivery<'a> {
    /// What a line of the consumer's tells of, if it tells of one.
    fn told(line: &'a str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let value = |name: &str| words.iter().find_map(|word| word.strip_prefix(name));
        Some(Self { key: value("key=")?, offset: value("offset=")?, skipped: words.contains(&"skipped") })
    }
}
