//! The metrics of a collector, in the form that Prometheus reads (docs/METRICS.md). None names a chip.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use tiebreak_game::net::metrics::Counters;
use tiebreak_monitor::snapshot::record::SignedRecord;

use crate::roster::Roster;
use crate::writer::Unkept;

/// The metrics of a collector.
#[derive(Clone)]
pub struct CollectorMetrics {
    pub(crate) responses: Counters,
    acknowledged: Counter,
    refused: Counters,
    database_errors: Counter,
    newest: Gauge<f64, AtomicU64>,
    keep_seconds: Histogram,
    chips: Gauge,
    register_errors: Counter,
    pub(crate) connections: Gauge,
}

impl Default for CollectorMetrics {
    fn default() -> CollectorMetrics {
        CollectorMetrics {
            responses: Counters::default(),
            acknowledged: Counter::default(),
            refused: Counters::default(),
            database_errors: Counter::default(),
            newest: Gauge::default(),
            // A tenth of a millisecond to half a minute, which is above a request's time.
            keep_seconds: Histogram::new(exponential_buckets(1e-4, 4.0, 10)),
            chips: Gauge::default(),
            register_errors: Counter::default(),
            connections: Gauge::default(),
        }
    }
}

impl CollectorMetrics {
    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("acknowledged", "Records that were acknowledged", self.acknowledged.clone());
        self.refused.register(registry, "refused", "Requests that were refused, by the reason");
        let help = "Requests that the database failed";
        registry.register("database_errors", help, self.database_errors.clone());
        let help =
            "Latest time of a record that was acknowledged, by its chip's clock; 0 before the first one";
        registry.register_with_unit("newest_record_timestamp", help, Unit::Seconds, self.newest.clone());
        let help = "Time from a record to its acknowledgement";
        registry.register_with_unit("keep", help, Unit::Seconds, self.keep_seconds.clone());
        registry.register("chips", "Chips that the register ever had", self.chips.clone());
        let help = "Looks at the register's file that failed, or found another register";
        registry.register("register_errors", help, self.register_errors.clone());
        self.responses.register(registry, "responses", "Responses by their HTTP status");
        registry.register("connections", "Open connections", self.connections.clone());
    }

    /// A record is acknowledged, so long after it came.
    pub(crate) fn acknowledged(&self, signed: &SignedRecord, after: Duration) {
        self.acknowledged.inc();
        self.keep_seconds.observe(after.as_secs_f64());
        // Requests are answered by one thread. A record that comes again may be an old one.
        self.newest.set(self.newest.get().max(signed.record.time as f64 / 1000.0));
    }

    /// A request is not granted.
    pub(crate) fn unkept(&self, error: &Unkept) {
        match error {
            Unkept::Refused(refusal) => self.refused.count("reason", refusal.kind()),
            Unkept::Busy => self.refused.count("reason", "busy"),
            Unkept::Failed => drop(self.database_errors.inc()),
        }
    }

    /// The body of a request has not the length of a record.
    pub(crate) fn malformed(&self) {
        self.refused.count("reason", "malformed");
    }

    /// The register as it is now.
    pub(crate) fn register_is(&self, roster: &Roster) {
        self.chips.set(i64::try_from(roster.register().chips()).unwrap_or(i64::MAX));
    }

    /// The register's file was not taken.
    pub(crate) fn register_failed(&self) {
        self.register_errors.inc();
    }
}
