//! Metrics of a command while it works, in the OpenMetrics text format, which Prometheus reads (docs/METRICS.md).

pub mod replay;
pub mod servers;
pub mod serving;
pub mod training;

use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use tiebreak_run::run::dir::Run;

/// A gauge of a real number, NaN before the first one.
pub type Real = Gauge<f64, AtomicU64>;

/// A gauge without a number yet.
fn unknown() -> Real {
    let gauge = Real::default();
    gauge.set(f64::NAN);
    gauge
}

/// The run that a command works on.
#[derive(Clone, Default)]
struct Subject {
    info: Family<Vec<(&'static str, String)>, Gauge>,
    steps: Gauge,
}

impl Subject {
    /// Registers `run_info` and `steps`.
    fn registered(registry: &mut Registry) -> Subject {
        let subject = Subject::default();
        registry.register("run_info", "Always 1; the labels name the run", subject.info.clone());
        registry.register("steps", "Steps of the job", subject.steps.clone());
        subject
    }

    /// The work on this run begins, on an engine.
    fn begin(&self, run: &Run, engine: &str) {
        let labels = vec![
            ("id", run.id.to_string()),
            ("engine", engine.to_string()),
            ("version", env!("CARGO_PKG_VERSION").to_string()),
        ];
        self.info.get_or_create(&labels).set(1);
        self.steps.set(run.job().steps.into());
    }
}

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
