//! The dual write once more, on the other side: an effect, and an offset.

use anyhow::Result;

use super::{Experiment, Needs, kills};
use crate::reconcile::Effects;
use crate::trial::Trial;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "naive-consumer",
    question: "A consumer has an effect in its database, and commits its offset in Kafka. What does a crash between the two \
               leave?",
    claim: "A topic without duplicates does not make the consumer safe: a record may be delivered again, and only a consumer \
            that is idempotent can bear it.",
    steps: &[
        "publish five events, no copies",
        "apply them, the offset committed after each effect; kill -9 after the third effect, before its offset commit",
        "start the consumer again",
        "the same from the beginning with the offset committed first; kill -9 after the third offset commit, before its \
         effect; start the consumer again",
    ],
    predicted: "the effect first: 1 double effect; the offset first: 1 lost effect",
    lesson: "Effect and offset are a dual write, too. The order chooses between a double effect and a lost one, and cannot \
             remove both.",
    proofs: kills(2),
    needs: Needs::NOTHING,
    play,
};

fn play(trial: &mut Trial) -> Result<()> {
    publish_five(trial)?;
    let held = trial.hold("apply --hold-at after-effect@3")?;
    trial.kill(held, &[])?;
    trial.run("apply")?;
    let effects = Effects::of(&trial.records()?, &trial.store()?.effects()?);
    trial.check("effects of 5 events", 6, effects.count)?;
    trial.check("double effects", "evt-1003 x2", effects.double())?;
    trial.check("lost effects", "none", effects.lost())?;

    trial.run("reset")?;
    publish_five(trial)?;
    let held = trial.hold("apply --commit-first --hold-at after-offset-commit@3")?;
    trial.kill(held, &[])?;
    trial.run("apply --commit-first")?;
    let effects = Effects::of(&trial.records()?, &trial.store()?.effects()?);
    trial.check("effects of 5 events", 4, effects.count)?;
    trial.check("double effects", "none", effects.double())?;
    trial.check("lost effects", "evt-1003", effects.lost())
}

fn publish_five(trial: &mut Trial) -> Result<()> {
    trial.run("write 5")?;
    trial.run("publish 10")?;
    let found = trial.reconcile()?;
    trial.check("business rows / outbox rows / records / event ids", "5/5/5/5", found.tally)
}
