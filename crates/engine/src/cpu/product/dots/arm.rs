//! The instructions of 64-bit Arm: dot products of bytes (`sdot`), and products of 2 x 8 matrices of bytes (`smmla`).
//!
//! Rust's library has no stable functions for them, so they are written as assembly.

use std::arch::aarch64::{int32x4_t, vdupq_n_s32, vld1q_s32, vzip1q_s32, vzip2q_s32};
use std::arch::asm;

use super::isa::{DotBytes, Isa, LANES};

/// NEON with dot products.
pub(super) struct NeonDotprod;
/// NEON with dot products and products of matrices.
pub(super) struct NeonI8mm;

/// Four registers.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Four(int32x4_t, int32x4_t, int32x4_t, int32x4_t);

/// Defines the methods of instructions over four registers of 128 bits.
macro_rules! isa {
    ($name:ident, $features:literal) => {
        // SAFETY: four registers have sixteen lanes of 32 bits, in order.
        unsafe impl Isa for $name {
            type Vector = Four;

            #[inline(always)]
            unsafe fn run<R>(work: impl FnOnce() -> R) -> R {
                #[target_feature(enable = $features)]
                fn compiled<R>(work: impl FnOnce() -> R) -> R {
                    work()
                }
                // SAFETY: the caller's promise.
                unsafe { compiled(work) }
            }

            #[inline(always)]
            unsafe fn zero() -> Four {
                let zero = zero();
                Four(zero, zero, zero, zero)
            }

            #[inline(always)]
            unsafe fn load(words: &[u32; LANES]) -> Four {
                let [a, b, c, d] = [0, 4, 8, 12].map(|first| load(&words[first..]));
                Four(a, b, c, d)
            }

            #[inline(always)]
            unsafe fn splat(word: i32) -> Four {
                // SAFETY: every 64-bit Arm processor has NEON.
                let all = unsafe { vdupq_n_s32(word) };
                Four(all, all, all, all)
            }

            #[inline(always)]
            unsafe fn turned(rows: &[&[i32]; LANES]) -> [[i32; LANES]; LANES] {
                let mut turned = [[0; LANES]; LANES];
                for (r, row) in rows.iter().enumerate() {
                    for (to, &word) in turned.iter_mut().zip(*row) {
                        to[r] = word;
                    }
                }
                turned
            }
        }
    };
}

isa!(NeonDotprod, "dotprod");
isa!(NeonI8mm, "dotprod,i8mm");

impl DotBytes for NeonDotprod {
    const UNSIGNED: bool = false;

    #[inline(always)]
    unsafe fn dot_bytes(sum: Four, left: Four, right: Four) -> Four {
        // SAFETY: the caller's promise.
        unsafe {
            Four(
                sdot(sum.0, left.0, right.0),
                sdot(sum.1, left.1, right.1),
                sdot(sum.2, left.2, right.2),
                sdot(sum.3, left.3, right.3),
            )
        }
    }
}

/// Adds four products of signed bytes to each lane.
#[target_feature(enable = "dotprod")]
#[inline]
fn sdot(mut sum: int32x4_t, left: int32x4_t, right: int32x4_t) -> int32x4_t {
    // SAFETY: the instruction reads and writes registers alone.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {left:v}.16b, {right:v}.16b",
            sum = inout(vreg) sum,
            left = in(vreg) left,
            right = in(vreg) right,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// Adds to `[row][column]` of a 2 x 2 matrix the dot products of eight signed bytes of each row of `left` and of `right`.
#[target_feature(enable = "i8mm")]
#[inline]
pub(super) fn smmla(mut sum: int32x4_t, left: int32x4_t, right: int32x4_t) -> int32x4_t {
    // SAFETY: the instruction reads and writes registers alone.
    unsafe {
        asm!(
            "smmla {sum:v}.4s, {left:v}.16b, {right:v}.16b",
            sum = inout(vreg) sum,
            left = in(vreg) left,
            right = in(vreg) right,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

#[inline(always)]
pub(super) fn zero() -> int32x4_t {
    // SAFETY: every 64-bit Arm processor has NEON.
    unsafe { vdupq_n_s32(0) }
}

/// The first four words.
///
/// # Panics
/// If there are fewer.
#[inline(always)]
pub(super) fn load(words: &[u32]) -> int32x4_t {
    let four: &[u32; 4] = words.first_chunk().expect("four words");
    // SAFETY: every 64-bit Arm processor has NEON, and there are four words.
    unsafe { vld1q_s32(four.as_ptr().cast()) }
}

/// The words of two vectors in turn: those of the lower halves, and those of the upper halves.
#[inline(always)]
pub(super) fn zipped(a: int32x4_t, b: int32x4_t) -> [int32x4_t; 2] {
    // SAFETY: every 64-bit Arm processor has NEON.
    unsafe { [vzip1q_s32(a, b), vzip2q_s32(a, b)] }
}
