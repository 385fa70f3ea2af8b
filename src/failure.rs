//! How a command ends: its exit code, and the error that a user reads.

use std::fmt;

/// How a command ended, as the shell sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done, and what was expected.
    Done = 0,
    /// Done, and not what was expected: a mismatch.
    Unexpected = 1,
    /// The command line was wrong.
    Usage = 2,
    /// Nothing can be concluded: nothing to compare, records gone, a crash point that was never reached.
    Inconclusive = 3,
    /// The lab itself could not do it: no broker, no database, no room.
    Failed = 4,
}

/// An error as the user sees it: what happened and to what, and what to type next.
#[derive(Debug)]
pub struct Failure {
    /// The exit code that goes with it.
    pub exit: Exit,
    /// What to say; nothing where nobody listens any more.
    words: Option<Words>,
}

#[derive(Debug)]
struct Words {
    what: String,
    next: String,
}

impl Failure {
    /// A wrong command line.
    pub fn usage(what: impl Into<String>, next: impl Into<String>) -> anyhow::Error {
        error(Exit::Usage, what, next)
    }

    /// Nothing can be concluded.
    pub fn inconclusive(what: impl Into<String>, next: impl Into<String>) -> anyhow::Error {
        error(Exit::Inconclusive, what, next)
    }

    /// The lab could not do it.
    pub fn failed(what: impl Into<String>, next: impl Into<String>) -> anyhow::Error {
        error(Exit::Failed, what, next)
    }

    /// Standard output was closed by its reader (`… | head -1`): the command stops and says nothing, as
    /// tools in a pipe do. What it had done stays done.
    pub fn output_closed() -> anyhow::Error {
        Self { exit: Exit::Failed, words: None }.into()
    }

    /// What happened, without what to do about it.
    pub fn what(&self) -> String {
        self.words.as_ref().map_or_else(String::new, |words| words.what.clone())
    }

    /// Is there anything to tell the user?
    pub fn is_silent(&self) -> bool {
        self.words.is_none()
    }
}

/// Turns whatever went wrong into something that a user can act on. Where an error comes here that nobody below has
/// put into words, the lab is at fault and not its user.
impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        error.downcast().unwrap_or_else(|error| Self {
            exit: Exit::Failed,
            words: Some(Words {
                what: format!("{error:#}"),
                next: "the lab did not foresee this: please report it, with this line and what you typed".to_owned(),
            }),
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.words {
            Some(Words { what, next }) => write!(f, "{what}\n  next: {next}"),
            None => f.write_str("standard output was closed"),
        }
    }
}

impl std::error::Error for Failure {}

fn error(exit: Exit, what: impl Into<String>, next: impl Into<String>) -> anyhow::Error {
    Failure { exit, words: Some(Words { what: what.into(), next: next.into() }) }.into()
}
