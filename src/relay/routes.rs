//! Where a row's record goes, and what it is keyed by.

use anyhow::Result;
use clap::ValueEnum;

use super::{Relay, bind};
use crate::broker::{InvalidTopic, Pipeline};
use crate::event::{Key, Outgoing};
use crate::failure::Failure;
use crate::lab::{Lab, is_topic_name};
use crate::output::hint;
use crate::store::Pending;

/// What a record looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Envelope {
    /// The book's: in the lab's topic
    Book,
    /// That of Debezium's outbox event router: keyed by the aggregate id, in the topic outbox.event.AGGREGATE_TYPE
    Debezium,
}

/// The prefix of the topics that Debezium's outbox event router sends to by default (`route.topic.replacement`,
/// `outbox.event.${routedByValue}`).
const DEBEZIUM_PREFIX: &str = "outbox.event.";

/// The topics that were seen so far.
pub struct Routes {
    envelope: Envelope,
    by_aggregate: bool,
    /// `(aggregate type, topic)`; under the book's envelope the lab's topic is that of every type.
    known: Vec<(String, String)>,
    topic: String,
    is_topic_known: bool,
}

impl Routes {
    /// None is known yet.
    pub fn new(lab: &Lab, envelope: Envelope, key: Key) -> Self {
        let by_aggregate = key == Key::Aggregate || envelope == Envelope::Debezium;
        Self { envelope, by_aggregate, known: Vec::new(), topic: lab.topic.clone(), is_topic_known: false }
    }

    /// Do the rows of an aggregate share a key?
    pub fn keeps_aggregates_together(&self) -> bool {
        self.by_aggregate
    }

    /// The topic of a row, if it was seen to be there.
    pub fn known(&self, row: &Pending) -> Option<&str> {
        match self.envelope {
            Envelope::Book => self.is_topic_known.then_some(self.topic.as_str()),
            Envelope::Debezium => {
                let known = self.known.iter().find(|(aggregate_type, _)| aggregate_type == row.aggregate_type);
                known.map(|(_, topic)| topic.as_str())
            }
        }
    }

    /// The topic that a row is to go to.
    ///
    /// # Errors
    /// No topic can have that name.
    pub fn topic(&self, row: &Pending) -> Result<String, String> {
        let topic = match self.envelope {
            Envelope::Book => self.topic.clone(),
            Envelope::Debezium => format!("{DEBEZIUM_PREFIX}{}", row.aggregate_type),
        };
        if is_topic_name(&topic) { Ok(topic) } else { Err(format!("no topic can be named \"{topic}\"")) }
    }

    /// The topic of this row is there.
    pub fn learn(&mut self, row: &Pending, topic: String) {
        match self.envelope {
            Envelope::Book => self.is_topic_known = true,
            Envelope::Debezium => self.known.push((row.aggregate_type.to_owned(), topic)),
        }
    }

    /// The record of a row.
    pub fn record<'a>(&self, row: &Pending<'a>, topic: &'a str) -> Outgoing<'a> {
        let key = if self.by_aggregate { row.aggregate_id } else { row.event_id };
        Outgoing { topic, key, event_id: row.event_id, payload: row.payload }
    }
}

/// Why a row has no topic to go to.
pub(super) enum NoTopic {
    /// None can have that name.
    Never(String),
    /// The broker does not answer, or does not make it.
    NotNow(String),
}

impl Relay<'_, '_> {
    /// The topic of a row, made if it is not there; the inner error says why there is none.
    pub(super) fn topic_of(&mut self, row: &Pending, pipeline: &Pipeline) -> Result<Result<String, NoTopic>> {
        if let Some(topic) = self.routes.known(row) {
            return Ok(Ok(topic.to_owned()));
        }
        let topic = match self.routes.topic(row) {
            Ok(topic) => topic,
            Err(why) => return Ok(Err(NoTopic::Never(why))),
        };
        let (incarnation, partitions) = match pipeline.ensure_topic(&Lab { topic: topic.clone(), ..self.lab.clone() }) {
            Ok(found) => found,
            Err(error) => {
                let is_invalid = error.is::<InvalidTopic>();
                let why = Failure::from(error).what();
                return Ok(Err(if is_invalid { NoTopic::Never(why) } else { NoTopic::NotNow(why) }));
            }
        };
        if partitions > 1 && !self.routes.keeps_aggregates_together() {
            hint(&format!(
                "{topic} has {partitions} partitions: keyed by event id, the events of one loan lie in several, in no order \
                 among them; --key aggregate keeps them together"
            ));
        }
        if !self.is_bound {
            bind(&mut self.store, &incarnation)?;
            self.is_bound = true;
        }
        self.routes.learn(row, topic.clone());
        Ok(Ok(topic))
    }
}
