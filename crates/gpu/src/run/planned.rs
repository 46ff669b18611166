//! The engine on a device that is not there, so that the requests of a step are counted on any machine.

use super::engine::GpuEngine;
use crate::device::paper::{Counter, Paper};
use crate::plan::TextLimits;
use tiebreak_shaders::product::Variant;

/// The engine on a device that is not there. Its tensors are zeros, whatever is computed.
pub type Planned = GpuEngine<Paper>;

impl Planned {
    /// The engine with the settings of a GPU with these limits, and the counts of its device. With `TextLimits::All` the limits
    /// are those of usual GPUs.
    pub fn within(limits: TextLimits, variant: Variant) -> (Planned, Counter) {
        let device = Paper::within(limits == TextLimits::Webgpu);
        let counter = device.counter.clone();
        let mut engine = GpuEngine::on(device);
        engine.variant = variant;
        (engine, counter)
    }
}
