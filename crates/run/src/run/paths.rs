//! The paths of a run's files in a folder, which errors use for runs in any store.

use std::path::PathBuf;

use super::names;

/// The paths of a run's files.
#[derive(Clone, Debug)]
pub struct RunPaths {
    /// The run's folder, or the name of its store.
    pub root: PathBuf,
}

impl RunPaths {
    /// The file that identifies the run.
    pub fn run_json(&self) -> PathBuf {
        self.root.join(names::RUN_JSON)
    }
    /// The job file.
    pub fn job(&self) -> PathBuf {
        self.root.join(names::JOB)
    }
    /// The program.
    pub fn program(&self) -> PathBuf {
        self.root.join(names::PROGRAM)
    }
    /// The folder of the data files.
    pub fn data(&self) -> PathBuf {
        self.root.join(names::DATA)
    }
    /// A data file.
    pub fn data_file(&self, number: usize) -> PathBuf {
        self.root.join(names::data_file(number))
    }
    /// The tree of a data file, which checks ranges of the file.
    pub fn data_tree(&self, number: usize) -> PathBuf {
        self.root.join(names::data_tree(number))
    }
    /// The gradient roots of all micro-batches, for jobs that commit them.
    pub fn gradients(&self) -> PathBuf {
        self.root.join(names::GRADIENTS)
    }
    /// The file of records.
    pub fn transcript(&self) -> PathBuf {
        self.root.join(names::TRANSCRIPT)
    }
    /// The folder of signed heads.
    pub fn heads(&self) -> PathBuf {
        self.root.join(names::HEADS)
    }
    /// The head over `size` records.
    pub fn head(&self, size: u64) -> PathBuf {
        self.root.join(names::head(size))
    }
    /// The state after a step.
    pub fn checkpoint(&self, step: u32) -> PathBuf {
        self.root.join(names::checkpoint(step))
    }
    /// The trace of a step.
    pub fn trace(&self, step: u32) -> PathBuf {
        self.root.join(names::trace(step))
    }
    /// The folder of rounding logs.
    pub fn logs(&self) -> PathBuf {
        self.root.join(names::LOGS)
    }
    /// The rounding log of a step, in the logged profile.
    pub fn log(&self, step: u32) -> PathBuf {
        self.root.join(names::log(step))
    }
    /// The released model: the parameters after the last step.
    pub fn model(&self) -> PathBuf {
        self.root.join(names::MODEL)
    }
    /// A file to evaluate with.
    pub fn evaluation_file(&self, number: usize) -> PathBuf {
        self.root.join(names::evaluation_file(number))
    }
    /// The folder of the model's companion files: configuration, tokenizer.
    pub fn companions(&self) -> PathBuf {
        self.root.join(names::COMPANIONS)
    }
    /// The metrics of the training, a line of JSON a step.
    pub fn metrics(&self) -> PathBuf {
        self.root.join(names::METRICS)
    }
    /// The file that the writer locks.
    pub(crate) fn lock(&self) -> PathBuf {
        self.root.join(names::LOCK)
    }
}
