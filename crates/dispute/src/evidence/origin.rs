//! The origin of a node's inputs, in terms of a trainer's commitments.

use super::proven::Scalar;
use tiebreak_contract::program::graph::TensorId;
use tiebreak_contract::program::phase::{Phase, graph_of};
use tiebreak_contract::program::step::{Program, port};
use tiebreak_job::Job;
use tiebreak_job::identity::philox_key;
use tiebreak_record::commit::digest::Digest;

/// The commitment that covers a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Tensor `index` of the state before the step: in the previous record's state digest.
    State {
        /// The tensor's index in the state table.
        index: usize,
    },
    /// Tensor `tensor` of micro-batch `micro`: in the step record's batch digest.
    Batch {
        /// The micro-batch's number.
        micro: u32,
        /// The tensor's index in the model's batch.
        tensor: usize,
    },
    /// Words that follow from the job and the step.
    Words(Vec<u32>),
    /// The output of a node: in the step record's trace root.
    Node {
        /// The phase that ran the node.
        phase: Phase,
        /// The node's index in the phase's graph.
        node: usize,
    },
}

/// The two operands of every accumulation, and the phase that holds the step's whole gradient.
pub(crate) fn accumulation(micro_batches: u32) -> (Vec<(Phase, Phase)>, Phase) {
    let mut operands = Vec::new();
    let mut waiting: Vec<(u32, Phase)> = Vec::new();
    let mut add = |left: Phase, right: Phase| {
        operands.push((left, right));
        Phase::Accumulate(operands.len() as u32 - 1)
    };
    for micro in 0..micro_batches {
        let (mut height, mut node) = (0, Phase::Micro(micro));
        while let Some((_, left)) = waiting.pop_if(|(h, _)| *h == height) {
            node = add(left, node);
            height += 1;
        }
        waiting.push((height, node));
    }
    let mut total = waiting.pop().map_or(Phase::Micro(0), |(_, phase)| phase);
    while let Some((_, left)) = waiting.pop() {
        total = add(left, total);
    }
    (operands, total)
}

/// The node that makes an output port of a phase.
fn output_node(program: &Program, phase: Phase, name: &str) -> Option<Origin> {
    let graph = graph_of(program, phase);
    let tensor = graph.output(name)?;
    let node = graph.nodes.iter().position(|n| n.output == tensor)?;
    Some(Origin::Node { phase, node })
}

/// The node that makes a scalar of the step's record.
pub fn scalar(program: &Program, scalar: Scalar) -> Option<Origin> {
    match scalar {
        Scalar::Clip => output_node(program, Phase::Update, port::CLIP),
        // The update makes the loss where labels are counted.
        Scalar::Loss => output_node(program, Phase::Update, port::LOSS)
            .or_else(|| output_node(program, accumulation(program.micro_batches).1, port::LOSS)),
    }
}

/// The origin of tensor `id` of a phase's graph, in step `step` of a job. `None` only for a port that no graph of
/// a program has.
pub fn origin(
    program: &Program,
    job: &Job,
    seed: &Digest,
    step: u32,
    phase: Phase,
    id: TensorId,
) -> Option<Origin> {
    let graph = graph_of(program, phase);
    if let Some(node) = graph.nodes.iter().position(|n| n.output == id) {
        return Some(Origin::Node { phase, node });
    }
    let name = graph.inputs.iter().find(|p| p.tensor == id)?.name.as_str();
    if let Some(index) = program.state().iter().position(|t| t.name == name) {
        return Some(Origin::State { index });
    }
    let (operands, total) = accumulation(program.micro_batches);
    match phase {
        Phase::Accumulate(i) => {
            let (left, right) = *operands.get(i as usize)?;
            match (name.strip_prefix("left/"), name.strip_prefix("right/")) {
                (Some(rest), _) => output_node(program, left, rest),
                (_, Some(rest)) => output_node(program, right, rest),
                _ => None,
            }
        }
        Phase::Update => {
            let corrections = program.bias_corrections(step);
            match name {
                port::LEARNING_RATE => Some(Origin::Words(vec![job.schedule.learning_rate(step, job.steps)])),
                port::CORRECTION1 => Some(Origin::Words(vec![corrections[0]])),
                port::CORRECTION2 => Some(Origin::Words(vec![corrections[1]])),
                _ => output_node(program, total, name),
            }
        }
        Phase::Micro(micro) => match name {
            port::FACTOR => Some(Origin::Words(vec![program.factor()])),
            port::SEED => Some(Origin::Words(philox_key(seed).to_vec())),
            port::STEP => Some(Origin::Words(vec![step])),
            port::FIRST_SAMPLE => Some(Origin::Words(vec![micro * program.micro_batch])),
            _ => {
                let tensor = program.batch.iter().position(|t| port::batch(&t.name) == name)?;
                Some(Origin::Batch { micro, tensor })
            }
        },
    }
}
