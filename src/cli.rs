//! The command line: declared here, and nothing else done.

mod values;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use self::values::{address, duration, lease, owner, property, servers, topic};
use crate::crash::HoldAt;
use crate::event::Key;
use crate::lab::Lab;
use crate::output::Measured;
use crate::reconcile::Tally;
use crate::relay::{Envelope, OnPoison};
use crate::shard::Shard;
use crate::sweep::Strategy;
use crate::trial::patience::PATIENCE;

/// What a clap help ends with.
const AFTER_HELP: &str = "\
Exit codes:
  0  done, and what was expected
  1  done, and not what was expected
  2  usage
  3  inconclusive
  4  the lab itself could not do it

Clients built on librdkafka (kcat, confluent-kafka) can read the embedded broker.
Java clients and kafka-python 3 find no topic on it: scripts/kafka.sh brings up a
real Kafka for those.";

/// A crash-injection lab for dual-write failure: a process writes to SQLite and to Kafka, dies by kill -9 between the
/// two, and everything that is left is counted
#[derive(Parser)]
#[command(name = "outbox-lab", version, after_help = AFTER_HELP, subcommand_required = true)]
pub struct Cli {
    /// Where the lab is.
    #[command(flatten)]
    pub place: Place,
    /// One JSON object per line on standard output in place of text
    #[arg(long, global = true, help_heading = "The lab")]
    pub json: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Where the lab is: the options that every command takes.
#[derive(Args)]
#[command(next_help_heading = "The lab")]
pub struct Place {
    /// The lab directory: database, embedded broker, topics made
    #[arg(long, global = true, value_name = "DIR", env = "OUTBOX_LAB_DIR", default_value = ".lab")]
    pub dir: PathBuf,
    /// The business database [default: DIR/outbox.db]
    #[arg(long, global = true, value_name = "PATH", env = "OUTBOX_LAB_DB")]
    pub db: Option<PathBuf>,
    /// A real Kafka, HOST:PORT[,…] [default: the embedded broker]
    #[arg(long, global = true, value_name = "SERVERS", env = "KAFKA_BOOTSTRAP", value_parser = servers)]
    pub bootstrap: Option<String>,
    /// The topic
    #[arg(long, global = true, value_name = "NAME", env = "OUTBOX_LAB_TOPIC", default_value = "v2c7.outbox", value_parser = topic)]
    pub topic: String,
    /// A librdkafka property; may be repeated
    #[arg(short = 'X', global = true, value_name = "KEY=VALUE", value_parser = property)]
    pub properties: Vec<(String, String)>,
}

impl From<&Place> for Lab {
    fn from(place: &Place) -> Self {
        Self {
            dir: place.dir.clone(),
            db: place.db.clone().unwrap_or_else(|| place.dir.join("outbox.db")),
            topic: place.topic.clone(),
            // An empty variable is one that is not set.
            kafka: place.bootstrap.clone().filter(|servers| !servers.is_empty()),
            properties: place.properties.clone(),
        }
    }
}

/// The option that stops a process at a crash point.
#[derive(Args)]
pub struct HoldArgs {
    /// Hold at a crash point, at its NTH passage (1 if not given), and wait for kill -9; may be repeated. An
    /// unknown POINT lists them all
    #[arg(long, value_name = "POINT[@NTH]")]
    pub hold_at: Vec<HoldAt>,
    /// Say at each hold and at the end how often each crash point was passed, and at the end how long a relay took, on
    /// standard error
    #[arg(long)]
    pub trace: bool,
}

/// How long to wait.
#[derive(Args)]
pub struct Waiting {
    /// Seconds that anything in a trial may take before it is inconclusive, 1 to 3600
    #[arg(long, value_name = "SECONDS", default_value_t = PATIENCE, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub patience: u32,
}

/// How many.
#[derive(Args)]
pub struct Amount {
    /// Transactions to make, or rows to send at the most: 1 to 1000000
    #[arg(value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub n: u32,
    /// Where to hold.
    #[command(flatten)]
    pub holds: HoldArgs,
}

/// How a relay is to work.
#[derive(Args)]
pub struct RelayArgs {
    /// Where to hold.
    #[command(flatten)]
    pub holds: HoldArgs,
    /// Go on for ever: wait for new rows, until SIGTERM or Ctrl-C
    #[arg(long, conflicts_with = "once")]
    pub follow: bool,
    /// End when nothing is pending that could be sent now (the default)
    #[arg(long)]
    pub once: bool,
    /// Rows that are read, sent and marked together, 1 to 100000
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub batch: u32,
    /// What the records are keyed by
    #[arg(long, value_name = "KEY", default_value = "event")]
    pub key: Key,
    /// What a record looks like, and where it goes
    #[arg(long, value_name = "ENVELOPE", default_value = "book")]
    pub envelope: Envelope,
    /// How long a lease lasts from each renewal, and so for how long at the most a killed relay delays its rows: a day at
    /// the most
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = lease)]
    pub lease: Duration,
    /// A name for this relay; one that is started again under its name takes over at once from the one that died
    #[arg(long, value_name = "NAME", value_parser = owner)]
    pub owner: Option<String>,
    /// Only the Ith of N parts of the aggregates
    #[arg(long, value_name = "I/N")]
    pub shard: Option<Shard>,
    /// Rejections after which a row is parked as dead
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub max_attempts: u32,
    /// What a dead row means for the later rows of its aggregate
    #[arg(long, value_name = "WHAT", default_value = "hold-key")]
    pub on_poison: OnPoison,
    /// Serve counters and gauges for Prometheus at http://ADDR/metrics
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub metrics: Option<SocketAddr>,
    /// Also where others than this machine can reach it
    #[arg(long, requires = "metrics")]
    pub metrics_anywhere: bool,
}

/// The commands.
#[derive(Subcommand)]
pub enum Command {
    /// An empty schema and a fresh topic whose offsets start at 0
    Reset {
        /// Where to hold.
        #[command(flatten)]
        holds: HoldArgs,
        /// How many partitions the fresh topic has, 1 to 100
        #[arg(long, value_name = "P", default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..=100))]
        partitions: i32,
    },
    /// The counter-example: commit one loan, then send its event, with no outbox
    Naive {
        /// Where to hold.
        #[command(flatten)]
        holds: HoldArgs,
        /// The other wrong order: send the event, then commit the loan
        #[arg(long)]
        send_first: bool,
    },
    /// naive, held after the commit and before the send
    NaiveHold(HoldArgs),
    /// N transactions, each of one loan and its outbox row
    Write {
        /// How many, and where to hold.
        #[command(flatten)]
        amount: Amount,
        /// Into a store in memory that is copied to the database every 500 ms: a commit that is answered before it is
        /// written
        #[arg(long)]
        delayed: bool,
    },
    /// N loans are given back, each in one transaction with the outbox row of its second event
    Return(Amount),
    /// write, held after the last commit
    WriteHold(Amount),
    /// The shared fate: a new loan and an event id that exists already, in one transaction
    Rollback(HoldArgs),
    /// The book's relay: send up to N pending rows in id order, each acknowledged, then marked
    Publish {
        /// How many, and where to hold.
        #[command(flatten)]
        amount: Amount,
        /// The wrong order, to see what it loses: mark each row before it is sent
        #[arg(long, conflicts_with = "transactional")]
        mark_first: bool,
        /// All rows in one Kafka transaction, marked after the broker has committed it
        #[arg(long)]
        transactional: bool,
        /// What the records are keyed by
        #[arg(long, value_name = "KEY", default_value = "event")]
        key: Key,
    },
    /// publish with all marks put off, held after the acknowledgements and before the marks
    PublishHold(Amount),
    /// A relay fit for production: batches, leases, poison rows, outages
    Relay(RelayArgs),
    /// The four counts, from the database alone
    Verify(HoldArgs),
    /// The whole topic as key,payload lines, partition by partition in offset order
    Consume,
    /// A consumer: each record behind the group's stored offset becomes one effect, and its offset is committed after it
    Apply {
        /// Where to hold.
        #[command(flatten)]
        holds: HoldArgs,
        /// Remember each event id in the effect's own transaction, and skip what was applied before
        #[arg(long)]
        inbox: bool,
        /// The wrong order: commit the offset before the effect
        #[arg(long)]
        commit_first: bool,
    },
    /// Database against topic: counts, duplicates, orphan rows, phantom events, lost events
    Reconcile {
        /// Business rows, outbox rows, records and distinct event ids to find, as in 5/5/8/5
        #[arg(long, value_name = "B/O/R/E")]
        expect: Option<Tally>,
    },
    /// What to watch of the outbox: how long its oldest pending row has waited, then pending, dead and published rows,
    /// attempts, leases
    Stats(StatsArgs),
    /// Delete the published rows that were written longer ago than that, in small transactions; never a pending or dead one
    Purge {
        /// Where to hold.
        #[command(flatten)]
        holds: HoldArgs,
        /// How long ago, as in 7d
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        older_than: Duration,
    },
    /// The rows that a relay has given up
    #[command(subcommand, subcommand_required = true)]
    Dead(Dead),
    /// N outbox rows at once, for measurements: one transaction, whatever N is
    #[command(hide = true)]
    Fill {
        /// How many outbox rows, each of an event of its own: 1 to 10000000
        #[arg(value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
        n: u32,
        /// Over so many loans, in turn [default: N]
        #[arg(long, value_name = "A", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
        aggregates: Option<u32>,
        /// As published already
        #[arg(long)]
        published: bool,
    },
    /// How fast the parts of a relay's work are by themselves, and how many records a topic has, for measurements
    #[command(hide = true)]
    Measure {
        /// What
        #[arg(value_name = "WHAT")]
        what: Measured,
        /// What the records are keyed by
        #[arg(long, value_name = "KEY", default_value = "event")]
        key: Key,
    },
    /// Every experiment, with its question
    List,
    /// An experiment: its question, the book's claim, the steps, what to predict, the lesson
    Explain {
        /// Which; `list` names them
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Play experiments: real processes, real kills, and a verdict on each
    Run {
        /// Which; all, if none is named
        #[arg(value_name = "NAME")]
        names: Vec<String>,
        /// How long to wait.
        #[command(flatten)]
        waiting: Waiting,
    },
    /// Kill every strategy at every passage of every crash point that it has, and print what each kill left
    Sweep {
        /// Which; all, if none is named; may be repeated
        #[arg(long)]
        strategy: Vec<Strategy>,
        /// Rows that each strategy works on, 1 to 1000
        #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
        rows: u32,
        /// How long to wait.
        #[command(flatten)]
        waiting: Waiting,
        /// Only so many kills of a bare loop, for scripts/bench.sh to measure the sweep against
        #[arg(long, hide = true)]
        bare: Option<u32>,
    },
    /// The embedded broker
    #[command(subcommand, subcommand_required = true)]
    Broker(Broker),
    /// Give back what this lab holds outside its directory: end the embedded broker, or delete the topics that it
    /// made on a real Kafka
    Clean,
}

/// How the outbox is watched.
#[derive(Args)]
pub struct StatsArgs {
    /// Again every second, until Ctrl-C
    #[arg(long)]
    pub watch: bool,
    /// In Prometheus's text exposition format
    #[arg(long, conflicts_with_all = ["watch", "json"])]
    pub prometheus: bool,
    /// Exit with 1 when the oldest pending row has waited longer, as in 30s
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub max_age: Option<Duration>,
}

/// What to do about the dead rows.
#[derive(Subcommand)]
pub enum Dead {
    /// Each with its attempts and its last error
    List,
    /// Pending again, as if it had never been tried
    Requeue(EventIds),
    /// Delete it: nobody will ever send its event
    Drop(EventIds),
}

/// Some events.
#[derive(Args)]
pub struct EventIds {
    /// Which; `dead list` names them
    #[arg(value_name = "EVENT_ID", required = true)]
    pub event_ids: Vec<String>,
}

/// The embedded broker's own commands.
#[derive(Subcommand)]
pub enum Broker {
    /// Start it, if it is not running, and say where it is
    Start,
    /// End it; its records go with it
    Stop,
    /// Say whether it is running, and where
    Status,
    /// Be the broker: what `start` runs in a process of its own
    #[command(hide = true)]
    Serve {
        /// Leave after so many seconds without a lab command
        #[arg(long, default_value_t = 24 * 60 * 60)]
        idle: u64,
    },
}
