//! Locks that die with their process and name it: POSIX record locks on small files of the lab directory.
//!
//! They answer two questions without trusting a pid that was written down once: is another lab command alive
//! here, and is the embedded broker? A lock is gone the moment its process is, however it died, it does not
//! pass to a child, and `F_GETLK` says who holds it.
//!
//! A process must open each lock file once only: closing any other handle of it would drop the lock.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

/// How a lock is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any number of processes.
    Shared,
    /// One process alone.
    Exclusive,
}

/// A lock file, opened.
pub struct LockFile {
    file: File,
}

impl LockFile {
    /// Opens the file and makes it where it is missing.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        Ok(Self { file })
    }

    /// Takes the lock for as long as this value lives; `false` if others hold it.
    pub fn try_lock(&self, kind: Kind) -> io::Result<bool> {
        match fcntl(&self.file, FcntlArg::F_SETLK(&whole_file(kind))) {
            Ok(_) => Ok(true),
            Err(Errno::EACCES | Errno::EAGAIN) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The pid of a process that stands in the way of a lock of this kind.
    pub fn holder(&self, kind: Kind) -> io::Result<Option<u32>> {
        let mut lock = whole_file(kind);
        fcntl(&self.file, FcntlArg::F_GETLK(&mut lock))?;
        let free = lock.l_type == libc::F_UNLCK as libc::c_short;
        Ok(if free { None } else { u32::try_from(lock.l_pid).ok() })
    }
}

fn whole_file(kind: Kind) -> libc::flock {
    let l_type = match kind {
        Kind::Shared => libc::F_RDLCK,
        Kind::Exclusive => libc::F_WRLCK,
    };
    libc::flock {
        l_type: l_type as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}
