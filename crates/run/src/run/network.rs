//! The network file of a program from a file, held to the program. Contract: `docs/NETWORKS.md`.

use std::path::Path;

use super::dir::Run;
use super::disk;
use super::error::RunError;
use super::job_files::{JobFiles, refuse_private_key};
use super::names;
use tiebreak_contract::program::network::{NETWORK_MAX, NetworkModel, compile, model};
use tiebreak_contract::program::step::Program;
use tiebreak_job::identity::program_digest;
use tiebreak_job::{Evaluable, Job};

/// Reads a network file that somebody names.
///
/// # Errors
/// If the file cannot be read, is no network, gives another program, or its model cannot be evaluated.
pub fn named(path: &Path, program: &Program) -> Result<(NetworkModel, String), RunError> {
    let text = disk::read_text(path, NETWORK_MAX)?;
    let (own, model) = model(&text).map_err(|error| RunError::invalid(path, error.to_string()))?;
    same(&own, program).map_err(refused(path))?;
    Ok((model, text))
}

/// The network file that a run keeps. `None` if the run keeps none.
///
/// # Errors
/// As [`named`].
pub fn of_run(run: &Run) -> Result<Option<(NetworkModel, String)>, RunError> {
    let file = run.at(names::NETWORK);
    if run.job().network.is_none() || !file.is_here() {
        return Ok(None);
    }
    let invalid = |why| RunError::invalid(file.path(), why);
    let text = file.read_text(NETWORK_MAX)?;
    let (own, model) = model(&text).map_err(|error| invalid(error.to_string()))?;
    same(&own, run.program()).map_err(invalid)?;
    Ok(Some((model, text)))
}

/// The text of the network file that a job names, which has to give the job's program. If the job has evaluations, the model of the
/// file can be evaluated in micro-batches.
///
/// # Errors
/// If the job may not reach the file, or it cannot be read, is a private key or no network, or does not fit the job.
pub fn of_job(files: &JobFiles, job: &Job, program: &Program) -> Result<Option<String>, RunError> {
    let Some(name) = &job.network else { return Ok(None) };
    let path = files.path("network", name)?;
    let text = disk::read_text(&path, NETWORK_MAX)?;
    refuse_private_key(&path, text.as_bytes())?;
    let invalid = |why: String| RunError::invalid(&path, why);
    let own = match job.evaluation {
        None => compile(&text).map_err(|error| invalid(error.to_string()))?,
        Some(_) => {
            let (own, model) = model(&text).map_err(|error| invalid(error.to_string()))?;
            if let Some(why) = model.batch_error(job, model.micro_batch) {
                return Err(invalid(why));
            }
            own
        }
    };
    same(&own, program).map_err(refused(&path))?;
    Ok(Some(text))
}

/// The error about a file that somebody named.
fn refused(path: &Path) -> impl FnOnce(String) -> RunError + '_ {
    move |why| RunError::Refused(format!("{}: {why}", path.display()))
}

/// Compares the program of a network file with that of the job.
fn same(own: &Program, due: &Program) -> Result<(), String> {
    let [own, due] = [own, due].map(program_digest);
    if own == due {
        return Ok(());
    }
    Err(format!(
        "the network gives program {own}, and the job's is {due}: name the network file that gave the job's program"
    ))
}
