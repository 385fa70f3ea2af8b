//! Kafka: publish an event and await its acknowledgement, read a topic to its end, make and delete topics.
//! It knows nothing of the database; that gap is the lesson.

mod client;
pub mod embedded;
mod limit;
mod pipeline;
mod read;
mod serve;
mod topic;
mod watch;

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use anyhow::Result;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{Producer, ThreadedProducer};

use self::client::{Delivery, Parting, Reports, base_record, client_config, create, no_answer, reason};
pub use self::client::{OnWire, check_properties};
use self::embedded::Embedded;
pub use self::limit::send_from_memory;
use self::pipeline::is_rejection;
pub use self::pipeline::{Handed, Outcome, Pipeline, send_timeout};
pub use self::read::{Ending, Reader};
pub use self::serve::serve;
pub use self::topic::{InvalidTopic, delete_made};
pub use self::watch::Watch;
use crate::event::{Event, Incarnation, Outgoing, Position};
use crate::failure::Failure;
use crate::lab::Lab;

/// How long a send is waited for before it is in doubt, as in the book (`get(10, TimeUnit.SECONDS)`).
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a broker has to answer before it counts as not there.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The broker of a lab: the embedded one, or a real Kafka. Nothing else asks which it is.
pub enum Cluster {
    /// librdkafka's mock cluster, in a process that the lab started.
    Embedded(Embedded),
    /// A real Kafka, by its bootstrap servers.
    Kafka(String),
}

impl Cluster {
    /// The lab's broker, the embedded one started if it is not running.
    ///
    /// # Errors
    /// The embedded broker does not come up, or does not answer.
    pub fn ensure(lab: &Lab) -> Result<Self> {
        match &lab.kafka {
            Some(servers) => Ok(Self::Kafka(servers.clone())),
            None => embedded::ensure(lab).map(Self::Embedded),
        }
    }

    /// As [`Cluster::ensure`], and [`Cluster::ensure_topic`].
    ///
    /// # Errors
    /// As those.
    pub fn ensure_with_topic(lab: &Lab) -> Result<(Self, Incarnation)> {
        match &lab.kafka {
            Some(servers) => Ok((Self::Kafka(servers.clone()), topic::ensure(lab, servers)?)),
            None => {
                let broker = embedded::ensure_with_topic(lab)?;
                let incarnation = broker.incarnation(&lab.topic);
                Ok((Self::Embedded(broker), incarnation))
            }
        }
    }

    /// The lab's broker; `None` where the embedded one is not running.
    ///
    /// # Errors
    /// The embedded broker does not answer.
    pub fn find(lab: &Lab) -> Result<Option<Self>> {
        match &lab.kafka {
            Some(servers) => Ok(Some(Self::Kafka(servers.clone()))),
            None => Ok(embedded::find(lab)?.map(Self::Embedded)),
        }
    }

    /// Sees to it that the lab's topic is there, made with one partition if it was not.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn ensure_topic(&self, lab: &Lab) -> Result<Incarnation> {
        match self {
            Self::Embedded(broker) => {
                broker.ensure_topic(&lab.topic)?;
                Ok(broker.incarnation(&lab.topic))
            }
            Self::Kafka(servers) => topic::ensure(lab, servers),
        }
    }

    /// A fresh topic whose offsets start at 0, and how many other topics went with the old one: on the embedded broker
    /// those are the other topics of the lab directory. `before` runs when it is certain that the topic may be replaced, and
    /// before anything is.
    ///
    /// # Errors
    /// The topic is not this lab directory's own; then nothing is deleted. Or the broker does not do it.
    pub fn fresh_topic(
        &self,
        lab: &Lab,
        partitions: i32,
        before: impl FnOnce() -> Result<()>,
    ) -> Result<(Incarnation, usize)> {
        match self {
            Self::Embedded(broker) => {
                before()?;
                let (broker, topics_gone) = broker.fresh(&lab.topic, partitions)?;
                Ok((broker.incarnation(&lab.topic), topics_gone))
            }
            Self::Kafka(servers) => Ok((topic::fresh(lab, servers, partitions, before)?, 0)),
        }
    }

    fn servers(&self) -> &str {
        match self {
            Self::Embedded(broker) => &broker.bootstrap,
            Self::Kafka(servers) => servers,
        }
    }

    fn is_embedded(&self) -> bool {
        matches!(self, Self::Embedded(_))
    }
}

/// Why an event has no acknowledgement.
#[derive(Debug)]
pub enum SendError {
    /// It is certain that the record is not in the topic, and the fault is the record's own: it will never be taken.
    Rejected(String),
    /// It is certain that the record is not in the topic.
    Refused(String),
    /// Nothing is certain: the record may be in the topic, or arrive yet.
    InDoubt(String),
}

/// Sends events, one at a time.
pub struct Publisher {
    producer: Parting<ThreadedProducer<Reports>>,
    topic: String,
    incarnation: Incarnation,
}

impl Publisher {
    /// Connects to the lab's broker and sees to it that the topic is there, with one partition if the lab has
    /// to make it. `on_wire` is called from a thread of the client with what is seen of a produce request.
    ///
    /// # Errors
    /// No broker answers, a setting is refused, or the topic cannot be made.
    pub fn connect(lab: &Lab, on_wire: Option<fn(OnWire)>, transactional: bool) -> Result<Self> {
        let (cluster, incarnation) = Cluster::ensure_with_topic(lab)?;
        let send_timeout = SEND_TIMEOUT.as_millis().to_string();
        let mut settings = vec![
            ("acks", "all"),
            ("partitioner", "murmur2_random"),
            ("message.timeout.ms", &send_timeout),
            // One record at a time is waited for, so nothing is gained by lingering.
            ("linger.ms", "0"),
            // The book's Java client is idempotent by default; the embedded broker does not deduplicate.
            ("enable.idempotence", if cluster.is_embedded() { "false" } else { "true" }),
        ];
        if on_wire.is_some() {
            settings.push(("statistics.interval.ms", "20"));
        }
        // Always the same for the same topic: a successor of a killed relay ends its open transaction.
        let transactional_id = format!("outbox-lab.{}", lab.topic);
        if transactional {
            settings.extend([("transactional.id", transactional_id.as_str()), ("enable.idempotence", "true")]);
        }
        let reports = Reports::telling(on_wire);
        let config = client_config(lab, cluster.servers(), &settings);
        let producer = Parting::new(create::<_, ThreadedProducer<_>>(&config, reports)?);
        if let Err(error) = producer.client().fetch_metadata(Some(&lab.topic), ANSWER_TIMEOUT) {
            return Err(no_answer(cluster.servers(), &error, producer.client().context()));
        }
        Ok(Self { producer, topic: lab.topic.clone(), incarnation })
    }

    /// The same client, sending to another topic of its broker, which is there.
    ///
    /// # Errors
    /// No broker answers.
    pub fn turned_to(self, incarnation: Incarnation) -> Result<Self> {
        let topic = incarnation.topic.clone();
        // A client that hears of a topic by its first record holds that back for a while.
        if let Err(error) = self.producer.client().fetch_metadata(Some(&topic), ANSWER_TIMEOUT) {
            return Err(no_answer(&format!("the {incarnation}"), &error, self.producer.client().context()));
        }
        Ok(Self { topic, incarnation, ..self })
    }

    /// The topic that this publisher sends to.
    pub fn incarnation(&self) -> &Incarnation {
        &self.incarnation
    }

    /// Begins a Kafka transaction; what an earlier relay of this topic left open is aborted.
    ///
    /// # Errors
    /// The broker does not take it.
    pub fn begin_transaction(&self) -> Result<()> {
        let begun = self.producer.init_transactions(SEND_TIMEOUT).and_then(|()| self.producer.begin_transaction());
        begun.map_err(|error| self.no_transaction("begun", &error))
    }

    /// Commits it: from here on a reader of committed records sees what was sent.
    ///
    /// # Errors
    /// The broker does not, or does not say so: then the transaction is in doubt.
    pub fn commit_transaction(&self) -> Result<()> {
        self.producer
            .commit_transaction(SEND_TIMEOUT)
            .map_err(|error| self.no_transaction("seen to be committed", &error))
    }

    fn no_transaction(&self, done: &str, error: &KafkaError) -> anyhow::Error {
        Failure::failed(
            format!("the Kafka transaction could not be {done}: {}", self.why(error)),
            "see that the broker is up, then type the command again",
        )
    }

    /// Hands an event to the client, under a key. It is enqueued, not published: see [`InFlight::acknowledged`].
    ///
    /// # Errors
    /// The client does not take it.
    pub fn send(&self, event: &Event, key: &str) -> Result<InFlight<'_>, SendError> {
        self.send_record(&event.outgoing(&self.topic, key))
    }

    /// Hands a record to the client.
    ///
    /// # Errors
    /// The client does not take it.
    pub fn send_record(&self, record: &Outgoing) -> Result<InFlight<'_>, SendError> {
        let (ack, outcome) = sync_channel(1);
        // Before the client has it: from then on its threads may send it.
        let handed = &self.producer.client().context().handed;
        handed.fetch_add(1, Ordering::SeqCst);
        match self.producer.send(base_record(record, Box::new(ack))) {
            Ok(()) => Ok(InFlight { publisher: self, outcome }),
            Err((error, _)) => {
                handed.fetch_sub(1, Ordering::SeqCst);
                Err(match is_rejection(&error) {
                    true => SendError::Rejected(reason(&error)),
                    false => SendError::Refused(self.why(&error)),
                })
            }
        }
    }

    fn why(&self, error: &KafkaError) -> String {
        reason(error) + &self.producer.client().context().complaint()
    }
}

/// An event on its way: handed to the client, outcome unknown.
#[must_use = "a record whose outcome nobody waits for is in doubt"]
pub struct InFlight<'a> {
    publisher: &'a Publisher,
    outcome: Receiver<Delivery>,
}

impl InFlight<'_> {
    /// Waits for the broker's acknowledgement, 10 s at the most, as in the book.
    ///
    /// # Errors
    /// The broker refused the record; or nothing came, and it is in doubt.
    pub fn acknowledged(self) -> Result<Position, SendError> {
        match self.outcome.recv_timeout(SEND_TIMEOUT) {
            Ok(Ok(position)) => Ok(position),
            Ok(Err(error)) if is_rejection(&error) => Err(SendError::Rejected(reason(&error))),
            Ok(Err(error)) if is_refusal(&error) => Err(SendError::Refused(self.publisher.why(&error))),
            Ok(Err(error)) => Err(SendError::InDoubt(self.publisher.why(&error))),
            Err(_) => Err(SendError::InDoubt("no acknowledgement within 10 s".to_owned())),
        }
    }
}

/// Is it certain that the record is not in the topic, though it may be taken another time? Only an answer of the broker, or
/// a refusal in the client's own memory, is certain.
fn is_refusal(error: &KafkaError) -> bool {
    use RDKafkaErrorCode as Code;
    let refusals = [
        Code::ClusterAuthorizationFailed,
        Code::TopicAuthorizationFailed,
        Code::Authentication,
        Code::QueueFull,
        Code::UnknownTopic,
        Code::UnknownTopicOrPartition,
    ];
    error.rdkafka_error_code().is_some_and(|code| refusals.contains(&code))
}
