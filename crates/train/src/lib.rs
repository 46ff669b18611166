//! Training: steps, records, heads and checkpoints, in an order that survives a kill at any moment.
//!
//! A record is appended before a head covers it. A head is published only over records that are safe on disk, and a checkpoint is
//! written only for a step whose record is there. So whatever a crash leaves, training resumes from the last checkpoint and the
//! records after it, and the same steps give the same records.
//!
//! The crate judges nobody, and reads from other trainers' folders only the files that a job begins from. Cheats exist only with
//! the feature `testing`.
//!
//! Start with [`begin()`], which makes a run's folder from a job, and [`train`], which continues from the files that are there.
//! [`ranks`] trains with several processes.
//!
//! The crate is internal, without a promise of stability. The package `tiebreak` is the public interface.

#![warn(missing_docs)]
#![allow(rustdoc::broken_intra_doc_links, reason = "shapes are written in brackets: [N, C]")]

mod again;
mod begin;
#[cfg(feature = "testing")]
pub mod cheat;
pub mod conduct;
mod disk;
mod error;
pub mod fed;
#[cfg(feature = "testing")]
pub mod hostile;
mod publish;
pub mod ranks;

use std::sync::Arc;

pub use again::{Again, again};
#[cfg(feature = "testing")]
pub use begin::begin_with_any_thresholds;
use begin::check_key;
pub use begin::{Beginning, Prepared, begin, evaluation_files, tokenizer};
use conduct::{Conduct, Honest};
pub use disk::disk_needed;
pub use error::TrainError;
use fed::{Feed, Feeding, Recording};
use ranks::lead::Lead;
use ranks::report;
use tiebreak_contract::arith::words::bytes_from_words;
use tiebreak_contract::arith::{DType, float};
use tiebreak_contract::program::init;
use tiebreak_engine::Engine;
use tiebreak_engine::session::Session;
use tiebreak_job::Granularity;
use tiebreak_job::data::{self, Dataset};
use tiebreak_job::initial::InitialOrigin;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::record::{Record, StepRecord};
use tiebreak_record::commit::tree_head::Head;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::gradients::GradientsWriter;
use tiebreak_run::run::transcript::{Transcript, TranscriptWriter};
use tiebreak_run::run::{RunError, Stored, checkpoint, initial, names, states, traces};
use tiebreak_run::step::finite::{self, FirstValue, NotFinite, Place};
use tiebreak_run::step::{CommittedStep, Roundings, StepError, StepRequest, Watch, noted_digests, scalars};

/// Receives a trainer's progress.
pub trait Progress {
    /// Called when the state after `done` steps is loaded, from which training continues.
    fn begin(&mut self, _done: u32) {}

    /// Called with that state, after [`Progress::begin`] and before the next step: for snapshots, which change nothing.
    ///
    /// # Errors
    /// If the snapshot fails; then training stops.
    fn loaded(&mut self, _done: u32, _session: &mut Session) -> Result<(), StepError> {
        Ok(())
    }

    /// Called when a step was committed, with its record, and the gradient's global norm before clipping, a binary32 pattern.
    fn step(&mut self, record: &StepRecord, norm: u32);

    /// Called with the same step's state before anything of the step is written: for evaluations and snapshots, which change
    /// nothing. A long evaluation calls `waiting` now and then, to tell other ranks that this one is still alive.
    ///
    /// # Errors
    /// If the evaluation of the state fails; then training stops.
    fn state(
        &mut self,
        _step: u32,
        _session: &mut Session,
        _waiting: &mut (dyn FnMut() + Send),
    ) -> Result<(), StepError> {
        Ok(())
    }

    /// Called when the loss of a step is not finite: once, before anything of the step is written.
    fn not_finite(&mut self, _step: u32, _found: &NotFinite) {}

    /// True if training stops when a loss, or the final model, is not finite.
    fn stops_at_not_finite(&self) -> bool {
        false
    }

    /// True if training is to stop now, with a checkpoint; asked after every step.
    fn is_asked_to_stop(&mut self) -> bool {
        false
    }
}

/// Reports no progress.
pub struct Silent;

impl Progress for Silent {
    fn step(&mut self, _: &StepRecord, _: u32) {}
}

struct Trainer<'a> {
    run: &'a Run,
    key: Option<&'a PrivateKey>,
    writer: TranscriptWriter,
    /// The writer of gradient roots, for jobs that commit the gradients of micro-batches.
    gradients: Option<GradientsWriter>,
    /// The transcript when training began.
    before: Transcript,
    /// True if a loss that is not finite was reported.
    told: bool,
    /// The data files of a recording, which grow; none of another run. A recording has no heads before its end.
    growing: Vec<Stored>,
}

/// The processes that compute the steps.
enum By<'a, 'b> {
    /// This process alone.
    Alone(&'a mut dyn Conduct),
    /// Several ranks; this process is rank 0.
    Ranks(&'a mut Lead<'b>),
    /// This process alone, with batches that it is fed.
    Fed(&'a mut Feeding<'b>),
}

/// Trains a run to its end, from the step that it has reached.
///
/// Returns the last state digest.
///
/// # Errors
/// If the engine fails, a file cannot be read or written, or a step that was done before gives another result.
pub fn train(
    run: &Run,
    engine: &mut dyn Engine,
    key: Option<&PrivateKey>,
    progress: &mut dyn Progress,
) -> Result<Digest, TrainError> {
    train_by(run, engine, key, By::Alone(&mut Honest), progress)
}

/// [`train`] by a trainer with the given conduct; the tests and the demo plant cheats with it.
///
/// # Errors
/// As [`train`].
#[cfg(feature = "testing")]
pub fn train_as(
    run: &Run,
    engine: &mut dyn Engine,
    key: Option<&PrivateKey>,
    conduct: &mut dyn Conduct,
    progress: &mut dyn Progress,
) -> Result<Digest, TrainError> {
    train_by(run, engine, key, By::Alone(conduct), progress)
}

/// [`train`] by rank 0 of several; the others run [`ranks::worker::work`]. The run has the bytes of a run by one process.
///
/// # Errors
/// As [`train`]; also if a rank is lost, silent, or computes another result than the others.
pub fn train_over(
    run: &Run,
    engine: &mut dyn Engine,
    key: Option<&PrivateKey>,
    mut lead: Lead,
    progress: &mut dyn Progress,
) -> Result<Digest, TrainError> {
    let trained = train_by(run, engine, key, By::Ranks(&mut lead), progress);
    if let Err(error) = &trained
        && !error.is_an_end()
    {
        report(lead.collective, error);
    }
    trained
}

/// Records to the last step, and makes the recording a run.
///
/// # Errors
/// As [`train`]; [`TrainError::Asked`] if the feed or the progress stops the recording.
pub fn record(
    recording: &Recording,
    engine: &mut dyn Engine,
    key: Option<&PrivateKey>,
    feed: &mut dyn Feed,
    progress: &mut dyn Progress,
) -> Result<Run, TrainError> {
    if !recording.is_complete()? {
        train_by(recording.run(), engine, key, By::Fed(&mut recording.feeding(feed)), progress)?;
    }
    Ok(publish::publish(recording.run(), key)?)
}

fn train_by(
    run: &Run,
    engine: &mut dyn Engine,
    key: Option<&PrivateKey>,
    mut by: By,
    progress: &mut dyn Progress,
) -> Result<Digest, TrainError> {
    let _lock = run.lock()?;
    check_key(run, key)?;
    let growing = by.settled()?;
    let published = run.head_sizes()?.last().copied().unwrap_or(0);
    let (writer, before) = TranscriptWriter::open(run.at(names::TRANSCRIPT), published)?;
    let id = run.computation.id;
    if let Some(index) = before.records.iter().position(|record| *record.computation() != id) {
        let found = before.records[index].computation().not(&id);
        let why = format!("record {index} is of another computation, {found}");
        return Err(RunError::invalid(&run.layout.transcript(), why).into());
    }
    let gradients = match run.job().commit.granularity {
        Granularity::Step => None,
        Granularity::Microbatch | Granularity::Operator => {
            Some(GradientsWriter::open(run.at(names::GRADIENTS))?)
        }
    };
    let mut trainer = Trainer { run, key, writer, gradients, before, told: false, growing };
    if progress.stops_at_not_finite() {
        trainer.finite_before()?;
    }
    let program = match &mut by {
        By::Alone(conduct) => Arc::new(conduct.program(run)),
        By::Ranks(_) | By::Fed(_) => Arc::new(run.program().clone()),
    };
    let device = engine.describe();
    let mut session = match run.job().rounding {
        Some(_) => Session::native(engine, program)?,
        None => Session::new(engine, program)?,
    };
    let (first, mut digests) = trainer.loaded(&mut session, &mut by)?;
    let state = run.computation.state_digest(first, &run.program().state(), &digests);
    if first == 0 {
        trainer.append(Record::Initial { computation: run.computation.id, state }, 0, &device)?;
        // This head comes before the first step, so that nobody can claim later to have begun from another state.
        trainer.publish_head(1)?;
        trainer.checkpoint(&mut session, 0, &mut by)?;
    }
    progress.begin(first);
    by.meanwhile(|_| progress.loaded(first, &mut session))?;
    let ended = trainer.steps(&mut session, &mut digests, first, &mut by, progress, &device);
    if let (Err(error), By::Ranks(lead)) = (&ended, &mut by)
        && error.is_an_end()
    {
        lead.finish();
    }
    ended?;
    trainer.prune()?; // a crash may have come between the last checkpoint and this
    trainer.model(&mut session)?;
    let roots = run.computation.state_roots(run.job().steps, &run.program().state(), &digests);
    let last = Record::Final { computation: run.computation.id, steps: run.job().steps, roots };
    trainer.append(last, run.job().steps + 1, &device)?;
    trainer.publish_head(u64::from(run.job().steps) + 2)?;
    if let By::Ranks(lead) = &mut by {
        lead.finish();
    }
    Ok(roots.digest())
}

impl By<'_, '_> {
    /// The data files of a recording, cut to what a crash left whole; none of another run.
    fn settled(&mut self) -> Result<Vec<Stored>, RunError> {
        let By::Fed(feeding) = self else { return Ok(Vec::new()) };
        feeding.settle()?;
        Ok(feeding.files())
    }

    /// True if another rank was asked to stop.
    fn is_asked_to_stop(&self) -> bool {
        matches!(self, By::Ranks(lead) if lead.is_asked_to_stop())
    }

    /// Passes a tensor of the state on to the other ranks, if there are any.
    fn loading(&mut self, place: usize, bytes: &[u8]) -> Result<(), TrainError> {
        match self {
            By::Ranks(lead) => lead.loading(place, bytes),
            By::Alone(_) | By::Fed(_) => Ok(()),
        }
    }

    /// Runs `act` while the other ranks, if there are any, wait.
    fn meanwhile(
        &mut self,
        act: impl FnOnce(&mut (dyn FnMut() + Send)) -> Result<(), StepError>,
    ) -> Result<(), TrainError> {
        let mut lost = Ok(());
        act(&mut || {
            if let (By::Ranks(lead), Ok(())) = (&mut *self, &lost) {
                lost = lead.still_here();
            }
        })?;
        lost
    }
}

impl Trainer<'_> {
    /// Runs all steps after `first`. The digests of the last state go to `digests`.
    fn steps(
        &mut self,
        session: &mut Session,
        digests: &mut Vec<Digest>,
        first: u32,
        by: &mut By,
        progress: &mut dyn Progress,
        device: &str,
    ) -> Result<(), TrainError> {
        let run = self.run;
        let mut dataset = match by {
            By::Fed(_) => None,
            By::Alone(_) | By::Ranks(_) => Some(run.dataset()?),
        };
        let last = run.job().steps;
        for step in first + 1..=last {
            let Some(mut done) = self.step(session, dataset.as_mut(), step, by)? else {
                self.sync()?;
                self.checkpoint(session, step - 1, by)?;
                return Err(TrainError::Asked { step: step - 1 });
            };
            digests.clone_from(&done.state);
            let found = self.not_finite(dataset.as_mut(), &mut done)?;
            progress.step(&run.computation.masked(done.record.clone()), done.norm);
            if let Some(found) = &found {
                progress.not_finite(step, found);
            }
            if let Some(found) = found.filter(|_| progress.stops_at_not_finite()) {
                // Write no checkpoint, even if one is due: pruning could then remove the last good one.
                self.keep(done, step, device)?;
                self.publish_head(u64::from(step) + 1)?;
                return Err(TrainError::NotFinite { step, found: Box::new(found) });
            }
            by.meanwhile(|waiting| progress.state(step, session, waiting))?;
            let record = done.record.clone();
            self.keep(done, step, device)?;
            if let By::Fed(feeding) = by {
                feeding.kept(&record);
            }
            let asked = step < last && (progress.is_asked_to_stop() || by.is_asked_to_stop());
            // The checkpoint comes after the head, so that a resume from this checkpoint skips no head.
            if run.job().is_checkpoint(step) || asked {
                self.sync()?;
                self.checkpoint(session, step, by)?;
            }
            if asked {
                return Err(TrainError::Asked { step });
            }
        }
        // A complete run is accepted as it is.
        let stops = progress.stops_at_not_finite() && !self.is_complete();
        match stops.then(|| finite::of_state(session)).transpose()?.flatten() {
            None => Ok(()),
            Some(first) => {
                self.publish_head(u64::from(last) + 1)?;
                Err(TrainError::LastStateNotFinite { step: last, first: Box::new(first) })
            }
        }
    }

    /// True if the final record was there when training began.
    fn is_complete(&self) -> bool {
        matches!(self.before.records.last(), Some(Record::Final { .. }))
    }

    /// Refuses to continue from a step whose loss is not finite, unless the run is complete.
    fn finite_before(&self) -> Result<(), TrainError> {
        if self.is_complete() {
            return Ok(());
        }
        match finite::of_records(&self.run.shown(&self.before.records)) {
            None => Ok(()),
            Some(losses) => {
                let found = Box::new(NotFinite::recorded(losses.loss));
                Err(TrainError::NotFinite { step: losses.first, found })
            }
        }
    }

    /// The report about a step's loss that is not finite: once, with the data's file if the first such value is in the data.
    fn not_finite(
        &mut self,
        dataset: Option<&mut Dataset>,
        done: &mut CommittedStep,
    ) -> Result<Option<NotFinite>, TrainError> {
        let run = self.run;
        let StepRecord { step, loss, .. } = run.computation.masked(done.record.clone());
        if self.told || float::is_finite(loss) {
            return Ok(None);
        }
        self.told = true;
        // The sum can be finite where the mean is not.
        let mut found = done.not_finite.take().unwrap_or_else(|| NotFinite::recorded(finite::in_words(loss)));
        if let Some(FirstValue { place: Place::Batch { place, drawn_from, .. }, .. }) = &mut found.first
            && let Some(dataset) = dataset
        {
            let batch = run.program().samples();
            let at = data::Place { step, batch, place: *place };
            let (file, sample) = dataset.drawn_from(run.key(), at).map_err(RunError::from)?;
            let names = run.job().data.files.paths();
            *drawn_from = names.get(file).map(|name| (name.to_string(), sample));
        }
        Ok(Some(found))
    }

    /// Brings the session, and the other ranks if there are any, to the state to go on from. Returns its step, and its tensors'
    /// digests.
    fn loaded(&self, session: &mut Session, by: &mut By) -> Result<(u32, Vec<Digest>), TrainError> {
        if let By::Ranks(lead) = by {
            lead.welcome(self.run, session)?;
        }
        let first = self.load_state(session, by)?;
        let digests = match by {
            By::Ranks(lead) => lead.begin(self.run, session)?,
            By::Alone(_) | By::Fed(_) => noted_digests(session)?,
        };
        Ok((first, digests))
    }

    /// Loads the last checkpoint that agrees with its record, or the initial state. Returns the state's step.
    fn load_state(&self, session: &mut Session, by: &mut By) -> Result<u32, TrainError> {
        for step in self.run.checkpoint_steps()?.into_iter().rev() {
            if self.before.records.len() > step as usize {
                session.load_visited(|load| -> Result<(), TrainError> {
                    states::visit(self.run, &self.before.records, step, |place, bytes| {
                        by.loading(place, bytes)?;
                        load(place, bytes)
                    })
                })?;
                return Ok(step);
            }
        }
        let (program, seed) = (self.run.program(), self.run.key());
        let mut state = match self.run.file.origin {
            InitialOrigin::Seed => None, // tensor by tensor, as they are loaded
            InitialOrigin::Weights { .. } | InitialOrigin::Run(_) => Some(initial::state(self.run)?),
        };
        session.try_load_each(|i| {
            let mut tensor = match &mut state {
                None => bytes_from_words(DType::F32, &init::state_tensor(program, seed, i)),
                Some(state) => std::mem::take(&mut state[i]),
            };
            if let By::Alone(conduct) = by {
                conduct.initial(self.run, i, &mut tensor)?;
            }
            by.loading(i, &tensor)?;
            Ok::<_, TrainError>(tensor)
        })?;
        Ok(0)
    }

    /// Writes a step's record and the files beside it, in an order that lets training resume after any crash.
    fn keep(&mut self, done: CommittedStep, step: u32, device: &str) -> Result<(), TrainError> {
        let run = self.run;
        let record = Record::Step { computation: run.computation.id, step: done.record };
        // This check comes before any write over files that an earlier record commits.
        self.is_there(&record, step, device)?;
        if let Some(trace) = &done.trace {
            traces::write(&run.at(names::trace(step)), trace)?;
        }
        if let Some((log, _)) = &done.log {
            run.at(names::log(step)).replace(log.bytes())?;
        }
        if let Some(gradients) = &mut self.gradients {
            gradients.write(step, &done.gradients)?;
        }
        self.append(record, step, device)?;
        if step.is_multiple_of(run.job().commit.head_every) && step < run.job().steps {
            self.publish_head(u64::from(step) + 1)?;
        }
        Ok(())
    }

    /// Writes the released model: the parameters, and the buffers that belong to them.
    fn model(&self, session: &mut Session) -> Result<(), TrainError> {
        let parameters = self.run.program().released();
        let table = &self.run.program().state()[..parameters];
        checkpoint::write(self.run.at(names::MODEL), table, |show| {
            session.visit_state(|i, bytes| {
                if i < parameters {
                    show(bytes);
                }
            })?;
            Ok::<(), TrainError>(())
        })
    }

    /// Computes one step, alone or with the other ranks. Nothing if no more batches come.
    fn step(
        &self,
        session: &mut Session,
        dataset: Option<&mut Dataset>,
        step: u32,
        by: &mut By,
    ) -> Result<Option<CommittedStep>, TrainError> {
        let (run, scalars) = (self.run, scalars(&self.run.computation, step));
        let watch = Watch { finite: !self.told, ..Watch::default() };
        let mut run_step =
            |session: &mut Session, request: StepRequest| request.run(session, Roundings::Logged, &watch);
        let done = match (by, dataset) {
            (By::Fed(feeding), _) => {
                let Some(batch) = feeding.batch(step)? else { return Ok(None) };
                run_step(session, StepRequest::new(&run.computation, scalars, &batch))?
            }
            (By::Alone(conduct), Some(dataset)) => {
                let batch = run.batch(dataset, step)?;
                conduct.step(run, session, scalars, batch, dataset, &mut run_step)?
            }
            (By::Ranks(lead), Some(dataset)) => {
                lead.step(run, session, scalars, &run.batch(dataset, step)?, watch.finite)?
            }
            (By::Alone(_) | By::Ranks(_), None) => unreachable!("such a trainer has a dataset"),
        };
        Ok(Some(done))
    }

    /// Appends a record, or checks it against the one that is there from before an interruption.
    fn append(&mut self, record: Record, index: u32, device: &str) -> Result<(), TrainError> {
        match self.is_there(&record, index, device)? {
            true => Ok(()),
            false => Ok(self.writer.append(&record)?),
        }
    }

    /// True if a record is there from before an interruption; then both have to be equal.
    fn is_there(&self, record: &Record, index: u32, device: &str) -> Result<bool, TrainError> {
        match self.before.records.get(index as usize) {
            Some(have) if have == record => Ok(true),
            Some(_) => Err(TrainError::NotReproduced { step: index, device: device.to_string() }),
            None => Ok(false),
        }
    }

    /// Syncs all records, and the batches and gradient roots that they commit.
    fn sync(&self) -> Result<(), RunError> {
        self.growing.iter().try_for_each(Stored::sync)?;
        if let Some(gradients) = &self.gradients {
            gradients.sync()?;
        }
        self.writer.sync()
    }

    /// Publishes the head over the first `size` records, unless it exists.
    fn publish_head(&mut self, size: u64) -> Result<(), TrainError> {
        if !self.growing.is_empty() {
            return Ok(self.sync()?);
        }
        let file = self.run.at(names::head(size));
        if file.is_file() {
            return Ok(());
        }
        self.sync()?;
        // After an interruption there may be more records than the head covers.
        let root =
            if size == self.writer.size() { self.writer.root() } else { self.before.root(size as usize) };
        let head = Head { run: self.run.id, size, root };
        Ok(file.replace(head.to_note(self.key).as_bytes())?)
    }

    /// Writes the state after `step`.
    fn checkpoint(&self, session: &mut Session, step: u32, by: &mut By) -> Result<(), TrainError> {
        if !self.run.at(names::checkpoint(step)).is_file() {
            states::write(self.run, step, |show| match by {
                By::Ranks(lead) => lead.visit_state(session, show),
                By::Alone(_) | By::Fed(_) => Ok(session.visit_state(|_, bytes| show(bytes))?),
            })?;
        }
        self.prune()
    }

    /// Removes checkpoints that the job does not keep.
    fn prune(&self) -> Result<(), TrainError> {
        let steps = self.run.checkpoint_steps()?;
        let job = self.run.job();
        let (due, extra): (Vec<u32>, Vec<u32>) =
            steps.iter().filter(|&&step| step != 0).partition(|&&step| job.is_checkpoint(step));
        let kept = job.checkpoint.keep.map_or(due.len(), |keep| keep.max(1) as usize);
        let old = due.iter().take(due.len().saturating_sub(kept));
        // A checkpoint that was written because of a request to stop is superseded by a later one that is due.
        let passed = extra.iter().filter(|&&step| due.last().is_some_and(|&last| last > step));
        old.chain(passed).try_for_each(|&step| self.run.at(names::checkpoint(step)).remove())?;
        Ok(())
    }
}
