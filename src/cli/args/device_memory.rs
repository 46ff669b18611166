//! The memory of a GPU, which no driver tells through wgpu: what a job's steps take of it is planned, and held to the variable
//! that says it.

use crate::cli::args::engine::{EngineArgs, EngineKind};
use crate::cli::view::report::{Exit, Failure, bytes_text};
use tiebreak_contract::program::step::Program;
use tiebreak_gpu::DeviceMemory;
use tiebreak_job::Job;
use tiebreak_job::spec::ProgramSource;

/// The memory of the GPU, in bytes, if somebody said it.
fn limit() -> Result<Option<u64>, Failure> {
    let Some(text) = std::env::var("TIEBREAK_GPU_MEMORY").ok().filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let mib: u64 = text.parse().map_err(|_| {
        let why = format!("TIEBREAK_GPU_MEMORY is {text:?}; it has to be a number of MiB");
        Failure::new(Exit::Usage, why).help("8192 is a GPU of 8 GiB")
    })?;
    Ok(Some(mib.saturating_mul(1 << 20)))
}

/// Refuses training through wgpu that needs more memory than the GPU has. Other ranks hold `elsewhere` bytes of the optimizer's state.
///
/// # Errors
/// If the steps do not fit, with the largest micro-batch that does.
pub fn check(
    job: &Job,
    program: &Program,
    engine: &EngineArgs,
    recompute: bool,
    elsewhere: u64,
) -> Result<(), Failure> {
    let limit = match engine.engine {
        EngineKind::Wgpu => limit()?,
        _ => None,
    };
    let Some(limit) = limit else { return Ok(()) };
    let needed = DeviceMemory::of(program, recompute)?.total().saturating_sub(elsewhere);
    if needed <= limit {
        return Ok(());
    }
    let why = format!(
        "a step needs about {} of the GPU's memory, and TIEBREAK_GPU_MEMORY says that it has {}",
        bytes_text(needed),
        bytes_text(limit)
    );
    let help = match fitting(job, limit.saturating_add(elsewhere), recompute) {
        Some((micro_batch, bytes)) => {
            format!(
                "micro_batch = {micro_batch} in the job needs about {}",
                bytes_text(bytes - elsewhere.min(bytes))
            )
        }
        None => "no micro-batch fits; `--engine cpu` computes the same bits in main memory".into(),
    };
    Err(Failure::new(Exit::Undecided, why).help(help))
}

/// The largest smaller micro-batch that fits, among halves of the job's, and its memory. The batch stays as large.
fn fitting(job: &Job, limit: u64, recompute: bool) -> Option<(u32, u64)> {
    let whole = job.model()?.batch.micro_batch;
    let halves = std::iter::successors(Some(whole / 2), |size| Some(size / 2));
    halves.take_while(|&size| size > 0).find_map(|micro_batch| {
        let mut less = job.clone();
        let ProgramSource::Model(model) = &mut less.source else { return None };
        let batch = &mut model.batch;
        batch.micro_batches = batch.micro_batches.saturating_mul(whole.div_ceil(micro_batch));
        batch.micro_batch = micro_batch;
        let bytes = DeviceMemory::of(&less.program(None).ok()?, recompute).ok()?.total();
        (bytes <= limit).then_some((micro_batch, bytes))
    })
}
