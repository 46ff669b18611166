//! The data files of runs and jobs, as they lie on disk.

use std::path::{Path, PathBuf};

use super::disk;
use super::error::RunError;
use crate::job::DataSpec;
use crate::job::data::{DataFile, Dataset, FileManifest};
use crate::job::samples::Samples;

/// The manifest of a file.
///
/// # Errors
/// If the file is no plain file, or cannot be read.
pub fn manifest(name: String, path: &Path) -> Result<FileManifest, RunError> {
    FileManifest::of(name, &mut disk::open(path)?).map_err(RunError::io(path))
}

/// Opens the files of `manifest` in `folder` and checks that they fit the model.
///
/// # Errors
/// If a file cannot be opened, is not as long as its manifest says, or does not fit the job's model.
pub fn open(
    folder: &Path,
    manifest: &[FileManifest],
    spec: &DataSpec,
    wanted: &Samples,
) -> Result<Dataset, RunError> {
    let mut files = Vec::new();
    for manifest in manifest {
        let path = folder.join(&manifest.name);
        // The manifest names the path, so it is checked first.
        let mut file = DataFile::new(path.clone(), manifest.clone(), None)?;
        let source = disk::open(&path)?;
        let len = source.metadata().map_err(RunError::io(&path))?.len();
        if len != manifest.bytes {
            return Err(RunError::invalid(
                &path,
                format!("{len} bytes, the manifest says {}", manifest.bytes),
            ));
        }
        file.read_from(Box::new(source));
        files.push(file);
    }
    Ok(Dataset::of(files, folder, spec, wanted)?)
}

/// Opens the files that a job names, before there is a run.
///
/// # Errors
/// If a file cannot be read, is malformed, or does not fit the job's model.
pub fn of_sources(sources: &[PathBuf], spec: &DataSpec, wanted: &Samples) -> Result<Dataset, RunError> {
    let mut files = Vec::new();
    for (number, path) in sources.iter().enumerate() {
        let manifest = manifest(format!("{number:03}"), path)?;
        files.push(DataFile::new(path.clone(), manifest, Some(Box::new(disk::open(path)?)))?);
    }
    let folder = sources.first().and_then(|path| path.parent()).unwrap_or(Path::new("."));
    Ok(Dataset::of(files, folder, spec, wanted)?)
}
