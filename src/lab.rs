//! Where this run's database, broker and topic are.

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::failure::Failure;
use crate::lock::LockFile;

/// One lab: a directory, a database, a broker and a topic.
#[derive(Clone, Debug)]
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

/// Can a topic have this name?
pub fn is_topic_name(name: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=249).contains(&name.len()) && name.chars().all(legal) && name != "." && name != ".."
}

/// The files of the lab directory that are the lab's own.
const OWN_FILES: &[&str] = &["alive.lock", "broker.lock", "broker.json", "broker.log"];

impl Lab {
    /// Refuses a database that would lie where the lab keeps something else.
    ///
    /// # Errors
    /// Usage.
    pub fn check(&self) -> Result<()> {
        let name = self.db.file_name().and_then(|name| name.to_str());
        if self.db.parent() == Some(&self.dir) && name.is_some_and(|name| OWN_FILES.contains(&name)) {
            return Err(Failure::usage(
                format!("{} is a file of the lab's own, and cannot be the database", self.db.display()),
                "take another path with --db",
            ));
        }
        Ok(())
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

    /// Makes the folders above the database.
    ///
    /// # Errors
    /// They cannot be made.
    pub fn make_folder_of_database(&self) -> Result<()> {
        let Some(folder) = self.db.parent() else { return Ok(()) };
        fs::create_dir_all(folder).map_err(|error| {
            Failure::failed(
                format!("the folder {} cannot be made ({error})", folder.display()),
                "take another path with --db, or another lab directory with --dir",
            )
        })
    }

    /// Opens a lock file of the lab directory.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn lock_file(&self, name: &str) -> Result<LockFile> {
        LockFile::open(&self.dir.join(name)).map_err(|error| self.not_writable(&error))
    }

    /// Opens a lock file elsewhere.
    ///
    /// # Errors
    /// Its folder cannot be written.
    pub fn open_lock(&self, path: &Path) -> Result<LockFile> {
        LockFile::open(path).map_err(|error| {
            Failure::failed(
                format!("the database {} cannot be written: its lock {} ({error})", self.db.display(), path.display()),
                format!("allow it (chmod u+w {}*, and its folder), or take another path with --db", self.db.display()),
            )
        })
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
