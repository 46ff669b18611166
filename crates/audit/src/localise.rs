//! Narrows a step that differs down to the difference, which the scalar reference confirms.

use std::time::Instant;

use super::checks::Checked;
use super::disputed_step::DisputedStep;
use super::ground::{Ground, differences};
use super::replay::reference_step_on;
use super::report::{AuditError, Found, Outcome};
use super::rounding::{may_lack_a_decision, missing};
use tiebreak_contract::program::phase::{Phase, graph_of};
use tiebreak_contract::program::step::{MicroBatch, Program};
use tiebreak_dispute::evidence::binding::Binding;
use tiebreak_dispute::evidence::origin::{self, Origin};
use tiebreak_dispute::verdict::{Claim, ProvenTensor, Ruling, Scalar, Verdict};
use tiebreak_engine::EngineError;
use tiebreak_engine::recompute;
use tiebreak_engine::reference::ReferenceUntil;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::merkle;
use tiebreak_record::commit::record::StepRecord;
use tiebreak_record::commit::state::tensor_digests;
use tiebreak_record::commit::trace::{Trace, leaf_place, positions};
use tiebreak_record::rounding::legal::Illegal;
use tiebreak_run::observers::tally::Tally;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::{RunError, names, states, traces};
use tiebreak_run::step::CommittedStep;

/// A step that differs from the run's record, with the data needed to find the cause.
pub struct Difference<'a> {
    /// The run that is audited.
    pub run: &'a Run,
    /// The result of the checks without a replay.
    pub checked: &'a Checked,
    /// The state that the step began from.
    pub before: &'a [Vec<u8>],
    /// The step's micro-batches, in order.
    pub batch: &'a [MicroBatch],
    /// The auditor's result.
    pub mine: &'a CommittedStep,
    /// The auditor's engine.
    pub engine: &'a str,
    /// True if the auditor's engine computes tensors again instead of keeping them.
    pub recomputes: bool,
    /// The time at which the auditor's limit ends.
    pub end: Option<Instant>,
}

impl Difference<'_> {
    /// Finds the difference in a step whose record differs from the auditor's.
    ///
    /// # Errors
    /// If an engine fails, or a file of the run that is needed cannot be read.
    pub fn localise(&self) -> Result<Found, AuditError> {
        let Difference { run, checked, before, mine, .. } = *self;
        let step = mine.record.step;
        let theirs = checked.step(step)?;
        let Some(trace) = &mine.trace else { return self.whole_step() };
        let Some(published) = published_trace(run, theirs) else { return self.without_trace() };
        let difference = published.nodes.iter().zip(&trace.nodes).position(|(a, b)| a.digest != b.digest);
        if let Some(index) = difference {
            return self.operator(index, trace, &published);
        }
        let digests = tensor_digests(&run.program().state(), before);
        let binding = Binding::of(run.program(), &published, &digests);
        let implied =
            binding.state(run.program()).map_err(|why| RunError::malformed(&run.layout.trace(step), why))?;
        if implied != theirs.state {
            let before = (!binding.kept.is_empty()).then(|| Box::new(checked.proven(step - 1)));
            let Binding { outputs, siblings, kept } = binding;
            let claim = Claim::Binding { outputs, siblings, before, kept };
            let verdict = checked.verdict(run, step, claim);
            let outcome = Outcome::Diverges { step, what: Ground::State };
            return Ok(Found { outcome, verdict: Some(verdict) });
        }
        for (scalar, same) in
            [(Scalar::Clip, theirs.clip == mine.record.clip), (Scalar::Loss, theirs.loss == mine.record.loss)]
        {
            if same {
                continue;
            }
            let what = Ground::Scalar(scalar);
            let output = scalar_output(run.program(), &published, scalar);
            let verdict = checked.verdict(run, step, Claim::Scalar { scalar, output });
            return Ok(Found { outcome: Outcome::Diverges { step, what }, verdict: Some(verdict) });
        }
        self.whole_step()
    }

    /// A trainer who withholds a trace, or commits to a trace of another program, does not escape the step verdict. In the logged
    /// profile, however, only a trace tells a missing decision from a cheat.
    fn without_trace(&self) -> Result<Found, AuditError> {
        let (step, record) = (self.mine.record.step, &self.mine.record);
        let theirs = self.checked.step(step)?;
        let Found { outcome, verdict } =
            if self.run.job().rounding.is_some() && may_lack_a_decision(record, theirs) {
                Found { outcome: missing(step, record, theirs), verdict: None }
            } else {
                self.whole_step()?
            };
        let outcome = match outcome {
            accused @ (Outcome::Diverges { .. } | Outcome::MissingDecision { .. }) => {
                accused.map(|what| Ground::Withheld(Box::new(what)))
            }
            other => other,
        };
        Ok(Found { outcome, verdict })
    }

    /// Judges a step whose first differing node of the trace is `index`.
    fn operator(&self, index: usize, trace: &Trace, published: &Trace) -> Result<Found, AuditError> {
        let Difference { run, checked, before, batch, mine, engine, recomputes, end } = *self;
        let step = mine.record.step;
        // A verdict that does not stand alone is dropped; then the reference replays the whole step.
        let stands = |verdict: &Verdict| matches!(verdict.check(None), Ok(Ruling::Convicts(_)));
        let disputed = DisputedStep { run, checked, step, before, batch, published, recomputes, end };
        let (phase, node) = positions(run.program())[index];
        let output = graph_of(run.program(), phase).nodes[node].output;
        let logged = graph_of(run.program(), phase).logged.iter().position(|l| l.output == output);
        let found = match (phase, logged) {
            (Phase::Micro(micro), Some(number)) => disputed.rounding(micro, number, node, index).map(Some),
            _ => disputed.tile(index, trace, engine),
        };
        match found {
            Err(error) if out_of_time(&error) => Ok(self.unconfirmed(checked.step(step)?)),
            Err(error) => Err(error),
            Ok(Some(found)) if logged.is_some() || found.verdict.as_ref().is_none_or(stands) => Ok(found),
            Ok(_) => self.whole_step(),
        }
    }

    /// Judges a decision outside the proved bound, in a step whose record agrees with the auditor's. Runs with operator traces
    /// get a verdict that stands alone, because the scalar reference checks it. Otherwise the scalar reference replays the step
    /// before anybody is accused.
    ///
    /// # Errors
    /// If the scalar reference or the CPU engine fails, or a file of the run cannot be read.
    pub fn illegal(&self, found: &Illegal) -> Result<Found, AuditError> {
        let Difference { run, checked, before, batch, mine, recomputes, end, .. } = *self;
        let step = mine.record.step;
        let what = Ground::Decision(found.clone());
        // The records agree, so the auditor's trace is the committed one, published or not.
        let alone = match &mine.trace {
            Some(published) => DisputedStep { run, checked, step, before, batch, published, recomputes, end }
                .decision_verdict(found),
            None => Ok(None),
        };
        match alone {
            Err(error) if out_of_time(&error) => return Ok(self.unconfirmed_by(what)),
            Err(error) => return Err(error),
            Ok(Some(verdict)) => {
                return Ok(Found { outcome: Outcome::Diverges { step, what }, verdict: Some(verdict) });
            }
            Ok(None) => {}
        }
        let tally = match self.reference_step(checked.step(step)?) {
            Err(error) if out_of_time(&error) => return Ok(self.unconfirmed_by(what)),
            done => done?.1,
        };
        if tally.first_illegal.as_ref() != Some(found) {
            let engine = self.engine.to_string();
            return Ok(Found { outcome: Outcome::EngineFaulty { step, engine, what }, verdict: None });
        }
        let claim = Claim::Step { micro_batches: vec![found.micro_batch], tensors: Vec::new() };
        let verdict = Some(checked.verdict(run, step, claim));
        Ok(Found { outcome: Outcome::Diverges { step, what }, verdict })
    }

    /// The step on the scalar reference, which computes tensors again if the auditor's engine does.
    fn reference_step(&self, theirs: &StepRecord) -> Result<(CommittedStep, Tally), AuditError> {
        let reference = ReferenceUntil { end: self.end, watch: None };
        let reference = recompute::engine(reference, self.recomputes);
        reference_step_on(self.run, self.before, theirs, reference, self.end)
    }

    /// A verdict on a whole step: names the differences, after the scalar reference agreed.
    fn whole_step(&self) -> Result<Found, AuditError> {
        let Difference { run, checked, mine, .. } = *self;
        let step = mine.record.step;
        let theirs = checked.step(step)?;
        let reference = match self.reference_step(theirs) {
            Err(error) if out_of_time(&error) => return Ok(self.unconfirmed(theirs)),
            done => done?.0,
        };
        let different = differences(&mine.record, theirs);
        if reference.record == *theirs {
            let what = Ground::ReferenceDiffers(different);
            let engine = self.engine.to_string();
            return Ok(Found { outcome: Outcome::EngineFaulty { step, engine, what }, verdict: None });
        }
        // Without the trainer's roots a verdict names no micro-batch: the record convicts.
        let published = run.gradient_roots(theirs).unwrap_or_default();
        let micro_batches: Vec<u32> = (0..)
            .zip(reference.gradients.iter().zip(&published))
            .filter(|(_, (a, b))| a != b)
            .map(|(i, _)| i)
            .collect();
        let tensors = state_differences(run, step, &mine.state);
        let fields = differences(&reference.record, theirs);
        let what = Ground::Step { fields, micro_batches: micro_batches.clone(), tensors: tensors.clone() };
        let verdict = || checked.verdict(run, step, Claim::Step { micro_batches, tensors });
        let verdict = (!run.job().hides()).then(verdict);
        Ok(Found { outcome: Outcome::Diverges { step, what }, verdict })
    }

    /// The outcome when the auditor's time ended before the scalar reference had judged a record.
    fn unconfirmed(&self, theirs: &StepRecord) -> Found {
        self.unconfirmed_by(Ground::Fields(differences(&self.mine.record, theirs)))
    }

    fn unconfirmed_by(&self, found: Ground) -> Found {
        let (step, engine) = (self.mine.record.step, self.engine.to_string());
        let what = Ground::OutOfTime { engine, step, found: Box::new(found) };
        Found { outcome: Outcome::Unconfirmed { step, what }, verdict: None }
    }
}

/// True if the auditor's time ended.
fn out_of_time(error: &AuditError) -> bool {
    matches!(error, AuditError::Engine(EngineError::OutOfTime))
}

/// The output of a trace that a scalar of the record must equal.
pub fn scalar_output(program: &Program, published: &Trace, scalar: Scalar) -> Option<ProvenTensor> {
    let Some(Origin::Node { phase, node }) = origin::scalar(program, scalar) else { return None };
    let index = leaf_place(program, phase, node)?;
    let proof = merkle::prove(&published.leaves(program), index);
    Some(ProvenTensor { digest: published.nodes[index].digest, proof })
}

/// The trace that the run publishes for a step, if it is the one that the step's record commits.
fn published_trace(run: &Run, theirs: &StepRecord) -> Option<Trace> {
    let trace = traces::read(run.program(), run.at(names::trace(theirs.step))).ok()?;
    (Some(trace.root(run.program())) == theirs.trace).then_some(trace)
}

/// The state tensors that differ, if the trainer published the state after this step, undamaged.
fn state_differences(run: &Run, step: u32, mine: &[Digest]) -> Vec<String> {
    let table = run.program().state();
    let Ok(theirs) = states::read(run, step) else { return Vec::new() };
    let theirs = tensor_digests(&table, &theirs);
    table
        .iter()
        .zip(mine.iter().zip(&theirs))
        .filter(|(_, (a, b))| a != b)
        .map(|(t, _)| t.name.clone())
        .collect()
}
