//! The memory that training and auditing a job take, in bytes of tensors.

use serde_json::Value;

use crate::cli::view::report::bytes_text;
use tiebreak_contract::program::step::{Program, state_bytes};
use tiebreak_engine::liveness::Keeping;
use tiebreak_engine::recompute::{micro_batch_bytes, step_bytes_with};

/// The most bytes of tensors that are in memory at once.
pub struct Memory {
    /// While a step is trained.
    pub step: u64,
    /// With `--recompute`.
    pub recomputed: u64,
    /// With `--offload`.
    pub offloaded: u64,
    /// While a step is audited.
    pub audit: u64,
    /// With `--offload`.
    pub offloaded_audit: u64,
    /// While the gradient of one micro-batch is replayed.
    pub micro_batch: u64,
    /// While the scalar reference confirms that a step differs.
    pub confirming: u64,
}

impl Memory {
    pub fn of(program: &Program) -> Memory {
        let bytes = |recomputes, outside, before| {
            step_bytes_with(program, recomputes, Keeping { outside, before, holds: false })
        };
        let step = bytes(false, false, false);
        Memory {
            step,
            recomputed: bytes(true, false, false),
            offloaded: bytes(false, true, false),
            audit: bytes(false, false, true),
            offloaded_audit: bytes(false, true, true),
            micro_batch: micro_batch_bytes(program, false),
            confirming: state_bytes(&program.state()) + step,
        }
    }

    /// An object of JSON with the figures.
    pub fn in_json(&self, mut object: Value) -> Value {
        object["step_bytes"] = self.step.into();
        object["recomputed_step_bytes"] = self.recomputed.into();
        object["offloaded_step_bytes"] = self.offloaded.into();
        object["audit_bytes"] = self.audit.into();
        object["offloaded_audit_bytes"] = self.offloaded_audit.into();
        object["microbatch_bytes"] = self.micro_batch.into();
        object["confirming_bytes"] = self.confirming.into();
        object
    }

    /// The figures in words; `--recompute` has one where it takes less.
    pub fn text(&self) -> String {
        let Memory { step, recomputed, offloaded, audit, offloaded_audit, micro_batch, confirming } = self;
        let [step_text, offloaded, audit, offloaded_audit, micro_batch, confirming] =
            [step, offloaded, audit, offloaded_audit, micro_batch, confirming]
                .map(|bytes| bytes_text(*bytes));
        let recomputed = match recomputed < step {
            true => format!(", {} with --recompute", bytes_text(*recomputed)),
            false => String::new(),
        };
        format!(
            "tensors of a step take {step_text} at most{recomputed}, {offloaded} with --offload\n\
             those of an audited step take {audit}, {offloaded_audit} with --offload, {micro_batch} for one micro-batch; {confirming} confirm a \
             difference"
        )
    }
}
