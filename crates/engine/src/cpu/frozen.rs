//! The integers of tensors that stay as they are from one run of a graph to the next, such as frozen weights.

use std::collections::HashMap;

use crate::Tensor;
use tiebreak_contract::program::graph::{Node, Primitive, TensorId};

/// The tensors, and what graphs computed of them alone, for the next runs.
#[derive(Default)]
pub(super) struct Frozen {
    /// The tensors, then what is kept. They are held, so an address stands for one tensor.
    tensors: Vec<Tensor>,
    /// The number of each of them, by its address.
    numbers: HashMap<usize, u32>,
    /// What is kept, by its primitive with numbers in place of the graph's tensors.
    made: HashMap<Primitive, Tensor>,
    /// The tensors that stay as they are.
    given: usize,
    /// Bytes that may be kept, and those of them that are taken.
    most: u64,
    taken: u64,
}

impl Frozen {
    /// Keeps what is computed of these tensors from now on, in at most so many bytes.
    pub(super) fn set(&mut self, tensors: &[Tensor], most: u64) {
        let same = |(a, b): (&Tensor, &Tensor)| a.address() == b.address();
        if self.most == most && self.given == tensors.len() && self.tensors.iter().zip(tensors).all(same) {
            return;
        }
        *self = Frozen { given: tensors.len(), most, ..Frozen::default() };
        tensors.iter().for_each(|tensor| self.hold(tensor));
    }

    fn hold(&mut self, tensor: &Tensor) {
        self.numbers.insert(tensor.address(), self.tensors.len() as u32);
        self.tensors.push(tensor.clone());
    }

    /// The name of a node's output, if it is worth keeping and nothing else than kept tensors decides it.
    pub(super) fn name(&self, node: &Node, values: &[Option<Tensor>]) -> Option<Primitive> {
        if !matches!(node.primitive, Primitive::Absmax { .. } | Primitive::Quantise { .. }) {
            return None;
        }
        let number = |id: TensorId| self.numbers.get(&values[id.0 as usize].as_ref()?.address()).copied();
        let inputs = node.primitive.inputs();
        let numbers: HashMap<TensorId, u32> =
            inputs.into_iter().map(|id| Some((id, number(id)?))).collect::<Option<_>>()?;
        Some(node.primitive.map_inputs(|id| TensorId(numbers[&id])))
    }

    /// The output of this name, if it is kept.
    pub(super) fn get(&self, name: &Primitive) -> Option<Tensor> {
        self.made.get(name).cloned()
    }

    /// True if so many bytes more may be kept.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        self.most - self.taken >= bytes
    }

    /// Keeps an output of so many bytes, for which there is room.
    pub(super) fn put(&mut self, name: Primitive, tensor: &Tensor, bytes: u64) {
        self.taken += bytes;
        self.hold(tensor);
        self.made.insert(name, tensor.clone());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cpu::Cpu;
    use crate::{Engine, TensorType};
    use tiebreak_contract::arith::DType;
    use tiebreak_contract::arith::words::bytes_of;
    use tiebreak_contract::program::init;
    use tiebreak_contract::program::models::{Llama, Lora, Model};
    use tiebreak_contract::program::operators::LossRule;
    use tiebreak_contract::program::optimizer::Optimizer;
    use tiebreak_contract::program::products::ProductTable;
    use tiebreak_contract::program::step::{Program, StepSpec};

    fn adapters() -> Program {
        let lora = Lora { rank: 4, alpha: 8.0, dropout: 0.0, targets: vec!["*_proj".into()] };
        let [vocabulary, width, hidden] = [90, 64, 70];
        let model = Llama {
            vocabulary,
            context: 40,
            layers: 1,
            heads: 4,
            kv_heads: 2,
            width,
            hidden,
            ..Llama::default()
        };
        Program::new(StepSpec {
            model: Model::Llama(Llama { lora: Some(lora), ..model }),
            optimizer: Optimizer::Sgd { momentum: 0.0, weight_decay: 0.0 },
            clip_norm: None,
            loss: LossRule::default(),
            micro_batch: 1,
            micro_batches: 1,
            products: ProductTable::uniform(3),
        })
    }

    /// What a micro-batch reads of the initial state of a seed, on the engine.
    fn loaded(engine: &mut Cpu, program: &Program, seed: u32) -> Vec<Tensor> {
        let (state, table) = (init::state(program, [3, seed]), program.state());
        let read = table[..program.released()].iter().zip(&state);
        read.map(|(entry, words)| engine.upload(&entry.ty(), &bytes_of(words)).unwrap()).collect()
    }

    /// The gradients of two runs of a micro-batch, on other tokens, and of one with other weights; and the bytes that are kept then.
    fn gradients(program: &Program, most: u64) -> (Vec<Vec<u8>>, u64) {
        let mut engine = Cpu::new(2).unwrap();
        let compiled = engine.compile(Arc::new(program.micro.clone())).unwrap();
        let mut state = loaded(&mut engine, program, 4);
        let mut all = Vec::new();
        for turn in 0..3 {
            if turn == 2 {
                state = loaded(&mut engine, program, 5);
            }
            let frozen = state.iter().zip(program.kept()).filter(|(_, kept)| *kept);
            let frozen: Vec<Tensor> = frozen.map(|(tensor, _)| tensor.clone()).collect();
            engine.keep_integers(&frozen, most);
            let mut inputs = state.clone();
            for tensor in &program.batch {
                let len = tensor.ty().len() as u32;
                let ids: Vec<u32> = (0..len).map(|i| (7 * i + turn) % tensor.below).collect();
                inputs.push(engine.upload(&tensor.ty(), &bytes_of(&ids)).unwrap());
            }
            for (dtype, words) in [
                (DType::F32, vec![program.factor()]),
                (DType::U32, vec![1, 2]),
                (DType::U32, vec![1]),
                (DType::U32, vec![0]),
            ] {
                let ty = TensorType { dtype, shape: vec![words.len() as u32] };
                inputs.push(engine.upload(&ty, &bytes_of(&words)).unwrap());
            }
            let outputs = engine.run(&compiled, &inputs, None).unwrap();
            all.extend(outputs.iter().map(|tensor| engine.download(tensor).unwrap()));
        }
        let taken = engine.frozen.taken;
        engine.keep_integers(&[], 0);
        assert_eq!(engine.frozen.taken, 0);
        (all, taken)
    }

    #[test]
    fn what_is_kept_of_frozen_weights_changes_no_bit() {
        let program = adapters();
        let (expected, none) = gradients(&program, 0);
        assert_eq!(none, 0);
        let (kept, all) = gradients(&program, 1 << 30);
        assert!(kept == expected);
        // Absmaxes everywhere, and integers where products of this machine read them packed.
        assert!(all > 0);
        let (some, taken) = gradients(&program, all / 2);
        assert!(some == expected);
        assert!(taken > 0 && taken <= all / 2, "{taken} of {all} bytes");
    }
}
