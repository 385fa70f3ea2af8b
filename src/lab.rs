//! Where this run's database, broker and topic are, and who else is at work in the same lab directory.

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::cli::Place;
use crate::failure::Failure;
use crate::lock::{Kind, LockFile};
use crate::output::hint;

/// How long a command waits for a `reset` that is at work, and a `reset` for commands that are just dying.
const RESET_PATIENCE: Duration = Duration::from_secs(5);
const DYING_PATIENCE: Duration = Duration::from_millis(300);

/// One lab: a directory, a database, a broker and a topic.
pub struct Lab {
    /// The lab directory: the embedded broker's state, the locks, the record of topics made.
    pub dir: PathBuf,
    /// The business database, as it was named.
    pub db: PathBuf,
    /// The topic.
    pub topic: String,
    /// A real Kafka's bootstrap servers; `None` is the embedded broker.
    pub kafka: Option<String>,
    /// librdkafka properties from `-X`, in order.
    pub properties: Vec<(String, String)>,
}

impl Lab {
    /// The lab that the options name.
    pub fn new(place: &Place) -> Self {
        Self {
            dir: place.dir.clone(),
            db: place.db.clone().unwrap_or_else(|| place.dir.join("outbox.db")),
            topic: place.topic.clone(),
            kafka: place.bootstrap.clone().filter(|servers| !servers.is_empty()),
            properties: place.properties.clone(),
        }
    }

    /// Makes the lab directory, readable by its owner only, and the folders above it.
    ///
    /// # Errors
    /// It cannot be made, or something else has its name.
    pub fn make_dir(&self) -> Result<()> {
        let failed = |error: io::Error| {
            Failure::failed(
                format!("the lab directory {} cannot be made ({error})", self.dir.display()),
                "take a directory of your own: --dir DIR, or OUTBOX_LAB_DIR",
            )
        };
        if self.has_dir()? {
            return Ok(());
        }
        if let Some(parent) = self.dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        match DirBuilder::new().mode(0o700).create(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && self.dir.is_dir() => Ok(()),
            made => made.map_err(failed),
        }
    }

    /// Is there a lab directory?
    ///
    /// # Errors
    /// Something else has its name.
    pub fn has_dir(&self) -> Result<bool> {
        match fs::metadata(&self.dir) {
            Ok(found) if !found.is_dir() => Err(Failure::failed(
                format!("the lab directory {} is no directory", self.dir.display()),
                "name the right one: --dir DIR, or OUTBOX_LAB_DIR",
            )),
            found => Ok(found.is_ok()),
        }
    }

    /// Says that a command is alive in this lab directory, for as long as the value lives. Where there is no
    /// directory there is nothing to reset either, so nothing to say.
    ///
    /// # Errors
    /// A `reset` is at work here and does not end; or the directory cannot be written, or is none.
    pub fn enter(&self) -> Result<Option<LockFile>> {
        if !self.has_dir()? {
            return Ok(None);
        }
        let alive = self.lock_file("alive.lock")?;
        match wait_for(&alive, Kind::Shared, RESET_PATIENCE)? {
            None => Ok(Some(alive)),
            Some(pid) => Err(Failure::failed(
                format!("a reset is at work in the lab directory {}: pid {pid}", self.dir.display()),
                format!("let it end (if it is held: kill -9 {pid}), or take another --dir"),
            )),
        }
    }

    /// As [`Lab::enter`], for the command that empties everything: alone or not at all.
    ///
    /// # Errors
    /// Another command of this lab directory is alive; its pid is named.
    pub fn enter_alone(&self) -> Result<LockFile> {
        let alive = self.lock_file("alive.lock")?;
        match wait_for(&alive, Kind::Exclusive, DYING_PATIENCE)? {
            None => Ok(alive),
            Some(pid) => Err(Failure::failed(
                format!("another command is alive in the lab directory {}: pid {pid}", self.dir.display()),
                format!("let it end, or kill -9 {pid}; then type reset again. Nothing was changed"),
            )),
        }
    }

    /// Opens a lock file of the lab directory.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn lock_file(&self, name: &str) -> Result<LockFile> {
        LockFile::open(&self.dir.join(name)).map_err(|error| self.not_writable(&error))
    }

    /// Writes a file of the lab directory whole: no reader ever sees half of it.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn write_whole(&self, path: &Path, content: &[u8]) -> Result<()> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}", std::process::id()));
        let draft = path.with_file_name(name);
        let write = || -> io::Result<()> {
            let mut file = fs::File::create(&draft)?;
            file.write_all(content)?;
            file.sync_all()?;
            fs::rename(&draft, path)
        };
        write().map_err(|error| self.not_writable(&error))
    }

    fn not_writable(&self, error: &io::Error) -> anyhow::Error {
        Failure::failed(
            format!("the lab directory {} cannot be written ({error})", self.dir.display()),
            format!("allow it (chmod u+rwx {}), or take another with --dir", self.dir.display()),
        )
    }
}

/// Waits until the lock is there, and names who has it when patience ends.
fn wait_for(lock: &LockFile, kind: Kind, patience: Duration) -> Result<Option<u32>> {
    let deadline = Instant::now() + patience;
    let mut told = false;
    loop {
        if lock.try_lock(kind)? {
            return Ok(None);
        }
        let holder = lock.holder(kind)?;
        if let Some(pid) = holder.filter(|_| Instant::now() >= deadline) {
            return Ok(Some(pid));
        }
        if let Some(pid) = holder.filter(|_| kind == Kind::Shared && !told) {
            hint(&format!("waiting for the reset of pid {pid}"));
            told = true;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
