//! A trial: a lab of its own, and the processes that live and die in it. Every lab process is a separate process of this
//! very binary, and dies by a SIGKILL from outside; its wait status is the proof.

mod ended;
mod freeze;
pub mod patience;
pub mod process;
mod receipt;
mod rows;

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

pub use self::freeze::can_freeze;
pub use self::process::{Ended, Held, on_interrupt};
pub use self::receipt::{Left, Receipt, Receipts};
use crate::broker::{Ending, Reader, embedded};
use crate::event::Record;
use crate::failure::{Exit, Failure};
use crate::lab::Lab;
use crate::output::{Line, Output};
use crate::reconcile::{Reconciliation, listed};
use crate::store::Store;
use crate::verdict::{Check, Proofs, SkippedPart};

/// One play of an experiment.
pub struct Trial<'a> {
    /// Its lab.
    pub lab: Lab,
    name: &'static str,
    receipts: &'a Receipts,
    out: &'a Output,
    /// What was found, beside what was predicted.
    pub checks: Vec<Check>,
    /// What was proved to have happened.
    pub proofs: Proofs,
    /// Which parts were not played.
    pub skipped: Vec<SkippedPart>,
}

impl<'a> Trial<'a> {
    /// A trial in a lab of its own: the folder `trials/NAME` of the lab directory, emptied. On a real Kafka its topic bears
    /// the lab's prefix and the id of the run.
    ///
    /// # Errors
    /// The lab directory cannot be written.
    pub fn new(lab: &Lab, name: &'static str, receipts: &'a Receipts, out: &'a Output) -> Result<Self> {
        let dir = fresh_folder(lab, name)?;
        let topic = match lab.kafka {
            Some(_) => format!("outbox-lab.{name}.{}", receipts.run()),
            None => lab.topic.clone(),
        };
        let lab =
            Lab { db: dir.join("outbox.db"), dir, topic, kafka: lab.kafka.clone(), properties: lab.properties.clone() };
        process::at_work(&lab);
        Ok(Self { lab, name, receipts, out, checks: Vec::new(), proofs: Proofs::default(), skipped: Vec::new() })
    }

    /// Tells what happens, as a line of the transcript.
    ///
    /// # Errors
    /// Standard output is closed or full.
    pub fn tell(&self, text: &str) -> Result<()> {
        self.out.line(&Line::Told { text })
    }

    /// Tells what a lab process printed, without the one thing in it that is not the same everywhere: the trial's folder.
    fn tell_printed(&self, printed: &[String]) -> Result<()> {
        let folder = format!("{}/", self.lab.dir.display());
        printed.iter().try_for_each(|line| self.tell(&line.replace(&folder, "")))
    }

    /// Runs a command line that has to succeed.
    ///
    /// # Errors
    /// Inconclusive: it ended otherwise.
    pub fn run(&self, line: &str) -> Result<Ended> {
        let ended = self.play(line)?;
        ended.expect(line, Exit::Done)?;
        Ok(ended)
    }

    /// Runs a command line that has to fail.
    ///
    /// # Errors
    /// Inconclusive: it ended otherwise.
    pub fn run_failing(&self, line: &str) -> Result<Ended> {
        let ended = self.play(line)?;
        ended.expect(line, Exit::Failed)?;
        Ok(ended)
    }

    /// Runs a command line that judges what it finds, and may find it otherwise: the checks tell.
    ///
    /// # Errors
    /// Inconclusive: it came to no judgement.
    pub fn run_judging(&self, line: &str) -> Result<Ended> {
        let ended = self.play(line)?;
        if !ended.exited(Exit::Unexpected) {
            ended.expect(line, Exit::Done)?;
        }
        Ok(ended)
    }

    fn play(&self, line: &str) -> Result<Ended> {
        self.tell(&format!("$ outbox-lab {line}"))?;
        let ended = process::run(&self.lab, line)?;
        self.tell_printed(&ended.printed)?;
        Ok(ended)
    }

    /// Runs a command line until it holds.
    ///
    /// # Errors
    /// Inconclusive: it ended by itself, or came to no hold in time.
    pub fn hold(&self, line: &str) -> Result<Held> {
        self.tell(&format!("$ outbox-lab {line}"))?;
        let held = process::hold(&self.lab, line)?;
        self.tell_printed(held.printed())?;
        Ok(held)
    }

    /// Lets a held process go on to its next hold.
    ///
    /// # Errors
    /// Inconclusive: it comes to none.
    pub fn to_next_hold(&self, held: &mut Held) -> Result<()> {
        self.tell("$ kill -USR1 <pid>")?;
        self.tell_printed(&held.next_hold()?)
    }

    /// Lets a held process go on to its end, which has to be this one.
    ///
    /// # Errors
    /// Inconclusive: it ended otherwise.
    pub fn to_end(&self, mut held: Held, exit: Exit) -> Result<Ended> {
        self.go_on(&mut held)?;
        self.await_end(held, exit)
    }

    /// Lets a held process go on, without waiting for anything.
    ///
    /// # Errors
    /// It is gone.
    pub fn go_on(&self, held: &mut Held) -> Result<()> {
        self.tell("$ kill -USR1 <pid>")?;
        held.go_on()
    }

    /// Waits for the end of a process that was let go on, which has to be this one.
    ///
    /// # Errors
    /// Inconclusive: it ended otherwise.
    pub fn await_end(&self, held: Held, exit: Exit) -> Result<Ended> {
        let line = held.line().to_owned();
        let ended = held.end()?;
        self.tell_printed(&ended.printed)?;
        ended.expect(&line, exit)?;
        Ok(ended)
    }

    /// Kills a held process from outside, proves it, and leaves the receipt. `in_flight` are the ids of the events that
    /// it had sent and not had acknowledged.
    ///
    /// # Errors
    /// Inconclusive: it did not die of signal 9.
    pub fn kill(&mut self, held: Held, in_flight: &[&str]) -> Result<()> {
        let before = self.left()?;
        self.kill_after(held, in_flight, before)
    }

    /// As [`Trial::kill`], where the counts before it were taken earlier, since the broker is frozen by now.
    ///
    /// # Errors
    /// As [`Trial::kill`].
    pub fn kill_after(&mut self, held: Held, in_flight: &[&str], before: Left) -> Result<()> {
        self.tell("$ kill -9 <pid>")?;
        let at = held.at()?;
        let (pid, signal) = held.kill()?;
        let after =
            if freeze::is_frozen(&self.lab) { Left { records: None, ..self.left_rows()? } } else { self.left()? };
        let in_flight = in_flight.iter().map(ToString::to_string).collect();
        self.receipts.add(&Receipt { trial: self.name.to_owned(), at, pid, signal, in_flight, before, after })?;
        self.proofs.kills += 1;
        self.tell(&format!("died of signal {signal} at {at}"))
    }

    /// Freezes the broker (SIGSTOP, or `docker pause`): it answers nothing and loses nothing.
    ///
    /// # Errors
    /// It is not one that the lab may freeze.
    pub fn freeze_broker(&mut self) -> Result<()> {
        freeze::freeze(&self.lab)?;
        self.tell("(the broker is frozen)")
    }

    /// Lets the frozen broker go on.
    ///
    /// # Errors
    /// It is gone.
    pub fn thaw_broker(&mut self) -> Result<()> {
        self.proofs.disturbances += freeze::thaw(&self.lab)?;
        self.tell("(the broker goes on)")
    }

    /// Notes a disturbance that is not a kill, and was seen to have happened.
    pub fn disturbed(&mut self) {
        self.proofs.disturbances += 1;
    }

    /// Holds what was found against what was predicted.
    ///
    /// # Errors
    /// Standard output is closed or full.
    pub fn check(&mut self, what: &str, predicted: impl Display, found: impl Display) -> Result<()> {
        let check = Check { what: what.to_owned(), predicted: predicted.to_string(), found: found.to_string() };
        self.tell(&check.to_string())?;
        self.checks.push(check);
        Ok(())
    }

    /// Says which part was not played, and why. It counts neither way: the proofs of that part are not owed.
    ///
    /// # Errors
    /// Standard output is closed or full.
    pub fn skip(&mut self, part: &str, why: &str, not_owed: Proofs) -> Result<()> {
        self.tell(&format!("SKIPPED {part}: {why}"))?;
        self.skipped.push(SkippedPart { part: part.to_owned(), why: why.to_owned(), not_owed });
        Ok(())
    }

    /// The records of the whole topic; none where there is no topic yet.
    ///
    /// # Errors
    /// Inconclusive: the reading is not the whole topic.
    pub fn records(&self) -> Result<Vec<Record>> {
        self.read(&self.lab)
    }

    /// As [`Trial::records`], with those of Kafka transactions that are open or were aborted.
    ///
    /// # Errors
    /// As [`Trial::records`].
    pub fn records_of_any_transaction(&self) -> Result<Vec<Record>> {
        let mut lab = self.lab.clone();
        lab.properties.push(("isolation.level".to_owned(), "read_uncommitted".to_owned()));
        self.read(&lab)
    }

    fn read(&self, lab: &Lab) -> Result<Vec<Record>> {
        let mut records = Vec::new();
        let Some(reader) = Reader::find(lab)? else { return Ok(records) };
        let ending = reader.read(|record| {
            records.push(record);
            Ok(())
        })?;
        match ending {
            Ending::Whole => Ok(records),
            ending => Err(Failure::inconclusive(
                format!("the topic of {} could not be read to its end: {ending:?}", self.name),
                "see that the broker is up, then play it again",
            )),
        }
    }

    /// Waits until the topic has so many records.
    ///
    /// # Errors
    /// Inconclusive: it does not come to that in time.
    pub fn await_records(&self, n: usize) -> Result<()> {
        process::wait_for(&format!("{n} records in the topic"), || Ok(self.records()?.len() >= n))
    }

    /// Database against topic.
    ///
    /// # Errors
    /// As [`Trial::records`]; or the database cannot be read.
    pub fn reconcile(&self) -> Result<Reconciliation> {
        let (loans, outbox) = Store::open(&self.lab.db)?.snapshot()?;
        Ok(Reconciliation::of(&loans, &outbox, &self.records()?))
    }

    /// The database of the trial.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn store(&self) -> Result<Store> {
        Store::open(&self.lab.db)
    }

    /// The event ids of the records, copies included, in the order in which they lie in the topic; "none" where there is none.
    ///
    /// # Errors
    /// As [`Trial::records`].
    pub fn topic(&self) -> Result<String> {
        let ids = |record: &Record| record.event_id().unwrap_or("a record without an event id").to_owned();
        Ok(listed(self.records()?.iter().map(ids)))
    }

    /// The counts of database and topic. An open Kafka transaction holds back the end of the topic from a reader of
    /// committed records, so what lies there is counted, whatever will become of it.
    ///
    /// # Errors
    /// Either cannot be read.
    pub fn left(&self) -> Result<Left> {
        Ok(Left { records: Some(self.records_of_any_transaction()?.len() as u64), ..self.left_rows()? })
    }

    fn left_rows(&self) -> Result<Left> {
        let store = Store::open(&self.lab.db)?;
        Ok(Left { counts: store.counts()?, effects: store.effect_count()?, records: None })
    }

    /// Gives back what the trial holds outside its folder.
    ///
    /// # Errors
    /// The broker does not end, or a topic is not deleted.
    pub fn end(self) -> Result<()> {
        process::clean(&self.lab)
    }
}

/// Says in a trial's folder that the lab made it.
const MARK: &str = "made-by-outbox-lab";

/// An empty folder `trials/NAME` of the lab directory. What an earlier run left there goes, with a broker that it left
/// running or frozen; what the lab did not make stays.
///
/// # Errors
/// Something is there that the lab did not make; or the lab directory cannot be written.
pub fn fresh_folder(lab: &Lab, name: &str) -> Result<PathBuf> {
    let dir = lab.dir.join("trials").join(name);
    let is_own =
        |dir: &Path| dir.join(MARK).is_file() || fs::read_dir(dir).is_ok_and(|mut found| found.next().is_none());
    let found = fs::symlink_metadata(&dir);
    if found.as_ref().is_ok_and(|found| !found.is_dir() || !is_own(&dir)) {
        return Err(Failure::failed(
            format!("{} is there, and the lab did not make it: nothing was deleted", dir.display()),
            "move it away, or take another --dir",
        ));
    }
    fs::create_dir_all(&dir)?;
    // The first to come, and it does not go: a run that is ended here leaves nothing that the next one would not know.
    fs::write(dir.join(MARK), "")?;
    if found.is_ok() {
        embedded::end_leftover(&Lab { dir: dir.clone(), ..lab.clone() })?;
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            if entry.file_name() == MARK {
                continue;
            }
            if entry.file_type()?.is_dir() {
                fs::remove_dir_all(entry.path())?;
            } else {
                fs::remove_file(entry.path())?;
            }
        }
    }
    Ok(dir)
}
