//! `consume`: the whole topic as `key,payload` lines, as Kafka's console consumer prints it.

use anyhow::Result;

use super::provenance::{same_topic, whole};
use crate::broker::Reader;
use crate::failure::{Exit, Failure};
use crate::lab::Lab;
use crate::output::{Line, Output};
use crate::presence::enter;
use crate::store::{Store, TopicNote};

pub(super) fn run(lab: &Lab, out: &Output) -> Result<Exit> {
    let _present = enter(lab)?;
    // The topic can be read without a database; if there is one, it knows whether this is the right topic.
    let note = if lab.db.exists() { Store::open(&lab.db)?.topic_note()? } else { TopicNote::Unbound };
    let reader = Reader::find(lab)?;
    let same = same_topic(lab, &note, reader.as_ref().map(Reader::incarnation));
    let Some(reader) = reader else {
        same?;
        return Err(Failure::inconclusive(
            format!("there is no topic {} to read", lab.topic),
            "check --topic, --bootstrap and --dir; or begin: outbox-lab reset, write 5, publish 5",
        ));
    };
    // What is there is shown, also where it is not what was asked for.
    let ending = reader.read(|record| out.buffered(&Line::Record(&record)))?;
    out.flush()?;
    same?;
    whole(&ending)?;
    Ok(Exit::Done)
}
