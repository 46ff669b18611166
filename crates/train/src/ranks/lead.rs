//! Rank 0: sends the others the run, the state and each step's micro-batches, and commits to the step that all computed.

use std::time::Instant;

use super::collective::{Collective, MessageKind};
use super::plan::ShardPlan;
use super::protocol::{END, NO_CHECK, READY_BYTES, step_message, tell_waiting};
use super::reduce::Adder;
use super::share::{Contents, SIGN_OF_LIFE, Share, Work, compute, merge};
use crate::error::TrainError;
use crate::error::{Difference, RankError};
use tiebreak_contract::program::step::MicroBatch;
use tiebreak_engine::session::{Session, StepScalars};
use tiebreak_job::{Granularity, Job};
use tiebreak_record::commit::codec::{Decoder, Encoder};
use tiebreak_record::commit::digest::Digest;
use tiebreak_run::run::dir::Run;
use tiebreak_run::step::CommittedStep;

/// Rank 0 of a run.
pub struct Lead<'a> {
    pub(crate) collective: &'a mut dyn Collective,
    plan: ShardPlan,
    contents: Contents,
    adder: Option<Adder>,
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
        let plan = ShardPlan::new(run.program(), collective.ranks())?;
        let (contents, told) = (Contents::of(run), Instant::now());
        Ok(Lead { collective, plan, contents, adder: None, cross_check: None, told, asked: false })
    }

    /// Every `steps` steps each rank also computes one micro-batch of the next rank, in turn, and the gradients must be equal.
    ///
    /// # Errors
    /// As [`can_cross_check`].
    pub fn cross_checking(self, run: &Run, steps: u32) -> Result<Lead<'a>, RankError> {
        can_cross_check(run.job())?;
        Ok(Lead { cross_check: Some(steps).filter(|_| self.plan.ranks() > 1), ..self })
    }

    fn others(&self) -> std::ops::Range<u32> {
        1..self.collective.ranks()
    }

    fn tell(&mut self, kind: MessageKind, bytes: &[u8]) -> Result<(), TrainError> {
        self.others().try_for_each(|rank| self.collective.send(rank, kind, bytes))
    }

    /// Brings every rank to the session's state, whose digest is `state`.
    pub(crate) fn begin(
        &mut self,
        run: &Run,
        session: &mut Session,
        state: Digest,
    ) -> Result<(), TrainError> {
        let mut e = Encoder::default();
        e.bytes(run.file.text().as_bytes()).bytes(run.job_text.as_bytes());
        // No program is empty, so zero bytes mean that there is no file.
        e.bytes(run.program_file.as_deref().unwrap_or_default());
        self.tell(MessageKind::Welcome, &e.0)?;
        let mut sent = Ok(());
        session.visit_state(|_, bytes| {
            if sent.is_ok() {
                sent = self.tell(MessageKind::State, bytes);
            }
        })?;
        sent?;
        self.adder = Some(Adder::new(session, &self.plan, 0)?);
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
            if begun != state {
                let step = 0;
                return Err(RankError::Diverged { step, ranks: vec![rank], outvoted: false }.into());
            }
        }
        self.collective.connect(session.engine_mut())
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
        let own = |rank| {
            let micro_batches = self.plan.micro_batches(rank);
            &batch[micro_batches.start as usize..micro_batches.end as usize]
        };
        let turn = self.cross_check.filter(|every| scalars.step.is_multiple_of(*every));
        let turn = turn.map(|every| scalars.step / every);
        let check = |rank| {
            let index = turn.map(|turn| self.plan.checked_by(rank, turn));
            index.map(|index| (index, &batch[index as usize]))
        };
        for rank in self.others() {
            let check = check(rank);
            let index = check.map_or(NO_CHECK, |(index, _)| index);
            self.collective.send(rank, MessageKind::Step, &step_message(scalars.step, index))?;
            let batches = own(rank).iter().chain(check.map(|(_, batch)| batch));
            let tensors: Vec<&[u8]> = batches.flat_map(|batch| &batch.tensors).map(Vec::as_slice).collect();
            self.collective.send(rank, MessageKind::Batch, &tensors.concat())?;
        }
        let searched = finite.then_some(batch);
        let work = Work { scalars, batches: own(0), check: check(0), searched, asked: false };
        let adder = self.adder.as_ref().expect("a run begins before its first step");
        let mut computed = compute(run, session, self.collective, &self.plan, adder, &work)?;
        let mut others = Vec::new();
        for rank in self.others() {
            let most = self.contents.bytes_max(&self.plan, rank);
            let bytes = self.collective.receive(rank, MessageKind::Share, most)?;
            let share = Share::decode(&self.contents, &self.plan, rank, &bytes);
            others.push(share.map_err(|source| RankError::Malformed { rank, source })?);
        }
        let shares: Vec<&Share> =
            [&computed.share].into_iter().chain(others.iter().map(|(share, _)| share)).collect();
        agree(scalars.step, &shares)?;
        if let Some(turn) = turn {
            agree_on_gradients(&self.plan, scalars.step, turn, &shares)?;
        }
        self.asked = shares.iter().any(|share| share.asked);
        let not_finite = computed.not_finite.take();
        let done =
            merge(&self.contents, &self.plan, computed, others).commit(&run.computation, scalars, batch);
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
