//! The data of evaluations: files beside those of the training, in order. A run holds a copy that no record commits; a report
//! names the data that it is about.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::data::{self, UNPACKED_KEPT};
use super::dir::Run;
use super::error::RunError;
use super::names;
use super::store::Store;
use super::stored::Stored;
use tiebreak_contract::program::models::BatchTensor;
use tiebreak_job::data::Dataset;
use tiebreak_job::manifest::{DataFile, FileManifest, GroupTree, files_root};
use tiebreak_job::spec::DataSpec;
use tiebreak_record::commit::digest::Digest;

/// Bytes that are copied at once.
const COPY_BYTES: usize = 1 << 20;

/// Data for evaluations.
pub struct EvaluationData {
    /// The samples.
    pub dataset: Dataset,
    /// The root of the files' manifest.
    pub root: Digest,
}

/// Opens files of evaluation data, read in the same way as the job's own: `spec` names the files and their kind, `paths` locates
/// them.
///
/// # Errors
/// If a file cannot be read, is malformed, or the files do not fit a sample's batch tensors.
pub fn open(spec: &DataSpec, paths: &[PathBuf], sample: &[BatchTensor]) -> Result<EvaluationData, RunError> {
    opened(spec, paths, sample, |path, _| data::manifest(path))
}

/// [`open`] for files that somebody names, which could be of another kind by mistake.
///
/// # Errors
/// As [`open`], and if one is of another kind.
pub fn open_named(
    spec: &DataSpec,
    paths: &[PathBuf],
    sample: &[BatchTensor],
) -> Result<EvaluationData, RunError> {
    let manifest = |path: &Path, number| data::named_manifest(&path.into(), (&spec.files, number), sample);
    opened(spec, paths, sample, manifest)
}

fn opened(
    spec: &DataSpec,
    paths: &[PathBuf],
    sample: &[BatchTensor],
    manifest: impl Fn(&Path, usize) -> Result<(FileManifest, GroupTree), RunError>,
) -> Result<EvaluationData, RunError> {
    let mut left = UNPACKED_KEPT;
    let file = |(number, path): (usize, &PathBuf)| named(path, manifest(path, number)?, &mut left);
    let files = paths.iter().enumerate().map(file).collect::<Result<Vec<_>, RunError>>()?;
    data_of(files, spec, sample)
}

/// A file with its manifest.
type Promised = (DataFile, FileManifest);

/// A user's file. Up to `left` bytes of it may be kept unpacked.
fn named(
    path: &Path,
    (manifest, tree): (FileManifest, GroupTree),
    left: &mut u64,
) -> Result<Promised, RunError> {
    let source = data::source(path, manifest.bytes, left)?;
    Ok((DataFile::new(path.to_path_buf(), manifest.clone(), tree, source), manifest))
}

/// A file whose bytes are taken as they are.
fn kept(file: &Stored) -> Result<Promised, RunError> {
    let (manifest, tree) = data::kept_manifest(file)?;
    let source = Box::new(file.open()?);
    Ok((DataFile::new(file.path().to_path_buf(), manifest.clone(), tree, source), manifest))
}

fn data_of(
    files: Vec<Promised>,
    spec: &DataSpec,
    sample: &[BatchTensor],
) -> Result<EvaluationData, RunError> {
    let (files, manifests): (Vec<DataFile>, Vec<FileManifest>) = files.into_iter().unzip();
    let folder = files.first().and_then(|file| file.path().parent()).unwrap_or(Path::new(".")).to_path_buf();
    let dataset = Dataset::of(files, &folder, spec, sample)?;
    Ok(EvaluationData { dataset, root: files_root(&manifests) })
}

/// The evaluation data of a run's job: the copy that the run holds, else files of the same names in the folders with the run's
/// data. If the job names no files: the samples that the job's split reserves, or without a split the training data.
///
/// # Errors
/// If a file is not there, cannot be read, or does not fit the job's model.
pub fn of_run(run: &Run) -> Result<EvaluationData, RunError> {
    let files = run.job().evaluation.as_ref().and_then(|evaluation| evaluation.files.as_ref());
    let Some(files) = files else {
        return Ok(EvaluationData { dataset: run.dataset()?, root: files_root(&run.file.data) });
    };
    let spec = run.job().data.in_files(files).map_err(RunError::Refused)?;
    let mut left = UNPACKED_KEPT;
    let file = |(number, name): (usize, &String)| {
        let here = run.at(names::evaluation_file(number));
        if here.is_here() {
            return kept(&here);
        }
        let found = run.elsewhere(name).ok_or_else(|| {
            RunError::Refused(format!(
                "the run does not hold its evaluation file {number} ({name}): say where it is with --data"
            ))
        })?;
        match found.on_disk() {
            Some(path) => named(path, data::manifest(path)?, &mut left),
            None if data::is_packed(found.path()) => {
                let why = "a packed file is read from a folder alone: unpack it there, or name a folder with --data";
                Err(RunError::invalid(found.path(), why))
            }
            None => kept(&found),
        }
    };
    let files = files.iter().enumerate().map(file).collect::<Result<Vec<_>, RunError>>()?;
    data_of(files, &spec, &run.program().sample())
}

/// Copies evaluation files into a run, unpacked.
///
/// # Errors
/// If a file cannot be read or written.
pub fn copy(store: &Arc<dyn Store>, files: &[PathBuf]) -> Result<(), RunError> {
    let place = PathBuf::from(store.place());
    for (number, path) in files.iter().enumerate() {
        let mut from = data::contents(path)?;
        let target = Stored::new(store, &place, names::evaluation_file(number));
        target.length_or_0()?; // a link is refused
        target.replace_by(|file| {
            let mut piece = vec![0; COPY_BYTES];
            loop {
                match from.read(&mut piece)? {
                    0 => return Ok(()),
                    len => file.write_all(&piece[..len])?,
                }
            }
        })?;
    }
    Ok(())
}
