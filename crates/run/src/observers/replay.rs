//! The auditor's side of a step. The replayer takes the logged decisions in place of its own roundings, and checks each that
//! matters against the proved bound. It also counts the freedom that the trainer had and used.

use std::collections::{HashMap, HashSet};

use super::choices::Choices;
use super::filter::{ExactElements, Filter, Query};
use super::record::Rounder;
use super::seen::{Operands, Rows, Seen, words_of};
use super::tally::{MOVED_MAX, Tally};
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::digits::is_marked;
use tiebreak_contract::arith::words::{replace_words, with_words};
use tiebreak_contract::program::graph::{Graph, LoggedProduct, Node, Primitive, TensorId};
use tiebreak_contract::program::phase::Phase;
use tiebreak_engine::{EngineError, Inputs, Observer, QuantisedTensor, Want};
use tiebreak_record::commit::Malformed;
use tiebreak_record::rounding::Decision;
use tiebreak_record::rounding::codec::decode;
use tiebreak_record::rounding::legal::Illegal;
use tiebreak_record::rounding::log::Log;
use tiebreak_record::rounding::near_tie::{NearTie, Product, Side, Tolerance};
use tiebreak_record::rounding::thresholds::Rounding;

/// Replays a step's log, on a program's graph or a native one ([`tiebreak_contract::program::logged::native_graph`]). On a native
/// graph no rounding can be judged, and `beyond` and `needless` refer to the auditor's own products; with a filter
/// (`Replayer::filtering`) the judgement is that of the program's graph.
pub struct Replayer {
    log: Log,
    rounding: Rounding,
    products: Vec<LoggedProduct>,
    /// The element type of every tensor of the graph.
    types: Vec<DType>,
    /// The nodes of the program's graph that matter, each with its product's number and the data that the replayer reads there:
    /// the operands' integers, the results, or both.
    sites: HashMap<usize, Site>,
    /// Roundings that may change: the log has decisions for them, or a filter looks at them.
    roundings: HashSet<TensorId>,
    micro: u32,
    /// The operands of the product whose results come next.
    operands: Vec<[Rows; 2]>,
    /// On a native graph: finds the elements whose exact results decide anything.
    filter: Option<Filter>,
    /// Elements of the next rounding that the log changes.
    pending: HashMap<TensorId, Vec<(usize, u32)>>,
    /// The values that a product's decisions are about; then the values that are not rounded to the nearest, with true if the
    /// rounding is away from zero.
    decided: Vec<u64>,
    taken: Vec<(u64, bool)>,
    tally: Tally,
    malformed: Option<Malformed>,
    /// The first decision that had no effect.
    void: Option<Malformed>,
}

/// The reason why a filter stops a step.
const TOO_MANY: &str = "too many results are near a boundary for native products";

/// The role of a node for a logged product.
#[derive(Clone, Copy)]
struct Site {
    number: usize,
    operands: bool,
    results: bool,
}

impl Replayer {
    /// A replayer for a step of a graph with logged products. The log has one part for each product and micro-batch.
    pub fn new(rounding: &Rounding, graph: &Graph, log: Log) -> Replayer {
        let tally = Tally { bytes: log.bytes().len() as u64, ..Tally::default() };
        Replayer {
            log,
            rounding: rounding.clone(),
            products: graph.logged.clone(),
            types: graph.tensors.iter().map(|ty| ty.dtype).collect(),
            sites: HashMap::new(),
            roundings: HashSet::new(),
            micro: 0,
            operands: Vec::new(),
            filter: None,
            pending: HashMap::new(),
            decided: Vec::new(),
            taken: Vec::new(),
            tally,
            malformed: None,
            void: None,
        }
    }

    /// Makes the replayer also count, product by product, how the trainer decided and what it could have chosen. This scans every
    /// product.
    pub(crate) fn count_choices(&mut self, graph: &Graph) {
        self.tally.products = self.products.iter().map(|logged| Choices::of(graph, logged)).collect();
    }

    /// Makes the replayer judge products of a native graph: elements that matter are computed exactly, so results and counts are
    /// those of the program's graph. A term of a native product of K terms passes at most `roundings(K)` roundings. False if the
    /// products have no such bound.
    pub(crate) fn filtering(&mut self, graph: &Graph, roundings: &dyn Fn(usize) -> Option<usize>) -> bool {
        self.filter = Filter::of(graph, roundings);
        self.filter.is_some()
    }

    /// The log's root, for the record.
    pub(crate) fn root(&self) -> tiebreak_record::commit::digest::Digest {
        self.log.root()
    }

    /// The counts so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The reason why the log cannot be read, if that stopped the step.
    pub(crate) fn malformed(&self) -> Option<&Malformed> {
        self.malformed.as_ref()
    }

    /// The defect of a log that can be read: its first decision about a value that is not finite. The decision had no effect.
    pub(crate) fn void(&self) -> Option<&Malformed> {
        self.void.as_ref()
    }

    fn counts_choices(&self) -> bool {
        !self.tally.products.is_empty()
    }

    /// True if the replayer needs anything of a product.
    fn looks_at(&self, number: usize) -> bool {
        self.filter.is_some() || self.counts_choices() || !self.part(number).is_empty()
    }

    /// The log of a product in this micro-batch.
    fn part(&self, number: usize) -> &[u8] {
        self.log.part(self.micro as usize * self.products.len() + number)
    }

    /// The operands of a digitised product, with their absmaxes.
    fn quantised(&self, number: usize, node: &Node) -> [(QuantisedTensor, TensorId); 2] {
        let Primitive::Product { a, absmaxes_a, b, absmaxes_b, .. } = &node.primitive else {
            unreachable!("operands are read where they are multiplied");
        };
        let k = self.products[number].dims()[3];
        [(a, absmaxes_a), (b, absmaxes_b)].map(|(&id, &absmaxes)| {
            let DType::Q(digits) = self.types[id.0 as usize] else {
                unreachable!("products take quantised operands")
            };
            (QuantisedTensor { id, digits, k }, absmaxes)
        })
    }

    /// Reads the operands of a digitised product whose results come later.
    fn read_operands(
        &mut self,
        number: usize,
        node: &Node,
        inputs: &mut dyn Inputs,
    ) -> Result<(), EngineError> {
        let [a, b] = self.quantised(number, node);
        let rows = [Rows::all(inputs, a.0, a.1)?, Rows::all(inputs, b.0, b.1)?];
        self.operands.push(rows);
        Ok(())
    }

    /// Reads the operands of a product whose results are these, with the rows of the decisions that change one.
    fn operands_of(
        &self,
        number: usize,
        node: &Node,
        results: &[u32],
        decisions: &[Decision],
        inputs: &mut dyn Inputs,
    ) -> Result<[Rows; 2], EngineError> {
        let (operands, logged) = (self.quantised(number, node), &self.products[number]);
        let mut side = |operand: usize| {
            words_of(inputs, operands[operand].1).map(|absmaxes| Side { absmaxes, norms: Vec::new() })
        };
        let (a, b) = (side(0)?, side(1)?);
        let tolerance = Tolerance::default();
        let product = Product { dims: logged.dims(), rule: logged.rule, a: &a, b: &b, tolerance };
        let mut kept = [HashSet::new(), HashSet::new()];
        for decision in decisions {
            let place = decision.place as usize;
            let (x, sides) = (f64::from(f32::from_bits(results[place])), product.sides(place));
            let marked = is_marked(a.absmaxes[sides[0]]) || is_marked(b.absmaxes[sides[1]]);
            let grid = product.grid(place);
            if x.is_finite()
                && !marked
                && decision.index(grid, x) != product.rule.rounded(grid, results[place], x)
            {
                kept.iter_mut().zip(sides).for_each(|(kept, row)| kept.extend([row]));
            }
        }
        let mut read = |i: usize| Rows::read(inputs, operands[i].0, operands[i].1, &kept[i]);
        Ok([read(0)?, read(1)?])
    }

    /// Applies the decisions of a product, whose results are the auditor's own.
    fn product(
        &mut self,
        Site { number, operands, .. }: Site,
        node: &Node,
        results: &[u32],
        inputs: &mut dyn Inputs,
    ) -> Result<(), EngineError> {
        let logged = self.products[number].clone();
        let decisions = decode(self.part(number), logged.elements() as u64).map_err(|error| {
            let why = format!("{}, micro-batch {}: {error}", node.operator, self.micro);
            self.malformed = Some(error);
            EngineError::Stopped(why)
        })?;
        self.tally.elements += logged.elements() as u64;
        self.tally.decisions += decisions.len() as u64;
        let mut read = std::mem::take(&mut self.operands);
        if operands && self.looks_at(number) {
            read.push(self.operands_of(number, node, results, &decisions, inputs)?);
        }
        let operands = read;
        let mut changes = Vec::new();
        if self.looks_at(number) {
            let [batch, m, n, k] = logged.dims();
            let tolerance = self.rounding.tolerance(logged.class, k);
            let places: Vec<usize> = decisions.iter().map(|decision| decision.place as usize).collect();
            let query = Query { number, logged: &logged, results, places: &places, tolerance };
            let chosen =
                self.filter.as_ref().map(|filter| filter.exact_elements(&query, inputs)).transpose()?;
            let chosen: Option<ExactElements> = match chosen {
                Some(None) => return Err(EngineError::Stopped(format!("{}: {TOO_MANY}", node.operator))),
                found => found.flatten(),
            };
            // Without the integers nothing is proved, and only grids without a floor are known. This is the case for an auditor
            // that rounds native products of its own, as in the paper's preset.
            let blank =
                [batch * m, batch * n].map(|rows| Side { absmaxes: vec![0; rows], norms: vec![0.0; rows] });
            let ([a, b], known) = match (&chosen, operands.first()) {
                (Some(chosen), _) => (chosen.sides.each_ref(), Operands::Chosen(chosen)),
                (None, Some([a, b])) => ([&a.side, &b.side], Operands::Rows(&operands)),
                (None, None) => (blank.each_ref(), Operands::Unknown),
            };
            let product = Product { dims: logged.dims(), rule: logged.rule, a, b, tolerance };
            let accumulation = self.rounding.accumulation();
            let operator = &node.operator;
            let seen = Seen { number, operator, product, results, operands: known, accumulation };
            if let Some(chosen) = &chosen {
                changes.extend(chosen.rounded(&product));
            }
            for decision in &decisions {
                self.decision(&seen, decision, &mut changes)?;
            }
            if let Some(choices) = self.tally.products.get_mut(number).filter(|_| seen.judges()) {
                choices.elements += logged.elements() as u64;
                choices.count(&mut self.decided, &mut self.taken);
                seen.count_free(choices);
            }
            self.decided.clear();
            self.taken.clear();
        }
        self.pending.insert(logged.output, changes);
        Ok(())
    }

    /// Counts a decision that is not the nearest value among its product's choices, if choices are counted.
    fn count_taken(&mut self, number: usize, place: u64, x: f64, up: bool, beyond: bool) {
        let Some(choices) = self.tally.products.get_mut(number) else { return };
        choices.beyond += u64::from(beyond);
        self.taken.push((x.to_bits(), up == (x > 0.0)));
        if self.tally.moved.len() < MOVED_MAX {
            self.tally.moved.push((number as u32, place, up));
        }
    }

    /// Takes one decision: counts it, notes the change that it makes, and judges it against the proved bound.
    fn decision(
        &mut self,
        seen: &Seen,
        decision: &Decision,
        changes: &mut Vec<(usize, u32)>,
    ) -> Result<(), EngineError> {
        self.tally.bits += u64::from(decision.bits);
        let (place, product) = (decision.place as usize, &seen.product);
        let x = seen.value(place);
        let [row, column] = product.sides(place);
        let absmaxes = [product.a.absmaxes[row], product.b.absmaxes[column]];
        if !x.is_finite() || absmaxes.into_iter().any(is_marked) {
            // A value that is not finite is not rounded, so the decision changes nothing. An auditor refuses the log after the
            // step.
            self.void.get_or_insert_with(|| {
                let why = format!("a decision about a value that is not finite: {}", seen.operator);
                Malformed::invalid("rounding log", why)
            });
            return Ok(());
        }
        let grid = product.grid(place);
        let mine = product.rule.rounded(grid, seen.high(place), x);
        let theirs = decision.index(grid, x);
        // A native result that is a near tie is within one tolerance of the boundary, and this value is within one tolerance of
        // that result.
        let tolerance = product.tolerance(place, x);
        let tie = NearTie { place, value: x, rounded: mine, tolerance: 2.0 * tolerance, grid };
        let [low, high] = tie.range();
        self.tally.needless += u64::from(low == high);
        // The paper's thresholds are fractions of a step, whatever the kernels' errors are.
        let by_norms = product.tolerance.steps == 0.0;
        if let Some(choices) = self.tally.products.get_mut(seen.number) {
            choices.needless += u64::from(by_norms && low == high);
            self.decided.push(x.to_bits());
        }
        let margin = 2.0 * tie.margin(); // of the tolerance itself
        self.tally.margins.count(margin);
        if theirs == mine {
            return Ok(());
        }
        self.tally.margins_taken.count(margin);
        changes.push((place, grid.pattern(theirs)));
        self.tally.taken_up += u64::from(theirs > mine);
        self.tally.taken_down += u64::from(theirs < mine);
        // The norms are those of the quantised rows, which differ slightly.
        let explained = if by_norms { 1.001 * tolerance } else { tie.tolerance };
        let [low, high] = NearTie { tolerance: explained, ..tie }.range();
        let beyond = !(low..=high).contains(&theirs);
        self.tally.beyond += u64::from(beyond);
        self.count_taken(seen.number, decision.place, x, theirs > mine, by_norms && beyond);
        let Some(exact) = seen.exact([row, column]) else { return Ok(()) };
        let legal = exact.legal(grid, seen.accumulation);
        if !decision.is_of(legal) {
            self.tally.illegal += 1;
            self.tally.first_illegal.get_or_insert_with(|| Illegal {
                micro_batch: self.micro,
                operator: seen.operator.to_string(),
                product: seen.number,
                element: decision.place,
                exact: exact.value,
                bound: exact.bound(seen.accumulation),
                value: grid.value(theirs) as f32,
                legal: legal.map(|index| grid.value(index) as f32),
            });
        }
        Ok(())
    }
}

impl Rounder for Replayer {
    fn begin(&mut self, phase: Phase, graph: &Graph) {
        self.operands.clear();
        self.sites.clear();
        self.roundings.clear();
        self.pending.clear();
        let Phase::Micro(micro) = phase else { return };
        self.micro = micro;
        let places: HashMap<TensorId, usize> =
            graph.nodes.iter().enumerate().map(|(index, node)| (node.output, index)).collect();
        for (number, logged) in self.products.iter().enumerate() {
            let none = Site { number, operands: false, results: false };
            // A native graph has no integers.
            let exact = logged.exact.iter().filter_map(|tensor| places.get(tensor));
            let native = |&&place: &&usize| matches!(graph.nodes[place].primitive, Primitive::Native { .. });
            for &place in exact.filter(|place| !native(place)) {
                self.sites.entry(place).or_insert(none).operands = true;
            }
            self.sites.entry(places[&logged.product]).or_insert(none).results = true;
        }
        // A filter may change any product's rounding.
        let changing = |number: usize| self.filter.is_some() || !self.part(number).is_empty();
        let decided = self.products.iter().enumerate().filter(|(number, _)| changing(*number));
        self.roundings = decided.map(|(_, logged)| logged.output).collect();
    }
}

impl Observer for Replayer {
    fn want(&self, index: usize, node: &Node) -> Want {
        let site = self.sites.get(&index).is_some_and(|site| site.results || self.looks_at(site.number));
        if site || self.roundings.contains(&node.output) { Want::Bytes } else { Want::No }
    }

    fn node(
        &mut self,
        index: usize,
        node: &Node,
        bytes: &[u8],
        inputs: &mut dyn Inputs,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        if let Some(changes) = self.pending.remove(&node.output) {
            if changes.is_empty() {
                return Ok(None);
            }
            let mut bytes = bytes.to_vec();
            replace_words(&mut bytes, changes);
            return Ok(Some(bytes));
        }
        if let Some(&site) = self.sites.get(&index) {
            if site.results {
                with_words(bytes, |words| self.product(site, node, words, inputs))?;
            } else if self.looks_at(site.number) {
                self.read_operands(site.number, node, inputs)?;
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use tiebreak_contract::arith::rounding_grid::GridRule;
    use tiebreak_contract::arith::words::bytes_from_words;
    use tiebreak_contract::program::builder::Builder;
    use tiebreak_contract::program::graph::View;
    use tiebreak_contract::program::logged::logged_product;
    use tiebreak_contract::program::products::{ProductClass, ProductTable};
    use tiebreak_engine::Engine;
    use tiebreak_engine::cpu::Cpu;
    use tiebreak_job::Job;
    use tiebreak_record::rounding::codec::encode;

    /// A decision about a value that is not finite changes nothing and is reported; the product's other decisions are applied.
    #[test]
    fn a_decision_about_a_value_that_is_not_finite_is_void() {
        let mut b = Builder::new(ProductTable::logged_preset());
        let operands = ["a", "b"].map(|name| {
            let tensor = b.input(name, DType::F32, &[2, 3]);
            View { tensor, offset: 0, dims: [1, 1, 2, 3], strides: [6, 6, 3, 1] }
        });
        let rule = GridRule { bits: 16, floor: 0 };
        let output = logged_product(&mut b, ProductClass::Linear, rule, operands, &[2, 2]);
        b.output("y", output);
        let graph = Arc::new(b.finish());
        let text = "steps = 1\nmodel = { kind = \"mlp\", inputs = 2, hidden = [], classes = 2 }\ndata = { kind = \"idx\", images = \"x\", labels = \"y\" }\n\
            batch = { micro_batch = 1, micro_batches = 1 }\noptimizer = { kind = \"sgd\", momentum = 0.0, weight_decay = 0.0 }\nschedule = { peak = 1e-2 }\n[rounding]\n";
        let rounding = Job::parse("job", text).unwrap().rounding.unwrap();
        // The second row holds infinity, so that elements 2 and 3 are not finite.
        let rows = [[1.0f32, 2.0, 3.0, 1.0, f32::INFINITY, 1.0], [1.5, 0.25, 1.0, 0.5, 1.0, 0.125]];
        let run = |decisions: &[Decision]| {
            let mut replayer = Replayer::new(&rounding, &graph, Log::new(&[encode(decisions, 4)]));
            replayer.begin(Phase::Micro(0), &graph);
            let mut cpu = Cpu::new(1).unwrap();
            let compiled = cpu.compile(graph.clone()).unwrap();
            let ty = graph.tensor(graph.inputs[0].tensor).clone();
            let inputs = rows.map(|row| {
                let bytes = bytes_from_words(DType::F32, &row.map(f32::to_bits));
                cpu.upload(&ty, &bytes).unwrap()
            });
            let outputs = cpu.run(&compiled, &inputs, Some(&mut replayer)).unwrap();
            let bytes = cpu.download(&outputs[0]).unwrap();
            (bytes, replayer.malformed().is_some(), replayer.void().is_some())
        };
        let (plain, ..) = run(&[]);
        let decision = |place, residue| Decision { place, residue, bits: 1 };
        // Element 0 changes by its decision for one of the two residues.
        let moved: Vec<Vec<u8>> = [0, 1].map(|residue| run(&[decision(0, residue)]).0).to_vec();
        assert_ne!(moved[0], moved[1]);
        for residue in [0, 1] {
            assert_eq!(run(&[decision(3, residue)]), (plain.clone(), false, true));
            for first in [0, 1] {
                let both = run(&[decision(0, first), decision(3, residue)]);
                assert_eq!(both, (moved[first as usize].clone(), false, true));
            }
        }
    }
}
