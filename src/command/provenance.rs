//! Do the database and the topic belong together? Records that went with an old broker or an old topic are gone, and not
//! lost by the strategy under test.

use anyhow::Result;

use crate::broker::{Ending, OnWire, Publisher, SendError};
use crate::crash::{CrashPoint, Holds};
use crate::event::Incarnation;
use crate::failure::Failure;
use crate::lab::Lab;
use crate::output::hint;
use crate::store::TopicNote;

const BEGIN_AGAIN: &str = "begin again with reset, and the same --dir, --db and --topic as here";

/// Connects a command that sends.
pub(super) fn connect(lab: &Lab, holds: &Holds) -> Result<Publisher> {
    connect_for(lab, holds, false)
}

/// As [`connect`], for a command that may send in a Kafka transaction.
pub(super) fn connect_for(lab: &Lab, holds: &Holds, transactional: bool) -> Result<Publisher> {
    let announce: fn(OnWire) = |seen| {
        hint(match seen {
            OnWire::Out => "on the wire: a produce request has gone out, and its answer has not come",
            OnWire::TimedOut => "timed out: the answer to a produce request is late, and the client will send it again",
            OnWire::Again => "sent again: the client has made a second produce request of the same record, by itself",
        });
    };
    // Only for a process that will be held there: statistics cost.
    let on_wire = holds.may_hold_at(CrashPoint::Sent).then_some(announce);
    Publisher::connect(lab, on_wire, transactional)
}

/// A send that was refused or is in doubt, with what it means for the event: `then` says what becomes of it.
pub(super) fn not_acknowledged(event_id: &str, error: &SendError, then: &str) -> anyhow::Error {
    match error {
        SendError::Rejected(why) | SendError::Refused(why) => Failure::failed(
            format!("{event_id} was refused, and is not in the topic: {why}"),
            format!("look at the topic and at the -X options. {then}"),
        ),
        SendError::InDoubt(why) => Failure::failed(
            format!("{event_id} is in doubt: sent, and not acknowledged: {why}. It may be in the topic, or arrive yet"),
            format!("see that the broker is up (outbox-lab broker status; scripts/kafka.sh status). {then}"),
        ),
    }
}

/// Refuses to compare a database with a topic that its events did not go to: `found` is the one that is there.
///
/// # Errors
/// Inconclusive: the records are gone, or a reset was interrupted.
pub(super) fn same_topic(lab: &Lab, note: &TopicNote, found: Option<&Incarnation>) -> Result<()> {
    let noted = match note {
        TopicNote::Unbound => return Ok(()),
        TopicNote::ResetUnderWay => {
            return Err(Failure::inconclusive(
                format!("a reset of {} was interrupted: rows and topic do not belong together", lab.db.display()),
                "end it by another reset, with the same --dir, --db and --topic",
            ));
        }
        TopicNote::Scattered(first, later) => {
            return Err(Failure::inconclusive(
                format!(
                    "the records are gone from here in part: the events of {} went to the {first}, and later to the {later}",
                    lab.db.display()
                ),
                format!("no topic has all of them; {BEGIN_AGAIN}"),
            ));
        }
        TopicNote::BoundTo(noted) if Some(noted) == found => return Ok(()),
        TopicNote::BoundTo(noted) => noted,
    };
    let here =
        lab.kafka.as_deref().map_or_else(|| "on the embedded broker".to_owned(), |servers| format!("at {servers}"));
    let found = match found {
        Some(found) => format!("this is the {found}"),
        None => format!("{here} there is no such topic"),
    };
    Err(Failure::inconclusive(
        format!("the records are gone from here: the events of {} went to the {noted}, and {found}", lab.db.display()),
        format!("name the right place (--bootstrap or KAFKA_BOOTSTRAP, --topic, --dir), or {BEGIN_AGAIN}"),
    ))
}

/// Refuses a reading that is not the whole topic: it proves nothing.
///
/// # Errors
/// Inconclusive: records are gone, or the reading ended short.
pub(super) fn whole(ending: &Ending) -> Result<()> {
    match ending {
        Ending::Whole => Ok(()),
        Ending::Truncated { partition, first } => Err(Failure::inconclusive(
            format!(
                "records are gone: partition {partition} begins at offset {first}, the broker dropped what was before"
            ),
            BEGIN_AGAIN,
        )),
        Ending::Short { partition, read_to, end, why } => Err(Failure::inconclusive(
            format!("the reading ended short: partition {partition} was read to offset {read_to} of {end}{why}"),
            "see that the broker is up and not frozen, then type the command again",
        )),
    }
}
