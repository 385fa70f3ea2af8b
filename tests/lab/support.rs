//! What the tests are written in: a lab of one's own, a command that has ended, a command that holds.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Once, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use tempfile::TempDir;

/// How long anything may take before a test gives up on it. No test waits so long unless it fails.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// The binary under test.
pub const BINARY: &str = env!("CARGO_BIN_EXE_outbox-lab");

/// The project's root.
pub const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// A folder with a lab in it. Dropped, it gives back its broker or its topics.
pub struct Lab {
    folder: TempDir,
    /// Bootstrap servers and topic; `None` is the embedded broker.
    pub kafka: Option<(String, String)>,
    _share: Option<Share>,
}

/// Who is on the one real Kafka: tests side by side, or one that freezes it.
static KAFKA: RwLock<()> = RwLock::new(());

enum Share {
    Shared { _guard: RwLockReadGuard<'static, ()> },
    Alone { _guard: RwLockWriteGuard<'static, ()> },
}

impl Lab {
    /// A lab on the embedded broker.
    pub fn new() -> Self {
        heed_signals();
        Self { folder: tempfile::tempdir().unwrap(), kafka: None, _share: None }
    }

    /// As [`Lab::on_kafka`], while no other test is on it: for one that freezes it.
    pub fn alone_on_kafka(test: &str) -> Option<Self> {
        let mut lab = Self::on_kafka(test)?;
        lab._share = None;
        // Never queued for: some tests have two labs, and would wait for one that waits for them.
        let guard = loop {
            match KAFKA.try_write() {
                Ok(guard) => break guard,
                Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(5)),
            }
        };
        lab._share = Some(Share::Alone { _guard: guard });
        Some(lab)
    }

    /// A lab on the real Kafka that `KAFKA_BOOTSTRAP` names, with a topic of its own. Where none is named, says
    /// that `test` was not run.
    pub fn on_kafka(test: &str) -> Option<Self> {
        static LABS: AtomicU32 = AtomicU32::new(0);
        let Some(servers) = std::env::var("KAFKA_BOOTSTRAP").ok().filter(|servers| !servers.is_empty()) else {
            not_run(test, "KAFKA_BOOTSTRAP is not set, so there is no real Kafka");
            return None;
        };
        let started = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis();
        let nth = LABS.fetch_add(1, Ordering::Relaxed);
        let topic = format!("outbox-lab.test.{started}.{}.{nth}", std::process::id());
        let mut lab = Self::new();
        lab.kafka = Some((servers, topic));
        lab._share = Some(Share::Shared { _guard: KAFKA.read().unwrap_or_else(PoisonError::into_inner) });
        Some(lab)
    }

    /// The folder; the lab directory is `.lab` in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A lab command, to be run in the folder, with nothing of the caller's environment that names a lab.
    pub fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        self.program(BINARY, args)
    }

    /// Another program in the same surroundings.
    pub fn program<S: AsRef<OsStr>>(&self, program: impl AsRef<OsStr>, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(program);
        command.args(args).current_dir(self.folder.path()).stdin(Stdio::null());
        for name in ["OUTBOX_LAB_DIR", "OUTBOX_LAB_DB", "OUTBOX_LAB_TOPIC", "KAFKA_BOOTSTRAP", "OUTBOX_LAB_BIN"] {
            command.env_remove(name);
        }
        if let Some((servers, topic)) = &self.kafka {
            command.env("KAFKA_BOOTSTRAP", servers).env("OUTBOX_LAB_TOPIC", topic);
        }
        command
    }

    /// Runs a command line to its end.
    pub fn run(&self, line: &str) -> Ended {
        Ended::of(line, self.command(line.split_whitespace()).output().unwrap())
    }

    /// Runs a command line that must succeed, and returns what it printed.
    #[track_caller]
    pub fn ok(&self, line: &str) -> String {
        self.run(line).exits(0).stdout
    }

    /// Runs command lines side by side, each to its end. The outcomes are in the order of the lines.
    #[track_caller]
    pub fn at_once<L: AsRef<str>>(&self, lines: impl IntoIterator<Item = L>) -> Vec<Ended> {
        let commands = lines.into_iter().map(|line| {
            let mut command = self.command(line.as_ref().split_whitespace());
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            (line.as_ref().to_owned(), command)
        });
        all_to_their_ends(commands.collect())
    }

    /// Runs a command line until it prints its HOLD line.
    #[track_caller]
    pub fn hold(&self, line: &str) -> Held {
        let mut held = Held::start(line, self.command(line.split_whitespace()));
        held.until_hold();
        held
    }

    /// The book's chapter, up to the count: five rows written, three sent twice.
    #[track_caller]
    pub fn play_chapter(&self) {
        self.ok("reset");
        self.hold("write-hold 5").kill();
        self.hold("publish-hold 3").kill();
        self.ok("publish 10");
    }

    /// The four counts, as verify prints them: business_loan, outbox, published, unpublished.
    #[track_caller]
    pub fn counts(&self) -> [u64; 4] {
        let line = self.ok("--json verify");
        let json: serde_json::Value = serde_json::from_str(&line).unwrap();
        ["business_loan", "outbox", "published", "unpublished"].map(|name| json[name].as_u64().unwrap())
    }

    /// The keys of the whole topic, in the order in which they lie there.
    #[track_caller]
    pub fn keys(&self) -> Vec<String> {
        self.ok("consume").lines().map(|line| line.split_once(',').unwrap().0.to_owned()).collect()
    }

    /// Sends a record as another program would, to the embedded broker.
    pub fn send_foreign(&self, key: Option<&str>, payload: &str) {
        let up = self.ok("broker status");
        let servers = up.trim().strip_prefix("[broker] up ").unwrap();
        let producer: BaseProducer = ClientConfig::new().set("bootstrap.servers", servers).create().unwrap();
        let mut record = BaseRecord::<str, str>::to("v2c7.outbox").payload(payload);
        if let Some(key) = key {
            record = record.key(key);
        }
        producer.send(record).unwrap();
        producer.flush(DEADLINE).unwrap();
    }

    /// The pid of the embedded broker.
    pub fn broker_pid(&self) -> Pid {
        let record = std::fs::read(self.path(".lab/broker.json")).unwrap();
        let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
        Pid::from_raw(record["pid"].as_i64().unwrap().try_into().unwrap())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let ended = self.run("clean");
        if !thread::panicking() {
            ended.exits(0);
        }
    }
}

/// Gives what the tests start the usual signals. In the background of a script SIGINT is ignored, under nohup SIGHUP, and
/// no child could change that: but a signal that has a handler here is at its default there.
fn heed_signals() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            // Here, too, it does what it always does.
            signal_hook::flag::register_conditional_default(signal as i32, Arc::new(AtomicBool::new(true))).unwrap();
        }
    });
}

/// Runs a test on the embedded broker, and on a real Kafka where there is one.
pub fn on_each_broker(test: &str, body: impl Fn(&Lab)) {
    body(&Lab::new());
    if let Some(lab) = Lab::on_kafka(&format!("{test}, on a real Kafka (on the embedded broker it was)")) {
        body(&lab);
    }
}

/// As [`on_each_broker`], for a test that freezes the broker.
pub fn on_each_broker_alone(test: &str, body: impl Fn(&Lab)) {
    body(&Lab::new());
    if let Some(lab) = Lab::alone_on_kafka(test) {
        body(&lab);
    }
}

/// Says in one visible line that a test, or a part of it, was not run. Where `OUTBOX_LAB_NO_SKIP` is set that
/// is a failure: continuous integration has everything that the tests need.
pub fn not_run(test: &str, why: &str) {
    assert!(std::env::var_os("OUTBOX_LAB_NO_SKIP").is_none(), "{test} has to run here: {why}");
    // Not eprintln!, which the test runner keeps to itself.
    let _ = writeln!(io::stderr(), "NOT RUN: {test}: {why}");
}

/// A command that has ended.
#[derive(Debug)]
pub struct Ended {
    pub line: String,
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    pub fn of(line: &str, output: Output) -> Self {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let ended = Self {
            line: line.to_owned(),
            code: output.status.code(),
            signal: output.status.signal(),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        };
        // Whatever a test is about: no user ever sees one of these.
        for word in ["panicked", "RUST_BACKTRACE", "KafkaError", "stack backtrace"] {
            assert!(!ended.stderr.contains(word), "{ended:#?}");
        }
        ended
    }

    /// Asserts the exit code. An error names the next step.
    #[track_caller]
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{} ended otherwise: {self:#?}", self.line);
        self
    }

    /// Asserts what stands on standard output.
    #[track_caller]
    pub fn prints(self, text: &str) -> Self {
        assert!(self.stdout.contains(text), "no \"{text}\" in {self:#?}");
        self
    }

    /// Asserts how the last line of standard output begins.
    #[track_caller]
    pub fn ends_in(self, text: &str) -> Self {
        let last = self.stdout.lines().last().unwrap_or_default();
        assert!(last.starts_with(text), "no \"{text}\" ends {self:#?}");
        self
    }

    /// Asserts what stands on standard error.
    #[track_caller]
    pub fn says(self, text: &str) -> Self {
        assert!(self.stderr.contains(text), "no \"{text}\" in {self:#?}");
        self
    }

    /// Asserts that the error tells the next step.
    #[track_caller]
    pub fn names_next_step(self) -> Self {
        self.says("\n  next: ")
    }
}

/// A command that stands at its crash point.
pub struct Held {
    line: String,
    child: Option<Child>,
    stdout: Receiver<String>,
    stderr: Receiver<String>,
    /// Lines of standard output so far.
    pub printed: Vec<String>,
}

impl Held {
    /// Starts a command, and waits for nothing yet.
    pub fn start(line: &str, mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = lines_of(child.stdout.take().unwrap());
        let stderr = lines_of(child.stderr.take().unwrap());
        Self { line: line.to_owned(), child: Some(child), stdout, stderr, printed: Vec::new() }
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.as_ref().unwrap().id().try_into().unwrap())
    }

    /// The HOLD line that was read last.
    pub fn hold_line(&self) -> &str {
        self.printed.last().unwrap()
    }

    /// Reads on until the next HOLD line.
    #[track_caller]
    pub fn until_hold(&mut self) {
        if !self.comes_to_hold() {
            let told: Vec<_> = self.stderr.try_iter().collect();
            panic!("{} came to no HOLD; it printed {:?} and said {told:?}", self.line, self.printed);
        }
    }

    /// Reads on until the next HOLD line; `false` says that it has ended without one.
    pub fn comes_to_hold(&mut self) -> bool {
        while let Ok(line) = self.stdout.recv_timeout(DEADLINE) {
            let holds = line.contains("HOLD") || line.starts_with(r#"{"line":"hold""#);
            self.printed.push(line);
            if holds {
                return true;
            }
        }
        false
    }

    /// Reads on until a line of standard output contains this.
    #[track_caller]
    pub fn until_prints(&mut self, text: &str) {
        loop {
            let line = self.stdout.recv_timeout(DEADLINE).expect("the process prints nothing of the kind");
            self.printed.push(line);
            if self.printed.last().is_some_and(|line| line.contains(text)) {
                return;
            }
        }
    }

    /// Waits for a line of standard error that contains this.
    #[track_caller]
    pub fn until_says(&self, text: &str) {
        self.says_next(text);
    }

    /// The next line of standard error that contains this.
    #[track_caller]
    pub fn says_next(&self, text: &str) -> String {
        loop {
            let line = self.stderr.recv_timeout(DEADLINE).expect("the process says nothing of the kind");
            if line.contains(text) {
                return line;
            }
        }
    }

    /// `kill -9` from outside, and the proof that it died of that.
    #[track_caller]
    pub fn kill(mut self) {
        kill(self.pid(), Signal::SIGKILL).unwrap();
        let status = self.child.take().unwrap().wait().unwrap();
        assert_eq!(status.signal(), Some(Signal::SIGKILL as i32), "{} did not die of the kill", self.line);
    }

    /// SIGUSR1: lets it go on.
    pub fn go_on(&self) {
        self.signal(Signal::SIGUSR1);
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Waits for its end; `stdout` is what it printed from first to last.
    pub fn end(mut self) -> Ended {
        let mut child = self.child.take().unwrap();
        let status = wait_for("the end of a command", || child.try_wait().unwrap());
        let mut lines = std::mem::take(&mut self.printed);
        lines.extend(self.stdout.iter());
        let join = |lines: Vec<String>| lines.into_iter().map(|line| line + "\n").collect::<String>();
        let output = Output {
            status,
            stdout: join(lines).into_bytes(),
            stderr: join(self.stderr.iter().collect()).into_bytes(),
        };
        Ended::of(&self.line, output)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs commands side by side, each to its end, with a deadline: a command that holds by mistake does not end.
#[track_caller]
pub fn all_to_their_ends(commands: Vec<(String, Command)>) -> Vec<Ended> {
    let begun = commands.into_iter().map(|(line, mut command)| {
        let child = command.spawn().unwrap();
        let pid = Pid::from_raw(child.id().try_into().unwrap());
        let (sender, outcome) = channel();
        thread::spawn(move || sender.send(child.wait_with_output().unwrap()));
        (line, pid, outcome)
    });
    let begun: Vec<_> = begun.collect();
    let deadline = Instant::now() + DEADLINE;
    let mut ended = Vec::new();
    for (nth, (line, _, outcome)) in begun.iter().enumerate() {
        let Ok(output) = outcome.recv_timeout(deadline.saturating_duration_since(Instant::now())) else {
            // Nobody waits for them any more, so they are not to stay behind.
            for (_, pid, outcome) in &begun[nth..] {
                if outcome.try_recv().is_err() {
                    let _ = kill(*pid, Signal::SIGKILL);
                }
            }
            panic!("{line} does not end");
        };
        ended.push(Ended::of(line, output));
    }
    ended
}

/// Waits for a state, with a deadline.
#[track_caller]
pub fn wait_for<T>(what: &str, mut state: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(value) = state() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Is this process there, and not merely waiting to be reaped?
pub fn is_alive(pid: Pid) -> bool {
    let state = Command::new("ps").args(["-o", "stat=", "-p", &pid.to_string()]).output().unwrap().stdout;
    let state = String::from_utf8_lossy(&state).trim().to_owned();
    !state.is_empty() && !state.starts_with('Z')
}

/// SIGSTOP, and the proof that it has arrived: on a busy machine the process goes on for a while yet.
#[track_caller]
pub fn freeze(pid: Pid) {
    kill(pid, Signal::SIGSTOP).unwrap();
    wait_for("the process to be frozen", || {
        let state = Command::new("ps").args(["-o", "stat=", "-p", &pid.to_string()]).output().unwrap().stdout;
        state.trim_ascii_start().starts_with(b"T").then_some(())
    });
}

/// A process that is ended when it goes out of scope, however the test ends.
pub struct Companion(pub Child);

impl Drop for Companion {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A database opened by another program.
pub fn other_program(path: &Path) -> rusqlite::Connection {
    rusqlite::Connection::open(path).unwrap()
}

/// The whole content of a file.
pub fn bytes(path: &Path) -> Vec<u8> {
    let mut content = Vec::new();
    File::open(path).unwrap().read_to_end(&mut content).unwrap();
    content
}

fn lines_of(source: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(source).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}
