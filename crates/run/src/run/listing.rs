//! The names that a run has: those that its store lists, or those that follow from its job where the store lists nothing.

use std::ffi::OsStr;
use std::io;
use std::path::Path;

use super::dir::Run;
use super::error::RunError;
use super::{companions, names};

/// The most unexpected files that a listing names.
const UNEXPECTED_MAX: usize = 1000;
/// The folders that runs of every profile may have.
const FOLDERS: [&str; 8] = [
    names::DATA,
    names::EVALUATION,
    names::COMPANIONS,
    names::HEADS,
    names::CHECKPOINTS,
    names::TRACES,
    names::CORRECTIONS,
    names::WITHDRAWN,
];
/// The files of a run outside of its folders.
const TOP: [&str; 12] = [
    names::RUN_JSON,
    names::RECORDING,
    names::JOB,
    names::PROGRAM,
    names::NETWORK,
    names::TRANSCRIPT,
    names::GRADIENTS,
    names::MODEL,
    names::INDEX,
    names::LOCK,
    names::METRICS,
    names::EVENTS,
];
/// The most heads of a run, and the most files of one kind that a store is asked for which lists nothing.
const HEADS_MAX: usize = 1 << 20;
/// The most names of heads over more records than the run can have. Each costs a request of a server, and none is a head.
const BEYOND_MAX: usize = 16;

/// Refuses to ask for so many files, one after another.
fn few(count: u64, of: &str) -> Result<(), String> {
    if count < HEADS_MAX as u64 {
        return Ok(());
    }
    Err(format!(
        "the job promises {count} {of}, and at most {HEADS_MAX} are asked for: ask whoever publishes the run for an index"
    ))
}

/// True if a path is that of a file in a run's folder which the run itself has or may have.
pub fn is_run_file(path: &Path) -> bool {
    let Ok(path) = std::path::absolute(path) else { return false };
    let is_run =
        |folder: &Path| [names::RUN_JSON, names::RECORDING].iter().any(|name| folder.join(name).is_file());
    let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(OsStr::to_str)) else {
        return false;
    };
    let of_run = |folder: &Path| {
        folder.file_name().and_then(OsStr::to_str).is_some_and(|name| {
            (FOLDERS.contains(&name) || name == names::LOGS) && folder.parent().is_some_and(is_run)
        })
    };
    (TOP.contains(&name) && is_run(folder)) || of_run(folder)
}

impl Run {
    /// The entries of a folder of the run, as [`Store::list`](super::Store::list) has them; `None` if the store lists nothing.
    fn entries(&self, folder: &str) -> Result<Option<Vec<String>>, RunError> {
        match self.store.list(folder) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(None),
            entries => entries.map(Some).map_err(RunError::io(&self.layout.root.join(folder))),
        }
    }

    /// The names of all corrections of the run; none if the store lists nothing.
    ///
    /// # Errors
    /// If the folder cannot be read.
    #[doc(hidden)] // for audits alone
    pub fn corrections(&self) -> Result<Vec<String>, RunError> {
        let mut found = self.entries(names::CORRECTIONS)?.unwrap_or_default();
        found.retain(|name| name.starts_with("step-") && !name.ends_with('/'));
        found.sort();
        Ok(found.into_iter().map(|name| format!("{}/{name}", names::CORRECTIONS)).collect())
    }

    /// A line about what nobody sees where the run's store lists nothing.
    ///
    /// # Errors
    /// If the store cannot be asked.
    #[doc(hidden)] // for audits alone
    pub fn unlisted(&self) -> Result<Option<String>, RunError> {
        let line = || "whether the run has corrections, and heads that the job does not promise: its server lists no files, and it has no index";
        Ok(self.entries("")?.is_none().then(|| line().to_string()))
    }

    /// The sizes of all published heads, ascending. Files without a head's name are skipped: [`Run::unexpected_files`] lists
    /// them. No run has more records than its job's steps and two: the first 16 larger sizes are given as well, to be named as
    /// damaged. A store that lists nothing is asked for the heads that the job promises.
    ///
    /// # Errors
    /// If the folder cannot be read, or holds too many heads.
    pub fn head_sizes(&self) -> Result<Vec<u64>, RunError> {
        let folder = self.layout.heads();
        let Some(entries) = self.entries(names::HEADS)? else { return self.promised_heads() };
        let mut sizes = Vec::new();
        for name in entries {
            sizes.extend(name.parse::<u64>().ok().filter(|size| format!("{size:012}") == name));
            if sizes.len() > HEADS_MAX {
                return Err(RunError::invalid(&folder, format!("it holds more than {HEADS_MAX} heads")));
            }
        }
        sizes.sort_unstable();
        let records = u64::from(self.job().steps) + 2;
        sizes.truncate(sizes.partition_point(|size| *size <= records) + BEYOND_MAX);
        Ok(sizes)
    }

    /// The sizes of the heads that a trainer publishes by the job, as far as they are there.
    fn promised_heads(&self) -> Result<Vec<u64>, RunError> {
        let (steps, every) = (u64::from(self.job().steps), u64::from(self.job().commit.head_every).max(1));
        few(steps / every, "heads").map_err(|why| RunError::invalid(&self.layout.heads(), why))?;
        let between = (1..=steps / every).map(|number| number * every).filter(|step| *step < steps);
        let sizes = [1].into_iter().chain(between.map(|step| step + 1)).chain([steps + 2]);
        self.there(sizes, |size| names::head(*size))
    }

    /// Those of these numbers whose file is there.
    fn there<N>(
        &self,
        numbers: impl Iterator<Item = N>,
        name: impl Fn(&N) -> String,
    ) -> Result<Vec<N>, RunError> {
        let mut found = Vec::new();
        for number in numbers {
            let file = self.at(name(&number));
            match self.store.length(&name(&number)) {
                Ok(_) => found.push(number),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(RunError::io(file.path())(error)),
            }
        }
        Ok(found)
    }

    /// Files and folders whose names no part of a run has: their names, relative to the run's folder, sorted. None are found in a
    /// store that lists nothing.
    ///
    /// # Errors
    /// If something is neither a plain file nor a folder.
    #[doc(hidden)] // for the layers above
    pub fn unexpected_files(&self) -> Result<Vec<String>, RunError> {
        let numbered = |name: &str, before: &str, width: usize, after: &str| {
            let digits = name.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
            digits.is_some_and(|d| d.len() >= width && d.bytes().all(|b| b.is_ascii_digit()))
        };
        let data_number = |name: &str, after: &str| -> Option<usize> {
            let number = name.strip_prefix("data-")?.strip_suffix(after)?.parse().ok()?;
            (name == format!("data-{number}{after}")).then_some(number)
        };
        let is_below = |number: Option<usize>, count: usize| number.is_some_and(|number| number < count);
        let files = self.file.data.len();
        let evaluated = self.job().evaluation.as_ref().and_then(|e| e.files.as_ref()).map_or(0, Vec::len);
        let expected = |folder: &str, name: &str| match folder {
            "" => TOP.contains(&name) && (name != names::NETWORK || self.job().network.is_some()),
            names::DATA => is_below(data_number(name, ".bin").or(data_number(name, ".tree")), files),
            names::EVALUATION => is_below(data_number(name, ".bin"), evaluated),
            names::COMPANIONS => companions::is_name(name),
            names::HEADS => numbered(name, "", 12, ""),
            names::CHECKPOINTS => numbered(name, "step-", 9, ".safetensors"),
            names::CORRECTIONS => {
                numbered(name, "step-", 9, "") || names::CORRECTS.ends_with(&format!("/{name}"))
            }
            names::WITHDRAWN => name.split_once('-').is_some_and(|(number, _)| numbered(number, "", 3, "")),
            _ => numbered(name, "step-", 9, ""),
        };
        let mut folders = FOLDERS.to_vec();
        // The folder of logs belongs only to runs of the logged profile. In the exact profile it is listed as a whole.
        folders.extend(self.job().rounding.as_ref().map(|_| names::LOGS));
        let mut found = Vec::new();
        for folder in [""].iter().chain(&folders) {
            let path = self.layout.root.join(folder);
            for name in self.entries(folder)?.unwrap_or_default() {
                let whole = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
                let fine = match name.strip_suffix('/') {
                    Some(name) => folder.is_empty() && folders.contains(&name),
                    None => {
                        self.plain(&whole)?;
                        expected(folder, &name)
                    }
                };
                if !fine {
                    found.push(whole.trim_end_matches('/').to_string());
                }
                if found.len() > UNEXPECTED_MAX {
                    let why = format!("more than {UNEXPECTED_MAX} files are there that are not a run's");
                    return Err(RunError::invalid(&path, why));
                }
            }
        }
        found.sort();
        Ok(found)
    }

    /// Refuses a name under which something other than a plain file is stored.
    fn plain(&self, name: &str) -> Result<(), RunError> {
        match self.at(name).length_or_0() {
            Err(RunError::Malformed { path, .. }) => {
                let why = "a run holds plain files and folders only (links are not followed)";
                Err(RunError::invalid(&path, why))
            }
            length => length.map(drop),
        }
    }

    /// The steps whose checkpoints are there, ascending. Files without a checkpoint's name are skipped: [`Run::unexpected_files`]
    /// lists them. A store that lists nothing is asked for the checkpoints that the job promises.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn checkpoint_steps(&self) -> Result<Vec<u32>, RunError> {
        let step = |name: String| {
            let number = name.strip_prefix("step-")?.strip_suffix(".safetensors")?.parse().ok()?;
            // Accept only the canonical spelling of a number: every listed step must be one that `checkpoint` opens.
            (format!("step-{number:09}.safetensors") == name).then_some(number)
        };
        let Some(all) = self.entries(names::CHECKPOINTS)? else {
            let (steps, every) = (self.job().steps, self.job().checkpoint.every.max(1));
            let folder = self.layout.root.join(names::CHECKPOINTS);
            few((steps / every).into(), "checkpoints").map_err(|why| RunError::invalid(&folder, why))?;
            let made = (0..=steps).step_by(every as usize).chain((steps % every != 0).then_some(steps));
            return self.there(made, |step| names::checkpoint(*step));
        };
        let mut steps: Vec<u32> = all.into_iter().filter_map(step).collect();
        steps.sort_unstable();
        Ok(steps)
    }
}
