//! The state that a program declares, measured before anything is made of it.

use super::step::{Program, port};

/// The most tensors of a state.
const TENSORS_MAX: usize = 1 << 24;

/// The update reads as many tensors as the state has, with names of as many bytes. Every slot names every parameter again, so a state
/// that nothing reads could be far longer than the program: nothing is made of the state before this is checked.
pub(super) fn state_is_read(program: &Program) -> Result<(), String> {
    let lengths = |name: &str| (1usize, name.len());
    let sum = |all: &mut dyn Iterator<Item = (usize, usize)>| {
        all.fold((0usize, 0usize), |sum, one| (sum.0.saturating_add(one.0), sum.1.saturating_add(one.1)))
    };
    let trained = sum(&mut program.parameters.iter().filter(|p| !p.frozen).map(|p| lengths(&p.name)));
    let slot = |slot: &String| {
        // The name, and a slash behind it, before each parameter's.
        let before = trained.0.saturating_mul(slot.len() + 1);
        (trained.0, trained.1.saturating_add(before))
    };
    let own = program.parameters.iter().map(|p| lengths(&port::parameter(&p.name)));
    let buffers = program.buffers.iter().map(|b| lengths(&port::buffer(&b.name)));
    let (tensors, bytes) = sum(&mut own.chain(buffers).chain(program.slots.iter().map(slot)));
    if tensors > TENSORS_MAX {
        return Err(format!("the state has {tensors} tensors, more than {TENSORS_MAX}"));
    }
    let (read, named) = sum(&mut program.update.inputs.iter().map(|input| lengths(&input.name)));
    if tensors <= read && bytes <= named {
        return Ok(());
    }
    Err(format!(
        "the update has {read} inputs, with names of {named} bytes; the state that it reads has {tensors} tensors, and {bytes}"
    ))
}
