//! The trainer's side of a step: finds the near ties of every native product and logs the decisions. Other threads encode them
//! while the step runs.

use std::collections::{HashMap, HashSet};
use std::iter;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use rayon::prelude::*;

use super::near_ties::Search as _;
use super::norms::row_norms;
use tiebreak_contract::arith::words::{replace_words, with_words};
use tiebreak_contract::program::graph::{Graph, LoggedProduct, Node, Primitive, TensorId, View};
use tiebreak_contract::program::phase::Phase;
use tiebreak_engine::{EngineError, Inputs, Observer, Summary, Value, Want};
use tiebreak_record::rounding::Decision;
use tiebreak_record::rounding::codec::{encode, entropy_bits};
use tiebreak_record::rounding::log::Log;
use tiebreak_record::rounding::near_tie::{NearTie, Product, Side};
use tiebreak_record::rounding::search::{NearTieSearch, NearTiesFound};
use tiebreak_record::rounding::thresholds::Rounding;

/// An observer that takes part in the logged profile while a step runs.
pub trait Rounder: Observer {
    /// A graph of the step begins.
    fn begin(&mut self, phase: Phase, graph: &Graph);
}

/// A near tie and the index that its element is rounded to.
pub struct Choice {
    /// The near tie.
    pub tie: NearTie,
    /// The index of a value on the element's grid.
    pub index: i64,
    /// True if the log holds the choice; an honest trainer logs every one.
    pub logged: bool,
}

/// Changes a trainer's choices (product number, the product, its results). An honest trainer has no such function; tests use it
/// to play trainers that steer.
pub type Steer = Box<dyn FnMut(usize, &Product, &[u32], &mut Vec<Choice>) + Send>;

/// The counts of a step's log.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Logged {
    /// Elements of the logged products.
    pub elements: u64,
    /// Decisions in the log.
    pub decisions: u64,
    /// Bits that the same decisions would need at random positions.
    pub entropy_bits: f64,
}

/// Logs a step's decisions.
pub struct Recorder {
    rounding: Rounding,
    products: Vec<LoggedProduct>,
    /// The searches that replace products' results, by product number.
    searches: Vec<Option<Summary>>,
    /// The product number of each node of the native graph that is a product.
    sites: HashMap<usize, usize>,
    micro: usize,
    steer: Option<Steer>,
    /// The roundings of a trainer that steers.
    roundings: HashSet<TensorId>,
    /// For a trainer that steers: elements of the next rounding that differ from the correct rounding.
    steered: HashMap<TensorId, Vec<(usize, u32)>>,
    parts: Sender<(usize, u64, Vec<Decision>)>,
    encoder: JoinHandle<(Vec<Vec<u8>>, Logged)>,
}

impl Recorder {
    /// A recorder for a step of `micro_batches` of a graph with logged products.
    pub fn new(rounding: &Rounding, graph: &Graph, micro_batches: u32, steer: Option<Steer>) -> Recorder {
        let products = graph.logged.clone();
        let (parts, received) = channel::<(usize, u64, Vec<Decision>)>();
        let count = products.len() * micro_batches as usize;
        let encoder = std::thread::spawn(move || encode_each(&received, count));
        let honest = steer.is_none();
        let search = |logged| search(rounding, logged).filter(|_| honest).map(Summary::new);
        Recorder {
            rounding: rounding.clone(),
            searches: products.iter().map(search).collect(),
            products,
            sites: HashMap::new(),
            micro: 0,
            steer,
            roundings: HashSet::new(),
            steered: HashMap::new(),
            parts,
            encoder,
        }
    }

    /// A product with the absmaxes and norms of its sides.
    fn product<'a>(&self, number: usize, a: &'a Side, b: &'a Side) -> Product<'a> {
        let logged = &self.products[number];
        let tolerance = self.rounding.tolerance(logged.class, logged.dims()[3]);
        Product { dims: logged.dims(), rule: logged.rule, a, b, tolerance }
    }

    /// Sends a product's decisions to the encoder, if each has few enough bits.
    fn log(
        &mut self,
        number: usize,
        node: &Node,
        decisions: Option<Vec<Decision>>,
    ) -> Result<(), EngineError> {
        let logged = &self.products[number];
        let decisions = decisions.ok_or_else(|| {
            let (operator, class) = (&node.operator, logged.class.name());
            EngineError::Stopped(format!(
                "{operator}: its threshold spans too many values of the grid; lower rounding.class.{class}, or take bits = 16, whose grid has a floor"
            ))
        })?;
        let part = self.micro * self.products.len() + number;
        // The encoder ends only after this sender is dropped.
        let _ = self.parts.send((part, logged.elements() as u64, decisions));
        Ok(())
    }

    /// The log of the step that was run.
    pub fn finish(self) -> (Log, Logged) {
        let (parts, logged) = self.finish_parts();
        (Log::new(&parts), logged)
    }

    /// The parts of the log, micro-batch by micro-batch; parts of micro-batches that did not run are empty.
    pub fn finish_parts(self) -> (Vec<Vec<u8>>, Logged) {
        drop(self.parts);
        self.encoder.join().expect("the encoder does not panic")
    }
}

/// Encodes the decisions that arrive, those of several products at once.
fn encode_each(received: &Receiver<(usize, u64, Vec<Decision>)>, parts: usize) -> (Vec<Vec<u8>>, Logged) {
    let mut encoded = vec![Vec::new(); parts];
    let mut logged = Logged::default();
    while let Ok(first) = received.recv() {
        let arrived: Vec<_> = iter::once(first).chain(received.try_iter()).collect();
        let done = arrived.par_iter().map(|(part, elements, decisions)| {
            (*part, entropy_bits(decisions, *elements), encode(decisions, *elements))
        });
        for (part, entropy_bits, bytes) in done.collect::<Vec<_>>() {
            logged.entropy_bits += entropy_bits;
            encoded[part] = bytes;
        }
        for (_, elements, decisions) in &arrived {
            logged.elements += elements;
            logged.decisions += decisions.len() as u64;
        }
    }
    (encoded, logged)
}

/// The search that replaces a product's results, if near ties are few. A trainer that does not steer needs only the near ties.
/// The fast test uses the nearest binary32, so it marks a tenth of all results or more where a step is close to binary32's own;
/// the paper's thresholds mark as many.
fn search(rounding: &Rounding, logged: &LoggedProduct) -> Option<NearTieSearch> {
    let tolerance = rounding.tolerance(logged.class, logged.dims()[3]);
    let few = !matches!(logged.rule.bits, 27..=30) && tolerance.steps <= 0.03;
    few.then(|| NearTieSearch::of(logged, tolerance))
}

/// The absmaxes and norms of an operand's rows.
pub(super) fn side(
    inputs: &mut dyn Inputs,
    view: &View,
    absmaxes: Option<TensorId>,
) -> Result<Side, EngineError> {
    let rows = (view.dims[0] * view.dims[1] * view.dims[2]) as usize;
    let mut side = Side { absmaxes: vec![0; rows], norms: Vec::new() };
    inputs.visit(view.tensor, &mut |bytes| {
        side.norms = with_words(bytes, |words| row_norms(view, words));
    })?;
    if let Some(tensor) = absmaxes {
        inputs.visit(tensor, &mut |bytes| with_words(bytes, |words| side.absmaxes.copy_from_slice(words)))?;
    }
    Ok(side)
}

impl Rounder for Recorder {
    fn begin(&mut self, phase: Phase, graph: &Graph) {
        self.sites.clear();
        self.roundings.clear();
        let Phase::Micro(micro) = phase else { return };
        self.micro = micro as usize;
        let numbers: HashMap<TensorId, usize> =
            self.products.iter().enumerate().map(|(number, product)| (product.product, number)).collect();
        let native = |node: &Node| matches!(node.primitive, Primitive::Native { .. });
        let sites = graph.nodes.iter().enumerate().filter(|(_, node)| native(node));
        self.sites = sites.map(|(index, node)| (index, numbers[&node.output])).collect();
        if self.steer.is_some() {
            self.roundings = self.products.iter().map(|product| product.output).collect();
        }
    }
}

impl Observer for Recorder {
    fn want(&self, index: usize, node: &Node) -> Want {
        match self.sites.get(&index).map(|number| &self.searches[*number]) {
            Some(Some(search)) => Want::Summary(search.clone()),
            Some(None) => Want::Bytes,
            None if self.roundings.contains(&node.output) => Want::Bytes,
            None => Want::No,
        }
    }

    fn node(
        &mut self,
        index: usize,
        node: &Node,
        bytes: &[u8],
        inputs: &mut dyn Inputs,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        if let Some(changes) = self.steered.remove(&node.output) {
            let mut bytes = bytes.to_vec();
            replace_words(&mut bytes, changes);
            return Ok(Some(bytes));
        }
        let number = self.sites[&index];
        let logged = &self.products[number];
        let floored = logged.rule.floor != 0;
        let a = side(inputs, &logged.a, floored.then_some(logged.absmaxes_a))?;
        let b = side(inputs, &logged.b, floored.then_some(logged.absmaxes_b))?;
        let product = self.product(number, &a, &b);
        let infinite = |place| infinite(node, place);
        let decisions = match &mut self.steer {
            None => with_words(bytes, |words| product.decisions(words)).map_err(infinite)?,
            Some(steer) => {
                let ties = with_words(bytes, |words| product.near_ties(words)).map_err(infinite)?;
                let mut choices: Vec<Choice> =
                    ties.into_iter().map(|tie| Choice { index: tie.rounded, tie, logged: true }).collect();
                with_words(bytes, |words| steer(number, &product, words, &mut choices));
                let changed = choices.iter().filter(|c| c.index != c.tie.rounded);
                let changes = changed.map(|c| (c.tie.place, c.tie.grid.pattern(c.index))).collect();
                self.steered.insert(self.products[number].output, changes);
                choices.iter().filter(|c| c.logged).map(|c| c.tie.decision(c.index)).collect()
            }
        };
        self.log(number, node, decisions)?;
        Ok(None)
    }

    fn summary(&mut self, index: usize, node: &Node, value: Value) -> Result<(), EngineError> {
        let number = self.sites[&index];
        let NearTiesFound { norms: [norms_a, norms_b], absmaxes, candidates } = value.into();
        let none = || [norms_a.len(), norms_b.len()].map(|rows| vec![0; rows]);
        let [absmaxes_a, absmaxes_b] = absmaxes.unwrap_or_else(none);
        let a = Side { absmaxes: absmaxes_a, norms: norms_a };
        let b = Side { absmaxes: absmaxes_b, norms: norms_b };
        let decisions = self.product(number, &a, &b).decisions_among(candidates);
        let decisions = decisions.map_err(|place| infinite(node, place))?;
        self.log(number, node, decisions)
    }
}

/// The error about a native kernel that overflows: its result cannot be logged.
fn infinite(node: &Node, place: usize) -> EngineError {
    let why = "is not finite; the logged profile has no such values";
    EngineError::Stopped(format!("{}: element {place} of a native product {why}", node.operator))
}
