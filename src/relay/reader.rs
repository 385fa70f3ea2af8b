//! Reading ahead: a thread with a connection of its own fetches batches while earlier ones are published and marked, and
//! notices new rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Result;

use super::News;
use super::scan::Scan;
use crate::store::Store;

/// How often the database is asked whether somebody has committed (`PRAGMA data_version`, a few microseconds).
const LOOK_AGAIN: Duration = Duration::from_millis(3);

/// One look at the pending rows, from the first to the last and on.
pub struct Reader {
    requests: Option<Sender<()>>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    /// Begins to look. Nothing is read before it is asked for.
    ///
    /// # Errors
    /// The database was removed or replaced.
    pub fn start(store: &Store, scan: Scan, rows: u32, news: Sender<News>) -> Result<Self> {
        let store = store.again()?;
        let (requests, asked) = channel();
        let ended = Arc::new(AtomicBool::new(false));
        let told_to_end = Arc::clone(&ended);
        let thread = thread::spawn(move || {
            if let Err(error) = read(&store, scan, rows, &asked, &news, &told_to_end) {
                // The pass is over if nobody listens.
                let _ = news.send(News::Failed(error));
            }
        });
        Ok(Self { requests: Some(requests), ended, thread: Some(thread) })
    }

    /// Asks for one batch more.
    pub fn ask(&self) {
        if let Some(requests) = &self.requests {
            // Gone only when the reading failed, which it has told.
            let _ = requests.send(());
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn read(
    store: &Store,
    mut scan: Scan,
    rows: u32,
    asked: &Receiver<()>,
    news: &Sender<News>,
    ended: &AtomicBool,
) -> Result<()> {
    let mut after = i64::MIN;
    while asked.recv().is_ok() {
        while !ended.load(Ordering::Relaxed) {
            // The version first: a commit in between is then looked at again, and not missed.
            let version = store.data_version()?;
            let (batch, last) = store.batch(after, rows, |row| scan.takes(row))?;
            after = last.unwrap_or(after);
            if !batch.is_empty() {
                let _ = news.send(News::Read(batch, scan.left));
                break;
            }
            if last.is_some() {
                continue;
            }
            // What was marked and is pending again lies behind the last row; what is on its way does, too.
            let is_behind = store.first_pending()?.is_some_and(|first| first <= after) && scan.left.rows() == 0;
            let _ = news.send(News::Exhausted { left: scan.left, is_behind });
            while store.data_version()? == version {
                if ended.load(Ordering::Relaxed) {
                    return Ok(());
                }
                thread::sleep(LOOK_AGAIN);
            }
        }
    }
    Ok(())
}
