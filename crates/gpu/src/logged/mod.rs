//! The logged profile on a device: the search for near ties as a summary of a native product, and the rounding that the search
//! may compute as well.
//!
//! This folder knows plans, not the engine.

mod near_ties;
mod trial;

use std::collections::HashMap;

pub use self::trial::Trial;
use crate::plan::beside::Beside;
use tiebreak_contract::program::graph::Graph;
use tiebreak_contract::program::logged::{RoundedProduct, roundings};
use tiebreak_engine::Summary;
use tiebreak_record::rounding::search::NearTieSearch;

/// The logged profile's data of a graph.
pub struct Logged {
    /// The roundings that searches may compute as well, keyed by the node of the product.
    roundings: HashMap<usize, RoundedProduct>,
}

impl Logged {
    /// The data of a graph.
    pub fn of(graph: &Graph) -> Logged {
        Logged { roundings: roundings(graph) }
    }

    /// True if a summary may compute a node of the graph.
    pub fn computes(&self) -> bool {
        !self.roundings.is_empty()
    }

    /// The kernels of a summary of a node's output, if this folder knows the summary. `is_free` says if the summary may compute a
    /// node in its place.
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

    /// The trial that the engine must pass before a summary computes a node of the graph. The trial's product has the grid that
    /// all products of a program share.
    pub fn trial(&self, graph: &Graph) -> Option<Trial> {
        self.roundings.values().next().map(|rounding| Trial::of(graph.logged[rounding.number].rule))
    }
}
