//! The logged profile on a device: the search for near ties as a summary of a native product, with the rounding that it may compute
//! beside. Knows plans, not the engine.

mod near_ties;
mod trial;

use std::collections::HashMap;

pub use self::trial::Trial;
use crate::plan::beside::Beside;
use tiebreak_contract::program::graph::Graph;
use tiebreak_contract::program::logged::{RoundedProduct, roundings};
use tiebreak_engine::Summary;
use tiebreak_record::rounding::search::NearTieSearch;

/// What a graph has of the logged profile.
pub struct Logged {
    /// What searches may compute beside them, by the node that is the product.
    roundings: HashMap<usize, RoundedProduct>,
}

impl Logged {
    /// That of a graph.
    pub fn of(graph: &Graph) -> Logged {
        Logged { roundings: roundings(graph) }
    }

    /// Whether a summary may compute a node of the graph.
    pub fn computes(&self) -> bool {
        !self.roundings.is_empty()
    }

    /// A summary of a node's output as kernels compute it, if it is one that this folder knows. `is_free` says whether a node may be
    /// computed in its place.
    pub fn beside(
        &self,
        graph: &Graph,
        index: usize,
        summary: &Summary,
        is_free: impl Fn(usize) -> bool,
    ) -> Option<Beside> {
        let search: &NearTieSearch = summary.of()?;
        let on_grid = |rounding: &&RoundedProduct| search.is_on_grid_of(&graph.logged[rounding.number]);
        let rounding = self.roundings.get(&index).filter(|rounding| is_free(rounding.node)).filter(on_grid);
        near_ties::beside(graph, index, search, rounding.map(|rounding| rounding.node))
    }

    /// What the engine has to show before a summary computes a node of the graph: one of a program's products is on the grid of all.
    pub fn trial(&self, graph: &Graph) -> Option<Trial> {
        self.roundings.values().next().map(|rounding| Trial::of(graph.logged[rounding.number].rule))
    }
}
