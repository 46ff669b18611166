//! A training of the monitoring demo, beside the agents of the chips that it runs on.

use std::path::Path;
use std::time::Instant;

use super::chips::Chips;
use super::scenario::{Seed, Training, job};
use crate::cli::command::train::bar::Bar;
use crate::cli::view::report::{Failure, Printer};
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::session::Session;
use tiebreak_monitor::snapshot::record::Shard;
use tiebreak_monitor::snapshot::shard_map::ShardMap;
use tiebreak_monitor::witness::checkpoint::Checkpoint;
use tiebreak_monitor::witness::policy::{Log, Logs, NOTHING_SEEN};
use tiebreak_monitor::witness::request::AddCheckpoint;
use tiebreak_record::commit::cosignature::cosigned;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::record::StepRecord;
use tiebreak_record::commit::tree_head::NOTE_MAX;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::{Folder, RunError, names};
use tiebreak_run::step::{StepError, state_digests, state_root};
use tiebreak_train::{Beginning, Progress, begin, train};

/// Days between the witness's cosignature and the first step, and between two trainings of the same chips.
const PAUSE: f64 = 1.0 / 24.0;

/// The keys and the folder of a training.
pub struct Place<'a> {
    /// The folder of the demo.
    pub folder: &'a Path,
    /// The operator's key, which signs the run's heads.
    pub operator: &'a PrivateKey,
    /// The witness, who cosigns the first head of a run that is declared.
    pub witness: &'a PrivateKey,
    /// The source of nonces.
    pub seed: Seed,
}

/// A training's progress: a bar, and the chips beside it.
struct Beside<'a> {
    bar: Bar,
    chips: &'a mut Chips,
    training: &'a Training,
    run: &'a Run,
    place: &'a Place<'a>,
    /// The day of the initial state.
    first: f64,
}

/// Has the witness cosign the run's first head, by the rules of `tiebreak witness serve` and at the time of the chips.
fn declare(run: &Run, place: &Place, time: u64) -> Result<(), RunError> {
    let path = run.layout.head(1);
    let malformed = |error| RunError::malformed(&path, error);
    let note = run.at(names::head(1)).read_text(NOTE_MAX as u64)?;
    let checkpoint = Checkpoint::read(&note).map_err(malformed)?;
    let request = AddCheckpoint { old: 0, proof: Vec::new(), checkpoint };
    let logs = Logs::new(vec![Log { origin: "tiebreak/run/".into(), key: place.operator.public() }]);
    let decided = logs.decide(&request, |_| Ok::<_, RunError>(NOTHING_SEEN))?;
    decided.map_err(|why| RunError::Refused(format!("the demo's witness does not cosign: {why}")))?;
    let note = cosigned(&note, place.witness, time).map_err(malformed)?;
    Disk::default().replace(&std::path::absolute(&path).map_err(RunError::io(&path))?, note.as_bytes())
}

impl Beside<'_> {
    fn snapshots(&mut self, step: u32, session: &mut Session) -> Result<(), StepError> {
        let (from, to) = self.training.days;
        let day = self.first + (to - from) * f64::from(step) / f64::from(self.training.steps);
        self.chips.step(day, step, || {
            let digests = state_digests(session)?;
            Ok::<_, StepError>(state_root(session.program(), &digests))
        })
    }
}

impl Progress for Beside<'_> {
    fn begin(&mut self, done: u32) {
        self.bar.begin(done);
    }

    fn loaded(&mut self, done: u32, session: &mut Session) -> Result<(), StepError> {
        if self.training.declared {
            declare(self.run, self.place, self.chips.now())?;
        }
        self.chips.pass_until(self.first)?;
        // The program stands for the code on the chip: this executable is another one in every build, and so the draw would be.
        let shard = Shard { map: ShardMap::Whole.digest(), code: self.run.file.program };
        self.chips.attach(shard, self.run.computation.id)?;
        self.snapshots(done, session)
    }

    fn step(&mut self, record: &StepRecord, norm: u32) {
        self.bar.step(record, norm);
    }

    fn state(
        &mut self,
        step: u32,
        session: &mut Session,
        waiting: &mut (dyn FnMut() + Send),
    ) -> Result<(), StepError> {
        self.bar.state(step, session, waiting)?;
        self.snapshots(step, session)
    }
}

/// Trains on these chips, and returns the run and the seconds that it really took.
///
/// # Errors
/// If the training fails, or a file cannot be written.
pub fn trained(
    printer: Printer,
    place: &Place,
    training: &Training,
    chips: &mut Chips,
) -> Result<(Run, f64), Failure> {
    let start = Instant::now();
    let job_path = place.folder.join(format!("{}.toml", training.name));
    let job_path = std::path::absolute(&job_path).map_err(RunError::io(&job_path))?;
    Disk::default().replace(&job_path, job(training, place.seed.0).as_bytes())?;
    let home = if training.declared { "runs" } else { "hidden" };
    let [nonce, ..] = *place.seed.bytes(training.name).as_chunks::<16>().0 else { unreachable!() };
    let beginning = Beginning {
        job: &job_path,
        data_root: None,
        out: Folder::at(&place.folder.join(home).join(training.name)),
        key: Some(place.operator),
        challenge: None,
        logged: false,
        nonce,
    };
    let run = begin(&beginning)?;
    chips.pass_until(training.days.0.max(chips.day()))?;
    let first = chips.day() + PAUSE;
    let bar = Bar::new(printer, &run);
    let mut beside = Beside { bar, chips, training, run: &run, place, first };
    train(&run, &mut Cpu::new(0)?, Some(place.operator), &mut beside)?;
    beside.bar.bar.finish_and_clear();
    chips.detach()?;
    Ok((run, start.elapsed().as_secs_f64()))
}
