//! `--page` of `tiebreak audit`: the page from a run and its report.

use std::path::Path;

use crate::cli::view::page::audit::{About, Told, page};
use crate::cli::view::report::bytes_text;
use tiebreak_audit::Report;
use tiebreak_audit::checks::Checked;
use tiebreak_job::manifest::FileManifest;
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::{RunError, shell};

/// The parts of a page that come from the run itself, and the key that the auditor gave.
pub fn about(run: &Run, checked: &Checked, folder: &Path, given: Option<&PublicKey>) -> About {
    let model = run.job_text.parse::<toml::Table>().ok();
    let kind = model.as_ref().and_then(|job| job.get("model")?.get("kind")?.as_str());
    let parameters = run.program().parameter_count();
    let files: Vec<String> =
        run.file.data.iter().map(|file| format!("{} ({})", file.root, size(run, file))).collect();
    let name = run
        .layout
        .root
        .file_name()
        .map_or_else(|| run.id.short(), |name| name.to_string_lossy().into_owned());
    About {
        name,
        folder: shell::path(folder),
        trainer: run.file.trainer_key.clone(),
        given: given.map(PublicKey::to_text),
        facts: vec![
            ("model", format!("{}, {parameters} parameters", kind.unwrap_or("a program file"))),
            ("program", run.file.program.to_string()),
            ("initial state", run.file.initial.to_string()),
            ("data files", files.join(", ")),
        ],
        checkpoints: checked.checkpoints.clone(),
    }
}

/// A data file's size in words; a run that hides tells none.
fn size(run: &Run, file: &FileManifest) -> String {
    if run.job().hides() { "length hidden".into() } else { bytes_text(file.bytes) }
}

/// Writes the page of an audit, with the file of its verdict; why it could not be written, if so.
pub fn write(
    path: &Path,
    report: &Report,
    auditor: Option<String>,
    about: &About,
    verdict: Option<&Path>,
) -> Option<String> {
    let written = Told::of(report, auditor)
        .map_err(|error| error.to_string())
        .and_then(|told| save(path, &page(&told, about, verdict)).map_err(|error| error.to_string()));
    written.err().map(|why| format!("the page could not be written ({why})"))
}

/// Writes a page.
pub fn save(path: &Path, page: &str) -> Result<(), RunError> {
    let path = std::path::absolute(path).map_err(RunError::io(path))?;
    Disk::default().replace(&path, page.as_bytes())
}

/// The report in a file, for its page.
pub fn told(path: &Path, bytes: &[u8]) -> Result<Told, RunError> {
    serde_json::from_slice(bytes).map_err(|error| RunError::invalid(path, error.to_string()))
}
