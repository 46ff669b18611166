//! Nodes over the same rows are computed at once if nobody observes the nodes between: the bits are those of nodes computed one
//! by one, and of the CPU engine. `primitives` tests SwiftShader, `tests/adapters/cuda.rs` tests CUDA.

use std::sync::Arc;

use crate::common::not_tested;
use crate::gpus::gpus;
use tiebreak_contract::program::graph::{Graph, Node};
use tiebreak_contract::program::init;
use tiebreak_contract::program::models::{Gpt, Input, Llama, Lora, Mlp, Model};
use tiebreak_contract::program::optimizer::Optimizer;
use tiebreak_contract::program::phase::Phase;
use tiebreak_contract::program::products::ProductTable;
use tiebreak_contract::program::step::{MicroBatch, Program, StepSpec};
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::recompute;
use tiebreak_engine::session::{Session, StepObserver, StepScalars, Unobserved};
use tiebreak_engine::{Engine, EngineError, Inputs, Observer, Want};
use tiebreak_gpu::{Gpu, Variant};

/// Runs a test on the adapters that are fast.
fn on_quick_adapters(mut test: impl FnMut(&mut Gpu)) {
    let (mut gpus, mut tested) = (gpus(), false);
    for gpu in gpus.adapters.iter_mut().filter(|gpu| !gpu.describe().contains("SwiftShader")) {
        test(gpu);
        tested = true;
    }
    if !tested {
        not_tested("there is no adapter for row fusion");
    }
}

/// A GPT, a Llama over windows of several documents, a perceptron and adapters with accumulation, three of them with dropout, whose rows are just long enough, a little longer, and long.
fn programs() -> Vec<Arc<Program>> {
    let adamw = Optimizer::Adamw { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 };
    let gpt = Gpt {
        vocabulary: 131,
        context: 65,
        layers: 2,
        heads: 2,
        width: 66,
        dropout: 0.1,
        init_std: 0.1,
        ..Gpt::default()
    };
    let llama = Llama {
        vocabulary: 131,
        context: 65,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        width: 72,
        hidden: 70,
        rope_theta: 10_000.0,
        norm_epsilon: 1e-5,
        tied: false,
        init_std: 0.1,
        head_width: Some(66),
        qkv_bias: true,
        out_bias: true,
        mlp_bias: true,
        qk_norm: true,
        document_end: Some(28),
        ..Llama::default()
    };
    let targets = vec!["c_attn".to_string(), "c_fc".to_string()];
    let lora = Lora { rank: 4, alpha: 8.0, dropout: 0.1, targets };
    let adapted =
        Gpt { vocabulary: 61, context: 9, layers: 1, dropout: 0.0, lora: Some(lora), ..gpt.clone() };
    let mlp = Mlp {
        inputs: 70,
        hidden: vec![257, 64],
        classes: 65,
        dropout: 0.2,
        normalize: None,
        image_mean: Vec::new(),
        image_std: Vec::new(),
        input: Input::Pixels,
    };
    let spec = |model, optimizer, clip_norm| StepSpec {
        loss: Default::default(),
        model,
        optimizer,
        clip_norm,
        micro_batch: 2,
        micro_batches: 3,
        products: ProductTable::two_and_three(),
    };
    let sgd = Optimizer::Sgd { momentum: 0.9, weight_decay: 0.01 };
    let specs = [
        spec(Model::Gpt(gpt), adamw.clone(), Some(0.5)),
        spec(Model::Mlp(mlp), sgd.clone(), None),
        spec(Model::Llama(llama), sgd, Some(0.5)),
        spec(Model::Gpt(adapted), adamw, Some(0.5)),
    ];
    specs.into_iter().map(|spec| Arc::new(Program::new(spec))).collect()
}

/// The state after some steps.
fn trained(
    engine: &mut dyn Engine,
    program: &Arc<Program>,
    observer: &mut dyn StepObserver,
) -> Result<Vec<Vec<u8>>, EngineError> {
    let state: Vec<Vec<u8>> = init::state(program, [3, 4])
        .iter()
        .map(|tensor| tensor.iter().flat_map(|word| word.to_le_bytes()).collect())
        .collect();
    let batch = (0..program.micro_batches).map(|micro| {
        let tensors = program.batch.iter().map(|tensor| {
            let len = tensor.shape.iter().product::<u32>();
            (0..len).flat_map(|i| ((i + micro) * 7919 % 61).to_le_bytes()).collect()
        });
        MicroBatch { tensors: tensors.collect() }
    });
    let batch: Vec<MicroBatch> = batch.collect();
    let mut session = Session::new(engine, program.clone())?;
    session.load(&state)?;
    for step in 1..=2 {
        let scalars = StepScalars { step, seed: [1, 2], learning_rate: 1e-2f32.to_bits() };
        session.step(scalars, &batch, observer, |_, _, _| Ok(()))?;
    }
    session.download_state()
}

/// A GPT with dropout, whose tensors are computed again instead of kept.
#[test]
fn training_in_less_memory_has_the_same_bits() {
    let gpt =
        Gpt { vocabulary: 67, context: 8, layers: 3, heads: 2, width: 16, dropout: 0.1, ..Gpt::default() };
    let program = &Arc::new(Program::new(StepSpec {
        loss: Default::default(),
        model: Model::Gpt(gpt),
        optimizer: Optimizer::Sgd { momentum: 0.9, weight_decay: 0.01 },
        clip_norm: Some(0.5),
        micro_batch: 4,
        micro_batches: 3,
        products: ProductTable::two_and_three(),
    }));
    let (repeated, nodes) = recompute::repeated_nodes(program);
    assert!(repeated > 0, "none of {nodes} nodes is repeated");
    let expected = trained(&mut Cpu::new(2).unwrap(), program, &mut Unobserved).unwrap();
    on_quick_adapters(|gpu| {
        let name = gpu.describe();
        let mut again = recompute::engine(&mut *gpu, true);
        let have = trained(&mut *again, program, &mut Unobserved).unwrap();
        assert!(have == expected, "{name}");
    });
}

#[test]
fn training_has_the_bits_of_nodes_one_by_one() {
    let programs = programs();
    let mut cpu = Cpu::new(2).unwrap();
    let expected: Vec<_> =
        programs.iter().map(|program| trained(&mut cpu, program, &mut Unobserved).unwrap()).collect();
    on_quick_adapters(|fusing| {
        let mut one_by_one = fusing.beside(Variant::Words).unwrap().fusing_rows(false);
        for (on, gpu) in [(true, fusing), (false, &mut one_by_one)] {
            for (program, expected) in programs.iter().zip(&expected) {
                let have = trained(gpu, program, &mut Unobserved).unwrap();
                assert!(have == *expected, "{}, rows fused: {on}", gpu.describe());
            }
        }
    });
}

/// Observes some nodes, by their number.
struct Looking {
    every: usize,
    from: usize,
    seen: blake3::Hasher,
}

impl StepObserver for Looking {
    fn phase(&mut self, _: Phase, _: &Graph) -> Option<&mut dyn Observer> {
        Some(self)
    }
}

impl Observer for Looking {
    fn want(&self, index: usize, _: &Node) -> Want {
        if index % self.every == self.from { Want::Bytes } else { Want::No }
    }

    fn node(
        &mut self,
        _: usize,
        _: &Node,
        bytes: &[u8],
        _: &mut dyn Inputs,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        self.seen.update(bytes);
        Ok(None)
    }
}

/// An observer of some nodes sees what every engine computes, whichever others are computed at once.
#[test]
fn observers_see_the_same() {
    let programs = programs();
    let mut cpu = Cpu::new(2).unwrap();
    on_quick_adapters(|gpu| {
        for program in &programs {
            for (every, from) in [(40, 7), (40, 19), (9, 2)] {
                let seen = |engine: &mut dyn Engine| {
                    let mut some = Looking { every, from, seen: blake3::Hasher::new() };
                    let state = trained(engine, program, &mut some).unwrap();
                    (some.seen.finalize(), state)
                };
                assert!(seen(gpu) == seen(&mut cpu), "{}: {from} of {every}", gpu.describe());
            }
        }
    });
}

/// Observes the first node, and from then on all of them.
struct Fickle(bool);

impl StepObserver for Fickle {
    fn phase(&mut self, _: Phase, _: &Graph) -> Option<&mut dyn Observer> {
        Some(self)
    }
}

impl Observer for Fickle {
    fn want(&self, index: usize, _: &Node) -> Want {
        if self.0 || index == 0 { Want::Bytes } else { Want::No }
    }

    fn node(
        &mut self,
        _: usize,
        _: &Node,
        _: &[u8],
        _: &mut dyn Inputs,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        self.0 = true;
        Ok(None)
    }
}

/// The engine decides before a graph runs which nodes run at once. An observer that later wants to see an intermediate node gets
/// an error, not a run without it.
#[test]
fn an_observer_that_changes_its_mind_is_refused() {
    let program = &programs()[1];
    on_quick_adapters(|gpu| {
        let error = trained(gpu, program, &mut Fickle(false)).unwrap_err().to_string();
        assert!(error.contains("an observer changed its mind"), "{error}");
    });
}
