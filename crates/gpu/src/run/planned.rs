//! The engine on a device that is not there, so that the requests and the memory of a step are counted on any machine.

use std::sync::Arc;

use super::engine::GpuEngine;
use crate::device::STAGING;
use crate::device::paper::{Counter, Paper};
use crate::plan::TextLimits;
use tiebreak_contract::program::step::{MicroBatch, Program, state_bytes};
use tiebreak_engine::EngineError;
use tiebreak_engine::recompute;
use tiebreak_engine::session::{Session, StepScalars, Unobserved};
use tiebreak_shaders::product::Variant;

/// The engine on a device that is not there. Its tensors are zeros, whatever is computed.
pub type Planned = GpuEngine<Paper>;

impl Planned {
    /// The engine with the settings of a GPU with these limits, and the counts of its device. With `TextLimits::All` the limits
    /// are those of usual GPUs.
    #[doc(hidden)] // for plans and tests, not for engines that compute
    pub fn within(limits: TextLimits, variant: Variant) -> (Planned, Counter) {
        let device = Paper::within(limits == TextLimits::Webgpu);
        let counter = device.counter.clone();
        let mut engine = GpuEngine::on(device);
        engine.variant = variant;
        (engine, counter)
    }
}

/// Micro-batches that are run for a plan. The memory of more follows from these.
const RUN: u32 = 4;

/// The memory that steps of a program take on a GPU, in bytes. A driver needs some more for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// The state.
    pub state: u64,
    /// Gradients that wait for others, and the next state.
    pub gradients: u64,
    /// Tensors within a micro-batch, a sum or the update, with the memory beside them.
    pub activations: u64,
    /// Uniform data, and what copies from and to the host lie in.
    pub staging: u64,
}

impl DeviceMemory {
    /// Plans a step with its commitments on a usual GPU, which computes tensors again instead of keeping them if `recomputes`.
    ///
    /// # Errors
    /// If no GPU computes the program.
    pub fn of(program: &Program, recomputes: bool) -> Result<DeviceMemory, EngineError> {
        let less = Program { micro_batches: program.micro_batches.min(RUN), ..program.clone() };
        let mut memory = DeviceMemory::run(Arc::new(less), recomputes)?;
        let sums = waiting(program.micro_batches) - waiting(program.micro_batches.min(RUN));
        memory.gradients += u64::from(sums) * state_bytes(&program.gradients());
        Ok(memory)
    }

    fn run(program: Arc<Program>, recomputes: bool) -> Result<DeviceMemory, EngineError> {
        let (mut engine, counter) = Planned::within(TextLimits::All, Variant::Dot);
        let zeros = |bytes: usize| vec![0; bytes];
        let (table, tensors) = (program.state(), program.batch.iter());
        let batch = MicroBatch { tensors: tensors.map(|tensor| zeros(tensor.ty().bytes())).collect() };
        let batches = vec![batch; program.micro_batches as usize];
        let mut session = Session::new(recompute::engine(&mut engine, recomputes), program)?;
        let uniforms = counter.requests().memory;
        session.load_each(|i| zeros(table[i].ty().bytes()))?;
        let state = counter.requests().memory - uniforms;
        let scalars = StepScalars { step: 1, seed: [1, 2], learning_rate: 0 };
        let mut roots = Vec::new();
        session.step(scalars, &batches, &mut Unobserved, |session, _, gradients| {
            roots.extend(session.engine_mut().roots_later(gradients.tensors())?);
            Ok(())
        })?;
        session.state_roots()?;
        drop((session, roots));
        // Nothing is in use now, and nothing that was taken was freed.
        let [passing, lasting] = engine.pool.free_bytes();
        let uniforms = counter.requests().memory_most - passing - lasting;
        let largest = table.iter().map(|tensor| tensor.ty().bytes() as u64).max().unwrap_or(0);
        let staging = uniforms + STAGING + largest;
        Ok(DeviceMemory { state, gradients: lasting - state, activations: passing, staging })
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.state + self.gradients + self.activations + self.staging
    }
}

/// The most gradients at once, beside others in every step: sums that wait while a micro-batch runs.
fn waiting(micro_batches: u32) -> u32 {
    micro_batches.ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiebreak_contract::program::models::Model;
    use tiebreak_contract::program::operators::LossRule;
    use tiebreak_contract::program::optimizer::Optimizer;
    use tiebreak_contract::program::products::ProductTable;
    use tiebreak_contract::program::step::StepSpec;

    fn program(micro_batches: u32) -> Program {
        let model = r#"{"kind": "mlp", "inputs": 600, "hidden": [400], "classes": 30}"#;
        let model: Model = serde_json::from_str(model).unwrap();
        let optimizer = Optimizer::Sgd { momentum: 0.9, weight_decay: 0.0 };
        let (loss, products) = (LossRule::default(), ProductTable::preset());
        Program::new(StepSpec {
            model,
            optimizer,
            clip_norm: None,
            loss,
            micro_batch: 2,
            micro_batches,
            products,
        })
    }

    /// The plan adds for micro-batches that were not run the bytes that they take, but for rounding to lines of 256 bytes.
    #[test]
    fn memory_of_many_micro_batches_follows_from_a_few() {
        for micro_batches in [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32] {
            let program = program(micro_batches);
            let (planned, whole) = (
                DeviceMemory::of(&program, false).unwrap(),
                DeviceMemory::run(Arc::new(program), false).unwrap(),
            );
            let apart = planned.total().abs_diff(whole.total());
            assert!(apart < whole.total() / 100, "{micro_batches} micro-batches: {planned:?}, {whole:?}");
        }
    }
}
