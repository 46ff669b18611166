//! Training in less memory: what is computed again, what it saves, and what observers see. `cpu_engine` compares all bits.

use std::sync::Arc;

use tiebreak_contract::arith::words::bytes_of;
use tiebreak_contract::program::graph::{Graph, Node};
use tiebreak_contract::program::init;
use tiebreak_contract::program::models::{Gpt, Model};
use tiebreak_contract::program::optimizer::Optimizer;
use tiebreak_contract::program::phase::Phase;
use tiebreak_contract::program::products::ProductTable;
use tiebreak_contract::program::step::{MicroBatch, Program, StepSpec};
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::reference::Reference;
use tiebreak_engine::session::{Session, StepObserver, StepScalars};
use tiebreak_engine::{EngineError, Inputs, Observer, Want, liveness, recompute};

/// A GPT of so many layers, in micro-batches of so many samples.
fn gpt(layers: u32, micro_batch: u32) -> Program {
    let gpt =
        Gpt { vocabulary: 31, context: 16, layers, heads: 2, width: 16, dropout: 0.1, ..Gpt::default() };
    Program::new(StepSpec {
        model: Model::Gpt(gpt),
        optimizer: Optimizer::Sgd { momentum: 0.9, weight_decay: 0.0 },
        clip_norm: Some(1.0),
        loss: Default::default(),
        micro_batch,
        micro_batches: 2,
        products: ProductTable::preset(),
    })
}

/// A deep model takes less than half of its memory. The forward pass is about a third of the operators, and nearly all of it is
/// computed again.
#[test]
fn a_deep_model_takes_less_than_half_of_its_memory() {
    let program = gpt(16, 8);
    let [all, less] = [liveness::step_bytes(&program), recompute::step_bytes(&program)];
    let (repeated, nodes) = recompute::repeated_nodes(&program);
    println!("16 layers: {all} bytes, {less} with {repeated} of {nodes} operators computed again");
    assert!(less * 2 < all, "{less} of {all}");
    assert!(repeated > nodes / 5 && repeated < nodes / 2, "{repeated} of {nodes}");
}

/// Changes the exponent of the first element of every node of one operator, as a cheat might.
struct Tampering {
    operator: &'static str,
    seen: usize,
}

impl StepObserver for Tampering {
    fn phase(&mut self, phase: Phase, _: &Graph) -> Option<&mut dyn Observer> {
        matches!(phase, Phase::Micro(_)).then_some(self)
    }
}

impl Observer for Tampering {
    fn want(&self, _: usize, node: &Node) -> Want {
        if node.operator == self.operator { Want::Bytes } else { Want::No }
    }

    fn node(
        &mut self,
        _: usize,
        node: &Node,
        bytes: &[u8],
        inputs: &mut dyn Inputs,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        self.seen += 1;
        for input in node.primitive.inputs() {
            inputs.visit(input, &mut |bytes| assert!(!bytes.is_empty()))?;
        }
        let mut other = bytes.to_vec();
        other[3] = other[3].wrapping_add(1);
        Ok(Some(other))
    }
}

/// Bytes that an observer puts in place of a node's are those of the repetition too, and an observer sees a node once.
#[test]
fn what_an_observer_replaces_is_replaced_in_the_repetition() {
    let program = Arc::new(gpt(6, 2));
    let state: Vec<Vec<u8>> = init::state(&program, [3, 4]).iter().map(|words| bytes_of(words)).collect();
    let trained = |operator: &'static str, recomputes: bool, reference: bool| {
        let engine = match reference {
            true => recompute::engine(Reference, recomputes),
            false => recompute::engine(Cpu::new(2).unwrap(), recomputes),
        };
        assert_eq!(engine.recomputes(), recomputes);
        let mut session = Session::new(engine, program.clone()).unwrap();
        session.load(&state).unwrap();
        let numbers = |count: u32| (0..count).map(|i| i * 7919 % 31).collect::<Vec<u32>>();
        let tensors = program.batch.iter().map(|entry| bytes_of(&numbers(entry.shape.iter().product())));
        let batch = vec![MicroBatch { tensors: tensors.collect() }; 2];
        let mut observer = Tampering { operator, seen: 0 };
        for step in 1..=2 {
            let scalars = StepScalars { step, seed: [1, 2], learning_rate: 1e-2f32.to_bits() };
            session.step(scalars, &batch, &mut observer, |_, _, _| Ok(())).unwrap();
        }
        (session.download_state().unwrap(), observer.seen)
    };
    let honest = trained("no operator", false, false).0;
    for operator in ["block1.gelu", "block3.mlp_in", "block0.query", "block1.gelu.backward"] {
        let expected = trained(operator, false, false);
        assert!(expected.1 > 0, "{operator} is no operator of the model");
        assert!(expected.0 != honest, "{operator}: nothing follows from its first element");
        assert!(trained(operator, true, false) == expected, "{operator}");
    }
    assert!(trained("block1.gelu", true, true) == trained("block1.gelu", false, false));
}
