//! The CPU engine against the scalar reference: every node of whole steps, bit for bit.

use std::sync::Arc;

use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::philox::philox4x32_10;
use tiebreak_contract::program::builder::Builder;
use tiebreak_contract::program::graph::{Graph, Node};
use tiebreak_contract::program::init;
use tiebreak_contract::program::models::{
    Block, Blocks, Gelu, Gpt, Input, Llama, Lora, Mlp, Model, Norm, Order, Resnet, Stem,
};
use tiebreak_contract::program::operators::{ConvVersion, conv2d};
use tiebreak_contract::program::optimizer::Optimizer;
use tiebreak_contract::program::phase::Phase;
use tiebreak_contract::program::products::{ProductClass, ProductDigits, ProductTable};
use tiebreak_contract::program::step::{MicroBatch, Program, StepSpec};
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::recompute;
use tiebreak_engine::reference::Reference;
use tiebreak_engine::session::{Session, StepObserver, StepScalars};
use tiebreak_engine::{Engine, EngineError, Inputs, Observer, outputs_of};

/// Keeps every node's output.
#[derive(Default)]
struct Trace {
    phase: Option<Phase>,
    nodes: Vec<(Phase, usize, String, Vec<u8>)>,
}

impl StepObserver for Trace {
    fn phase(&mut self, phase: Phase, _: &Graph) -> Option<&mut dyn Observer> {
        self.phase = Some(phase);
        Some(self)
    }
}

impl Observer for Trace {
    fn node(
        &mut self,
        index: usize,
        node: &Node,
        bytes: &[u8],
        _: &mut dyn Inputs,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        let name = format!("{} {}", node.operator, node.primitive.name());
        self.nodes.push((self.phase.unwrap(), index, name, bytes.to_vec()));
        Ok(None)
    }
}

fn batches(program: &Program, step: u32) -> Vec<MicroBatch> {
    (0..program.micro_batches)
        .map(|micro| {
            let tensors = program.batch.iter().map(|t| {
                let len = t.shape.iter().product::<u32>();
                let word = |i: u32| philox4x32_10([step, micro], [i, 1, 2, 3])[0];
                (0..len).flat_map(|i| (word(i) % t.below).to_le_bytes()).collect()
            });
            MicroBatch { tensors: tensors.collect() }
        })
        .collect()
}

/// Trains `steps` steps from `state`, keeping every node, then the state.
fn trained(
    engine: &mut dyn Engine,
    program: &Arc<Program>,
    state: &[Vec<u8>],
    steps: u32,
) -> (Trace, Vec<Vec<u8>>) {
    let mut session = Session::new(engine, program.clone()).unwrap();
    session.load(state).unwrap();
    let mut trace = Trace::default();
    for step in 1..=steps {
        let scalars = StepScalars { step, seed: [1, 2], learning_rate: 1e-2f32.to_bits() };
        session.step(scalars, &batches(program, step), &mut trace, |_, _, _| Ok(())).unwrap();
    }
    let mut end = Vec::new();
    session.visit_state(|_, bytes| end.push(bytes.to_vec())).unwrap();
    (trace, end)
}

fn compare(spec: StepSpec, spoil: impl Fn(usize, &mut [u32])) {
    let program = Arc::new(Program::new(spec));
    let mut state = init::state(&program, [3, 4]);
    for (i, tensor) in state.iter_mut().enumerate() {
        spoil(i, tensor);
    }
    let state: Vec<Vec<u8>> =
        state.iter().map(|t| t.iter().flat_map(|w| w.to_le_bytes()).collect()).collect();
    let (expected, expected_state) = trained(&mut Reference, &program, &state, 2);
    for (threads, recomputes) in [(1, false), (2, false), (2, true)] {
        let mut engine = recompute::engine(Cpu::new(threads).unwrap(), recomputes);
        let (trace, end) = trained(&mut *engine, &program, &state, 2);
        assert_eq!(trace.nodes.len(), expected.nodes.len());
        for (have, want) in trace.nodes.iter().zip(&expected.nodes) {
            let (phase, index, name, _) = want;
            assert!(
                have == want,
                "{threads} threads, recomputes: {recomputes}: {phase:?} node {index} ({name}) differs"
            );
        }
        assert_eq!(end, expected_state);
    }
}

fn spec(model: Model, products: ProductTable) -> StepSpec {
    let adamw = Optimizer::Adamw { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 };
    StepSpec {
        loss: Default::default(),
        model,
        optimizer: adamw,
        clip_norm: Some(1.0),
        micro_batch: 2,
        micro_batches: 3,
        products,
    }
}

fn gpt(gelu: Gelu, tied: bool) -> Model {
    Model::Gpt(Gpt {
        vocabulary: 61,
        context: 9,
        layers: 2,
        heads: 2,
        width: 20,
        gelu,
        dropout: 0.1,
        tied,
        init_std: 0.05,
        ..Gpt::default()
    })
}

#[test]
fn llama_steps_match_the_reference() {
    for (kv_heads, digits) in
        [(2, ProductTable::two_and_three()), (4, ProductTable::uniform(3)), (1, ProductTable::uniform(2))]
    {
        let more = kv_heads == 1;
        let llama = Llama {
            vocabulary: 61,
            context: 9,
            layers: 2,
            heads: 4,
            kv_heads,
            width: 24,
            hidden: 17,
            rope_theta: 10_000.0,
            norm_epsilon: 1e-5,
            tied: kv_heads == 2,
            init_std: 0.05,
            head_width: more.then_some(10),
            qkv_bias: more,
            out_bias: more,
            mlp_bias: more,
            qk_norm: more,
            ..Llama::default()
        };
        compare(spec(Model::Llama(llama), digits), |_, _| {});
    }
}

#[test]
fn gpt_steps_match_the_reference() {
    compare(spec(gpt(Gelu::Tanh, true), ProductTable::two_and_three()), |_, _| {});
    compare(spec(gpt(Gelu::Erf, false), ProductTable::uniform(3)), |_, _| {});
}

#[test]
fn steps_of_adapters_match_the_reference() {
    let lora = |dropout, target: &str| Lora { rank: 5, alpha: 8.0, dropout, targets: vec![target.into()] };
    let Model::Gpt(of_gpt) = gpt(Gelu::Tanh, true) else { unreachable!("it is a GPT") };
    let of_gpt = Gpt { lora: Some(lora(0.2, "all-linear")), ..of_gpt };
    compare(spec(Model::Gpt(of_gpt), ProductTable::two_and_three()), |_, _| {});
    let (width, hidden) = (24, 17);
    let lora = Some(lora(0.0, "*_proj"));
    let llama =
        Llama { context: 9, layers: 2, heads: 4, kv_heads: 2, width, hidden, lora, ..Llama::default() };
    compare(spec(Model::Llama(llama), ProductTable::uniform(2)), |_, _| {});
}

#[test]
fn nasty_parameters_match_the_reference() {
    for digits in 1..=4 {
        compare(spec(gpt(Gelu::Tanh, false), ProductTable::uniform(digits)), |i, tensor| {
            for (j, word) in tensor.iter_mut().enumerate() {
                match (i * 7 + j) % 97 {
                    0 => *word = 1,                          // the least subnormal
                    1 => *word = 0x807f_ffff,                // the greatest negative subnormal
                    2 => *word = 0x8000_0000,                // -0
                    3 if digits == 2 => *word = 0x7f00_0000, // 2^127
                    4 if digits == 3 && i % 5 == 0 => *word = 0x7f80_0000,
                    _ => {}
                }
            }
        });
    }
}

#[test]
fn a_residual_network_matches_the_reference() {
    for convolution in [ConvVersion::V1, ConvVersion::V2] {
        let stages = vec![5, 8];
        let model = Model::Resnet(Resnet {
            height: 9,
            width: 6,
            planes: 3,
            stages,
            blocks: Blocks::Same(2),
            block: Block::Basic,
            groups: 1,
            width_per_group: 64,
            order: Order::Pre,
            stem: Stem::Cifar,
            classes: 10,
            norm: Norm::Layer,
            norm_epsilon: 1e-5,
            norm_momentum: 0.1,
            convolution,
            normalize: None,
            image_mean: Vec::new(),
            image_std: Vec::new(),
            input: Input::Pixels,
        });
        compare(spec(model, ProductTable::two_and_three()), |_, _| {});
    }
}

#[test]
fn blocks_and_sgd_match_the_reference() {
    let mut products = ProductTable::uniform(2);
    for class in ProductClass::ALL {
        products.set(class, ProductDigits { digits_a: 3, digits_b: 2, block: 64 });
    }
    let model = Model::Mlp(Mlp {
        inputs: 150,
        hidden: vec![70, 33],
        classes: 10,
        dropout: 0.2,
        normalize: None,
        image_mean: Vec::new(),
        image_std: Vec::new(),
        input: Input::Pixels,
    });
    let mut spec = spec(model, products);
    spec.optimizer = Optimizer::Sgd { momentum: 0.9, weight_decay: 0.01 };
    spec.clip_norm = None;
    spec.micro_batches = 4;
    compare(spec, |_, _| {});
}

/// Kernels' gradients over so many pixels that tasks add parts of them, with integers of 16 bits and of more.
#[test]
fn convolutions_over_thousands_of_pixels_match_the_reference() {
    for (digits_a, digits_b) in [(2, 2), (3, 2), (2, 3), (4, 4)] {
        let mut products = ProductTable::two_and_three();
        for class in [ProductClass::Conv, ProductClass::ConvDx, ProductClass::ConvDw] {
            products.set(class, ProductDigits { digits_a, digits_b, block: 0 });
        }
        let mut b = Builder::new(products);
        let (shape_x, shape_w) = ([2, 47, 45, 3], [5, 3, 3, 3]);
        let x = b.input("x", DType::F32, &shape_x);
        let weight = b.input("weight", DType::F32, &shape_w);
        let y = conv2d(&mut b, x, weight, ConvVersion::V2, 1, 1).unwrap();
        let gradients = b.backward(y, y);
        for (name, id) in [("y", y), ("dx", gradients[&x]), ("dw", gradients[&weight])] {
            b.output(name, id);
        }
        let graph = Arc::new(b.finish());
        let inputs = [&shape_x, &shape_w].map(|shape| {
            let words = |i: u32| philox4x32_10([i, 5], [shape[3], 0, 0, 0])[0] & 0x807f_ffff | 0x3f00_0000;
            (0..shape.iter().product()).flat_map(|i| words(i).to_le_bytes()).collect::<Vec<u8>>()
        });
        let wanted = outputs_of(&mut Reference, &graph, &inputs).unwrap();
        assert!(
            outputs_of(&mut Cpu::new(3).unwrap(), &graph, &inputs).unwrap() == wanted,
            "{digits_a} {digits_b}"
        );
    }
}
