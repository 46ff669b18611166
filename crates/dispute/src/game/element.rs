//! The opening and decision of one element of an operator's output. An element that reads little is opened at once. An element
//! that reads much is opened by a fold over its terms, so that a referee never takes more than some KiB.
//!
//! Referee and party run the same functions. The party runs them over whole tensors, to learn which slices to send; the referee
//! runs them over those slices, after it has verified them.

use std::collections::BTreeMap;

use super::message::{Fold, Need};
use super::search;
use crate::evidence::fold::{self, LoggedElement, logged_product};
use crate::evidence::leaf::{Guarded, LeafError, Recording, Touched, Whole, compute, recorded_from_tensors};
use tiebreak_contract::arith::digits::scale_back_part;
use tiebreak_contract::arith::{DType, tree};
use tiebreak_contract::program::element::Source;
use tiebreak_contract::program::graph::{Graph, LoggedProduct, Node, Primitive, TensorId, block_count};
use tiebreak_record::rounding::legal::IntegerSums;

/// The most bytes of two quantised rows that are carried whole.
const ROWS_BYTES: usize = 24 * 1024;
/// The most terms of a product that one answer carries.
const PRODUCT_TERMS: u64 = 2048;
/// The most rows of a segment that one answer carries: each row is in a slice of its own.
const SEGMENT_TERMS: u64 = 16;
/// The most classes that one answer carries.
const CLASS_TERMS: u64 = 4096;
/// The most indices of K of a logged product that one answer carries: each element of row and column may be in a slice of its
/// own.
const LOGGED_TERMS: u64 = 12;

impl Fold {
    /// The most terms whose operands one answer carries.
    #[doc(hidden)] // for the layers above
    pub fn terms_max(self) -> u64 {
        match self {
            Fold::Product => PRODUCT_TERMS,
            Fold::Segment => SEGMENT_TERMS,
            Fold::Rank { .. } | Fold::Count => CLASS_TERMS,
            Fold::Absmax { .. } | Fold::Sums { .. } => LOGGED_TERMS,
        }
    }
}

/// The words that a fold's element reads beside its terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The number of terms.
    pub terms: u64,
    /// A product's two absmaxes; a segment's begin and end; the class of a position; the known absmaxes of a logged product; or
    /// nothing.
    pub words: Vec<u32>,
}

/// A product's operands, with the index of element `i` in them.
struct Dot {
    a: TensorId,
    b: TensorId,
    absmaxes: [(TensorId, usize); 2],
    /// The first members of row and column, within the block.
    first: [usize; 2],
    terms: u64,
    digits: [u32; 2],
}

fn digits(graph: &Graph, tensor: TensorId) -> u32 {
    match graph.tensor(tensor).dtype {
        DType::Q(d) => u32::from(d),
        _ => unreachable!("products take quantised operands"),
    }
}

fn dot(graph: &Graph, node: &Node, i: usize) -> Option<Dot> {
    let Primitive::Product { a, absmaxes_a, b, absmaxes_b, block, .. } = node.primitive else { return None };
    let shape = |t: TensorId| [0, 1, 2].map(|d| graph.tensor(t).shape[d] as usize);
    let ([batch, m, k], [_, n, _]) = (shape(a), shape(b));
    let blocks = block_count(k as u32, block) as usize;
    let (column, rest) = (i % n, i / n);
    let (row, rest) = (rest % m, rest / m);
    let (sample, at) = (rest % batch, rest / batch);
    let rows = [sample * m + row, sample * n + column];
    let begin = if block == 0 { 0 } else { at * block as usize };
    let end = if block == 0 { k } else { k.min(begin + block as usize) };
    Some(Dot {
        a,
        b,
        absmaxes: [(absmaxes_a, rows[0] * blocks + at), (absmaxes_b, rows[1] * blocks + at)],
        first: rows.map(|row| row * k + begin),
        terms: (end - begin) as u64,
        digits: [digits(graph, a), digits(graph, b)],
    })
}

/// The fold by which the referee opens element `element` of a node's output; `None`: all at once. `claimed` is a party's claim
/// about the element, which gives the position whose rank in a grouping is counted.
pub fn fold_of(graph: &Graph, node: usize, element: usize, claimed: u32) -> Option<Fold> {
    if let Some(logged) = logged_product(graph, node) {
        let parts = fold::parts(logged) as u8;
        return (logged.dims()[3] as u64 > LOGGED_TERMS).then_some(Fold::Sums { parts });
    }
    let node = &graph.nodes[node];
    let len = |tensor: TensorId| graph.tensor(tensor).len() as u64;
    match &node.primitive {
        Primitive::Product { a, b, .. } => {
            let dot = dot(graph, node, element)?;
            let bytes = graph.tensor(*a).dtype.size() + graph.tensor(*b).dtype.size();
            (dot.terms as usize * bytes > ROWS_BYTES).then_some(Fold::Product)
        }
        Primitive::SegmentSum { order, .. } => (len(*order) > SEGMENT_TERMS).then_some(Fold::Segment),
        Primitive::GroupOrder { classes, .. } => {
            (len(*classes) > CLASS_TERMS).then_some(Fold::Rank { position: u64::from(claimed) })
        }
        Primitive::GroupOffsets { classes, .. } => (len(*classes) > CLASS_TERMS).then_some(Fold::Count),
        _ => None,
    }
}

/// True if the node has this fold, and the fold's position exists.
fn fits(graph: &Graph, node: &Node, fold: Fold) -> bool {
    match (&node.primitive, fold) {
        (Primitive::Product { .. }, Fold::Product)
        | (Primitive::SegmentSum { .. }, Fold::Segment)
        | (Primitive::GroupOffsets { .. }, Fold::Count) => true,
        (Primitive::GroupOrder { classes, .. }, Fold::Rank { position }) => {
            position < graph.tensor(*classes).len() as u64
        }
        _ => false,
    }
}

fn no_such_fold(node: &Node) -> LeafError {
    LeafError::Domain { operator: node.operator.clone() }
}

/// An element of a logged product, if it has this fold.
fn logged_element(graph: &Graph, node: usize, element: usize, fold: Fold) -> Option<LoggedElement<'_>> {
    let fits = |of: &LoggedElement| match fold {
        Fold::Sums { parts } => usize::from(parts) == fold::parts(of.logged),
        Fold::Absmax { number } => usize::from(number) < of.absmax_count(),
        _ => false,
    };
    LoggedElement::of(graph, node, element).filter(fits)
}

/// The frame of an element.
///
/// # Errors
/// If the node has no such fold, an element that it reads is not available, or no honest step has a committed value.
pub fn frame<S: Source<Error = LeafError>>(
    graph: &Graph,
    node: usize,
    element: usize,
    fold: Fold,
    source: &mut S,
) -> Result<Frame, LeafError> {
    if let Some(of) = logged_element(graph, node, element, fold) {
        let mut words = of.absmaxes(source)?;
        if let Fold::Absmax { number } = fold {
            words.truncate(usize::from(number));
        }
        return Ok(Frame { terms: of.k(), words });
    }
    let node = &graph.nodes[node];
    if !fits(graph, node, fold) || element >= graph.tensor(node.output).len() {
        return Err(no_such_fold(node));
    }
    let mut source = Guarded::new(node, source);
    match (&node.primitive, fold) {
        (Primitive::SegmentSum { order, offsets, .. }, _) => {
            let width = *graph.tensor(node.output).shape.last().unwrap_or(&1) as usize;
            let segment = element / width.max(1);
            let words = vec![source.get(*offsets, segment)?, source.get(*offsets, segment + 1)?];
            let terms = words[1].checked_sub(words[0]).ok_or_else(|| no_such_fold(node))?;
            if words[1] as usize > graph.tensor(*order).len() {
                return Err(LeafError::Outside { tensor: *order });
            }
            Ok(Frame { terms: u64::from(terms), words })
        }
        (Primitive::GroupOrder { classes, .. }, Fold::Rank { position }) => {
            let words = vec![source.get(*classes, position as usize)?];
            Ok(Frame { terms: graph.tensor(*classes).len() as u64, words })
        }
        (Primitive::GroupOffsets { classes, .. }, _) => {
            Ok(Frame { terms: graph.tensor(*classes).len() as u64, words: Vec::new() })
        }
        _ => {
            let dot = dot(graph, node, element).ok_or_else(|| no_such_fold(node))?;
            let [a, b] = dot.absmaxes;
            Ok(Frame { terms: dot.terms, words: vec![source.get(a.0, a.1)?, source.get(b.0, b.1)?] })
        }
    }
}

/// The value of the subtree over `count` terms from `first` on, in the encoding of its [`super::search::Join`].
///
/// # Errors
/// As [`frame`], and if the terms are not available.
pub(crate) fn subtotal<S: Source<Error = LeafError>>(
    graph: &Graph,
    node: usize,
    element: usize,
    fold: Fold,
    frame: &Frame,
    (first, count): (u64, u64),
    source: &mut S,
) -> Result<Vec<u8>, LeafError> {
    let logged = logged_element(graph, node, element, fold);
    let node = &graph.nodes[node];
    let fits = logged.is_some() || fits(graph, node, fold);
    if !fits || first.checked_add(count).is_none_or(|end| end > frame.terms) {
        return Err(no_such_fold(node));
    }
    if let Some(of) = logged {
        return match fold {
            Fold::Absmax { .. } => {
                Ok(of.absmax(&frame.words, (first, count), source)?.to_le_bytes().to_vec())
            }
            _ => Ok(encoded(&of.sums(&frame.words, (first, count), source)?)),
        };
    }
    let mut source = Guarded::new(node, source);
    let terms = first as usize..(first + count) as usize;
    match &node.primitive {
        Primitive::SegmentSum { input, order, .. } => {
            let width = *graph.tensor(node.output).shape.last().unwrap_or(&1) as usize;
            let (begin, column) = (frame.words[0] as usize, element % width.max(1));
            let rows: Result<Vec<u32>, LeafError> = terms
                .map(|term| {
                    let row = source.get(*order, begin + term)? as usize;
                    source.get(*input, row * width + column)
                })
                .collect();
            Ok(tree::sum(rows?).to_le_bytes().to_vec())
        }
        Primitive::GroupOrder { classes, .. } | Primitive::GroupOffsets { classes, .. } => {
            let mut before = 0u64;
            for place in terms {
                let class = source.get(*classes, place)?;
                before += u64::from(match fold {
                    Fold::Rank { position } => (class, place as u64) < (frame.words[0], position),
                    _ => (class as usize) < element,
                });
            }
            Ok(before.to_le_bytes().to_vec())
        }
        _ => {
            let dot = dot(graph, node, element).ok_or_else(|| no_such_fold(node))?;
            let mut sum = 0i128;
            for term in terms {
                let x = source.get(dot.a, dot.first[0] + term)? as i32;
                let y = source.get(dot.b, dot.first[1] + term)? as i32;
                sum += i128::from(i64::from(x) * i64::from(y));
            }
            Ok(sum.to_le_bytes().to_vec())
        }
    }
}

/// Integer sums as the value of a subtree.
fn encoded(sums: &IntegerSums) -> Vec<u8> {
    let IntegerSums { products, absolute, operands } = sums;
    products.iter().chain(absolute).chain(operands).flat_map(|sum| sum.to_le_bytes()).collect()
}

/// A party's claim about all terms of a logged product's element: the absmaxes that its integers depend on, and their sums.
pub(crate) struct LoggedTotal<'a> {
    /// Absmaxes, in their order, of 4 bytes each.
    pub absmaxes: Vec<u32>,
    /// The sums, as the value of a tree.
    pub sums: &'a [u8],
}

impl LoggedTotal<'_> {
    /// Parses a total; `None` if its length is wrong.
    pub fn of<'a>(graph: &Graph, node: usize, element: usize, total: &'a [u8]) -> Option<LoggedTotal<'a>> {
        let of = LoggedElement::of(graph, node, element)?;
        let (absmaxes, sums) = total.split_at_checked(4 * of.absmax_count())?;
        let absmaxes = absmaxes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap_or_default()));
        let all = search::sums(fold::parts(of.logged) as u8);
        (sums.len() == 16 * all).then(|| LoggedTotal { absmaxes: absmaxes.collect(), sums })
    }

    /// The sums, if terms can have such sums.
    pub fn integers(&self, logged: &LoggedProduct) -> Option<IntegerSums> {
        let parts = fold::parts(logged);
        let all: Vec<i128> =
            self.sums.chunks(16).map(|sum| i128::from_le_bytes(sum.try_into().unwrap_or_default())).collect();
        // No integer of four digits is 2^31, so no product is 2^62.
        let most = (logged.dims()[3] as i128) << 62;
        let (products, magnitudes) = all.split_at_checked(parts * parts)?;
        let (absolute, operands) = magnitudes.split_at_checked(parts * parts)?;
        let possible = products.iter().all(|sum| (-most..=most).contains(sum))
            && magnitudes.iter().all(|sum| (0..=most).contains(sum));
        possible.then(|| IntegerSums {
            products: products.to_vec(),
            absolute: absolute.to_vec(),
            operands: operands.to_vec(),
        })
    }
}

/// The element that the value of the whole tree gives. `None` for a value that no terms have, and for ranks, which give no
/// element.
pub fn total_word(graph: &Graph, node: usize, element: usize, frame: &Frame, total: &[u8]) -> Option<u32> {
    let node = &graph.nodes[node];
    match &node.primitive {
        Primitive::SegmentSum { .. } => Some(u32::from_le_bytes(total.try_into().ok()?)),
        Primitive::GroupOffsets { .. } => u32::try_from(u64::from_le_bytes(total.try_into().ok()?)).ok(),
        Primitive::Product { part, .. } => {
            let dot = dot(graph, node, element)?;
            let sum = i128::from_le_bytes(total.try_into().ok()?);
            // No integer of four digits is 2^31, so no product is 2^62.
            let most = i128::from(dot.terms) << 62;
            let absmaxes = [*frame.words.first()?, *frame.words.get(1)?];
            (-most..=most).contains(&sum).then(|| scale_back_part(*part, sum, absmaxes, dot.digits))
        }
        _ => None,
    }
}

/// The result of the part of an element that one answer carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// The element.
    Word(u32),
    /// The frame of its fold.
    Frame(Frame),
    /// The value of some of its terms.
    Subtotal(Vec<u8>),
}

/// The result of verified operands of a node. `known` is the frame, for terms.
///
/// # Errors
/// If a slice is missing, or no honest step has a committed value.
pub(crate) fn part<S: Source<Error = LeafError>>(
    graph: &Graph,
    node: usize,
    element: usize,
    need: Need,
    known: Option<&Frame>,
    mut source: S,
) -> Result<Part, LeafError> {
    match need {
        Need::All => {
            let words = compute(graph, node, element..element + 1, &mut source)?;
            Ok(Part::Word(words[0]))
        }
        Need::Frame { fold } => Ok(Part::Frame(frame(graph, node, element, fold, &mut source)?)),
        Need::Terms { fold, first, count } => {
            let known = known.ok_or_else(|| no_such_fold(&graph.nodes[node]))?;
            Ok(Part::Subtotal(subtotal(graph, node, element, fold, known, (first, count), &mut source)?))
        }
        // A log's decision is no part of an element.
        Need::Decision => Err(no_such_fold(&graph.nodes[node])),
    }
}

/// The slices that a need reads of whole input tensors.
///
/// # Errors
/// As `part`.
pub fn slices_read(
    graph: &Graph,
    node: usize,
    element: usize,
    need: Need,
    tensors: &BTreeMap<TensorId, Vec<u8>>,
) -> Result<Touched, LeafError> {
    let mut source = Recording::new(graph, Whole { graph, tensors });
    match need {
        Need::All => return Ok(recorded_from_tensors(graph, node, element..element + 1, tensors)?.1),
        Need::Frame { fold } => drop(frame(graph, node, element, fold, &mut source)?),
        Need::Terms { fold, first, count } => {
            let known = frame(graph, node, element, fold, &mut Whole { graph, tensors })?;
            subtotal(graph, node, element, fold, &known, (first, count), &mut source)?;
        }
        Need::Decision => {}
    }
    Ok(source.touched)
}

/// The values of the subtrees `ranges` of an element's terms, from whole input tensors.
///
/// # Errors
/// As `part`.
pub fn subtotals(
    graph: &Graph,
    node: usize,
    element: usize,
    fold: Fold,
    ranges: &[(u64, u64)],
    tensors: &BTreeMap<TensorId, Vec<u8>>,
) -> Result<Vec<Vec<u8>>, LeafError> {
    let mut source = Whole { graph, tensors };
    let known = frame(graph, node, element, fold, &mut source)?;
    let of = |&range: &(u64, u64)| subtotal(graph, node, element, fold, &known, range, &mut source);
    ranges.iter().map(of).collect()
}

/// The value of the whole tree of an element's terms, from whole input tensors.
///
/// # Errors
/// As `part`.
pub fn total(
    graph: &Graph,
    node: usize,
    element: usize,
    fold: Fold,
    tensors: &BTreeMap<TensorId, Vec<u8>>,
) -> Result<Vec<u8>, LeafError> {
    let mut source = Whole { graph, tensors };
    let known = frame(graph, node, element, fold, &mut source)?;
    let mut total = subtotal(graph, node, element, fold, &known, (0, known.terms), &mut source)?;
    if let Fold::Sums { .. } = fold {
        let absmaxes: Vec<u8> = known.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        total.splice(..0, absmaxes);
    }
    Ok(total)
}

/// The number of terms of an element's fold, from whole input tensors.
///
/// # Errors
/// As `part`.
pub fn terms(
    graph: &Graph,
    node: usize,
    element: usize,
    fold: Fold,
    tensors: &BTreeMap<TensorId, Vec<u8>>,
) -> Result<u64, LeafError> {
    Ok(frame(graph, node, element, fold, &mut Whole { graph, tensors })?.terms)
}

/// The tensors that a need reads.
pub(crate) fn reads(graph: &Graph, node: usize, need: Need) -> Vec<TensorId> {
    let primitive = &graph.nodes[node].primitive;
    if let Some(of) = LoggedElement::of(graph, node, 0) {
        return of.operands().to_vec();
    }
    match (primitive, need) {
        (Primitive::Product { absmaxes_a, absmaxes_b, .. }, Need::Frame { .. }) => {
            vec![*absmaxes_a, *absmaxes_b]
        }
        (Primitive::Product { a, b, .. }, Need::Terms { .. }) => vec![*a, *b],
        (Primitive::SegmentSum { offsets, .. }, Need::Frame { .. }) => vec![*offsets],
        (Primitive::SegmentSum { input, order, .. }, Need::Terms { .. }) => vec![*input, *order],
        _ => primitive.inputs(),
    }
}
