//! The parts of a step in execution order, and the graph that each runs. Contract: `docs/ARITHMETIC.md`, section 7.

use super::graph::Graph;
use super::step::Program;
use crate::arith::tree::{self, Operation};

/// A part of a step: one run of one of the program's graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// The gradient of micro-batch i.
    Micro(u32),
    /// The i-th addition of the accumulation tree, in execution order.
    Accumulate(u32),
    /// The update of the state.
    Update,
}

impl From<Operation> for Phase {
    fn from(operation: Operation) -> Phase {
        match operation {
            Operation::Term(i) => Phase::Micro(i),
            Operation::Add(i) => Phase::Accumulate(i),
        }
    }
}

/// The phases of a step in execution order.
pub fn phases(micro_batches: u32) -> Vec<Phase> {
    let gradients = tree::operations(micro_batches).into_iter().map(Phase::from);
    gradients.chain([Phase::Update]).collect()
}

/// The graph of a phase.
pub fn graph_of(program: &Program, phase: Phase) -> &Graph {
    match phase {
        Phase::Micro(_) => &program.micro,
        Phase::Accumulate(_) => &program.accumulate,
        Phase::Update => &program.update,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_follow_the_tree() {
        use Phase::*;
        assert_eq!(phases(1), [Micro(0), Update]);
        assert_eq!(phases(3), [Micro(0), Micro(1), Accumulate(0), Micro(2), Accumulate(1), Update]);
        let four =
            [Micro(0), Micro(1), Accumulate(0), Micro(2), Micro(3), Accumulate(1), Accumulate(2), Update];
        assert_eq!(phases(4), four);
    }
}
