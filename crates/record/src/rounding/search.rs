//! The fast search for near ties among the results of a native product: its query and its findings. An engine may search beside
//! the product, so that the results need not leave a GPU. The findings are a superset that the caller tests again
//! (`observers/near_ties.rs`), so an engine's search decides nothing.

use super::near_tie::Tolerance;
use tiebreak_contract::program::graph::{LoggedProduct, TensorId, View};

/// The query: the results of a node that is a product of two views, [batch, M, N] in one part or two.
#[derive(Clone, Debug, PartialEq)]
pub struct NearTieSearch {
    /// The left operand, [batch0, batch1, M, K].
    pub a: View,
    /// The right operand, [batch0, batch1, N, K].
    pub b: View,
    /// The absmaxes of the views' rows, where the grid has a floor.
    pub absmaxes: Option<[TensorId; 2]>,
    /// The grid's leading bits of binary32.
    pub bits: u8,
    /// The floor's exponent without the fields of row and column.
    pub floor_offset: i32,
    /// The least exponent of the floor.
    pub floor_min: i32,
    /// The distance from a boundary within which a result counts, as a fraction of the product of the norms of row and column.
    pub norms: f32,
    /// The same distance, as a fraction of the result itself.
    pub relative: f32,
}

impl NearTieSearch {
    /// The search of a logged product for results within a tolerance of a boundary of its grid.
    pub fn of(logged: &LoggedProduct, tolerance: Tolerance) -> NearTieSearch {
        let rule = logged.rule;
        NearTieSearch {
            a: logged.a.clone(),
            b: logged.b.clone(),
            absmaxes: (rule.floor != 0).then_some([logged.absmaxes_a, logged.absmaxes_b]),
            bits: rule.bits,
            floor_offset: rule.floor_offset(logged.a.dims[3]),
            floor_min: rule.floor_min(),
            norms: tolerance.norms,
            relative: tolerance.relative(rule),
        }
    }

    /// True if the query is about this product on the grid that the product is rounded to, with any tolerance.
    pub fn is_on_grid_of(&self, logged: &LoggedProduct) -> bool {
        let (norms, relative) = (self.norms, self.relative);
        *self == NearTieSearch { norms, relative, ..NearTieSearch::of(logged, Tolerance::default()) }
    }
}

/// A result that may be near a boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NearTieCandidate {
    /// The result's index in [batch, M, N].
    pub place: u32,
    /// The binary32 pattern nearest to the value.
    pub high: u32,
    /// The binary32 pattern of the rest of the value; 0 for results in one part.
    pub rounding_error: u32,
}

/// The findings of a search.
#[derive(Clone, Debug, Default)]
pub struct NearTiesFound {
    /// The 2-norms of the rows of both views, [batch, rows].
    pub norms: [Vec<f32>; 2],
    /// The absmaxes of those rows, if the search was given any.
    pub absmaxes: Option<[Vec<u32>; 2]>,
    /// Every result that the fast test of `observers::near_ties` marks, in any order.
    pub candidates: Vec<NearTieCandidate>,
}
