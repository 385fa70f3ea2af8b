//! Kafka: publish an event and await its acknowledgement, read a topic to its end, make and delete topics.
//! It knows nothing of the database; that gap is the lesson.

pub mod embedded;
mod read;
mod serve;
mod topic;

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Header, Message, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer, ProducerContext, ThreadedProducer};
use rdkafka::statistics::Statistics;
use rdkafka::types::RDKafkaConfRes;

use self::embedded::Embedded;
pub use self::read::{Ending, Reader};
pub use self::serve::serve;
pub use self::topic::delete_made;
use crate::event::{Event, ID_HEADER, Incarnation, Position};
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

    /// A fresh topic whose offsets start at 0, and how many other topics went with the old one: on the embedded broker
    /// those are the other topics of the lab directory. `before` runs when it is certain that the topic may be replaced, and
    /// before anything is.
    ///
    /// # Errors
    /// The topic is not this lab directory's own; then nothing is deleted. Or the broker does not do it.
    pub fn fresh_topic(&self, lab: &Lab, before: impl FnOnce() -> Result<()>) -> Result<(Incarnation, usize)> {
        match self {
            Self::Embedded(broker) => {
                before()?;
                let (broker, topics_gone) = broker.fresh(&lab.topic)?;
                Ok((broker.incarnation(&lab.topic), topics_gone))
            }
            Self::Kafka(servers) => Ok((topic::fresh(lab, servers, before)?, 0)),
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

/// The settings that every client of the lab has, those of this kind of client, and the user's `-X` on top.
fn client_config(lab: &Lab, servers: &str, of_this_kind: &[(&str, &str)]) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set_log_level(RDKafkaLogLevel::Info);
    config
        .set("bootstrap.servers", servers)
        .set("client.id", "outbox-lab")
        // Connect at once to every broker: waiting for the first need now and then costs 100 ms.
        .set("enable.sparse.connections", "false");
    for (key, value) in of_this_kind {
        config.set(*key, *value);
    }
    for (key, value) in &lab.properties {
        config.set(key, value);
    }
    config
}

/// Looks at the `-X` options by themselves, so that a mistyped one is refused by every command, and not by those
/// alone that happen to need a Kafka client.
///
/// # Errors
/// librdkafka has no such property, or does not take the value.
pub fn check_properties(lab: &Lab) -> Result<()> {
    let config: ClientConfig = lab.properties.iter().cloned().collect();
    config.create_native_config().map(|_| ()).map_err(not_taken)
}

fn create<C, T>(config: &ClientConfig, context: C) -> Result<T>
where
    C: ClientContext,
    T: FromClientConfigAndContext<C>,
{
    T::from_config_and_context(config, context).map_err(not_taken)
}

/// What librdkafka does not take, in words.
fn not_taken(error: KafkaError) -> anyhow::Error {
    match error {
        KafkaError::ClientConfig(_, reason, key, value) if reason.contains("OpenSSL not available") => Failure::failed(
            format!("{key}={value} needs TLS, and this build has none"),
            "build one with it (OpenSSL's headers are needed), and use target/tls/release/outbox-lab: \
             cargo build --release --locked --features tls --target-dir target/tls",
        ),
        KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, _, key, _) => Failure::usage(
            format!("librdkafka has no property \"{key}\""),
            "look for its name in librdkafka's CONFIGURATION.md; the lab's own are set without -X",
        ),
        KafkaError::ClientConfig(_, reason, key, value) => {
            Failure::usage(format!("librdkafka does not take {key}={value}: {reason}"), "correct the -X option")
        }
        KafkaError::ClientCreation(reason) => Failure::usage(
            format!("librdkafka does not take these settings together: {reason}"),
            "correct the -X options",
        ),
        error => Failure::failed(format!("the Kafka client cannot be made ({error})"), "look at the -X options"),
    }
}

/// What the client says on the side: a complaint, and whether a produce request is on the wire.
#[derive(Default)]
struct Reports {
    complaint: Mutex<Option<String>>,
    /// Sends that have had their outcome.
    settled: AtomicI64,
    announced: AtomicI64,
    on_wire: Option<fn()>,
}

impl Reports {
    /// The complaint, to be put behind an error: a reason that the error itself does not give.
    fn complaint(&self) -> String {
        let complaint = self.complaint.lock().unwrap_or_else(PoisonError::into_inner);
        complaint.as_deref().map(|reason| format!(" ({reason})")).unwrap_or_default()
    }
}

impl ClientContext for Reports {
    /// A connection that breaks in its handshake (TLS spoken to a plain port, or the other way round) is told of here
    /// only. Where there is a proper error, that says more.
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        if facility == "FAIL" || matches!(level, RDKafkaLogLevel::Error | RDKafkaLogLevel::Critical) {
            self.complaint.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(message.to_owned());
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // "All brokers down" follows the reason why, and says less.
        if error.rdkafka_error_code() != Some(RDKafkaErrorCode::AllBrokersDown) {
            *self.complaint.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason.to_owned());
        }
    }

    /// A produce request is counted when its last byte has gone to the socket. A process that is held at *sent* has one
    /// record in flight (the relay sends one at a time), so more requests than outcomes means: one is on the wire.
    fn stats(&self, statistics: Statistics) {
        let Some(on_wire) = self.on_wire else { return };
        let sent: i64 = statistics.brokers.values().filter_map(|broker| broker.req.get("Produce")).sum();
        let waiting = statistics.brokers.values().any(|broker| broker.waitresp_cnt > 0);
        let settled = self.settled.load(Ordering::SeqCst);
        if waiting && sent > settled && self.announced.swap(sent, Ordering::SeqCst) < sent {
            on_wire();
        }
    }
}

/// The outcome of a send.
type Delivery = Result<Position, KafkaError>;

impl ProducerContext for Reports {
    type DeliveryOpaque = Box<SyncSender<Delivery>>;

    fn delivery(&self, result: &DeliveryResult<'_>, ack: Self::DeliveryOpaque) {
        let delivery = match result {
            // Without an offset nobody has acknowledged anything.
            Ok(message) if message.offset() < 0 => Err(KafkaError::Canceled),
            Ok(message) => Ok(Position { partition: message.partition(), offset: message.offset() }),
            Err((error, _)) => Err(error.clone()),
        };
        self.settled.fetch_add(1, Ordering::SeqCst);
        // The receiver is gone when the send was given up as in doubt.
        let _ = ack.send(delivery);
    }
}

/// Why an event has no acknowledgement.
#[derive(Debug)]
pub enum SendError {
    /// It is certain that the record is not in the topic.
    Refused(String),
    /// Nothing is certain: the record may be in the topic, or arrive yet.
    InDoubt(String),
}

/// Sends events, one at a time.
pub struct Publisher {
    /// Never dropped: joining the client's threads takes 100 ms, and the process ends anyway.
    producer: ManuallyDrop<ThreadedProducer<Reports>>,
    topic: String,
    incarnation: Incarnation,
}

impl Publisher {
    /// Connects to the lab's broker and sees to it that the topic is there, with one partition if the lab has
    /// to make it. `on_wire` is called from a thread of the client when a produce request has gone out and
    /// its answer has not come.
    ///
    /// # Errors
    /// No broker answers, a setting is refused, or the topic cannot be made.
    pub fn connect(lab: &Lab, on_wire: Option<fn()>) -> Result<Self> {
        let cluster = Cluster::ensure(lab)?;
        let incarnation = match &cluster {
            Cluster::Embedded(broker) => {
                broker.ensure_topic(&lab.topic)?;
                broker.incarnation(&lab.topic)
            }
            Cluster::Kafka(servers) => topic::ensure(lab, servers)?,
        };
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
        let reports = Reports { on_wire, ..Reports::default() };
        let config = client_config(lab, cluster.servers(), &settings);
        let producer = ManuallyDrop::new(create::<_, ThreadedProducer<_>>(&config, reports)?);
        if let Err(error) = producer.client().fetch_metadata(Some(&lab.topic), ANSWER_TIMEOUT) {
            return Err(no_answer(cluster.servers(), &error, producer.client().context()));
        }
        Ok(Self { producer, topic: lab.topic.clone(), incarnation })
    }

    /// The topic that this publisher sends to.
    pub fn incarnation(&self) -> &Incarnation {
        &self.incarnation
    }

    /// Hands an event to the client. It is enqueued, not published: see [`InFlight::acknowledged`].
    ///
    /// # Errors
    /// The client does not take it.
    pub fn send(&self, event: &Event) -> Result<InFlight<'_>, SendError> {
        let (ack, outcome) = sync_channel(1);
        let id = Header { key: ID_HEADER, value: Some(&event.event_id) };
        let record = BaseRecord::with_opaque_to(&self.topic, Box::new(ack))
            .key(&event.event_id)
            .payload(&event.payload)
            .headers(OwnedHeaders::new().insert(id));
        match self.producer.send(record) {
            Ok(()) => Ok(InFlight { publisher: self, outcome }),
            Err((error, _)) => Err(SendError::Refused(self.why(&error))),
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
            Ok(Err(error)) if !in_doubt(&error) => Err(SendError::Refused(self.publisher.why(&error))),
            Ok(Err(error)) => Err(SendError::InDoubt(self.publisher.why(&error))),
            Err(_) => Err(SendError::InDoubt("no acknowledgement within 10 s".to_owned())),
        }
    }
}

/// Can the record have arrived although the client reports an error? Only an answer of the broker, or a
/// refusal in the client's own memory, is certain.
fn in_doubt(error: &KafkaError) -> bool {
    use RDKafkaErrorCode as Code;
    let certain = [
        Code::MessageSizeTooLarge,
        Code::InvalidMessage,
        Code::InvalidRecord,
        Code::UnknownTopic,
        Code::UnknownPartition,
        Code::UnknownTopicOrPartition,
        Code::TopicAuthorizationFailed,
        Code::ClusterAuthorizationFailed,
        Code::Authentication,
        Code::PolicyViolation,
        Code::InvalidTopic,
        Code::QueueFull,
    ];
    !error.rdkafka_error_code().is_some_and(|code| certain.contains(&code))
}

/// librdkafka's own words for an error: of "BrokerTransportFailure (Local: Broker transport failure)" the inner ones.
fn reason(error: &KafkaError) -> String {
    let text = error.rdkafka_error_code().map_or_else(|| error.to_string(), |code| code.to_string());
    let inner = text.split_once(" (").and_then(|(_, words)| words.strip_suffix(')'));
    inner.map_or_else(|| text.clone(), ToOwned::to_owned)
}

/// A broker that does not answer, with what its client has to say about it.
fn no_answer(servers: &str, error: &KafkaError, reports: &Reports) -> anyhow::Error {
    no_answer_but(servers, &(reason(error) + &reports.complaint()))
}

fn no_answer_but(servers: &str, why: &str) -> anyhow::Error {
    Failure::failed(
        format!("no Kafka answers at {servers}: {why}"),
        "see that the broker is up (outbox-lab broker status; scripts/kafka.sh status), and check --bootstrap; without \
         KAFKA_BOOTSTRAP the lab takes the embedded broker",
    )
}
