//! The output of training while it runs: a progress bar, the metrics of each step, and evaluations that are due.

use std::ops::ControlFlow;
use std::time::Instant;

use super::stopped::Asked;
use crate::cli::view::exposition::training::TrainingMetrics;
use crate::cli::view::progress::ProgressBar;
use crate::cli::view::report::Printer;
use crate::cli::view::traces::{About, Traces};
use tiebreak_engine::session::Session;
use tiebreak_job::{Evaluable, EvaluationSpec};
use tiebreak_record::commit::record::StepRecord;
use tiebreak_run::evaluate::Evaluator;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::evaluation::{self, EvaluationData};
use tiebreak_run::run::metrics::{EvaluationMetrics, Metrics, StepMetrics};
use tiebreak_run::run::{RunError, Stored, names, network};
use tiebreak_run::step::StepError;
use tiebreak_run::step::finite::{NotFinite, in_words};
use tiebreak_train::Progress;

/// Shows steps as they are done.
pub struct Bar {
    pub bar: ProgressBar,
    pub start: Instant,
    /// Tokens, or samples, of a step.
    pub per_step: u64,
    pub done: u64,
    /// The last step that is done; none before training has begun.
    pub at: Option<u32>,
    /// The name of those.
    unit: &'static str,
    samples: u32,
    /// When the last step was done.
    last: Instant,
    /// The files for its metrics: lines, and events.
    files: [Stored; 2],
    metrics: Option<Metrics>,
    /// Those that others read while it trains.
    pub exposed: Option<TrainingMetrics>,
    pub traces: Traces,
    pub evaluation: Option<Evaluating>,
    printer: Printer,
    /// True if training stops at a value that is not finite, and the flag by which somebody asks it to.
    pub stops: (bool, Option<Asked>),
    /// True once a gradient's norm that is not finite was told of.
    told: bool,
}

/// Evaluations while a run trains.
pub struct Evaluating {
    spec: EvaluationSpec,
    steps: u32,
    model: Box<dyn Evaluable>,
    data: EvaluationData,
    /// Made with the first evaluation.
    evaluator: Option<Evaluator>,
}

impl Evaluating {
    /// The evaluations of a run whose job has an `[evaluation]`.
    pub fn of(run: &Run) -> Result<Option<Evaluating>, RunError> {
        let Some(spec) = run.job().evaluation.clone() else { return Ok(None) };
        let model: Box<dyn Evaluable> = match run.job().model() {
            Some(job) => Box::new(job.clone()),
            None => Box::new(network::of_run(run)?.ok_or_else(|| without_network(run))?.0),
        };
        let data = evaluation::of_run(run)?;
        Ok(Some(Evaluating { spec, steps: run.job().steps, model, data, evaluator: None }))
    }

    /// The evaluation after a step, if one is due.
    fn after(
        &mut self,
        step: u32,
        session: &mut Session,
        waiting: &mut (dyn FnMut() + Send),
    ) -> Result<Option<EvaluationMetrics>, StepError> {
        if !self.spec.is_due(step, self.steps) {
            return Ok(None);
        }
        let released = session.program().released();
        let (engine, state) = session.engine_and_state();
        let evaluator = match self.evaluator.take() {
            Some(evaluator) => evaluator,
            None => Evaluator::new(engine, &*self.model, self.model.micro_batch())?,
        };
        let dataset = &mut self.data.dataset;
        let found = evaluator.run(engine, &state[..released], dataset, self.spec.samples, &mut |_, _| {
            waiting();
            ControlFlow::Continue(())
        })?;
        self.evaluator = Some(evaluator);
        let number = |bits: u32| f64::from(f32::from_bits(bits));
        Ok(Some(EvaluationMetrics {
            step,
            evaluation_loss: f32::from_bits(found.loss),
            evaluation_accuracy: number(found.accuracy()),
            evaluation_perplexity: number(found.perplexity()),
        }))
    }
}

/// The error of a run whose evaluations need a network file that is gone.
fn without_network(run: &Run) -> RunError {
    RunError::Refused(format!(
        "{} is not there, and the run's evaluations need it: copy the network file that gave the program to this place",
        run.at(names::NETWORK).path().display()
    ))
}

impl Progress for Bar {
    fn begin(&mut self, done: u32) {
        self.bar.begin_at(u64::from(done));
        self.exposed.iter().for_each(|exposed| exposed.done(done));
        self.at = Some(done);
        (self.start, self.last) = (Instant::now(), Instant::now());
        let [lines, events] = self.files.clone();
        let opened = Metrics::open(lines, events, done);
        self.metrics = self.noted(opened);
    }

    fn step(&mut self, record: &StepRecord, norm: u32) {
        self.done += 1;
        self.at = Some(record.step);
        self.bar.set_position(u64::from(record.step));
        let rate = (self.done * self.per_step) as f64 / self.start.elapsed().as_secs_f64();
        let loss = f32::from_bits(record.loss);
        self.bar.set_message(format!("loss {loss:.4}  {rate:.0} {}/s", self.unit));
        let seconds = self.last.elapsed().as_secs_f64();
        self.last = Instant::now();
        let step = StepMetrics {
            step: record.step,
            loss,
            learning_rate: f32::from_bits(record.learning_rate),
            norm: f32::from_bits(norm),
            clip: f32::from_bits(record.clip),
            seconds,
            samples_per_second: f64::from(self.samples) / seconds,
        };
        if let Some(exposed) = &self.exposed {
            exposed.step(&step, self.samples.into(), self.per_step);
        }
        let told = [
            ("tiebreak.step", About::Count(step.step.into())),
            ("tiebreak.loss", About::Real(step.loss.into())),
            ("tiebreak.gradient_norm", About::Real(step.norm.into())),
        ];
        self.traces.did("step", seconds, &told);
        self.note(|metrics| metrics.step(&step));
        if !step.norm.is_finite() && loss.is_finite() && !self.told {
            self.told = true;
            let step = record.step;
            let why = format!(
                "warning: step {step}: the gradient's norm is {}, though the loss is finite: the next loss may be none",
                in_words(norm)
            );
            self.bar.aside(self.printer, why);
        }
    }

    fn not_finite(&mut self, step: u32, found: &NotFinite) {
        self.told = true;
        self.bar.aside(self.printer, format!("warning: step {step}: {found}"));
    }

    fn stops_at_not_finite(&self) -> bool {
        self.stops.0
    }

    fn is_asked_to_stop(&mut self) -> bool {
        self.stops.1.as_ref().is_some_and(Asked::is_asked)
    }

    fn state(
        &mut self,
        step: u32,
        session: &mut Session,
        waiting: &mut (dyn FnMut() + Send),
    ) -> Result<(), StepError> {
        let Some(evaluating) = &mut self.evaluation else { return Ok(()) };
        let found = evaluating.after(step, session, waiting)?;
        let seconds = self.last.elapsed().as_secs_f64();
        // The next step's time is its own.
        self.last = Instant::now();
        let Some(found) = found else { return Ok(()) };
        let told = [
            ("tiebreak.step", About::Count(step.into())),
            ("tiebreak.evaluation_loss", About::Real(found.evaluation_loss.into())),
        ];
        self.traces.did("evaluation", seconds, &told);
        self.bar.aside(
            self.printer,
            format!(
                "step {step}: evaluation loss {:.4}, accuracy {:.4}, perplexity {:.2}",
                found.evaluation_loss, found.evaluation_accuracy, found.evaluation_perplexity
            ),
        );
        self.exposed.iter().for_each(|exposed| exposed.evaluation(&found));
        self.note(|metrics| metrics.evaluation(&found));
        Ok(())
    }
}

impl Bar {
    pub fn new(printer: Printer, run: &Run) -> Bar {
        let per_sample = u64::from(run.program().labels_per_sample);
        Bar {
            bar: printer.bar(u64::from(run.job().steps), "steps"),
            start: Instant::now(),
            per_step: per_sample * u64::from(run.program().samples()),
            done: 0,
            at: None,
            unit: if per_sample > 1 { "tokens" } else { "samples" },
            samples: run.program().samples(),
            last: Instant::now(),
            files: [names::METRICS, names::EVENTS].map(|name| run.at(name)),
            metrics: None,
            exposed: None,
            traces: Traces::default(),
            evaluation: None,
            printer,
            stops: (false, None),
            told: false,
        }
    }

    fn note(&mut self, write: impl FnOnce(&mut Metrics) -> Result<(), RunError>) {
        if let Some(mut metrics) = self.metrics.take() {
            let written = write(&mut metrics).map(|()| metrics);
            self.metrics = self.noted(written);
        }
    }

    /// Training goes on without metrics where they cannot be written.
    fn noted(&self, metrics: Result<Metrics, RunError>) -> Option<Metrics> {
        metrics.map_err(|error| self.printer.problem(&format!("no more metrics are written: {error}"))).ok()
    }
}
