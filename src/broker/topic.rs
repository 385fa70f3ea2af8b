//! Topics on a real Kafka: made with one partition, and deleted only where the lab directory has it on
//! record that it made them in that cluster.
//!
//! A topic of the lab's bears a mark: when it was made, in microseconds since 1970, as its `max.compaction.lag.ms`, which
//! means nothing for a topic that is not compacted. So any client can tell one making of a topic from the next, and
//! another's topic of the same name from the lab's own. (Kafka's own topic ids are out of reach: the client library does
//! not show them.)
//!
//! The record of a topic is the file `topics/CLUSTER/TOPIC` of the lab directory, and holds that mark. It is written before
//! the topic is made, with a word that says so, and once more after it: no crash leaves a topic that the lab does not know
//! for its own.

use std::fmt;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use futures_executor::block_on;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication, TopicResult};
use rdkafka::client::Client;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::ANSWER_TIMEOUT;
use super::client::{Parting, Reports, client_config, create, no_answer, no_answer_but};
use crate::event::Incarnation;
use crate::failure::Failure;
use crate::lab::Lab;
use crate::lock::{Kind, LockFile};

/// How long a cluster has to make or delete a topic.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(30);

/// A topic's setting that carries the mark.
const MARK: &str = "max.compaction.lag.ms";

/// Finds the topic, or makes it with one partition.
pub(super) fn ensure(lab: &Lab, servers: &str) -> Result<Incarnation> {
    let admin = Admin::connect(lab, servers)?;
    if !exists(servers, admin.client.inner(), &lab.topic)? {
        let _alone = alone(lab)?;
        // Another command of this lab directory may have been faster.
        if !exists(servers, admin.client.inner(), &lab.topic)? {
            admin.make(lab, 1)?;
        }
    }
    admin.incarnation(&lab.topic)
}

/// One command of a lab directory at a time makes topics, so that each record tells of the topic that is there.
fn alone(lab: &Lab) -> Result<LockFile> {
    let lock = lab.lock_file("topics.lock")?;
    let deadline = Instant::now() + ADMIN_TIMEOUT;
    while !lock.try_lock(Kind::Exclusive)? {
        if Instant::now() > deadline {
            return Err(Failure::failed(
                "another command of this lab directory is making a topic and does not end",
                "let it end, then type the command again",
            ));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(lock)
}

/// The incarnation of a topic that exists.
pub(super) fn incarnation(lab: &Lab, servers: &str) -> Result<Incarnation> {
    Admin::connect(lab, servers)?.incarnation(&lab.topic)
}

/// The cluster's own id. It names a folder, too.
fn cluster_id(servers: &str, client: &Client<Reports>) -> Result<String> {
    match client.fetch_cluster_id(ANSWER_TIMEOUT) {
        // It knows none of the requests about topics, and would leave them without an answer.
        Some(id) if id.starts_with("mockCluster") => Err(Failure::failed(
            format!("{servers} is the embedded broker of a lab, not a Kafka"),
            "leave out --bootstrap and KAFKA_BOOTSTRAP, and name that lab's directory: --dir DIR",
        )),
        Some(id) => Ok(id.replace('/', "_")),
        None => Err(no_answer_but(servers, "it does not say which cluster it is")),
    }
}

/// Is the topic there? Asked for as one of all: asking for it by name would make it where the cluster makes
/// topics on demand.
fn exists(servers: &str, client: &Client<Reports>, topic: &str) -> Result<bool> {
    let metadata =
        client.fetch_metadata(None, ANSWER_TIMEOUT).map_err(|error| no_answer(servers, &error, client.context()))?;
    Ok(metadata.topics().iter().any(|known| known.name() == topic && !known.partitions().is_empty()))
}

/// A fresh topic: deleted if it is there and the lab made it, and made anew. See `Cluster::fresh_topic`.
pub(super) fn fresh(
    lab: &Lab,
    servers: &str,
    partitions: i32,
    before: impl FnOnce() -> Result<()>,
) -> Result<Incarnation> {
    let admin = Admin::connect(lab, servers)?;
    let is_there = || exists(servers, admin.client.inner(), &lab.topic);
    // Looked for once more: a reset that was killed may have ordered its deletion, which is carried out in between.
    if is_there()? && !admin.made_by(lab, &lab.topic)? && is_there()? {
        return Err(Failure::failed(
            format!("the topic {} is there, and this lab directory did not make it: nothing was deleted", lab.topic),
            "take another topic: --topic NAME, or OUTBOX_LAB_TOPIC",
        ));
    }
    before()?;
    if is_there()? {
        admin.delete(&lab.topic)?;
        Record::of(lab, &admin.cluster, &lab.topic).forget()?;
    }
    admin.make(lab, partitions)?;
    admin.incarnation(&lab.topic)
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
        // Somebody else may have made one of the same name since.
        let is_own = !exists(servers, admin.client.inner(), &topic)? || admin.made_by(lab, &topic)?;
        if is_own {
            admin.delete(&topic)?;
        }
        Record::of(lab, &admin.cluster, &topic).forget()?;
        if is_own {
            deleted(&topic)?;
        }
    }
    Ok(())
}

/// What the lab directory has on record of a topic.
struct Record {
    path: PathBuf,
}

/// Stands before the mark of a topic that is only about to be made.
const ABOUT_TO: &str = "about to make ";

impl Record {
    fn of(lab: &Lab, cluster: &str, topic: &str) -> Self {
        Self { path: lab.dir.join("topics").join(cluster).join(topic) }
    }

    fn text(&self) -> Option<String> {
        fs::read_to_string(&self.path).ok()
    }

    /// The mark, whether or not the topic is known to have been made.
    fn mark(&self) -> Option<String> {
        self.text().map(|text| text.trim_start_matches(ABOUT_TO).to_owned())
    }

    /// The mark of an attempt that died: its order may still be carried out.
    fn unfinished(&self) -> Option<String> {
        self.text().and_then(|text| text.strip_prefix(ABOUT_TO).map(ToOwned::to_owned))
    }

    fn write(&self, lab: &Lab, text: &str) -> Result<()> {
        fs::create_dir_all(self.path.parent().unwrap_or(&lab.dir))?;
        lab.write_whole(&self.path, text.as_bytes())
    }

    fn forget(&self) -> Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

struct Admin {
    client: Parting<AdminClient<Reports>>,
    servers: String,
    cluster: String,
}

impl Admin {
    fn connect(lab: &Lab, servers: &str) -> Result<Self> {
        let config = client_config(lab, servers, &[]);
        let client = Parting::new(create::<_, AdminClient<_>>(&config, Reports::default())?);
        // The id comes with the metadata, and so do the reasons why none comes.
        exists(servers, client.inner(), &lab.topic)?;
        let cluster = cluster_id(servers, client.inner())?;
        Ok(Self { client, servers: servers.to_owned(), cluster })
    }

    /// The mark of a topic that exists; `None` where it bears none, or this client may not see it.
    fn mark(&self, topic: &str) -> Result<Option<String>> {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        loop {
            let asked = [&ResourceSpecifier::Topic(topic)];
            let described = block_on(self.client.describe_configs(asked, &AdminOptions::new()));
            let configs = described.map_err(|error| no_answer(&self.servers, &error, self.client.inner().context()))?;
            match configs.first() {
                // A topic that is listed can still be news to the part of the broker that knows its settings.
                Some(Err(RDKafkaErrorCode::UnknownTopic | RDKafkaErrorCode::UnknownTopicOrPartition))
                    if Instant::now() < deadline && exists(&self.servers, self.client.inner(), topic)? =>
                {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Some(Ok(config)) => {
                    let setting = config.get(MARK).and_then(|entry| entry.value.clone());
                    // Without a mark it is the greatest number there is.
                    return Ok(setting.filter(|mark| mark.parse().is_ok_and(|mark: i64| mark < i64::MAX)));
                }
                Some(Err(_)) | None => return Ok(None),
            }
        }
    }

    fn incarnation(&self, topic: &str) -> Result<Incarnation> {
        Ok(Incarnation { cluster: Some(self.cluster.clone()), topic: topic.to_owned(), made: self.mark(topic)? })
    }

    /// Is the topic that is there the one that this lab directory has on record?
    fn made_by(&self, lab: &Lab, topic: &str) -> Result<bool> {
        let recorded = Record::of(lab, &self.cluster, topic).mark();
        Ok(recorded.is_some() && recorded == self.mark(topic)?)
    }

    /// Puts the topic on record, makes it, and waits until the cluster shows it.
    fn make(&self, lab: &Lab, partitions: i32) -> Result<()> {
        let record = Record::of(lab, &self.cluster, &lab.topic);
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros().to_string();
        let mark = record.unfinished().unwrap_or_else(now);
        record.write(lab, &format!("{ABOUT_TO}{mark}"))?;
        let topic = NewTopic::new(&lab.topic, partitions, TopicReplication::Fixed(-1)).set(MARK, &mark);
        let options = AdminOptions::new().operation_timeout(Some(ADMIN_TIMEOUT));
        let made = outcome(block_on(self.client.create_topics([&topic], &options)));
        self.wait_until_made(&lab.topic, made)?;
        // Already there, it is another lab's, which was faster, or that of an earlier attempt of ours.
        if made.is_ok() || self.mark(&lab.topic)?.as_ref() == Some(&mark) {
            record.write(lab, &mark)
        } else {
            record.forget()
        }
    }

    fn wait_until_made(&self, topic: &str, made: Result<(), RDKafkaErrorCode>) -> Result<()> {
        match made {
            Ok(()) | Err(RDKafkaErrorCode::TopicAlreadyExists) => self.wait_until(topic, true),
            Err(code @ RDKafkaErrorCode::InvalidTopic) => Err(refused("made", topic, code).context(InvalidTopic)),
            Err(code) => Err(refused("made", topic, code)),
        }
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

/// No topic can have that name in this cluster; it may differ from another's by a dot for an underscore.
#[derive(Debug)]
pub struct InvalidTopic;

impl fmt::Display for InvalidTopic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no topic can have that name in this cluster")
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
