//! The file of a verdict on a run, and the run that it is about.

use std::path::Path;

use super::answer;
use crate::cli::view::report::{Exit, Failure, named};
use tiebreak_dispute::verdict::{VERDICT_MAX, Verdict};
use tiebreak_record::commit::digest::Digest;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::{RunError, disk};

/// A verdict file, and its size.
pub fn read(file: &Path) -> Result<(Verdict, u64), Failure> {
    let bytes = disk::read(file, VERDICT_MAX).map_err(named)?;
    if bytes.starts_with(answer::BEGIN) {
        let why =
            format!("{} is a verdict on a receipt, and the command is for verdicts on runs", file.display());
        return Err(Failure::new(Exit::Usage, why).help("tiebreak verdict check FILE"));
    }
    let verdict = Verdict::from_bytes(&bytes).map_err(|error| RunError::malformed(file, error))?;
    Ok((verdict, bytes.len() as u64))
}

/// A folder that holds another run than the one that a verdict is about.
pub fn another_run(folder: &Path, run: &Run, wanted: Digest) -> Failure {
    let why = format!("{} is run {}, and the verdict is about run {wanted}", folder.display(), run.id);
    Failure::new(Exit::Usage, why)
        .help("name the folder of that run; `tiebreak inspect RUN` prints a folder's run id")
}
