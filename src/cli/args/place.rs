//! A run, or data files, by folder or by address.

use std::path::{Path, PathBuf};

use super::cache::CacheArgs;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::job_files::{Kind, folder_and_name};
use tiebreak_run::run::reader::Salts;
use tiebreak_run::run::{Folder, JobFiles, RunError, Stored};

/// Opens the run in a folder or at an address.
///
/// # Errors
/// As [`Run::open_by`]; also if this build reads no address of that kind, or nobody answers there.
pub fn run_at(place: &Path, salts: Salts) -> Result<Run, RunError> {
    match tiebreak_remote::is_address(place) {
        true => Run::of_by(tiebreak_remote::open(&place.to_string_lossy())?, salts),
        false => Run::open_by(place, salts),
    }
}

/// A file that a command line names, by a path or by an address.
///
/// # Errors
/// If this build reads no address of that kind, or the address names no file.
pub fn file_at(place: &Path) -> Result<Stored, RunError> {
    if !tiebreak_remote::is_address(place) {
        return Ok(place.into());
    }
    let address = place.to_string_lossy();
    let (folder, name) = folder_and_name(&address)?;
    let store = tiebreak_remote::open_files(folder)?;
    Ok(Stored::new(&store, Path::new(folder), name))
}

/// [`file_at`] of several files.
///
/// # Errors
/// As [`file_at`].
pub fn files_at(places: &[PathBuf]) -> Result<Vec<Stored>, RunError> {
    places.iter().map(|place| file_at(place)).collect()
}

/// The files that a job may name: those of its own folder, and of these folders and addresses.
///
/// # Errors
/// If a folder is not there, or this build reads no address of that kind.
pub fn job_files(job: &Path, roots: &[PathBuf]) -> Result<JobFiles, RunError> {
    job_files_through(job, roots, &CacheArgs::default())
}

/// [`job_files`], of which those at addresses are read through a cache, if there is one.
///
/// # Errors
/// As [`job_files`].
pub fn job_files_through(job: &Path, roots: &[PathBuf], cache: &CacheArgs) -> Result<JobFiles, RunError> {
    let (addresses, folders): (Vec<&PathBuf>, Vec<&PathBuf>) =
        roots.iter().partition(|root| tiebreak_remote::is_address(root));
    let files = JobFiles::reaching(job, folders.into_iter().map(PathBuf::as_path))?;
    let addresses: Vec<String> =
        addresses.iter().map(|address| address.to_string_lossy().into_owned()).collect();
    addresses.iter().try_for_each(|address| tiebreak_remote::open_files(address).map(drop))?;
    let cache = cache.clone();
    Ok(files.with_addresses(addresses, move |kind, address| {
        cache.before(match kind {
            Kind::Run => tiebreak_remote::open(address)?,
            Kind::Files => tiebreak_remote::open_files(address)?,
        })
    }))
}

/// True if somebody names a place of files, and not a file: a folder, or an address.
pub fn is_of_files(place: &Path) -> bool {
    tiebreak_remote::is_address(place) || place.is_dir()
}

/// The run, whose data files may also be in these folders and at these addresses.
///
/// # Errors
/// If this build reads no address of that kind.
pub fn with_data<'a>(run: Run, places: impl IntoIterator<Item = &'a PathBuf>) -> Result<Run, RunError> {
    let store = |place: &PathBuf| match tiebreak_remote::is_address(place) {
        true => tiebreak_remote::open_files(&place.to_string_lossy()),
        false => Ok(Folder::at(place)),
    };
    let stores = places.into_iter().map(store).collect::<Result<Vec<_>, _>>()?;
    Ok(run.with_data_at(stores))
}
