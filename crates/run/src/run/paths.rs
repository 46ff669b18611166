//! Where everything of a run is. Layout: `docs/RUN-FORMAT.md`.

use std::fs;
use std::path::{Path, PathBuf};

use super::error::RunError;

/// Where everything of a run is.
#[derive(Clone, Debug)]
pub struct RunPaths {
    /// The run's folder.
    pub root: PathBuf,
}

impl RunPaths {
    /// What identifies the run.
    pub fn run_json(&self) -> PathBuf {
        self.root.join("run.json")
    }
    /// The job file.
    pub fn job(&self) -> PathBuf {
        self.root.join("job.toml")
    }
    /// The program.
    pub fn program(&self) -> PathBuf {
        self.root.join("program.bin")
    }
    /// The folder of the data files.
    pub fn data(&self) -> PathBuf {
        self.root.join("data")
    }
    /// A data file.
    pub fn data_file(&self, number: usize) -> PathBuf {
        self.data().join(format!("data-{number}.bin"))
    }
    /// The tree of a data file, by which parts of it are checked.
    pub fn data_tree(&self, number: usize) -> PathBuf {
        self.data().join(format!("data-{number}.tree"))
    }
    /// The gradient roots of all micro-batches, for jobs that commit them.
    pub fn gradients(&self) -> PathBuf {
        self.root.join("gradients")
    }
    /// The file of records.
    pub fn transcript(&self) -> PathBuf {
        self.root.join("transcript")
    }
    /// The folder of signed heads.
    pub fn heads(&self) -> PathBuf {
        self.root.join("heads")
    }
    /// The head over `size` records.
    pub fn head(&self, size: u64) -> PathBuf {
        self.heads().join(format!("{size:012}"))
    }
    /// The folder of checkpoints.
    pub(crate) fn checkpoints(&self) -> PathBuf {
        self.root.join("checkpoints")
    }
    /// The state after a step.
    pub fn checkpoint(&self, step: u32) -> PathBuf {
        self.checkpoints().join(format!("step-{step:09}.safetensors"))
    }
    /// The folder of traces, for jobs that commit operators.
    pub(crate) fn traces(&self) -> PathBuf {
        self.root.join("traces")
    }
    /// The trace of a step.
    pub fn trace(&self, step: u32) -> PathBuf {
        self.traces().join(format!("step-{step:09}"))
    }
    /// The folder of rounding logs.
    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }
    /// The rounding log of a step, in the logged profile.
    pub fn log(&self, step: u32) -> PathBuf {
        self.logs().join(format!("step-{step:09}"))
    }
    /// The released model: the parameters after the last step.
    pub fn model(&self) -> PathBuf {
        self.root.join("model.safetensors")
    }
    /// The folder of the files to evaluate with, for jobs that name some.
    pub(crate) fn evaluation(&self) -> PathBuf {
        self.root.join("evaluation")
    }
    /// A file to evaluate with.
    pub fn evaluation_file(&self, number: usize) -> PathBuf {
        self.evaluation().join(format!("data-{number}.bin"))
    }
    /// The folder of what makes its model usable: configuration, tokenizer.
    pub fn companions(&self) -> PathBuf {
        self.root.join("companions")
    }
    /// Metrics while it trains, a line of JSON a step.
    pub fn metrics(&self) -> PathBuf {
        self.root.join("metrics.jsonl")
    }
    /// The same for TensorBoard, which looks for `tfevents` in a name.
    pub(crate) fn events(&self) -> PathBuf {
        self.root.join("events.out.tfevents.tiebreak")
    }
    /// Held by the writer.
    pub(crate) fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    /// Checks that a new run can be made here: the folder is not there, empty, or holds what an interrupted beginning
    /// leaves. `run.json` is written last, so nothing that a trainer writes later can be there without it.
    ///
    /// # Errors
    /// If the folder holds something else, or cannot be read.
    pub fn check_unused(&self) -> Result<(), RunError> {
        let refused = |name: &str| {
            let why = format!("{} holds {name}, but no run.json: choose another folder", self.root.display());
            Err(RunError::Refused(why))
        };
        let Ok(entries) = fs::read_dir(&self.root) else { return Ok(()) };
        for entry in entries {
            let name = entry.map_err(RunError::io(&self.root))?.file_name().to_string_lossy().into_owned();
            let empty =
                |folder: PathBuf| fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none());
            let only_initial = |folder: &Path| {
                fs::read_dir(folder).is_ok_and(|entries| {
                    entries.flatten().all(|entry| {
                        let name = entry.file_name();
                        name == "step-000000000.safetensors" || name == ".step-000000000.safetensors.partial"
                    })
                })
            };
            let fine = match name.as_str() {
                "data" | "evaluation" | "companions" | "job.toml" | "program.bin" => true,
                "heads" | "traces" | "logs" => empty(self.root.join(&name)),
                // A run that begins from weights has its initial state before it has a run.json.
                "checkpoints" => only_initial(&self.checkpoints()),
                other => other.starts_with('.') && other.ends_with(".partial"),
            };
            if !fine {
                return refused(&name);
            }
        }
        Ok(())
    }
}
