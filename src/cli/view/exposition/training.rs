//! The metrics of `tiebreak train`.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use super::{Moment, Real, Subject, unknown};
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::metrics::{EvaluationMetrics, StepMetrics};

/// The metrics of a training, which are updated after each step.
#[derive(Clone)]
pub struct TrainingMetrics {
    subject: Subject,
    step: Gauge,
    samples: Counter,
    targets: Counter,
    step_seconds: Histogram,
    last_step: Moment,
    loss: Real,
    learning_rate: Real,
    norm: Real,
    clip: Real,
    not_finite: Counter,
    evaluation_step: Gauge,
    evaluation_loss: Real,
    evaluation_accuracy: Real,
    evaluation_perplexity: Real,
}

impl TrainingMetrics {
    /// Adds the metrics `training_*` to a registry.
    pub fn registered(registry: &mut Registry) -> TrainingMetrics {
        let registry = registry.sub_registry_with_prefix("training");
        let last_step =
            Moment::registered(registry, "last_step", "Time at which the last step was committed");
        let metrics = TrainingMetrics {
            subject: Subject::registered(registry),
            step: Gauge::default(),
            samples: Counter::default(),
            targets: Counter::default(),
            // A millisecond to four and a half hours.
            step_seconds: Histogram::new(exponential_buckets(1e-3, 4.0, 12)),
            last_step,
            loss: unknown(),
            learning_rate: unknown(),
            norm: unknown(),
            clip: unknown(),
            not_finite: Counter::default(),
            evaluation_step: Gauge::default(),
            evaluation_loss: unknown(),
            evaluation_accuracy: unknown(),
            evaluation_perplexity: unknown(),
        };
        registry.register("step", "Last step that is committed", metrics.step.clone());
        registry.register("samples", "Samples that this process trained on", metrics.samples.clone());
        let targets = "Targets of those samples: tokens of a text, labels of a classifier";
        registry.register("targets", targets, metrics.targets.clone());
        let seconds = metrics.step_seconds.clone();
        registry.register_with_unit("step", "Time of a step", Unit::Seconds, seconds);
        registry.register("loss", "Loss of the last step", metrics.loss.clone());
        registry.register("learning_rate", "Learning rate of the last step", metrics.learning_rate.clone());
        registry.register("gradient_norm", "Norm of the last step's gradient", metrics.norm.clone());
        registry.register(
            "clip_factor",
            "Factor by which clipping scaled that gradient",
            metrics.clip.clone(),
        );
        registry.register("not_finite", "Steps with a value that is not finite", metrics.not_finite.clone());
        let [step, loss] = ["Step of the last evaluation", "Loss of the last evaluation"];
        registry.register("evaluation_step", step, metrics.evaluation_step.clone());
        registry.register("evaluation_loss", loss, metrics.evaluation_loss.clone());
        let [accuracy, perplexity] =
            ["Accuracy of the last evaluation, 0 to 1", "Perplexity of the last evaluation"];
        registry.register("evaluation_accuracy", accuracy, metrics.evaluation_accuracy.clone());
        registry.register("evaluation_perplexity", perplexity, metrics.evaluation_perplexity.clone());
        metrics
    }

    /// The training of this run begins, after so many steps, on an engine.
    pub fn begin(&self, run: &Run, engine: &str) {
        self.subject.begin(run, engine);
    }

    /// So many steps are done already.
    pub fn done(&self, steps: u32) {
        self.step.set(steps.into());
    }

    /// A step of so many samples and targets is committed.
    pub fn step(&self, step: &StepMetrics, samples: u64, targets: u64) {
        self.step.set(step.step.into());
        self.samples.inc_by(samples);
        self.targets.inc_by(targets);
        self.step_seconds.observe(step.seconds);
        self.loss.set(step.loss.into());
        self.learning_rate.set(step.learning_rate.into());
        self.norm.set(step.norm.into());
        self.clip.set(step.clip.into());
        if !(step.loss.is_finite() && step.norm.is_finite()) {
            self.not_finite.inc();
        }
        self.last_step.now();
    }

    /// An evaluation is done.
    pub fn evaluation(&self, found: &EvaluationMetrics) {
        self.evaluation_step.set(found.step.into());
        self.evaluation_loss.set(found.evaluation_loss.into());
        self.evaluation_accuracy.set(found.evaluation_accuracy);
        self.evaluation_perplexity.set(found.evaluation_perplexity);
    }
}
