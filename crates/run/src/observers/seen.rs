//! A logged product as an auditor sees it: its results, and what is known of its operands' integers.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

use super::choices::Choices;
use super::filter::ExactElements;
use super::near_ties::Search as _;
use super::norms::norm_of_integers;
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::{with_words, words_from_bytes};
use tiebreak_contract::program::graph::TensorId;
use tiebreak_engine::{EngineError, Inputs, QuantisedTensor};
use tiebreak_record::rounding::legal::{Accumulation, Exact, ExactRow};
use tiebreak_record::rounding::near_tie::{NearTie, Product, Side, Tolerance};

/// A quantised operand: its rows' absmaxes and norms, and the integers of some or all rows.
pub(super) struct Rows {
    tensor: QuantisedTensor,
    integers: Integers,
    pub side: Side,
}

/// The rows of an operand whose integers are kept.
enum Integers {
    /// All, as canonical bytes.
    All(Vec<u8>),
    /// Some, by index.
    Some(HashMap<usize, Vec<i32>>),
}

impl Rows {
    /// Reads a quantised tensor and its absmaxes, and keeps all rows.
    ///
    /// # Errors
    /// If the engine cannot show them.
    pub fn all(
        inputs: &mut dyn Inputs,
        tensor: QuantisedTensor,
        absmaxes: TensorId,
    ) -> Result<Rows, EngineError> {
        let absmaxes = words_of(inputs, absmaxes)?;
        let mut rows =
            Rows { tensor, integers: Integers::All(Vec::new()), side: Side { absmaxes, norms: Vec::new() } };
        inputs.visit(tensor.id, &mut |bytes| rows.integers = Integers::All(bytes.to_vec()))?;
        let norm = |row: usize| {
            norm_of_integers(&rows.integers(row), rows.side.absmaxes[row], u32::from(tensor.digits))
        };
        let norms = (0..rows.side.absmaxes.len()).into_par_iter().map(norm).collect();
        rows.side.norms = norms;
        Ok(rows)
    }

    /// Reads a quantised tensor and its absmaxes, and keeps the rows `kept`.
    ///
    /// # Errors
    /// If the engine cannot show them.
    pub fn read(
        inputs: &mut dyn Inputs,
        tensor: QuantisedTensor,
        absmaxes: TensorId,
        kept: &HashSet<usize>,
    ) -> Result<Rows, EngineError> {
        let absmaxes = words_of(inputs, absmaxes)?;
        let norms: Vec<AtomicU32> = absmaxes.iter().map(|_| AtomicU32::new(0)).collect();
        let integers = Mutex::new(HashMap::new());
        let all: Vec<usize> = (0..absmaxes.len()).collect();
        inputs.visit_rows(tensor, &all, &|row, of_row| {
            let norm = norm_of_integers(of_row, absmaxes[row], u32::from(tensor.digits));
            norms[row].store(norm.to_bits(), Ordering::Relaxed);
            if kept.contains(&row) {
                integers.lock().unwrap_or_else(PoisonError::into_inner).insert(row, of_row.to_vec());
            }
        })?;
        let norms = norms.into_iter().map(|norm| f32::from_bits(norm.into_inner())).collect();
        let integers = integers.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(Rows { tensor, integers: Integers::Some(integers), side: Side { absmaxes, norms } })
    }

    /// A row's integers.
    ///
    /// # Panics
    /// If the row was not kept.
    fn integers(&self, row: usize) -> Vec<i32> {
        let QuantisedTensor { digits, k, .. } = self.tensor;
        match &self.integers {
            Integers::Some(kept) => kept[&row].clone(),
            Integers::All(bytes) => {
                let len = k * usize::from(digits);
                let words = words_from_bytes(DType::Q(digits), &bytes[row * len..][..len]);
                words.into_iter().map(|q| q as i32).collect()
            }
        }
    }

    /// Appends a row's digits to `to` as one more part.
    fn row(&self, to: ExactRow, row: usize) -> ExactRow {
        to.with(self.integers(row), self.side.absmaxes[row], u32::from(self.tensor.digits))
    }
}

/// The words of a tensor that the node reads.
pub(super) fn words_of(inputs: &mut dyn Inputs, tensor: TensorId) -> Result<Vec<u32>, EngineError> {
    let mut all = Vec::new();
    inputs.visit(tensor, &mut |bytes| all = with_words(bytes, <[u32]>::to_vec))?;
    Ok(all)
}

/// The knowledge of a product's operands.
#[derive(Clone, Copy)]
pub(super) enum Operands<'a> {
    /// None: a native auditor judges nothing.
    Unknown,
    /// The integers of whole rows. A pair belongs to each digitised product.
    Rows(&'a [[Rows; 2]]),
    /// The elements that matter, with the integers of their rows and columns.
    Chosen(&'a ExactElements),
}

/// A logged product as an auditor sees it.
pub(super) struct Seen<'a> {
    /// The product's number among the program's logged products.
    pub number: usize,
    pub operator: &'a str,
    pub product: Product<'a>,
    /// The results, [batch, M, N] in one part or two.
    pub results: &'a [u32],
    pub operands: Operands<'a>,
    pub accumulation: Accumulation,
}

impl Seen<'_> {
    /// The auditor's result of an element: the nearest binary32 and, on fine grids, the rest.
    fn parts(&self, place: usize) -> [u32; 2] {
        if let Operands::Chosen(chosen) = self.operands
            && let Some(&parts) = chosen.elements.get(&place)
        {
            return parts;
        }
        let rest = self.product.rule.is_wide().then(|| self.results[self.product.elements() + place]);
        [self.results[place], rest.unwrap_or(0)]
    }

    /// The binary32 nearest to the auditor's result of an element.
    pub fn high(&self, place: usize) -> u32 {
        self.parts(place)[0]
    }

    /// The auditor's result of an element.
    pub fn value(&self, place: usize) -> f64 {
        let [high, rest] = self.parts(place).map(|part| f64::from(f32::from_bits(part)));
        high + rest
    }

    /// True if the operands' integers are known, so that decisions are judged.
    pub fn judges(&self) -> bool {
        !matches!(self.operands, Operands::Unknown)
    }

    /// The exact product of a row and a column, if their integers are known.
    pub fn exact(&self, sides: [usize; 2]) -> Option<Exact> {
        let [a, b] = match self.operands {
            Operands::Unknown => return None,
            Operands::Rows(parts) => [0, 1].map(|side| {
                parts.iter().fold(ExactRow::default(), |all, rows| rows[side].row(all, sides[side]))
            }),
            Operands::Chosen(chosen) => [0, 1].map(|side| chosen.exact_row(side, sides[side])),
        };
        Some(Exact::of(&a, &b))
    }

    /// The digits of the operands, for each digitised product.
    fn digits(&self) -> Vec<[u32; 2]> {
        match self.operands {
            Operands::Unknown => Vec::new(),
            Operands::Rows(parts) => {
                parts.iter().map(|part| [0, 1].map(|side| u32::from(part[side].tensor.digits))).collect()
            }
            Operands::Chosen(chosen) => chosen.digits.to_vec(),
        }
    }

    /// Counts the elements that the trainer could have chosen: elements within the tolerance of a boundary, with two legal
    /// values.
    pub fn count_free(&self, choices: &mut Choices) {
        let [.., k] = self.product.dims;
        let bound = self.accumulation.bound_by_norms(k, &self.digits()) as f32;
        let given = self.product.tolerance;
        choices.add_size(&self.results[..self.product.elements()]);
        let legal = Tolerance { norms: bound, ..Tolerance::default() };
        let by_steps = given.steps > 0.0;
        let nearer = if by_steps || bound <= given.norms { legal } else { given };
        // For a threshold in steps and a bound by the norms, the element decides which of the two is smaller.
        let logged = |tie: &NearTie| {
            let tolerance = self.product.tolerance(tie.place, tie.value);
            let [low, high] = NearTie { tolerance, ..*tie }.range();
            !by_steps || low != high
        };
        let count = |shifts: &mut BTreeMap<i32, u64>, tie: NearTie, [low, high]: [i64; 2]| {
            if logged(&tie) {
                let shift = tie.grid.value(high) - tie.grid.value(low);
                *shifts.entry(shift.log2().ceil().clamp(-1000.0, 1000.0) as i32).or_default() += 1;
            }
        };
        let product = Product { tolerance: nearer, ..self.product };
        if let Operands::Chosen(chosen) = self.operands {
            let mut shifts = BTreeMap::new();
            for (&place, &[high, rest]) in &chosen.elements {
                if let Ok(Some((tie, range))) = product.near_tie(place, high, Some(rest)) {
                    count(&mut shifts, tie, range);
                }
            }
            return choices.add_free(&shifts);
        }
        let parts = product.fold(self.results, BTreeMap::new, count);
        parts.unwrap_or_default().iter().for_each(|shifts| choices.add_free(shifts));
    }
}
