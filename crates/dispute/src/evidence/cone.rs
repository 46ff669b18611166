//! The judgement of a logged product's element: the exact product and its bound, from verified slices of committed tensors.
//!
//! Traces of the logged profile hold only tensors that trainer and auditor both know. Quantised operands and exact products are
//! the auditor's alone. So a judge of a rounding computes them again, element by element, from the committed operands.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::leaf::{Guarded, LeafError, READS_MAX, Recording, Slices, Touched, Verified, Whole};
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::digits::is_marked;
use tiebreak_contract::arith::rounding_grid::RoundingGrid;
use tiebreak_contract::program::element::{self, Source};
use tiebreak_contract::program::graph::{Graph, LoggedProduct, Primitive, TensorId};
use tiebreak_contract::program::logged::traced;
use tiebreak_record::rounding::legal::{Accumulation, Exact, ExactRow};

/// Serves elements of committed tensors from `source`, and computes the elements of other tensors from them.
pub(super) struct Cone<'a, S> {
    graph: &'a Graph,
    /// The nodes whose outputs are computed, keyed by these outputs.
    made: &'a HashMap<TensorId, usize>,
    source: S,
    /// Elements that were computed or are known in another way. Absmaxes are kept here because every member of their row reads
    /// them.
    pub(super) known: HashMap<(TensorId, usize), u32>,
}

impl<'a, S> Cone<'a, S> {
    pub(super) fn new(
        graph: &'a Graph,
        made: &'a HashMap<TensorId, usize>,
        known: HashMap<(TensorId, usize), u32>,
        source: S,
    ) -> Cone<'a, S> {
        Cone { graph, made, source, known }
    }
}

/// The nodes of a graph whose outputs no trace holds, keyed by those outputs.
fn untraced(graph: &Graph) -> HashMap<TensorId, usize> {
    let nodes = graph.nodes.iter().zip(traced(graph)).enumerate();
    nodes.filter(|(_, (_, held))| !held).map(|(index, (node, _))| (node.output, index)).collect()
}

impl<S: Source<Error = LeafError>> Source for Cone<'_, S> {
    type Error = LeafError;

    fn get(&mut self, tensor: TensorId, index: usize) -> Result<u32, LeafError> {
        if let Some(&word) = self.known.get(&(tensor, index)) {
            return Ok(word);
        }
        let Some(&node) = self.made.get(&tensor) else { return self.source.get(tensor, index) };
        let graph = self.graph;
        let node = &graph.nodes[node];
        let words = element::range(graph, node, index..index + 1, &mut Guarded::new(node, self))?;
        self.known.insert((tensor, index), words[0]);
        Ok(words[0])
    }
}

/// One element of a logged product: its exact value, and the values that an honest kernel can have rounded to.
pub struct Judged {
    /// The grid of the element.
    pub grid: RoundingGrid,
    /// The exact product of the quantised row and column.
    pub exact: Exact,
    /// The bound on a native kernel's distance from the exact product.
    pub bound: f64,
    /// The first and the last legal index.
    pub legal: [i64; 2],
}

impl Judged {
    /// The least and the greatest legal value.
    pub fn range(&self) -> [f32; 2] {
        self.legal.map(|index| self.grid.value(index) as f32)
    }

    /// True if an honest kernel's result can have been rounded to this binary32, which must be a value of the grid within the
    /// range.
    pub fn allows(&self, pattern: u32) -> bool {
        let value = f32::from_bits(pattern);
        if value.is_finite() {
            let index = self.grid.index(f64::from(value));
            return self.grid.pattern(index) == pattern && (self.legal[0]..=self.legal[1]).contains(&index);
        }
        self.legal.map(|index| self.grid.pattern(index)).contains(&pattern)
    }
}

/// The contract's result for one element of a logged product, without a log.
pub(crate) struct Unlogged {
    /// The product's value, from which decisions are counted.
    pub value: f64,
    /// The rounded element without a decision in the log, a binary32 pattern.
    pub rounded: u32,
    /// True if decisions can be about the element: value, row and column are finite.
    pub finite: bool,
}

/// The contract's result for element `place` of a product, from verified slices of its operands.
///
/// # Errors
/// As [`judged_from_slices`].
pub(crate) fn unlogged_from_slices(
    graph: &Graph,
    logged: &LoggedProduct,
    place: usize,
    slices: &Slices,
) -> Result<Unlogged, LeafError> {
    Ok(unlogged(graph, logged, place, Verified { graph, slices })?.0)
}

fn unlogged<S: Source<Error = LeafError>>(
    graph: &Graph,
    logged: &LoggedProduct,
    place: usize,
    source: S,
) -> Result<(Unlogged, S), LeafError> {
    let made = untraced(graph);
    let mut cone = Cone::new(graph, &made, HashMap::new(), source);
    Ok((unlogged_in(graph, logged, place, &mut cone)?, cone.source))
}

/// The contract's result for element `place`, in a cone that has all elements that it reads.
pub(super) fn unlogged_in<S: Source<Error = LeafError>>(
    graph: &Graph,
    logged: &LoggedProduct,
    place: usize,
    cone: &mut Cone<'_, S>,
) -> Result<Unlogged, LeafError> {
    let part = |word: u32| f64::from(f32::from_bits(word));
    let mut value = part(cone.get(logged.product, place)?);
    if logged.rule.is_wide() {
        value += part(cone.get(logged.product, logged.elements() + place)?);
    }
    let (row, column) = row_and_column(logged, place);
    let marked =
        is_marked(cone.get(logged.absmaxes_a, row)?) || is_marked(cone.get(logged.absmaxes_b, column)?);
    let node = graph.nodes.iter().find(|node| node.output == logged.output);
    let node = node.ok_or(LeafError::Outside { tensor: logged.output })?;
    let rounded = element::range(graph, node, place..place + 1, &mut Guarded::new(node, cone))?[0];
    Ok(Unlogged { value, rounded, finite: value.is_finite() && !marked })
}

/// The committed tensors from which an element of a logged product is judged.
pub fn operands(graph: &Graph, logged: &LoggedProduct) -> BTreeSet<TensorId> {
    let made = untraced(graph);
    let mut wanted = vec![logged.product, logged.absmaxes_a, logged.absmaxes_b];
    let (mut seen, mut committed) = (BTreeSet::new(), BTreeSet::new());
    while let Some(tensor) = wanted.pop() {
        if !seen.insert(tensor) {
            continue;
        }
        match made.get(&tensor) {
            Some(&node) => wanted.extend(graph.nodes[node].primitive.inputs()),
            None => drop(committed.insert(tensor)),
        }
    }
    committed
}

/// The row and the column of an element, numbered over all samples of the batch.
pub(super) fn row_and_column(logged: &LoggedProduct, place: usize) -> (usize, usize) {
    let [_, m, n, _] = logged.dims();
    (place / n, place / (m * n) * n + place % n)
}

/// The grid of an element.
fn grid<S: Source>(logged: &LoggedProduct, place: usize, source: &mut S) -> Result<RoundingGrid, S::Error> {
    let (row, column) = row_and_column(logged, place);
    let mut absmaxes = [0, 0];
    if logged.rule.floor != 0 {
        absmaxes = [source.get(logged.absmaxes_a, row)?, source.get(logged.absmaxes_b, column)?];
    }
    Ok(logged.rule.grid(logged.dims()[3] as u32, absmaxes[0], absmaxes[1]))
}

/// The grid of an element, from whole operands. Traces hold the absmaxes that grids depend on.
///
/// # Errors
/// If an operand is not among `tensors`.
pub fn grid_from_tensors(
    graph: &Graph,
    logged: &LoggedProduct,
    place: usize,
    tensors: &BTreeMap<TensorId, Vec<u8>>,
) -> Result<RoundingGrid, LeafError> {
    grid(logged, place, &mut Whole { graph, tensors })
}

fn judge<S: Source<Error = LeafError>>(
    graph: &Graph,
    logged: &LoggedProduct,
    place: usize,
    accumulation: Accumulation,
    source: S,
) -> Result<(Judged, S), LeafError> {
    let k = logged.dims()[3];
    // Each member of the row and the column takes a few operators, in each of two parts.
    let reads = 64 * k as u64;
    if reads > READS_MAX {
        return Err(LeafError::TooLarge { reads });
    }
    let made = untraced(graph);
    let mut cone = Cone::new(graph, &made, HashMap::new(), source);
    let undefined = |node: usize| LeafError::Domain { operator: graph.nodes[node].operator.clone() };
    let place_of = |tensor: TensorId| graph.nodes.iter().position(|node| node.output == tensor);
    let (row, column) = row_and_column(logged, place);
    let mut rows = [ExactRow::default(), ExactRow::default()];
    for &product in &logged.exact {
        let node = place_of(product).expect("a graph has the products that it logs");
        let Primitive::Product { a, absmaxes_a, b, absmaxes_b, .. } = graph.nodes[node].primitive else {
            unreachable!("exact products are products");
        };
        let sides = [(a, absmaxes_a, row), (b, absmaxes_b, column)];
        for (to, (quantised, absmaxes, row)) in rows.iter_mut().zip(sides) {
            let DType::Q(digits) = graph.tensor(quantised).dtype else {
                unreachable!("products take quantised operands");
            };
            let absmax = cone.get(absmaxes, row)?;
            if is_marked(absmax) {
                return Err(undefined(node));
            }
            let integers: Result<Vec<i32>, LeafError> =
                (row * k..(row + 1) * k).map(|i| Ok(cone.get(quantised, i)? as i32)).collect();
            *to = std::mem::take(to).with(integers?, absmax, u32::from(digits));
        }
    }
    let exact = Exact::of(&rows[0], &rows[1]);
    Ok((judged_from_exact(logged, place, accumulation, exact, &mut cone)?, cone.source))
}

/// The legal values of an element with this exact product; `cone` has the absmaxes of its row and column.
pub(super) fn judged_from_exact<S: Source<Error = LeafError>>(
    logged: &LoggedProduct,
    place: usize,
    accumulation: Accumulation,
    exact: Exact,
    cone: &mut Cone<'_, S>,
) -> Result<Judged, LeafError> {
    let grid = grid(logged, place, cone)?;
    Ok(Judged { grid, bound: exact.bound(accumulation), legal: exact.legal(grid, accumulation), exact })
}

/// Judges element `place` of a product from verified slices of its operands.
///
/// # Errors
/// If a slice that the element reads is missing, no honest step has a committed value, or the element reads more than
/// [`READS_MAX`] elements.
pub(crate) fn judged_from_slices(
    graph: &Graph,
    logged: &LoggedProduct,
    place: usize,
    accumulation: Accumulation,
    slices: &Slices,
) -> Result<Judged, LeafError> {
    Ok(judge(graph, logged, place, accumulation, Verified { graph, slices })?.0)
}

/// The slices of whole operands that `unlogged_from_slices` reads; also those of `judged_from_slices` where decisions can be
/// about the element.
///
/// # Errors
/// As `judged_from_slices`.
pub fn slices_read(
    graph: &Graph,
    logged: &LoggedProduct,
    place: usize,
    accumulation: Accumulation,
    tensors: &BTreeMap<TensorId, Vec<u8>>,
) -> Result<Touched, LeafError> {
    let source = Recording::new(graph, Whole { graph, tensors });
    let (unlogged, source) = unlogged(graph, logged, place, source)?;
    if !unlogged.finite {
        return Ok(source.touched);
    }
    Ok(judge(graph, logged, place, accumulation, source)?.1.touched)
}

/// The judgement of an element from whole operands, with the slices of them that were read.
///
/// # Errors
/// As `judged_from_slices`.
pub fn judged_from_tensors(
    graph: &Graph,
    logged: &LoggedProduct,
    place: usize,
    accumulation: Accumulation,
    tensors: &BTreeMap<TensorId, Vec<u8>>,
) -> Result<(Judged, Touched), LeafError> {
    let source = Recording::new(graph, Whole { graph, tensors });
    let (judged, source) = judge(graph, logged, place, accumulation, source)?;
    Ok((judged, source.touched))
}
