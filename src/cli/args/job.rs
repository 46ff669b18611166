//! A job file as an argument.

use std::path::PathBuf;

use tiebreak_run::run::{JobFiles, RunError};

/// A job file as a command's argument, and where what it names may lie.
#[derive(clap::Args)]
pub struct JobArgs {
    /// The job file.
    pub job: PathBuf,
    /// A folder whose files the job may name too, besides those in its own folder.
    #[arg(long, value_name = "DIR")]
    pub data_root: Option<PathBuf>,
}

impl JobArgs {
    /// What the job may reach.
    pub fn files(&self) -> Result<JobFiles, RunError> {
        JobFiles::new(&self.job, self.data_root.as_deref())
    }
}
