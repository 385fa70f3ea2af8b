//! What the client library can do, with nothing of the lab's in between: the limit that a relay is held against.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use rdkafka::client::ClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{Producer, ProducerContext, ThreadedProducer};

use super::client::{base_record, client_config, create, delivery, reason};
use super::{Cluster, SEND_TIMEOUT};
use crate::event::Outgoing;
use crate::failure::Failure;
use crate::lab::Lab;

/// Sends records from memory, pipelined and idempotent, and waits for their acknowledgements. Returns the time from the
/// first to the last; a record before them warms the connection.
///
/// # Errors
/// The broker does not take them all.
pub fn send_from_memory(lab: &Lab, records: &[Outgoing]) -> Result<Duration> {
    let cluster = Cluster::ensure(lab)?;
    cluster.ensure_topic(lab)?;
    let settings = [
        ("acks", "all"),
        ("partitioner", "murmur2_random"),
        ("linger.ms", "1"),
        ("enable.idempotence", "true"),
        ("queue.buffering.max.messages", "1000000"),
    ];
    let config = client_config(lab, cluster.servers(), &settings);
    let producer: ThreadedProducer<Count> = create(&config, Count::default())?;
    let count = Arc::clone(producer.context());
    let Some(first) = records.first() else { return Ok(Duration::ZERO) };
    send(&producer, first)?;
    count.wait_for(1)?;
    for record in records {
        send(&producer, record)?;
    }
    count.wait_for(records.len() as u64 + 1)?;
    Ok(count.second.get().map_or(Duration::ZERO, Instant::elapsed))
}

fn send(producer: &ThreadedProducer<Count>, record: &Outgoing) -> Result<()> {
    loop {
        match producer.send(base_record(record, ())) {
            Ok(()) => return Ok(()),
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => {
                thread::sleep(Duration::from_micros(500));
            }
            Err((error, _)) => return Err(not_measured(&reason(&error))),
        }
    }
}

fn not_measured(why: &str) -> anyhow::Error {
    Failure::failed(format!("the limit could not be measured: {why}"), "see that the broker is up, then measure again")
}

#[derive(Default)]
struct Count {
    acknowledged: AtomicU64,
    failed: AtomicU64,
    /// When the first record after the one that warms the connection was acknowledged.
    second: OnceLock<Instant>,
}

impl Count {
    fn wait_for(&self, records: u64) -> Result<()> {
        let mut seen = 0;
        let mut since = Instant::now();
        loop {
            let now = self.acknowledged.load(Ordering::Relaxed);
            if now >= records {
                return Ok(());
            }
            if now > seen {
                (seen, since) = (now, Instant::now());
            }
            if self.failed.load(Ordering::Relaxed) > 0 || since.elapsed() > SEND_TIMEOUT {
                return Err(not_measured(&format!("{now} of {records} records were acknowledged")));
            }
            thread::sleep(Duration::from_micros(200));
        }
    }
}

impl ClientContext for Count {}

impl ProducerContext for Count {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        match delivery(result) {
            Ok(_) if self.acknowledged.fetch_add(1, Ordering::Relaxed) == 1 => {
                let _ = self.second.set(Instant::now());
            }
            Ok(_) => {}
            Err(_) => drop(self.failed.fetch_add(1, Ordering::Relaxed)),
        }
    }
}
