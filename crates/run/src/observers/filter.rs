//! Exact roundings of a product without the exact product of every element (`docs/ROUNDING.md`, section 4, *Fast audits*).
//!
//! On grids finer than bfloat16 a binary64 product is closer to the contract's product than a proved bound. An element whose
//! interval holds no boundary of the grid is rounded alike by both. The other elements are computed from their rows' integers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

use super::near_ties::Search as _;
use super::norms::{norm_of_integers, row_norms};
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::digits::magnitude_bits;
use tiebreak_contract::arith::rounding_grid::GridRule;
use tiebreak_contract::arith::words::with_words;
use tiebreak_contract::program::graph::{Graph, LoggedProduct, Primitive, View};
use tiebreak_contract::program::logged::LOW_DIGITS;
use tiebreak_contract::program::logged_element::{TwoPartProduct, TwoPartRow};
use tiebreak_engine::{EngineError, Inputs};
use tiebreak_record::rounding::legal::{ExactRow, digitisation_by_norms};
use tiebreak_record::rounding::near_tie::{Product, Side, Tolerance};

/// The share of a product's elements that may be computed from their rows: one in so many. Beyond it, the exact product of all
/// elements is cheaper.
const FEW: usize = 64;
/// Results below 2^-100 or above 2^120 in size are computed from their rows, by their exponent fields. The bound leaves out
/// underflow and overflow.
const FIELDS: std::ops::Range<u32> = 27..247;
/// Norms from 2^120 on are left to the exact product.
const NORM_MAX: f32 = f32::from_bits(247 << 23);
/// The product of norms below which a zero is computed from its rows.
const NORMS_TINY: f64 = 1.0 / (1u64 << 60) as f64;

/// The products of a graph, as a filter sees them.
pub(super) struct Filter {
    products: Vec<Bound>,
    sum: TwoPartProduct,
}

/// The distance between a native product and the contract's.
struct Bound {
    /// The digits of the classes of both operands.
    digits: [u8; 2],
    /// The digits of the high parts, then of the rests.
    parts: [[u32; 2]; 2],
    /// The distance, by the norms and by the result.
    error: Tolerance,
    /// The factor by which the norms of quantised rows may exceed those of the rows.
    growth: f64,
}

impl Bound {
    /// The bound for native products of which a term passes at most `roundings` roundings in binary64.
    fn of(graph: &Graph, logged: &LoggedProduct, roundings: usize) -> Option<Bound> {
        let exact = graph.nodes.iter().find(|node| Some(&node.output) == logged.exact.first())?;
        let Primitive::Product { a, b, .. } = &exact.primitive else { return None };
        let (DType::Q(digits_a), DType::Q(digits_b)) = (graph.tensor(*a).dtype, graph.tensor(*b).dtype)
        else {
            return None;
        };
        let digits = [digits_a, digits_b];
        let high = digits.map(u32::from);
        let parts = [high, [u32::from(LOW_DIGITS); 2]];
        let k = logged.dims()[3];
        // Half a unit of a high part is at most 2^(1 - m) of its row's norm.
        let [unit_a, unit_b] = high.map(|digits| 2f64.powi(1 - magnitude_bits(digits) as i32));
        let root = (k as f64).sqrt();
        let chain = roundings as f64 * 2f64.powi(-53);
        let accumulation = chain / (1.0 - chain);
        // The sum of the four products: each of at most 14 roundings is below 2^-48 of the result, or of the smaller products. The
        // product of the rests is known to 2^-24 only, and takes part in at most seven sums.
        let smaller = 28.0 * 2f64.powi(-48) * root * (unit_a + unit_b)
            + 8.0 * 2f64.powi(-24) * k as f64 * unit_a * unit_b;
        let norms = (accumulation + digitisation_by_norms(k, &parts) + smaller) * 1.01;
        let growth = (1.0 + root * unit_a) * (1.0 + root * unit_b) * 1.001;
        let error = Tolerance { norms: norms as f32, value: 2f32.powi(-43), steps: 0.0 };
        (logged.rule.is_wide() && chain < 0.01).then_some(Bound { digits, parts, error, growth })
    }

    /// A tolerance such that every element with a boundary within `given` of its exact result, or within the bound of its native
    /// one, has a boundary within the sum of its native result.
    fn widened(&self, given: Tolerance) -> Tolerance {
        let norms = f64::from(given.norms) * self.growth + f64::from(self.error.norms);
        let value = f64::from(given.value) * 1.001 + f64::from(self.error.value);
        Tolerance { norms: (norms * 1.000_001) as f32, value: (value * 1.000_001) as f32, steps: 0.0 }
    }
}

/// The elements of a product that were computed from their rows' integers.
pub(super) struct ExactElements {
    /// The elements' results by index: the nearest binary32, and the rest.
    pub elements: BTreeMap<usize, [u32; 2]>,
    /// The digits of the operands' high parts, then of the rests.
    pub digits: [[u32; 2]; 2],
    /// The absmaxes and norms of the high parts of those elements' rows and columns; 0 elsewhere.
    pub sides: [Side; 2],
    rows: [HashMap<usize, TwoPartRow>; 2],
}

impl ExactElements {
    /// The elements' roundings to the product's grid, as binary32 patterns.
    pub fn rounded(&self, product: &Product) -> impl Iterator<Item = (usize, u32)> {
        self.elements.iter().map(|(&place, &[high, rest])| {
            let value = f64::from(f32::from_bits(high)) + f64::from(f32::from_bits(rest));
            let grid = product.grid(place);
            (place, grid.pattern(product.rule.rounded(grid, high, value)))
        })
    }

    /// A row of an operand as integers.
    pub fn exact_row(&self, side: usize, row: usize) -> ExactRow {
        let row = &self.rows[side][&row];
        (0..2).fold(ExactRow::default(), |all, part| {
            all.with(row.integers[part].clone(), row.absmaxes[part], row.digits[part])
        })
    }
}

/// A product whose results a filter reads: the elements to look at, and the distance of boundaries that matter to the judgement.
pub(super) struct Query<'a> {
    pub number: usize,
    pub logged: &'a LoggedProduct,
    /// The results of the native kernel, [2, batch, M, N].
    pub results: &'a [u32],
    /// Elements that are computed whatever their results are.
    pub places: &'a [usize],
    /// The tolerance of near ties that an auditor counts.
    pub tolerance: Tolerance,
}

impl Filter {
    /// A filter for a program's graph on an engine whose terms pass `roundings(K)` roundings. `None` if a product has no bound.
    pub fn of(graph: &Graph, roundings: &dyn Fn(usize) -> Option<usize>) -> Option<Filter> {
        let bound = |logged: &LoggedProduct| Bound::of(graph, logged, roundings(logged.dims()[3])?);
        let products = graph.logged.iter().map(bound).collect::<Option<Vec<_>>>()?;
        Some(Filter { products, sum: TwoPartProduct::default() })
    }

    /// Every element that the native product may round to another value than the contract's, that has a boundary within the
    /// query's tolerance, or that is among the query's. `None` if these are many, or the bound does not hold.
    ///
    /// # Errors
    /// If the engine cannot show the operands.
    pub fn exact_elements(
        &self,
        query: &Query,
        inputs: &mut dyn Inputs,
    ) -> Result<Option<ExactElements>, EngineError> {
        let views = [&query.logged.a, &query.logged.b];
        let mut norms = [Vec::new(), Vec::new()];
        for (view, norms) in views.iter().zip(&mut norms) {
            inputs.visit(view.tensor, &mut |bytes| {
                *norms = with_words(bytes, |words| row_norms(view, words))
            })?;
        }
        if norms.iter().flatten().any(|norm| !(0.0..NORM_MAX).contains(norm)) {
            return Ok(None);
        }
        let sides = norms.map(|norms| Side { absmaxes: vec![0; norms.len()], norms });
        let Some(places) = self.uncertain(query, &sides, inputs)? else { return Ok(None) };
        let exact = self.computed(query, places, inputs)?;
        let finite = exact.elements.values().flatten().all(|&part| f32::from_bits(part).is_finite());
        Ok(finite.then_some(exact))
    }

    /// The indices of the elements to compute; `None` if they are many.
    fn uncertain(
        &self,
        query: &Query,
        [a, b]: &[Side; 2],
        inputs: &mut dyn Inputs,
    ) -> Result<Option<BTreeSet<usize>>, EngineError> {
        let Query { logged, results, .. } = *query;
        let tolerance = self.products[query.number].widened(query.tolerance);
        let elements = logged.elements();
        let most = elements / FEW + 64;
        let few = |found: usize| found <= most;
        let mut places: BTreeSet<usize> = query.places.iter().copied().collect();
        // The nearest binary32 has to be certain as well: it is counted, whatever the grid is.
        let binary32 = GridRule { bits: 32, floor: 0 };
        for rule in [Some(logged.rule), (logged.rule != binary32).then_some(binary32)].into_iter().flatten() {
            let product = Product { dims: logged.dims(), rule, a, b, tolerance };
            let found = AtomicUsize::new(0);
            let parts = product.fold(results, Vec::new, |all: &mut Vec<usize>, tie, _| {
                if few(found.fetch_add(1, Ordering::Relaxed)) {
                    all.push(tie.place);
                }
            });
            let Ok(parts) = parts else { return Ok(None) };
            if !few(found.into_inner()) {
                return Ok(None);
            }
            places.extend(parts.into_iter().flatten());
        }
        let extreme = |x: u32| !FIELDS.contains(&(x >> 23 & 0xff));
        let any = results[..elements].par_chunks(1 << 15).any(|part| part.iter().any(|&x| extreme(x)));
        if any {
            let product = Product { dims: logged.dims(), rule: logged.rule, a, b, tolerance };
            let mut masks = [Masks::default(), Masks::default()];
            for (view, masks) in [&logged.a, &logged.b].into_iter().zip(&mut masks) {
                inputs.visit(view.tensor, &mut |bytes| {
                    *masks = with_words(bytes, |words| Masks::of(view, words))
                })?;
            }
            // Every kernel's sum of zeros is zero.
            let is_zero = |place: usize| {
                let [row, column] = product.sides(place);
                let norms = product.norms(place);
                norms == 0.0 || (norms >= NORMS_TINY && masks[0].are_disjoint(row, &masks[1], column))
            };
            let found: Vec<usize> = results[..elements]
                .par_iter()
                .enumerate()
                .filter(|&(place, &x)| extreme(x) && !(x << 1 == 0 && is_zero(place)))
                .map(|(place, _)| place)
                .take_any(most + 1)
                .collect();
            places.extend(found);
        }
        Ok(few(places.len()).then_some(places))
    }

    /// Computes elements from their rows' integers.
    fn computed(
        &self,
        query: &Query,
        places: BTreeSet<usize>,
        inputs: &mut dyn Inputs,
    ) -> Result<ExactElements, EngineError> {
        let (logged, bound) = (query.logged, &self.products[query.number]);
        let blank = Side { absmaxes: Vec::new(), norms: Vec::new() };
        let product = Product {
            dims: logged.dims(),
            rule: logged.rule,
            a: &blank,
            b: &blank,
            tolerance: query.tolerance,
        };
        let mut rows = [HashMap::new(), HashMap::new()];
        let mut sides = [&logged.a, &logged.b].map(|view| {
            let rows = (view.dims[0] * view.dims[1] * view.dims[2]) as usize;
            Side { absmaxes: vec![0; rows], norms: vec![0.0; rows] }
        });
        for (i, view) in [&logged.a, &logged.b].into_iter().enumerate() {
            let wanted: BTreeSet<usize> = places.iter().map(|&place| product.sides(place)[i]).collect();
            let wanted: Vec<usize> = wanted.into_iter().collect();
            let digitise = |words: &[u32]| {
                let row = |&row: &usize| (row, TwoPartRow::new(&row_of(view, words, row), bound.digits[i]));
                wanted.par_iter().map(row).collect()
            };
            inputs.visit(view.tensor, &mut |bytes| rows[i] = with_words(bytes, digitise))?;
            for (&row, parts) in &rows[i] {
                sides[i].absmaxes[row] = parts.absmaxes[0];
                let norm = norm_of_integers(&parts.integers[0], parts.absmaxes[0], parts.digits[0]);
                sides[i].norms[row] = norm;
            }
        }
        let places: Vec<usize> = places.into_iter().collect();
        let element = |&place: &usize| {
            let [row, column] = product.sides(place);
            (place, self.sum.element(&rows[0][&row], &rows[1][&column]))
        };
        let elements: Vec<(usize, [u32; 2])> = places.par_iter().map(element).collect();
        let elements = elements.into_iter().collect();
        Ok(ExactElements { elements, digits: bound.parts, sides, rows })
    }
}

/// Where a [batch0, batch1, rows, K] view of a tensor has a row: the index of its first element.
fn first_of_row(view: &View, row: usize) -> usize {
    let [_, b1, rows, _] = view.dims.map(|d| d as usize);
    let [s0, s1, across, _] = view.strides.map(|s| s as usize);
    let (sample, row) = (row / rows, row % rows);
    view.offset as usize + sample / b1 * s0 + sample % b1 * s1 + row * across
}

/// The elements of a row of a view.
fn row_of(view: &View, words: &[u32], row: usize) -> Vec<u32> {
    let (first, along) = (first_of_row(view, row), view.strides[3] as usize);
    (0..view.dims[3] as usize).map(|i| words[first + i * along]).collect()
}

/// For each row of an operand, the indices of K at which it is not zero, a bit each.
#[derive(Default)]
struct Masks {
    words: Vec<u64>,
    words_of_row: usize,
}

impl Masks {
    fn of(view: &View, words: &[u32]) -> Masks {
        let [b0, b1, rows, k] = view.dims.map(|d| d as usize);
        let words_of_row = k.div_ceil(64);
        let mut masks = vec![0u64; b0 * b1 * rows * words_of_row];
        let along = view.strides[3] as usize;
        masks.par_chunks_mut(words_of_row.max(1)).enumerate().for_each(|(row, mask)| {
            let first = first_of_row(view, row);
            for i in 0..k {
                mask[i / 64] |= u64::from(words[first + i * along] << 1 != 0) << (i % 64);
            }
        });
        Masks { words: masks, words_of_row }
    }

    fn are_disjoint(&self, row: usize, other: &Masks, column: usize) -> bool {
        let of = |masks: &Masks, row: usize| row * masks.words_of_row..(row + 1) * masks.words_of_row;
        let (a, b) = (&self.words[of(self, row)], &other.words[of(other, column)]);
        a.iter().zip(b).all(|(x, y)| x & y == 0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::observers::record::Rounder as _;
    use crate::observers::replay::Replayer;
    use tiebreak_contract::arith::words::bytes_of;
    use tiebreak_contract::program::builder::Builder;
    use tiebreak_contract::program::logged::{logged_product, native_graph};
    use tiebreak_contract::program::phase::Phase;
    use tiebreak_contract::program::products::{ProductClass, ProductDigits, ProductTable};
    use tiebreak_engine::Engine;
    use tiebreak_engine::cpu::Cpu;
    use tiebreak_record::rounding::codec::encode;
    use tiebreak_record::rounding::log::Log;
    use tiebreak_record::rounding::thresholds::Rounding;

    /// How the elements of an operand are chosen.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Rows {
        Ordinary,
        /// Most elements are zero.
        Sparse,
        /// Exponents over the whole range of binary32.
        Wild,
        /// Subnormal products.
        Tiny,
        /// Small integers, whose products are often exact ties of a coarse grid, and often cancel.
        Integers,
    }

    fn elements(rows: Rows, len: usize, mut state: u32) -> Vec<u32> {
        let mut next = move || {
            state = state.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
            (state >> ((state >> 28) + 4) ^ state).wrapping_mul(277_803_737)
        };
        let unit = |x: u32| (x >> 8) as f32 / 8_388_608.0 - 1.0;
        let one = move |_| match rows {
            Rows::Ordinary => unit(next()).to_bits(),
            Rows::Sparse => {
                if next() % 8 == 0 {
                    unit(next()).to_bits()
                } else {
                    0
                }
            }
            Rows::Wild => (next() & 0x807f_ffff) | ((next() % 200 + 20) << 23),
            Rows::Tiny => (unit(next()) * 1e-30).to_bits(),
            Rows::Integers => ((next() % 4097) as f32 - 2048.0).to_bits(),
        };
        (0..len).map(one).collect()
    }

    /// A graph of one product, [batch, M, K] by [batch, N, K], with B stored as [batch, K, N].
    fn graph(bits: u8, digits: [u8; 2], [batch, m, n, k]: [u32; 4]) -> Arc<Graph> {
        let mut table = ProductTable::logged_preset();
        let rule = GridRule { bits, floor: 0 };
        let [digits_a, digits_b] = digits;
        table.set(ProductClass::Linear, ProductDigits { digits_a, digits_b, block: 0 });
        table.set_logged(ProductClass::Linear, rule);
        let mut b = Builder::new(table);
        let dims = |rows| [1, batch, rows, k];
        let tensor = b.input("a", DType::F32, &[batch, m, k]);
        let a = View { tensor, offset: 0, dims: dims(m), strides: [0, m * k, k, 1] };
        let tensor = b.input("b", DType::F32, &[batch, k, n]);
        let right = View { tensor, offset: 0, dims: dims(n), strides: [0, n * k, 1, n] };
        let y = logged_product(&mut b, ProductClass::Linear, rule, [a, right], &[batch, m, n]);
        b.output("y", y);
        Arc::new(b.finish())
    }

    /// The output of a graph with this log; `None` if the filter leaves the product to exact arithmetic.
    fn output(
        graph: &Arc<Graph>,
        native: bool,
        log: &Log,
        inputs: &[Vec<u32>; 2],
    ) -> Option<(Vec<u8>, String)> {
        let bits = graph.logged[0].rule.bits;
        let rounding = Rounding { bits: Some(bits), ..Rounding::default() };
        let mut cpu = Cpu::new(2).unwrap();
        let mut replayer = Replayer::new(&rounding, graph, log.clone());
        replayer.count_choices(graph);
        let run = if native { Arc::new(native_graph(graph)) } else { graph.clone() };
        if native {
            assert!(replayer.filtering(graph, &|k| cpu.binary64_roundings(k)));
        }
        replayer.begin(Phase::Micro(0), &run);
        let compiled = cpu.compile(run.clone()).unwrap();
        let inputs: Vec<_> = run
            .inputs
            .iter()
            .zip(inputs)
            .map(|(port, words)| cpu.upload(run.tensor(port.tensor), &bytes_of(words)).unwrap())
            .collect();
        match cpu.run(&compiled, &inputs, Some(&mut replayer)) {
            Ok(outputs) => {
                let tally = serde_json::to_string(replayer.tally()).unwrap();
                Some((cpu.download(&outputs[0]).unwrap(), tally))
            }
            Err(EngineError::Stopped(_)) if native => None,
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn native_products_are_rounded_as_exact_ones() {
        use Rows::{Integers, Ordinary, Sparse, Tiny, Wild};
        let shapes = [[1, 5, 7, 1], [2, 33, 40, 3], [1, 64, 130, 65], [1, 3, 50, 700]];
        let kinds = [
            [Ordinary; 2],
            [Sparse; 2],
            [Ordinary, Sparse],
            [Wild; 2],
            [Ordinary, Wild],
            [Tiny; 2],
            [Integers; 2],
        ];
        let (mut filtered, mut left) = (0, Vec::new());
        for bits in [32, 30, 26] {
            for digits in [[3, 3], [4, 3], [2, 4], [1, 1]] {
                for (number, shape) in (1..).zip(shapes) {
                    let graph = graph(bits, digits, shape);
                    let log = Log::new(&[Vec::new()]);
                    for kind in kinds {
                        let [batch, m, n, k] = shape.map(|d| d as usize);
                        let inputs = [
                            elements(kind[0], batch * m * k, number),
                            elements(kind[1], batch * n * k, number + 100),
                        ];
                        let exact = output(&graph, false, &log, &inputs).unwrap();
                        match output(&graph, true, &log, &inputs) {
                            Some(fast) => {
                                assert!(fast == exact, "{bits} bits, {digits:?}, {shape:?}, {kind:?}");
                                filtered += 1;
                            }
                            None => left.push((bits, digits, shape, kind)),
                        }
                    }
                }
            }
        }
        // With few digits the auditor's own x is coarse. Sums of integers are ties; products of tiny rows are below binary32.
        left.retain(|&(_, digits, _, kind)| {
            digits[0] >= 3 && kind.iter().all(|rows| [Ordinary, Sparse].contains(rows))
        });
        assert!(left.is_empty(), "left to exact products: {left:?}");
        assert!(filtered > 150);
    }

    /// Decisions far from any boundary, at the first and the last element and at a zero, count as in an exact audit.
    #[test]
    fn decisions_are_judged_as_by_exact_products() {
        use tiebreak_record::rounding::Decision;
        let graph = graph(32, [3, 3], [1, 20, 30, 40]);
        for kind in [Rows::Ordinary, Rows::Sparse] {
            let inputs = [elements(kind, 800, 1), elements(kind, 1200, 2)];
            let places = [0u64, 7, 300, 301, 599];
            let decisions = places.map(|place| Decision { place, residue: place as u32 % 2, bits: 1 });
            let log = Log::new(&[encode(&decisions, 600)]);
            let exact = output(&graph, false, &log, &inputs).unwrap();
            assert!(exact.1.contains("\"decisions\":5"), "{}", exact.1);
            assert!(exact == output(&graph, true, &log, &inputs).expect("few decisions"));
        }
    }
}
