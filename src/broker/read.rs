//! Reads a topic to its end: partition by partition, in offset order, up to the high watermarks that were
//! there when the reading began.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use super::client::{Parting, Reports, client_config, create, no_answer, reason};
use super::{ANSWER_TIMEOUT, Cluster, topic};
use crate::event::{Incarnation, Position, Record};
use crate::failure::Failure;
use crate::lab::Lab;

/// How long the marker of a transaction that was ended is waited for.
const MARKER_PATIENCE: Duration = Duration::from_secs(3);

/// A reading that brings nothing for so long has ended short.
const SILENCE: Duration = Duration::from_secs(10);

impl ConsumerContext for Reports {}

/// How a reading ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Every record up to the high watermarks was read.
    Whole,
    /// The broker has dropped the oldest records of a partition: its log begins above 0.
    Truncated { partition: i32, first: i64 },
    /// The records stopped coming before the end; `why` is what the client has to say about it.
    Short { partition: i32, read_to: i64, end: i64, why: String },
}

pub(super) type PartingConsumer = Parting<BaseConsumer<Reports>>;

/// A topic that exists, ready to be read.
pub struct Reader {
    consumer: PartingConsumer,
    config: ClientConfig,
    topic: String,
    partitions: Vec<i32>,
    incarnation: Incarnation,
}

impl Reader {
    /// Finds the lab's topic; `None` where there is no such topic, or no embedded broker that could have one.
    /// It starts no broker and makes no topic.
    ///
    /// # Errors
    /// No Kafka answers, or a setting is refused.
    pub fn find(lab: &Lab) -> Result<Option<Self>> {
        let Some(cluster) = Cluster::find(lab)? else { return Ok(None) };
        // A group for each topic: offsets that were committed for one say nothing of another.
        let group = format!("outbox-lab.{}", lab.topic);
        let mut settings = vec![
            // The client does not assign without a group's name. Only `apply` commits under it, by hand.
            ("group.id", group.as_str()),
            ("enable.auto.commit", "false"),
            // The default would jump over a truncated log to its end and read it as empty.
            ("auto.offset.reset", "error"),
            // The end of a partition is its high watermark; only where the last offsets hold no record (a
            // transaction's) is this event the way out.
            ("enable.partition.eof", "true"),
        ];
        if cluster.is_embedded() {
            settings.push(("fetch.error.backoff.ms", "1"));
        }
        let config = client_config(lab, cluster.servers(), &settings);
        let consumer = connect(&config)?;
        // Asked for by name: a consumer's metadata request makes no topic, unlike a producer's.
        let metadata = consumer.fetch_metadata(Some(&lab.topic), ANSWER_TIMEOUT).map_err(|error| {
            hear_out(&consumer);
            no_answer(cluster.servers(), &error, consumer.context())
        })?;
        let partitions: Vec<i32> = metadata
            .topics()
            .iter()
            .filter(|found| found.name() == lab.topic)
            .flat_map(|found| found.partitions().iter().map(|partition| partition.id()))
            .collect();
        if partitions.is_empty() {
            return Ok(None);
        }
        let incarnation = match &cluster {
            Cluster::Embedded(broker) => broker.incarnation(&lab.topic),
            Cluster::Kafka(servers) => topic::incarnation(lab, servers)?,
        };
        Ok(Some(Self { consumer, config, topic: lab.topic.clone(), partitions, incarnation }))
    }

    /// The topic that is read.
    pub fn incarnation(&self) -> &Incarnation {
        &self.incarnation
    }

    /// Reads everything and hands over each record. What lies behind a truncated beginning is handed over,
    /// too; the ending says that it is not all.
    ///
    /// # Errors
    /// The broker stops answering, or `each` fails.
    pub fn read(&self, each: impl FnMut(Record) -> Result<()>) -> Result<Ending> {
        self.read_behind(&TopicPartitionList::new(), each)
    }

    /// As [`Reader::read`], from where the group has left off.
    ///
    /// # Errors
    /// As [`Reader::read`].
    pub fn read_on(&self, each: impl FnMut(Record) -> Result<()>) -> Result<Ending> {
        let mut partitions = TopicPartitionList::new();
        for &partition in &self.partitions {
            partitions.add_partition(&self.topic, partition);
        }
        let committed =
            self.consumer.committed_offsets(partitions, ANSWER_TIMEOUT).map_err(|error| self.silent(&error))?;
        self.read_behind(&committed, each)
    }

    /// Commits to the group that everything up to and with this position is done, and waits until the broker has it.
    ///
    /// # Errors
    /// The broker does not take it.
    pub fn commit(&self, done: Position) -> Result<()> {
        let mut offsets = TopicPartitionList::new();
        offsets.add_partition_offset(&self.topic, done.partition, Offset::Offset(done.offset + 1))?;
        self.consumer.commit(&offsets, CommitMode::Sync).map_err(|error| {
            Failure::failed(
                format!(
                    "offset {} of partition {} could not be committed: {}",
                    done.offset + 1,
                    done.partition,
                    reason(&error)
                ),
                "see that the broker is up and type the command again: the record is delivered once more",
            )
        })
    }

    /// Reads what lies behind these offsets; a partition that has none is read from its beginning.
    fn read_behind(&self, done: &TopicPartitionList, mut each: impl FnMut(Record) -> Result<()>) -> Result<Ending> {
        let mut ending = Ending::Whole;
        let ends = self.ends()?;
        // All before the first fetch: the embedded broker answers nothing on a connection while an empty fetch waits on it.
        let ranges = self.partitions.iter().zip(&ends).map(|(&partition, &end)| self.stable_range(partition, end));
        let ranges: Vec<(i64, i64)> = ranges.collect::<Result<_>>()?;
        for (nth, ((&partition, &end), &(first, stable))) in self.partitions.iter().zip(&ends).zip(&ranges).enumerate()
        {
            if first > 0 && ending == Ending::Whole {
                ending = Ending::Truncated { partition, first };
            }
            // A consumer that is assigned another partition stalls for a second: a new one takes some milliseconds.
            let another = if nth == 0 { None } else { Some(connect(&self.config)?) };
            let consumer = another.as_ref().unwrap_or(&self.consumer);
            let done = done.find_partition(&self.topic, partition).map(|done| done.offset());
            let from = if let Some(Offset::Offset(next)) = done { next.max(first) } else { first };
            let read_to = read_partition(consumer, &self.topic, partition, from, stable, &mut each)?;
            if read_to < end {
                hear_out(consumer);
                let why = match consumer.context().complaint() {
                    none if none.is_empty() && stable < end => {
                        " (a Kafka transaction that is still open holds back the rest)".to_owned()
                    }
                    complaint => complaint,
                };
                return Ok(Ending::Short { partition, read_to, end, why });
            }
        }
        Ok(ending)
    }

    /// The high watermarks. A consumer of committed records is told of the end of those instead, which an open transaction
    /// holds back: so they are asked for by one that takes all.
    fn ends(&self) -> Result<Vec<i64>> {
        if self.incarnation.cluster.is_none() {
            // The embedded broker knows no transaction that is open.
            let end = |&partition| self.consumer.fetch_watermarks(&self.topic, partition, ANSWER_TIMEOUT);
            return self
                .partitions
                .iter()
                .map(|p| end(p).map(|(_, end)| end).map_err(|error| self.silent(&error)))
                .collect();
        }
        let mut config = self.config.clone();
        config.set("isolation.level", "read_uncommitted");
        let all = connect(&config)?;
        let end = |&partition| match all.fetch_watermarks(&self.topic, partition, ANSWER_TIMEOUT) {
            Ok((_, end)) => Ok(end),
            Err(error) => {
                hear_out(&all);
                Err(no_answer(&format!("the {}", self.incarnation), &error, all.context()))
            }
        };
        self.partitions.iter().map(end).collect()
    }

    /// The first offset, and the end of what is committed: an open transaction holds it back from `end`. One that has just
    /// been ended does so for a moment more, until the broker has written its marker.
    fn stable_range(&self, partition: i32, end: i64) -> Result<(i64, i64)> {
        let deadline = Instant::now() + MARKER_PATIENCE;
        loop {
            let range = self.consumer.fetch_watermarks(&self.topic, partition, ANSWER_TIMEOUT);
            let (first, stable) = range.map_err(|error| self.silent(&error))?;
            if stable >= end || Instant::now() > deadline {
                return Ok((first, stable));
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn silent(&self, error: &KafkaError) -> anyhow::Error {
        hear_out(&self.consumer);
        no_answer(&format!("the {}", self.incarnation), error, self.consumer.context())
    }
}

/// Reads the offsets `first..end`, and returns the offset that would come next.
pub(super) fn read_partition(
    consumer: &BaseConsumer<Reports>,
    topic: &str,
    partition: i32,
    first: i64,
    end: i64,
    each: &mut impl FnMut(Record) -> Result<()>,
) -> Result<i64> {
    if first >= end {
        return Ok(end.max(first));
    }
    let mut assignment = TopicPartitionList::new();
    // By number: `Offset::Beginning` costs a look-up of half a second.
    assignment.add_partition_offset(topic, partition, Offset::Offset(first))?;
    consumer.assign(&assignment)?;
    let mut next = first;
    let mut deadline = Instant::now() + SILENCE;
    while next < end {
        match consumer.poll(Duration::from_millis(100)) {
            Some(Ok(message)) if message.topic() == topic && message.partition() == partition => {
                // Another process may be sending: what came after the beginning is not ours to read.
                if message.offset() < end {
                    next = message.offset() + 1;
                    each(record(&message))?;
                    deadline = Instant::now() + SILENCE;
                } else {
                    next = end;
                }
            }
            Some(Err(KafkaError::PartitionEOF(at))) if at == partition => next = end,
            Some(Err(error)) if error.rdkafka_error_code() == Some(RDKafkaErrorCode::AutoOffsetReset) => break,
            // Anything else passes, or the silence ends the reading.
            Some(_) | None => {}
        }
        if Instant::now() > deadline {
            break;
        }
    }
    Ok(next)
}

pub(super) fn connect(config: &ClientConfig) -> Result<PartingConsumer> {
    Ok(Parting::new(create(config, Reports::default())?))
}

/// What the client has to complain about waits in its queue, and comes out only by polling.
pub(super) fn hear_out(consumer: &BaseConsumer<Reports>) {
    let deadline = Instant::now() + Duration::from_millis(200);
    while consumer.poll(Duration::from_millis(50)).is_some() && Instant::now() < deadline {}
}

fn record(message: &BorrowedMessage<'_>) -> Record {
    let headers = message.headers().map(|headers| {
        headers.iter().map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec))).collect()
    });
    Record {
        at: Position { partition: message.partition(), offset: message.offset() },
        key: message.key().map(<[u8]>::to_vec),
        headers: headers.unwrap_or_default(),
        payload: message.payload().map(<[u8]>::to_vec),
    }
}
