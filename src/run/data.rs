//! The data files of runs and jobs, as they lie on disk.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::disk;
use super::error::RunError;
use crate::job::DataSpec;
use crate::job::data::Dataset;
use crate::job::manifest::{DataFile, FileManifest, GroupTree};
use crate::job::samples::Samples;

/// The manifest of a file, and the tree that checks parts of it.
///
/// # Errors
/// If the file is no plain file, or cannot be read.
pub fn manifest(path: &Path) -> Result<(FileManifest, GroupTree), RunError> {
    GroupTree::of(&mut disk::open(path)?).map_err(RunError::io(path))
}

/// A file whose parts are checked against its manifest as they are read, by the tree in `tree`.
///
/// # Errors
/// If the tree cannot be read, or is not of this manifest.
pub fn checked_file(
    path: &Path,
    tree: &Path,
    manifest: &FileManifest,
    source: File,
) -> Result<DataFile, RunError> {
    let bytes = disk::read(tree, GroupTree::bytes(manifest))?;
    let groups = GroupTree::decode(&bytes, manifest).map_err(|why| RunError::malformed(tree, why))?;
    Ok(DataFile::new(path.to_path_buf(), manifest.clone(), groups, Box::new(source)))
}

/// Opens the files that a job names, before there is a run: their samples, and their manifests.
///
/// # Errors
/// If a file cannot be read, is malformed, or does not fit the job's model.
pub fn of_sources(
    sources: &[PathBuf],
    spec: &DataSpec,
    wanted: &Samples,
) -> Result<(Dataset, Vec<FileManifest>), RunError> {
    let (mut files, mut manifests) = (Vec::new(), Vec::new());
    for path in sources {
        let (manifest, tree) = manifest(path)?;
        manifests.push(manifest.clone());
        files.push(DataFile::new(path.clone(), manifest, tree, Box::new(disk::open(path)?)));
    }
    let folder = sources.first().and_then(|path| path.parent()).unwrap_or(Path::new("."));
    Ok((Dataset::of(files, folder, spec, wanted)?, manifests))
}
