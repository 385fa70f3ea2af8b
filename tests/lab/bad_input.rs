//! Bad input: each ends in a clear error with the next step and the right exit code, and what was there before is
//! there afterwards.

mod command_line;
mod database;
mod no_kafka;
mod output;
mod rights;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Ended, Lab, bytes};

/// The commands that make a database where none is.
const MAKERS: [&str; 6] = ["reset", "naive", "naive-hold", "write 1", "write-hold 1", "fill 1"];

/// The commands that want one to be there.
const READERS: [&str; 10] = [
    "verify",
    "rollback",
    "publish 1",
    "publish-hold 1",
    "reconcile",
    "stats",
    "stats --watch",
    "purge --older-than 0s",
    "dead list",
    "dead drop evt-1001",
];

/// Runs a command line that must be refused before it does anything.
#[track_caller]
pub fn refused(lab: &Lab, line: &str, code: i32) -> Ended {
    let ended = lab.at_once([line]).remove(0).exits(code);
    assert_eq!(ended.stdout, "", "a refusal prints nothing");
    ended
}

/// Everything that lies in a folder: each file with its content, each folder with none.
fn content(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(content(&path));
            found.insert(path, Vec::new());
        } else {
            found.insert(path.clone(), bytes(&path));
        }
    }
    found
}
