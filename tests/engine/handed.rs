//! Sums whose tensors leave the session as they are finished: the bytes of the sums, each tensor once, on every kind of engine.

use std::sync::Arc;

use tiebreak_contract::arith::tree::Operation;
use tiebreak_contract::arith::words::bytes_of;
use tiebreak_contract::program::graph::{Graph, Node};
use tiebreak_contract::program::init;
use tiebreak_contract::program::models::{Gpt, Model};
use tiebreak_contract::program::optimizer::Optimizer;
use tiebreak_contract::program::phase::Phase;
use tiebreak_contract::program::products::ProductTable;
use tiebreak_contract::program::step::{MicroBatch, Program, StepSpec};
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::recompute::Recomputing;
use tiebreak_engine::reference::Reference;
use tiebreak_engine::session::{Session, StepObserver, StepScalars, Unobserved};
use tiebreak_engine::{Engine, EngineError, Inputs, Observer, Want};

fn program() -> Arc<Program> {
    let gpt =
        Gpt { vocabulary: 31, context: 8, layers: 2, heads: 2, width: 16, dropout: 0.1, ..Gpt::default() };
    Arc::new(Program::new(StepSpec {
        model: Model::Gpt(gpt),
        optimizer: Optimizer::Sgd { momentum: 0.9, weight_decay: 0.0 },
        clip_norm: Some(1.0),
        loss: Default::default(),
        micro_batch: 2,
        micro_batches: 4,
        products: ProductTable::preset(),
    }))
}

/// A CPU that is none of the host's, as a GPU is.
struct Elsewhere(Cpu);

impl Engine for Elsewhere {
    tiebreak_engine::forward!(self => self.0; describe, upload, read, compile, run, run_owning);
}

/// Changes the first element of every fifth node that makes an output of a graph, and counts what it sees.
#[derive(Default)]
struct Changing {
    seen: usize,
    outputs: Vec<usize>,
}

impl StepObserver for Changing {
    fn phase(&mut self, _: Phase, graph: &Graph) -> Option<&mut dyn Observer> {
        let made = |node: &Node| graph.outputs.iter().any(|port| port.tensor == node.output);
        self.outputs = (0..graph.nodes.len()).filter(|&index| made(&graph.nodes[index])).step_by(5).collect();
        Some(self)
    }
}

impl Observer for Changing {
    fn want(&self, index: usize, _: &Node) -> Want {
        if self.outputs.contains(&index) { Want::Bytes } else { Want::Tiles }
    }

    fn tiles(&mut self, _: usize, _: &Node, _: Vec<[u8; 32]>) -> Result<(), EngineError> {
        self.seen += 1;
        Ok(())
    }

    fn node(
        &mut self,
        index: usize,
        _: &Node,
        bytes: &[u8],
        _: &mut dyn Inputs,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        self.seen += 1;
        let mut other = bytes.to_vec();
        other[0] ^= 1;
        Ok(self.outputs.contains(&index).then_some(other))
    }
}

/// Micro-batches 0 and 1, whose sum is finished first, then 2.
const OPERATIONS: [Operation; 4] =
    [Operation::Term(0), Operation::Term(1), Operation::Add(0), Operation::Term(2)];

fn loaded<'e>(
    engine: impl Engine + 'e,
    program: &Arc<Program>,
) -> (Session<'e>, Vec<MicroBatch>, StepScalars) {
    let state: Vec<Vec<u8>> = init::state(program, [3, 4]).iter().map(|words| bytes_of(words)).collect();
    let mut session = Session::new(engine, program.clone()).unwrap();
    session.load(&state).unwrap();
    let batch = |number: u32| {
        let numbers = |count: u32| (0..count).map(|i| (i + number) * 7919 % 31).collect::<Vec<u32>>();
        let tensors = program.batch.iter().map(|entry| bytes_of(&numbers(entry.shape.iter().product())));
        MicroBatch { tensors: tensors.collect() }
    };
    let scalars = StepScalars { step: 1, seed: [1, 2], learning_rate: 1e-2f32.to_bits() };
    (session, (0..3).map(batch).collect(), scalars)
}

/// The sums as the session keeps them, and the nodes that an observer saw.
fn kept(program: &Arc<Program>, observer: &mut dyn StepObserver) -> Vec<Vec<Vec<u8>>> {
    let (mut session, batches, scalars) = loaded(Cpu::new(1).unwrap(), program);
    let sums = session.partial_sums(scalars, OPERATIONS, &batches, observer, |_, _, _| Ok(())).unwrap();
    let bytes = |sum| {
        let mut tensors = Vec::new();
        session.visit_gradients(sum, |_, bytes| tensors.push(bytes.to_vec())).unwrap();
        tensors
    };
    sums.iter().map(bytes).collect()
}

/// What a session hands out, in order.
fn handed(
    engine: Box<dyn Engine>,
    program: &Arc<Program>,
    observer: &mut dyn StepObserver,
) -> Vec<(usize, usize, Vec<u8>)> {
    let (mut session, batches, scalars) = loaded(engine, program);
    let mut handed = Vec::new();
    let mut give = |sum: usize, tensor: usize, bytes: &[u8]| {
        handed.push((sum, tensor, bytes.to_vec()));
        Ok(())
    };
    let root = |_: &mut Session, _: u32, _: &_| Ok(());
    session.hand_out_sums(scalars, &OPERATIONS, &batches, observer, root, &mut give).unwrap();
    handed
}

#[test]
fn each_tensor_of_a_sum_is_handed_out_once() {
    let program = program();
    let count = program.gradients().len();
    for changes in [false, true] {
        let mut observers = [Changing::default(), Changing::default()];
        let [first, second] = &mut observers;
        let expected = match changes {
            true => kept(&program, first),
            false => kept(&program, &mut Unobserved),
        };
        let engines: [(&str, Box<dyn Engine>, bool); 4] = [
            ("cpu", Box::new(Cpu::new(2).unwrap()), true),
            ("reference", Box::new(Reference), true),
            ("recomputing", Box::new(Recomputing::new(Cpu::new(1).unwrap())), true),
            ("elsewhere", Box::new(Elsewhere(Cpu::new(1).unwrap())), false),
        ];
        for (name, engine, early) in engines {
            second.seen = 0;
            let handed = match changes {
                true => handed(engine, &program, second),
                false => handed(engine, &program, &mut Unobserved),
            };
            assert_eq!(second.seen, first.seen, "{name}: an observer sees each node once");
            assert_eq!(handed.len(), 2 * count, "{name}");
            assert!(handed[..count].iter().all(|(sum, ..)| *sum == 0), "{name}: the first sum comes first");
            for (sum, tensor, bytes) in &handed {
                assert!(*bytes == expected[*sum][*tensor], "{name}: tensor {tensor} of sum {sum}");
            }
            let mut tensors: Vec<usize> = handed[count..].iter().map(|(_, tensor, _)| *tensor).collect();
            let is_in_table_order = tensors.is_sorted();
            assert_eq!(is_in_table_order, !early, "{name}: the backward pass begins with the last layers");
            tensors.sort_unstable();
            assert!(tensors.into_iter().eq(0..count), "{name}");
        }
    }
}

/// Whoever takes a tensor may end the run.
#[test]
fn a_tensor_that_nobody_takes_ends_the_run() {
    let program = program();
    for engine in
        [Box::new(Cpu::new(1).unwrap()) as Box<dyn Engine>, Box::new(Elsewhere(Cpu::new(1).unwrap()))]
    {
        let (mut session, batches, scalars) = loaded(engine, &program);
        let mut left = 3;
        let mut give = |_: usize, _: usize, _: &[u8]| {
            left -= 1;
            if left == 0 { Err(EngineError::Stopped("enough".into())) } else { Ok(()) }
        };
        let root = |_: &mut Session, _: u32, _: &_| Ok(());
        let ended = session.hand_out_sums(scalars, &OPERATIONS, &batches, &mut Unobserved, root, &mut give);
        assert_eq!(ended.unwrap_err().to_string(), EngineError::Stopped("enough".into()).to_string());
        assert_eq!(left, 0, "nothing is handed out after an error");
    }
}
