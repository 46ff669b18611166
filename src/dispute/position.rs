//! Where a node stands in a step, and what commits the bytes of each tensor it reads.
//!
//! The canonical trace of a step lists every node's output in execution order: the micro-batches in theirs, each
//! addition of the accumulation tree as soon as both operands are there, then the update. Contract:
//! `docs/ARITHMETIC.md`, sections 7 and 8.

use std::collections::BTreeMap;

use crate::engine::session::{Phase, StepScalars};
use crate::program::graph::{Graph, Node, TensorId};
use crate::program::step::{Program, port};

/// A node of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub phase: Phase,
    /// The node's place in its phase's graph.
    pub node: usize,
}

/// What determines a tensor of a step's graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A state tensor before the step, by its place in [`Program::state`].
    State(usize),
    /// A tensor of a micro-batch's data, by its place in [`crate::program::models::Model::batch`].
    Batch { micro_batch: u32, tensor: usize },
    /// One of the words that the step's scalars determine: see [`StepLayout::scalar`].
    Scalar,
    /// The output of a node.
    Node(Position),
}

/// The order of a step's phases, and who reads whose output.
pub struct StepLayout<'p> {
    program: &'p Program,
    /// In execution order, with the number of trace leaves before each.
    phases: Vec<(Phase, u64)>,
    /// The two operands of each addition.
    operands: Vec<[Phase; 2]>,
    /// Which node of the micro, accumulate and update graph makes a tensor.
    makers: [BTreeMap<TensorId, usize>; 3],
}

impl<'p> StepLayout<'p> {
    pub fn new(program: &'p Program) -> StepLayout<'p> {
        let makers = [&program.micro, &program.accumulate, &program.update]
            .map(|graph| graph.nodes.iter().enumerate().map(|(i, node)| (node.output, i)).collect());
        let mut layout = StepLayout { program, phases: Vec::new(), operands: Vec::new(), makers };
        let mut leaves = 0;
        for phase in layout.schedule() {
            layout.phases.push((phase, leaves));
            leaves += layout.graph(phase).nodes.len() as u64;
        }
        layout
    }

    /// The phases in the order of [`crate::engine::session::Session::step`]; fills in the operands.
    fn schedule(&mut self) -> Vec<Phase> {
        let mut phases = Vec::new();
        let mut waiting: Vec<(u32, Phase)> = Vec::new();
        let mut add = |phases: &mut Vec<Phase>, operands: [Phase; 2]| {
            let phase = Phase::Accumulate(self.operands.len() as u32);
            self.operands.push(operands);
            phases.push(phase);
            phase
        };
        for index in 0..self.program.spec.micro_batches {
            let mut sum = Phase::Micro(index);
            phases.push(sum);
            let mut height = 0;
            while let Some(&(other, left)) = waiting.last()
                && other == height
            {
                waiting.pop();
                sum = add(&mut phases, [left, sum]);
                height += 1;
            }
            waiting.push((height, sum));
        }
        while let [.., (_, left), (_, right)] = waiting[..] {
            waiting.truncate(waiting.len() - 2);
            let sum = add(&mut phases, [left, right]);
            waiting.push((0, sum));
        }
        phases.push(Phase::Update);
        phases
    }

    /// The phases in execution order.
    pub fn phases(&self) -> impl Iterator<Item = Phase> {
        self.phases.iter().map(|&(phase, _)| phase)
    }

    /// The graph that a phase runs.
    pub fn graph(&self, phase: Phase) -> &'p Graph {
        match phase {
            Phase::Micro(_) => &self.program.micro,
            Phase::Accumulate(_) => &self.program.accumulate,
            Phase::Update => &self.program.update,
        }
    }

    /// The node at a position, if the step has it.
    pub fn node(&self, position: Position) -> Option<&'p Node> {
        self.leaf(position)?;
        self.graph(position.phase).nodes.get(position.node)
    }

    /// The leaves of the step's trace.
    pub fn leaves(&self) -> u64 {
        self.phases.last().map_or(0, |&(phase, before)| before + self.graph(phase).nodes.len() as u64)
    }

    /// The trace leaf of a node's output.
    pub fn leaf(&self, position: Position) -> Option<u64> {
        let (_, before) = *self.phases.iter().find(|(phase, _)| *phase == position.phase)?;
        (position.node < self.graph(position.phase).nodes.len()).then(|| before + position.node as u64)
    }

    /// The node of a trace leaf.
    pub fn position(&self, leaf: u64) -> Option<Position> {
        let &(phase, before) = self.phases.iter().rev().find(|(_, before)| *before <= leaf)?;
        let node = usize::try_from(leaf - before).ok()?;
        (node < self.graph(phase).nodes.len()).then_some(Position { phase, node })
    }

    /// What determines a tensor of the phase's graph; `None` if the graph has no such tensor.
    pub fn origin(&self, phase: Phase, tensor: TensorId) -> Option<Origin> {
        if let Some(&node) = self.maker(phase).get(&tensor) {
            return Some(Origin::Node(Position { phase, node }));
        }
        let name = &self.graph(phase).inputs.iter().find(|p| p.tensor == tensor)?.name;
        let gradient = |of: Phase, name: &str| {
            let tensor = self.graph(of).output(name)?;
            self.maker(of).get(&tensor).map(|&node| Origin::Node(Position { phase: of, node }))
        };
        if let Phase::Accumulate(index) = phase {
            let [left, right] = *self.operands.get(index as usize)?;
            let (side, of) = name.split_once('/')?;
            return gradient(if side == "left" { left } else { right }, of);
        }
        if name.starts_with("scalar/") {
            return Some(Origin::Scalar);
        }
        if let Phase::Micro(micro_batch) = phase
            && let Some(of) = name.strip_prefix("batch/")
        {
            let table = self.program.spec.model.batch(self.program.spec.micro_batch);
            let tensor = table.iter().position(|t| t.name == of)?;
            return Some(Origin::Batch { micro_batch, tensor });
        }
        if name.starts_with("grad/") {
            // The last phase before the update made the whole gradient.
            let (total, _) = self.phases[self.phases.len() - 2];
            return gradient(total, name);
        }
        self.program.state().iter().position(|t| &t.name == name).map(Origin::State)
    }

    /// The node of the update that makes state tensor `index` of [`Program::state`].
    pub fn state_output(&self, index: usize) -> Option<Position> {
        let state = self.program.state();
        let tensor = self.program.update.output(&state.get(index)?.name)?;
        self.maker(Phase::Update).get(&tensor).map(|&node| Position { phase: Phase::Update, node })
    }

    /// The words of a scalar input of a phase's graph, from what the job and the step determine.
    pub fn scalar(&self, phase: Phase, tensor: TensorId, scalars: StepScalars) -> Option<Vec<u32>> {
        let name = &self.graph(phase).inputs.iter().find(|p| p.tensor == tensor)?.name;
        let [correction1, correction2] = self.program.corrections(scalars.step);
        Some(match (name.as_str(), phase) {
            (port::FACTOR, _) => vec![self.program.factor()],
            (port::SEED, _) => scalars.seed.to_vec(),
            (port::STEP, _) => vec![scalars.step],
            (port::FIRST_SAMPLE, Phase::Micro(index)) => vec![index * self.program.spec.micro_batch],
            (port::LEARNING_RATE, _) => vec![scalars.learning_rate],
            (port::CORRECTION1, _) => vec![correction1],
            (port::CORRECTION2, _) => vec![correction2],
            _ => return None,
        })
    }

    fn maker(&self, phase: Phase) -> &BTreeMap<TensorId, usize> {
        match phase {
            Phase::Micro(_) => &self.makers[0],
            Phase::Accumulate(_) => &self.makers[1],
            Phase::Update => &self.makers[2],
        }
    }
}
