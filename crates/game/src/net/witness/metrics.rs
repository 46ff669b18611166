//! The metrics of a witness, in the form that Prometheus reads (docs/METRICS.md).

use std::io;
use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use crate::net::metrics::Counters;
use tiebreak_monitor::witness::policy::Refusal;

/// The metrics of a witness.
#[derive(Clone, Default)]
pub struct WitnessMetrics {
    pub(super) responses: Counters,
    cosigned: Counter,
    refused: Counters,
    store_errors: Counter,
    pub(super) logs: Gauge,
    last: Gauge<f64, AtomicU64>,
    pub(super) connections: Gauge,
}

impl WitnessMetrics {
    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("cosigned", "Heads that were cosigned", self.cosigned.clone());
        self.refused.register(registry, "refused", "Heads that were refused, by the reason");
        let help = "Heads that were not cosigned, since the state's folder could not be read or written";
        registry.register("store_errors", help, self.store_errors.clone());
        registry.register("logs", "Logs of which a head was cosigned", self.logs.clone());
        let help = "Time of the last cosignature; 0 before the first one";
        registry.register_with_unit("last_cosigned_timestamp", help, Unit::Seconds, self.last.clone());
        self.responses.register(registry, "responses", "Responses by their HTTP status");
        registry.register("connections", "Open connections", self.connections.clone());
    }

    /// A request is decided at a time, in seconds since 1970, or the store failed.
    pub(super) fn decided(&self, decided: &io::Result<Result<String, Refusal>>, time: u64) {
        match decided {
            Ok(Ok(_)) => {
                self.cosigned.inc();
                self.last.set(time as f64);
            }
            Ok(Err(refusal)) => self.refused.count("reason", reason(refusal)),
            Err(_) => drop(self.store_errors.inc()),
        }
    }

    /// The bytes of a request are no head.
    pub(super) fn malformed(&self) {
        self.refused.count("reason", "malformed");
    }
}

/// The reason's name.
fn reason(why: &Refusal) -> &'static str {
    match why {
        Refusal::UnknownOrigin => "unknown_origin",
        Refusal::Unsigned => "unsigned",
        Refusal::Shrinks { .. } => "shrinks",
        Refusal::OtherSize(_) => "other_size",
        Refusal::OtherRoot(_) => "other_root",
        Refusal::Inconsistent(_) => "inconsistent",
        Refusal::Full(_) => "full",
    }
}
