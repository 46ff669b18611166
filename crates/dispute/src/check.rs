//! The check of a verdict: everything is derived from the file again, with the scalar reference, and reported step by step.
//!
//! Three outcomes stay apart. A file that contradicts itself is [`Malformed`] and says nothing about the trainer; every other
//! file either convicts or does not.

use std::sync::OnceLock;

use super::evidence::binding::{self, state_nodes};
use super::evidence::context::{Context, underivable};
use super::evidence::origin::{self, Origin};
use super::evidence::proven::{DataSlices, ProvenTensor, Scalar, wrong};
use super::fact::{Fact, Right, Wrong};
use super::verdict::{Claim, Finding, ProvenRecord, Ruling, Verdict};
use tiebreak_contract::arith::{DType, float};
use tiebreak_contract::program::graph::TensorType;
use tiebreak_contract::program::phase::Phase;
use tiebreak_contract::program::step::{Program, state_bytes};
use tiebreak_job::computation::{Computation, ComputationError};
use tiebreak_job::data::batch_digest;
use tiebreak_job::initial::Expected;
use tiebreak_job::manifest::{DataError, FileManifest};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::commit::record::{Record, StepRecord};
use tiebreak_record::commit::tensor::Hash;
use tiebreak_record::commit::trace::leaf_name;
use tiebreak_record::commit::tree_head::{Head, Signed};
use tiebreak_record::commit::{Malformed, tensor};

/// The most bytes of a batch that a check draws again.
const BATCH_BYTES_MAX: u64 = 1 << 30;

/// A check, with its steps.
///
/// ```
/// use tiebreak_dispute::verdict::Verdict;
///
/// let bytes = std::fs::read("../../assets/verdicts/operator.json")?;
/// let examination = Verdict::from_bytes(&bytes)?.examine(None);
/// assert!(examination.outcome.is_ok());
/// assert!(examination.steps[0].starts_with("the job gives program "));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Examination {
    /// The facts that held, in order.
    pub steps: Vec<String>,
    /// # Errors
    /// If the file contradicts itself: then it says nothing about the trainer.
    pub outcome: Result<Ruling, Malformed>,
}

/// The result of a claim: a decided fact, or the reason why nothing is decided.
pub(super) enum Shown {
    /// A fact about a step that holds or does not.
    Decided {
        step: u32,
        fact: Fact,
        holds: bool,
    },
    Replay {
        step: u32,
    },
}

impl Verdict {
    /// Checks the verdict with the scalar reference alone. `key` is the key that the checker knows to be the trainer's.
    ///
    /// # Errors
    /// If the file contradicts itself: then it says nothing about the trainer.
    ///
    /// ```
    /// use tiebreak_dispute::verdict::{Ruling, Verdict};
    /// use tiebreak_record::commit::keys::PrivateKey;
    ///
    /// // A trainer changed one element of a GELU, and an auditor wrote what shows it.
    /// let bytes = std::fs::read("../../assets/verdicts/operator.json")?;
    /// let verdict = Verdict::from_bytes(&bytes)?;
    /// let Ruling::Convicts(finding) = verdict.check(None)? else { panic!("the evidence shows it") };
    /// assert_eq!(finding.step, 17);
    /// // Of somebody else the file says nothing.
    /// let other = PrivateKey::generate("somebody.example", [1; 32])?.public();
    /// assert!(verdict.check(Some(&other)).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check(&self, key: Option<&PublicKey>) -> Result<Ruling, Malformed> {
        self.examine(key).outcome
    }

    /// Checks the verdict and keeps the steps of the check.
    pub fn examine(&self, key: Option<&PublicKey>) -> Examination {
        self.examine_watched(key, &mut |_, _| {})
    }

    /// [`Verdict::examine`], with the progress of what takes long: bytes of the initial state that were made, and their total.
    #[doc(hidden)] // for the layers above
    pub fn examine_watched(&self, key: Option<&PublicKey>, watch: &mut dyn FnMut(u64, u64)) -> Examination {
        let mut steps = Vec::new();
        let outcome = self.examined(key, &mut steps, watch);
        Examination { steps, outcome }
    }

    fn examined(
        &self,
        key: Option<&PublicKey>,
        steps: &mut Vec<String>,
        watch: &mut dyn FnMut(u64, u64),
    ) -> Result<Ruling, Malformed> {
        let context = self.context(key)?;
        steps.push(format!(
            "the job gives program {}, computation {} and run {}",
            self.run.program.short(),
            context.computation.id.short(),
            context.run.short()
        ));
        steps.push(match (&context.key, key) {
            (Some(named), Some(_)) => {
                format!("the head over {} records is signed by {}", context.head.size, named.to_text())
            }
            (Some(named), None) => format!(
                "the head over {} records is signed by {}, the key that the run names; give --trainer-key to \
                 establish that it is the trainer's",
                context.head.size,
                named.to_text()
            ),
            (None, _) => format!("the head over {} records is not signed", context.head.size),
        });
        let signed = if key.is_some() { Signed::By } else { Signed::Unknown };
        Ok(match context.shown(self, steps, watch)? {
            Shown::Replay { step } => Ruling::NeedsReplay { step, run: context.run },
            Shown::Decided { fact, holds: true, .. } => Ruling::DoesNotConvict(Right(fact)),
            Shown::Decided { step, fact, holds: false } => {
                Ruling::Convicts(Finding { run: context.run, signed, step, what: Wrong(fact) })
            }
        })
    }

    /// Bytes of the tensors that a check makes: the initial state, or a step's batch. The number follows from the numbers of
    /// the verdict's job, whose program is built and nothing else. A machine with less memory cannot make the check.
    ///
    /// # Errors
    /// If the job or the program is malformed.
    #[doc(hidden)] // for the layers above
    pub fn memory(&self) -> Result<u64, Malformed> {
        Ok(match &self.claim {
            Claim::Initial => state_bytes(&self.computation()?.program.state()),
            Claim::Batch { .. } => batch_bytes(&self.computation()?.program),
            _ => 0, // slices and proofs, which the file carries
        })
    }

    /// The computation that the verdict is about. One whose commitments hide has no seed here, and only some claims about it.
    ///
    /// # Errors
    /// If job, program and summary contradict each other, or the claim is about what commitments hide.
    #[doc(hidden)] // for the layers above
    pub fn computation(&self) -> Result<Computation, Malformed> {
        let program = self.program.as_ref().map(|program| program.0.as_slice());
        let summary = self.run.computation();
        let computation = match Computation::derive("job", &self.job, program, summary.clone()) {
            Err(ComputationError::Hidden) if self.claim.is_open() => {
                Computation::hidden("job", &self.job, program, summary, None)
            }
            derived => derived,
        };
        computation.map_err(underivable("verdict"))
    }

    pub(super) fn context(&self, key: Option<&PublicKey>) -> Result<Context, Malformed> {
        let computation = self.computation()?;
        let run = self.run.run_id(&computation.id, &self.job).map_err(wrong)?;
        // The run id covers the named key. So no other key's signature counts, even if the checker does not know the key.
        let named = self.run.named_key()?;
        if let Some(key) = key
            && named.as_ref().is_none_or(|named| named.bytes() != key.bytes())
        {
            let named =
                named.map_or("no trainer key".into(), |named| format!("the trainer key {}", named.to_text()));
            let why = format!("the run names {named}; the one that is given is {}", key.to_text());
            return Err(wrong(why));
        }
        let (head, _) = Head::from_note(&self.head, key.or(named.as_ref()))?;
        if head.run != run {
            let [found, own] = [head.run, run].map(|run| run.short());
            return Err(wrong(format!("the head is of run {found}, and the verdict is about run {own}")));
        }
        self.run.origin.check(&computation.job)?;
        let origin = self.run.origin.clone();
        let places = OnceLock::new();
        Ok(Context { computation, run, origin, head, key: named, places })
    }
}

impl Context {
    fn shown(
        &self,
        verdict: &Verdict,
        steps: &mut Vec<String>,
        watch: &mut dyn FnMut(u64, u64),
    ) -> Result<Shown, Malformed> {
        if let Claim::Fork { other, evidence } = &verdict.claim {
            return self.fork(verdict.record.as_ref(), other, evidence, steps);
        }
        let proven = verdict.record.as_ref().ok_or_else(|| wrong("it carries no record"))?;
        let record = self.proven(proven, &self.head)?;
        steps.push(format!("record {} is under the head", proven.index));
        match (&verdict.claim, record) {
            (Claim::Initial, Record::Initial { state, .. }) => {
                if state != self.computation.summary.initial {
                    return Ok(shown(0, false, Fact::InitialRecord));
                }
                match self.expected_state(watch)? {
                    Expected::State(expected) => {
                        steps.push(format!("the initial state follows from {}", self.origin.source()));
                        let source = self.origin.source();
                        Ok(shown(0, state == expected, Fact::InitialState { source }))
                    }
                    Expected::InFiles => Ok(Shown::Replay { step: 0 }),
                }
            }
            (Claim::Weights(claim), Record::Initial { state, .. }) => self.weights(&state, claim, steps),
            (Claim::Final { last }, Record::Final { roots, steps: count, .. }) => {
                let last_record = self.proven(last, &self.head)?;
                let Record::Step { step, .. } = last_record else {
                    return Err(not_a_step("the other record", &last_record));
                };
                let in_place = u64::from(count) + 1 == proven.index
                    && last.index + 1 == proven.index
                    && step.step == count
                    && count == self.computation.job.steps;
                if !in_place {
                    return Err(wrong(format!(
                        "record {} is of step {} and record {} ends a run of {count}; this run ends with step {}",
                        last.index, step.step, proven.index, self.computation.job.steps
                    )));
                }
                steps.push(format!("record {} is under the head", last.index));
                let same = roots.digest() == step.state;
                Ok(shown(count, same, Fact::FinalState))
            }
            (claim, Record::Step { step, .. }) => {
                if u64::from(step.step) != proven.index || step.step > self.computation.job.steps {
                    return Err(wrong(format!(
                        "record {} is of step {}; record n is of step n, and the last step is {}",
                        proven.index, step.step, self.computation.job.steps
                    )));
                }
                self.step_claim(claim, &step, steps)
            }
            (claim, record) => Err(other_record(claim, &record)),
        }
    }

    /// The initial state that the origin gives, with the progress of making it.
    pub(super) fn expected_state(&self, watch: &mut dyn FnMut(u64, u64)) -> Result<Expected, Malformed> {
        let program = &self.computation.program;
        let (mut done, all) = (0, state_bytes(&program.state()));
        let mut made = |bytes: u64| {
            done += bytes;
            watch(done, all);
        };
        self.origin.expected_watched(program, self.computation.key(), &mut made)
    }

    fn step_claim(
        &self,
        claim: &Claim,
        step: &StepRecord,
        steps: &mut Vec<String>,
    ) -> Result<Shown, Malformed> {
        match claim {
            Claim::Tile(claim) => self.tile(step, claim, steps),
            Claim::Rounding(claim) => self.rounding(step, claim, steps),
            Claim::Binding { outputs, siblings, before, kept } => {
                self.binding(step, outputs, &siblings.0, (before.as_deref(), kept), steps)
            }
            Claim::Scalar { scalar, output } => self.scalar(step, *scalar, output.as_ref(), steps),
            Claim::LearningRate => {
                let rate = self.computation.job.schedule.learning_rate(step.step, self.computation.job.steps);
                steps.push(format!("the schedule gives the pattern {rate:08x}"));
                let same = step.learning_rate == rate;
                Ok(shown(step.step, same, Fact::LearningRate { patterns: [step.learning_rate, rate] }))
            }
            Claim::Cursor => {
                let drawn = u64::from(step.step) * u64::from(self.computation.program.samples());
                steps.push(format!("{drawn} samples are drawn up to step {}", step.step));
                let same = step.cursor == drawn;
                Ok(shown(step.step, same, Fact::Cursor { cursor: step.cursor, drawn }))
            }
            Claim::Batch { files, slices } => self.batch(step, files, slices, steps),
            Claim::Step { .. } => Ok(Shown::Replay { step: step.step }),
            Claim::Initial | Claim::Weights(_) | Claim::Final { .. } | Claim::Fork { .. } => {
                Err(wrong(format!("a claim of kind {} needs another record than a step's", claim.kind())))
            }
        }
    }

    fn binding(
        &self,
        step: &StepRecord,
        outputs: &[Digest],
        siblings: &[Hash],
        (before, kept): (Option<&ProvenRecord>, &[ProvenTensor]),
        steps: &mut Vec<String>,
    ) -> Result<Shown, Malformed> {
        let trace = self.trace_root(step)?;
        let program = &self.computation.program;
        let state_nodes = state_nodes(program);
        let nodes: Vec<usize> = state_nodes.iter().copied().flatten().collect();
        if outputs.len() != nodes.len() || kept.len() != state_nodes.len() - nodes.len() {
            return Err(wrong(format!(
                "it lists {} outputs and {} frozen parameters; the state has {} and {}",
                outputs.len(),
                kept.len(),
                nodes.len(),
                state_nodes.len() - nodes.len()
            )));
        }
        self.kept(step, &state_nodes, before, kept)?;
        let places = nodes.into_iter().map(|node| (Phase::Update, node));
        let root = self.traced(places.zip(outputs), siblings)?;
        if root != *trace {
            let [found, own] = [root, *trace].map(|root| root.short());
            return Err(wrong(format!("the outputs have the root {found}; the run committed to {own}")));
        }
        steps.push(format!("{} outputs of the update are under the record's trace root", outputs.len()));
        let same = binding::state(program, outputs, kept)? == step.state;
        Ok(shown(step.step, same, Fact::State))
    }

    fn scalar(
        &self,
        step: &StepRecord,
        scalar: Scalar,
        output: Option<&ProvenTensor>,
        steps: &mut Vec<String>,
    ) -> Result<Shown, Malformed> {
        let name = scalar.name();
        let word = match scalar {
            Scalar::Clip => step.clip,
            Scalar::Loss => step.loss,
        };
        let Some(output) = output else {
            if scalar != Scalar::Clip || !self.computation.job.never_clips() {
                return Err(wrong(format!("the job does not give the {name}")));
            }
            steps.push("the job does not clip: the factor is 1".into());
            return Ok(shown(step.step, word == float::ONE, Fact::NoClip { pattern: word }));
        };
        self.trace_root(step)?;
        let Some(Origin::Node { phase, node }) = origin::scalar(&self.computation.program, scalar) else {
            return Err(wrong(format!("no operator makes the {name}")));
        };
        self.trace_commitment(step, phase, node, output)?;
        steps.push(format!("{} is under the record's trace root", leaf_name(phase, node)));
        let ty = TensorType { dtype: DType::F32, shape: vec![1] };
        let same = tensor::digest(&ty, &word.to_le_bytes()) == output.digest;
        Ok(shown(step.step, same, Fact::Scalar { scalar, pattern: word }))
    }

    fn batch(
        &self,
        step: &StepRecord,
        files: &[FileManifest],
        carried: &[DataSlices],
        steps: &mut Vec<String>,
    ) -> Result<Shown, Malformed> {
        if batch_bytes(&self.computation.program) > BATCH_BYTES_MAX {
            return Err(Malformed::TooLarge { what: "batch", limit: BATCH_BYTES_MAX });
        }
        let failed = |error: DataError| wrong(error.to_string());
        let mut dataset = self.data_in(files, carried)?;
        let count: usize = carried.iter().map(|slices| slices.slices.len()).sum();
        steps.push(format!("{count} slices are of the run's data"));
        let batch =
            dataset.batch(&self.computation.program, self.computation.key(), step.step).map_err(failed)?;
        steps.push("the batch was drawn from them again".into());
        let same = batch_digest(&self.computation.program, &batch) == step.batch;
        Ok(shown(step.step, same, Fact::Batch))
    }
}

/// The error for a record that should be a step's.
pub(super) fn not_a_step(what: &str, found: &Record) -> Malformed {
    wrong(format!("{what} is {}, and a step's is expected", found.name()))
}

/// The error for a record that a claim cannot be about.
fn other_record(claim: &Claim, found: &Record) -> Malformed {
    wrong(format!("a claim of kind {} needs another record than {}", claim.kind(), found.name()))
}

/// Bytes of a step's batch.
fn batch_bytes(program: &Program) -> u64 {
    let elements = |shape: &[u32]| shape.iter().fold(4, |n: u64, &d| n.saturating_mul(u64::from(d)));
    let bytes = program.batch.iter().map(|tensor| elements(&tensor.shape)).fold(0, u64::saturating_add);
    bytes.saturating_mul(u64::from(program.micro_batches))
}

/// A fact about a step holds, or does not.
pub(super) fn shown(step: u32, holds: bool, fact: Fact) -> Shown {
    Shown::Decided { step, fact, holds }
}
