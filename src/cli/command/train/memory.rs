//! The memory that training takes here, and whether there is so much.

use crate::cli::args::around::{AroundArgs, Ways};
#[cfg(feature = "gpu")]
use crate::cli::args::device_memory;
use crate::cli::args::engine::EngineArgs;
use crate::cli::args::limits::Limits;
use crate::cli::view::report::Failure;
use tiebreak_audit::plan;
use tiebreak_run::run::dir::Run;
use tiebreak_train::ranks::slots::SlotPlan;

/// Refuses training that needs more memory than there is, here or on the GPU.
pub fn check_memory(
    run: &Run,
    (engine, around, limits): (&EngineArgs, &AroundArgs, &Limits),
    slots: Option<&SlotPlan>,
) -> Result<(), Failure> {
    let needed = |ways: Ways| host_memory(run, engine, ways, slots);
    around.ways(engine).check_memory(limits, "training", run, &needed)?;
    #[cfg(feature = "gpu")]
    {
        let elsewhere = slots.map(SlotPlan::most_of_all).map_or(0, |(most, all)| all - most);
        let recomputes = around.saving.recompute.is_asked;
        device_memory::check(run.job(), run.program(), engine, recomputes, elsewhere)?;
    }
    Ok(())
}

/// The memory that training takes on this side of an engine: a GPU has the tensors of a step.
pub fn host_memory(run: &Run, engine: &EngineArgs, ways: Ways, slots: Option<&SlotPlan>) -> u64 {
    // A state passes tensor by tensor, and waits for a device in two buffers.
    let step = match engine.is_on_host() {
        true => rank_bytes(run, ways, slots),
        false => run.tensor_memory(),
    };
    plan::memory_with(run, step)
}

/// The most bytes of tensors that a rank has at once in a step. Ranks with as large a share have as many.
pub fn rank_bytes(run: &Run, ways: Ways, slots: Option<&SlotPlan>) -> u64 {
    match slots {
        None => ways.step_bytes(run.program(), false),
        Some(slots) => {
            let bytes =
                |rank| ways.share_bytes(run.program(), &slots.share(run.program(), rank).update, false);
            slots.heaviest().map(bytes).into_iter().max().unwrap_or(0)
        }
    }
}
