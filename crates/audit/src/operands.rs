//! The operands of a step's operators, with proofs under the commitments: the state before the step, its batch, its trace.

use std::collections::{BTreeMap, BTreeSet};

use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::bytes_from_words;
use tiebreak_contract::program::graph::TensorId;
use tiebreak_contract::program::phase::Phase;
use tiebreak_contract::program::step::MicroBatch;
use tiebreak_dispute::evidence::leaf::Touched;
use tiebreak_dispute::evidence::origin::{Origin, origin};
use tiebreak_dispute::verdict::{Base64, Hashes, ProvenInput, ProvenTensor};
use tiebreak_job::data::batch_leaves;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::state::{self, tensor_digests};
use tiebreak_record::commit::tensor::SLICE_BYTES;
use tiebreak_record::commit::trace::{Trace, leaf_place};
use tiebreak_record::commit::{merkle, multiproof, table, tensor};
use tiebreak_run::run::dir::Run;
use tiebreak_run::step::Outputs;

/// Whole tensors of a phase's graph, each with its origin.
pub type Tensors = BTreeMap<TensorId, (Origin, Vec<u8>)>;

/// The commitments to the operands of a step's operators.
pub struct Operands<'a> {
    /// The run.
    pub run: &'a Run,
    /// The step, from 1.
    pub step: u32,
    /// The state that the step began from.
    pub before: &'a [Vec<u8>],
    /// The step's micro-batches, in order.
    pub batch: &'a [MicroBatch],
    /// The step's operators.
    pub trace: &'a Trace,
}

/// The nodes among origins.
pub fn nodes(origins: &BTreeMap<TensorId, Origin>) -> BTreeSet<(Phase, usize)> {
    let node = |origin: &Origin| match origin {
        Origin::Node { phase, node } => Some((*phase, *node)),
        _ => None,
    };
    origins.values().filter_map(node).collect()
}

impl Operands<'_> {
    /// The origins of tensors of a phase's graph.
    pub fn origins(
        &self,
        phase: Phase,
        ids: impl IntoIterator<Item = TensorId>,
    ) -> BTreeMap<TensorId, Origin> {
        let Operands { run, step, .. } = *self;
        let of = |id| Some((id, origin(run.program(), run.job(), &run.computation.seed, step, phase, id)?));
        ids.into_iter().filter_map(of).collect()
    }

    /// Whole tensors: state and batch are fields, outputs of nodes come from `kept`.
    pub fn whole(&self, origins: BTreeMap<TensorId, Origin>, kept: &Outputs) -> Tensors {
        let bytes = |origin: &Origin| match origin {
            Origin::State { index } => self.before[*index].clone(),
            Origin::Batch { micro, tensor } => self.batch[*micro as usize].tensors[*tensor].clone(),
            Origin::Words(words) => bytes_from_words(DType::U32, words),
            Origin::Node { phase, node } => kept.get(&(*phase, *node)).cloned().unwrap_or_default(),
        };
        let with_bytes = |(id, origin)| {
            let bytes = bytes(&origin);
            (id, (origin, bytes))
        };
        origins.into_iter().map(with_bytes).collect()
    }

    /// The slices of tensors that were read, with a proof for each. `leaves`: those of the trace.
    pub fn proven(&self, tensors: &Tensors, touched: &Touched, leaves: &[Digest]) -> Vec<ProvenInput> {
        let mut proven = Vec::new();
        for (id, (origin, bytes)) in tensors {
            let slices: Vec<usize> =
                touched.iter().filter(|(t, _)| t == id).map(|(_, slice)| *slice).collect();
            if matches!(origin, Origin::Words(_)) || slices.is_empty() {
                continue;
            }
            let values = tensor::piece_values(bytes, SLICE_BYTES);
            let slice = |&slice: &usize| &bytes[tensor::piece_range(bytes.len(), SLICE_BYTES, slice)];
            proven.push(ProvenInput {
                tensor: id.0,
                commitment: self.commitment(origin, leaves),
                bytes: Base64(slices.iter().map(slice).collect::<Vec<_>>().concat()),
                siblings: Hashes(multiproof::prove(multiproof::blake3, &values, &slices)),
                slices,
            });
        }
        proven
    }

    /// A tensor's digest, with its proof under the root that commits to it.
    pub fn commitment(&self, origin: &Origin, trace_leaves: &[Digest]) -> ProvenTensor {
        let program = self.run.program();
        match origin {
            Origin::State { index } => {
                let table = program.state();
                let digests = tensor_digests(&table, self.before);
                ProvenTensor { digest: digests[*index], proof: state::prove(&table, &digests, *index) }
            }
            Origin::Batch { micro, tensor: number } => {
                let tensors = batch_leaves(program, self.batch);
                let index = tensors.len() / self.batch.len() * *micro as usize + number;
                let leaves: Vec<Digest> = tensors.iter().map(|(name, d)| table::leaf(name, d)).collect();
                ProvenTensor { digest: tensors[index].1, proof: merkle::prove(&leaves, index) }
            }
            Origin::Node { phase, node } => {
                let index = leaf_place(program, *phase, *node).unwrap_or(0);
                ProvenTensor {
                    digest: self.trace.nodes[index].digest,
                    proof: merkle::prove(trace_leaves, index),
                }
            }
            Origin::Words(_) => ProvenTensor { digest: Digest([0; 32]), proof: Vec::new() },
        }
    }
}
