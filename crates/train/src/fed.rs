//! Recordings: a training that is fed with its batches, one for each step.
//!
//! A batch is appended to the data files before its step begins. A resume cuts off a batch whose record a crash left out. Identity
//! and heads follow when the last batch is there: the data's digests are known only then.

use std::io::Cursor;
use std::path::PathBuf;

use tiebreak_contract::program::encoding::encode;
use tiebreak_contract::program::step::{MicroBatch, Program};
use tiebreak_job::data::{Dataset, layout::is_npy};
use tiebreak_job::element::Element;
use tiebreak_job::identity::{CONTRACT, philox_key, program_digest, seed};
use tiebreak_job::manifest::{self, DataFile, FileManifest, GroupTree};
use tiebreak_job::{DataFiles, Job, Sampling};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::record::{Record, StepRecord};
use tiebreak_record::commit::state::state_digest;
use tiebreak_run::run::arrays::npy_header;
use tiebreak_run::run::companions::Companions;
use tiebreak_run::run::create::{NewRun, check_unused, create};
use tiebreak_run::run::dir::{Run, RunFile};
use tiebreak_run::run::{
    JobFiles, RunError, Stored, check_thresholds, names, network, read_job, read_program, transcript,
};

use crate::begin::{Beginning, first_state, reach};

/// The numbers of a batch that go to one data file, one sample behind the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The type of a number, as in jobs.
    pub element: &'static str,
    /// The dimensions of a batch. A sample of a text has one token more than the model's context.
    pub shape: Vec<u64>,
}

/// Gives a recording its batches.
pub trait Feed: Send {
    /// Called once, before the first batch is asked for: `done` steps are there, and batches consist of these parts.
    fn begin(&mut self, done: u32, parts: Vec<Part>);

    /// The batch of the step after `done` ones: the bytes of its samples for each data file, in the job's order. `None` stops the
    /// recording there, with a checkpoint.
    fn next(&mut self, done: u32) -> Option<Vec<Vec<u8>>>;

    /// Called when the last batch is refused. Nothing of it is kept, and [`Feed::next`] is asked again.
    fn refused(&mut self, why: RunError);

    /// Called when the last batch and its record are written.
    fn kept(&mut self, record: &StepRecord);
}

/// A run whose batches are still to come.
pub struct Recording {
    /// The run, identified as if its data had no digests.
    run: Run,
    columns: Vec<Column>,
}

/// A data file, which grows by one batch a step.
struct Column {
    file: Stored,
    element: Element,
    descr: &'static str,
    /// The dimensions of a sample; of a text the number of its tokens.
    dims: Vec<u64>,
    /// True if samples lie one behind the other without a dimension of their own.
    is_text: bool,
    /// Bytes of a batch.
    batch: u64,
    /// Samples of a batch, and of the whole file.
    samples: [u64; 2],
}

impl Column {
    /// The bytes before so many samples.
    fn header(&self, samples: u64) -> Vec<u8> {
        match self.is_text {
            true => npy_header(self.descr, &[samples * self.dims[0]]),
            false => npy_header(self.descr, &[&[samples], &self.dims[..]].concat()),
        }
    }

    /// A batch of the file.
    fn part(&self) -> Part {
        Part { element: self.element.name(), shape: [&self.samples[..1], &self.dims[..]].concat() }
    }

    /// The length of the file after so many steps.
    fn length(&self, steps: u32) -> u64 {
        self.header(self.samples[1]).len() as u64 + u64::from(steps) * self.batch
    }

    /// The file of one batch alone.
    fn alone(&self, bytes: &[u8]) -> Result<DataFile, RunError> {
        let contents = [self.header(self.samples[0]), bytes.to_vec()].concat();
        let path = PathBuf::from("its samples");
        let (manifest, tree) = GroupTree::of(&mut &contents[..]).map_err(RunError::io(&path))?;
        Ok(DataFile::new(path, manifest, tree, Box::new(Cursor::new(contents))))
    }

    /// Cuts the file to so many steps. A file that is not there begins.
    fn cut(&self, steps: u32) -> Result<(), RunError> {
        if self.file.length_or_0()? == 0 {
            self.file.replace(&self.header(self.samples[1]))?;
        }
        if self.file.length()? > self.length(steps) {
            self.file.truncate(self.length(steps))?;
        }
        Ok(())
    }

    /// The whole steps that the file holds.
    fn steps(&self) -> Result<u64, RunError> {
        Ok(self.file.length_or_0()?.saturating_sub(self.length(0)) / self.batch)
    }
}

/// The type of an element in a .npy file.
fn descr(element: Element) -> Result<&'static str, String> {
    match element {
        Element::U8 => Ok("|u1"),
        Element::U16 => Ok("<u2"),
        Element::U32 => Ok("<u4"),
        Element::F32 => Ok("<f4"),
        other => Err(format!(
            "data.dtype: a recording takes f32, u8, u16 and u32, not {}: convert the batches",
            other.name()
        )),
    }
}

/// The type and the dimensions of a sample in each data file of a job.
fn kinds(job: &Job, program: &Program) -> Result<Vec<(Element, Vec<u64>, bool)>, String> {
    let sample = program.sample();
    let dims = |shape: &[u32]| shape.iter().map(|&dim| u64::from(dim)).collect::<Vec<u64>>();
    let kinds = match &job.data.files {
        DataFiles::Arrays(arrays) if arrays.inputs != arrays.labels => {
            let inputs = sample.first().map(|tensor| dims(&tensor.shape[1..])).unwrap_or_default();
            vec![(arrays.dtype, inputs, false), (Element::U32, Vec::new(), false)]
        }
        _ if job.data.masking.is_some() => {
            return Err(
                "data.masking: a recording has the batches that a loop made, and masks nothing".into()
            );
        }
        // The labels of a window are the window one token later.
        DataFiles::Tokens { paths, dtype, masks, .. } if paths.len() == 1 && masks.is_empty() => {
            let tokens = sample.first().map_or(0, |tensor| dims(&tensor.shape).iter().product());
            vec![(*dtype, vec![tokens + 1], true)]
        }
        _ => Vec::new(),
    };
    if kinds.is_empty() || !job.data.files.paths().iter().all(|path| is_npy(path) && !path.ends_with(".gz")) {
        return Err("data: a recording writes arrays to two .npy files, or tokens to one: name those".into());
    }
    Ok(kinds)
}

/// The data files of a recording, and the manifest that stands for them as long as they grow.
fn columns(
    job: &Job,
    program: &Program,
    at: impl Fn(usize) -> Stored,
) -> Result<(Vec<Column>, Vec<FileManifest>), String> {
    let (batch, steps) = (u64::from(program.samples()), u64::from(job.steps));
    let (mut columns, mut manifests) = (Vec::new(), Vec::new());
    for (number, (element, dims, is_text)) in kinds(job, program)?.into_iter().enumerate() {
        let bytes = dims.iter().try_fold(element.size() * batch, |bytes, &dim| bytes.checked_mul(dim));
        let samples = [batch, batch * steps];
        let large = || {
            format!(
                "data: {steps} steps of {batch} samples are more than a data file holds: give fewer steps"
            )
        };
        let batch = bytes.ok_or_else(large)?;
        let column =
            Column { file: at(number), element, descr: descr(element)?, dims, is_text, batch, samples };
        let bytes = batch.checked_mul(steps).ok_or_else(large)?;
        manifests.push(FileManifest { bytes: bytes.saturating_add(column.length(0)), root: Digest([0; 32]) });
        manifest::check(&manifests).map_err(|_| large())?;
        columns.push(column);
    }
    Ok((columns, manifests))
}

/// Refuses jobs whose batches cannot be recorded.
fn check(job: &Job) -> Result<(), String> {
    let refused = [
        (job.data.sampling != Sampling::InOrder, "data.sampling: a recording wants \"in_order\""),
        (job.hides(), "commit.scheme: the commitments of a recording hide nothing: leave the key out"),
        (!job.data.copy, "data.copy: a recording holds its data: leave the key out"),
        (
            job.data.validation_split.is_some(),
            "data.validation_split: a recording trains on each sample: leave the key out",
        ),
        (job.evaluation.is_some(), "evaluation: a recording makes none: leave the table out"),
    ];
    let found = refused.into_iter().find(|(is_so, _)| *is_so);
    found.map_or(Ok(()), |(_, why)| Err(why.into()))
}

impl Recording {
    /// Begins a recording in a store, or opens the one of the same job that is there.
    ///
    /// # Errors
    /// If the store holds something else, the job is wrong or cannot be recorded, or a file cannot be read or written.
    pub fn begin(beginning: &Beginning) -> Result<Recording, RunError> {
        Recording::of(beginning, None)
    }

    /// [`Recording::begin`] for a job that reaches these files.
    ///
    /// # Errors
    /// As [`Recording::begin`].
    #[doc(hidden)] // the command's alone
    pub fn reaching(beginning: &Beginning, files: &JobFiles) -> Result<Recording, RunError> {
        Recording::of(beginning, Some(files))
    }

    fn of(beginning: &Beginning, files: Option<&JobFiles>) -> Result<Recording, RunError> {
        let at = |name: &str| Stored::new(&beginning.out, beginning.out.place().as_ref(), name);
        let (text, job) = read_job(beginning.job)?;
        let refused = |why| RunError::Refused(format!("{}: {why}", beginning.job.display()));
        check(&job).map_err(refused)?;
        if beginning.challenge.is_some() || beginning.logged {
            return Err(refused(
                "a recording takes no challenge, and its job has [rounding] or is exact".into(),
            ));
        }
        let place = beginning.out.place();
        if at(names::RECORDING).is_here() {
            let recording = Recording::open(beginning)?;
            if recording.run.job_text != text {
                let why =
                    "is a recording of another job: give the same job and the same steps, or another folder";
                return Err(RunError::Refused(format!("{place} {why}")));
            }
            return Ok(recording);
        }
        if at(names::RUN_JSON).is_here() {
            return Err(RunError::Refused(format!("{place} is a run already: choose another folder")));
        }
        check_unused(&*beginning.out, job.network.is_some())?;
        create_new(beginning, &reach(beginning, files)?, (&text, &job), refused)?;
        Recording::open(beginning)
    }

    /// Opens the recording in a store.
    fn open(beginning: &Beginning) -> Result<Recording, RunError> {
        let run = Run::of_recording(beginning.out.clone())?;
        let invalid = |why| RunError::invalid(run.at(names::RECORDING).path(), why);
        check(run.job()).map_err(invalid)?;
        let files = columns(run.job(), run.program(), |number| run.at(names::data_file(number)));
        let (columns, manifests) = files.map_err(invalid)?;
        if manifests != run.file.data {
            let bytes = |files: &[FileManifest]| files.iter().map(|file| file.bytes).collect::<Vec<u64>>();
            let (found, due) = (bytes(&run.file.data), bytes(&manifests));
            return Err(invalid(format!(
                "its data files have {found:?} bytes, and those of its job {due:?}"
            )));
        }
        Ok(Recording { run, columns })
    }

    /// The run so far. Its id and its computation are not those of the finished run.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// The batches of a training of this recording.
    pub(crate) fn feeding<'a>(&'a self, feed: &'a mut dyn Feed) -> Feeding<'a> {
        Feeding { recording: self, feed, there: 0, began: false }
    }

    /// True if the last record is there.
    pub(crate) fn is_complete(&self) -> Result<bool, RunError> {
        let file = self.run.at(names::TRANSCRIPT);
        if !file.is_here() {
            return Ok(false);
        }
        Ok(matches!(transcript::read(file)?.0.records.last(), Some(Record::Final { .. })))
    }

    /// The micro-batches of a step from the bytes of its samples, as a data file of the whole run gives them.
    fn micro_batches(&self, step: u32, parts: &[Vec<u8>]) -> Result<Vec<MicroBatch>, RunError> {
        let due: Vec<u64> = self.columns.iter().map(|column| column.batch).collect();
        let found: Vec<u64> = parts.iter().map(|part| part.len() as u64).collect();
        if found != due {
            let why = format!("the batch of step {step} has {found:?} bytes, and {due:?} are wanted");
            return Err(RunError::Refused(why));
        }
        let found =
            batch_of(&self.columns, parts, (self.run.job(), self.run.program()), self.run.key(), step);
        found.map_err(|error| RunError::Refused(format!("the batch of step {step}: {error}")))
    }

    /// The micro-batches of a step whose batch the data files hold.
    fn stored(&self, step: u32) -> Result<Vec<MicroBatch>, RunError> {
        let part = |column: &Column| column.file.read_range(column.length(step - 1)..column.length(step));
        let parts = self.columns.iter().map(part).collect::<Result<Vec<_>, _>>()?;
        self.micro_batches(step, &parts)
    }

    /// Cuts off what a crash left. Returns the number of steps whose batch and record are there.
    fn settle(&self) -> Result<u32, RunError> {
        let (run, file) = (&self.run, self.run.at(names::TRANSCRIPT));
        let records = if file.is_here() { transcript::read(file.clone())?.0.records } else { Vec::new() };
        let recorded = records.len().saturating_sub(1) as u64;
        let held = self.columns.iter().map(Column::steps).collect::<Result<Vec<u64>, _>>()?;
        let mut there = held.into_iter().fold(recorded, u64::min) as u32;
        // A checkpoint comes after everything before it is synced.
        let safe = run.checkpoint_steps()?.last().copied().unwrap_or(0);
        if there < safe {
            let why = format!(
                "the checkpoint of step {safe} is there, and batches and records of {there} steps alone: files were damaged"
            );
            return Err(RunError::invalid(&run.layout.root, why));
        }
        // The system may have written a record, and not all of its batch.
        let is_whole = |step: u32| match &records[step as usize] {
            Record::Step { step: record, .. } => {
                let digest = |batch: Vec<MicroBatch>| run.computation.batch_digest(step, &batch);
                self.stored(step).is_ok_and(|batch| digest(batch) == record.batch)
            }
            Record::Initial { .. } | Record::Final { .. } => false,
        };
        there = (safe + 1..=there).find(|&step| !is_whole(step)).map_or(there, |step| step - 1);
        self.columns.iter().try_for_each(|column| column.cut(there))?;
        if recorded > u64::from(there) {
            file.truncate(transcript::length(&records[..=there as usize]))?;
        }
        Ok(there)
    }
}

/// The micro-batches of a step. In order, the samples of one batch alone are drawn as they are in the whole files.
fn batch_of(
    columns: &[Column],
    parts: &[Vec<u8>],
    (job, program): (&Job, &Program),
    key: [u32; 2],
    step: u32,
) -> Result<Vec<MicroBatch>, RunError> {
    let files = columns.iter().zip(parts).map(|(column, part)| column.alone(part));
    let files = files.collect::<Result<Vec<DataFile>, _>>()?;
    let mut dataset = Dataset::of(files, names::DATA.as_ref(), &job.data, &program.sample())?;
    Ok(dataset.batch(program, key, step)?)
}

/// Makes the files of a new recording.
fn create_new(
    beginning: &Beginning,
    files: &JobFiles,
    (job_text, job): (&str, &Job),
    refused: impl Fn(String) -> RunError,
) -> Result<(), RunError> {
    let (program, _) = read_program(files, job)?;
    check_thresholds(beginning.job, job, &program)?;
    let network = network::of_job(files, job, &program)?;
    let companions = Companions::of_job(job, files)?;
    let at = |number| Stored::new(&beginning.out, beginning.out.place().as_ref(), names::data_file(number));
    let (columns, data) = columns(job, &program, at).map_err(refused)?;
    let digest = program_digest(&program);
    // The seed of a run in order is that of any data.
    let key = philox_key(&seed(job, &digest, &Digest([0; 32]), None));
    // A batch of zeros shows whether the job's data fit its program.
    let zeros: Vec<Vec<u8>> = columns.iter().map(|column| vec![0; column.batch as usize]).collect();
    batch_of(&columns, &zeros, (job, &program), key, 1)?;
    let (digests, origin, state) = first_state(job, &program, files, key)?;
    let table = program.state();
    let file = RunFile {
        contract: CONTRACT.into(),
        trainer_key: beginning.key.map(|key| key.public().to_text()),
        challenge: None,
        nonce: beginning.nonce.iter().map(|b| format!("{b:02x}")).collect(),
        program: digest,
        initial: state_digest(&table, &digests),
        origin,
        data,
        salts: None,
    };
    let new = NewRun {
        named: names::RECORDING,
        file: &file,
        job_text,
        program: &encode(&program),
        network: network.as_deref(),
        logged: job.rounding.is_some(),
        trees: &[],
        copied: Vec::new(),
        initial: state.as_ref().map(|state| (&table[..], &state[..])),
        companions: &companions,
    };
    create(&beginning.out, &new)
}

/// The batches of a recording in training: those that are stored, and then the feed's.
pub(crate) struct Feeding<'a> {
    recording: &'a Recording,
    feed: &'a mut dyn Feed,
    /// The steps that were there when training began.
    there: u32,
    /// True once the feed was told of them.
    began: bool,
}

impl Feeding<'_> {
    /// Cuts off what a crash left, before the transcript is opened.
    pub(crate) fn settle(&mut self) -> Result<(), RunError> {
        self.there = self.recording.settle()?;
        Ok(())
    }

    /// The data files, which grow.
    pub(crate) fn files(&self) -> Vec<Stored> {
        self.recording.columns.iter().map(|column| column.file.clone()).collect()
    }

    /// The batch of a step, which is stored when the call returns; `None` if the feed stops.
    pub(crate) fn batch(&mut self, step: u32) -> Result<Option<Vec<MicroBatch>>, RunError> {
        if step <= self.there {
            return Ok(Some(self.recording.stored(step)?));
        }
        if !self.began {
            self.began = true;
            self.feed.begin(step - 1, self.recording.columns.iter().map(Column::part).collect());
        }
        while let Some(parts) = self.feed.next(step - 1) {
            match self.recording.micro_batches(step, &parts) {
                Ok(batch) => {
                    for (column, part) in self.recording.columns.iter().zip(&parts) {
                        column.file.append(part)?;
                    }
                    return Ok(Some(batch));
                }
                Err(why) => self.feed.refused(why),
            }
        }
        Ok(None)
    }

    /// Says that a step's record is written.
    pub(crate) fn kept(&mut self, record: &StepRecord) {
        if record.step > self.there {
            self.feed.kept(record);
        }
    }
}
