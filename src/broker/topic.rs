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
use rdkafka::client::{Client, ClientContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::{ANSWER_TIMEOUT, Incarnation, Reports, client_config, create, no_answer, reason};
use crate::failure::Failure;
use crate::lab::Lab;

/// How long a cluster has to make or delete a topic.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(30);

/// Finds the topic, or makes it.
pub(super) fn ensure<C: ClientContext>(
    lab: &Lab,
    servers: &str,
    client: &Client<C>,
    complaint: &dyn Fn() -> String,
) -> Result<Incarnation> {
    if !exists(client, &lab.topic).map_err(|error| no_answer(servers, &(reason(&error) + &complaint())))? {
        let admin = Admin::connect(lab, servers)?;
        return admin.make(lab);
    }
    let cluster = cluster_id(client, servers)?;
    Ok(incarnation(lab, &cluster))
}

/// The incarnation of a topic that exists.
pub(super) fn incarnation(lab: &Lab, cluster: &str) -> Incarnation {
    let made = fs::read_to_string(record_of(lab, cluster, &lab.topic)).ok();
    Incarnation::kafka(cluster, &lab.topic, made.as_deref())
}

/// The cluster's own id.
pub(super) fn cluster_id<C: ClientContext>(client: &Client<C>, servers: &str) -> Result<String> {
    let id = client.fetch_cluster_id(ANSWER_TIMEOUT);
    id.map(|id| id.replace('/', "_")).ok_or_else(|| no_answer(servers, "it does not say which cluster it is"))
}

/// Is the topic there? Asked for as one of all: asking for it by name would make it where the cluster makes
/// topics on demand.
fn exists<C: ClientContext>(client: &Client<C>, topic: &str) -> Result<bool, KafkaError> {
    let metadata = client.fetch_metadata(None, ANSWER_TIMEOUT)?;
    Ok(metadata.topics().iter().any(|known| known.name() == topic && !known.partitions().is_empty()))
}

/// A fresh topic on a real Kafka, offsets from 0: deleted if it is there and the lab made it, and made anew.
/// `before` runs when it is certain that the topic may be replaced, and before anything is.
///
/// # Errors
/// The topic is not this lab directory's own; then nothing is deleted. Or the cluster does not do it.
pub fn fresh_topic(lab: &Lab, servers: &str, before: impl FnOnce() -> Result<()>) -> Result<Incarnation> {
    let admin = Admin::connect(lab, servers)?;
    let is_there = exists(admin.client.inner(), &lab.topic)
        .map_err(|error| no_answer(servers, &(reason(&error) + &admin.complaint())))?;
    let record = record_of(lab, &admin.cluster, &lab.topic);
    if is_there && !record.exists() {
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

/// The topics that this lab directory has on record in that cluster.
///
/// # Errors
/// No broker answers.
pub fn made_topics(lab: &Lab, servers: &str) -> Result<Vec<String>> {
    if !lab.dir.join("topics").is_dir() {
        return Ok(Vec::new());
    }
    let admin = Admin::connect(lab, servers)?;
    let mut topics: Vec<String> = fs::read_dir(lab.dir.join("topics").join(&admin.cluster))
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    topics.sort();
    Ok(topics)
}

/// Deletes a topic that this lab directory has on record, and the record.
///
/// # Errors
/// The cluster does not do it.
pub fn delete_topic(lab: &Lab, servers: &str, topic: &str) -> Result<()> {
    let admin = Admin::connect(lab, servers)?;
    admin.delete(topic)?;
    fs::remove_file(record_of(lab, &admin.cluster, topic))?;
    Ok(())
}

fn record_of(lab: &Lab, cluster: &str, topic: &str) -> PathBuf {
    lab.dir.join("topics").join(cluster).join(topic)
}

struct Admin {
    /// Never dropped: joining its thread takes 100 ms, and the process ends anyway.
    client: ManuallyDrop<AdminClient<Reports>>,
    cluster: String,
}

impl Admin {
    fn connect(lab: &Lab, servers: &str) -> Result<Self> {
        let client =
            ManuallyDrop::new(create::<_, AdminClient<_>>(&client_config(lab, servers, &[]), Reports::default())?);
        if let Err(error) = client.inner().fetch_metadata(None, ANSWER_TIMEOUT) {
            return Err(no_answer(servers, &(reason(&error) + &client.inner().context().complaint())));
        }
        let cluster = cluster_id(client.inner(), servers)?;
        Ok(Self { client, cluster })
    }

    fn complaint(&self) -> String {
        self.client.inner().context().complaint()
    }

    /// Makes the topic, waits until the cluster shows it, and puts it on record. The record comes last: with
    /// a record and no topic of ours, somebody else's topic of that name could be deleted for ours.
    fn make(&self, lab: &Lab) -> Result<Incarnation> {
        let topic = NewTopic::new(&lab.topic, 1, TopicReplication::Fixed(-1));
        let options = AdminOptions::new().operation_timeout(Some(ADMIN_TIMEOUT));
        let made = block_on(self.client.create_topics([&topic], &options));
        match outcome(made) {
            // Another command of this lab was faster.
            Err(RDKafkaErrorCode::TopicAlreadyExists) => return Ok(incarnation(lab, &self.cluster)),
            made => made.map_err(|code| refused("made", &lab.topic, code))?,
        }
        self.wait_until(&lab.topic, true)?;
        let record = record_of(lab, &self.cluster, &lab.topic);
        fs::create_dir_all(record.parent().unwrap_or(&lab.dir))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        lab.write_whole(&record, now.to_string().as_bytes())?;
        Ok(incarnation(lab, &self.cluster))
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
        while exists(self.client.inner(), topic).unwrap_or(!there) != there {
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
