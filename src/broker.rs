//! Kafka: publish an event and await its acknowledgement, read a topic to its end, make and delete topics.
//! It knows nothing of the database; that gap is the lesson.

pub mod embedded;
mod read;
mod serve;
mod topic;

use std::fmt;
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
pub use self::topic::{delete_topic, fresh_topic, made_topics};
use crate::event::{Event, ID_HEADER, Position};
use crate::failure::Failure;
use crate::lab::Lab;

/// How long a send is waited for before it is in doubt, as in the book (`get(10, TimeUnit.SECONDS)`).
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a broker has to answer before it counts as not there.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// One topic between one making and the next: what a database notes about where its events went. The same
/// name on another cluster, or made anew, is another incarnation, and holds none of the old records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incarnation(String);

impl Incarnation {
    fn embedded(generation: &str, topic: &str) -> Self {
        Self(format!("topic {topic} of the embedded broker {generation}"))
    }

    fn kafka(cluster: &str, topic: &str, made: Option<&str>) -> Self {
        match made {
            Some(made) => Self(format!("topic {topic} made at {made} in the Kafka cluster {cluster}")),
            None => Self(format!("topic {topic} in the Kafka cluster {cluster}")),
        }
    }

    /// As it is noted.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
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

/// Where the lab's Kafka is: the real one, or else the embedded broker.
fn servers<'a>(lab: &'a Lab, embedded: Option<&'a Embedded>) -> &'a str {
    lab.kafka.as_deref().or(embedded.map(|broker| broker.bootstrap.as_str())).unwrap_or_default()
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
            "build it with TLS: cargo build --release --locked --features tls (it needs OpenSSL's headers)",
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

/// What the client says on the side: its last complaint, and whether a produce request is on the wire.
#[derive(Default)]
struct Reports {
    complaint: Mutex<Option<String>>,
    acknowledged: AtomicI64,
    announced: AtomicI64,
    on_wire: Option<fn()>,
}

impl Reports {
    /// The last complaint, to be put behind an error: a reason that the error itself does not give.
    fn complaint(&self) -> String {
        let complaint = self.complaint.lock().unwrap_or_else(PoisonError::into_inner);
        complaint.as_deref().map(|reason| format!(" ({reason})")).unwrap_or_default()
    }
}

impl ClientContext for Reports {
    /// A connection that breaks in its handshake (TLS spoken to a plain port, or the other way round) is told of here
    /// only.
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

    /// A produce request is counted when its last byte has gone to the socket. The lab has one record in a
    /// request and one request in flight, so more requests than acknowledgements means: one is on the wire.
    fn stats(&self, statistics: Statistics) {
        let Some(on_wire) = self.on_wire else { return };
        let sent: i64 = statistics.brokers.values().filter_map(|broker| broker.req.get("Produce")).sum();
        let waiting = statistics.brokers.values().any(|broker| broker.waitresp_cnt > 0);
        let acknowledged = self.acknowledged.load(Ordering::SeqCst);
        if waiting && sent > acknowledged && self.announced.swap(sent, Ordering::SeqCst) < sent {
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
            Ok(message) => Ok(Position { partition: message.partition(), offset: message.offset() }),
            Err((error, _)) => Err(error.clone()),
        };
        self.acknowledged.fetch_add(1, Ordering::SeqCst);
        // The receiver is gone when the send was given up as in doubt.
        let _ = ack.send(delivery);
    }
}

/// Sends events, one at a time.
pub struct Publisher {
    /// Never dropped: joining the client's threads takes 100 ms, and the process ends anyway.
    producer: ManuallyDrop<ThreadedProducer<Reports>>,
    topic: String,
    incarnation: Incarnation,
    stopped_hint: String,
}

impl Publisher {
    /// Connects to the lab's broker and sees to it that the topic is there, with one partition if the lab has
    /// to make it. `on_wire` is called from a thread of the client when a produce request has gone out and
    /// its answer has not come.
    ///
    /// # Errors
    /// No broker answers, a setting is refused, or the topic cannot be made.
    pub fn connect(lab: &Lab, on_wire: Option<fn()>) -> Result<Self> {
        let embedded = match &lab.kafka {
            Some(_) => None,
            None => {
                let broker = embedded::ensure(lab)?;
                broker.ensure_topic(&lab.topic)?;
                Some(broker)
            }
        };
        let servers = servers(lab, embedded.as_ref());
        let send_timeout = SEND_TIMEOUT.as_millis().to_string();
        let mut settings = vec![
            ("acks", "all"),
            ("partitioner", "murmur2_random"),
            ("message.timeout.ms", &send_timeout),
            // One record at a time is waited for, so nothing is gained by lingering.
            ("linger.ms", "0"),
            // The book's Java client is idempotent by default; the embedded broker does not deduplicate.
            ("enable.idempotence", if embedded.is_some() { "false" } else { "true" }),
        ];
        if on_wire.is_some() {
            settings.push(("statistics.interval.ms", "20"));
        }
        let reports = Reports { on_wire, ..Reports::default() };
        let config = client_config(lab, servers, &settings);
        let producer = ManuallyDrop::new(create::<_, ThreadedProducer<_>>(&config, reports)?);
        let (incarnation, stopped_hint) = match &embedded {
            Some(broker) => (
                broker.incarnation(&lab.topic),
                format!("if the embedded broker was stopped: kill -CONT {}; ", broker.pid),
            ),
            None => {
                let complaint = || producer.client().context().complaint();
                (topic::ensure(lab, servers, producer.client(), &complaint)?, String::new())
            }
        };
        Ok(Self { producer, topic: lab.topic.clone(), incarnation, stopped_hint })
    }

    /// The topic that this publisher sends to.
    pub fn incarnation(&self) -> &Incarnation {
        &self.incarnation
    }

    /// Hands an event to the client. It is enqueued, not published: see [`InFlight::acknowledged`].
    ///
    /// # Errors
    /// The client does not take it.
    pub fn send(&self, event: &Event) -> Result<InFlight<'_>> {
        let (ack, outcome) = sync_channel(1);
        let id = Header { key: ID_HEADER, value: Some(&event.event_id) };
        let record = BaseRecord::with_opaque_to(&self.topic, Box::new(ack))
            .key(&event.event_id)
            .payload(&event.payload)
            .headers(OwnedHeaders::new().insert(id));
        match self.producer.send(record) {
            Ok(()) => Ok(InFlight { publisher: self, event_id: event.event_id.clone(), outcome }),
            Err((error, _)) => Err(self.refused(&event.event_id, &error)),
        }
    }

    fn refused(&self, event_id: &str, error: &KafkaError) -> anyhow::Error {
        Failure::failed(
            format!("{event_id} was refused: {}{}", reason(error), self.producer.client().context().complaint()),
            "its row stays as it was; look at the topic and at the -X options, then type the command again",
        )
    }
}

/// An event on its way: handed to the client, outcome unknown.
pub struct InFlight<'a> {
    publisher: &'a Publisher,
    event_id: String,
    outcome: Receiver<Delivery>,
}

impl InFlight<'_> {
    /// Waits for the broker's acknowledgement, 10 s at the most, as in the book.
    ///
    /// # Errors
    /// The broker refused the record; or nothing came, and the record is in doubt: it may be in the topic, or
    /// arrive yet.
    pub fn acknowledged(self) -> Result<Position> {
        match self.outcome.recv_timeout(SEND_TIMEOUT) {
            Ok(Ok(position)) => Ok(position),
            Ok(Err(error)) if !in_doubt(&error) => Err(self.publisher.refused(&self.event_id, &error)),
            Ok(Err(_)) | Err(_) => Err(Failure::failed(
                format!(
                    "{} is in doubt: sent, and no acknowledgement came{}. It may be in the topic, or arrive yet",
                    self.event_id,
                    self.publisher.producer.client().context().complaint()
                ),
                format!(
                    "{}see that the broker is up and type the command again; a pending row stays pending and is sent \
                     again, which can make a duplicate",
                    self.publisher.stopped_hint
                ),
            )),
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
    match text.split_once(" (") {
        Some((_, words)) => words.trim_end_matches(')').to_owned(),
        None => text,
    }
}

fn no_answer(servers: &str, reason: &str) -> anyhow::Error {
    Failure::failed(
        format!("no Kafka answers at {servers}: {reason}"),
        "check --bootstrap and that the broker is up (scripts/kafka.sh status), or leave KAFKA_BOOTSTRAP unset for the \
         embedded broker",
    )
}
