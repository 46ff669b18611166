//! What training says at its end: the work that was done, and the command that audits the run.

use std::path::{Path, PathBuf};

use crate::cli::view::next::Next;
use tiebreak_job::initial::InitialOrigin;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::job_files::folder_and_name;
use tiebreak_run::run::shell;

/// The places that the command line names.
pub struct Named<'a> {
    /// The job file, if the run began here.
    pub job: Option<&'a Path>,
    /// The folder or the address of the data files, if the run is gone on with.
    pub data: Option<&'a Path>,
}

impl Named<'_> {
    /// The folder or the address of the data files that the run does not hold; `None` if it holds them, or they are in several places,
    /// or nobody said where.
    pub fn data_of(&self, run: &Run) -> Option<PathBuf> {
        if run.holds_data() {
            return None;
        }
        if let Some(data) = self.data {
            return Some(data.to_path_buf());
        }
        let mut places: Vec<PathBuf> = run
            .job()
            .data
            .files
            .paths()
            .into_iter()
            .map(|name| self.folder_of(name))
            .collect::<Option<_>>()?;
        places.dedup();
        places.pop().filter(|_| places.is_empty())
    }

    /// The folder or the address of a file that the job names.
    fn folder_of(&self, name: &str) -> Option<PathBuf> {
        if tiebreak_remote::is_address(Path::new(name)) {
            return Some(folder_and_name(name).ok()?.0.into());
        }
        let folder = self.job?.parent()?.join(name).parent()?.to_path_buf();
        Some(if folder.as_os_str().is_empty() { ".".into() } else { folder })
    }

    /// The command that audits the run, with the files that the job names and the run does not hold.
    pub fn audit(&self, run: &Run, of: &str) -> Next {
        let mut command = format!("tiebreak audit {of}");
        let mut unknown = Vec::new();
        if let InitialOrigin::Weights { .. } = run.file.origin {
            for name in run.job().init.files() {
                command += " --weights ";
                match self.job.and_then(Path::parent) {
                    _ if tiebreak_remote::is_address(Path::new(name)) => command += &shell::word(name),
                    Some(folder) => command += &shell::path(&folder.join(name)),
                    None => {
                        command += "FILE";
                        unknown.push("its files of weights");
                    }
                }
            }
        }
        match self.data_of(run) {
            Some(place) => command += &format!(" --data {}", shell::path(&place)),
            None if run.holds_data() => {}
            None => {
                command += " --data FOLDER";
                unknown.push("its data files");
            }
        }
        unknown.dedup();
        let next = Next::new("audit it with", command);
        match unknown.is_empty() {
            true => next,
            false => next.note(format!("where {} are", unknown.join(" and "))),
        }
    }
}

/// The work that was done, in words.
pub fn done_text(steps: u64, out: &Path) -> String {
    match steps {
        0 => format!(
            "the run was complete already (for more steps, begin a run from its end: a job with [init] run = {} and optimizer_state = true)",
            toml_text(out)
        ),
        steps => format!("trained {steps} steps"),
    }
}

/// A path as a text in a job file.
pub fn toml_text(path: &Path) -> String {
    serde_json::Value::from(path.to_string_lossy()).to_string()
}
