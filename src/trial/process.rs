//! Lab processes of a trial: run to their end, held, killed, and all ended when the run is interrupted.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

pub use super::ended::Ended;
use super::ended::{inconclusive, last_lines, passages};
use super::freeze;
use super::patience::deadline;
pub use super::patience::wait_for;
use crate::crash::{CrashPoint, HoldAt, ending_signals};
use crate::failure::Exit;
use crate::lab::Lab;

/// What has to be ended when the run is interrupted.
static AT_WORK: Mutex<AtWork> = Mutex::new(AtWork { pids: Vec::new(), labs: Vec::new() });

/// Has a signal come that ends the run?
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

struct AtWork {
    pids: Vec<u32>,
    labs: Vec<Lab>,
}

fn at_work_now() -> MutexGuard<'static, AtWork> {
    AT_WORK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Puts a lab on the list of what has to be given back.
pub fn at_work(lab: &Lab) {
    at_work_now().labs.push(lab.clone());
}

/// Starts or freezes a broker, without an interrupt in the middle: either it comes first, and the step is never taken, or it
/// finds what the step has made of the broker, and gives that back.
pub fn undisturbed<T>(step: impl FnOnce() -> T) -> T {
    let _held = at_work_now();
    step()
}

/// From here on Ctrl-C and SIGTERM end every lab process of the run, let every frozen broker go on, and give back brokers
/// and topics, before the run itself ends. To be called before any thread is started: they inherit the mask.
///
/// # Errors
/// The signals cannot be waited for.
pub fn on_interrupt() -> Result<()> {
    let signals = ending_signals();
    signals.thread_block()?;
    thread::spawn(move || {
        let Ok(signal) = signals.wait() else { return };
        INTERRUPTED.store(true, Ordering::SeqCst);
        // Held while the process ends: nobody starts another.
        let at_work = at_work_now();
        for pid in &at_work.pids {
            kill_group(*pid);
        }
        for lab in &at_work.labs {
            let _ = freeze::thaw(lab);
            let _ = command(lab, "clean").and_then(|mut command| Ok(command.output()?));
        }
        std::process::exit(128 + signal as i32);
    });
    Ok(())
}

/// Hands on what a run came to. Where that is an error, brokers and topics are given back all the same.
///
/// # Errors
/// That of the run.
pub fn give_back<T>(outcome: Result<T>) -> Result<T> {
    if outcome.is_err() {
        // Whatever failed, failed because everything is being ended: that is not to end the process before it is done.
        while INTERRUPTED.load(Ordering::SeqCst) {
            thread::park();
        }
        let labs = std::mem::take(&mut at_work_now().labs);
        for lab in &labs {
            let _ = freeze::thaw(lab);
            let _ = run(lab, "clean");
        }
    }
    outcome
}

/// Gives back what a lab holds outside its folder.
pub fn clean(lab: &Lab) -> Result<()> {
    freeze::thaw(lab)?;
    let ended = run(lab, "clean")?;
    at_work_now().labs.retain(|at_work| at_work.dir != lab.dir);
    ended.expect("clean", Exit::Done)
}

/// A lab command that stands at its crash point.
pub struct Held {
    line: String,
    child: Child,
    stdout: Receiver<String>,
    stderr: Receiver<String>,
    printed: Vec<String>,
    /// Lines of its standard error that came before the one that says where it is held, and nobody has waited for yet: the
    /// client's threads speak when they like.
    unheard: VecDeque<String>,
    at: String,
}

impl Held {
    /// Its command line.
    pub fn line(&self) -> &str {
        &self.line
    }

    /// What it has printed since it was last let go on.
    pub fn printed(&self) -> &[String] {
        &self.printed
    }

    /// Where it says that it is held, which is where it was asked to hold.
    ///
    /// # Errors
    /// It names no crash point.
    pub fn at(&self) -> Result<HoldAt> {
        self.at.parse().map_err(|reason| anyhow::anyhow!("a hold that cannot be read: {reason}"))
    }

    /// How often it has passed a crash point until now, this passage among them, as it told with `--trace`.
    pub fn passed(&self, point: CrashPoint) -> u32 {
        passages(self.unheard.iter()).iter().find(|passed| passed.point == point).map_or(0, |passed| passed.nth)
    }

    /// Waits for a line of its standard error that contains this. Words are waited for in the order in which they are said.
    ///
    /// # Errors
    /// Inconclusive: none comes in time.
    pub fn await_word(&mut self, word: &str) -> Result<()> {
        let deadline = deadline();
        let mut heard = Vec::new();
        while let Some(line) = self.next_said(deadline) {
            if line.contains(word) {
                return Ok(());
            }
            heard.push(line);
        }
        Err(inconclusive(&self.line, &format!("did not say \"{word}\""), &heard.join("\n  ")))
    }

    fn next_said(&mut self, deadline: Instant) -> Option<String> {
        self.unheard.pop_front().or_else(|| self.next_line_said(deadline))
    }

    fn next_line_said(&self, deadline: Instant) -> Option<String> {
        self.stderr.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()
    }

    /// SIGUSR1.
    pub fn go_on(&mut self) -> Result<()> {
        self.printed.clear();
        self.unheard.clear();
        self.signal(Signal::SIGUSR1)
    }

    /// SIGUSR1, and what it prints until its next hold.
    pub fn next_hold(&mut self) -> Result<Vec<String>> {
        self.go_on()?;
        self.await_hold()?;
        Ok(self.printed.clone())
    }

    /// Its end, and what it has printed since it was last let go on.
    pub fn end(mut self) -> Result<Ended> {
        let deadline = deadline();
        // A process that has ended has closed its output, unless another holds that, too.
        loop {
            match self.stdout.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => self.printed.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => return Err(self.is_late("did not end in time")),
            }
        }
        self.ended(deadline)
    }

    /// What it comes to, once its output is closed. It may have closed that, and live on.
    fn ended(&mut self, deadline: Instant) -> Result<Ended> {
        let status = loop {
            match self.child.try_wait()? {
                Some(status) => break status,
                None if Instant::now() > deadline => return Err(self.is_late("did not end in time")),
                // It is on its last steps: a sweep has no millisecond to give away here.
                None => thread::sleep(Duration::from_micros(100)),
            }
        };
        let said = std::iter::from_fn(|| self.next_line_said(deadline)).collect();
        Ok(Ended { printed: std::mem::take(&mut self.printed), said, status })
    }

    /// Inconclusive, with its last lines. Not waited for yet, it still has its pid: whatever a script has started, and would
    /// leave behind, is ended with it.
    fn is_late(&self, what: &str) -> anyhow::Error {
        let said: Vec<_> = self.unheard.iter().cloned().chain(self.stderr.try_iter()).collect();
        kill_group(self.child.id());
        inconclusive(&self.line, what, &last_lines(self.printed.iter().chain(&said)))
    }

    /// SIGKILL from outside. Returns its pid and the signal that it died of.
    pub fn kill(mut self) -> Result<(u32, i32)> {
        let pid = self.child.id();
        // It may have died on its own by now, which the status will tell.
        kill_group(pid);
        let status = self.child.wait().context("a child that cannot be waited for")?;
        match status.signal() {
            Some(signal) if signal == Signal::SIGKILL as i32 => Ok((pid, signal)),
            _ => {
                Err(inconclusive(&self.line, &format!("did not die of the kill: {status}"), &self.printed.join("\n  ")))
            }
        }
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(i32::try_from(self.child.id())?), signal)?)
    }

    fn await_hold(&mut self) -> Result<()> {
        let deadline = deadline();
        loop {
            match self.stdout.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    let holds = line.contains("HOLD");
                    self.printed.push(line);
                    if holds {
                        self.hear_where(deadline);
                        if asked_for(&self.line).contains(&self.at) {
                            return Ok(());
                        }
                        let what = format!("is held at {}, which nobody asked for", self.at);
                        return Err(inconclusive(&self.line, &what, ""));
                    }
                }
                Err(RecvTimeoutError::Timeout) => return Err(self.is_late("came to no hold in time")),
                Err(RecvTimeoutError::Disconnected) => {
                    let ended = self.ended(deadline)?;
                    let what = format!("ended by itself, with {}, and came to no hold", ended.status);
                    return Err(inconclusive(&self.line, &what, &ended.last_lines()));
                }
            }
        }
    }
}

impl Held {
    /// The hint on standard error names the point, also where the book's words on standard output do not.
    fn hear_where(&mut self, deadline: Instant) {
        "an unnamed point".clone_into(&mut self.at);
        while let Some(line) = self.next_line_said(deadline) {
            if let Some(at) = line.strip_prefix("outbox-lab: held at ").and_then(|rest| rest.split(',').next()) {
                at.clone_into(&mut self.at);
                return;
            }
            self.unheard.push_back(line);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let pid = self.child.id();
        // One that has been waited for has given its pid back.
        if matches!(self.child.try_wait(), Ok(None)) {
            kill_group(pid);
            let _ = self.child.wait();
        }
        at_work_now().pids.retain(|at_work| *at_work != pid);
    }
}

/// Runs a command line to its end.
pub fn run(lab: &Lab, line: &str) -> Result<Ended> {
    start(lab, line)?.end()
}

/// Runs a command line until it holds.
pub fn hold(lab: &Lab, line: &str) -> Result<Held> {
    let mut held = start(lab, line)?;
    held.await_hold()?;
    Ok(held)
}

/// Starts a lab command, on the list of what has to be ended when the run is interrupted.
fn start(lab: &Lab, line: &str) -> Result<Held> {
    let mut child = {
        let mut at_work = at_work_now();
        let child = command(lab, line)?.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let child = child.context("this program cannot be started a second time")?;
        at_work.pids.push(child.id());
        child
    };
    let (stdout, stderr) = (lines_of(child.stdout.take()), lines_of(child.stderr.take()));
    Ok(Held {
        line: line.to_owned(),
        child,
        stdout,
        stderr,
        printed: Vec::new(),
        unheard: VecDeque::new(),
        at: String::new(),
    })
}

/// SIGKILL to a lab process and to whatever it has started, should it be a script; a broker is in a session of its own.
fn kill_group(pid: u32) {
    if let Ok(pid) = i32::try_from(pid) {
        let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
    }
}

/// The holds that a command line asks for, as the process will name them.
fn asked_for(line: &str) -> Vec<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut holds: Vec<String> =
        words.windows(2).filter(|pair| pair[0] == "--hold-at").map(|pair| pair[1].to_owned()).collect();
    // Where the book holds.
    match words[..] {
        ["naive-hold", ..] => holds.push("before-send".to_owned()),
        ["publish-hold", ..] => holds.push("before-mark".to_owned()),
        ["write-hold", n, ..] => holds.push(format!("after-commit@{n}")),
        _ => {}
    }
    holds.into_iter().map(|hold| hold.strip_suffix("@1").map_or(hold.clone(), ToOwned::to_owned)).collect()
}

/// The lab command of a trial: this very binary, or the one that is to be judged in its place.
fn command(lab: &Lab, line: &str) -> Result<Command> {
    let program = match std::env::var_os("OUTBOX_LAB_BIN") {
        Some(program) => PathBuf::from(program),
        None => std::env::current_exe().context("this program's own path is not known")?,
    };
    let mut command = Command::new(program);
    command.args(line.split_whitespace()).stdin(Stdio::null());
    for (key, value) in &lab.properties {
        command.arg("-X").arg(format!("{key}={value}"));
    }
    command.env("OUTBOX_LAB_DIR", &lab.dir).env("OUTBOX_LAB_DB", &lab.db).env("OUTBOX_LAB_TOPIC", &lab.topic);
    match &lab.kafka {
        Some(servers) => command.env("KAFKA_BOOTSTRAP", servers),
        None => command.env_remove("KAFKA_BOOTSTRAP"),
    };
    Ok(command)
}

fn lines_of(source: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in source.into_iter().flat_map(|source| BufReader::new(source).lines()).map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}
