//! What a session holds of the state, and the update of it.

use std::sync::Arc;

use crate::update_share::UpdateShare;
use crate::{Compiled, Engine, EngineError};
use tiebreak_contract::program::part::GraphPart;

/// A share whose update is compiled.
pub(super) struct Held {
    /// The places in the state of the tensors that are held.
    pub places: Vec<usize>,
    /// The places of those that the update makes.
    pub made: Vec<usize>,
    /// The places of the update's inputs among all inputs of the program's update.
    pub read: Vec<usize>,
    pub update: Compiled,
}

impl Held {
    pub fn of(share: UpdateShare, engine: &mut dyn Engine) -> Result<Held, EngineError> {
        let UpdateShare { held: places, made, update: GraphPart { graph, inputs: read } } = share;
        Ok(Held { places, made, read, update: engine.compile(Arc::new(graph))? })
    }
}
