//! The leaf checker against the reference engine: every tile of every node of a step follows from the commitments of the step's
//! origins, and hostile inputs are errors, never panics.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::edit::edited;
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::bytes_from_words;
use tiebreak_contract::program::graph::{Graph, Node, Primitive, TensorId};
use tiebreak_contract::program::init;
use tiebreak_contract::program::models::BatchTensor;
use tiebreak_contract::program::phase::{Phase, graph_of};
use tiebreak_contract::program::step::{MicroBatch, Program};
use tiebreak_dispute::evidence::leaf::{
    LeafError, Slices, expected, recorded_from_slices, recorded_from_tensors, tile_bytes, tile_elements,
};
use tiebreak_dispute::evidence::origin::{Origin, origin};
use tiebreak_engine::reference::Reference;
use tiebreak_engine::session::{Session, StepObserver, StepScalars};
use tiebreak_engine::{EngineError, Inputs, Observer};
use tiebreak_job::Job;
use tiebreak_job::identity::philox_key;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::tensor::{SLICE_BYTES, piece_range, tile_count, tile_range};
use tiebreak_record::commit::trace::positions;

const STEP: u32 = 3;
const SEED: Digest = Digest([7; 32]);
const GPT: &str = r#"
steps = 9
clip_norm = 1.0
model = { kind = "gpt", vocabulary = 70, context = 12, layers = 1, heads = 2, width = 24, dropout = 0.1 }
data = { kind = "bytes", path = "text.txt" }
optimizer = { kind = "adamw", beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1 }
schedule = { peak = 1e-3, warmup = 4, floor = 1e-4 }
batch = { micro_batch = 4, micro_batches = 3 }
"#;
const LLAMA: &str = r#"
steps = 9
model = { kind = "llama", vocabulary = 70, context = 12, layers = 1, heads = 2, kv_heads = 1, width = 68, head_width = 36, hidden = 20, qkv_bias = true, out_bias = true, qk_norm = true }
data = { kind = "bytes", path = "text.txt" }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 5e-4 }
schedule = { peak = 1e-3 }
batch = { micro_batch = 2, micro_batches = 2 }
"#;
const RESNET: &str = r#"
steps = 9
model = { kind = "resnet", height = 7, width = 9, planes = 1, stages = [5, 6], blocks = 1, classes = 4 }
data = { kind = "idx", images = "images", labels = "labels" }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 5e-4 }
schedule = { peak = 1e-2 }
batch = { micro_batch = 4, micro_batches = 2 }
"#;

/// A step's honest values: those committed before it, and every node's output.
struct Step {
    job: Job,
    program: Program,
    state: Vec<Vec<u8>>,
    batches: Vec<MicroBatch>,
    phase: Phase,
    order: Vec<(Phase, usize)>,
    outputs: BTreeMap<(Phase, usize), Vec<u8>>,
}

impl StepObserver for Step {
    fn phase(&mut self, phase: Phase, _: &Graph) -> Option<&mut dyn Observer> {
        self.phase = phase;
        Some(self)
    }
}

impl Observer for Step {
    fn node(
        &mut self,
        index: usize,
        _: &Node,
        bytes: &[u8],
        _: &mut dyn Inputs,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        self.order.push((self.phase, index));
        self.outputs.insert((self.phase, index), bytes.to_vec());
        Ok(None)
    }
}

impl Step {
    fn run(job: &str) -> Step {
        let job = Job::parse("job", job).unwrap();
        let program = job.program(None).unwrap();
        let seed = philox_key(&SEED);
        let state: Vec<Vec<u8>> =
            init::state(&program, seed).iter().map(|t| bytes_from_words(DType::F32, t)).collect();
        let tensor = |m: u32, number: u32, t: &BatchTensor| {
            let words = 0..t.shape.iter().product();
            let words: Vec<u32> = words.map(|i: u32| (i * i * 31 + m + 9 * number) % t.below).collect();
            bytes_from_words(t.dtype, &words)
        };
        let batches: Vec<MicroBatch> = (0..program.micro_batches)
            .map(|m| (0..).zip(&program.batch).map(|(number, t)| tensor(m, number, t)).collect())
            .map(|tensors| MicroBatch { tensors })
            .collect();
        let mut step = Step {
            state: state.clone(),
            batches: batches.clone(),
            phase: Phase::Update,
            order: Vec::new(),
            outputs: BTreeMap::new(),
            program: program.clone(),
            job,
        };
        let learning_rate = step.job.schedule.learning_rate(STEP, step.job.steps);
        let mut engine = Reference;
        let mut session = Session::new(&mut engine, Arc::new(program)).unwrap();
        session.load(&state).unwrap();
        let scalars = StepScalars { step: STEP, seed, learning_rate };
        session.step(scalars, &batches, &mut step, |_, _, _| Ok(())).unwrap();
        step
    }

    /// The bytes of every tensor that a node reads, each from its origin.
    fn inputs(&self, phase: Phase, node: usize) -> BTreeMap<TensorId, Vec<u8>> {
        let graph = graph_of(&self.program, phase);
        let bytes = |id| match origin(&self.program, &self.job, &SEED, STEP, phase, id).unwrap() {
            Origin::State { index } => self.state[index].clone(),
            Origin::Batch { micro, tensor } => self.batches[micro as usize].tensors[tensor].clone(),
            Origin::Words(words) => bytes_from_words(graph.tensor(id).dtype, &words),
            Origin::Node { phase, node } => self.outputs[&(phase, node)].clone(),
        };
        graph.nodes[node].primitive.inputs().into_iter().map(|id| (id, bytes(id))).collect()
    }
}

#[test]
fn every_tile_of_a_step_of_a_gpt_follows_from_the_recorded_slices() {
    every_tile_follows(GPT);
}

#[test]
fn every_tile_of_a_step_of_a_llama_follows_from_the_recorded_slices() {
    every_tile_follows(LLAMA);
}

#[test]
fn every_tile_of_a_step_of_a_residual_network_follows_from_the_recorded_slices() {
    every_tile_follows(RESNET);
}

/// Moments are pooled, the update reads them and the running averages, and patches are digits; the labels that the loss does not
/// ignore are counted.
#[test]
fn every_tile_of_a_step_with_batch_normalisation_follows_from_the_recorded_slices() {
    for micro_batches in ["", ", micro_batches = 3"] {
        let batches = format!("micro_batch = 4{micro_batches}");
        let norm = ("classes = 4", "classes = 4, norm = \"batch\", convolution = 2");
        let job = edited(RESNET, &[norm, ("micro_batch = 4, micro_batches = 2", &batches)]);
        every_tile_follows(&format!("{job}loss = {{ ignore = 2 }}"));
    }
}

fn every_tile_follows(job: &str) {
    let step = Step::run(job);
    assert_eq!(positions(&step.program), step.order, "traces list nodes in the session's order");
    let mut several = 0;
    for &(phase, index) in &step.order {
        let graph = graph_of(&step.program, phase);
        let node = &graph.nodes[index];
        let ty = graph.tensor(node.output);
        let bytes = ty.bytes();
        let (tensors, output) = (step.inputs(phase, index), &step.outputs[&(phase, index)]);
        several += usize::from(tile_count(bytes) > 1);
        for tile in 0..tile_count(bytes) {
            let elements = tile_elements(ty, tile);
            let (words, touched) = recorded_from_tensors(graph, index, elements.clone(), &tensors).unwrap();
            let right = &output[tile_range(bytes, tile)];
            assert_eq!(tile_bytes(ty, tile, &words), right, "{phase:?} {}", node.operator);
            let verified = |without: Option<&(TensorId, usize)>| {
                let mut slices = Slices::default();
                for place in touched.iter().filter(|place| Some(*place) != without) {
                    let range = piece_range(graph.tensor(place.0).bytes(), SLICE_BYTES, place.1);
                    slices.insert(place.0, place.1, tensors[&place.0][range].to_vec());
                }
                slices
            };
            let all = verified(None);
            assert_eq!(expected(graph, index, elements.clone(), &all).as_ref(), Ok(&words));
            // A constant reads nothing.
            let missing = expected(graph, index, elements.clone(), &verified(touched.last()));
            let is_missed = matches!(missing, Err(LeafError::Missing { .. }));
            assert_eq!(is_missed, !tensors.is_empty(), "{}: {missing:?}", node.operator);
            // One element needs some of these slices, and the checker says which.
            let middle = elements.start + elements.len() / 2;
            let one = recorded_from_slices(graph, index, middle..middle + 1, &all).unwrap();
            assert_eq!(one.0, [words[middle - elements.start]]);
            assert!(one.1.is_subset(&touched));
        }
    }
    assert!(several > 10, "some tensors must have more than one tile, {several} have");
}

#[test]
fn committed_inputs_that_no_honest_step_has_are_errors() {
    let step = Step::run(GPT);
    let graph = &step.program.micro;
    let find = |wanted: fn(&Primitive) -> bool| {
        graph.nodes.iter().position(|n| wanted(&n.primitive)).expect("the graph has such a node")
    };
    let lie = |node: usize, input: usize, word: u32| {
        let tensor = graph.nodes[node].primitive.inputs()[input];
        let mut tensors = step.inputs(Phase::Micro(1), node);
        let bytes = tensors.get_mut(&tensor).unwrap();
        bytes.chunks_exact_mut(4).for_each(|element| element.copy_from_slice(&word.to_le_bytes()));
        let ty = graph.tensor(graph.nodes[node].output);
        recorded_from_tensors(graph, node, tile_elements(ty, 0), &tensors).map(|(words, _)| words)
    };
    let quantise = find(|p| matches!(p, Primitive::Quantise { .. }));
    let gather = find(|p| matches!(p, Primitive::Gather { .. }));
    let offsets = find(|p| matches!(p, Primitive::GroupOffsets { .. }));
    let order = find(|p| matches!(p, Primitive::GroupOrder { .. }));
    let sum = find(|p| matches!(p, Primitive::SegmentSum { .. }));
    let product = find(|p| matches!(p, Primitive::Product { .. }));
    for (node, input, word) in [
        (quantise, 1, 1),
        (quantise, 0, f32::INFINITY.to_bits()),
        (gather, 1, 70),
        (gather, 1, u32::MAX),
        (offsets, 0, u32::MAX),
        (order, 0, 70),
    ] {
        let outcome = lie(node, input, word);
        let operator = &graph.nodes[node].operator;
        assert_eq!(outcome, Err(LeafError::Domain { operator: operator.clone() }), "{word:#x}");
    }
    // A permutation that leaves the tensor, and offsets that run backwards: an empty sum.
    assert!(matches!(lie(sum, 1, u32::MAX), Err(LeafError::Outside { .. })));
    assert!(lie(sum, 2, 5).unwrap().iter().all(|&word| word == 0));
    // Absmaxes that mark a group, sign bit included, give NaN.
    let marked = lie(product, 1, u32::MAX).unwrap();
    assert!(marked.iter().all(|&word| word == 0x7fc0_0000));
}
