//! What a database notes: the topic that its events go to, and a reset that is under way. Rows and records belong together
//! only where both are of one making.

use anyhow::Result;
use rusqlite::{OptionalExtension, TransactionBehavior};

use super::{Store, schema};
use crate::event::Incarnation;

const TOPIC_NOTE: &str = "topic";
const SENT_NOTE: &str = "sent";
const RESET_NOTE: &str = "reset under way";

/// What the database notes about the topic that its events go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicNote {
    /// Nothing was sent yet.
    Unbound,
    /// A reset began and did not end.
    ResetUnderWay,
    /// This very topic.
    BoundTo(Incarnation),
}

impl Store {
    /// What is noted about the topic.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn topic_note(&self) -> Result<TopicNote> {
        let note = |name: &str| -> rusqlite::Result<Option<String>> {
            self.db.query_row("SELECT value FROM lab_note WHERE name = ?1", [name], |row| row.get(0)).optional()
        };
        if note(RESET_NOTE)?.is_some() {
            return Ok(TopicNote::ResetUnderWay);
        }
        match note(TOPIC_NOTE)? {
            Some(json) if note(SENT_NOTE)?.is_some() => Ok(TopicNote::BoundTo(serde_json::from_str(&json)?)),
            _ => Ok(TopicNote::Unbound),
        }
    }

    /// Notes where the first event is about to go. From then on the note stays, wherever later ones go.
    ///
    /// # Errors
    /// The database stays locked for longer than the busy timeout.
    pub fn bind_topic(&mut self, incarnation: &Incarnation) -> Result<()> {
        let json = serde_json::to_string(incarnation)?;
        let txn = self.db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let sql = "INSERT INTO lab_note (name, value) SELECT ?1, ?2
                   WHERE NOT EXISTS (SELECT 1 FROM lab_note WHERE name = ?3)
                   ON CONFLICT (name) DO UPDATE SET value = excluded.value";
        txn.execute(sql, (TOPIC_NOTE, json, SENT_NOTE))?;
        txn.execute("INSERT INTO lab_note (name, value) VALUES (?1, '') ON CONFLICT DO NOTHING", [SENT_NOTE])?;
        txn.commit()?;
        Ok(())
    }

    /// Notes that a reset has begun: from here on the rows and the topic need not belong together.
    ///
    /// # Errors
    /// The database stays locked for longer than the busy timeout.
    pub fn begin_reset(&self) -> Result<()> {
        let sql = "INSERT INTO lab_note (name, value) VALUES (?1, '') ON CONFLICT DO NOTHING";
        self.db.execute(sql, [RESET_NOTE])?;
        Ok(())
    }

    /// Empties the schema and notes the fresh topic, in one transaction. Numbers begin again, as the topic does: a table
    /// that remembers event ids must be emptied with them.
    ///
    /// # Errors
    /// The database stays locked for longer than the busy timeout.
    pub fn finish_reset(&mut self, incarnation: &Incarnation) -> Result<()> {
        let txn = self.db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        schema::empty(&txn)?;
        let note = (TOPIC_NOTE, serde_json::to_string(incarnation)?);
        txn.execute("INSERT INTO lab_note (name, value) VALUES (?1, ?2)", note)?;
        txn.commit()?;
        Ok(())
    }
}
