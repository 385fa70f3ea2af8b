//! A store that answers a commit before it has written it: in memory, and copied to its file every 500 ms, as the
//! book's H2 does in its file mode (`WRITE_DELAY`). It is here to be killed.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use rusqlite::Connection;
use rusqlite::backup::Backup;

use super::{Store, file};

/// H2's default.
const WRITE_DELAY: Duration = Duration::from_millis(500);

/// A lab database in memory, and the file that it is copied to.
pub struct DelayedStore {
    memory: Store,
    file: Connection,
    copied: Instant,
}

impl DelayedStore {
    /// Opens the lab database at `path`, or makes it, and reads it into memory.
    ///
    /// # Errors
    /// As [`Store::make`].
    pub fn make(path: &Path) -> Result<Self> {
        let file = file::make(path)?;
        let mut memory = Connection::open_in_memory()?;
        Backup::new(&file, &mut memory)?.step(-1)?;
        Ok(Self { memory: Store::of(memory, path)?, file, copied: Instant::now() })
    }

    /// What is written to: answered at once.
    pub fn store(&mut self) -> &mut Store {
        &mut self.memory
    }

    /// Copies it to the file, if it is time. A process that is held copies nothing.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn copy_if_due(&mut self) -> Result<()> {
        if self.copied.elapsed() < WRITE_DELAY { Ok(()) } else { self.copy() }
    }

    /// Copies it to the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn copy(&mut self) -> Result<()> {
        Backup::new(&self.memory.db, &mut self.file)?.step(-1)?;
        self.copied = Instant::now();
        Ok(())
    }
}
