//! Cheating trainers, for the tests and the demo. Each does one thing wrong and carries on: later steps start from the cheated
//! state. Every record, root and signature is the one that an honest trainer would write for that state.

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
use tiebreak_engine::session::{Session, StepScalars};
use tiebreak_record::job::data::{Dataset, batch_digest};
use tiebreak_record::rounding::near_tie::{NearTie, Product, Tolerance};
use tiebreak_run::observers::near_ties::Search as _;
use tiebreak_run::observers::record::{Choice, Steer};
use tiebreak_run::run::dir::Run;
use tiebreak_run::step::{CommittedStep, RunStep, StepRequest, Tamper, state_digests, state_root};

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
    /// The step begins from another run's state.
    Checkpoint, "checkpoint";
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

    fn initial(&mut self, index: usize, tensor: &mut [u8]) {
        if self.kind == CheatKind::Init && index == 0 {
            nudge(tensor);
        }
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
        if scalars.step != self.step {
            return Ok(run_step(session, StepRequest::new(&run.computation, scalars, &batch))?);
        }
        let (parameters, buffers) = (run.program().parameters.len(), run.program().buffers.len());
        // The record has an honest step's learning rate and batch, whatever the cheat does.
        let promised = (scalars.learning_rate, batch_digest(run.program(), &batch));
        match self.kind {
            CheatKind::WeightBefore => nudge_state(session, 0)?,
            CheatKind::Batch => batch = run.batch(dataset, scalars.step + 1)?,
            CheatKind::LearningRate => scalars.learning_rate += 1,
            CheatKind::Checkpoint => {
                let foreign = init::state(run.program(), [0x0bad, 0x5eed]);
                for (i, words) in foreign.iter().enumerate() {
                    session.replace_state(i, &bytes_of(words))?;
                }
            }
            _ => {}
        }
        let before = if self.kind == CheatKind::Skip { session.download_state()? } else { Vec::new() };
        // The operator cheat changes an activation in the middle of the forward pass.
        let target = run
            .program()
            .micro
            .nodes
            .iter()
            .find(|n| matches!(&n.primitive, Primitive::Map { body, .. } if body.name.starts_with("gelu.") || body.name.starts_with("relu.")))
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
        (done.record.learning_rate, done.record.batch) = promised;
        match self.kind {
            CheatKind::WeightAfter => nudge_state(session, 0)?,
            CheatKind::Moment => nudge_state(session, parameters + buffers)?,
            CheatKind::Buffer if buffers > 0 => nudge_state(session, parameters)?,
            CheatKind::Skip => session.load(&before)?,
            _ => return Ok(done),
        }
        done.state = state_digests(session)?;
        done.record.state = state_root(run.program(), &done.state);
        Ok(done)
    }
}

fn nudge_state(session: &mut Session, tensor: usize) -> Result<(), TrainError> {
    let mut state = session.download_state()?;
    nudge(&mut state[tensor]);
    Ok(session.replace_state(tensor, &state[tensor])?)
}
