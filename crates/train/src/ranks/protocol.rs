//! Numbers that all ranks share.

use super::collective::{Collective, MessageKind};
use crate::error::{RankError, TrainError};
use tiebreak_record::commit::Malformed;

/// The step number that ends a run: no step has it.
pub(super) const END: u32 = 0;
/// The step number that means "wait": rank 0 is alive, and the next step comes later.
pub(super) const WAIT: u32 = u32::MAX;
/// The step number that asks for a slot: its place in the state is where a step has the micro-batch to check.
pub(super) const SLOT: u32 = u32::MAX - 1;
/// The step number that means "go on": all ranks have their state, or rank 0 has searched what it searches and new parameters may move.
const GO: u32 = u32::MAX - 2;
/// The micro-batch number that means "no check".
pub(super) const NO_CHECK: u32 = u32::MAX;
/// Bytes of [`collective::MessageKind::Ready`]: run, program and state.
pub(super) const READY_BYTES: u64 = 96;
/// The most bytes of a reason that a rank gives for stopping.
pub(super) const REASON_MAX: usize = 1000;

/// The bytes of [`super::collective::MessageKind::Step`]: the step, and the micro-batch of another rank that the receiver is to
/// compute too, or the place of a slot.
pub(super) fn step_message(step: u32, check: u32) -> [u8; 8] {
    let [step, check] = [step, check].map(u64::from);
    (step | check << 32).to_le_bytes()
}

/// Tells ranks that wait for the next step that rank 0 is still alive.
pub(super) fn tell_waiting(collective: &mut dyn Collective) -> Result<(), TrainError> {
    (1..collective.ranks()).try_for_each(|rank| tell_waiting_rank(collective, rank))
}

/// [`tell_waiting`] for one rank.
pub(super) fn tell_waiting_rank(collective: &mut dyn Collective, rank: u32) -> Result<(), TrainError> {
    collective.send(rank, MessageKind::Step, &step_message(WAIT, NO_CHECK))
}

/// Lets all ranks go on together. Rank 0 may tell that it is alive until then, but not while gradients or parameters move.
pub(super) fn go_on(collective: &mut dyn Collective) -> Result<(), TrainError> {
    if collective.rank() == 0 {
        let go = step_message(GO, NO_CHECK);
        return (1..collective.ranks()).try_for_each(|rank| collective.send(rank, MessageKind::Step, &go));
    }
    let [go, wait] = [GO, WAIT].map(|step| step_message(step, NO_CHECK));
    loop {
        let message = collective.receive(0, MessageKind::Step, go.len() as u64)?;
        if message == go {
            return Ok(());
        }
        if message != wait {
            let step = message.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
            let why = format!("its number is {step}, and {GO} is due before ranks go on together");
            let source = Malformed::invalid("step", why);
            return Err(RankError::Malformed { rank: 0, source }.into());
        }
    }
}
