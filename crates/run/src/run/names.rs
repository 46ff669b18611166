//! The names of a run's files, relative to the run. Layout: `docs/RUN-FORMAT.md`.

/// The file that identifies the run.
pub const RUN_JSON: &str = "run.json";
/// The file that identifies a run whose batches are still to come, in place of `run.json`.
pub const RECORDING: &str = "recording.json";
/// The job file.
pub const JOB: &str = "job.toml";
/// The program.
pub const PROGRAM: &str = "program.bin";
/// The network file that gave the program.
pub const NETWORK: &str = "network.json";
/// The folder of the data files.
pub const DATA: &str = "data";
/// The folder of the files to evaluate with.
pub const EVALUATION: &str = "evaluation";
/// The folder of the model's companion files.
pub const COMPANIONS: &str = "companions";
/// The file of records.
pub const TRANSCRIPT: &str = "transcript";
/// The gradient roots of all micro-batches.
pub const GRADIENTS: &str = "gradients";
/// The folder of signed heads.
pub const HEADS: &str = "heads";
/// The folder of checkpoints.
pub const CHECKPOINTS: &str = "checkpoints";
/// The folder of traces.
pub const TRACES: &str = "traces";
/// The folder of rounding logs.
pub const LOGS: &str = "logs";
/// The folder of corrections: of this run, and of the run that this one corrects.
pub const CORRECTIONS: &str = "corrections";
/// The correction by which this run takes the place of another one.
pub const CORRECTS: &str = "corrections/corrects";
/// The folder of records that were withdrawn before a head covered them.
pub const WITHDRAWN: &str = "withdrawn";
/// The released model.
pub const MODEL: &str = "model.safetensors";
/// The metrics of the training, a line of JSON a step.
pub const METRICS: &str = "metrics.jsonl";
/// The same metrics for TensorBoard, which looks for `tfevents` in a name.
pub const EVENTS: &str = "events.out.tfevents.tiebreak";
/// The list of the run's files, for readers of a server that lists none.
pub const INDEX: &str = "index";
/// The file that the writer locks.
pub const LOCK: &str = "lock";

/// A data file.
pub fn data_file(number: usize) -> String {
    format!("{DATA}/data-{number}.bin")
}

/// The tree of a data file, which checks ranges of the file.
pub fn data_tree(number: usize) -> String {
    format!("{DATA}/data-{number}.tree")
}

/// A file to evaluate with.
pub fn evaluation_file(number: usize) -> String {
    format!("{EVALUATION}/data-{number}.bin")
}

/// A file beside the weights.
pub fn companion(name: &str) -> String {
    format!("{COMPANIONS}/{name}")
}

/// The head over `size` records.
pub fn head(size: u64) -> String {
    format!("{HEADS}/{size:012}")
}

/// The state after a step.
pub fn checkpoint(step: u32) -> String {
    format!("{CHECKPOINTS}/step-{step:09}.safetensors")
}

/// The trace of a step.
pub fn trace(step: u32) -> String {
    format!("{TRACES}/step-{step:09}")
}

/// The rounding log of a step.
pub fn log(step: u32) -> String {
    format!("{LOGS}/step-{step:09}")
}

/// The correction that takes back the records from a step on.
pub fn correction(step: u32) -> String {
    format!("{CORRECTIONS}/step-{step:09}")
}

/// A file of withdrawal `number`, from 1.
pub fn withdrawn(number: u32, name: &str) -> String {
    format!("{WITHDRAWN}/{number:03}-{name}")
}

/// The name under which a file is written until it is whole.
pub fn partial(name: &str) -> String {
    let (folder, last) = name.rsplit_once('/').map_or(("", name), |(folder, last)| (folder, last));
    let slash = if folder.is_empty() { "" } else { "/" };
    format!("{folder}{slash}.{last}.partial")
}
