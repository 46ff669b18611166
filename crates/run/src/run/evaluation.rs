//! The data of evaluations: files beside those of the training, in order. A run holds a copy that nothing commits; a report says which data it is of.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::data::{self, UNPACKED_KEPT};
use super::dir::Run;
use super::disk::{self, Disk};
use super::error::RunError;
use super::paths::RunPaths;
use tiebreak_contract::program::models::BatchTensor;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::job::data::Dataset;
use tiebreak_record::job::manifest::{DataFile, FileManifest, GroupTree, files_root};
use tiebreak_record::job::spec::DataSpec;

/// Bytes that are copied at once.
const COPY_BYTES: usize = 1 << 20;

/// Data to evaluate with.
pub struct EvaluationData {
    /// The samples.
    pub dataset: Dataset,
    /// The root of the files' manifest.
    pub root: Digest,
}

/// Opens files of evaluation data, read as the job's own: `spec` names them and says of what kind they are, `paths` where they lie.
///
/// # Errors
/// If a file cannot be read, is malformed, or the files do not fit a sample's batch tensors.
pub fn open(spec: &DataSpec, paths: &[PathBuf], sample: &[BatchTensor]) -> Result<EvaluationData, RunError> {
    opened(spec, paths, sample, data::manifest)
}

/// [`open`], of files that somebody names, which could be something else by mistake.
///
/// # Errors
/// As [`open`], and if one is.
pub fn open_named(
    spec: &DataSpec,
    paths: &[PathBuf],
    sample: &[BatchTensor],
) -> Result<EvaluationData, RunError> {
    opened(spec, paths, sample, |path| data::named_manifest(path, &spec.files, sample))
}

fn opened(
    spec: &DataSpec,
    paths: &[PathBuf],
    sample: &[BatchTensor],
    manifest: impl Fn(&Path) -> Result<(FileManifest, GroupTree), RunError>,
) -> Result<EvaluationData, RunError> {
    let mut left = UNPACKED_KEPT;
    let (mut files, mut manifests) = (Vec::new(), Vec::new());
    for path in paths {
        let (manifest, tree) = manifest(path)?;
        let source = data::source(path, manifest.bytes, &mut left)?;
        files.push(DataFile::new(path.clone(), manifest.clone(), tree, source));
        manifests.push(manifest);
    }
    let folder = paths.first().and_then(|path| path.parent()).unwrap_or(Path::new("."));
    let dataset = Dataset::of(files, folder, spec, sample)?;
    Ok(EvaluationData { dataset, root: files_root(&manifests) })
}

/// The evaluation data of a run's job: the copy that the run holds, else files of the same names where its data are; if the job names
/// none, the samples that its split keeps, or the training data without one.
///
/// # Errors
/// If a file is not there, cannot be read, or does not fit the job's model.
pub fn of_run(run: &Run) -> Result<EvaluationData, RunError> {
    let files = run.job().evaluation.as_ref().and_then(|evaluation| evaluation.files.as_ref());
    let Some(files) = files else {
        return Ok(EvaluationData { dataset: run.dataset()?, root: files_root(&run.file.data) });
    };
    let spec = run.job().data.in_files(files).map_err(RunError::Refused)?;
    let path = |(number, name): (usize, &String)| {
        let here = run.layout.evaluation_file(number);
        if fs::symlink_metadata(&here).is_ok() {
            return Ok(here);
        }
        run.elsewhere(name).ok_or_else(|| {
            RunError::Refused(format!(
                "the run does not hold its evaluation file {number} ({name}): say where it is with --data"
            ))
        })
    };
    let paths = files.iter().enumerate().map(path).collect::<Result<Vec<_>, RunError>>()?;
    open(&spec, &paths, &run.program().sample())
}

/// Copies evaluation files into a run, unpacked.
///
/// # Errors
/// If a file cannot be read or written.
pub fn copy(disk: &Disk, layout: &RunPaths, files: &[PathBuf]) -> Result<(), RunError> {
    if files.is_empty() {
        return Ok(());
    }
    disk.create_folder(&layout.evaluation())?;
    for (number, path) in files.iter().enumerate() {
        let mut from = data::contents(path)?;
        let target = layout.evaluation_file(number);
        disk::refuse_link(&target)?;
        disk.replace_by(&target, |file| {
            let mut piece = vec![0; COPY_BYTES];
            loop {
                match from.read(&mut piece)? {
                    0 => return Ok(()),
                    len => disk.write(file, &piece[..len])?,
                }
            }
        })?;
    }
    Ok(())
}
