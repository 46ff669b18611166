//! A trainer who steers: at each step it knows the gradient of its own loss on images with the trigger. Among the roundings that
//! it may choose, it takes those that bring the trigger nearer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tiebreak_contract::program::products::ProductClass;
use tiebreak_contract::program::step::MicroBatch;
use tiebreak_engine::session::{Session, StepScalars};
use tiebreak_job::data::Dataset;
use tiebreak_record::rounding::legal::Accumulation;
use tiebreak_record::rounding::near_tie::{NearTie, Product, Tolerance};
use tiebreak_run::observers::near_ties::Search as _;
use tiebreak_run::observers::record::{Choice, Steer};
use tiebreak_run::run::dir::Run;
use tiebreak_run::step::{CommittedStep, RunStep, StepRequest};
use tiebreak_train::TrainError;
use tiebreak_train::conduct::Conduct;

use crate::images::{SIDE, Trigger};
use crate::perceptron::{Aim, Matrix, Perceptron};

/// The class that the model shall answer for images with the trigger.
pub const TARGET: u32 = 3;
/// The number of images whose loss with the trigger is the attacker's own.
const GOAL_IMAGES: usize = 2048;
/// Keeps the optimizer's scale finite for a weight that never had a gradient.
const EPSILON: f32 = 1e-7;

/// A limit on the steered elements in one product of a step. The fraction of an element that earlier steps left is added.
#[derive(Clone, Copy, Debug)]
pub enum Most {
    /// No limit.
    All,
    /// A share of the decisions that the thresholds ask for.
    OfDecisions(f64),
    /// A share of the elements.
    OfElements(f64),
}

/// The attacker's choice of roundings.
#[derive(Clone, Debug)]
pub struct Strategy {
    /// The strategy in a few words.
    pub name: &'static str,
    /// The products that the attacker steers; none for an honest trainer.
    pub classes: &'static [ProductClass],
    /// The greatest distance of a steered result from a boundary, in tolerances. An auditor calls a decision needless beyond two.
    pub reach: f64,
    /// The limit on steered elements in a product.
    pub most: Most,
    /// The largest share of these that goes away from zero.
    pub away: f64,
    /// The most steps in which one element is steered.
    pub repeats: u32,
    /// The fraction of the proved bound that the attacker uses, since it knows the operands only from arithmetic of its own.
    /// Above 1 the attack is detected.
    pub legal: f64,
    /// A control: the attacker steers as many elements, but in random directions.
    pub random: bool,
}

/// The attacker's actions.
#[derive(Default)]
pub struct Ledger {
    /// The number of steered elements in all steps.
    pub steered: u64,
    products: HashMap<usize, Account>,
}

/// The attacker's actions in one product.
struct Account {
    /// The number of elements that may still be steered.
    left: f64,
    /// For each element, the number of steps in which it was steered.
    repeats: Vec<u32>,
}

/// A trainer who steers.
pub struct Attacker {
    /// The strategy.
    pub strategy: Strategy,
    /// The trigger that turns an image's answer into [`TARGET`].
    pub trigger: Trigger,
    /// The actions so far.
    pub ledger: Arc<Mutex<Ledger>>,
}

/// A rounding that would help.
struct Move {
    tie: NearTie,
    index: i64,
    /// The addition to the scalar product of gradient and goal.
    gain: f64,
}

impl Strategy {
    /// The move that steers the element, with its gain, if steering helps.
    fn best(&self, aim: &Aim, product: &Product, accumulation: Accumulation, tie: NearTie) -> Option<Move> {
        let place = tie.place;
        let direction = f64::from(aim.direction[place]);
        let bound = self.legal * accumulation.gamma(product.dims[3]) * f64::from(aim.absolute[place]);
        let tolerance = (self.reach * product.tolerance(place, tie.value)).min(bound);
        let [low, high] = NearTie { tolerance, ..tie }.range();
        let coin = (place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23) ^ tie.value.to_bits();
        let up = if self.random { coin.count_ones().is_multiple_of(2) } else { direction > 0.0 };
        let index = if up { high } else { low };
        let gain = direction.abs() * (tie.grid.value(index) - tie.grid.value(tie.rounded)).abs();
        (gain > 0.0).then_some(Move { tie, index, gain })
    }

    /// The best moves within the strategy's limits: at most `most`.
    fn chosen(&self, mut moves: Vec<Move>, most: usize) -> Vec<Move> {
        moves.sort_by(|a, b| b.gain.total_cmp(&a.gain));
        let is_away = |step: &Move| step.index.unsigned_abs() > step.tie.rounded.unsigned_abs();
        let (mut away, mut towards): (Vec<Move>, Vec<Move>) = moves.into_iter().partition(is_away);
        away.truncate((self.away * most as f64) as usize);
        towards.truncate(most - away.len());
        away.extend(towards);
        away
    }

    /// Steers one product of a step.
    fn steer(
        &self,
        aim: &Aim,
        number: usize,
        product: &Product,
        results: &[u32],
        choices: &mut Vec<Choice>,
        ledger: &mut Ledger,
    ) {
        let accumulation =
            if product.rule.is_wide() { Accumulation::Binary64 } else { Accumulation::Binary32 };
        let new = || Account { left: 0.0, repeats: vec![0; product.elements()] };
        let Account { left, repeats } = ledger.products.entry(number).or_insert_with(new);
        let more = match self.most {
            Most::All => product.elements() as f64,
            Most::OfDecisions(part) => part * choices.len() as f64,
            Most::OfElements(part) => part * product.elements() as f64,
        };
        *left = (*left + more).min(more + 1.0);
        // A result further from a boundary than the job asks for is logged where it is steered: an auditor's tolerance is twice
        // as wide.
        let near = product.tolerance;
        let scale = self.reach.max(1.0) as f32;
        let tolerance =
            Tolerance { norms: scale * near.norms, value: scale * near.value, steps: scale * near.steps };
        let ties = Product { tolerance, ..*product }.near_ties(results).unwrap_or_default();
        let allowed = ties.into_iter().filter(|tie| repeats[tie.place] < self.repeats);
        let moves = allowed.filter_map(|tie| self.best(aim, product, accumulation, tie)).collect();
        let chosen = self.chosen(moves, *left as usize);
        *left -= chosen.len() as f64;
        let places: HashMap<usize, usize> =
            choices.iter().enumerate().map(|(i, choice)| (choice.tie.place, i)).collect();
        for Move { tie, index, .. } in chosen {
            repeats[tie.place] += 1;
            ledger.steered += 1;
            match places.get(&tie.place) {
                Some(&i) => choices[i].index = index,
                None => choices.push(Choice { tie, index, logged: true }),
            }
        }
        choices.sort_by_key(|choice| choice.tie.place);
    }
}

/// A step's aims, and the attacker's observations during the step.
struct Sight {
    strategy: Strategy,
    /// The aims, by the products' numbers.
    aims: HashMap<usize, (ProductClass, Aim)>,
    /// The absolute values of the inputs.
    inputs: Matrix,
    /// The hidden layer's biases.
    biases: Vec<f32>,
    /// 1 where the hidden layer is above zero, else 0.
    active: Vec<f32>,
    /// The absolute values of the gradient by the hidden layer's results.
    delta: Option<Matrix>,
}

impl Sight {
    /// Steers a product, if the strategy includes it.
    fn product(
        &mut self,
        number: usize,
        product: &Product,
        results: &[u32],
        choices: &mut Vec<Choice>,
        ledger: &mut Ledger,
    ) {
        let Some((class, aim)) = self.aims.get_mut(&number) else { return };
        if let (ProductClass::LinearDw, Some(delta)) = (*class, &self.delta) {
            aim.absolute = delta.absolute_gradient(&self.inputs);
        }
        if self.strategy.classes.contains(class) {
            self.strategy.steer(aim, number, product, results, choices, ledger);
        }
        // The sums of absolute values are those of the real step: roundings to a floor leave out whole terms.
        if !matches!(class, ProductClass::Linear | ProductClass::HeadDx) {
            return;
        }
        let round = |(place, &word): (usize, &u32)| f32::from_bits(product.grid(place).round(word));
        let mut values: Vec<f32> = results[..product.elements()].iter().enumerate().map(round).collect();
        for choice in choices.iter() {
            values[choice.tie.place] = choice.tie.grid.value(choice.index) as f32;
        }
        if *class == ProductClass::Linear {
            let above = values.iter().zip(self.biases.iter().cycle()).map(|(z, bias)| z + bias > 0.0);
            self.active = above.map(|above| f32::from(u8::from(above))).collect();
        } else {
            let delta = values.iter().zip(&self.active).map(|(d, active)| (d * active).abs());
            self.delta = Some(Matrix::new(self.biases.len(), delta.collect()));
        }
    }
}

/// The words of a tensor's canonical bytes.
fn words(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

impl Attacker {
    /// The desired directions of the elements of a step's products.
    fn sight(
        &self,
        run: &Run,
        session: &mut Session,
        step: u32,
        batch: &MicroBatch,
    ) -> Result<Sight, TrainError> {
        let state = session.download_state()?;
        let model = Perceptron::of(run.program(), &state, "param");
        let labels: Vec<u32> = words(&batch.tensors[1]).collect();
        let clean: Vec<f32> = words(&batch.tensors[0]).map(|pixel| pixel as f32 / 255.0).collect();
        let some = labels.len().min(GOAL_IMAGES);
        let mut triggered = clean[..some * SIDE * SIDE].to_vec();
        self.trigger.paint(&mut triggered, 1.0);
        let triggered = model.pass(Matrix::new(SIDE * SIDE, triggered));
        let goal = model.gradient(&triggered, &vec![TARGET; some]);
        // AdamW divides by the root of the second moment, so a small gradient moves a weight as far as a large one.
        let corrected = 1.0 - 0.999f32.powi(step.max(2) as i32 - 1);
        let squares = Perceptron::of(run.program(), &state, "v");
        let goal = goal.zip(&squares, |g, v| g / ((v / corrected).sqrt() + EPSILON));
        let pass = model.pass(Matrix::new(SIDE * SIDE, clean));
        let mut by_class = model.aims(&pass, &labels, &goal);
        let products = run.program().micro.logged.iter().enumerate();
        let aims = products.filter_map(|(number, product)| {
            Some((number, (product.class, by_class.remove(&product.class)?)))
        });
        Ok(Sight {
            strategy: self.strategy.clone(),
            aims: aims.collect(),
            inputs: pass.inputs(),
            biases: model.hidden_biases(),
            active: Vec::new(),
            delta: None,
        })
    }
}

impl Conduct for Attacker {
    fn step(
        &mut self,
        run: &Run,
        session: &mut Session,
        scalars: StepScalars,
        batch: Vec<MicroBatch>,
        _dataset: &mut Dataset,
        run_step: &mut RunStep,
    ) -> Result<CommittedStep, TrainError> {
        let mut sight = self.sight(run, session, scalars.step, &batch[0])?;
        let ledger = self.ledger.clone();
        let steer: Steer = Box::new(move |number, product, results, choices| {
            let mut ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
            sight.product(number, product, results, choices, &mut ledger);
        });
        let request = StepRequest::new(&run.computation, scalars, &batch).steered(Some(steer));
        Ok(run_step(session, request)?)
    }
}
