//! The broker for laptops without Kafka, seen from a lab command: found, started on demand, asked.
//!
//! It is librdkafka's own mock cluster in a process of its own (`broker/serve.rs`). Who it is stands in the
//! file `broker.json` of the lab directory, and is trusted only if the process that it names holds the lock
//! `broker.lock` and answers on its control port: a broker that died leaves a stale file, and its pid and
//! port may belong to another program by now.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::event::Incarnation;
use crate::failure::Failure;
use crate::lab::Lab;
use crate::lock::Kind;

/// How long the embedded broker has to answer. It answers in well under a millisecond, save when its mock
/// cluster loses a wake-up of its own, which takes it 1 s.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(4);

/// How long a broker has to come up, or to end.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(10);

/// Who the embedded broker is: the content of `broker.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Embedded {
    /// Its process.
    pub pid: u32,
    /// Where Kafka clients find it.
    pub bootstrap: String,
    /// The loopback port on which lab commands speak to it.
    pub control: u16,
    /// Another one after each `reset`, since all records go with the old cluster.
    pub generation: String,
}

/// What a lab command asks of the embedded broker: one JSON line each way.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Are you there?
    Greet,
    /// See to it that this topic is there, with one partition.
    Topic(String),
    /// A new cluster with this topic alone, of so many partitions.
    Fresh(String, i32),
    /// End.
    Stop,
}

/// What it is asked with: the generation shows that the right broker is spoken to.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Ask {
    pub generation: String,
    pub request: Request,
}

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// Done; this is who it is now, and how many other topics went with the old cluster.
    Done { broker: Embedded, topics_gone: usize },
    /// It does not know the asker's generation.
    Stranger,
    /// It could not, in its own words.
    Failed(String),
}

pub(super) fn record_path(lab: &Lab) -> PathBuf {
    lab.dir.join("broker.json")
}

/// The embedded broker of this lab directory, if one is running.
///
/// # Errors
/// It is running and does not answer.
pub fn find(lab: &Lab) -> Result<Option<Embedded>> {
    find_asking(lab, &Request::Greet)
}

/// Whatever is asked, its answer says who it is.
fn find_asking(lab: &Lab, request: &Request) -> Result<Option<Embedded>> {
    if !lab.has_dir()? {
        return Ok(None);
    }
    let deadline = Instant::now() + CHANGE_TIMEOUT;
    loop {
        let Some(pid) = lab.lock_file("broker.lock")?.holder(Kind::Exclusive)? else {
            return Ok(None);
        };
        let recorded = fs::read(record_path(lab)).ok().and_then(|json| serde_json::from_slice::<Embedded>(&json).ok());
        // A broker that holds the lock and is not on record yet is just coming up, or just leaving.
        if let Some(broker) = recorded.filter(|broker| broker.pid == pid) {
            match broker.ask(request) {
                Ok(Answer::Done { broker, .. }) => return Ok(Some(broker)),
                // Another cluster took its place, or it left, between the reading and the asking.
                Ok(Answer::Stranger) => {}
                Ok(Answer::Failed(reason)) => return Err(broker.failed(&reason)),
                Err(error) if Instant::now() > deadline || timed_out(&error) => return Err(broker.silent()),
                Err(_) => {}
            }
        }
        if Instant::now() > deadline {
            return Err(Failure::failed(
                format!(
                    "the embedded broker, pid {pid}, holds {} and does not come up",
                    lab.dir.join("broker.lock").display()
                ),
                format!("if it is frozen (SIGSTOP): kill -CONT {pid}; or end it: kill -9 {pid}"),
            ));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The embedded broker of this lab directory, started if none is running.
///
/// # Errors
/// It does not come up, or does not answer.
pub fn ensure(lab: &Lab) -> Result<Embedded> {
    ensure_asking(lab, &Request::Greet)
}

/// As [`ensure`], with the lab's topic in it.
///
/// # Errors
/// As [`ensure`]; or it cannot make the topic.
pub fn ensure_with_topic(lab: &Lab) -> Result<Embedded> {
    ensure_asking(lab, &Request::Topic(lab.topic.clone()))
}

fn ensure_asking(lab: &Lab, request: &Request) -> Result<Embedded> {
    lab.make_dir()?;
    if let Some(broker) = find_asking(lab, request)? {
        return Ok(broker);
    }
    spawn(lab)?;
    // Several commands may each have started one; the first that took the lock is the one.
    find_asking(lab, request)?.ok_or_else(|| {
        let log = fs::read_to_string(lab.dir.join("broker.log")).unwrap_or_default();
        Failure::failed(
            format!("the embedded broker did not come up: {}", log.lines().last().unwrap_or("it left no word")),
            format!("look at {}, then type the command again", lab.dir.join("broker.log").display()),
        )
    })
}

/// Ends a broker that an earlier run left behind, frozen perhaps, in a lab directory that is about to go.
///
/// # Errors
/// It cannot be ended.
pub fn end_leftover(lab: &Lab) -> Result<()> {
    let lock = lab.lock_file("broker.lock")?;
    let deadline = Instant::now() + CHANGE_TIMEOUT;
    // Whoever holds this lock is a broker of this very directory.
    while let Some(pid) = lock.holder(Kind::Exclusive)? {
        anyhow::ensure!(Instant::now() < deadline, "the embedded broker, pid {pid}, does not end");
        let _ = kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGKILL);
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Starts a broker process and waits until it is on record, or has found that another one is.
fn spawn(lab: &Lab) -> Result<()> {
    let log = File::options().create(true).append(true).open(lab.dir.join("broker.log"));
    let log = log.with_context(|| format!("{} cannot be written", lab.dir.join("broker.log").display()))?;
    let dir = fs::canonicalize(&lab.dir).with_context(|| format!("{} is gone", lab.dir.display()))?;
    let mut child = Command::new(std::env::current_exe().context("this program's own path is not known")?)
        .arg("--dir")
        .arg(dir)
        .args(["broker", "serve"])
        // It outlives the caller, whose folder it is not to keep busy.
        .current_dir("/")
        .env_remove("KAFKA_BOOTSTRAP")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .context("the embedded broker cannot be started")?;
    // It closes its end as soon as it is on record, or else by ending.
    if let Some(mut ready) = child.stdout.take() {
        let _ = ready.read_to_end(&mut Vec::new());
    }
    Ok(())
}

impl Embedded {
    /// The topic of this name in this generation.
    pub fn incarnation(&self, topic: &str) -> Incarnation {
        Incarnation { cluster: None, topic: topic.to_owned(), made: Some(self.generation.clone()) }
    }

    /// Sees to it that the topic is there.
    ///
    /// # Errors
    /// The broker cannot make it.
    pub fn ensure_topic(&self, topic: &str) -> Result<()> {
        self.done(&Request::Topic(topic.to_owned())).map(|_| ())
    }

    /// Replaces the cluster by a new one that has this topic alone. Returns who the broker is now, and how
    /// many other topics went with the old cluster.
    ///
    /// # Errors
    /// The broker cannot.
    pub fn fresh(&self, topic: &str, partitions: i32) -> Result<(Self, usize)> {
        self.done(&Request::Fresh(topic.to_owned(), partitions))
    }

    /// Ends it, and returns when it has ended.
    ///
    /// # Errors
    /// It does not answer.
    pub fn stop(&self, lab: &Lab) -> Result<()> {
        let told = self.done(&Request::Stop);
        let lock = lab.lock_file("broker.lock")?;
        let has_ended = || -> Result<bool> { Ok(lock.holder(Kind::Exclusive)? != Some(self.pid)) };
        let deadline = Instant::now() + CHANGE_TIMEOUT;
        while !has_ended()? {
            // Another command may have told it to end, too.
            if told.is_err() || Instant::now() > deadline {
                std::thread::sleep(Duration::from_millis(20));
                return if has_ended()? { Ok(()) } else { told.and(Err(self.silent())) };
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn done(&self, request: &Request) -> Result<(Self, usize)> {
        match self.ask(request) {
            Ok(Answer::Done { broker, topics_gone }) => Ok((broker, topics_gone)),
            Ok(Answer::Failed(reason)) => Err(self.failed(&reason)),
            Ok(Answer::Stranger) => Err(self.failed("a reset came between")),
            Err(error) if timed_out(&error) => Err(self.silent()),
            Err(error) => Err(self.failed(&error.to_string())),
        }
    }

    fn ask(&self, request: &Request) -> io::Result<Answer> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.control));
        let mut stream = TcpStream::connect_timeout(&address, CONTROL_TIMEOUT)?;
        stream.set_read_timeout(Some(CONTROL_TIMEOUT))?;
        stream.set_nodelay(true)?;
        let mut line = serde_json::to_vec(&Ask { generation: self.generation.clone(), request: request.clone() })?;
        line.push(b'\n');
        stream.write_all(&line)?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        Ok(serde_json::from_str(&answer)?)
    }

    fn failed(&self, reason: &str) -> anyhow::Error {
        Failure::failed(
            format!("the embedded broker, pid {}, could not: {reason}", self.pid),
            "type the command again; if it stays so: outbox-lab broker stop (its records go with it)",
        )
    }

    fn silent(&self) -> anyhow::Error {
        Failure::failed(
            format!("the embedded broker, pid {}, is there and does not answer", self.pid),
            format!(
                "if it is frozen (SIGSTOP): kill -CONT {0}; or end it, and its records with it: kill -9 {0}",
                self.pid
            ),
        )
    }
}

fn timed_out(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}
