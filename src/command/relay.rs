//! `relay`: the relay fit for production.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;

use crate::cli::RelayArgs;
use crate::crash::{Holds, SharedHolds};
use crate::failure::{Exit, Failure};
use crate::lab::Lab;
use crate::lock::{Kind, LockFile};
use crate::metrics::{Metrics, loopback_only, serve};
use crate::output::{Line, Output, hint};
use crate::presence::{beside_database, enter_to_send};
use crate::relay::{Plan, Relay, Span, stop};
use crate::shard::{Shard, Slots};
use crate::store::Store;

pub(super) fn run(lab: &Lab, args: &RelayArgs, holds: &mut Holds, out: &Output) -> Result<Exit> {
    let span = Span::begin();
    stop::on_signal()?;
    let _present = enter_to_send(lab)?;
    let (owner, named) = match &args.owner {
        Some(name) => (name.clone(), Some(alone_of_its_name(lab, name)?)),
        // No --owner can be named like that.
        None => (format!("pid:{}", std::process::id()), None),
    };
    let store = Store::open(&lab.db)?;
    let metrics = args.metrics.map(|addr| watched(&store, addr, args.metrics_anywhere)).transpose()?;
    let plan = Plan {
        follow: args.follow,
        batch: args.batch,
        key: args.key,
        envelope: args.envelope,
        lease: args.lease,
        owner,
        is_own: named.is_some(),
        slots: args.shard.map_or(Slots::ALL, Shard::slots),
        max_attempts: args.max_attempts,
        on_poison: args.on_poison,
        metrics,
    };
    let shared = SharedHolds::of(holds);
    let mut relay = Relay::new(lab, &plan, store, &shared, span, out)?;
    let left = relay.run()?;
    let (done, span) = (relay.done, relay.span);
    if left.leased > 0 {
        relay.tell_leases()?;
    }
    if holds.is_traced() {
        span.tell(done.marked);
    }
    out.line(&Line::Relayed { done, left })?;
    if done.acknowledged == 0 && left.rows() == 0 {
        hint("nothing was pending: write first (outbox-lab write 5)");
    }
    Ok(Exit::Done)
}

/// Counters that are served for whoever watches.
fn watched(store: &Store, addr: SocketAddr, anywhere: bool) -> Result<Arc<Metrics>> {
    loopback_only(addr, anywhere)?;
    let metrics = Arc::new(Metrics::new());
    let at = serve(addr, &metrics, store.again()?)?;
    hint(&format!("metrics at http://{at}/metrics"));
    Ok(metrics)
}

/// The proof that no other relay of this name is alive on the database: what it leased is then this one's.
fn alone_of_its_name(lab: &Lab, name: &str) -> Result<Option<LockFile>> {
    if !lab.db.exists() {
        // Which will be said when it is opened.
        return Ok(None);
    }
    let lock = lab.open_lock(&beside_database(lab, &format!(".relay-{name}.lock")))?;
    if lock.try_lock(Kind::Exclusive)? {
        return Ok(Some(lock));
    }
    let pid = lock.holder(Kind::Exclusive)?.map_or_else(String::new, |pid| format!(": pid {pid}"));
    Err(Failure::failed(
        format!("a relay of the name {name} is at work on {}{pid}", lab.db.display()),
        "take another --owner; two of one name would take each other's rows for their own",
    ))
}
