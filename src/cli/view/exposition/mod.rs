//! Metrics of a command while it works, in the OpenMetrics text format, which Prometheus reads (docs/METRICS.md).

pub mod replay;
pub mod training;

use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

/// A gauge of a real number, NaN before the first one.
pub type Real = Gauge<f64, AtomicU64>;

/// A gauge without a number yet.
fn unknown() -> Real {
    let gauge = Real::default();
    gauge.set(f64::NAN);
    gauge
}

/// The labels of an information metric, whose value is always 1.
pub type Labels = Vec<(&'static str, String)>;

/// The time of the last event of a kind, in seconds since 1970; 0 before the first one. Alerts compare it with the present.
#[derive(Clone, Default)]
pub struct Moment(Real);

impl Moment {
    /// Registers `NAME_timestamp_seconds`.
    pub fn registered(registry: &mut Registry, name: &str, help: &str) -> Moment {
        let moment = Moment::default();
        let name = format!("{name}_timestamp");
        registry.register_with_unit(name, help, Unit::Seconds, moment.0.clone());
        moment
    }

    /// The event happens now.
    pub fn now(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.0.set(now.as_secs_f64());
    }
}
