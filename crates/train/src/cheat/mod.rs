//! Cheating trainers, for the tests and the demo. Each does one thing wrong and carries on: later steps start from the cheated
//! state. docs/ATTACKS.md says which attack each is, and which command catches it. Every record, root and signature is the one that an honest trainer would write for that state.

pub mod stolen;

use std::collections::HashSet;
use std::str::FromStr;

use super::conduct::Conduct;
use super::error::TrainError;
use tiebreak_contract::arith::words::bytes_of;
use tiebreak_contract::program::graph::{LoggedProduct, Node, Primitive};
use tiebreak_contract::program::init;
use tiebreak_contract::program::phase::Phase;
use tiebreak_contract::program::products::{ProductClass, ProductTable};
use tiebreak_contract::program::step::{MicroBatch, Program, StepSpec};
use tiebreak_engine::session::{Session, StepScalars, Unobserved};
use tiebreak_job::data::Dataset;
use tiebreak_record::rounding::near_tie::{NearTie, Product, Tolerance};
use tiebreak_run::observers::near_ties::Search as _;
use tiebreak_run::observers::record::{Choice, Steer};
use tiebreak_run::run::RunError;
use tiebreak_run::run::dir::Run;
use tiebreak_run::step::{CommittedStep, RunStep, StepRequest, Tamper, state_digests};

/// The cheats as a table: the doc comment of each, and its name on the command line.
macro_rules! cheats {
    ($($(#[$doc:meta])* $kind:ident, $name:literal;)*) => {
        /// The kind of a cheat.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum CheatKind {
            $($(#[$doc])* $kind,)*
        }

        impl CheatKind {
            /// All kinds, in the table's order.
            const ALL: &[CheatKind] = &[$(CheatKind::$kind),*];

            /// The name on the command line.
            #[doc(hidden)] // for the layers above
            pub fn name(self) -> &'static str {
                match self {
                    $(CheatKind::$kind => $name,)*
                }
            }
        }
    };
}

cheats! {
    /// One weight has a flipped bit, an eighth of its value or so, when the step begins.
    WeightBefore, "weight-before";
    /// One weight has a flipped bit in the state that the step commits.
    WeightAfter, "weight-after";
    /// One element of an optimizer moment is off in the state that the step commits.
    Moment, "moment";
    /// One element of a buffer is off in the state that the step commits; nothing where the program has none.
    Buffer, "buffer";
    /// The step trains on another step's batch.
    Batch, "batch";
    /// The step's update does not happen.
    Skip, "skip";
    /// The learning rate is one unit in the last place higher.
    LearningRate, "learning-rate";
    /// One element of one operator's output is off.
    Operator, "operator";
    /// The initial weights are not those of the seed (whatever the step).
    Init, "init";
    /// The initial weights are those of a training before, and the record calls them the seed's (whatever the step).
    Relabel, "relabel";
    /// The step begins from another run's state.
    Checkpoint, "checkpoint";
    /// The step ends with the state that another run has after as many steps: two runs are glued together.
    Glue, "glue";
    /// From this step on, the weights go straight to stolen ones, which they reach at the last step.
    Interpolate, "interpolate";
    /// As `interpolate`, and the records of these steps have a learning rate of almost zero.
    Infinitesimal, "infinitesimal";
    /// From this step on, every other interval between checkpoints is honest. In the others the weights go straight towards stolen
    /// ones, a quarter as far as honest steps.
    TopQ, "top-q";
    /// The step trains on samples that no data file has, the best of several tries to come near to stolen weights. The record
    /// commits to them.
    Adversarial, "adversarial";
    /// The step and the next one exchange their batches. The records commit to the exchanged ones.
    Reorder, "reorder";
    /// Another seed draws the step's samples and its dropout.
    Seed, "seed";
    /// Every product runs with one digit, whatever the job says.
    Digits, "digits";
    /// In the logged profile: every logged rounding goes the other way.
    DecisionsFlipped, "decisions-flipped";
    /// One logged rounding goes the other way.
    DecisionFlipped, "decision-flipped";
    /// Every logged rounding goes up.
    DecisionsBiased, "decisions-biased";
    /// Every logged rounding of a weight's gradient goes up; all others are honest.
    WeightDecisionsBiased, "weight-decisions-biased";
    /// Roundings up to four times as far from a boundary as the thresholds say are logged, and taken the other way.
    DecisionsBeyond, "decisions-beyond";
    /// No rounding is logged, and in each product the nearest tie goes the other way.
    DecisionsDropped, "decisions-dropped";
    /// A value in the middle between two boundaries is rounded to its neighbour, and the log has that decision.
    DecisionFar, "decision-far";
    /// A value in the middle between two boundaries is rounded to its neighbour, and the log does not say so.
    DecisionHidden, "decision-hidden";
}

/// A cheat at a step, written `operator@17`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cheat {
    /// The kind of the cheat.
    pub kind: CheatKind,
    /// The step of the cheat, from 1.
    pub step: u32,
}

impl FromStr for Cheat {
    type Err = String;

    fn from_str(text: &str) -> Result<Cheat, String> {
        let names: Vec<&str> = CheatKind::ALL.iter().map(|kind| kind.name()).collect();
        let wrong = || format!("a cheat is NAME@STEP with NAME one of {}", names.join(", "));
        let (name, step) = text.split_once('@').ok_or_else(wrong)?;
        let kind = *CheatKind::ALL.iter().find(|kind| kind.name() == name).ok_or_else(wrong)?;
        Ok(Cheat { kind, step: step.parse().map_err(|_| wrong())? })
    }
}

impl CheatKind {
    /// The kinds that a trainer of either profile can play: all that steer no decision.
    pub(crate) fn of_any_trainer() -> impl Iterator<Item = CheatKind> {
        CheatKind::ALL.iter().copied().filter(|kind| kind.steer(&[]).is_none())
    }

    /// The function that changes the trainer's rounding decisions, for a program with these products; `None` if the cheat changes
    /// none.
    fn steer(self, products: &[LoggedProduct]) -> Option<Steer> {
        fn other(range: [i64; 2], index: i64) -> i64 {
            if index == range[0] { range[1] } else { range[0] }
        }
        let flip = |choice: &mut Choice| choice.index = other(choice.tie.range(), choice.index);
        let mut done = false;
        match self {
            CheatKind::DecisionsFlipped => {
                Some(Box::new(move |_, _, _, choices| choices.iter_mut().for_each(flip)))
            }
            CheatKind::DecisionFlipped => Some(Box::new(move |_, _, _, choices| {
                if let Some(choice) = choices.first_mut().filter(|_| !done) {
                    flip(choice);
                    done = true;
                }
            })),
            CheatKind::DecisionsBiased => Some(upwards(products, |_| true)),
            CheatKind::WeightDecisionsBiased => Some(upwards(products, is_weight_gradient)),
            CheatKind::DecisionsBeyond => Some(Box::new(|_, product, results, choices| {
                let near = product.tolerance;
                let tolerance =
                    Tolerance { norms: 4.0 * near.norms, value: near.value, steps: 4.0 * near.steps };
                let wider = Product { tolerance, ..*product };
                let ties = wider.near_ties(results).unwrap_or_default();
                let far = ties.into_iter().filter(|tie| {
                    let near = NearTie { tolerance: tie.tolerance / 4.0, ..*tie };
                    near.range()[0] == near.range()[1]
                });
                let logged: HashSet<usize> = choices.iter().map(|choice| choice.tie.place).collect();
                for tie in far.filter(|tie| !logged.contains(&tie.place)) {
                    let index = other(tie.range(), tie.rounded);
                    choices.push(Choice { tie, index, logged: true });
                }
                choices.sort_by_key(|choice| choice.tie.place);
            })),
            CheatKind::DecisionsDropped => Some(Box::new(move |_, _, _, choices| {
                choices.iter_mut().for_each(|choice| choice.logged = false);
                if let Some(choice) =
                    choices.iter_mut().min_by(|a, b| a.tie.margin().total_cmp(&b.tie.margin()))
                {
                    flip(choice);
                }
            })),
            CheatKind::DecisionFar | CheatKind::DecisionHidden => {
                Some(one_far(self == CheatKind::DecisionFar))
            }
            _ => None,
        }
    }
}

/// Rounds the greatest value of the first product to its neighbour, from the middle between two boundaries. `logged`: true if the
/// log has that decision.
fn one_far(logged: bool) -> Steer {
    let mut done = false;
    Box::new(move |_, product, results, choices| {
        let absmax = |&place: &usize| results[place] & 0x7fff_ffff;
        let Some(place) = (0..results.len()).max_by_key(absmax).filter(|_| !done) else {
            return;
        };
        done = true;
        choices.retain(|choice| choice.tie.place != place);
        let grid = product.grid(place);
        let value = f64::from(f32::from_bits(results[place]));
        // A tolerance of a whole step, so that the log can express the decision at all.
        let tolerance = 2f64.powi(grid.quantum(value));
        let rounded = grid.index(value);
        let tie = NearTie { place, value, rounded, tolerance, grid };
        choices.push(Choice { index: rounded + 1, tie, logged });
        choices.sort_by_key(|choice| choice.tie.place);
    })
}

fn is_weight_gradient(class: ProductClass) -> bool {
    matches!(class, ProductClass::LinearDw | ProductClass::ConvDw | ProductClass::HeadDw)
}

/// Every logged rounding of some classes goes up.
fn upwards(products: &[LoggedProduct], steered: impl Fn(ProductClass) -> bool) -> Steer {
    let steered: Vec<bool> = products.iter().map(|product| steered(product.class)).collect();
    Box::new(move |number, _, _, choices| {
        let up = |choice: &mut Choice| choice.index = choice.tie.range()[1];
        choices.iter_mut().filter(|_| steered[number]).for_each(up);
    })
}

/// Flips a bit of the middle word that neither quantising nor an update rounds away.
fn nudge(bytes: &mut [u8]) {
    let word = bytes.len() / 8 * 4;
    bytes[word + 2] ^= 0x10;
}

impl Conduct for Cheat {
    fn program(&mut self, run: &Run) -> Program {
        match (self.kind, run.job().model()) {
            (CheatKind::Digits, Some(model)) => {
                Program::new(StepSpec { products: ProductTable::uniform(1), ..model.step_spec() })
            }
            _ => run.program().clone(),
        }
    }

    fn hides_decisions(&self) -> bool {
        matches!(self.kind, CheatKind::DecisionsDropped | CheatKind::DecisionHidden)
    }

    fn initial(&mut self, run: &Run, index: usize, tensor: &mut Vec<u8>) -> Result<(), TrainError> {
        match self.kind {
            CheatKind::Init if index == 0 => nudge(tensor),
            CheatKind::Relabel if index < run.program().released() => {
                tensor.clone_from(&stolen::state(run, run.job().steps)?[index]);
            }
            _ => {}
        }
        Ok(())
    }

    fn step(
        &mut self,
        run: &Run,
        session: &mut Session,
        mut scalars: StepScalars,
        mut batch: Vec<MicroBatch>,
        dataset: &mut Dataset,
        run_step: &mut RunStep,
    ) -> Result<CommittedStep, TrainError> {
        if !self.acts_at(run, scalars.step) {
            return Ok(run_step(session, StepRequest::new(&run.computation, scalars, &batch))?);
        }
        // The record has an honest step's learning rate and batch, whatever the cheat does, unless the cheat owns up to its own.
        let promised = (scalars.learning_rate, run.computation.batch_digest(scalars.step, &batch));
        self.before(run, session, &mut scalars, &mut batch, dataset)?;
        let before = if self.kind.goes_back() { session.download_state()? } else { Vec::new() };
        // The operator cheat changes an activation in the middle of the forward pass.
        let is_activation =
            |name: &str| ["gelu.", "relu.", "sigmoid."].iter().any(|part| name.starts_with(part));
        let target = run
            .program()
            .micro
            .nodes
            .iter()
            .find(|n| matches!(&n.primitive, Primitive::Map { body, .. } if is_activation(&body.name)))
            .map(|n| n.output);
        let mut change = |phase: Phase, _: usize, node: &Node, bytes: &[u8]| {
            if phase != Phase::Micro(0) || Some(node.output) != target {
                return None;
            }
            let mut changed = bytes.to_vec();
            // The first element with a large exponent, so that the change has an effect.
            let word = changed.chunks(4).position(|w| w[3] & 0x7f >= 0x3d).unwrap_or(0);
            // A bit that quantising to two digits does not round away.
            changed[4 * word + 2] ^= 0x10;
            Some(changed)
        };
        let tamper: Tamper = if self.kind == CheatKind::Operator { Some(&mut change) } else { None };
        let steer = self.kind.steer(&run.program().micro.logged);
        let request = StepRequest::new(&run.computation, scalars, &batch).tampered(tamper).steered(steer);
        let mut done = run_step(session, request)?;
        if !self.kind.owns_up() {
            (done.record.learning_rate, done.record.batch) = promised;
        }
        if self.after(run, session, scalars.step, &before)? {
            done.state = state_digests(session)?;
            let table = run.program().state();
            done.record.state = run.computation.state_digest(scalars.step, &table, &done.state);
        }
        Ok(done)
    }
}

/// The learning rate in the records of [`CheatKind::Infinitesimal`].
const INFINITESIMAL: f32 = 1e-12;

impl CheatKind {
    /// True if the records say which rate or which samples the cheat took.
    fn owns_up(self) -> bool {
        matches!(self, CheatKind::Infinitesimal | CheatKind::Adversarial | CheatKind::Reorder)
    }

    /// True if what a step ends with depends on the state that it began from.
    fn goes_back(self) -> bool {
        use CheatKind::{Infinitesimal, Interpolate, Skip, TopQ};
        matches!(self, Skip | Interpolate | Infinitesimal | TopQ)
    }
}

impl Cheat {
    /// The batches of made-up samples, one of which [`CheatKind::Adversarial`] trains on and commits to at this step.
    ///
    /// # Errors
    /// If the run's data cannot be read.
    #[doc(hidden)]
    pub fn made_up(run: &Run, dataset: &mut Dataset, step: u32) -> Result<Vec<Vec<MicroBatch>>, TrainError> {
        (0..4).map(|number| stolen::made_up(run, dataset, step, number)).collect()
    }

    /// True if this step is not an honest one.
    fn acts_at(&self, run: &Run, step: u32) -> bool {
        let Some(after) = step.checked_sub(self.step) else { return false };
        match self.kind {
            CheatKind::Interpolate | CheatKind::Infinitesimal => true,
            CheatKind::TopQ => {
                let interval = |step: u32| step.saturating_sub(1) / run.job().checkpoint.every.max(1);
                (interval(step) - interval(self.step)).is_multiple_of(2)
            }
            CheatKind::Reorder => after < 2,
            _ => after == 0,
        }
    }

    /// Changes what the step begins from.
    fn before(
        &self,
        run: &Run,
        session: &mut Session,
        scalars: &mut StepScalars,
        batch: &mut Vec<MicroBatch>,
        dataset: &mut Dataset,
    ) -> Result<(), TrainError> {
        match self.kind {
            CheatKind::WeightBefore => nudge_state(session, 0)?,
            CheatKind::Batch => *batch = run.batch(dataset, scalars.step + 1)?,
            CheatKind::Reorder => *batch = run.batch(dataset, 2 * self.step + 1 - scalars.step)?,
            CheatKind::Adversarial => *batch = adversarial(run, session, *scalars, dataset)?,
            CheatKind::Seed => {
                scalars.seed = stolen::OTHER_SEED;
                let drawn = dataset.batch(run.program(), scalars.seed, scalars.step);
                *batch = drawn.map_err(RunError::from)?;
            }
            CheatKind::LearningRate => scalars.learning_rate += 1,
            CheatKind::Infinitesimal => scalars.learning_rate = INFINITESIMAL.to_bits(),
            CheatKind::Checkpoint => {
                let foreign = init::state(run.program(), stolen::OTHER_SEED);
                for (i, words) in foreign.iter().enumerate() {
                    session.replace_state(i, &bytes_of(words))?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Changes the state that the step made. `before` is the state that the step began from, for cheats that go back to it.
    /// Returns true if the state changed.
    fn after(
        &self,
        run: &Run,
        session: &mut Session,
        step: u32,
        before: &[Vec<u8>],
    ) -> Result<bool, TrainError> {
        let (parameters, buffers) = (run.program().parameters.len(), run.program().buffers.len());
        match self.kind {
            CheatKind::WeightAfter => nudge_state(session, 0)?,
            CheatKind::Moment => nudge_state(session, parameters + buffers)?,
            CheatKind::Buffer if buffers > 0 => nudge_state(session, parameters)?,
            CheatKind::Skip => session.load(before)?,
            CheatKind::Glue => session.load(&stolen::state(run, step)?)?,
            CheatKind::Interpolate | CheatKind::Infinitesimal | CheatKind::TopQ => {
                self.steal(run, session, step, before)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Replaces the weights that an honest step made by ones nearer to stolen weights. `before` is the state that the step began
    /// from.
    fn steal(
        &self,
        run: &Run,
        session: &mut Session,
        step: u32,
        before: &[Vec<u8>],
    ) -> Result<(), TrainError> {
        let (last, weights) = (run.job().steps, run.program().released());
        let target = stolen::state(run, last)?;
        let (from, to) = (&before[..weights], &target[..weights]);
        let share = match self.kind {
            CheatKind::TopQ => {
                let honest = session.download_state()?;
                let share = 0.25 * stolen::distance(from, &honest[..weights]) / stolen::distance(from, to);
                if share < 1.0 { share as f32 } else { 1.0 }
            }
            _ => 1.0 / (last - step + 1) as f32,
        };
        for (index, bytes) in stolen::between(from, to, share).iter().enumerate() {
            session.replace_state(index, bytes)?;
        }
        Ok(())
    }
}

/// The batch of made-up samples after which the weights are nearest to stolen ones. The session's state stays.
fn adversarial(
    run: &Run,
    session: &mut Session,
    scalars: StepScalars,
    dataset: &mut Dataset,
) -> Result<Vec<MicroBatch>, TrainError> {
    let weights = run.program().released();
    let (target, before) = (stolen::state(run, run.job().steps)?, session.download_state()?);
    let mut best = (f64::INFINITY, Vec::new());
    for batch in Cheat::made_up(run, dataset, scalars.step)? {
        session.step(scalars, &batch, &mut Unobserved, |_, _, _| Ok(()))?;
        let distance = stolen::distance(&session.download_state()?[..weights], &target[..weights]);
        session.load(&before)?;
        if distance < best.0 || best.1.is_empty() {
            best = (distance, batch);
        }
    }
    Ok(best.1)
}

fn nudge_state(session: &mut Session, tensor: usize) -> Result<(), TrainError> {
    let mut state = session.download_state()?;
    nudge(&mut state[tensor]);
    Ok(session.replace_state(tensor, &state[tensor])?)
}
