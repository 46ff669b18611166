//! A client's order, and the check that a run is of it.

use std::path::PathBuf;

use crate::cli::view::report::{Exit, Failure};
use tiebreak_audit::checks::Checked;
use tiebreak_job::canonical::settings_that_differ;
use tiebreak_job::identity::program_digest;
use tiebreak_record::commit::digest::Digest;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::{JobFiles, read_job, read_program};

/// The order, fixed before the trainer began.
#[derive(clap::Args, Default)]
#[command(next_help_heading = "Order")]
pub struct Expectations {
    /// Job file that was ordered.
    ///
    /// The run's job must have the same settings, and its program the same digest.
    #[arg(long, value_name = "JOB", hide_short_help = true)]
    expect_job: Option<PathBuf>,
    /// Digest of the data that were ordered.
    ///
    /// `tiebreak job check` and `tiebreak inspect` print the digest. A run that hides is compared by its salt key and the files.
    #[arg(long, value_name = "DIGEST", hide_short_help = true)]
    expect_data: Option<Digest>,
}

/// The parts of the order that the run was held to.
pub struct Expected {
    passed: Vec<String>,
    not_checked: Vec<String>,
}

impl Expectations {
    /// Holds a run to what was ordered.
    ///
    /// # Errors
    /// If it is of something else (exit 1: nobody cheated, but this is not what was ordered), the job file cannot be read or is wrong,
    /// or the run hides which data it is of.
    pub fn check(&self, run: &Run) -> Result<Expected, Failure> {
        let mut expected = Expected { passed: Vec::new(), not_checked: Vec::new() };
        match &self.expect_job {
            None => expected
                .not_checked
                .push("whether the job is the one that was ordered: give --expect-job".into()),
            Some(path) => {
                let (_, job) = read_job(path)?;
                let different = settings_that_differ(&job.settings(), &run.job().settings());
                if !different.is_empty() {
                    // An error is one line.
                    let settings: Vec<String> =
                        different.iter().map(|(key, wanted, is)| format!("{key}: {wanted} | {is}")).collect();
                    let why = format!(
                        "the run is of another job than {}; these settings differ (ordered | run): {}",
                        path.display(),
                        settings.join("; ")
                    );
                    return Err(Failure::new(Exit::Diverges, why));
                }
                let ordered = program_digest(&read_program(&JobFiles::new(path, None)?, &job)?.0);
                if ordered != run.file.program {
                    let programs = run.file.program.not(&ordered);
                    let why =
                        format!("the run is of another program than {} names: {programs}", path.display());
                    return Err(Failure::new(Exit::Diverges, why));
                }
                expected.passed.push("the job and its program are those of --expect-job".into());
            }
        }
        let data = match (self.expect_data, run.job().hides()) {
            // Success would say that the data are the ordered ones.
            (Some(_), true) if run.computation.is_closed() => {
                let why = "--expect-data cannot be decided: the run hides its data (commit.scheme 1)";
                let help = "name the run's salt key with --salt-key FILE, or leave --expect-data out";
                return Err(Failure::new(Exit::Undecided, why).help(help));
            }
            (Some(_), true) => run.plain_data()?,
            _ => run.file.data_root(),
        };
        match self.expect_data {
            None => expected
                .not_checked
                .push("whether the data are those that were ordered: give --expect-data".into()),
            Some(wanted) if wanted != data => {
                let why = format!("the run is of other data: --expect-data is {wanted}, the run has {data}");
                return Err(Failure::new(Exit::Diverges, why));
            }
            Some(_) => expected.passed.push("the data are those of --expect-data".into()),
        }
        Ok(expected)
    }
}

impl Expected {
    /// Adds this to the checks of an audit.
    pub fn note(self, checked: &mut Checked) {
        checked.passed.extend(self.passed);
        checked.not_checked.extend(self.not_checked);
    }
}
