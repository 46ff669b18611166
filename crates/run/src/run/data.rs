//! The data files of runs and jobs on disk. A job's files that end in `.gz` are unpacked as they are read.

use std::io::{self, BufReader, Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use tiebreak_token_files::Looking;

use super::error::RunError;
use super::job_files::{self, JobFiles};
use super::store::Promise;
use super::stored::Stored;
use super::{disk, foreign};
use tiebreak_contract::program::models::BatchTensor;
use tiebreak_contract::program::step::Program;
use tiebreak_job::Job;
use tiebreak_job::data::Dataset;
use tiebreak_job::manifest::{DataFile, FileManifest, GroupTree, Source};
use tiebreak_job::spec::DataFiles;
use tiebreak_record::commit::salted_file::FileSalts;
use tiebreak_record::commit::salts::SaltKey;

/// The most bytes that a `.gz` file may unpack to.
const UNPACKED_MAX: u64 = 1 << 32;
/// The most unpacked bytes of a job's `.gz` files that are kept in memory together, before there is a run. Other files are
/// unpacked as they are read.
pub(super) const UNPACKED_KEPT: u64 = 1 << 26;
/// The number of steps from which samples are drawn before a run begins, the first and the last step among them.
const SAMPLED_STEPS: u32 = 4;
/// The most samples that are drawn from each of these steps.
const SAMPLED_PLACES: u32 = 256;

/// The contents of a packed file. More than [`UNPACKED_MAX`] bytes of contents, or bytes behind them, are an error.
struct Unpacked<R: Read> {
    packed: MultiGzDecoder<BufReader<R>>,
    left: u64,
}

impl<R: Read> Read for Unpacked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.packed.read(buffer)?;
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| {
            let why =
                format!("it holds more than {UNPACKED_MAX} bytes; unpack it and name the file without .gz");
            io::Error::new(io::ErrorKind::InvalidData, why)
        })?;
        Ok(read)
    }
}

/// The contents of a packed file, unpacked as they are read; seeking backwards starts again from the beginning.
struct Unpacking {
    path: PathBuf,
    contents: Box<dyn Read + Send>,
    /// The number of bytes that were unpacked.
    at: u64,
    /// The offset that is read next.
    next: u64,
}

impl Read for Unpacking {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.next < self.at {
            (self.contents, self.at) = (contents(&self.path).map_err(io::Error::other)?, 0);
        }
        self.at += io::copy(&mut (&mut self.contents).take(self.next - self.at), &mut io::sink())?;
        if self.at < self.next {
            return Ok(0);
        }
        let read = self.contents.read(buffer)?;
        self.at += read as u64;
        self.next = self.at;
        Ok(read)
    }
}

impl Seek for Unpacking {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let next = match to {
            SeekFrom::Start(place) => Some(place),
            SeekFrom::Current(by) => self.next.checked_add_signed(by),
            SeekFrom::End(_) => None,
        };
        self.next = next.ok_or(io::ErrorKind::Unsupported)?;
        Ok(self.next)
    }
}

impl Source for Unpacking {}

pub(super) fn is_packed(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "gz")
}

/// The contents of a job's data file, from the beginning. A `.gz` file is unpacked.
///
/// # Errors
/// If the file is no plain file, or cannot be opened.
pub fn contents(path: &Path) -> Result<Box<dyn Read + Send>, RunError> {
    let file = disk::open(path)?;
    Ok(match is_packed(path) {
        true => Box::new(Unpacked { packed: MultiGzDecoder::new(BufReader::new(file)), left: UNPACKED_MAX }),
        false => Box::new(file),
    })
}

/// [`contents`] of a file that a job names, here or at an address.
pub(super) fn contents_of(file: &Stored) -> Result<Box<dyn Read + Send>, RunError> {
    match file.on_disk() {
        Some(path) => contents(path),
        None => Ok(Box::new(file.open()?)),
    }
}

/// The same contents with random access. If the `len` bytes of a packed file are among the `left` bytes that may be kept, they
/// are read from memory; otherwise seeking backwards unpacks the file again.
pub(super) fn source(path: &Path, len: u64, left: &mut u64) -> Result<Box<dyn Source>, RunError> {
    if !is_packed(path) {
        return Ok(Box::new(disk::open(path)?));
    }
    let Some(rest) = left.checked_sub(len) else {
        return Ok(Box::new(Unpacking { path: path.into(), contents: contents(path)?, at: 0, next: 0 }));
    };
    *left = rest;
    let mut bytes = Vec::with_capacity(len as usize);
    contents(path)?.take(len).read_to_end(&mut bytes).map_err(unreadable(path))?;
    Ok(Box::new(Cursor::new(bytes)))
}

/// The error about a packed file that does not unpack: the fault of its maker, not of this machine.
fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> RunError + '_ {
    move |error| match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::UnexpectedEof => {
            RunError::invalid(path, format!("it does not unpack: {error}"))
        }
        _ => RunError::io(path)(error),
    }
}

/// The manifest of a file's contents, and the tree that checks ranges of them.
///
/// # Errors
/// If the file is no plain file, cannot be read, or does not unpack.
pub fn manifest(path: &Path) -> Result<(FileManifest, GroupTree), RunError> {
    GroupTree::of(&mut contents(path)?).map_err(unreadable(path))
}

/// [`manifest`] of a file that somebody names as data file `number` of this kind, unless the file is of another kind by mistake.
///
/// # Errors
/// As [`manifest`], and if the file is of another kind: [`foreign::refuse`].
pub(super) fn named_manifest(
    file: &Stored,
    (spec, number): (&DataFiles, usize),
    sample: &[BatchTensor],
) -> Result<(FileManifest, GroupTree), RunError> {
    let path = file.path();
    let mut looking = Looking::new(contents_of(file)?);
    let found = GroupTree::of(&mut looking).map_err(unreadable(path))?;
    foreign::refuse(path, (spec, number), sample, &looking.look)?;
    Ok(found)
}

/// [`manifest`] of a file that a run holds, whose bytes are taken as they are.
///
/// # Errors
/// If the file is no plain file, or cannot be read.
pub fn kept_manifest(file: &Stored) -> Result<(FileManifest, GroupTree), RunError> {
    GroupTree::of(&mut file.open()?).map_err(RunError::io(file.path()))
}

/// A data file that is held to its manifest.
#[doc(hidden)] // for audits alone
pub fn promised(file: &Stored, manifest: &FileManifest) -> Stored {
    file.clone().promised(Promise { kind: "data", digest: manifest.root })
}

/// A file whose ranges are checked against its manifest as they are read, by the tree in `tree`.
///
/// # Errors
/// If the file is not there, or the tree cannot be read or is not of this manifest.
pub(crate) fn checked_file(
    file: &Stored,
    tree: &Stored,
    manifest: &FileManifest,
) -> Result<DataFile, RunError> {
    let source = Box::new(promised(file, manifest).open()?);
    let groups = group_tree(tree, manifest)?;
    Ok(DataFile::new(file.path().to_path_buf(), manifest.clone(), groups, source))
}

/// [`checked_file`] for a file that hides, with the length that its tree tells.
pub(crate) fn hidden_file(
    file: &Stored,
    tree: &Stored,
    manifest: &FileManifest,
    salts: FileSalts,
) -> Result<DataFile, RunError> {
    let source = Box::new(file.open()?);
    let malformed = |why| RunError::malformed(tree.path(), why);
    let length = tree.read_range(0..8)?.first_chunk().map_or(0, |length| u64::from_le_bytes(*length));
    let bytes = tree.read(GroupTree::hidden_bytes(length).map_err(malformed)?)?;
    let (manifest, groups) = GroupTree::decode_hidden(&bytes, manifest, &salts).map_err(malformed)?;
    Ok(DataFile::salted(file.path().to_path_buf(), manifest, groups, Some(salts), source))
}

/// The manifest of a file as a run that hides has it.
pub(super) fn hidden_manifest(file: &Stored, salts: &FileSalts) -> Result<FileManifest, RunError> {
    Ok(GroupTree::hidden(&mut file.open()?, salts).map_err(RunError::io(file.path()))?.0)
}

/// The tree of a file that checks ranges of the file against its manifest.
///
/// # Errors
/// If it cannot be read, or is not of this manifest.
pub(crate) fn group_tree(file: &Stored, manifest: &FileManifest) -> Result<GroupTree, RunError> {
    let promise = Promise { kind: "tree", digest: manifest.root };
    file.clone().promised(promise).settled(|file| {
        let bytes = file.read(GroupTree::bytes(manifest))?;
        GroupTree::decode(&bytes, manifest).map_err(|why| RunError::malformed(file.path(), why))
    })
}

/// The data that a job names, before there is a run.
pub struct JobData {
    /// The files, in order, with the trees that check ranges of them.
    pub sources: Vec<(Stored, GroupTree)>,
    /// The manifest that each file will have in a run.
    pub manifest: Vec<FileManifest>,
    /// The samples of the files.
    pub dataset: Dataset,
}

impl JobData {
    /// Reads the files that a job names, within the folders that the job may reach.
    ///
    /// # Errors
    /// If a file lies where the job may not reach, is a private key, cannot be read, is malformed, or does not fit the job's program. Also
    /// if one is packed, and the job leaves it in place, or it is at an address.
    pub fn open(reach: &JobFiles, job: &Job, program: &Program) -> Result<JobData, RunError> {
        let mut left = UNPACKED_KEPT;
        let (mut sources, mut manifests, mut files) = (Vec::new(), Vec::new(), Vec::new());
        let sample = program.sample();
        for (number, (key, path)) in job.data.files.named().into_iter().enumerate() {
            let file = reach.stored(key, path)?;
            let path = file.path().to_path_buf();
            if !job.data.copy && is_packed(&path) {
                let why = "data.copy = false is for files that can be read in place: unpack this one, or leave copy out";
                return Err(RunError::Refused(format!("{}: {why}", path.display())));
            }
            if file.on_disk().is_none() && is_packed(&path) {
                let why = "a packed file is read from a folder alone: unpack it there, or download it";
                return Err(RunError::Refused(format!("{}: {why}", path.display())));
            }
            job_files::refuse_private_key(&path, contents_of(&file)?)?;
            let (manifest, tree) = named_manifest(&file, (&job.data.files, number), &sample)?;
            let (file, source) = match file.on_disk() {
                Some(path) => (file.clone(), source(path, manifest.bytes, &mut left)?),
                None => {
                    // A run that hides leaves nothing in a cache.
                    let file = if job.hides() { file } else { promised(&file, &manifest) };
                    let source: Box<dyn Source> = Box::new(file.open()?);
                    (file.held_to(tree.clone()), source)
                }
            };
            files.push(DataFile::new(path, manifest.clone(), tree.clone(), source));
            manifests.push(manifest);
            sources.push((file, tree));
        }
        let dataset = Dataset::of(files, reach.folder(), &job.data, &sample)?;
        Ok(JobData { sources, manifest: manifests, dataset })
    }

    /// The manifest of each file, and the bytes of its tree, as a run has them; salted if the run hides.
    ///
    /// # Errors
    /// If a file cannot be read again, or changed meanwhile.
    #[doc(hidden)] // for the layers above
    pub fn committed(&self, salts: Option<&SaltKey>) -> Result<(Vec<FileManifest>, Vec<Vec<u8>>), RunError> {
        let Some(key) = salts else {
            let trees = self.sources.iter().map(|(_, tree)| tree.encode()).collect();
            return Ok((self.manifest.clone(), trees));
        };
        let (mut manifests, mut trees) = (Vec::new(), Vec::new());
        for (number, (file, _)) in self.sources.iter().enumerate() {
            let path = file.path();
            let read = GroupTree::hidden(&mut contents_of(file)?, &FileSalts::new(key, number));
            let (manifest, length, tree) = read.map_err(unreadable(path))?;
            if length != self.manifest[number].bytes {
                let due = self.manifest[number].bytes;
                return Err(RunError::invalid(
                    path,
                    format!("it has {length} bytes now, and had {due} before"),
                ));
            }
            manifests.push(manifest);
            trees.push(tree.encode_hidden(length));
        }
        Ok((manifests, trees))
    }

    /// The files that a run copies, with the number of bytes of each copy; empty if the job leaves the data in place.
    pub fn copied(&self, job: &Job) -> Vec<(&Stored, u64)> {
        let sizes = self.manifest.iter().map(|file| file.bytes);
        let all = self.sources.iter().map(|(file, _)| file).zip(sizes);
        all.filter(|_| job.data.copy).collect()
    }

    /// Draws samples of the first step, of the last, and of some between, with the Philox key of the run's seed, so that a defect
    /// in them shows before a run begins. Returns the numbers of these steps.
    ///
    /// # Errors
    /// If a sample has a number that the model does not have, or the run has more epochs than are numbered.
    pub fn sample(&mut self, job: &Job, program: &Program, key: [u32; 2]) -> Result<Vec<u32>, RunError> {
        let last = job.steps - 1;
        let between = SAMPLED_STEPS.min(job.steps) - 1;
        let steps =
            (0..=between).map(|i| 1 + (u64::from(last) * u64::from(i) / u64::from(between.max(1))) as u32);
        let steps: Vec<u32> = steps.collect();
        self.dataset.read_drawn(program, key, &steps, SAMPLED_PLACES)?;
        Ok(steps)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    #[test]
    fn packed_files_share_what_may_be_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text.gz");
        let mut packer = GzEncoder::new(Vec::new(), Compression::best());
        packer.write_all(&(0..10_000).map(|i| (i % 251) as u8).collect::<Vec<u8>>()).unwrap();
        std::fs::write(&path, packer.finish().unwrap()).unwrap();
        let (manifest, _) = manifest(&path).unwrap();
        let mut left = 15_000;
        let mut sources = [(); 2].map(|()| source(&path, manifest.bytes, &mut left).unwrap());
        assert_eq!(left, 5_000);
        // Memory and file give the same bytes, in whatever order they are read.
        for (first, len) in [(9_990u64, 10usize), (3, 4), (0, 10_000), (7, 0), (5_000, 5_000)] {
            let read = sources.each_mut().map(|source| {
                let mut bytes = vec![0; len];
                source.seek(SeekFrom::Start(first)).unwrap();
                source.read_exact(&mut bytes).unwrap();
                bytes
            });
            let expected: Vec<u8> = (first..).take(len).map(|i| (i % 251) as u8).collect();
            assert_eq!(read, [expected.clone(), expected]);
        }
        assert!(sources[1].seek(SeekFrom::Start(9_999)).is_ok());
        assert!(sources[1].read_exact(&mut [0; 2]).is_err());
    }

    #[test]
    fn what_unpacks_to_too_much_is_refused() {
        let mut packer = GzEncoder::new(Vec::new(), Compression::best());
        packer.write_all(&[0; 10_000]).unwrap();
        let packed = packer.finish().unwrap();
        let read = |left| {
            let packed = MultiGzDecoder::new(BufReader::new(&packed[..]));
            Unpacked { packed, left }.read_to_end(&mut Vec::new())
        };
        assert_eq!(read(10_000).unwrap(), 10_000);
        assert_eq!(read(9_999).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
