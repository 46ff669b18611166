//! Rank 0: sends the others the run, the state and each step's micro-batches, and commits to the step that all computed.

use std::time::Instant;

use super::collective::{Collective, MessageKind};
use super::plan::{ShardPlan, bucket_bytes};
use super::protocol::{
    END, NO_CHECK, READY_BYTES, SLOT, go_on, step_message, tell_waiting, tell_waiting_rank,
};
use super::share::{
    Contents, Division, Reducer, SIGN_OF_LIFE, Share, Work, bucket_bytes_over, compute, merge,
};
use super::slots::SlotPlan;
use crate::error::TrainError;
use crate::error::{Difference, RankError};
use tiebreak_contract::program::step::{MicroBatch, StateTensor};
use tiebreak_engine::session::{Session, StepScalars};
use tiebreak_job::{Granularity, Job};
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::codec::{Decoder, Encoder};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::state::state_digest;
use tiebreak_record::commit::tensor;
use tiebreak_run::run::dir::Run;
use tiebreak_run::step::{CommittedStep, noted_digests};

/// Rank 0 of a run.
pub struct Lead<'a> {
    pub(crate) collective: &'a mut dyn Collective,
    division: Division,
    contents: Contents,
    reducer: Option<Reducer>,
    /// The tensors of the state, and their digests: of the present state, once a run has begun.
    table: Vec<StateTensor>,
    digests: Vec<Digest>,
    /// The interval, in steps, at which ranks check each other's gradients.
    cross_check: Option<u32>,
    /// The time of the last message to the others, while they wait for this rank.
    told: Instant,
    /// True if another rank was asked to stop.
    asked: bool,
}

/// Checks that ranks can check each other's gradients.
///
/// # Errors
/// If gradients depend on the machine, or are not hashed.
pub fn can_cross_check(job: &Job) -> Result<(), RankError> {
    let why = if job.rounding.is_some() {
        "in the logged profile gradients depend on the machine's kernels: ranks cannot check each other's"
    } else if job.commit.granularity == Granularity::Step {
        "ranks can check each other's gradients only where the job commits to them: commit.granularity is \"step\""
    } else {
        return Ok(());
    };
    Err(RankError::Refused(why.into()))
}

impl<'a> Lead<'a> {
    /// # Errors
    /// If the run's steps cannot be divided among so many ranks.
    pub fn new(run: &Run, collective: &'a mut dyn Collective) -> Result<Lead<'a>, RankError> {
        let least = bucket_bytes_over(collective, bucket_bytes(run.program()));
        let plan = ShardPlan::in_buckets(run.program(), collective.ranks(), least)?;
        let division = Division::new(run.program(), plan, false)?;
        Ok(Lead {
            collective,
            division,
            contents: Contents::of(run),
            reducer: None,
            table: run.program().state(),
            digests: Vec::new(),
            cross_check: None,
            told: Instant::now(),
            asked: false,
        })
    }

    /// Each rank holds and updates a share of the optimizer's slots alone.
    ///
    /// # Errors
    /// As [`SlotPlan::new`].
    pub fn dividing_slots(self, run: &Run) -> Result<Lead<'a>, RankError> {
        let slots = SlotPlan::new(run.program(), self.division.plan.ranks())?;
        let contents = self.contents.divided(&self.division.plan, &slots);
        let division = self.division.dividing(slots);
        Ok(Lead { contents, division, ..self })
    }

    /// Gradients are exchanged in buckets of at least so many bytes. 0: in one, when ranks have computed all.
    ///
    /// # Errors
    /// As [`Lead::new`].
    pub fn in_buckets(mut self, run: &Run, least: u64) -> Result<Lead<'a>, RankError> {
        let least = bucket_bytes_over(self.collective, least);
        self.division.plan = ShardPlan::in_buckets(run.program(), self.collective.ranks(), least)?;
        Ok(self)
    }

    /// Every `steps` steps each rank also computes one micro-batch of the next rank, in turn, and the gradients must be equal.
    ///
    /// # Errors
    /// As [`can_cross_check`].
    pub fn cross_checking(self, run: &Run, steps: u32) -> Result<Lead<'a>, RankError> {
        can_cross_check(run.job())?;
        Ok(Lead { cross_check: Some(steps).filter(|_| self.division.plan.ranks() > 1), ..self })
    }

    fn others(&self) -> std::ops::Range<u32> {
        1..self.collective.ranks()
    }

    fn tell(&mut self, kind: MessageKind, bytes: &[u8]) -> Result<(), TrainError> {
        self.others().try_for_each(|rank| self.collective.send(rank, kind, bytes))
    }

    /// Tells every rank the run. The state comes next, by [`Lead::loading`].
    pub(crate) fn welcome(&mut self, run: &Run, session: &mut Session) -> Result<(), TrainError> {
        let mut e = Encoder::default();
        e.bytes(run.file.text().as_bytes()).bytes(run.job_text.as_bytes());
        // No program is empty, so zero bytes mean that there is no file.
        e.bytes(run.program_file.as_deref().unwrap_or_default());
        e.u32(self.division.slots.is_some().into()).u64(self.division.plan.bucket_bytes());
        self.tell(MessageKind::Welcome, &e.0)?;
        Ok(self.division.hold(session, 0)?)
    }

    /// Passes a tensor of the state on to the ranks that hold it.
    pub(crate) fn loading(&mut self, place: usize, bytes: &[u8]) -> Result<(), TrainError> {
        let Some(rank) = self.division.holder(place) else {
            self.told = Instant::now();
            return self.tell(MessageKind::State, bytes);
        };
        self.digests.push(tensor::digest(&self.table[place].ty(), bytes));
        if rank != 0 {
            self.collective.send(rank, MessageKind::State, bytes)?;
        }
        self.still_loading(place)
    }

    /// Tells ranks that wait while others get their slots, at intervals, that this rank is still alive: those that wait for a slot by a
    /// tensor without bytes, those that have all by a step that is none yet. `place` was passed on last.
    fn still_loading(&mut self, place: usize) -> Result<(), TrainError> {
        let Some(slots) = self.division.slots.as_ref().filter(|_| self.told.elapsed() >= SIGN_OF_LIFE) else {
            return Ok(());
        };
        self.told = Instant::now();
        for rank in 1..self.collective.ranks() {
            match slots.has_more(rank, place) {
                true => self.collective.send(rank, MessageKind::State, &[])?,
                false => tell_waiting_rank(self.collective, rank)?,
            }
        }
        Ok(())
    }

    /// Begins when all ranks have the state that was passed on. Returns its tensors' digests.
    pub(crate) fn begin(&mut self, run: &Run, session: &mut Session) -> Result<Vec<Digest>, TrainError> {
        let (own, divided) = (noted_digests(session)?, std::mem::take(&mut self.digests));
        self.digests = [&own[..self.table.len() - divided.len()], &divided].concat();
        self.reducer = Some(Reducer::new(run, session, self.collective, &self.division.plan)?);
        for rank in self.others() {
            let ready = self.collective.receive(rank, MessageKind::Ready, READY_BYTES)?;
            let mut d = Decoder::new("ready", &ready);
            let mut digests = || Ok((d.digest()?, d.digest()?, d.digest()?));
            let (id, program, begun) = digests().map_err(|source| RankError::Malformed { rank, source })?;
            if (id, program) != (run.id, run.file.program) {
                let differs =
                    format!("run {} and program {}", id.not(&run.id), program.not(&run.file.program));
                return Err(RankError::OtherProgram { rank, differs }.into());
            }
            let state = match &self.division.slots {
                None => state_digest(&self.table, &self.digests),
                Some(slots) => {
                    let (table, digests) = slots.held(rank, &self.digests);
                    state_digest(&table, &digests)
                }
            };
            if begun != state {
                let step = 0;
                return Err(RankError::Diverged { step, ranks: vec![rank], outvoted: false }.into());
            }
        }
        if self.division.slots.is_some() {
            go_on(self.collective)?;
        }
        self.collective.connect(session.engine_mut())?;
        Ok(self.digests.clone())
    }

    /// Passes the tensors of the whole state to `show`, in order. Slots of other ranks come from there.
    pub(crate) fn visit_state(
        &mut self,
        session: &mut Session,
        show: &mut dyn FnMut(&[u8]),
    ) -> Result<(), TrainError> {
        for place in 0..self.table.len() {
            match self.division.holder(place).filter(|&rank| rank != 0) {
                None => session.read_at(place, show)?,
                Some(rank) => show(&self.slot(rank, place)?),
            }
            self.still_here()?;
        }
        Ok(())
    }

    /// A slot that another rank has: the one whose digest it told.
    fn slot(&mut self, rank: u32, place: usize) -> Result<Vec<u8>, TrainError> {
        let ty = self.table[place].ty();
        self.collective.send(rank, MessageKind::Step, &step_message(SLOT, place as u32))?;
        let bytes = self.collective.receive(rank, MessageKind::State, ty.bytes() as u64)?;
        let why = match bytes.len() == ty.bytes() {
            false => format!("{} has {} bytes, not {}", self.table[place].name, bytes.len(), ty.bytes()),
            true => match tensor::digest(&ty, &bytes) == self.digests[place] {
                true => return Ok(bytes),
                false => format!("{} is not the tensor whose digest it told", self.table[place].name),
            },
        };
        Err(RankError::Malformed { rank, source: Malformed::invalid("slot", why) }.into())
    }

    /// True if another rank was asked to stop before it sent its share of the last step.
    pub(crate) fn is_asked_to_stop(&self) -> bool {
        self.asked
    }

    /// Runs one step over all ranks. `finite`: true to look for the first value that is not finite if the loss is not.
    pub(crate) fn step(
        &mut self,
        run: &Run,
        session: &mut Session,
        scalars: StepScalars,
        batch: &[MicroBatch],
        finite: bool,
    ) -> Result<CommittedStep, TrainError> {
        let plan = &self.division.plan;
        let own = |rank| {
            let micro_batches = plan.micro_batches(rank);
            &batch[micro_batches.start as usize..micro_batches.end as usize]
        };
        let turn = self.cross_check.filter(|every| scalars.step.is_multiple_of(*every));
        let turn = turn.map(|every| scalars.step / every);
        let check = |rank| {
            let index = turn.map(|turn| plan.checked_by(rank, turn));
            index.map(|index| (index, &batch[index as usize]))
        };
        for rank in 1..plan.ranks() {
            let check = check(rank);
            let index = check.map_or(NO_CHECK, |(index, _)| index);
            self.collective.send(rank, MessageKind::Step, &step_message(scalars.step, index))?;
            let batches = own(rank).iter().chain(check.map(|(_, batch)| batch));
            let tensors: Vec<&[u8]> = batches.flat_map(|batch| &batch.tensors).map(Vec::as_slice).collect();
            self.collective.send(rank, MessageKind::Batch, &tensors.concat())?;
        }
        let searched = finite.then_some(batch);
        let work = Work { scalars, batches: own(0), check: check(0), searched, asked: false };
        let reducer = self.reducer.as_mut().expect("a run begins before its first step");
        let mut computed = compute(run, session, self.collective, &self.division, reducer, &work)?;
        let mut others = Vec::new();
        for rank in 1..plan.ranks() {
            let most = self.contents.bytes_max(plan, rank);
            let bytes = self.collective.receive(rank, MessageKind::Share, most)?;
            let share = Share::decode(&self.contents, plan, rank, &bytes);
            others.push(share.map_err(|source| RankError::Malformed { rank, source })?);
        }
        let shares: Vec<&Share> =
            [&computed.share].into_iter().chain(others.iter().map(|(share, _)| share)).collect();
        agree(scalars.step, &shares)?;
        if let Some(turn) = turn {
            agree_on_gradients(plan, scalars.step, turn, &shares)?;
        }
        self.asked = shares.iter().any(|share| share.asked);
        let not_finite = computed.not_finite.take();
        let done =
            merge(&self.contents, &self.division, computed, others).commit(&run.computation, scalars, batch);
        self.digests.clone_from(&done.state);
        Ok(CommittedStep { not_finite, ..done })
    }

    /// Tells ranks that wait for the next step, at intervals, that this rank is still alive.
    pub(crate) fn still_here(&mut self) -> Result<(), TrainError> {
        if self.told.elapsed() < SIGN_OF_LIFE {
            return Ok(());
        }
        self.told = Instant::now();
        tell_waiting(self.collective)
    }

    /// Ends the other ranks. The run is complete, so a rank that is gone already does not matter.
    pub(crate) fn finish(&mut self) {
        for rank in self.others() {
            let _ = self.collective.send(rank, MessageKind::Step, &step_message(END, NO_CHECK));
        }
    }
}

/// Checks that all ranks reached the same state.
fn agree(step: u32, shares: &[&Share]) -> Result<(), RankError> {
    let results: Vec<_> = shares.iter().map(|share| (share.state, share.outcome)).collect();
    let against = |one: &_| -> Vec<u32> {
        (0..).zip(&results).filter(|(_, other)| *other != one).map(|(rank, _)| rank).collect()
    };
    if against(&results[0]).is_empty() {
        return Ok(());
    }
    // A majority of more than half of all ranks is believed. Without one, rank 0 cannot tell which rank is wrong, not even about
    // itself.
    let majority = results.iter().find(|one| 2 * against(one).len() < results.len());
    let ranks = against(majority.unwrap_or(&results[0]));
    Err(RankError::Diverged { step, ranks, outvoted: majority.is_some() })
}

/// Checks that the gradients which two ranks computed are equal.
fn agree_on_gradients(plan: &ShardPlan, step: u32, turn: u32, shares: &[&Share]) -> Result<(), RankError> {
    let mut differing = Vec::new();
    for (rank, share) in (0..).zip(shares) {
        let (owner, micro_batch) = (plan.next(rank), plan.checked_by(rank, turn));
        let place = micro_batch - plan.micro_batches(owner).start;
        let theirs = shares[owner as usize].micro_batches[place as usize];
        if share.checked != Some(theirs) {
            differing.push(Difference { micro_batch, ranks: [owner, rank] });
        }
    }
    if differing.is_empty() { Ok(()) } else { Err(RankError::GradientsDiffer { step, differing }) }
}
