//! Native products by a kernel of somebody else, such as a library that the engine does not link. The engine hands over both operands
//! where they lie, and takes the sums back.
//!
//! A kernel is not trusted with anything but its numbers: a panic in it is an error, and so is an element that it leaves out. A number
//! that is wrong is a decision of the trainer's that an audit judges, as the number of any other kernel.

use std::panic::{self, AssertUnwindSafe};

use rayon::prelude::*;

use super::EngineError;

/// The numbers of an operand: `[batch0, batch1, rows, K]`, of which each has its place among the words of a tensor.
#[derive(Clone, Copy, Debug)]
pub struct Numbers<'a> {
    /// The tensor.
    pub words: &'a [f32],
    /// The place of the first number.
    pub offset: usize,
    /// The numbers along each axis, at least one.
    pub dims: [usize; 4],
    /// The words from one index of an axis to the next; 0 repeats a number.
    pub strides: [usize; 4],
}

/// Room for the sums `[batch0, batch1, M, N]`, row-major, in the format in which they are added.
#[derive(Debug)]
pub enum Sums<'a> {
    /// For the bfloat16 grid.
    Binary32(&'a mut [f32]),
    /// For finer grids.
    Binary64(&'a mut [f64]),
}

/// A kernel of native products.
pub trait Kernel: Send + Sync {
    /// The name for people, with the version and the device.
    fn name(&self) -> String;

    /// Writes the products of each row of `a`, `[batch0, batch1, M, K]`, with each row of `b`, `[batch0, batch1, N, K]`.
    ///
    /// # Errors
    /// If the kernel fails: the reason, in words.
    fn product(&self, a: &Numbers, b: &Numbers, sums: Sums) -> Result<(), String>;

    /// The most roundings that a term of a binary64 product of K terms passes, each to nearest, if that is known.
    fn binary64_roundings(&self, _k: usize) -> Option<usize> {
        None
    }
}

/// The longest reason that an error shows.
const REASON_MAX: usize = 500;

/// The native product of `operator` by a kernel, as [`super::native::product`] gives it.
pub(super) fn product(
    kernel: &dyn Kernel,
    operator: &str,
    [a, b]: [Numbers; 2],
    out: &mut [u32],
) -> Result<(), EngineError> {
    let elements = a.dims[..3].iter().product::<usize>() * b.dims[2];
    if elements == 0 || a.dims[3] == 0 {
        out.fill(0);
        return Ok(());
    }
    let failed = |reason: String| {
        let reason = reason.chars().take(REASON_MAX).collect();
        EngineError::Kernel { kernel: kernel.name(), operator: operator.into(), reason }
    };
    let call = |sums: Sums| match panic::catch_unwind(AssertUnwindSafe(|| kernel.product(&a, &b, sums))) {
        Ok(done) => done.map_err(failed),
        Err(panic) => Err(failed(format!("it panicked: {}", said(panic.as_ref())))),
    };
    let left = |place| failed(format!("it left element {place} of {elements} as it was"));
    // Every bit is set before the call: a kernel that leaves an element out is found.
    if out.len() == elements {
        out.fill(u32::MAX);
        call(Sums::Binary32(bytemuck::cast_slice_mut(out)))?;
        return out.par_iter().position_first(|&word| word == u32::MAX).map_or(Ok(()), |at| Err(left(at)));
    }
    let mut sums = vec![f64::from_bits(u64::MAX); elements];
    call(Sums::Binary64(&mut sums))?;
    if let Some(at) = sums.par_iter().position_first(|sum| sum.to_bits() == u64::MAX) {
        return Err(left(at));
    }
    let (high, low) = out.split_at_mut(elements);
    high.par_iter_mut().zip(low).zip(&sums).for_each(|((high, low), &sum)| {
        [*high, *low] = super::native::parts_of(sum);
    });
    Ok(())
}

/// The text of a panic, if it has one.
fn said(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a text")
}
