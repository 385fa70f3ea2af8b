//! Looks at topics of one partition, one after the other, over a connection that lasts: for whoever has so many of them that a
//! client for each would cost more than what is done with them.

use anyhow::Result;
use rdkafka::consumer::Consumer;
use rdkafka::error::KafkaError;

use super::client::{client_config, no_answer};
use super::read::{PartingConsumer, connect, hear_out, read_partition};
use super::{ANSWER_TIMEOUT, Cluster};
use crate::event::Record;
use crate::failure::Failure;
use crate::lab::Lab;

/// A client that lasts.
pub struct Watch {
    consumer: PartingConsumer,
}

impl Watch {
    /// Connects to a lab's broker.
    ///
    /// # Errors
    /// A setting is refused.
    pub fn connect(lab: &Lab, cluster: &Cluster) -> Result<Self> {
        let settings = [
            ("group.id", "outbox-lab"),
            ("enable.auto.commit", "false"),
            ("auto.offset.reset", "error"),
            // A fetch that is still under way when a reading is over keeps the next question waiting.
            ("fetch.wait.max.ms", "1"),
            ("fetch.error.backoff.ms", "1"),
        ];
        Ok(Self { consumer: connect(&client_config(lab, cluster.servers(), &settings))? })
    }

    /// The high watermark of a topic that exists.
    ///
    /// # Errors
    /// No Kafka answers.
    pub fn end(&self, topic: &str) -> Result<i64> {
        self.range(topic).map(|(_, end)| end)
    }

    /// Every record of a topic.
    ///
    /// # Errors
    /// Inconclusive: it could not be read from its beginning to its end. Or no Kafka answers.
    pub fn read(&self, topic: &str) -> Result<Vec<Record>> {
        self.has_one_partition(topic)?;
        let (first, end) = self.range(topic)?;
        let mut records = Vec::new();
        let read_to = read_partition(&self.consumer, topic, 0, first, end, &mut |record| {
            records.push(record);
            Ok(())
        })?;
        // Left assigned, it would go on fetching, every millisecond on the embedded broker.
        self.consumer.unassign()?;
        if first > 0 || read_to < end {
            hear_out(&self.consumer);
            return Err(Failure::inconclusive(
                format!(
                    "the topic {topic} was not read whole: from {first} to {read_to} of {end}{}",
                    self.consumer.context().complaint()
                ),
                "see that the broker is up, then play it again",
            ));
        }
        Ok(records)
    }

    /// Asked for by name: a client that is assigned a topic of which it has heard nothing stalls for a second.
    fn has_one_partition(&self, topic: &str) -> Result<()> {
        let metadata = self.consumer.fetch_metadata(Some(topic), ANSWER_TIMEOUT);
        let metadata = metadata.map_err(|error| self.silent(topic, &error))?;
        let partitions: usize = metadata.topics().iter().map(|found| found.partitions().len()).sum();
        anyhow::ensure!(partitions == 1, "the topic {topic} has {partitions} partitions, and should have one");
        Ok(())
    }

    fn range(&self, topic: &str) -> Result<(i64, i64)> {
        self.consumer.fetch_watermarks(topic, 0, ANSWER_TIMEOUT).map_err(|error| self.silent(topic, &error))
    }

    fn silent(&self, topic: &str, error: &KafkaError) -> anyhow::Error {
        no_answer(&format!("the topic {topic}"), error, self.consumer.context())
    }
}
