//! Rank 0: gives the others the run, the state and each step's micro-batches, and commits to the step that all made.

use super::super::TrainError;
use super::super::committed_step::CommittedStep;
use super::collective::{Collective, Kind};
use super::plan::Plan;
use super::reduce::Adder;
use super::share::{Computed, Contents, Share, compute, merge};
use super::{END, READY_BYTES, RankError};
use crate::commit::codec::{Decoder, Encoder};
use crate::commit::digest::Digest;
use crate::engine::session::{MicroBatch, Session, StepScalars};
use crate::run::dir::Run;

/// Rank 0 of a run.
pub struct Lead<'a> {
    pub(crate) collective: &'a mut dyn Collective,
    plan: Plan,
    contents: Contents,
    adder: Option<Adder>,
}

impl<'a> Lead<'a> {
    /// # Errors
    /// If the run's steps cannot be divided among so many ranks.
    pub fn new(run: &Run, collective: &'a mut dyn Collective) -> Result<Lead<'a>, RankError> {
        let plan = Plan::new(&run.program, collective.ranks())?;
        Ok(Lead { collective, plan, contents: Contents::of(run), adder: None })
    }

    fn others(&self) -> std::ops::Range<u32> {
        1..self.collective.ranks()
    }

    fn tell(&mut self, kind: Kind, bytes: &[u8]) -> Result<(), TrainError> {
        self.others().try_for_each(|rank| self.collective.send(rank, kind, bytes))
    }

    /// Brings every rank to the session's state, whose digest is `state`.
    pub(crate) fn begin(
        &mut self,
        run: &Run,
        session: &mut Session,
        state: Digest,
    ) -> Result<(), TrainError> {
        let json = serde_json::to_vec(&run.file).expect("what was read as JSON can be written as JSON");
        let mut e = Encoder::default();
        e.bytes(&json).bytes(run.job_text.as_bytes());
        self.tell(Kind::Welcome, &e.0)?;
        let mut sent = Ok(());
        session.visit_state(|_, bytes| {
            if sent.is_ok() {
                sent = self.tell(Kind::State, bytes);
            }
        })?;
        sent?;
        self.adder = Some(Adder::new(session, &self.plan, 0)?);
        for rank in self.others() {
            let ready = self.collective.receive(rank, Kind::Ready, READY_BYTES)?;
            let mut d = Decoder::new("ready", &ready);
            let mut digests = || Ok((d.digest()?, d.digest()?, d.digest()?));
            let (id, program, begun) = digests().map_err(|source| RankError::Malformed { rank, source })?;
            if (id, program) != (run.id, run.file.program) {
                return Err(RankError::OtherProgram { rank }.into());
            }
            if begun != state {
                let step = 0;
                return Err(RankError::Diverged { step, ranks: vec![rank], outvoted: false }.into());
            }
        }
        Ok(())
    }

    /// One step over all ranks.
    pub(crate) fn step(
        &mut self,
        run: &Run,
        session: &mut Session,
        scalars: StepScalars,
        batch: &[MicroBatch],
    ) -> Result<CommittedStep, TrainError> {
        let own = |rank| {
            let micro_batches = self.plan.micro_batches(rank);
            &batch[micro_batches.start as usize..micro_batches.end as usize]
        };
        for rank in self.others() {
            self.collective.send(rank, Kind::Step, &scalars.step.to_le_bytes())?;
            let tensors: Vec<&[u8]> =
                own(rank).iter().flat_map(|batch| &batch.tensors).map(Vec::as_slice).collect();
            self.collective.send(rank, Kind::Batch, &tensors.concat())?;
        }
        let adder = self.adder.as_ref().expect("a run begins before its first step");
        let computed = compute(run, session, self.collective, &self.plan, adder, scalars, own(0))?;
        let mut others = Vec::new();
        for rank in self.others() {
            let most = self.contents.bytes_max(&self.plan, rank);
            let bytes = self.collective.receive(rank, Kind::Share, most)?;
            let share = Share::decode(&self.contents, &self.plan, rank, &bytes);
            others.push(share.map_err(|source| RankError::Malformed { rank, source })?);
        }
        agree(scalars.step, &computed, &others.iter().map(|(share, _)| share).collect::<Vec<_>>())?;
        Ok(merge(&self.contents, &self.plan, computed, others).commit(run, scalars, batch))
    }

    /// Lets the others go. The run is complete: one that is gone already takes nothing away from it.
    pub(crate) fn finish(&mut self) {
        for rank in self.others() {
            let _ = self.collective.send(rank, Kind::Step, &END.to_le_bytes());
        }
    }
}

/// Checks that all ranks came to the same state.
fn agree(step: u32, own: &Computed, others: &[&Share]) -> Result<(), RankError> {
    let results: Vec<_> =
        [&own.share].iter().chain(others).map(|share| (share.state, share.outcome)).collect();
    let against = |one: &_| -> Vec<u32> {
        (0..).zip(&results).filter(|(_, other)| *other != one).map(|(rank, _)| rank).collect()
    };
    if against(&results[0]).is_empty() {
        return Ok(());
    }
    // More than half of all ranks are believed; without such a majority rank 0 cannot tell itself from the others.
    let majority = results.iter().find(|one| 2 * against(one).len() < results.len());
    let ranks = against(majority.unwrap_or(&results[0]));
    Err(RankError::Diverged { step, ranks, outvoted: majority.is_some() })
}
