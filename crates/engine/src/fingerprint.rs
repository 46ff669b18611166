//! A digest over every operator of small training steps, over corner cases and over long products: equal on every
//! right engine.

use std::sync::Arc;

use super::session::{Session, StepObserver, StepScalars};
use super::{Engine, EngineError, Inputs, Observer};
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::philox::philox4x32_10;
use tiebreak_contract::arith::rounding_grid::GridRule;
use tiebreak_contract::arith::words::{bytes_from_words, bytes_of};
use tiebreak_contract::program::builder::Builder;
use tiebreak_contract::program::expr::Body;
use tiebreak_contract::program::graph::{Graph, Node, TensorId};
use tiebreak_contract::program::init;
use tiebreak_contract::program::models::{
    Block, Blocks, Gelu, Gpt, Input, Mlp, Model, Norm, Order, Resnet, Stem,
};
use tiebreak_contract::program::operators::ConvVersion;
use tiebreak_contract::program::optimizer::Optimizer;
use tiebreak_contract::program::phase::Phase;
use tiebreak_contract::program::products::{ProductClass, ProductDigits, ProductTable};
use tiebreak_contract::program::step::{MicroBatch, Program, StepSpec};

/// Hashes every output that it sees.
struct Digester(blake3::Hasher);

impl StepObserver for Digester {
    fn phase(&mut self, _: Phase, _: &Graph) -> Option<&mut dyn Observer> {
        Some(self)
    }
}

impl Observer for Digester {
    fn node(
        &mut self,
        _: usize,
        _: &Node,
        bytes: &[u8],
        _: &mut dyn Inputs,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        self.0.update(bytes);
        Ok(None)
    }
}

fn specs() -> Vec<StepSpec> {
    let adamw = Optimizer::Adamw { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 };
    let gpt = |gelu, tied, digits| StepSpec {
        loss: Default::default(),
        model: Model::Gpt(Gpt {
            vocabulary: 37,
            context: 10,
            layers: 1,
            heads: 2,
            width: 12,
            gelu,
            dropout: 0.1,
            tied,
            init_std: 0.1,
            ..Gpt::default()
        }),
        optimizer: adamw.clone(),
        clip_norm: Some(1.0),
        micro_batch: 2,
        micro_batches: 2,
        products: ProductTable::uniform(digits),
    };
    let mlp = StepSpec {
        model: Model::Mlp(Mlp {
            inputs: 70,
            hidden: vec![19],
            classes: 5,
            dropout: 0.5,
            normalize: None,
            image_mean: Vec::new(),
            image_std: Vec::new(),
            input: Input::Pixels,
        }),
        optimizer: Optimizer::Sgd { momentum: 0.9, weight_decay: 0.01 },
        clip_norm: None,
        micro_batch: 3,
        micro_batches: 1,
        ..gpt(Gelu::Tanh, true, 1)
    };
    let resnet = |convolution| StepSpec {
        model: Model::Resnet(Resnet {
            height: 5,
            width: 6,
            planes: 3,
            stages: vec![4, 6],
            blocks: Blocks::Same(1),
            block: Block::Basic,
            groups: 1,
            width_per_group: 64,
            order: Order::Pre,
            stem: Stem::Cifar,
            classes: 4,
            norm: Norm::Layer,
            norm_epsilon: 1e-5,
            norm_momentum: 0.1,
            convolution,
            normalize: None,
            image_mean: Vec::new(),
            image_std: Vec::new(),
            input: Input::Pixels,
        }),
        products: ProductTable::uniform(2),
        ..mlp.clone()
    };
    let [first, second] = [ConvVersion::V1, ConvVersion::V2].map(resnet);
    let gpts = [gpt(Gelu::Tanh, true, 2), gpt(Gelu::Erf, false, 3), gpt(Gelu::Tanh, true, 4)];
    gpts.into_iter().chain([mlp, first, second]).collect()
}

/// The fingerprint of this version: the result of [`fingerprint`] on every right engine. The number changes only with the
/// operators that it covers.
pub const FINGERPRINT: &str = "23f13df7ed614e0b8b319958eab6b9200439445f6104b70327a67ec388c7e06f";

/// Runs one step of several small programs, some with subnormal and extreme parameters, and digests every output.
///
/// # Errors
/// If the engine cannot run the programs.
pub fn fingerprint(engine: &mut dyn Engine) -> Result<blake3::Hash, EngineError> {
    let mut digester = Digester(blake3::Hasher::new());
    for (number, spec) in (0u32..).zip(specs()) {
        let program = Arc::new(Program::new(spec));
        let mut state = init::state(&program, [number, 1]);
        for (i, word) in state.iter_mut().flatten().enumerate() {
            match i % 211 {
                0 => *word = 1 + i as u32 % 1000,        // subnormals
                1 => *word |= 0x8000_0000,               // signs
                2 if number == 2 => *word = 0x7e00_0000, // products that overflow
                _ => {}
            }
        }
        let state: Vec<Vec<u8>> = state.iter().map(|t| bytes_of(t)).collect();
        let batch: Vec<MicroBatch> = (0..program.micro_batches)
            .map(|micro| {
                let tensors = program.batch.iter().map(|t| {
                    let len = t.shape.iter().product::<u32>();
                    let word = |i: u32| philox4x32_10([number, micro], [i, 0, 0, 1])[0] % t.below;
                    (0..len).flat_map(|i| word(i).to_le_bytes()).collect()
                });
                MicroBatch { tensors: tensors.collect() }
            })
            .collect();
        let mut session = Session::new(&mut *engine, program.clone())?;
        session.load(&state)?;
        let scalars = StepScalars { step: 3, seed: [5, 6], learning_rate: 1e-2f32.to_bits() };
        session.step(scalars, &batch, &mut digester, |_, _, _| Ok(()))?;
        session.visit_state(|_, bytes| {
            digester.0.update(bytes);
        })?;
    }
    corner_cases(engine, &mut digester.0)?;
    full_products(engine, &mut digester.0)?;
    logged_products(engine, &mut digester.0)?;
    Ok(digester.0.finalize())
}

/// Runs a graph of two binary32 inputs and digests its output.
fn digest_of(
    engine: &mut dyn Engine,
    digester: &mut blake3::Hasher,
    shape: &[u32],
    inputs: [&[u32]; 2],
    products: ProductTable,
    build: impl FnOnce(&mut Builder, TensorId, TensorId) -> TensorId,
) -> Result<(), EngineError> {
    let mut b = Builder::new(products);
    let (x, y) = (b.input("x", DType::F32, shape), b.input("y", DType::F32, shape));
    let output = build(&mut b, x, y);
    b.output("out", output);
    let ty = b.tensor(x).clone();
    let compiled = engine.compile(Arc::new(b.finish()))?;
    let mut tensors = Vec::new();
    for words in inputs {
        tensors.push(engine.upload(&ty, &bytes_from_words(DType::F32, words))?);
    }
    let outputs = engine.run(&compiled, &tensors, None)?;
    engine.read(&outputs[0], &mut |bytes| {
        digester.update(bytes);
    })
}

/// Every scalar operation on every pair of special patterns. One map computes them all and adds them as integers, since some
/// drivers take a second to compile each map.
fn corner_cases(engine: &mut dyn Engine, digester: &mut blake3::Hasher) -> Result<(), EngineError> {
    let specials: Vec<u32> = [0, 1, 2, 0x007f_ffff, 0x0080_0000, 0x0080_0001, 0x3380_0000, 0x3f7f_ffff]
        .into_iter()
        .chain([0x3f80_0000, 0x3f80_0001, 0x4b7f_ffff, 0x4b80_0000, 0x42b1_7218, 0x7f7f_ffff, 0x7f80_0000])
        .flat_map(|x| [x, x | 0x8000_0000])
        .chain([0x7fc0_0000, 0x3e99_999a])
        .collect();
    let count = specials.len();
    let pair = |i: usize| (specials[i % count], specials[i / count]);
    let x: Vec<u32> = (0..count * count).map(|i| pair(i).0).collect();
    let y: Vec<u32> = (0..count * count).map(|i| pair(i).1).collect();
    let shape = [(count * count) as u32];
    digest_of(engine, digester, &shape, [&x, &y], ProductTable::two_and_three(), |b, x, y| {
        let body = Body::new("corner_cases.v1", |w| {
            let (x, y) = (w.input(0), w.input(1));
            let values = [
                w.add(x, y),
                w.sub(x, y),
                w.mul(x, y),
                w.div(x, y),
                w.sqrt(x),
                w.exp(x),
                w.log(x),
                w.tanh(x),
                w.erf(x),
                w.lt(x, y),
            ];
            values.into_iter().reduce(|sum, value| w.uadd(sum, value)).expect("there are values")
        });
        b.map(body, &[x, y], &shape)
    })
}

/// Products in two parts and on grids, of rows with wide ranges, zeros, an infinity and a NaN.
fn logged_products(engine: &mut dyn Engine, digester: &mut blake3::Hasher) -> Result<(), EngineError> {
    const ROWS: u32 = 9;
    const K: u32 = 203;
    let word = |i: u32, stream: u32| match (i / K, i % K) {
        (0, _) => 0,
        (1, 17) => 0x7f80_0000,
        (2, 5) => 0x7fc0_0000,
        (row, _) => {
            let [bits, spread, ..] = philox4x32_10([11, stream], [i, 0, 0, 0]);
            // Rows 3 and 4 are subnormal or nearly, row 5 large; the others range over 2^20.
            let field = if row < 5 { spread % 3 } else { [240, 120][usize::from(row > 5)] - spread % 20 };
            (bits & 0x807f_ffff) | (field << 23)
        }
    };
    let [a, b]: [Vec<u32>; 2] = [1, 2].map(|stream| (0..ROWS * K).map(|i| word(i, stream)).collect());
    for rule in [GridRule { bits: 28, floor: 0 }, GridRule { bits: 16, floor: 14 }] {
        let mut table = ProductTable::uniform(3);
        table.set_logged(ProductClass::Linear, rule);
        digest_of(engine, digester, &[ROWS, K], [&a, &b], table, |builder, x, y| {
            let (x, y) = (builder.whole(x), builder.whole(y));
            builder.product(ProductClass::Linear, x, y, &[ROWS, ROWS])
        })?;
    }
    Ok(())
}

/// Products whose digits are all as large as they can be, along a K that fills every accumulator more than once.
fn full_products(engine: &mut dyn Engine, digester: &mut blake3::Hasher) -> Result<(), EngineError> {
    const K: u32 = 70_000;
    let word = |i: u32, stream: u32| {
        let sign = philox4x32_10([9, stream], [i / 20_000, 0, 0, 0])[0] & 0x8000_0000;
        sign | if i < 60_000 { 0x3eff_ffff } else { 0x3f7f_ffff }
    };
    let [a, b]: [Vec<u32>; 2] = [1, 2].map(|stream| (0..K).map(|i| word(i, stream)).collect());
    for (digits_a, digits_b) in [(1, 1), (2, 2), (3, 2), (3, 3), (4, 4)] {
        let mut table = ProductTable::two_and_three();
        table.set(ProductClass::Linear, ProductDigits { digits_a, digits_b, block: 0 });
        digest_of(engine, digester, &[1, K], [&a, &b], table, |builder, x, y| {
            let (x, y) = (builder.whole(x), builder.whole(y));
            builder.product(ProductClass::Linear, x, y, &[1, 1])
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::Reference;

    #[test]
    fn the_scalar_reference_has_the_fingerprint_of_this_version() {
        assert_eq!(fingerprint(&mut Reference).unwrap().to_string(), FINGERPRINT);
    }
}
