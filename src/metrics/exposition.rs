//! The text: <https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format>, version 0.0.4, which every
//! Prometheus reads, and its node exporter's textfile collector, too.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, NoLabelSet, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::{BOUNDS_MS, Metrics};
use crate::store::Stats;

/// What an answer to a scrape says that it is.
pub(super) const CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;

/// An outbox at one moment, and what a relay has counted. Names begin with `outbox_` and end in their unit.
pub fn exposition(stats: &Stats, relay: Option<&Arc<Metrics>>) -> String {
    let mut registry = Registry::with_prefix("outbox");
    registry.register_collector(Box::new(stats.clone()));
    if let Some(relay) = relay {
        registry.register_collector(Box::new(Arc::clone(relay)));
    }
    let mut text = String::new();
    // The only possible error is the writer's, and a string takes whatever is written to it.
    let _ = prometheus_text::encode(&mut text, &registry);
    text
}

impl Collector for Stats {
    fn encode(&self, mut to: DescriptorEncoder) -> fmt::Result {
        let help = "How long the oldest pending row has waited; 0 where none is pending";
        gauge(&mut to, "oldest_pending_age", Unit::Seconds, help, &self.oldest_pending_age_seconds.unwrap_or(0.0))?;
        let rows = || Unit::Other("rows".to_owned());
        gauge(&mut to, "pending", rows(), "Rows that wait to be sent", &self.pending)?;
        gauge(&mut to, "dead", rows(), "Rows that were given up, for somebody to decide on", &self.dead)?;
        gauge(&mut to, "published", rows(), "Rows marked as published and not purged yet", &self.published)?;
        let attempts = || Unit::Other("attempts".to_owned());
        gauge(&mut to, "rejected", attempts(), "Rejections of rows that are pending or dead now", &self.attempts)?;

        let slots = Unit::Other("slots".to_owned());
        let mut held = to.encode_descriptor("lease", "Slots leased", Some(&slots), MetricType::Gauge)?;
        for lease in &self.leases {
            held.encode_family(&[("owner", lease.owner.as_str())])?.encode_gauge(&lease.slots)?;
        }
        let help = "How long the lease has to come; below 0 it has expired";
        let mut left = to.encode_descriptor("lease_left", help, Some(&Unit::Seconds), MetricType::Gauge)?;
        for lease in &self.leases {
            left.encode_family(&[("owner", lease.owner.as_str())])?.encode_gauge(&seconds(lease.left_ms))?;
        }
        Ok(())
    }
}

impl Collector for Metrics {
    fn encode(&self, mut to: DescriptorEncoder) -> fmt::Result {
        let counters = [
            ("published", "rows", "Rows that this relay marked as published", &self.published_rows),
            ("refused", "marks", "Marks refused, since the lease was another relay's by then", &self.refused_marks),
            ("rejected", "records", "Records that the broker rejected", &self.rejections),
            ("in_doubt", "sends", "Sends whose outcome is unknown; their rows are sent again", &self.sends_in_doubt),
            ("new", "producers", "Producers made anew, since sends were in doubt or rejected", &self.new_producers),
        ];
        for (name, unit, help, value) in counters {
            let (name, unit) = (format!("relay_{name}"), Unit::Other(unit.to_owned()));
            let mut metric = to.encode_descriptor(&name, help, Some(&unit), MetricType::Counter)?;
            metric.encode_counter::<NoLabelSet, _, u64>(&value.load(Relaxed), None)?;
        }

        let bounds = BOUNDS_MS.iter().map(|bound| seconds(*bound)).chain([f64::INFINITY]);
        let counts = self.commit_to_ack.iter().map(|bucket| bucket.load(Relaxed));
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        let count = buckets.iter().map(|(_, n)| n).sum();
        let sum = self.commit_to_ack_sum_ms.load(Relaxed) as f64 / 1_000.0;
        let help = "From the writing of a row to the acknowledgement of its record";
        to.encode_descriptor("relay_commit_to_ack", help, Some(&Unit::Seconds), MetricType::Histogram)?
            .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }
}

fn gauge(to: &mut DescriptorEncoder, name: &str, unit: Unit, help: &str, value: &impl EncodeGaugeValue) -> fmt::Result {
    to.encode_descriptor(name, help, Some(&unit), MetricType::Gauge)?.encode_gauge(value)
}

fn seconds(ms: i64) -> f64 {
    ms as f64 / 1_000.0
}
