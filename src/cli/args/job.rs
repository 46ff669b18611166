//! A job file as an argument.

use std::path::PathBuf;

use tiebreak_run::run::{JobFiles, RunError};

/// A job file as a command's argument, and the folders of the files that it names.
#[derive(clap::Args)]
pub struct JobArgs {
    /// Job file.
    pub job: PathBuf,
    /// Second folder whose files the job may name, besides its own folder.
    #[arg(long, value_name = "DIR")]
    pub data_root: Option<PathBuf>,
}

impl JobArgs {
    /// The files that the job may reach.
    pub fn files(&self) -> Result<JobFiles, RunError> {
        JobFiles::new(&self.job, self.data_root.as_deref())
    }
}
