//! A party that answers from a world in memory.

use std::collections::BTreeMap;

use tiebreak_contract::arith::words::bytes_of;
use tiebreak_contract::program::graph::TensorId;
use tiebreak_contract::program::phase::{Phase, graph_of};
use tiebreak_dispute::evidence::origin::{Origin, origin};
use tiebreak_dispute::game::element::{slices_read, subtotals, total};
use tiebreak_dispute::game::message::{
    Answer, Answered, Asked, Field, Need, Question, SUPPLY_SLICES, Sealed, Statement, Subject, Supplied,
    Tree, commitment,
};
use tiebreak_dispute::game::rules::Rules;
use tiebreak_dispute::game::search;
use tiebreak_dispute::verdict::{DataSlices, ProvenInput, ProvenTensor};
use tiebreak_job::data::{Place, Within};
use tiebreak_job::identity::philox_key;
use tiebreak_record::commit::digest::{Digest, hash};
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::proven::{Base64, Hashes, ProvenRecord};
use tiebreak_record::commit::state::{self, tensor_digests};
use tiebreak_record::commit::tensor::{self, Hash, SLICE_BYTES, piece_count, piece_range, piece_values};
use tiebreak_record::commit::trace::{leaf_place, positions};
use tiebreak_record::commit::{merkle, multiproof};
use tiebreak_record::rounding::log::{
    BlockPlace, SliceProof, elements, parts, prove, prove_slices, slice_values,
};
use tiebreak_run::run::dir::Run;

use crate::world::{World, leaves_of_batch};

/// A party.
pub struct Player<'a> {
    pub run: &'a Run,
    pub rules: &'a Rules,
    pub world: &'a World,
    /// The honest run, which a liar knows too.
    pub truth: &'a World,
    pub key: PrivateKey,
}

impl Player<'_> {
    /// An honest party's answer.
    pub fn truth(&self, question: &Question) -> Answer {
        let honest = Player {
            run: self.run,
            rules: self.rules,
            world: self.truth,
            truth: self.truth,
            key: self.key.clone(),
        };
        honest.answer(question)
    }

    pub fn seal(&self, asked: &Asked, answer: Answer) -> Vec<u8> {
        let answered = Answered { game: asked.game, turn: asked.turn, question: asked.digest(), answer };
        Sealed::new(answered, &self.key).to_bytes()
    }

    fn salt(&self) -> Digest {
        hash("tiebreak 2 game commitment", &self.key.public().bytes())
    }

    pub fn answer(&self, question: &Question) -> Answer {
        let World { records, leaves, steps, .. } = self.world;
        match *question {
            Question::Logs { .. } => Answer::Logs { lacks: None },
            Question::Supply { place } => {
                let log = steps[place.step as usize - 1].log.as_ref().unwrap();
                let (values, first) = (slice_values(log), place.first as usize);
                match prove_slices(log, &values, first, SUPPLY_SLICES as usize) {
                    Some(part) => self.supplied(place.step, part),
                    None => Answer::Decline,
                }
            }
            Question::LogBlock { step, part, block } => {
                let log = steps[step as usize - 1].log.as_ref().unwrap();
                let (program, part) = (self.run.program(), part as usize);
                let place = BlockPlace { part, elements: elements(program, part), block };
                self.supplied(step, prove(log, parts(program), place))
            }
            Question::Commit => Answer::Commit {
                commitment: commitment(&self.key.public(), &self.salt(), &self.world.root()),
            },
            Question::Reveal => Answer::Reveal { salt: self.salt(), root: self.world.root() },
            Question::Children { tree, first, count } => self.children(tree, first, count),
            Question::Record { index } => {
                let at = index as usize;
                let before = at.checked_sub(1).map(|at| self.proven(at));
                Answer::Record { record: Base64(records[at].clone()), before }
            }
            Question::Statement { step } => {
                let trace = merkle::root(&steps[step as usize - 1].leaves);
                let leaf = leaves[step as usize];
                Answer::Statement(Statement::new(self.run.computation.id, step, leaf, trace, &self.key))
            }
            Question::Root { subject } => Answer::Root { root: Digest(tensor::root(&self.tensor(subject))) },
            Question::Slice { subject, slice } => {
                let bytes = self.tensor(subject);
                Answer::Slice {
                    bytes: Base64(bytes[piece_range(bytes.len(), SLICE_BYTES, slice as usize)].to_vec()),
                }
            }
            Question::Total { subject, element, fold } => {
                let (graph, node, tensors) = self.operands(subject);
                let value = total(graph, node, element as usize, fold, &tensors);
                value.map_or(Answer::Decline, |value| Answer::Total { value: Base64(value) })
            }
            Question::Evidence { subject, element, need } => self.evidence(subject, element as usize, need),
            Question::Binding { step, field } => self.binding(step, field),
            Question::Pass { .. } => Answer::Decline,
        }
    }

    fn supplied(&self, step: u32, slices: SliceProof) -> Answer {
        Answer::Supplied(Supplied { record: self.proven(step as usize), log: slices.into() })
    }

    fn proven(&self, at: usize) -> ProvenRecord {
        let World { records, leaves, .. } = self.world;
        ProvenRecord {
            index: at as u64,
            record: Base64(records[at].clone()),
            proof: merkle::prove(leaves, at),
        }
    }

    fn tensor(&self, subject: Subject) -> Vec<u8> {
        match subject {
            Subject::Batch { step, micro, tensor } => {
                self.world.steps[step as usize - 1].batch[micro as usize].tensors[tensor].clone()
            }
            Subject::Node { step, phase, node } => {
                self.world.steps[step as usize - 1].outputs[&(Phase::from(phase), node)].clone()
            }
            Subject::Pass { .. } | Subject::Row { .. } => panic!("a run has no passes and no rows"),
        }
    }

    fn children(&self, tree: Tree, first: u64, count: u64) -> Answer {
        let (_, leaf, _) = self.rules.shape(tree);
        let ranges = search::children(first, count, leaf);
        let of = |leaves: &[Digest]| -> Vec<Vec<u8>> {
            let root = |&(first, count): &(u64, u64)| {
                merkle::root(&leaves[first as usize..(first + count) as usize]).0.to_vec()
            };
            ranges.iter().map(root).collect()
        };
        let values = match tree {
            Tree::Receipt | Tree::Rows | Tree::Passes | Tree::Pass { .. } => return Answer::Decline,
            Tree::Transcript => of(&self.world.leaves),
            Tree::Batch { step } => {
                of(&leaves_of_batch(self.run, &self.world.steps[step as usize - 1].batch))
            }
            Tree::Gradients { step } => of(&self.world.steps[step as usize - 1].gradients),
            Tree::Trace { step } => of(&self.world.steps[step as usize - 1].leaves),
            Tree::Tensor { subject } => {
                let values = piece_values(&self.tensor(subject), SLICE_BYTES);
                let root = |&(first, count): &(u64, u64)| {
                    multiproof::subtree(multiproof::blake3, &values[first as usize..(first + count) as usize])
                        .to_vec()
                };
                ranges.iter().map(root).collect()
            }
            Tree::Terms { subject, element, fold } => {
                let (graph, node, tensors) = self.operands(subject);
                match subtotals(graph, node, element as usize, fold, &ranges, &tensors) {
                    Ok(values) => values,
                    Err(_) => return Answer::Decline,
                }
            }
        };
        Answer::Children { values: Base64(values.concat()) }
    }

    /// The operands of a node, whole.
    fn operands(
        &self,
        subject: Subject,
    ) -> (&tiebreak_contract::program::graph::Graph, usize, BTreeMap<TensorId, Vec<u8>>) {
        let Subject::Node { step, phase, node } = subject else { panic!("only nodes have operands") };
        let phase = Phase::from(phase);
        let graph = graph_of(self.run.program(), phase);
        let tensors =
            graph.nodes[node].primitive.inputs().into_iter().map(|id| (id, self.input(step, phase, id).0));
        (graph, node, tensors.collect())
    }

    /// A tensor of a phase, with its commitment.
    fn input(&self, step: u32, phase: Phase, id: TensorId) -> (Vec<u8>, Option<ProvenTensor>) {
        let (program, of) = (self.run.program(), &self.world.steps[step as usize - 1]);
        match origin(program, self.run.job(), &self.run.computation.seed, step, phase, id).unwrap() {
            Origin::Words(words) => (bytes_of(&words), None),
            Origin::State { index } => {
                let table = program.state();
                let digests = tensor_digests(&table, &of.before);
                let proof = state::prove(&table, &digests, index);
                (of.before[index].clone(), Some(ProvenTensor { digest: digests[index], proof }))
            }
            Origin::Batch { micro, tensor } => {
                let bytes = of.batch[micro as usize].tensors[tensor].clone();
                let index = micro as usize * program.batch.len() + tensor;
                let proof = merkle::prove(&leaves_of_batch(self.run, &of.batch), index);
                let digest = tensor::digest(&program.batch[tensor].ty(), &bytes);
                (bytes, Some(ProvenTensor { digest, proof }))
            }
            Origin::Node { phase, node } => {
                let proof = merkle::prove(&of.leaves, leaf_place(program, phase, node).unwrap());
                let digest = of.digests[&(phase, node)];
                (of.outputs[&(phase, node)].clone(), Some(ProvenTensor { digest, proof }))
            }
        }
    }

    fn evidence(&self, subject: Subject, element: usize, need: Need) -> Answer {
        match subject {
            Subject::Node { step, phase, .. } => {
                let (graph, node, tensors) = self.operands(subject);
                let Ok(touched) = slices_read(graph, node, element, need, &tensors) else {
                    return Answer::Decline;
                };
                let mut inputs = Vec::new();
                for (&id, bytes) in &tensors {
                    let slices: Vec<usize> =
                        touched.iter().filter(|(t, _)| *t == id).map(|(_, s)| *s).collect();
                    let (_, commitment) = self.input(step, Phase::from(phase), id);
                    let Some(commitment) = commitment.filter(|_| !slices.is_empty()) else { continue };
                    let values = piece_values(bytes, SLICE_BYTES);
                    let parts: Vec<&[u8]> =
                        slices.iter().map(|&s| &bytes[piece_range(bytes.len(), SLICE_BYTES, s)]).collect();
                    assert!(slices.iter().all(|&s| s < piece_count(bytes.len(), SLICE_BYTES)));
                    inputs.push(ProvenInput {
                        tensor: id.0,
                        commitment,
                        bytes: Base64(parts.concat()),
                        siblings: Hashes(multiproof::prove(multiproof::blake3, &values, &slices)),
                        slices,
                    });
                }
                Answer::Operands { inputs }
            }
            Subject::Batch { step, micro, tensor } => {
                let program = self.run.program();
                let width = program.batch[tensor].ty().len() / program.micro_batch as usize;
                let place = micro * program.micro_batch + (element / width) as u32;
                let mut data = self.run.dataset().unwrap();
                let at = Place { step, batch: program.samples(), place };
                let within = Within { tensor, element: (element % width) as u64 };
                data.element_of(philox_key(&self.run.computation.seed), at, within).unwrap();
                let slices = data.slices_read().unwrap().into_iter().map(DataSlices::from).collect();
                Answer::Samples { files: self.run.file.data.clone(), slices }
            }
            Subject::Pass { .. } | Subject::Row { .. } => Answer::Decline,
        }
    }

    fn binding(&self, step: u32, field: Field) -> Answer {
        let of = &self.world.steps[step as usize - 1];
        let places = self.rules.run().unwrap().outputs(field);
        let outputs = places.iter().map(|place| of.digests[place]).collect();
        let leaves: Vec<Hash> = of.leaves.iter().map(|leaf| leaf.0).collect();
        let order = positions(self.run.program());
        let mut at: Vec<usize> =
            places.iter().map(|place| order.iter().position(|p| p == place).unwrap()).collect();
        at.sort_unstable();
        at.dedup();
        let siblings = Hashes(multiproof::prove(multiproof::rfc6962, &leaves, &at));
        Answer::Binding { outputs, siblings, kept: Vec::new() }
    }
}
