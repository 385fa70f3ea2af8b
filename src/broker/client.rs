//! What every Kafka client of the lab has: its settings, an end that nobody waits for, and what it says on the side, put
//! into words.

use std::ops::Deref;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::Result;
use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Header, Message, OwnedHeaders};
use rdkafka::producer::{BaseRecord, ProducerContext};
use rdkafka::statistics::Statistics;
use rdkafka::types::RDKafkaConfRes;
use rdkafka::util::IntoOpaque;

use crate::event::{ID_HEADER, Outgoing, Position};
use crate::failure::Failure;
use crate::lab::Lab;

/// A client that is dropped in a thread of its own: joining its threads takes 100 ms, which no command waits for. One that
/// ends takes the thread with it; one that goes on (a sweep) keeps no client that it no longer needs.
pub(super) struct Parting<T: Send + 'static>(Option<T>);

impl<T: Send> Parting<T> {
    pub(super) fn new(client: T) -> Self {
        Self(Some(client))
    }
}

impl<T: Send> Deref for Parting<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.0 {
            Some(client) => client,
            None => unreachable!("it is taken only when it is dropped"),
        }
    }
}

impl<T: Send> Drop for Parting<T> {
    fn drop(&mut self) {
        let client = self.0.take();
        thread::spawn(move || drop(client));
    }
}

/// The settings that every client of the lab has, those of this kind of client, and the user's `-X` on top.
pub(super) fn client_config(lab: &Lab, servers: &str, of_this_kind: &[(&str, &str)]) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set_log_level(RDKafkaLogLevel::Info);
    config
        .set("bootstrap.servers", servers)
        .set("client.id", "outbox-lab")
        // A broker that asks for a client's metrics gets none: each lab process would begin with that, and lives too short a life.
        .set("enable.metrics.push", "false")
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
    if lab.properties.is_empty() {
        return Ok(());
    }
    let config: ClientConfig = lab.properties.iter().cloned().collect();
    config.create_native_config().map(|_| ()).map_err(not_taken)
}

pub(super) fn create<C, T>(config: &ClientConfig, context: C) -> Result<T>
where
    C: ClientContext,
    T: FromClientConfigAndContext<C>,
{
    T::from_config_and_context(config, context).map_err(not_taken)
}

/// What librdkafka does not take, in words.
pub(super) fn not_taken(error: KafkaError) -> anyhow::Error {
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

/// What is seen of a produce request, from a thread of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnWire {
    /// It has gone out, and its answer has not come.
    Out,
    /// Its answer has not come in the client's own time; the client will send the record again by itself.
    TimedOut,
    /// The client has sent a record again by itself.
    Again,
}

/// What the client says on the side: a complaint, and what is seen of the produce requests.
#[derive(Default)]
pub(super) struct Reports {
    complaint: Mutex<Option<String>>,
    /// Records handed to the client.
    pub(super) handed: AtomicI64,
    /// Sends that have had their outcome.
    settled: AtomicI64,
    announced: AtomicI64,
    announced_again: AtomicI64,
    timed_out: AtomicU64,
    on_wire: Option<fn(OnWire)>,
}

impl Reports {
    /// One that tells of produce requests on the wire, if anybody wants to know.
    pub(super) fn telling(on_wire: Option<fn(OnWire)>) -> Self {
        Self { on_wire, ..Self::default() }
    }

    /// The complaint, to be put behind an error: a reason that the error itself does not give.
    pub(super) fn complaint(&self) -> String {
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
        if waiting && sent > settled && self.announced.fetch_max(sent, Ordering::SeqCst) < sent {
            on_wire(OnWire::Out);
        }
        let timed_out = statistics.brokers.values().map(|broker| broker.req_timeouts).sum();
        if settled < self.handed.load(Ordering::SeqCst)
            && self.timed_out.fetch_max(timed_out, Ordering::SeqCst) < timed_out
        {
            on_wire(OnWire::TimedOut);
        }
        // Each record has a request of its own.
        let again = sent - self.handed.load(Ordering::SeqCst);
        if self.announced_again.fetch_max(again, Ordering::SeqCst) < again {
            on_wire(OnWire::Again);
        }
    }
}

/// A record as it is handed to the client: under its key, with its event id in the header `id`.
pub(super) fn base_record<'a, O: IntoOpaque>(record: &Outgoing<'a>, opaque: O) -> BaseRecord<'a, str, [u8], O> {
    let id = Header { key: ID_HEADER, value: Some(record.event_id) };
    let headers = OwnedHeaders::new_with_capacity(1).insert(id);
    let mut message = BaseRecord::with_opaque_to(record.topic, opaque).key(record.key).headers(headers);
    // Without one it is a tombstone.
    message.payload = record.payload;
    message
}

/// The outcome of a send.
pub(super) type Delivery = Result<Position, KafkaError>;

/// What a delivery report comes to. Without an offset nobody has acknowledged anything.
pub(super) fn delivery(report: &DeliveryResult<'_>) -> Delivery {
    match report {
        Ok(message) if message.offset() < 0 => Err(KafkaError::Canceled),
        Ok(message) => Ok(Position { partition: message.partition(), offset: message.offset() }),
        Err((error, _)) => Err(error.clone()),
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = Box<SyncSender<Delivery>>;

    fn delivery(&self, result: &DeliveryResult<'_>, ack: Self::DeliveryOpaque) {
        self.settled.fetch_add(1, Ordering::SeqCst);
        // The receiver is gone when the send was given up as in doubt.
        let _ = ack.send(delivery(result));
    }
}

/// librdkafka's own words for an error: of "BrokerTransportFailure (Local: Broker transport failure)" the inner ones.
pub(super) fn reason(error: &KafkaError) -> String {
    let text = error.rdkafka_error_code().map_or_else(|| error.to_string(), |code| code.to_string());
    let inner = text.split_once(" (").and_then(|(_, words)| words.strip_suffix(')'));
    inner.map_or_else(|| text.clone(), ToOwned::to_owned)
}

/// A broker that does not answer, with what its client has to say about it.
pub(super) fn no_answer(servers: &str, error: &KafkaError, reports: &Reports) -> anyhow::Error {
    no_answer_but(servers, &(reason(error) + &reports.complaint()))
}

pub(super) fn no_answer_but(servers: &str, why: &str) -> anyhow::Error {
    Failure::failed(
        format!("no Kafka answers at {servers}: {why}"),
        "see that the broker is up (outbox-lab broker status; scripts/kafka.sh status), and check --bootstrap; without \
         KAFKA_BOOTSTRAP the lab takes the embedded broker",
    )
}
