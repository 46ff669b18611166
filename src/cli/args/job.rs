//! A job file as an argument.

use std::path::PathBuf;

use crate::cli::args::place::job_files;
use tiebreak_run::run::{JobFiles, RunError};

/// A job file as a command's argument, and the folders of the files that it names.
#[derive(clap::Args)]
pub struct JobArgs {
    /// Job file.
    pub job: PathBuf,
    /// Another folder whose files the job may name, besides its own, or an address; once for each.
    ///
    /// A job reaches files at addresses only below the addresses given here: your credentials may open others.
    #[arg(long, value_name = "DIR")]
    pub data_root: Vec<PathBuf>,
}

impl JobArgs {
    /// The files that the job may reach.
    pub fn files(&self) -> Result<JobFiles, RunError> {
        job_files(&self.job, &self.data_root)
    }
}
