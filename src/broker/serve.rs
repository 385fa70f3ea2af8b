//! The embedded broker itself: librdkafka's mock cluster, in a process and a session of its own, so that
//! killing a lab process never kills it.
//!
//! Only the process that holds the cluster can make a topic in it (there is no CreateTopics), so lab commands
//! ask for topics on a control port. The broker leaves when it is told to, when its lab directory is gone, or
//! after a day without a lab command.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use nix::unistd;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;

use super::embedded::{Answer, Ask, Embedded, Request, record_path};
use crate::lab::Lab;
use crate::lock::Kind;

/// How long a lab command has to say what it wants; another program that connects says nothing.
const ASKING_TIME: Duration = Duration::from_secs(1);

/// How often the broker looks whether it is still wanted.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

type Cluster = MockCluster<'static, DefaultProducerContext>;

/// Is the embedded broker of this lab directory, until it is told to end. Returns at once if another process
/// is it already.
///
/// # Errors
/// The lab directory cannot be written, or the cluster cannot be made.
pub fn serve(lab: &Lab, idle: Duration) -> Result<()> {
    leave_the_callers_world();
    // Not made here: where it is gone by now, whoever started this broker has been cleaned up behind.
    let lock = lab.lock_file("broker.lock")?;
    if !lock.try_lock(Kind::Exclusive)? {
        return Ok(());
    }
    let control = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no loopback port for the embedded broker")?;
    let mut broker = Broker::new(lab, control.local_addr()?.port())?;
    // Whoever started it reads this, or has died in the meantime: then nobody knows of this broker, and `clean` may have
    // come too early to find it.
    if writeln!(io::stdout()).is_err() {
        leave(&record_path(lab));
    }
    unistd::dup2_stdout(File::options().write(true).open("/dev/null")?)?;

    let watch = Watch { record: record_path(lab), idle, last_asked: Arc::new(Mutex::new(Instant::now())) };
    let last_asked = Arc::clone(&watch.last_asked);
    thread::spawn(move || watch.leave_when_unwanted());
    for stream in control.incoming().flatten() {
        *last_asked.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        // A caller that says nothing, or hangs up, is no reason to end.
        if let Ok(true) = broker.answer(lab, &stream) {
            break;
        }
    }
    leave(&record_path(lab));
}

/// A session of its own, and none of the files that the caller had open: a pipe kept open here would never
/// end for whoever reads it.
fn leave_the_callers_world() {
    // It fails only where the process leads a session already.
    let _ = unistd::setsid();
    let open: Vec<i32> = fs::read_dir("/dev/fd")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for fd in open.into_iter().filter(|fd| *fd > 2) {
        // The handle that listed the folder is closed already.
        let _ = unistd::close(fd);
    }
}

fn leave(record: &PathBuf) -> ! {
    if recorded_pid(record) == Some(std::process::id()) {
        let _ = fs::remove_file(record);
    }
    std::process::exit(0);
}

fn recorded_pid(record: &PathBuf) -> Option<u32> {
    Some(serde_json::from_slice::<Embedded>(&fs::read(record).ok()?).ok()?.pid)
}

/// Ends the process when nobody can find it any more, or nobody has asked for it for too long.
struct Watch {
    record: PathBuf,
    idle: Duration,
    last_asked: Arc<Mutex<Instant>>,
}

impl Watch {
    fn leave_when_unwanted(&self) {
        loop {
            thread::sleep(WATCH_INTERVAL);
            let idle = self.last_asked.lock().unwrap_or_else(PoisonError::into_inner).elapsed();
            if idle >= self.idle || recorded_pid(&self.record) != Some(std::process::id()) {
                leave(&self.record);
            }
        }
    }
}

/// The cluster, and who it is.
struct Broker {
    cluster: Cluster,
    identity: Embedded,
    topics: BTreeSet<String>,
}

impl Broker {
    fn new(lab: &Lab, control: u16) -> Result<Self> {
        let (cluster, identity) = new_cluster(control)?;
        put_on_record(lab, &identity)?;
        Ok(Self { cluster, identity, topics: BTreeSet::new() })
    }

    /// Answers one caller; `true` when it was told to end.
    fn answer(&mut self, lab: &Lab, stream: &TcpStream) -> Result<bool> {
        stream.set_nodelay(true)?;
        let ask: Ask = serde_json::from_slice(&read_line(stream)?)?;
        let stop = matches!(ask.request, Request::Stop);
        let (answer, replaced) = match self.carry_out(lab, ask) {
            Ok(outcome) => outcome,
            Err(error) => (Answer::Failed(format!("{error:#}")), None),
        };
        let told = matches!(answer, Answer::Done { .. });
        let mut reply = serde_json::to_vec(&answer)?;
        reply.push(b'\n');
        let mut stream = stream;
        stream.write_all(&reply)?;
        // Only now: to end a cluster can take a while.
        if let Some((cluster, bootstrap)) = replaced {
            prodding(&bootstrap, || drop(cluster));
        }
        Ok(stop && told)
    }

    /// The answer, and the cluster that was replaced, if one was.
    fn carry_out(&mut self, lab: &Lab, ask: Ask) -> Result<(Answer, Option<(Cluster, String)>)> {
        if ask.generation != self.identity.generation {
            return Ok((Answer::Stranger, None));
        }
        let mut replaced = None;
        let mut topics_gone = 0;
        match ask.request {
            Request::Greet | Request::Stop => {}
            Request::Topic(topic) if self.topics.contains(&topic) => {}
            Request::Topic(topic) => {
                make_topic(&self.cluster, &self.identity.bootstrap, &topic, 1)?;
                self.topics.insert(topic);
            }
            Request::Fresh(topic, partitions) => {
                let (cluster, identity) = new_cluster(self.identity.control)?;
                make_topic(&cluster, &identity.bootstrap, &topic, partitions)?;
                put_on_record(lab, &identity)?;
                topics_gone = self.topics.iter().filter(|old| **old != topic).count();
                self.topics = BTreeSet::from([topic]);
                let old = std::mem::replace(&mut self.identity, identity);
                replaced = Some((std::mem::replace(&mut self.cluster, cluster), old.bootstrap));
            }
        }
        Ok((Answer::Done { broker: self.identity.clone(), topics_gone }, replaced))
    }
}

/// A line, within the asking time: whoever drips it keeps nobody else waiting.
fn read_line(mut stream: &TcpStream) -> Result<Vec<u8>> {
    let deadline = Instant::now() + ASKING_TIME;
    let mut line = Vec::new();
    let mut chunk = [0; 1024];
    while !line.ends_with(b"\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        anyhow::ensure!(!left.is_zero(), "the caller took too long to say what it wants");
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut chunk)? {
            0 => anyhow::bail!("the caller hung up"),
            n => line.extend_from_slice(&chunk[..n]),
        }
    }
    Ok(line)
}

fn new_cluster(control: u16) -> Result<(Cluster, Embedded)> {
    static CLUSTERS: AtomicU64 = AtomicU64::new(0);
    let cluster = MockCluster::new(1)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let pid = std::process::id();
    let nth = CLUSTERS.fetch_add(1, Ordering::Relaxed);
    let bootstrap = cluster.bootstrap_servers();
    Ok((cluster, Embedded { pid, bootstrap, control, generation: format!("{now:x}-{pid}-{nth}") }))
}

fn put_on_record(lab: &Lab, identity: &Embedded) -> Result<()> {
    lab.write_whole(&record_path(lab), &serde_json::to_vec(identity)?)
}

/// Makes a topic, if it is not there already.
fn make_topic(cluster: &Cluster, bootstrap: &str, topic: &str, partitions: i32) -> Result<()> {
    match prodding(bootstrap, || cluster.create_topic(topic, partitions, 1)) {
        Ok(()) | Err(KafkaError::MockCluster(RDKafkaErrorCode::TopicAlreadyExists)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Calls into the cluster. Such a call now and then misses its wake-up and then waits a second for the next;
/// a connection to the cluster's listener is one.
fn prodding<T>(bootstrap: &str, call: impl FnOnce() -> T) -> T {
    let listener: Option<SocketAddr> = bootstrap.parse().ok();
    thread::scope(|scope| {
        let (done, called) = channel::<()>();
        scope.spawn(move || {
            while called.recv_timeout(Duration::from_millis(5)) == Err(RecvTimeoutError::Timeout) {
                let _ = listener.map(|address| TcpStream::connect_timeout(&address, Duration::from_millis(20)));
            }
        });
        let answer = call();
        drop(done);
        answer
    })
}
