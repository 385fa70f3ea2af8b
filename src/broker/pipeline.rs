//! Publishing many events at a time: handed over without waiting, and acknowledged batch by batch.
//!
//! Records of one partition arrive in the order in which they were handed over, whatever happens on the way. On a real Kafka
//! the producer is idempotent, and a gap (a batch that the broker rejects) stops it instead of letting later records pass
//! (`enable.gapless.guarantee`). The embedded broker does not watch the sequence, so one request is on its way at a time.
//! No record times out by itself, which would open a gap, too: whoever has waited long enough purges all of them.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{Producer, ProducerContext, PurgeConfig, ThreadedProducer};

use super::client::{Delivery, Parting, Reports, base_record, client_config, create, delivery, no_answer, reason};
use super::{ANSWER_TIMEOUT, Cluster, SEND_TIMEOUT};
use crate::event::{Incarnation, Outgoing};
use crate::failure::Failure;
use crate::lab::Lab;

/// What the order of a pipeline stands on, beside what the whole lab does.
const OWN_PROPERTIES: &[&str] = &[
    "enable.idempotence",
    "enable.gapless.guarantee",
    "max.in.flight",
    "max.in.flight.requests.per.connection",
    "message.send.max.retries",
    "retries",
    "transactional.id",
    "queue.buffering.max.messages",
    "queuing.strategy",
];

/// The properties that say how long a send may take.
const TIMEOUTS: &[&str] = &["message.timeout.ms", "delivery.timeout.ms"];

/// Bits of a record's tag that say which of its batch it is.
const PLACE_BITS: u32 = 20;

/// The most records of a batch.
const MAX_BATCH: u32 = 1 << PLACE_BITS;

/// How long a send is waited for before it is in doubt: 10 s as in the book, or less by `-X message.timeout.ms`.
pub fn send_timeout(lab: &Lab) -> Duration {
    let set = lab.properties.iter().rev().find(|(key, _)| TIMEOUTS.contains(&key.as_str()));
    set.and_then(|(_, ms)| ms.parse().ok()).map_or(SEND_TIMEOUT, Duration::from_millis)
}

/// What came of handing a record over.
#[derive(Debug, PartialEq, Eq)]
pub enum Handed {
    /// The client has it.
    Taken,
    /// The client has no room at the moment.
    Full,
    /// It will never be taken: this record is not in the topic, and the fault is its own.
    Rejected(String),
    /// The client takes nothing any more.
    Broken(String),
}

/// What came of a batch.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Of each record in the batch: was it acknowledged?
    pub acknowledged: Vec<bool>,
    /// Those that the broker rejected, by their place. Others may have been rejected with the one at fault.
    pub rejected: Vec<(usize, String)>,
    /// How many have no outcome that is certain.
    pub in_doubt: u64,
    /// Why not, if any has none.
    pub why: Option<String>,
}

/// Sends batches of events, each record handed over at once.
pub struct Pipeline {
    producer: Parting<ThreadedProducer<Acks>>,
    cluster: Cluster,
}

impl Pipeline {
    /// Connects to the lab's broker. `room` is for how many records there has to be, `linger_ms` how long a request may wait
    /// for more of them; `settled` is called from a thread of the client when a batch has its outcome.
    ///
    /// # Errors
    /// No broker answers, or a setting is refused.
    pub fn connect(
        lab: &Lab,
        room: u32,
        linger_ms: u32,
        settled: impl Fn(u64) + Send + Sync + 'static,
    ) -> Result<Self> {
        if let Some((key, _)) = lab.properties.iter().find(|(key, _)| OWN_PROPERTIES.contains(&key.as_str())) {
            return Err(Failure::usage(
                format!("the relay's order stands on the property {key}: it does not give it away"),
                "leave it out, or use publish, which sends one record at a time",
            ));
        }
        let cluster = Cluster::ensure(lab)?;
        let in_order: &[(&str, &str)] = match cluster.is_embedded() {
            true => &[("enable.idempotence", "false"), ("max.in.flight.requests.per.connection", "1")],
            false => &[("enable.idempotence", "true"), ("enable.gapless.guarantee", "true")],
        };
        let (room, linger) = (room.max(1_000).to_string(), linger_ms.to_string());
        let mut settings = vec![
            ("acks", "all"),
            ("partitioner", "murmur2_random"),
            ("linger.ms", &linger),
            ("queue.buffering.max.messages", &room),
        ];
        settings.extend_from_slice(in_order);
        let mut config = client_config(lab, cluster.servers(), &settings);
        for name in TIMEOUTS {
            config.remove(name);
        }
        config.set("message.timeout.ms", "0");
        let acks = Acks { reports: Reports::default(), ledger: Mutex::default(), settled: Box::new(settled) };
        let producer = Parting::new(create::<_, ThreadedProducer<_>>(&config, acks)?);
        if let Err(error) = producer.client().fetch_metadata(None, ANSWER_TIMEOUT) {
            return Err(no_answer(cluster.servers(), &error, &producer.context().reports));
        }
        Ok(Self { producer, cluster })
    }

    /// Sees to it that a topic is there. Returns which one it is, and how many partitions it has.
    ///
    /// # Errors
    /// It cannot be made, or the broker does not answer.
    pub fn ensure_topic(&self, lab: &Lab) -> Result<(Incarnation, usize)> {
        let incarnation = self.cluster.ensure_topic(lab)?;
        let metadata = self.producer.client().fetch_metadata(Some(&lab.topic), ANSWER_TIMEOUT);
        let metadata =
            metadata.map_err(|error| no_answer(self.cluster.servers(), &error, &self.producer.context().reports))?;
        Ok((incarnation, metadata.topics().first().map_or(0, |topic| topic.partitions().len())))
    }

    /// Begins a batch of so many records at the most. Batches are numbered one after the other, from 0.
    pub fn begin(&self, nth: u64, records: usize) {
        self.producer.context().ledger().begin(nth, records);
    }

    /// Hands over the record at a place of a batch that was begun.
    pub fn send(&self, nth: u64, place: usize, record: &Outgoing) -> Handed {
        let tag = (nth as usize) << PLACE_BITS | place;
        match self.producer.send(base_record(record, tag)) {
            Ok(()) => Handed::Taken,
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => Handed::Full,
            Err((error, _)) if is_rejection(&error) => Handed::Rejected(reason(&error)),
            Err((error, _)) => Handed::Broken(self.why(&error)),
        }
    }

    /// Ends a batch of which so many records were taken: it is settled when each of them has its outcome.
    pub fn end(&self, nth: u64, taken: usize) {
        let acks = self.producer.context();
        let settled = acks.ledger().end(nth, taken);
        if settled {
            (acks.settled)(nth);
        }
    }

    /// Takes the outcome of a settled batch.
    pub fn outcome(&self, nth: u64) -> Outcome {
        self.producer.context().ledger().take(nth)
    }

    /// Gives up on all that has no outcome yet: it is in doubt, and every batch is settled soon.
    pub fn purge(&self) {
        self.producer.purge(PurgeConfig::default().queue().inflight());
    }

    /// Why the client sends nothing any more, if so: a gap in a partition's records, as a rejection leaves one. What it has
    /// and will not send has its outcome only when it is purged.
    pub fn broken(&self) -> Option<String> {
        self.producer.client().fatal_error().map(|(_, why)| why)
    }

    /// What the client has to say on the side, such as why a connection cannot be made.
    pub fn complaint(&self) -> String {
        self.producer.context().reports.complaint()
    }

    fn why(&self, error: &KafkaError) -> String {
        reason(error) + &self.complaint()
    }
}

/// Where the outcomes of records come in.
struct Acks {
    reports: Reports,
    ledger: Mutex<Ledger>,
    settled: Box<dyn Fn(u64) + Send + Sync>,
}

impl Acks {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for Acks {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.reports.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.reports.error(error, reason);
    }
}

impl ProducerContext for Acks {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, tag: usize) {
        let (nth, place) = ((tag >> PLACE_BITS) as u64, tag & (MAX_BATCH as usize - 1));
        let settled = self.ledger().report(nth, place, delivery(result));
        if settled {
            (self.settled)(nth);
        }
    }
}

/// The batches that are under way, in order.
#[derive(Default)]
struct Ledger {
    first: u64,
    entries: VecDeque<Entry>,
}

#[derive(Default)]
struct Entry {
    outcome: Outcome,
    reported: usize,
    /// Known when the batch has ended.
    taken: Option<usize>,
}

impl Ledger {
    fn begin(&mut self, nth: u64, records: usize) {
        if self.entries.is_empty() {
            self.first = nth;
        }
        let outcome = Outcome { acknowledged: vec![false; records], ..Outcome::default() };
        self.entries.push_back(Entry { outcome, ..Entry::default() });
    }

    fn entry(&mut self, nth: u64) -> Option<&mut Entry> {
        self.entries.get_mut(usize::try_from(nth.checked_sub(self.first)?).ok()?)
    }

    /// `true` if the batch is settled by this.
    fn report(&mut self, nth: u64, place: usize, delivery: Delivery) -> bool {
        let Some(entry) = self.entry(nth) else { return false };
        entry.reported += 1;
        match delivery {
            Ok(_) => entry.outcome.acknowledged[place] = true,
            Err(error) if is_rejection(&error) => entry.outcome.rejected.push((place, reason(&error))),
            Err(error) => {
                entry.outcome.in_doubt += 1;
                entry.outcome.why.get_or_insert_with(|| reason(&error));
            }
        }
        entry.taken == Some(entry.reported)
    }

    fn end(&mut self, nth: u64, taken: usize) -> bool {
        let Some(entry) = self.entry(nth) else { return false };
        entry.taken = Some(taken);
        entry.reported == taken
    }

    fn take(&mut self, nth: u64) -> Outcome {
        let outcome = self.entry(nth).map(|entry| std::mem::take(&mut entry.outcome)).unwrap_or_default();
        while self.entries.front().is_some_and(|entry| entry.taken == Some(entry.reported) && entry.outcome.is_taken())
        {
            self.entries.pop_front();
            self.first += 1;
        }
        outcome
    }
}

impl Outcome {
    fn is_taken(&self) -> bool {
        self.acknowledged.is_empty()
    }
}

/// Is it certain that the record is not in the topic, and will never be: a fault of the record's own? What a broker that is
/// away, or that does not let the client in, answers is none; and neither is a topic that is gone, which can be made anew.
pub(super) fn is_rejection(error: &KafkaError) -> bool {
    use RDKafkaErrorCode as Code;
    let rejections = [
        Code::MessageSizeTooLarge,
        Code::InvalidMessage,
        Code::InvalidMessageSize,
        Code::InvalidRecord,
        Code::InvalidTopic,
        Code::PolicyViolation,
        Code::UnknownPartition,
    ];
    error.rdkafka_error_code().is_some_and(|code| rejections.contains(&code))
}
