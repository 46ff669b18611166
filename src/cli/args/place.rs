//! A run, or data files, by folder or by address.

use std::path::{Path, PathBuf};

use tiebreak_run::run::dir::Run;
use tiebreak_run::run::reader::Salts;
use tiebreak_run::run::{Folder, RunError, Stored};

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
    let (folder, name) = address.rsplit_once('/').unwrap_or_default();
    if name.is_empty() || folder.ends_with(":/") {
        return Err(RunError::Refused(format!("{address}: a file is wanted, and the address names none")));
    }
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
