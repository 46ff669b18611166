//! The share of a program's state and of its update that one of several sessions has.

use tiebreak_contract::program::part::GraphPart;
use tiebreak_contract::program::step::Program;

/// The share of a program's state that a session holds, and of its update. All parameters and buffers are held.
#[doc(hidden)] // for the layers above
#[derive(Clone, Debug)]
pub struct UpdateShare {
    /// The places in [`Program::state`] of the tensors that the session holds, in order.
    pub held: Vec<usize>,
    /// The places of the tensors that the share's update makes, in order.
    pub made: Vec<usize>,
    /// The part of [`Program::update`] that makes them, and the scalars.
    pub update: GraphPart,
}

impl UpdateShare {
    /// All of the state and of the update.
    pub fn whole(program: &Program) -> UpdateShare {
        let kept = program.kept();
        let made = (0..kept.len()).filter(|&place| !kept[place]).collect();
        let inputs = (0..program.update.inputs.len()).collect();
        let update = GraphPart { graph: program.update.clone(), inputs };
        UpdateShare { held: (0..kept.len()).collect(), made, update }
    }
}
