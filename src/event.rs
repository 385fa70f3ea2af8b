//! The nouns: a loan, the event that tells of it, its row in the outbox, and the record that it becomes in Kafka.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The business entity of the book: one copy of a book lent to one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loan {
    /// `L-1001` and so on; the aggregate id.
    pub loan_id: String,
    /// `B-101` goes with `L-1001`, as in the book.
    pub book_id: String,
    /// Who borrowed it. The book prints none, so the lab gives one member to each loan.
    pub member_id: String,
    number: i64,
}

/// The book's first loan, L-1001, is of the copy B-101.
pub const BOOKS_BEHIND_LOANS: i64 = 900;

impl Loan {
    /// The loan with this number: 1001 is the first that the book writes.
    pub fn numbered(number: i64) -> Self {
        Self {
            loan_id: format!("L-{number}"),
            book_id: format!("B-{}", number - BOOKS_BEHIND_LOANS),
            member_id: format!("M-{}", number - BOOKS_BEHIND_LOANS),
            number,
        }
    }

    /// The fact that this loan was made. The event bears the loan's number, so that an event id is free
    /// exactly when its loan id is.
    pub fn created(&self) -> Event {
        let event_id = format!("evt-{}", self.number);
        // Byte for byte the book's payload. The three ids are the lab's own and hold nothing to escape.
        let payload = format!(r#"{{"eventId":"{event_id}","loanId":"{}","bookId":"{}"}}"#, self.loan_id, self.book_id);
        Event { event_id, aggregate_id: self.loan_id.clone(), payload, is_tombstone: false }
    }

    /// The fact that this loan was given back: a second event of the same aggregate, with an id of its own.
    pub fn returned(&self) -> Event {
        let event_id = format!("evt-{}-returned", self.number);
        let payload = format!(r#"{{"eventId":"{event_id}","loanId":"{}","bookId":"{}"}}"#, self.loan_id, self.book_id);
        Event { event_id, aggregate_id: self.loan_id.clone(), payload, is_tombstone: false }
    }
}

/// An immutable fact about a loan. `event_id` is unique and is what a consumer removes duplicates by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// `evt-1001` and so on; the record's key and its header `id`.
    pub event_id: String,
    /// The loan that it tells of.
    pub aggregate_id: String,
    /// The book's JSON.
    pub payload: String,
    /// Is its record a tombstone, without a value? Then the payload stays in the outbox.
    pub is_tombstone: bool,
}

impl Event {
    /// The record that tells of it.
    pub fn outgoing<'a>(&'a self, topic: &'a str, key: &'a str) -> Outgoing<'a> {
        let payload = (!self.is_tombstone).then_some(self.payload.as_bytes());
        Outgoing { topic, key, event_id: &self.event_id, payload }
    }
}

/// A record as it is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing<'a> {
    /// Where to.
    pub topic: &'a str,
    /// What it is keyed by: records of one key lie in one partition, in the order of their sending.
    pub key: &'a str,
    /// What goes into the header `id`.
    pub event_id: &'a str,
    /// The value; `None` is a tombstone.
    pub payload: Option<&'a [u8]>,
}

/// What the records of the topic are keyed by. Records of one key lie in one partition, in the order of their sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Key {
    /// The event id, as in the book
    Event,
    /// The aggregate id, so that a loan's events stay together
    Aggregate,
}

impl Key {
    /// That of an event's record.
    pub fn of<'a>(self, event_id: &'a str, aggregate_id: &'a str) -> &'a str {
        match self {
            Self::Event => event_id,
            Self::Aggregate => aggregate_id,
        }
    }
}

/// The type of the events that `write` makes, as in the book's topic `library.loan.created`.
pub const CREATED: &str = "library.loan.created";

/// The type of the events that `return` makes.
pub const RETURNED: &str = "library.loan.returned";

/// The header that carries the event id, whatever the key is (Debezium's outbox event router has the same).
pub const ID_HEADER: &str = "id";

/// An event as it lies in Kafka. Other programs may have written it, so nothing in it is sure to be there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Where it lies.
    pub at: Position,
    /// The key as it was sent.
    pub key: Option<Vec<u8>>,
    /// The headers, in order.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    /// The value; `None` is a tombstone.
    pub payload: Option<Vec<u8>>,
}

impl Record {
    /// The event that this record is a copy of: by its header `id`, or else by its key. `None` for a record
    /// that the lab cannot have sent.
    pub fn event_id(&self) -> Option<&str> {
        let header = self.headers.iter().find(|(name, _)| name == ID_HEADER);
        let bytes = header.and_then(|(_, value)| value.as_deref()).or(self.key.as_deref())?;
        std::str::from_utf8(bytes).ok()
    }

    /// The loan that the record is about: its payload names it, if that is the book's JSON. A tombstone has no payload;
    /// there it is the key, or, where the event is the key, the loan of the event's number.
    pub fn loan_id(&self) -> Option<String> {
        if let Some(payload) = &self.payload {
            let json: serde_json::Value = serde_json::from_slice(payload).ok()?;
            return Some(json.get("loanId")?.as_str()?.to_owned());
        }
        let event_id = self.event_id()?;
        match self.key.as_deref().and_then(|key| std::str::from_utf8(key).ok()) {
            Some(key) if key != event_id => Some(key.to_owned()),
            _ => Some(format!("L-{}", event_id.strip_prefix("evt-")?.split('-').next()?)),
        }
    }
}

/// A row of the outbox: the intent to send an event. Pending until it is marked, then published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxRow {
    /// The row's id, in the order of the inserts.
    pub id: i64,
    /// What is to be sent.
    pub event: Event,
    /// Marked?
    pub published: bool,
}

/// The four counts of the book's `verify`, from the database alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Committed loans.
    pub business_loan: u64,
    /// Outbox rows, pending and published.
    pub outbox: u64,
    /// Outbox rows that are marked.
    pub published: u64,
    /// Outbox rows that are pending.
    pub unpublished: u64,
}

/// One topic between one making and the next. The same name on another cluster, or made anew, is another incarnation and
/// holds none of the old records. A database notes the one that its events go to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incarnation {
    /// A real Kafka's cluster id; `None` is the embedded broker.
    pub cluster: Option<String>,
    /// The topic's name.
    pub topic: String,
    /// Which making of it: the embedded broker's generation, or on a real Kafka when the lab made it, in milliseconds
    /// since 1970. `None` where somebody else did.
    pub made: Option<String>,
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let made = self.made.as_deref().unwrap_or("by others");
        match &self.cluster {
            Some(cluster) => write!(f, "topic {} (made {made}) of the Kafka cluster {cluster}", self.topic),
            None => write!(f, "topic {} of the embedded broker (generation {made})", self.topic),
        }
    }
}

/// Where an acknowledged record lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Position {
    /// The partition, from 0.
    pub partition: i32,
    /// The offset in that partition. Offsets are not a count: a transaction's control records take some.
    pub offset: i64,
}
