//! A run by its folder, or by its address.

use std::path::Path;

use tiebreak_run::run::RunError;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::reader::Salts;

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
