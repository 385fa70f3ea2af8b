//! What the database notes about the topic, held against the topic that is there: records that went with an
//! old broker or an old topic are gone, not lost by the strategy under test.

use anyhow::Result;

use crate::broker::{Ending, Incarnation, Publisher};
use crate::failure::Failure;
use crate::lab::Lab;
use crate::output::hint;
use crate::store::{Store, TopicNote};

const BEGIN_AGAIN: &str = "begin again: outbox-lab reset";

/// Connects a command that sends, and notes in the database where its events go from now on.
pub(super) fn connect(lab: &Lab, store: &Store, on_wire: bool) -> Result<Publisher> {
    let announce: fn() = || hint("on the wire: a produce request has gone out, and its answer has not come");
    let publisher = Publisher::connect(lab, on_wire.then_some(announce))?;
    store.note_topic(publisher.incarnation().as_str())?;
    match store.topic_note()? {
        TopicNote::SentTo(noted) if noted != publisher.incarnation().as_str() => hint(&format!(
            "the earlier events went to the {noted}; these go to the {}. The rows are safe, but the two topics will not \
             reconcile: outbox-lab reset begins again",
            publisher.incarnation()
        )),
        TopicNote::ResetUnderWay => hint("a reset was interrupted here: type outbox-lab reset to end it"),
        TopicNote::SentTo(_) | TopicNote::None => {}
    }
    Ok(publisher)
}

/// Says that the records are gone, if the topic that was found is not the one that the events went to.
pub(super) fn records_gone(note: &TopicNote, found: Option<&Incarnation>, lab: &Lab) -> Option<anyhow::Error> {
    match (note, found) {
        (TopicNote::ResetUnderWay, _) => Some(Failure::inconclusive(
            format!("a reset of {} was interrupted: rows and topic do not belong together", lab.db.display()),
            "end it: outbox-lab reset",
        )),
        (TopicNote::SentTo(noted), Some(found)) if noted != found.as_str() => Some(Failure::inconclusive(
            format!(
                "the records are gone from here: the events of {} went to the {noted}, and this is the {found}",
                lab.db.display()
            ),
            format!("name the right place (--bootstrap, --topic, --dir), or {BEGIN_AGAIN}"),
        )),
        (TopicNote::SentTo(noted), None) => Some(Failure::inconclusive(
            format!(
                "the records are gone from here: the events of {} went to the {noted}, and there is no such topic",
                lab.db.display()
            ),
            format!("name the right place (--bootstrap, --topic, --dir), or {BEGIN_AGAIN}"),
        )),
        (TopicNote::SentTo(_) | TopicNote::None, _) => None,
    }
}

/// A reading that is not the whole topic proves nothing.
pub(super) fn whole(ending: &Ending) -> Result<()> {
    match ending {
        Ending::Whole => Ok(()),
        Ending::Truncated { partition, first } => Err(Failure::inconclusive(
            format!(
                "records are gone: the log of partition {partition} begins at offset {first}, the broker dropped what was before"
            ),
            BEGIN_AGAIN,
        )),
        Ending::Short { partition, read_to, end } => Err(Failure::inconclusive(
            format!("the reading ended short: partition {partition} was read to offset {read_to} of {end}"),
            "see that the broker is up (was it stopped?), then type the command again",
        )),
    }
}
