//! `consume`: the whole topic as `key,payload` lines, as Kafka's console consumer prints it.

use anyhow::Result;

use super::topic::{records_gone, whole};
use crate::broker::Reader;
use crate::failure::{Exit, Failure};
use crate::lab::Lab;
use crate::output::{Line, Output};
use crate::store::{Store, TopicNote};

pub(super) fn run(lab: &Lab, out: &Output) -> Result<Exit> {
    let _alive = lab.enter()?;
    // The topic can be read without a database; if there is one, it knows whether this is the right topic.
    let note = if lab.db.exists() { Store::open(&lab.db)?.topic_note()? } else { TopicNote::None };
    let reader = Reader::find(lab)?;
    let gone = records_gone(&note, reader.as_ref().map(Reader::incarnation), lab);
    let Some(reader) = reader else {
        return Err(gone.unwrap_or_else(|| {
            Failure::inconclusive(
                format!("there is no topic {} to read", lab.topic),
                "check --topic, --bootstrap and --dir; or begin: outbox-lab reset, write 5, publish 5",
            )
        }));
    };
    let ending = reader.read(|record| out.many(&Line::Record(&record)))?;
    out.flush()?;
    if let Some(gone) = gone {
        return Err(gone);
    }
    whole(&ending)?;
    Ok(Exit::Done)
}
