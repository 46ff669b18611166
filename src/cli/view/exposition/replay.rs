//! The metrics of `tiebreak audit` and `tiebreak watch`.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::{Moment, Subject};
use tiebreak_run::run::dir::Run;

/// The metrics of a replay, which are updated after each step.
#[derive(Clone)]
pub struct ReplayMetrics {
    subject: Subject,
    planned: Gauge,
    replayed: Counter,
    step: Gauge,
    last_step: Moment,
}

impl ReplayMetrics {
    /// Adds the metrics `audit_*` to a registry.
    pub fn registered(registry: &mut Registry) -> ReplayMetrics {
        let registry = registry.sub_registry_with_prefix("audit");
        let last_step = Moment::registered(registry, "last_step", "Time at which the last step was replayed");
        let metrics = ReplayMetrics {
            subject: Subject::registered(registry),
            planned: Gauge::default(),
            replayed: Counter::default(),
            step: Gauge::default(),
            last_step,
        };
        registry.register("planned_steps", "Steps of the plan", metrics.planned.clone());
        registry.register("replayed_steps", "Steps that this process replayed", metrics.replayed.clone());
        registry.register("step", "Step that was replayed last", metrics.step.clone());
        metrics
    }

    /// The replay of so many steps of this run begins, on an engine.
    pub fn begin(&self, run: &Run, planned: u64, engine: &str) {
        self.subject.begin(run, engine);
        self.planned.set(planned as i64);
    }

    /// A step was replayed.
    pub fn step(&self, step: u32) {
        self.step.set(step.into());
        self.replayed.inc();
        self.last_step.now();
    }
}

/// The metrics of a watch, beside those of its replays.
#[derive(Clone)]
pub struct WatchMetrics {
    pub replay: ReplayMetrics,
    records: Gauge,
    last_head: Moment,
    last_look: Moment,
    failed: Counter,
}

impl WatchMetrics {
    /// Adds the metrics `audit_*` and `watch_*` to a registry.
    pub fn registered(registry: &mut Registry) -> WatchMetrics {
        let replay = ReplayMetrics::registered(registry);
        let registry = registry.sub_registry_with_prefix("watch");
        let last_head = Moment::registered(
            registry,
            "last_head",
            "Time at which the greatest head so far was first seen",
        );
        let last_look = Moment::registered(registry, "last_look", "Time at which the run was last looked at");
        let (records, failed) = (Gauge::default(), Counter::default());
        registry.register("head_records", "Records that the greatest head so far covers", records.clone());
        registry.register("failed_looks", "Looks that found nothing to replay, and said why", failed.clone());
        WatchMetrics { replay, records, last_head, last_look, failed }
    }

    /// A head that covers more records than any before.
    pub fn head(&self, records: u64) {
        self.records.set(records as i64);
        self.last_head.now();
    }

    /// The watch looked at the run. `failed` is true if a later look has to do better.
    pub fn looked(&self, failed: bool) {
        self.last_look.now();
        if failed {
            self.failed.inc();
        }
    }
}
