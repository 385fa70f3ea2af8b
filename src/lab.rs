//! Where this run's database, broker and topic are.

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::failure::Failure;
use crate::lock::LockFile;

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
        if self.dir.is_dir() {
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

    /// Opens a lock file of the lab directory.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn lock_file(&self, name: &str) -> Result<LockFile> {
        LockFile::open(&self.dir.join(name)).map_err(|error| self.not_writable(&error))
    }

    /// Writes a file below the lab directory whole: no reader ever sees half of it. The draft lies in the lab directory
    /// itself, so that it never stands among files whose names mean something.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn write_whole(&self, path: &Path, content: &[u8]) -> Result<()> {
        let draft = self.dir.join(format!("draft.{}", std::process::id()));
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
