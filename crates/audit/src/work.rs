//! The progress of the checks without a replay: bytes that they have looked at, of all that they look at.

use tiebreak_contract::program::step::state_bytes;
use tiebreak_job::initial::InitialOrigin;
use tiebreak_run::run::checked::Watch;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::names;

/// Counts the bytes of the checks for whoever watches them.
pub struct Work<'a> {
    watch: Watch<'a>,
    /// True if the files beside the records are checked too.
    beside: bool,
    /// True if no file is checked that only other steps need than those that will be replayed.
    part: bool,
    done: u64,
    all: u64,
}

impl<'a> Work<'a> {
    /// The work of [`super::watched::always`].
    pub fn of_records(watch: Watch<'a>) -> Work<'a> {
        Work { watch, beside: false, part: false, done: 0, all: 0 }
    }

    /// The same work, and that of [`super::watched::attachments`].
    pub fn of_all_files(watch: Watch<'a>) -> Work<'a> {
        Work { beside: true, ..Work::of_records(watch) }
    }

    /// The checks of the records alone. [`super::part`] has those of the files that a plan needs.
    pub fn of_part(watch: Watch<'a>) -> Work<'a> {
        Work { part: true, ..Work::of_records(watch) }
    }

    /// True if the checks of files wait for a plan.
    pub(crate) fn is_part(&self) -> bool {
        self.part
    }

    /// Counts the whole, for a run of which so many steps are under the head.
    pub(crate) fn begin(&mut self, run: &Run, steps: u32) {
        if self.part {
            return; // nobody knows yet which files count
        }
        let batches = run.batch_memory().saturating_mul(u64::from(steps));
        let states = run.checkpoint_steps().unwrap_or_default().into_iter().filter(|&step| step <= steps);
        let states = states.map(|step| length(run, &names::checkpoint(step))).fold(0, u64::saturating_add);
        let initial = match run.file.origin {
            InitialOrigin::Seed => state_bytes(&run.program().state()),
            InitialOrigin::Weights { .. } | InitialOrigin::Run(_) => 0,
        };
        let model = length(run, names::MODEL);
        self.all = [initial, batches, states, model].into_iter().fold(0, u64::saturating_add);
        if self.beside {
            let steps = (1..=steps)
                .map(|step| length(run, &names::trace(step)).saturating_add(length(run, &names::log(step))));
            let data = (0..run.file.data.len()).map(|number| length(run, &names::data_file(number)));
            let beside = steps.chain(data).fold(length(run, names::GRADIENTS), u64::saturating_add);
            self.all = self.all.saturating_add(beside);
        }
        (self.watch)(0, self.all);
    }

    /// Counts bytes that were checked.
    pub(crate) fn done(&mut self, bytes: u64) {
        self.done = self.done.saturating_add(bytes).min(self.all);
        (self.watch)(self.done, self.all);
    }

    /// Counts a file of the run that was checked.
    pub(crate) fn file(&mut self, run: &Run, name: &str) {
        self.done(length(run, name));
    }
}

/// The length of a file of a run; 0 if nobody can tell.
pub(crate) fn length(run: &Run, name: &str) -> u64 {
    run.at(name).length_or_0().unwrap_or(0)
}
