//! Topics on a real Kafka: made with one partition, and deleted only where the lab directory has it on
//! record that it made them in that cluster.
//!
//! The record of a topic is the file `topics/CLUSTER/TOPIC` of the lab directory. It holds the time at which
//! the topic was made, in milliseconds since 1970: the incarnation.

use std::fs;
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use futures_executor::block_on;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication, TopicResult};
use rdkafka::client::Client;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::{ANSWER_TIMEOUT, Reports, client_config, create, no_answer, no_answer_but};
use crate::event::Incarnation;
use crate::failure::Failure;
use crate::lab::Lab;

/// How long a cluster has to make or delete a topic.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(30);

/// Finds the topic, or makes it with one partition.
pub(super) fn ensure(lab: &Lab, servers: &str, client: &Client<Reports>) -> Result<Incarnation> {
    if !exists(servers, client, &lab.topic)? {
        return Admin::connect(lab, servers)?.make(lab);
    }
    incarnation(lab, servers, client)
}

/// The incarnation of a topic that exists.
pub(super) fn incarnation(lab: &Lab, servers: &str, client: &Client<Reports>) -> Result<Incarnation> {
    let cluster = cluster_id(servers, client)?;
    let made = fs::read_to_string(record_of(lab, &cluster, &lab.topic)).ok();
    Ok(Incarnation { cluster: Some(cluster), topic: lab.topic.clone(), made })
}

/// The cluster's own id.
fn cluster_id(servers: &str, client: &Client<Reports>) -> Result<String> {
    let id = client.fetch_cluster_id(ANSWER_TIMEOUT);
    // It names a folder, too.
    id.map(|id| id.replace('/', "_")).ok_or_else(|| no_answer_but(servers, "it does not say which cluster it is"))
}

/// Is the topic there? Asked for as one of all: asking for it by name would make it where the cluster makes
/// topics on demand.
fn exists(servers: &str, client: &Client<Reports>, topic: &str) -> Result<bool> {
    let metadata =
        client.fetch_metadata(None, ANSWER_TIMEOUT).map_err(|error| no_answer(servers, &error, client.context()))?;
    Ok(metadata.topics().iter().any(|known| known.name() == topic && !known.partitions().is_empty()))
}

/// A fresh topic: deleted if it is there and the lab made it, and made anew. See `Cluster::fresh_topic`.
pub(super) fn fresh(lab: &Lab, servers: &str, before: impl FnOnce() -> Result<()>) -> Result<Incarnation> {
    let admin = Admin::connect(lab, servers)?;
    let is_there = exists(servers, admin.client.inner(), &lab.topic)?;
    if is_there && !record_of(lab, &admin.cluster, &lab.topic).exists() {
        return Err(Failure::failed(
            format!("the topic {} is there, and this lab directory did not make it: nothing was deleted", lab.topic),
            "take another topic: --topic NAME, or OUTBOX_LAB_TOPIC",
        ));
    }
    before()?;
    if is_there {
        admin.delete(&lab.topic)?;
    }
    admin.make(lab)
}

/// Deletes every topic that this lab directory has on record in that cluster, and tells of each.
///
/// # Errors
/// No broker answers, or it does not delete one.
pub fn delete_made(lab: &Lab, servers: &str, mut deleted: impl FnMut(&str) -> Result<()>) -> Result<()> {
    if !lab.dir.join("topics").is_dir() {
        return Ok(());
    }
    let admin = Admin::connect(lab, servers)?;
    let recorded = fs::read_dir(lab.dir.join("topics").join(&admin.cluster)).into_iter().flatten();
    let mut topics: Vec<String> = recorded.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    topics.sort();
    for topic in topics {
        admin.delete(&topic)?;
        fs::remove_file(record_of(lab, &admin.cluster, &topic))?;
        deleted(&topic)?;
    }
    Ok(())
}

fn record_of(lab: &Lab, cluster: &str, topic: &str) -> PathBuf {
    lab.dir.join("topics").join(cluster).join(topic)
}

struct Admin {
    /// Never dropped: joining its thread takes 100 ms, and the process ends anyway.
    client: ManuallyDrop<AdminClient<Reports>>,
    servers: String,
    cluster: String,
}

impl Admin {
    fn connect(lab: &Lab, servers: &str) -> Result<Self> {
        let config = client_config(lab, servers, &[]);
        let client = ManuallyDrop::new(create::<_, AdminClient<_>>(&config, Reports::default())?);
        // The id comes with the metadata, and so do the reasons why none comes.
        exists(servers, client.inner(), &lab.topic)?;
        let cluster = cluster_id(servers, client.inner())?;
        Ok(Self { client, servers: servers.to_owned(), cluster })
    }

    /// Makes the topic, waits until the cluster shows it, and puts it on record. The record comes last: with
    /// a record and no topic of ours, somebody else's topic of that name could be deleted for ours.
    fn make(&self, lab: &Lab) -> Result<Incarnation> {
        let topic = NewTopic::new(&lab.topic, 1, TopicReplication::Fixed(-1));
        let options = AdminOptions::new().operation_timeout(Some(ADMIN_TIMEOUT));
        let made = block_on(self.client.create_topics([&topic], &options));
        match outcome(made) {
            // Another command of this lab was faster.
            Err(RDKafkaErrorCode::TopicAlreadyExists) => return incarnation(lab, &self.servers, self.client.inner()),
            made => made.map_err(|code| refused("made", &lab.topic, code))?,
        }
        self.wait_until(&lab.topic, true)?;
        let record = record_of(lab, &self.cluster, &lab.topic);
        fs::create_dir_all(record.parent().unwrap_or(&lab.dir))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        lab.write_whole(&record, now.to_string().as_bytes())?;
        incarnation(lab, &self.servers, self.client.inner())
    }

    fn delete(&self, topic: &str) -> Result<()> {
        let options = AdminOptions::new().operation_timeout(Some(ADMIN_TIMEOUT));
        let deleted = block_on(self.client.delete_topics(&[topic], &options));
        match outcome(deleted) {
            Err(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic) => Ok(()),
            deleted => {
                deleted.map_err(|code| refused("deleted", topic, code))?;
                self.wait_until(topic, false)
            }
        }
    }

    fn wait_until(&self, topic: &str, there: bool) -> Result<()> {
        let deadline = Instant::now() + ADMIN_TIMEOUT;
        while exists(&self.servers, self.client.inner(), topic)? != there {
            if Instant::now() > deadline {
                return Err(Failure::failed(
                    format!("the cluster took the order for the topic {topic} and did not carry it out"),
                    "look at the broker's log, then type the command again",
                ));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

fn refused(what: &str, topic: &str, code: RDKafkaErrorCode) -> anyhow::Error {
    Failure::failed(
        format!("the topic {topic} cannot be {what}: {code}"),
        "see that this client may do so, or take another with --topic",
    )
}

fn outcome(results: Result<Vec<TopicResult>, KafkaError>) -> Result<(), RDKafkaErrorCode> {
    match results {
        Ok(results) => results.into_iter().try_for_each(|result| result.map(|_| ()).map_err(|(_, code)| code)),
        Err(error) => Err(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown)),
    }
}
