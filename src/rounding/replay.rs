//! The auditor's side of a step: takes the logged decisions in place of its own roundings, checks each that matters against
//! the proved bound, and counts the freedom that the trainer had and used.

use std::collections::{HashMap, HashSet};

use rayon::prelude::*;
use serde::Serialize;

use super::codec::decode;
use super::legal::{Exact, Row};
use super::log::Log;
use super::near_tie::{NearTie, Product, Side, Tolerance};
use super::record::{Rounder, with_words};
use super::thresholds::Rounding;
use crate::arith::DType;
use crate::arith::digits::{exponent, is_marked, magnitude_bits};
use crate::commit::Malformed;
use crate::engine::session::Phase;
use crate::engine::{EngineError, Inputs};
use crate::program::graph::{Graph, LoggedProduct, Node, Primitive, TensorId};

/// A rounding that no honest kernel can have taken.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Illegal {
    pub micro_batch: u32,
    pub operator: String,
    /// The product's number among those of the program that are logged.
    pub product: usize,
    /// Place in the product's output, row-major.
    pub element: u64,
    /// The exact product, about, the proved bound on a native kernel's distance from it, and the trainer's value.
    pub exact: f64,
    pub bound: f64,
    pub value: f32,
    /// The least and greatest value that an honest kernel's result can have been rounded to.
    pub legal: [f32; 2],
}

impl std::fmt::Display for Illegal {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let Illegal { micro_batch, operator, element, exact, bound, value, legal: [low, high], .. } = self;
        write!(
            f,
            "{operator} of micro-batch {micro_batch}, element {element}, is {value:e}; the exact product is {exact:e}, and no kernel \
             that is within {bound:e} of it rounds outside {low:e} to {high:e}"
        )
    }
}

/// The most remarks of a report.
const REMARKS_MAX: usize = 8;

/// Bins of a histogram of margins: 0 to 2 tolerances, and beyond.
pub const MARGIN_BINS: usize = 41;

/// A histogram of margins.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Margins(pub Vec<u64>);

impl Default for Margins {
    fn default() -> Margins {
        Margins(vec![0; MARGIN_BINS])
    }
}

impl Margins {
    fn count(&mut self, margin: f64) {
        self.0[((margin * 20.0) as usize).min(MARGIN_BINS - 1)] += 1;
    }

    fn add(&mut self, other: &Margins) {
        self.0.iter_mut().zip(&other.0).for_each(|(mine, theirs)| *mine += theirs);
    }
}

/// What a replay saw of a trainer's freedom.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Tally {
    pub elements: u64,
    /// Decisions in the log, and their bits.
    pub decisions: u64,
    pub bits: u64,
    /// Bytes of the logs.
    pub bytes: u64,
    /// Decisions that are not the rounding of the auditor's value: up and down.
    pub taken_up: u64,
    pub taken_down: u64,
    /// Of these, further from the boundary than the job's thresholds explain.
    pub beyond: u64,
    /// Decisions about elements that lie too far from any boundary to be logged.
    pub needless: u64,
    /// Decisions by the distance of the auditor's value from the boundary, in twentieths of the tolerance; all, and those that are
    /// not the nearest value. The last bin holds what is further.
    pub margins: Margins,
    pub margins_taken: Margins,
    /// Roundings that no honest kernel can have taken; the first is described.
    pub illegal: u64,
    pub first_illegal: Option<Illegal>,
    /// Steps whose choices do not look like those of an honest kernel, and why; the first few.
    pub remarks: Vec<String>,
    /// What the proved bound would let a trainer choose; measured on one step.
    pub freedom: Vec<Freedom>,
}

/// The freedom that the proved bound leaves in one product.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Freedom {
    pub micro_batch: u32,
    pub operator: String,
    pub elements: u64,
    /// Elements with more than one legal value, and the bits that choosing among them is worth.
    pub free: u64,
    pub bits: f64,
    /// The largest shift of the mean that choosing could hide, relative to the mean absolute value.
    pub bias: f64,
}

impl Tally {
    /// Decisions that differ from the auditor's own rounding.
    pub fn taken(&self) -> u64 {
        self.taken_up + self.taken_down
    }

    /// Why the trainer's choices do not look like those of an honest kernel, if they do not. Never a conviction.
    pub fn unusual(&self) -> Option<String> {
        let taken = self.taken() as f64;
        let balance = (self.taken_up as f64 - self.taken_down as f64).abs();
        if self.beyond > 0 || self.needless > 0 {
            return Some(format!(
                "{} roundings differ further from a boundary than the job's thresholds explain, {} more are logged though far from any",
                self.beyond, self.needless
            ));
        }
        if self.decisions >= 200 && taken > 0.25 * self.decisions as f64 {
            return Some(format!(
                "{taken} of {} decisions are not the nearest value: kernels that the thresholds fit take far fewer",
                self.decisions
            ));
        }
        (taken >= 100.0 && balance > 6.0 * taken.sqrt()).then(|| {
            format!(
                "{} roundings go up and {} down where the exact product rounds the other way: a bias",
                self.taken_up, self.taken_down
            )
        })
    }

    /// Adds step `step`'s.
    pub fn add(&mut self, step: u32, other: &Tally) {
        if let Some(why) = other.unusual()
            && self.remarks.len() < REMARKS_MAX
        {
            self.remarks.push(format!("step {step}: {why}"));
        }
        self.elements += other.elements;
        self.decisions += other.decisions;
        self.bits += other.bits;
        self.bytes += other.bytes;
        self.taken_up += other.taken_up;
        self.taken_down += other.taken_down;
        self.beyond += other.beyond;
        self.needless += other.needless;
        self.illegal += other.illegal;
        self.margins.add(&other.margins);
        self.margins_taken.add(&other.margins_taken);
        if self.first_illegal.is_none() {
            self.first_illegal.clone_from(&other.first_illegal);
        }
        if self.freedom.is_empty() {
            self.freedom.clone_from(&other.freedom);
        }
    }
}

/// Replays a step's log, on a program's graph or a native one ([`crate::program::logged::native_graph`]): there no rounding can be
/// judged, and `beyond` and `needless` are about the auditor's own products.
pub struct Replayer {
    log: Log,
    rounding: Rounding,
    products: Vec<LoggedProduct>,
    /// Of every tensor of the graph.
    types: Vec<DType>,
    /// Nodes of the program's graph that matter: the product's number, and whether its operands' integers are read there, its
    /// results, or both.
    sites: HashMap<usize, Site>,
    /// Roundings about which the log decides something.
    roundings: HashSet<TensorId>,
    micro: u32,
    /// The operands of a product whose results are to come.
    operands: Vec<[Rows; 2]>,
    /// Elements of the next rounding that the log decides otherwise.
    pending: HashMap<TensorId, Vec<(usize, u32)>>,
    measure_freedom: bool,
    tally: Tally,
    malformed: Option<Malformed>,
}

/// What a node is to a logged product.
#[derive(Clone, Copy)]
struct Site {
    number: usize,
    operands: bool,
    results: bool,
}

/// A quantised operand: its rows' integers, magnitudes and norms.
struct Rows {
    digits: u8,
    k: usize,
    bytes: Vec<u8>,
    side: Side,
}

impl Rows {
    fn read(
        inputs: &mut dyn Inputs,
        dtype: DType,
        [quantised, magnitudes]: [TensorId; 2],
        k: usize,
    ) -> Result<Rows, EngineError> {
        let DType::Q(digits) = dtype else { unreachable!("products take quantised operands") };
        let side = Side { magnitudes: Vec::new(), norms: Vec::new() };
        let mut rows = Rows { digits, k, bytes: Vec::new(), side };
        inputs.visit(quantised, &mut |bytes| rows.bytes = bytes.to_vec())?;
        inputs.visit(magnitudes, &mut |bytes| rows.side.magnitudes = with_words(bytes, <[u32]>::to_vec))?;
        let (row_bytes, digits) = (k * usize::from(digits), usize::from(digits));
        rows.side.norms = (0..rows.side.magnitudes.len())
            .into_par_iter()
            .map(|row| {
                let magnitude = rows.side.magnitudes[row];
                let squares: f64 = rows.bytes[row * row_bytes..(row + 1) * row_bytes]
                    .chunks_exact(digits.max(1))
                    .map(|q| f64::from(integer(q)).powi(2))
                    .sum();
                let scale = 2f64.powi(exponent(magnitude) - magnitude_bits(digits as u32) as i32);
                (squares.sqrt() * scale * 1.000_001) as f32
            })
            .collect();
        Ok(rows)
    }

    /// A row, as one more part of `to`.
    fn row(&self, to: Row, row: usize) -> Row {
        let bytes = self.k * usize::from(self.digits);
        let row_bytes = &self.bytes[row * bytes..(row + 1) * bytes];
        let integers = row_bytes.chunks_exact(usize::from(self.digits)).map(integer).collect();
        to.with(integers, self.side.magnitudes[row], u32::from(self.digits))
    }
}

/// A little-endian two's complement integer of one to four bytes.
fn integer(bytes: &[u8]) -> i32 {
    let mut word = [0; 4];
    word[4 - bytes.len()..].copy_from_slice(bytes);
    i32::from_le_bytes(word) >> (32 - 8 * bytes.len())
}

impl Replayer {
    /// For a step of a graph with logged products. The log is one part for each of them and each micro-batch.
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
            pending: HashMap::new(),
            measure_freedom: false,
            tally,
            malformed: None,
        }
    }

    /// Also measures what the proved bound would let a trainer choose: a scan of every product.
    pub fn measure_freedom(&mut self) {
        self.measure_freedom = true;
    }

    /// The log's root, for the record.
    pub fn root(&self) -> crate::commit::digest::Digest {
        self.log.root()
    }

    /// What was seen.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Why the log cannot be read, if that is what stopped the step.
    pub fn malformed(&self) -> Option<&Malformed> {
        self.malformed.as_ref()
    }

    /// Whether anything of a product is looked at.
    fn looks_at(&self, number: usize) -> bool {
        self.measure_freedom || !self.part(number).is_empty()
    }

    /// The log of a product in this micro-batch.
    fn part(&self, number: usize) -> &[u8] {
        self.log.part(self.micro as usize * self.products.len() + number)
    }

    /// Reads the operands of a digitised product.
    fn read_operands(&mut self, site: Site, node: &Node, inputs: &mut dyn Inputs) -> Result<(), EngineError> {
        let Primitive::Product { a, magnitudes_a, b, magnitudes_b, .. } = &node.primitive else {
            unreachable!("operands are read where they are multiplied");
        };
        let k = self.products[site.number].dims()[3];
        let read = |tensor: &TensorId, magnitudes: &TensorId, inputs: &mut dyn Inputs| {
            Rows::read(inputs, self.types[tensor.0 as usize], [*tensor, *magnitudes], k)
        };
        let rows = [read(a, magnitudes_a, inputs)?, read(b, magnitudes_b, inputs)?];
        self.operands.push(rows);
        Ok(())
    }

    fn product(&mut self, number: usize, node: &Node, results: &[u32]) -> Result<(), EngineError> {
        let logged = &self.products[number];
        let elements = logged.elements();
        let decisions = decode(self.part(number), elements as u64).map_err(|error| {
            let why = format!("{}, micro-batch {}: {error}", node.operator, self.micro);
            self.malformed = Some(error);
            EngineError::Stopped(why)
        })?;
        self.tally.elements += elements as u64;
        self.tally.decisions += decisions.len() as u64;
        let mut changes = Vec::new();
        let operands = std::mem::take(&mut self.operands);
        if self.looks_at(number) {
            let dims @ [batch, m, n, k] = logged.dims();
            // Without the integers nothing is proved, and only grids without a floor are known: an auditor that rounds native
            // products of its own, as in the paper's preset.
            let blank = |rows| Side { magnitudes: vec![0; rows], norms: vec![0.0; rows] };
            let blank = operands.is_empty().then(|| [blank(batch * m), blank(batch * n)]);
            let (a, b) = match (operands.first(), &blank) {
                (Some([a, b]), _) => (&a.side, &b.side),
                (None, Some([a, b])) => (a, b),
                (None, None) => unreachable!("one of the two is there"),
            };
            let accumulation = self.rounding.accumulation();
            let tolerance = self.rounding.tolerance(logged.class, k);
            let scan = Product { dims, rule: logged.rule, a, b, tolerance };
            for decision in &decisions {
                self.tally.bits += u64::from(decision.bits);
                let place = decision.place as usize;
                let part = |place: usize| f64::from(f32::from_bits(results[place]));
                let x = part(place) + if logged.rule.is_wide() { part(elements + place) } else { 0.0 };
                let (row, column) = (place / n, place / (m * n) * n + place % n);
                let magnitudes = [a.magnitudes[row], b.magnitudes[column]];
                if !x.is_finite() || magnitudes.into_iter().any(is_marked) {
                    let error =
                        Malformed::invalid("rounding log", "a decision about a value that is not finite");
                    self.malformed = Some(error.clone());
                    return Err(EngineError::Stopped(format!("{}: {error}", node.operator)));
                }
                let grid = scan.grid(place);
                let mine = logged.rule.rounded(grid, results[place], x);
                let theirs = decision.index(grid, x);
                let tolerance = 2.0 * scan.tolerance(place, x);
                let tie = NearTie { place, value: x, rounded: mine, tolerance, grid };
                let [low, high] = tie.range();
                if low == high {
                    self.tally.needless += 1;
                }
                let margin = 2.0 * tie.margin(); // of the tolerance itself
                self.tally.margins.count(margin);
                if theirs == mine {
                    continue;
                }
                self.tally.margins_taken.count(margin);
                changes.push((place, grid.pattern(theirs)));
                if theirs > mine {
                    self.tally.taken_up += 1;
                } else {
                    self.tally.taken_down += 1;
                }
                if !(low..=high).contains(&theirs) {
                    self.tally.beyond += 1;
                }
                if operands.is_empty() {
                    continue;
                }
                let joined = |side: usize, row: usize| {
                    operands.iter().fold(Row::default(), |all, parts| parts[side].row(all, row))
                };
                let exact = Exact::of(&joined(0, row), &joined(1, column));
                let legal = exact.legal(grid, accumulation);
                if !decision.is_of(legal) {
                    self.tally.illegal += 1;
                    self.tally.first_illegal.get_or_insert_with(|| Illegal {
                        micro_batch: self.micro,
                        operator: node.operator.clone(),
                        product: number,
                        element: decision.place,
                        exact: exact.value,
                        bound: exact.bound(accumulation),
                        value: grid.value(theirs) as f32,
                        legal: legal.map(|index| grid.value(index) as f32),
                    });
                }
            }
            if self.measure_freedom && !operands.is_empty() {
                let digits = |part: &[Rows; 2]| [0, 1].map(|side| u32::from(part[side].digits));
                let digits: Vec<[u32; 2]> = operands.iter().map(digits).collect();
                let norms = accumulation.bound_by_norms(k, &digits) as f32;
                let scan = Product { tolerance: Tolerance { norms, ..Tolerance::default() }, ..scan };
                self.tally.freedom.push(freedom(&scan, results, elements, self.micro, &node.operator));
            }
        }
        self.pending.insert(logged.output, changes);
        Ok(())
    }
}

/// What the bound leaves free in a product.
fn freedom(product: &Product, results: &[u32], elements: usize, micro_batch: u32, operator: &str) -> Freedom {
    let parts = product.fold(
        results,
        || (0u64, 0f64, 0f64),
        |(free, bits, shift), tie, [low, high]| {
            *free += 1;
            *bits += ((high - low + 1) as f64).log2();
            // From its nearest value to the further end.
            let near = tie.grid.value(tie.grid.index(tie.value));
            *shift += (tie.grid.value(high) - near).max(near - tie.grid.value(low));
        },
    );
    let parts = parts.unwrap_or_default(); // values that are not finite are no choice
    let sum = |f: fn(&(u64, f64, f64)) -> f64| parts.iter().map(f).sum::<f64>();
    let size: f64 = results[..elements].iter().map(|&x| f64::from(f32::from_bits(x)).abs()).sum();
    Freedom {
        micro_batch,
        operator: operator.to_string(),
        elements: elements as u64,
        free: parts.iter().map(|part| part.0).sum(),
        bits: sum(|part| part.1),
        bias: if size > 0.0 { sum(|part| part.2) / size } else { 0.0 },
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
        let decided = self.products.iter().enumerate().filter(|(number, _)| !self.part(*number).is_empty());
        self.roundings = decided.map(|(_, logged)| logged.output).collect();
    }

    fn wants(&self, index: usize, node: &Node) -> bool {
        let site = self.sites.get(&index).is_some_and(|site| site.results || self.looks_at(site.number));
        site || self.roundings.contains(&node.output)
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
            for (place, pattern) in changes {
                bytes[4 * place..4 * place + 4].copy_from_slice(&pattern.to_le_bytes());
            }
            return Ok(Some(bytes));
        }
        if let Some(&site) = self.sites.get(&index) {
            if site.operands && self.looks_at(site.number) {
                self.read_operands(site, node, inputs)?;
            }
            if site.results {
                with_words(bytes, |words| self.product(site.number, node, words))?;
            }
        }
        Ok(None)
    }
}
