//! Programs as files: an encoded program decodes to the same program, and a program that no engine could run is refused.

use std::sync::Arc;

use proptest::prelude::*;
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::philox::philox4x32_10;
use tiebreak_contract::program::decoding::decode;
use tiebreak_contract::program::encoding::encode;
use tiebreak_contract::program::expr::{Instr, Reg};
use tiebreak_contract::program::graph::{Primitive, TensorId, TensorType};
use tiebreak_contract::program::im2col::DigitPatches;
use tiebreak_contract::program::init;
use tiebreak_contract::program::models::{
    Block, Blocks, Gelu, Gpt, Init, Input, Mlp, Model, Norm, Order, Resnet, Stem,
};
use tiebreak_contract::program::operators::{ConvVersion, LossRule};
use tiebreak_contract::program::optimizer::Optimizer;
use tiebreak_contract::program::products::{ProductClass, ProductDigits, ProductTable};
use tiebreak_contract::program::step::{MicroBatch, Program, StepSpec};
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::session::{Session, StepScalars, Unobserved};
use tiebreak_record::rounding::thresholds::Rounding;

fn gpt(dropout: f32, tied: bool) -> Model {
    let gelu = if tied { Gelu::Tanh } else { Gelu::Erf };
    Model::Gpt(Gpt {
        vocabulary: 19,
        context: 5,
        layers: 1,
        heads: 2,
        width: 8,
        gelu,
        dropout,
        tied,
        ..Gpt::default()
    })
}

fn mlp() -> Model {
    Model::Mlp(Mlp {
        inputs: 70,
        hidden: vec![9],
        classes: 4,
        dropout: 0.25,
        normalize: None,
        image_mean: Vec::new(),
        image_std: Vec::new(),
        input: Input::Pixels,
    })
}

fn resnet(norm: Norm) -> Model {
    Model::Resnet(Resnet {
        height: 6,
        width: 5,
        planes: 3,
        stages: vec![4, 6],
        blocks: Blocks::Same(2),
        block: Block::Basic,
        groups: 1,
        width_per_group: 64,
        order: Order::Pre,
        stem: Stem::Cifar,
        classes: 3,
        norm,
        norm_epsilon: 1e-5,
        norm_momentum: 0.1,
        convolution: if norm == Norm::Layer { ConvVersion::V1 } else { ConvVersion::V2 },
        normalize: None,
        image_mean: Vec::new(),
        image_std: Vec::new(),
        input: Input::Pixels,
    })
}

/// A network of this kind with small numbers, from its table in a job.
fn model(table: &str) -> Model {
    toml::from_str(table).expect(table)
}

/// torchvision's form with bottlenecks.
const BOTTLENECKS: &str =
    "kind = 'resnet'\nheight = 9\nwidth = 7\nplanes = 1\nstages = [2, 3]\nblocks = [1, 2]\nclasses = 3
norm = 'batch'\nblock = 'bottleneck'\norder = 'post'\nstem = 'imagenet'";
const LLAMA: &str = "kind = 'llama'\nvocabulary = 19\ncontext = 5\nlayers = 1\nheads = 4\nkv_heads = 2\nwidth = 136\nhidden = 6\nhead_width = 36\nqkv_bias = true\nmlp_bias = true\nqk_norm = true";
const ADAPTED: &str = "kind = 'llama'\ncontext = 5\nlayers = 2\nheads = 2\nkv_heads = 1\nwidth = 8\nhidden = 6\nlora = { rank = 2, alpha = 4.0, targets = ['self_attn.*', '0.mlp.up_proj'] }";
const VGG: &str = "kind = 'vgg11'\nheight = 32\nwidth = 33\nplanes = 1\nchannels = [1, 1, 2, 1, 2, 1, 2, 2]\nclassifier = 3\nclasses = 3";

fn adamw(weight_decay: f32) -> Optimizer {
    Optimizer::Adamw { beta1: 0.5, beta2: 0.95, epsilon: 1.0, weight_decay }
}

fn sgd(weight_decay: f32) -> Optimizer {
    Optimizer::Sgd { momentum: 0.9, weight_decay }
}

/// Products on a grid of so many bits.
fn logged(bits: u8) -> ProductTable {
    let mut table = ProductTable::logged_preset();
    Rounding { bits: Some(bits), ..Rounding::default() }.apply(&mut table);
    table
}

fn spec(model: Model, optimizer: Optimizer, products: ProductTable) -> StepSpec {
    StepSpec {
        loss: Default::default(),
        model,
        optimizer,
        clip_norm: Some(1.0),
        micro_batch: 2,
        micro_batches: 3,
        products,
    }
}

/// Every model kind, optimizer and profile.
fn programs() -> Vec<Program> {
    let mut blocks = ProductTable::uniform(3);
    blocks.set(ProductClass::Linear, ProductDigits { digits_a: 2, digits_b: 1, block: 64 });
    let specs = [
        spec(gpt(0.1, true), adamw(0.1), ProductTable::two_and_three()),
        spec(gpt(0.0, false), adamw(0.0), logged(16)),
        spec(gpt(0.0, true), sgd(0.1), logged(27)),
        spec(gpt(0.5, true), sgd(0.0), logged(32)),
        StepSpec { clip_norm: None, ..spec(mlp(), adamw(0.1), blocks) },
        spec(mlp(), sgd(0.1), logged(16)),
        spec(resnet(Norm::Layer), sgd(0.1), ProductTable::uniform(4)),
        spec(resnet(Norm::Layer), adamw(0.1), logged(16)),
        spec(resnet(Norm::Batch), sgd(0.1), ProductTable::two_and_three()),
        StepSpec { micro_batches: 1, ..spec(resnet(Norm::Batch), adamw(0.1), logged(16)) },
        StepSpec {
            loss: LossRule { smoothing: 0.1, ignore: Some(2) },
            ..spec(model(BOTTLENECKS), sgd(0.1), ProductTable::two_and_three())
        },
        spec(model(VGG), sgd(0.1), ProductTable::two_and_three()),
        // Heads of 34 channels: their words take two bodies.
        spec(model(LLAMA), adamw(0.1), logged(16)),
        spec(model(ADAPTED), adamw(0.1), ProductTable::two_and_three()),
    ];
    let frozen =
        Program::with_frozen(spec(gpt(0.1, false), adamw(0.1), ProductTable::two_and_three()), |name| {
            name.starts_with("block0")
        });
    specs.into_iter().map(Program::new).chain([frozen]).collect()
}

fn mlp_program() -> Program {
    Program::new(spec(mlp(), adamw(0.1), ProductTable::two_and_three()))
}

/// The state after two steps on numbers that follow from their indices.
fn trained(program: Program) -> Vec<Vec<u8>> {
    let program = Arc::new(program);
    let mut cpu = Cpu::new(2).unwrap();
    let mut session = Session::new(&mut cpu, program.clone()).unwrap();
    let bytes = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
    session.load_each(|i| bytes(&init::state_tensor(&program, [1, 2], i))).unwrap();
    for step in 1..=2 {
        let batch: Vec<MicroBatch> = (0..program.micro_batches)
            .map(|micro| {
                let tensors = program.batch.iter().map(|t| {
                    let len = t.shape.iter().product::<u32>();
                    bytes(
                        &(0..len)
                            .map(|i| philox4x32_10([step, micro], [i, 0, 0, 0])[0] % t.below)
                            .collect::<Vec<_>>(),
                    )
                });
                MicroBatch { tensors: tensors.collect() }
            })
            .collect();
        let scalars = StepScalars { step, seed: [3, 4], learning_rate: 1e-2f32.to_bits() };
        session.step(scalars, &batch, &mut Unobserved, |_, _, _| Ok(())).unwrap();
    }
    session.download_state().unwrap()
}

#[test]
fn every_program_is_decoded_to_itself_and_trains_to_the_same_state() {
    for program in programs() {
        let bytes = encode(&program);
        let decoded = decode(&bytes).unwrap();
        assert_eq!(encode(&decoded), bytes);
        assert_eq!(decoded, program);
        assert_eq!(trained(decoded), trained(program));
    }
}

#[test]
fn frozen_parameters_stay_and_have_no_gradient() {
    let program = programs().pop().unwrap();
    let frozen: Vec<&str> = program.parameters.iter().filter(|p| p.frozen).map(|p| &*p.name).collect();
    assert!(frozen.len() > 5 && frozen.len() < program.parameters.len());
    assert!(program.gradients().iter().all(|t| !t.name.contains("block0")));
    let (before, after) = (init::state(&program, [1, 2]), trained(program.clone()));
    for ((tensor, kept), (words, bytes)) in
        program.state().iter().zip(program.kept()).zip(before.iter().zip(&after))
    {
        let words: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        assert_eq!(words == *bytes, kept, "{}", tensor.name);
    }
}

#[test]
fn beside_adapters_no_other_parameter_has_a_gradient_or_a_slot() {
    let program = Program::new(spec(model(ADAPTED), adamw(0.1), ProductTable::two_and_three()));
    let is_adapter = |name: &str| name.ends_with(".lora_a") || name.ends_with(".lora_b");
    let trained = program.parameters.iter().filter(|p| !p.frozen).map(|p| p.name.as_str());
    let adapters = program.parameters.iter().map(|p| p.name.as_str()).filter(|name| is_adapter(name));
    assert!(trained.eq(adapters.clone()));
    assert_eq!(adapters.count(), 2 * (2 * 4 + 1));
    let state = program.state();
    let slots = state.iter().filter(|t| !t.name.starts_with("param/"));
    assert_eq!(slots.clone().count(), 2 * 18);
    assert!(slots.chain(&program.gradients()).all(|t| is_adapter(&t.name) || t.name == "loss"));
    // The graph computes no gradient of a frozen weight: a linear layer has two products, or one at the bottom of the model.
    let weights = program.micro.nodes.iter().filter(|n| n.operator == "block0.gate.backward");
    assert_eq!(weights.filter(|n| n.primitive.name() == "product.v1").count(), 1);
}

/// The first node of a kind.
fn first(program: &mut Program, wanted: fn(&Primitive) -> bool) -> &mut Primitive {
    let node = program.micro.nodes.iter_mut().find(|node| wanted(&node.primitive));
    &mut node.expect("the program has such a node").primitive
}

/// The error that refuses a changed program.
fn refused(change: impl FnOnce(&mut Program)) -> String {
    let mut program = mlp_program();
    change(&mut program);
    decode(&encode(&program)).unwrap_err().to_string()
}

macro_rules! primitive {
    ($program:ident, $pattern:pat => $change:expr) => {{
        let $pattern = first($program, |p| {
            #[allow(unused_variables)]
            let matches = matches!(p, $pattern);
            matches
        }) else {
            unreachable!("it is of this kind")
        };
        $change
    }};
}

#[test]
fn malformed_programs_are_refused_with_their_error() {
    type Change = fn(&mut Program);
    let cases: &[(&str, Change)] = &[
        ("a batch has 1 to 16777216 samples", |p| p.micro_batch = 0),
        ("a step has 1 to 65536 micro-batches", |p| p.micro_batches = u32::MAX),
        ("a batch has 1 to 4294967295 labels", |p| p.labels_per_sample = u32::MAX),
        ("the bias corrections are none, or two", |p| p.corrections = vec![f32::NAN.to_bits(); 2]),
        ("batch tensor pixels: its first dimension", |p| p.batch[0].shape[0] = 3),
        ("batch tensor labels: it is neither U32", |p| p.batch[1].below = 0),
        ("two tensors are named param/", |p| p.parameters[1].name = p.parameters[0].name.clone()),
        ("its standard deviation", |p| p.parameters[0].init = Init::Normal { std: f32::INFINITY }),
        ("its standard deviation", |p| p.parameters[0].init = Init::Uniform { bound: -1.0 }),
        ("no parameter is trained", |p| p.parameters.iter_mut().for_each(|p| p.frozen = true)),
        ("grad cannot be the name of a slot", |p| p.slots[0] = "grad".into()),
        ("a name has 0 bytes", |p| p.slots[0] = String::new()),
        ("not a printing one of ASCII", |p| p.micro.nodes[0].operator = "a\u{1b}[31m".into()),
        ("the shape [65536, 65536] is not of", |p| {
            let shape = vec![1 << 16, 1 << 16];
            p.micro.tensors.push(TensorType { dtype: DType::F32, shape });
        }),
        ("tensor 1 is made twice", |p| p.micro.inputs[0].tensor = TensorId(1)),
        ("there is no tensor 4294967295", |p| p.micro.nodes[0].output = TensorId(u32::MAX)),
        ("is read before it is made", |p| {
            let last = p.micro.nodes.len() - 1;
            p.micro.nodes.swap(0, last);
        }),
        ("no output needs", |p| {
            let mut node = p.micro.nodes[0].clone();
            node.output = TensorId(p.micro.tensors.len() as u32);
            let ty = p.micro.tensor(p.micro.nodes[0].output).clone();
            p.micro.tensors.push(ty);
            p.micro.nodes.push(node);
        }),
        ("accumulate graph: it is not the sums", |p| p.accumulate.nodes[0].operator = "other".into()),
        ("micro graph: port param/", |p| p.micro.inputs.swap(0, 1)),
        ("update graph: port", |p| {
            let last = p.update.outputs.len() - 1;
            p.update.outputs.swap(0, last);
        }),
        ("no node makes it, or it is another output", |p| {
            p.micro.outputs[0].tensor = p.micro.inputs[0].tensor
        }),
        ("a view of tensor", |p| primitive!(p, Primitive::Map { inputs, .. } => inputs[0].offset = u32::MAX)),
        (
            "an input has other dimensions",
            |p| primitive!(p, Primitive::Map { inputs, .. } => inputs[0].dims[0] += 1),
        ),
        (
            "reads a register that is not there yet",
            |p| primitive!(p, Primitive::Map { body, .. } => body.code.push(Instr::FSqrt(Reg(200)))),
        ),
        (
            "reads input 9 of",
            |p| primitive!(p, Primitive::Map { body, .. } => body.code[0] = Instr::Input(9)),
        ),
        (
            "reads dimension 4",
            |p| primitive!(p, Primitive::Map { body, .. } => body.code.insert(0, Instr::Index(4))),
        ),
        (
            "1 to 128 instructions",
            |p| primitive!(p, Primitive::Map { body, .. } => body.code = vec![Instr::Input(0); 129]),
        ),
        (
            "the body is not what pixel.v1 means",
            |p| primitive!(p, Primitive::Map { body, .. } => body.code.push(Instr::FNeg(Reg(0)))),
        ),
        (
            "a body's name is of small letters",
            |p| primitive!(p, Primitive::Map { body, .. } => body.name = "pixel".into()),
        ),
        (
            "gather.v1 is the name of another kind of node",
            |p| primitive!(p, Primitive::Map { body, .. } => body.name = "gather.v1".into()),
        ),
        (
            "has numbers below 4, but the node allows only those below 3",
            |p| primitive!(p, Primitive::Gather { bound, .. } => *bound = 3),
        ),
        (
            "it reads beyond the end of its table",
            |p| primitive!(p, Primitive::Gather { stride_row, .. } => *stride_row = u32::MAX),
        ),
        (
            "its block is neither 0 nor a power of two",
            |p| primitive!(p, Primitive::TreeSum { block, .. } => *block = 3),
        ),
        ("17179869180 are wanted", |p| primitive!(p, Primitive::TreeSum { outer, .. } => *outer = u32::MAX)),
        ("at least 64", |p| primitive!(p, Primitive::Quantise { block, .. } => *block = 32)),
        ("1 to 4 digits", |p| primitive!(p, Primitive::Quantise { digits, .. } => *digits = 5)),
        (
            "its absmaxes are not those of its own scale groups",
            |p| primitive!(p, Primitive::Absmax { input, .. } => input.strides[0] = 1),
        ),
        (
            "is not quantised with these absmaxes",
            |p| primitive!(p, Primitive::Product { a, absmaxes_b, .. } => *a = *absmaxes_b),
        ),
    ];
    for (expected, change) in cases {
        let error = refused(change);
        assert!(error.contains(expected), "{expected:?} is due: {error}");
    }
    assert!(refused(|p| p.update.nodes.reverse()).starts_with("update graph: node 0 ("));
}

#[test]
fn convolutions_groupings_and_logged_products_are_checked() {
    let refused = |program: &Program, expected: &str| {
        let error = decode(&encode(program)).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected:?} is due: {error}");
    };
    let mut program = Program::new(spec(resnet(Norm::Layer), sgd(0.0), ProductTable::two_and_three()));
    let Primitive::Im2col { geometry, .. } = first(&mut program, |p| matches!(p, Primitive::Im2col { .. }))
    else {
        unreachable!("a residual network has convolutions")
    };
    geometry.stride = 0;
    refused(&program, "its stride is 0");
    // Convolutions of version 2.
    let digits = Program::new(spec(resnet(Norm::Batch), sgd(0.0), ProductTable::two_and_three()));
    let patches = |p: &mut Program, change: fn(&mut DigitPatches)| match first(p, |p| {
        matches!(p, Primitive::DigitPatches { .. })
    }) {
        Primitive::DigitPatches { patches, .. } => change(patches),
        _ => unreachable!("it is of this kind"),
    };
    for (change, expected) in [
        ((|patches| patches.geometry.stride = 0) as fn(&mut DigitPatches), "its stride is 0"),
        (|patches| patches.image = [7, 7], "no whole number of images or pixels"),
        (|patches| patches.image = [0, 5], "no whole number of images or pixels"),
        (|patches| patches.by_channel = true, "is wanted"),
        (|patches| patches.geometry.kernel = [4, 3], "is wanted"),
    ] {
        let mut program = digits.clone();
        patches(&mut program, change);
        refused(&program, expected);
    }
    let copies = |p: &Primitive| matches!(p, Primitive::Map { body, inputs, .. } if body.name == "copy.v1" && inputs[0].strides == [0, 1, 0, 0]);
    let mut program = digits.clone();
    let Primitive::Map { inputs, .. } = first(&mut program, copies) else {
        unreachable!("scales are copied")
    };
    inputs[0].strides = [0; 4];
    refused(&program, "is not quantised with these absmaxes and this block");
    let mut program = Program::new(spec(gpt(0.0, true), sgd(0.0), ProductTable::two_and_three()));
    let Primitive::GroupOrder { bound, .. } =
        first(&mut program, |p| matches!(p, Primitive::GroupOrder { .. }))
    else {
        unreachable!("a language model groups tokens")
    };
    *bound = 20;
    refused(&program, "its order and offsets are of two groupings");
    let wide = Model::Mlp(Mlp {
        inputs: 5000,
        hidden: vec![2],
        classes: 2,
        dropout: 0.0,
        normalize: None,
        image_mean: Vec::new(),
        image_std: Vec::new(),
        input: Input::Pixels,
    });
    let mut program = Program::new(spec(wide, sgd(0.0), ProductTable::two_and_three()));
    let Primitive::Absmax { block, .. } = first(&mut program, |p| matches!(p, Primitive::Absmax { .. }))
    else {
        unreachable!("a product has absmaxes")
    };
    *block = 0;
    refused(&program, "one output reads 5000 elements, at most 4096 are allowed");
    let exact = Program::new(spec(gpt(0.0, true), sgd(0.0), logged(16)));
    for (change, expected) in [
        ((|p| p.micro.logged[0].rule.bits = 17) as fn(&mut Program), "its grid is none of"),
        (|p| p.micro.logged[0].rule.floor = 5, "its nodes are not those of a logged product"),
        (|p| p.micro.logged[0].a.tensor = p.micro.inputs[0].tensor, "an operand is not made by to_bf16.v1"),
        (|p| p.micro.logged.swap(0, 1), "it is not in the order of the nodes"),
        (|p| drop(p.micro.logged.remove(0)), "rounds what is no logged product"),
        (|p| p.micro.logged[0].exact.clear(), "another number of digitised products"),
        (|p| p.micro.logged[0].absmaxes_a = p.micro.logged[0].absmaxes_b, "two of its nodes are exchanged"),
    ] {
        let mut program = exact.clone();
        change(&mut program);
        refused(&program, expected);
    }
}

#[test]
fn moments_are_pooled_and_named_apart() {
    let batch = Program::new(spec(resnet(Norm::Batch), sgd(0.0), ProductTable::two_and_three()));
    let statistics = batch.statistics();
    assert_eq!(batch.buffers.len(), 2 * statistics.len());
    assert_eq!((statistics[0].name.as_str(), statistics[0].channels), ("stage0.block0.norm0", 4));
    for (expected, change) in [
        ("moments pooled between", (|p| p.accumulate.nodes.swap(0, 1)) as fn(&mut Program)),
        ("a tensor of the state has that name", |p| {
            p.buffers[0].name = "stage0.block0.norm0.count".into();
            p.micro.inputs[p.parameters.len()].name = "buffer/stage0.block0.norm0.count".into();
        }),
        ("another output", |p| {
            let count = p.parameters.len();
            p.micro.outputs[count + 3].name = p.micro.outputs[count].name.clone();
        }),
        ("port buffer/stage0.block0.norm0.other", |p| {
            p.micro.outputs[p.parameters.len() + 1].name = "buffer/stage0.block0.norm0.other".into();
        }),
        ("update graph: port", |p| p.update.inputs.swap(0, p.parameters.len())),
    ] {
        let mut program = batch.clone();
        change(&mut program);
        let error = decode(&encode(&program)).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected:?} is due: {error}");
    }
}

#[test]
fn what_is_cut_off_or_follows_is_refused() {
    let bytes = encode(&mlp_program());
    for len in 0..bytes.len() {
        assert!(decode(&bytes[..len]).is_err(), "{len} bytes");
    }
    let error = decode(&[bytes.as_slice(), &[0]].concat()).unwrap_err();
    assert_eq!(error.to_string(), "1 bytes follow the program");
    assert_eq!(decode(&[1, 0, 0, 0]).unwrap_err().to_string(), "it has version 1; version 2 is read here");
}

/// The cells of the tables of `docs/ARITHMETIC.md`, section 9.
fn documented() -> Vec<Vec<String>> {
    let page = include_str!("../../docs/ARITHMETIC.md").to_string();
    let section = page.split("## 9. ").nth(1).unwrap().split("## 10. ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| "));
    rows.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().to_string()).collect()).collect()
}

#[test]
fn the_documented_opcodes_and_kinds_are_those_of_the_code() {
    let rows = documented();
    let r = Reg(0);
    let instructions = {
        use Instr::*;
        let philox = Philox { key: [r; 2], counter: [r; 4], word: r };
        let binary = [FAdd(r, r), FSub(r, r), FMul(r, r), FDiv(r, r)];
        let unary = [FSqrt(r), FNeg(r), FExp(r), FLog(r), FTanh(r), FErf(r)];
        let words = [UAdd(r, r), UMul(r, r), UAnd(r, r), UShr(r, r), ULt(r, r), UEq(r, r)];
        let rest = [FLt(r, r), FFromU(r)];
        let (first, last) = ([Input(0), Const(0), Index(0)], [Select(r, r, r), philox]);
        [first.to_vec(), binary.into(), unary.into(), rest.into(), words.into(), last.into()].concat()
    };
    for (code, instruction) in instructions.iter().enumerate() {
        assert_eq!(usize::from(instruction.opcode()), code);
        let debug = format!("{instruction:?}");
        let name = debug.split(|c: char| !c.is_alphanumeric()).next().unwrap();
        assert!(rows.iter().any(|row| row[0] == code.to_string() && row[1] == name), "{code} {name}");
    }
    let mut kinds = std::collections::BTreeMap::new();
    for program in programs() {
        for node in program.micro.nodes {
            kinds.insert(node.primitive.kind(), node.primitive);
        }
    }
    assert_eq!(kinds.keys().copied().collect::<Vec<u8>>(), (0..13).collect::<Vec<u8>>());
    for (kind, primitive) in kinds {
        let name = if kind == 0 { "the body's".into() } else { format!("`{}`", primitive.name()) };
        assert!(rows.iter().any(|row| row[0] == kind.to_string() && row[1] == name), "{kind} {name}");
    }
    assert_eq!([DType::F32, DType::U32, DType::Q(1), DType::Q(4)].map(DType::code), [1, 2, 17, 20]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn a_changed_byte_is_refused_or_another_program(place: prop::sample::Index, byte: u8) {
        let mut bytes = encode(&mlp_program());
        let place = place.index(bytes.len());
        bytes[place] = byte;
        if let Ok(program) = decode(&bytes) {
            prop_assert_eq!(encode(&program), bytes);
        }
    }
}

/// torchvision's networks, by `assets/torchvision_tables.py`: the same tensors in the same order, kernels with their channels last.
#[test]
fn networks_have_the_parameters_of_torchvision() {
    #[derive(serde::Deserialize)]
    struct Table {
        count: u64,
        parameters: Vec<(String, Vec<u32>)>,
        buffers: Vec<(String, Vec<u32>)>,
    }
    let text = include_str!("../../assets/torchvision_tables.json");
    let tables: std::collections::BTreeMap<String, Table> = serde_json::from_str(text).unwrap();
    let image = "height = 224\nwidth = 224\nplanes = 3\nclasses = 1000\n";
    let resnet = |rest: &str| {
        let torchvision = "stages = [64, 128, 256, 512]\nnorm = 'batch'\norder = 'post'\nstem = 'imagenet'";
        model(&format!("kind = 'resnet'\n{image}{torchvision}\n{rest}"))
    };
    let vgg = |rest: &str| model(&format!("kind = 'vgg11'\n{image}{rest}"));
    for (name, model, count) in [
        ("resnet18", resnet("blocks = 2"), 11_689_512),
        ("resnet50", resnet("block = 'bottleneck'\nblocks = [3, 4, 6, 3]"), 25_557_032),
        (
            "resnext50_32x4d",
            resnet("block = 'bottleneck'\nblocks = [3, 4, 6, 3]\ngroups = 32\nwidth_per_group = 4"),
            25_028_904,
        ),
        ("vgg11", vgg(""), 132_863_336),
        ("vgg11_bn", vgg("norm = 'batch'"), 132_868_840),
    ] {
        let theirs = &tables[name];
        assert_eq!((model.parameter_count(), theirs.count), (count, count), "{name}");
        let ours = model.parameters();
        assert_eq!(ours.len(), theirs.parameters.len(), "{name}");
        for (ours, (called, shape)) in ours.iter().zip(&theirs.parameters) {
            println!("{name} {} {:?} is {called} {shape:?}", ours.name, ours.shape);
            let shape = match shape[..] {
                [outputs, inputs, down, across] => vec![outputs, down, across, inputs],
                _ => shape.clone(),
            };
            assert_eq!(ours.shape, shape, "{name}: {} and {called}", ours.name);
            let part = |name: &str| name.rsplit_once('.').map(|(_, part)| part.to_string());
            // PyTorch calls a gain a weight.
            assert_eq!(part(&ours.name).map(|part| part.replace("gain", "weight")), part(called), "{called}");
        }
        let running: Vec<Vec<u32>> =
            model.statistics().iter().flat_map(|norm| [vec![norm.channels], vec![norm.channels]]).collect();
        let theirs: Vec<Vec<u32>> = theirs.buffers.iter().map(|(_, shape)| shape.clone()).collect();
        assert_eq!(running, theirs, "{name}");
    }
}
