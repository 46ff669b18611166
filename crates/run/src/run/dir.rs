//! A run in a store: its identity, and the files that are there.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;

use super::error::RunError;
use super::folder::{self, Folder};
use super::limits::machine_memory;
use super::paths::RunPaths;
use super::reader::{self, Salts};
pub use super::run_file::RunFile;
use super::store::{Held, Promise, Store};
use super::stored::Stored;
use super::{data, gradients, names};
use tiebreak_contract::program::encoding::PROGRAM_MAX;
use tiebreak_contract::program::step::{MicroBatch, Program, state_bytes};
use tiebreak_job::computation::{Computation, ComputationError};
use tiebreak_job::data::Dataset;
use tiebreak_job::identity::other_contract;
use tiebreak_job::manifest::{self, FileManifest, GroupTree};
use tiebreak_job::{JOB_MAX, Job};
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::commit::record::StepRecord;
use tiebreak_record::commit::tree_head::{Head, NOTE_MAX, Signed};
use tiebreak_record::rounding::log::{Log, bytes_max, parts};

/// The version of runs on disk, as docs/RUN-FORMAT.md has it. No file says it: the contract's name does.
pub const RUN_FORMAT: u32 = 2;

/// The most bytes of `run.json`.
pub const RUN_JSON_MAX: u64 = 1 << 28;

/// The fields that a `run.json` of any contract has.
#[derive(Deserialize)]
struct Preamble {
    contract: String,
}

/// The files of a run's identity and of its job, as errors call them.
struct Named {
    json: PathBuf,
    job: PathBuf,
}

impl Named {
    /// The files in a run's folder, of which `json` is `run.json`, or that of a recording.
    fn in_folder(layout: &RunPaths, json: &str) -> Named {
        Named { json: layout.root.join(json), job: layout.job() }
    }
}

/// A run as it was read: identity, job and program, all re-derived from its files.
pub struct Run {
    /// The paths of the run's files, if they lie in a folder; else the names that errors give them.
    #[doc(hidden)] // for the layers above
    pub layout: RunPaths,
    /// The store that keeps the run's files.
    pub store: Arc<dyn Store>,
    /// The contents of `run.json`.
    pub file: RunFile,
    /// The job file's text.
    pub job_text: String,
    /// The bytes of the program file, for a job that names one or is of a model kind that this version does not know. Only the
    /// program digest vouches for them.
    pub program_file: Option<Vec<u8>>,
    /// The run id.
    pub id: Digest,
    /// The computation that the run executes, derived from the job and `run.json`.
    pub computation: Computation,
    /// Other stores in which data files are searched that the run does not hold.
    data_from: Vec<DataFrom>,
    /// The most bytes of memory that reading the run may take.
    memory: u64,
}

impl Run {
    /// Reads `run.json` and the job of a run in a folder, and derives program and identity from them.
    ///
    /// # Errors
    /// If there is no run, a file cannot be read, or `run.json` and the job contradict each other.
    pub fn open(root: &Path) -> Result<Run, RunError> {
        Run::open_by(root, Salts::Refused)
    }

    /// [`Run::open`] for a reader who knows of runs that hide.
    ///
    /// # Errors
    /// As [`Run::open`]; also if the salt key is not the run's, or the run hides nothing.
    pub fn open_by(root: &Path, salts: Salts) -> Result<Run, RunError> {
        let layout = RunPaths { root: root.to_path_buf() };
        if root.is_dir() {
            for name in
                [names::DATA, names::HEADS, names::CHECKPOINTS, names::TRACES, names::LOGS, names::WITHDRAWN]
            {
                let folder = root.join(name);
                folder::check(&folder).map_err(RunError::io(&folder))?;
            }
        }
        Run::read(Folder::at(root), layout, salts, names::RUN_JSON)
    }

    /// [`Run::open`] for a run in any store.
    ///
    /// # Errors
    /// As [`Run::open`].
    pub fn of(store: Arc<dyn Store>) -> Result<Run, RunError> {
        Run::of_by(store, Salts::Refused)
    }

    /// [`Run::of`] for a reader who knows of runs that hide.
    ///
    /// # Errors
    /// As [`Run::open_by`].
    #[doc(hidden)] // for the layers above
    pub fn of_by(store: Arc<dyn Store>, salts: Salts) -> Result<Run, RunError> {
        let layout = RunPaths { root: store.place().into() };
        Run::read(store, layout, salts, names::RUN_JSON)
    }

    /// A recording as if it were a run: its data have no digests yet, so neither id nor computation is the finished run's.
    ///
    /// # Errors
    /// As [`Run::open`], for the recording's file in place of `run.json`.
    #[doc(hidden)] // for the layers above
    pub fn of_recording(store: Arc<dyn Store>) -> Result<Run, RunError> {
        let layout = RunPaths { root: store.place().into() };
        Run::read(store, layout, Salts::Refused, names::RECORDING)
    }

    /// The same job, program and store, identified by `file`.
    ///
    /// # Errors
    /// If the file and the job contradict each other.
    #[doc(hidden)] // for the layers above
    pub fn identified(&self, file: &RunFile) -> Result<Run, RunError> {
        let (store, layout) = (self.store.clone(), RunPaths { root: self.layout.root.clone() });
        let program = self.program_file.clone();
        let named = Named::in_folder(&layout, names::RUN_JSON);
        Run::derive(store, layout, &named, [&file.text(), &self.job_text], program, Salts::Refused)
    }

    fn read(store: Arc<dyn Store>, layout: RunPaths, salts: Salts, name: &str) -> Result<Run, RunError> {
        let at = |name: &str| Stored::new(&store, &layout.root, name);
        let (json, program) = (at(name), at(names::PROGRAM));
        if !json.is_here() {
            if at(names::RECORDING).is_here() {
                let place = layout.root.display();
                let why =
                    "is a recording that is not finished: resume its `tiebreak.Recorder` to the last step";
                return Err(RunError::Refused(format!("{place} {why}")));
            }
            return Err(RunError::NoRun { folder: layout.root.clone() });
        }
        let json = json.read_text(RUN_JSON_MAX)?;
        let job = at(names::JOB).read_text(JOB_MAX)?;
        if !program.is_here() {
            let [job, out] = [layout.job(), layout.program()].map(|path| path.display().to_string());
            let why = format!(
                "it is not there, and every run carries its program; if the job names a model kind, `tiebreak program export '{job}' --out '{out}'` writes it again"
            );
            return Err(RunError::invalid(program.path(), why));
        }
        let program = program.read(PROGRAM_MAX)?;
        let named = Named::in_folder(&layout, name);
        Run::derive(store.clone(), layout, &named, [&json, &job], Some(program), salts)
    }

    /// Derives a run from the texts of its `run.json` and job, wherever they come from, and the bytes of its program file. A job
    /// of a model kind need not have that file: the kind gives the program, which has to be the one that `run.json` names.
    ///
    /// # Errors
    /// If a text is malformed, the run follows another contract, or `run.json`, the job and the program contradict each other.
    #[doc(hidden)] // for the layers above
    pub fn from_texts(
        layout: RunPaths,
        json: &str,
        job_text: &str,
        program_file: Option<Vec<u8>>,
    ) -> Result<Run, RunError> {
        let named = Named::in_folder(&layout, names::RUN_JSON);
        let store = Folder::at(&layout.root);
        Run::derive(store, layout, &named, [json, job_text], program_file, Salts::Refused)
    }

    /// [`Run::from_texts`] for texts of files that lie anywhere: errors call them `json` and `job`.
    ///
    /// # Errors
    /// As [`Run::from_texts`].
    #[doc(hidden)] // for the layers above
    pub fn from_files(
        [json, job]: [(&Path, &str); 2],
        program_file: Option<Vec<u8>>,
    ) -> Result<Run, RunError> {
        let layout = RunPaths { root: json.0.parent().unwrap_or(Path::new("")).to_path_buf() };
        let named = Named { json: json.0.to_path_buf(), job: job.0.to_path_buf() };
        let store = Folder::at(&layout.root);
        Run::derive(store, layout, &named, [json.1, job.1], program_file, Salts::Refused)
    }

    fn derive(
        store: Arc<dyn Store>,
        layout: RunPaths,
        named: &Named,
        [json, job_text]: [&str; 2],
        program_file: Option<Vec<u8>>,
        salts: Salts,
    ) -> Result<Run, RunError> {
        let path = &named.json;
        let file: RunFile = serde_json::from_str(json).map_err(|error| {
            // A file of another contract has other fields. The error names the contract, rather than a field that is missing.
            let other = serde_json::from_str::<Preamble>(json).ok();
            let other = other.and_then(|preamble| other_contract("run", &preamble.contract));
            let other = other.unwrap_or_else(|| Malformed::invalid("file", error.to_string()));
            RunError::malformed(path, other)
        })?;
        let right = file.text();
        if right != json {
            let same = right.bytes().zip(json.bytes()).take_while(|(right, found)| right == found).count();
            let why = format!(
                "it is not in its one encoding from byte {same} on: keys, their order, white space and line ends are those that `tiebreak train` writes"
            );
            return Err(RunError::invalid(path, why));
        }
        manifest::check(&file.data).map_err(|why| RunError::malformed(path, why))?;
        let name = named.job.display().to_string();
        let summary = file.summary();
        let (salted, place) = (file.salts.as_ref(), layout.root.display().to_string());
        let (texts, program) = ((name.as_str(), job_text), program_file.as_deref());
        let derived = reader::computation(salts, salted, &place, texts, program, summary.computation())?;
        let computation = derived.map_err(|error| {
            let at = match &error {
                ComputationError::Program(_) if program_file.is_some() => layout.program(),
                ComputationError::OtherProgram { .. } | ComputationError::Contract(_) => path.clone(),
                _ => named.job.clone(),
            };
            match error {
                ComputationError::Contract(other) => RunError::malformed(&at, other),
                ComputationError::Hidden => {
                    RunError::invalid(path, "it names no salt key, and the job's commit.scheme is 1")
                }
                error => RunError::invalid(&at, error.to_string()),
            }
        })?;
        if let Some(told) = file.data.iter().find(|file| salted.is_some() && file.bytes != 0) {
            let why = format!("a data file has {} bytes; a run that hides tells 0 of each", told.bytes);
            return Err(RunError::invalid(path, why));
        }
        let program_file = program_file.filter(|_| computation.job.model().is_none());
        file.origin.check(&computation.job).map_err(|why| RunError::malformed(path, why))?;
        let id = summary.run_id(&computation.id, job_text).map_err(|why| RunError::invalid(path, why))?;
        let job_text = job_text.to_string();
        let (data_from, memory) = (Vec::new(), machine_memory());
        Ok(Run { layout, store, file, job_text, computation, program_file, id, data_from, memory })
    }

    /// The file of this name, which is one of [`names`].
    pub fn at(&self, name: impl Into<String>) -> Stored {
        Stored::new(&self.store, &self.layout.root, name)
    }

    /// The file of this name, whose reader holds the bytes to this digest ([`Stored::settled`]). The bytes of a run that hides are for no
    /// cache.
    #[doc(hidden)] // for audits alone
    pub fn promised(&self, name: String, kind: &'static str, digest: Digest) -> Stored {
        match &self.file.salts {
            Some(_) => self.at(name),
            None => self.at(name).promised(Promise { kind, digest }),
        }
    }

    /// The run, read through other stores that have the same files: its own store, and those of its data files.
    #[doc(hidden)] // the command's alone
    pub fn through(mut self, around: impl Fn(Arc<dyn Store>) -> Arc<dyn Store>) -> Run {
        self.store = around(self.store);
        for from in &mut self.data_from {
            from.store = around(from.store.clone());
        }
        self
    }

    /// True if the run and its data files lie in folders on this machine's disk.
    #[doc(hidden)] // the command's alone
    pub fn is_on_disk(&self) -> bool {
        let others = self.data_from.iter().map(|from| &from.store);
        others.chain([&self.store]).all(|store| store.folder().is_some())
    }

    /// Refuses a conclusion about files that the store neither gave nor called absent: nothing is known of them.
    ///
    /// # Errors
    /// If there is such a file: the first one's error.
    #[doc(hidden)] // for the layers above
    pub fn answered(&self) -> Result<(), RunError> {
        match self.store.unanswered() {
            None => Ok(()),
            Some((name, error)) => Err(RunError::io(self.at(name).path())(error)),
        }
    }

    /// Takes the right to write to the run, until the returned guard is dropped.
    ///
    /// # Errors
    /// If somebody else has the right, or the store refuses.
    pub fn lock(&self) -> Result<Box<dyn Held>, RunError> {
        self.store.lock(names::LOCK).map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock => {
                RunError::Locked { folder: self.layout.root.clone(), holder: error.to_string() }
            }
            _ => RunError::io(&self.layout.lock())(error),
        })
    }

    /// The run, with `bytes` as the limit on memory for reading it. Without this call, the limit is this machine's memory.
    #[doc(hidden)] // for the layers above
    pub fn with_memory(mut self, bytes: u64) -> Run {
        self.memory = bytes;
        self
    }

    /// Refuses an object that takes more memory than reading the run may. The size comes from the job's numbers, before anything
    /// is allocated.
    ///
    /// # Errors
    /// If the object takes more than the limit.
    #[doc(hidden)] // for the layers above
    pub fn within_memory(&self, what: &str, bytes: u64) -> Result<(), RunError> {
        if bytes <= self.memory {
            return Ok(());
        }
        Err(RunError::Memory { what: what.to_string(), needed: bytes, limit: self.memory })
    }

    /// Bytes that a state takes while its file is read: those of the file, and those of its tensors.
    #[doc(hidden)] // for the layers above
    pub fn state_memory(&self) -> u64 {
        state_bytes(&self.program().state()).saturating_mul(2)
    }

    /// Bytes that the largest tensor of a state takes while a state is read tensor by tensor: those of the file, and those of the tensor.
    #[doc(hidden)] // the command's alone
    pub fn tensor_memory(&self) -> u64 {
        let bytes = self.program().state().iter().map(|tensor| tensor.ty().bytes() as u64).max();
        bytes.unwrap_or(0).saturating_mul(2)
    }

    /// Bytes of a step's batch.
    #[doc(hidden)] // for the layers above
    pub fn batch_memory(&self) -> u64 {
        let tensors = self.program().batch.iter().map(|tensor| tensor.ty().bytes() as u64);
        tensors.fold(0, u64::saturating_add).saturating_mul(u64::from(self.program().micro_batches))
    }

    /// The run, whose data files may also be in these folders, under their names in a run or in the job.
    pub fn with_data(self, folders: impl IntoIterator<Item = PathBuf>) -> Run {
        self.with_data_at(folders.into_iter().map(|folder| Folder::at(&folder)))
    }

    /// [`with_data`](Run::with_data) for any stores. Each range of a training file is checked as it is read. The bytes of evaluation
    /// files decide no record, and nothing promises them: a store's are believed, as a folder's.
    #[doc(hidden)] // for the layers above
    pub fn with_data_at(mut self, stores: impl IntoIterator<Item = Arc<dyn Store>>) -> Run {
        let from = |store: Arc<dyn Store>| {
            let place = store.folder().map_or_else(|| store.place().into(), Path::to_path_buf);
            DataFrom { store, place, below: "" }
        };
        self.data_from = stores.into_iter().map(from).collect();
        self
    }

    /// The run, whose data files may also be those of another run.
    #[doc(hidden)] // for the layers above
    pub fn with_data_of(mut self, other: &Run) -> Run {
        let (store, place) = (other.store.clone(), other.layout.root.clone());
        self.data_from = other.data_from.clone();
        self.data_from.insert(0, DataFrom { store, place, below: "data/" });
        self
    }

    /// Finds data file `number`, in the run or elsewhere.
    ///
    /// # Errors
    /// If the file is nowhere.
    #[doc(hidden)] // for packs alone
    pub fn data_file(&self, number: usize) -> Result<Stored, RunError> {
        let here = names::data_file(number);
        let paths = self.job().data.files.paths();
        let named = paths.get(number).and_then(|path| Path::new(path).file_name());
        let named = named.map(|name| name.to_string_lossy().into_owned());
        let in_data = here.strip_prefix("data/").map(str::to_string);
        let names: Vec<String> = in_data.into_iter().chain(named.clone()).collect();
        let elsewhere = self.data_from.iter().flat_map(|from| names.iter().map(move |name| from.file(name)));
        let found = [self.at(here)].into_iter().chain(elsewhere).find(Stored::is_here);
        found.ok_or_else(|| {
            let name = named.unwrap_or_default();
            let folders: Vec<String> = self.data_from.iter().map(|from| from.name()).collect();
            let searched = if folders.is_empty() { String::new() } else { format!(", nor does {}", folders.join(", ")) };
            RunError::Refused(format!(
                "the run does not hold its data file {number} ({name}){searched}: say where it is with --data FOLDER (or its address)"
            ))
        })
    }

    /// The file of this name (the last component of the path) in the first of the folders and stores with data that has it.
    pub(crate) fn elsewhere(&self, name: &str) -> Option<Stored> {
        let name = Path::new(name).file_name()?.to_string_lossy().into_owned();
        let stores = self.data_from.iter().filter(|from| from.below.is_empty());
        stores.map(|from| from.file(&name)).find(Stored::is_here)
    }

    /// True if the run holds a copy of its data.
    #[doc(hidden)] // for the layers above
    pub fn holds_data(&self) -> bool {
        (0..self.file.data.len()).all(|number| self.at(names::data_file(number)).is_here())
    }

    /// The trees that check ranges of the run's data files. The files have to be there.
    ///
    /// # Errors
    /// If a file is not there, or a tree cannot be read.
    #[doc(hidden)] // for the layers above
    pub fn data_trees(&self) -> Result<Vec<GroupTree>, RunError> {
        let tree = |(number, manifest): (usize, &FileManifest)| {
            let tree = data::group_tree(&self.at(names::data_tree(number)), manifest)?;
            self.data_file(number)?;
            Ok(tree)
        };
        self.file.data.iter().enumerate().map(tree).collect()
    }

    /// The run's data. Bytes are checked when they are read.
    ///
    /// # Errors
    /// If a file cannot be opened, or does not fit the job's model.
    pub fn dataset(&self) -> Result<Dataset, RunError> {
        self.opened()?;
        let mut files = Vec::new();
        for (number, manifest) in self.file.data.iter().enumerate() {
            let (file, tree) = (self.data_file(number)?, self.at(names::data_tree(number)));
            files.push(match self.file_salts(number) {
                None => data::checked_file(&file, &tree, manifest)?,
                Some(salts) => data::hidden_file(&file, &tree, manifest, salts)?,
            });
        }
        Ok(Dataset::of(files, &self.layout.data(), &self.job().data, &self.program().sample())?)
    }

    /// The gradient roots of a step's micro-batches, if the job commits them.
    ///
    /// # Errors
    /// If they cannot be read, or are not those that the record commits.
    #[doc(hidden)] // for the layers above
    pub fn gradient_roots(&self, record: &StepRecord) -> Result<Vec<Digest>, RunError> {
        if record.gradients.is_none() {
            return Ok(Vec::new());
        }
        gradients::read(&self.at(names::GRADIENTS), record, self.program().micro_batches)
    }

    /// The source of the program, in words, which says what vouches for it.
    #[doc(hidden)] // for the layers above
    pub fn program_source(&self) -> &'static str {
        match self.program_file {
            None => "program re-derived from the job",
            Some(_) => {
                "program read from a file: it is what its digest says, and no model kind vouches for it"
            }
        }
    }

    /// The computation's job.
    pub fn job(&self) -> &Job {
        &self.computation.job
    }

    /// The computation's program.
    pub fn program(&self) -> &Program {
        &self.computation.program
    }

    /// The Philox key of the run's seed.
    pub fn key(&self) -> [u32; 2] {
        self.computation.key()
    }

    /// The micro-batches of a step, from the run's [`Run::dataset`].
    ///
    /// # Errors
    /// If the data cannot be read, or is not what the manifest promises.
    pub fn batch(&self, dataset: &mut Dataset, step: u32) -> Result<Vec<MicroBatch>, RunError> {
        Ok(dataset.batch(self.program(), self.key(), step)?)
    }

    /// One micro-batch of a step, from the run's [`Run::dataset`].
    ///
    /// # Errors
    /// As [`Run::batch`].
    #[doc(hidden)] // for the layers above
    pub fn micro_batch(&self, dataset: &mut Dataset, step: u32, micro: u32) -> Result<MicroBatch, RunError> {
        Ok(dataset.micro_batch(self.program(), self.key(), step, micro)?)
    }

    /// Reads a head and checks that the head belongs to this run, has this size, and is signed by `key` if one is given.
    ///
    /// # Errors
    /// If the head cannot be read, is malformed, of another run or size, or not signed by `key`.
    pub fn head(&self, size: u64, key: Option<&PublicKey>) -> Result<(Head, Signed), RunError> {
        let path = self.layout.head(size);
        let note = self.at(names::head(size)).read_text(NOTE_MAX as u64)?;
        let (head, signed) = Head::from_note(&note, key).map_err(|why| RunError::malformed(&path, why))?;
        if head.size != size || head.run != self.id {
            let (found, run) = (head.size, head.run);
            let why = format!(
                "the head is over {found} records of run {run}, and {size} records of run {} are due",
                self.id
            );
            return Err(RunError::invalid(&path, why));
        }
        Ok((head, signed))
    }

    /// The rounding log of a step. The log's root is not compared with any record here.
    ///
    /// # Errors
    /// If the log cannot be read, or is malformed.
    #[doc(hidden)] // for the layers above
    pub fn rounding_log(&self, step: u32) -> Result<Log, RunError> {
        Log::open(self.log_bytes(step)?, parts(self.program()))
            .map_err(|why| RunError::malformed(&self.layout.log(step), why))
    }

    /// The bytes of a step's rounding log, without decoding them.
    ///
    /// # Errors
    /// If the file cannot be read, or has more bytes than the log of a step can have.
    #[doc(hidden)] // for the layers above
    pub fn log_bytes(&self, step: u32) -> Result<Vec<u8>, RunError> {
        let file = self.at(names::log(step));
        let most = bytes_max(&self.program().micro.logged, self.program().micro_batches);
        self.within_memory("a rounding log", file.length().unwrap_or(0).min(most))?;
        file.read(most)
    }
}

/// A store where data files may be that a run does not hold.
#[derive(Clone)]
struct DataFrom {
    store: Arc<dyn Store>,
    /// The store's name in errors.
    place: PathBuf,
    /// What is put before the names of files.
    below: &'static str,
}

impl DataFrom {
    fn file(&self, name: &str) -> Stored {
        Stored::new(&self.store, &self.place, format!("{}{name}", self.below))
    }

    fn name(&self) -> String {
        self.place.join(self.below).display().to_string()
    }
}
