//! A digest over every operator of a small training step: equal on every right engine.

use std::sync::Arc;

use super::session::{MicroBatch, Phase, Session, StepObserver, StepScalars};
use super::{Engine, EngineError, Observer};
use crate::arith::philox::philox4x32_10;
use crate::program::graph::{Graph, Node};
use crate::program::init;
use crate::program::models::{Gelu, Gpt, Mlp, Model};
use crate::program::optimizer::Optimizer;
use crate::program::products::ProductTable;
use crate::program::step::{Program, StepSpec};

/// Hashes every output that it is shown.
struct Digester(blake3::Hasher);

impl StepObserver for Digester {
    fn phase(&mut self, _: Phase, _: &Graph) -> Option<&mut dyn Observer> {
        Some(self)
    }
}

impl Observer for Digester {
    fn node(&mut self, _: usize, _: &Node, bytes: &[u8]) -> Result<Option<Vec<u8>>, EngineError> {
        self.0.update(bytes);
        Ok(None)
    }
}

fn specs() -> Vec<StepSpec> {
    let adamw = Optimizer::Adamw { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 };
    let gpt = |gelu, tied, digits| StepSpec {
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
        }),
        optimizer: adamw.clone(),
        clip_norm: Some(1.0),
        micro_batch: 2,
        micro_batches: 2,
        products: ProductTable::uniform(digits),
    };
    let mlp = StepSpec {
        model: Model::Mlp(Mlp { inputs: 70, hidden: vec![19], classes: 5, dropout: 0.5 }),
        optimizer: Optimizer::Sgd { momentum: 0.9, weight_decay: 0.01 },
        clip_norm: None,
        micro_batch: 3,
        micro_batches: 1,
        products: ProductTable::uniform(1),
    };
    vec![gpt(Gelu::Tanh, true, 2), gpt(Gelu::Erf, false, 3), gpt(Gelu::Tanh, true, 4), mlp]
}

/// Runs one step of several small programs, some with subnormal and extreme parameters, and digests every output.
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
        let state: Vec<Vec<u8>> =
            state.iter().map(|t| t.iter().flat_map(|w| w.to_le_bytes()).collect()).collect();
        let spec = &program.spec;
        let batch: Vec<MicroBatch> = (0..spec.micro_batches)
            .map(|micro| {
                let tensors = spec.model.batch(spec.micro_batch).into_iter().map(|t| {
                    let classes = match &spec.model {
                        Model::Gpt(gpt) => gpt.vocabulary,
                        Model::Mlp(mlp) if t.name == "labels" => mlp.classes,
                        Model::Mlp(_) => 256,
                    };
                    let len = t.shape.iter().product::<u32>();
                    let word = |i: u32| philox4x32_10([number, micro], [i, 0, 0, 1])[0] % classes;
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
    Ok(digester.0.finalize())
}
