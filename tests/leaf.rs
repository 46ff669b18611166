//! The leaf checker against the reference engine: every tile of every node of a small step, from recorded tiles only.

use std::collections::BTreeMap;
use std::sync::Arc;

use tiebreak::arith::DType;
use tiebreak::dispute::leaf::{LeafError, Recorder, VerifiedTiles, recompute, tile_bytes, tile_count};
use tiebreak::dispute::position::{Origin, Position, StepLayout};
use tiebreak::engine::reference::{Reference, bytes_from_words};
use tiebreak::engine::session::{MicroBatch, Phase, Session, StepObserver, StepScalars};
use tiebreak::engine::{EngineError, Observer};
use tiebreak::program::graph::{Graph, Node, Primitive, TensorId};
use tiebreak::program::init;
use tiebreak::program::models::{Gelu, Gpt, Model};
use tiebreak::program::optimizer::Optimizer;
use tiebreak::program::products::ProductTable;
use tiebreak::program::step::{Program, StepSpec};

const SCALARS: StepScalars = StepScalars { step: 3, seed: [7, 9], learning_rate: 0x3a83_126f };

fn program() -> Program {
    let model = Model::Gpt(Gpt {
        vocabulary: 70,
        context: 12,
        layers: 1,
        heads: 2,
        width: 24,
        gelu: Gelu::Tanh,
        dropout: 0.1,
        tied: true,
        init_std: 0.02,
    });
    let optimizer = Optimizer::Adamw { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 };
    let products = ProductTable::preset();
    Program::new(StepSpec {
        model,
        optimizer,
        clip_norm: Some(1.0),
        micro_batch: 4,
        micro_batches: 3,
        products,
    })
}

/// A step's honest values: what is committed before it, and every node's output.
struct Step {
    state: Vec<Vec<u8>>,
    batches: Vec<MicroBatch>,
    phases: Vec<Phase>,
    outputs: BTreeMap<(Phase, TensorId), Vec<u8>>,
}

impl StepObserver for Step {
    fn phase(&mut self, phase: Phase, _: &Graph) -> Option<&mut dyn Observer> {
        self.phases.push(phase);
        Some(self)
    }
}

impl Observer for Step {
    fn node(&mut self, _: usize, node: &Node, bytes: &[u8]) -> Result<Option<Vec<u8>>, EngineError> {
        let phase = *self.phases.last().expect("a phase was announced");
        self.outputs.insert((phase, node.output), bytes.to_vec());
        Ok(None)
    }
}

impl Step {
    fn run(program: &Program) -> Step {
        let state: Vec<Vec<u8>> =
            init::state(program, SCALARS.seed).iter().map(|t| bytes_from_words(DType::F32, t)).collect();
        let batch = |m: u32| {
            let words = |salt: u32| (0..48).map(|i| (i * i * 31 + m + salt) % 70).collect::<Vec<u32>>();
            MicroBatch {
                tensors: vec![
                    bytes_from_words(DType::U32, &words(0)),
                    bytes_from_words(DType::U32, &words(9)),
                ],
            }
        };
        let batches: Vec<MicroBatch> = (0..program.spec.micro_batches).map(batch).collect();
        let mut step = Step {
            state: state.clone(),
            batches: batches.clone(),
            phases: Vec::new(),
            outputs: BTreeMap::new(),
        };
        let mut engine = Reference;
        let mut session = Session::new(&mut engine, Arc::new(program.clone())).unwrap();
        session.load(&state).unwrap();
        session.step(SCALARS, &batches, &mut step, |_, _, _| Ok(())).unwrap();
        step
    }

    /// The bytes of everything that a node reads, each from what commits it.
    fn inputs(&self, layout: &StepLayout, position: Position) -> BTreeMap<TensorId, Vec<u8>> {
        let graph = layout.graph(position.phase);
        let node = layout.node(position).expect("the step has the node");
        let bytes = |tensor| match layout.origin(position.phase, tensor).expect("every input has an origin") {
            Origin::State(index) => self.state[index].clone(),
            Origin::Batch { micro_batch, tensor } => {
                self.batches[micro_batch as usize].tensors[tensor].clone()
            }
            Origin::Scalar => {
                let words = layout.scalar(position.phase, tensor, SCALARS).expect("scalars are known");
                bytes_from_words(graph.tensor(tensor).dtype, &words)
            }
            Origin::Node(from) => {
                self.outputs[&(from.phase, layout.node(from).expect("it is a node").output)].clone()
            }
        };
        node.primitive.inputs().into_iter().map(|tensor| (tensor, bytes(tensor))).collect()
    }
}

fn find(graph: &Graph, wanted: impl Fn(&Primitive) -> bool) -> &Node {
    graph.nodes.iter().find(|n| wanted(&n.primitive)).expect("the graph has such a node")
}

#[test]
fn every_tile_of_a_step_follows_from_the_recorded_tiles() {
    let program = program();
    let (layout, step) = (StepLayout::new(&program), Step::run(&program));
    assert_eq!(layout.phases().collect::<Vec<_>>(), step.phases, "the layout is the session's order");
    assert_eq!(layout.leaves(), step.outputs.len() as u64);
    assert_eq!(layout.position(layout.leaves()), None);
    let mut several = 0;
    for leaf in 0..layout.leaves() {
        let position = layout.position(leaf).unwrap();
        assert_eq!(layout.leaf(position), Some(leaf));
        let (graph, node) = (layout.graph(position.phase), layout.node(position).unwrap());
        let tensors = step.inputs(&layout, position);
        let (ty, output) = (graph.tensor(node.output), &step.outputs[&(position.phase, node.output)]);
        several += u32::from(tile_count(ty) > 1);
        for tile in 0..tile_count(ty) {
            let mut recorder = Recorder::new(graph, &tensors);
            let right = recompute(graph, node, tile, &mut recorder).unwrap();
            assert_eq!(right, output[tile_bytes(ty, tile).unwrap()], "{position:?} {}", node.operator);
            let needed = recorder.into_tiles();
            let tiles = |without: Option<usize>| {
                let mut verified = VerifiedTiles::default();
                for (i, &(tensor, tile)) in needed.iter().enumerate() {
                    let ty = graph.tensor(tensor);
                    let bytes = tensors[&tensor][tile_bytes(ty, tile).unwrap()].to_vec();
                    if Some(i) != without {
                        verified.insert(tensor, ty, tile, bytes).unwrap();
                    }
                }
                verified
            };
            assert_eq!(recompute(graph, node, tile, &mut tiles(None)).unwrap(), right);
            let missing = recompute(graph, node, tile, &mut tiles(Some(needed.len() - 1)));
            assert!(matches!(missing, Err(LeafError::Missing { .. })), "{}: {missing:?}", node.operator);
        }
    }
    assert!(several > 10, "some tensors must have more than one tile, {several} have");
}

#[test]
fn every_state_tensor_has_the_node_that_defines_it() {
    let program = program();
    let (layout, state) = (StepLayout::new(&program), program.state());
    for (i, tensor) in state.iter().enumerate() {
        let node = layout.node(layout.state_output(i).unwrap()).unwrap();
        assert_eq!(program.update.output(&tensor.name), Some(node.output));
    }
    assert_eq!(layout.state_output(state.len()), None);
}

#[test]
fn inputs_outside_an_operators_domain_are_named() {
    let program = program();
    let (layout, step) = (StepLayout::new(&program), Step::run(&program));
    let graph = &program.micro;
    let lie = |node: &Node, tensor: TensorId, word: u32| {
        let node_index = graph.nodes.iter().position(|n| n == node).unwrap();
        let mut tensors = step.inputs(&layout, Position { phase: Phase::Micro(1), node: node_index });
        let bytes = tensors.get_mut(&tensor).unwrap();
        bytes.chunks_exact_mut(4).for_each(|element| element.copy_from_slice(&word.to_le_bytes()));
        recompute(graph, node, 0, &mut Recorder::new(graph, &tensors))
    };
    let quantise = find(graph, |p| matches!(p, Primitive::Quantise { .. }));
    let gather = find(graph, |p| matches!(p, Primitive::Gather { .. }));
    let offsets = find(graph, |p| matches!(p, Primitive::GroupOffsets { .. }));
    let sum = find(graph, |p| matches!(p, Primitive::SegmentSum { .. }));
    let input = |node: &Node, i: usize| node.primitive.inputs()[i];
    for (node, tensor, word) in [
        (quantise, input(quantise, 1), 1),
        (gather, input(gather, 1), 70),
        (gather, input(gather, 1), u32::MAX),
        (offsets, input(offsets, 0), u32::MAX),
    ] {
        let outcome = lie(node, tensor, word);
        assert!(matches!(outcome, Err(LeafError::Domain { .. })), "{}: {outcome:?}", node.operator);
    }
    // A sum over an order that leaves the tensor.
    assert!(matches!(lie(sum, input(sum, 1), u32::MAX), Err(LeafError::OutOfRange { .. })));
}

#[test]
fn a_tile_past_the_end_or_of_another_length_is_refused() {
    let program = program();
    let (graph, tensors) = (&program.micro, BTreeMap::new());
    let node = &graph.nodes[0];
    let ty = graph.tensor(node.output);
    let past = tile_count(ty);
    let outcome = recompute(graph, node, past, &mut Recorder::new(graph, &tensors));
    assert_eq!(outcome, Err(LeafError::NoTile { tensor: node.output, tile: past }));
    let mut verified = VerifiedTiles::default();
    assert!(matches!(verified.insert(node.output, ty, 0, vec![0; 3]), Err(LeafError::TileLength { .. })));
    assert!(matches!(verified.insert(node.output, ty, past, vec![]), Err(LeafError::NoTile { .. })));
}
