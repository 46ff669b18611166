//! An element of a logged product as sums over ranges of K, from which it is judged without its whole row and column.
//!
//! The quantised operands are in no trace. So the sums of a range of K have a meaning only under the absmaxes of row and column
//! (and of each part, where operands are split in two). The absmaxes are maxima over K, so they are opened range by range as
//! well.

use std::collections::HashMap;

use super::cone::{Cone, Judged, Unlogged, judged_from_exact, row_and_column, unlogged_in};
use super::leaf::LeafError;
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::digits::{group_absmax, is_marked, scale_back_part};
use tiebreak_contract::program::element::{Source, unravel};
use tiebreak_contract::program::graph::{Graph, LoggedProduct, Primitive, TensorId};
use tiebreak_record::rounding::legal::{Accumulation, Exact, IntegerSums, part_unit};

/// The logged product that a node rounds, if it rounds one.
pub(crate) fn logged_product(graph: &Graph, node: usize) -> Option<&LoggedProduct> {
    let output = graph.nodes[node].output;
    graph.logged.iter().find(|logged| logged.output == output)
}

/// The number of parts of a logged product's rows: one or two.
pub(crate) fn parts(logged: &LoggedProduct) -> usize {
    logged.exact.len()
}

/// The position of an absmax that an element's integers depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Absmax {
    /// u32 [batch, rows, 1].
    tensor: TensorId,
    row: usize,
    /// The node that makes the tensor.
    node: usize,
}

/// An element of a logged product.
pub(crate) struct LoggedElement<'a> {
    graph: &'a Graph,
    /// The product.
    pub logged: &'a LoggedProduct,
    place: usize,
    /// The nodes between the operands and the product, keyed by their outputs.
    made: HashMap<TensorId, usize>,
    /// The digitised products among them, in order.
    products: Vec<usize>,
    /// The absmaxes that the element's integers depend on, in the order of their nodes. Each follows from operands and from
    /// earlier absmaxes.
    absmaxes: Vec<Absmax>,
    /// The tensors of integers of the parts of row and column, in the order of [`LoggedProduct::exact`].
    integers: [Vec<TensorId>; 2],
}

impl<'a> LoggedElement<'a> {
    /// Element `place` of the product that node `node` rounds; `None` if the node rounds no product, or the product has no such
    /// element.
    pub fn of(graph: &'a Graph, node: usize, place: usize) -> Option<LoggedElement<'a>> {
        let logged = logged_product(graph, node).filter(|logged| place < logged.elements())?;
        let mut made = HashMap::new();
        let mut wanted = vec![logged.product, logged.absmaxes_a, logged.absmaxes_b];
        while let Some(tensor) = wanted.pop() {
            if tensor == logged.a.tensor || tensor == logged.b.tensor || made.contains_key(&tensor) {
                continue;
            }
            let node = graph.nodes[..node].iter().rposition(|node| node.output == tensor)?;
            made.insert(tensor, node);
            wanted.extend(graph.nodes[node].primitive.inputs());
        }
        let is_product = |&node: &usize| matches!(graph.nodes[node].primitive, Primitive::Product { .. });
        let mut products: Vec<usize> = made.values().copied().filter(is_product).collect();
        products.sort_unstable();
        let mut element = LoggedElement {
            graph,
            logged,
            place,
            made,
            products,
            absmaxes: Vec::new(),
            integers: [vec![], vec![]],
        };
        element.find_absmaxes()?;
        element.find_integers()?;
        Some(element)
    }

    fn find_absmaxes(&mut self) -> Option<()> {
        let (row, column) = row_and_column(self.logged, self.place);
        let mut all = vec![(self.logged.absmaxes_a, row), (self.logged.absmaxes_b, column)];
        for &node in &self.products {
            if let Primitive::Product { absmaxes_a, absmaxes_b, .. } = self.graph.nodes[node].primitive {
                all.extend([(absmaxes_a, row), (absmaxes_b, column)]);
            }
        }
        let absmax = |(tensor, row)| Some(Absmax { tensor, row, node: *self.made.get(&tensor)? });
        let mut absmaxes: Vec<Absmax> = all.into_iter().map(absmax).collect::<Option<_>>()?;
        absmaxes.sort_by_key(|absmax| (absmax.node, absmax.row));
        absmaxes.dedup();
        self.absmaxes = absmaxes;
        Some(())
    }

    fn find_integers(&mut self) -> Option<()> {
        for product in &self.logged.exact {
            let node = *self.made.get(product)?;
            let Primitive::Product { a, b, .. } = self.graph.nodes[node].primitive else { return None };
            self.integers[0].push(a);
            self.integers[1].push(b);
        }
        Some(())
    }

    /// The number of terms.
    pub fn k(&self) -> u64 {
        self.logged.dims()[3] as u64
    }

    /// The number of absmaxes that the integers depend on.
    pub(crate) fn absmax_count(&self) -> usize {
        self.absmaxes.len()
    }

    /// The tensors that the terms are read from.
    pub fn operands(&self) -> [TensorId; 2] {
        [self.logged.a.tensor, self.logged.b.tensor]
    }

    /// A cone over the operands in which the first absmaxes are known.
    fn under<S>(&self, absmaxes: &[u32], source: S) -> Cone<'_, S> {
        let known = self.absmaxes.iter().zip(absmaxes).map(|(of, &word)| ((of.tensor, of.row), word));
        Cone::new(self.graph, &self.made, known.collect(), source)
    }

    fn outside(&self) -> LeafError {
        LeafError::Outside { tensor: self.logged.output }
    }

    /// The next absmax after `before`, restricted to `count` indices of K from `first` on.
    ///
    /// # Errors
    /// If there is no next absmax, or an operand is not available.
    pub fn absmax<S: Source<Error = LeafError>>(
        &self,
        before: &[u32],
        (first, count): (u64, u64),
        source: &mut S,
    ) -> Result<u32, LeafError> {
        let next = self.absmaxes.get(before.len()).ok_or_else(|| self.outside())?;
        let Primitive::Absmax { input, .. } = &self.graph.nodes[next.node].primitive else {
            return Err(self.outside());
        };
        let index = unravel(next.row, [input.dims[0], input.dims[1], input.dims[2], 1]);
        let mut cone = self.under(before, source);
        let mut absmax = 0;
        for k in first as u32..(first + count) as u32 {
            let x = cone.get(input.tensor, input.at([index[0], index[1], index[2], k]))?;
            absmax = group_absmax([absmax, x]);
        }
        Ok(absmax)
    }

    /// All absmaxes, from all operands.
    ///
    /// # Errors
    /// If an operand is not available.
    pub fn absmaxes<S: Source<Error = LeafError>>(&self, source: &mut S) -> Result<Vec<u32>, LeafError> {
        let mut words = Vec::new();
        for _ in &self.absmaxes {
            words.push(self.absmax(&words, (0, self.k()), source)?);
        }
        Ok(words)
    }

    /// The sums of the element's integers over `count` indices of K from `first` on, under these absmaxes.
    ///
    /// # Errors
    /// If an operand is not available, or is above its absmax.
    pub fn sums<S: Source<Error = LeafError>>(
        &self,
        absmaxes: &[u32],
        (first, count): (u64, u64),
        source: &mut S,
    ) -> Result<IntegerSums, LeafError> {
        let (row, column) = row_and_column(self.logged, self.place);
        let k = self.logged.dims()[3];
        let mut cone = self.under(absmaxes, source);
        let mut sums = IntegerSums::of_parts(parts(self.logged));
        for i in first as usize..(first + count) as usize {
            let mut at = |tensors: &[TensorId], row: usize| -> Result<Vec<i32>, LeafError> {
                tensors.iter().map(|&tensor| Ok(cone.get(tensor, row * k + i)? as i32)).collect()
            };
            sums.add(&at(&self.integers[0], row)?, &at(&self.integers[1], column)?);
        }
        Ok(sums)
    }

    /// The contract's result for the element and, where decisions can be about it, its legal values, from its absmaxes and the
    /// sums over K.
    ///
    /// # Errors
    /// If the numbers of absmaxes or sums are not the product's.
    pub fn judged(
        &self,
        accumulation: Accumulation,
        absmaxes: &[u32],
        sums: &IntegerSums,
    ) -> Result<(Unlogged, Option<Judged>), LeafError> {
        let LoggedElement { graph, logged, place, .. } = *self;
        let parts = parts(logged);
        if absmaxes.len() != self.absmaxes.len() || sums.parts() != parts {
            return Err(self.outside());
        }
        let (row, column) = row_and_column(logged, place);
        let mut cone = self.under(absmaxes, Nothing);
        let digits = |tensor: TensorId| match graph.tensor(tensor).dtype {
            DType::Q(digits) => u32::from(digits),
            _ => unreachable!("products take quantised operands"),
        };
        // The value of one unit of an integer in each part of the row and of the column.
        let mut of_parts = [vec![0.0; parts], vec![0.0; parts]];
        for &node in &self.products {
            let Primitive::Product { a, absmaxes_a, b, absmaxes_b, part, .. } = graph.nodes[node].primitive
            else {
                continue;
            };
            let part_of = |side: usize, tensor| self.integers[side].iter().position(|part| *part == tensor);
            let (Some(i), Some(j)) = (part_of(0, a), part_of(1, b)) else { return Err(self.outside()) };
            let of = [cone.get(absmaxes_a, row)?, cone.get(absmaxes_b, column)?];
            if !of.into_iter().any(is_marked) {
                of_parts[0][i] = part_unit(of[0], digits(a));
                of_parts[1][j] = part_unit(of[1], digits(b));
            }
            let sum = sums.products[i * parts + j];
            let word = scale_back_part(part, sum, of, [digits(a), digits(b)]);
            cone.known.insert((graph.nodes[node].output, place), word);
        }
        let unlogged = unlogged_in(graph, logged, place, &mut cone)?;
        if !unlogged.finite {
            return Ok((unlogged, None));
        }
        let exact = Exact::of_sums(logged.dims()[3], sums, [&of_parts[0], &of_parts[1]]);
        let judged = judged_from_exact(logged, place, accumulation, exact, &mut cone)?;
        Ok((unlogged, Some(judged)))
    }
}

/// A source without elements, for a cone in which everything is known.
struct Nothing;

impl Source for Nothing {
    type Error = LeafError;

    fn get(&mut self, tensor: TensorId, _: usize) -> Result<u32, LeafError> {
        Err(LeafError::Outside { tensor })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::evidence::cone::{judged_from_tensors, operands};
    use crate::evidence::leaf::Whole;
    use tiebreak_contract::arith::float;
    use tiebreak_contract::arith::rounding_grid::GridRule;
    use tiebreak_contract::arith::words::bytes_from_words;
    use tiebreak_contract::program::builder::Builder;
    use tiebreak_contract::program::element;
    use tiebreak_contract::program::graph::View;
    use tiebreak_contract::program::logged;
    use tiebreak_contract::program::products::{ProductClass, ProductTable};

    const K: u32 = 37;

    /// A product of a [2, 3, K] and a [2, K, 4], read transposed, with all tensors of its graph.
    fn product(rule: GridRule, seed: u32, odd: Option<u32>) -> (Graph, BTreeMap<TensorId, Vec<u8>>) {
        let mut b = Builder::new(ProductTable::logged_preset());
        let [left, right] =
            [("a", [2, 3, K]), ("b", [2, K, 4])].map(|(name, shape)| b.input(name, DType::F32, &shape));
        let operands = [
            View { tensor: left, offset: 0, dims: [1, 2, 3, K], strides: [0, 3 * K, K, 1] },
            View { tensor: right, offset: 0, dims: [1, 2, 4, K], strides: [0, 4 * K, 1, 4] },
        ];
        let output = logged::logged_product(&mut b, ProductClass::Linear, rule, operands, &[2, 3, 4]);
        b.output("y", output);
        let graph = b.finish();
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
            (state >> ((state >> 28) + 4) ^ state).wrapping_mul(277_803_737)
        };
        let mut tensors = BTreeMap::new();
        for port in &graph.inputs {
            let len = graph.tensor(port.tensor).len();
            // Exponents are far apart, and signs are mixed.
            let mut words: Vec<u32> =
                (0..len).map(|_| next() & 0x807f_ffff | (110 + next() % 20) << 23).collect();
            if let Some(word) = odd {
                words[5] = word;
            }
            tensors.insert(port.tensor, bytes_from_words(DType::F32, &words));
        }
        for node in &graph.nodes {
            let ty = graph.tensor(node.output);
            let mut source = Whole { graph: &graph, tensors: &tensors };
            let words = element::range(&graph, node, 0..ty.len(), &mut source).unwrap();
            let bytes = bytes_from_words(ty.dtype, &words);
            tensors.insert(node.output, bytes);
        }
        (graph, tensors)
    }

    const RULES: [GridRule; 5] = [
        GridRule { bits: 16, floor: 0 },
        GridRule { bits: 16, floor: 20 },
        GridRule { bits: 26, floor: 0 },
        GridRule { bits: 28, floor: 0 },
        GridRule { bits: 32, floor: 0 },
    ];

    /// The node that rounds the product.
    fn rounding(graph: &Graph) -> usize {
        graph.nodes.iter().position(|node| node.output == graph.logged[0].output).unwrap()
    }

    /// Sums over ranges give the same verdict on every element as its whole row and column.
    #[test]
    fn ranges_of_k_give_what_rows_give() {
        for (seed, rule) in (0..).zip(RULES) {
            let (graph, mut tensors) = product(rule, seed, None);
            let accumulation = if rule.is_wide() { Accumulation::Binary64 } else { Accumulation::Binary32 };
            let logged = &graph.logged[0];
            let everything = tensors.clone();
            let known = operands(&graph, logged);
            tensors.retain(|tensor, _| known.contains(tensor));
            for place in 0..logged.elements() {
                let of = LoggedElement::of(&graph, rounding(&graph), place).unwrap();
                let mut source = Whole { graph: &graph, tensors: &tensors };
                let words = of.absmaxes(&mut source).unwrap();
                for (i, (absmax, &word)) in of.absmaxes.iter().zip(&words).enumerate() {
                    let mut held = Whole { graph: &graph, tensors: &everything };
                    assert_eq!(held.get(absmax.tensor, absmax.row), Ok(word), "the graph's own absmax");
                    let ranges = [(0, 12), (12, 20), (32, 5)];
                    let parts = ranges.map(|range| of.absmax(&words[..i], range, &mut source).unwrap());
                    assert_eq!(group_absmax(parts), word);
                }
                let whole = of.sums(&words, (0, of.k()), &mut source).unwrap();
                let mut joined = IntegerSums::of_parts(parts(logged));
                for range in [(0, 16), (16, 16), (32, 5)] {
                    let part = of.sums(&words, range, &mut source).unwrap();
                    let add = |to: &mut Vec<i128>, part: &[i128]| {
                        to.iter_mut().zip(part).for_each(|(to, part)| *to += part);
                    };
                    add(&mut joined.products, &part.products);
                    add(&mut joined.absolute, &part.absolute);
                    add(&mut joined.operands, &part.operands);
                }
                assert_eq!(joined, whole);
                let (unlogged, judged) = of.judged(accumulation, &words, &whole).unwrap();
                let (rows, _) = judged_from_tensors(&graph, logged, place, accumulation, &tensors).unwrap();
                let judged = judged.unwrap();
                assert_eq!((judged.exact, judged.legal, judged.grid), (rows.exact, rows.legal, rows.grid));
                assert_eq!(judged.bound.to_bits(), rows.bound.to_bits());
                let mut held = Whole { graph: &graph, tensors: &everything };
                assert_eq!(held.get(logged.output, place), Ok(unlogged.rounded));
            }
        }
    }

    /// Nothing is rounded where a row holds infinity; sums that no product has are refused.
    #[test]
    fn rows_that_are_not_finite_have_no_legal_values() {
        for rule in RULES {
            let (graph, tensors) = product(rule, 9, Some(float::INFINITY));
            let of = LoggedElement::of(&graph, rounding(&graph), 0).unwrap();
            let mut source = Whole { graph: &graph, tensors: &tensors };
            let words = of.absmaxes(&mut source).unwrap();
            let sums = of.sums(&words, (0, of.k()), &mut source).unwrap();
            let judge = |words: &[u32], sums: &IntegerSums| of.judged(Accumulation::Binary64, words, sums);
            let (unlogged, judged) = judge(&words, &sums).unwrap();
            assert!(!unlogged.finite && judged.is_none());
            assert_eq!(unlogged.rounded, float::NAN);
            assert!(judge(&words[1..], &sums).is_err());
            assert!(judge(&words, &IntegerSums::of_parts(3)).is_err());
            assert!(LoggedElement::of(&graph, rounding(&graph), of.logged.elements()).is_none());
            assert!(LoggedElement::of(&graph, 0, 0).is_none());
        }
    }
}
