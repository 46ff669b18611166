//! The matrix product on the CPU: digitising, the exact integer dot products, one rounding back to binary32.
//! Contract: `docs/ARITHMETIC.md`, section 4; the scalar reference is [`tiebreak_contract::arith::digits`].
//!
//! An integer sum has no order, so every [`Path`], tiling and number of threads gives the same bits. The choice
//! among them is a question of speed alone. Work is spread over rayon's current pool.

mod bands;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod dots;
mod few;
mod float_gemm;
mod gather;
#[cfg(target_arch = "x86_64")]
mod kept;
mod operand;
#[cfg(target_arch = "x86_64")]
mod pairs;
#[cfg(target_arch = "x86_64")]
mod patch_strips;
mod patches;
mod path;
#[cfg(target_arch = "x86_64")]
mod planes;
mod scale_back;
pub mod simd;
#[cfg(target_arch = "x86_64")]
mod strips;
#[cfg(test)]
mod tests;
mod view;

use tiebreak_contract::arith::digits::ProductPart;

pub(crate) use operand::to_canonical;
pub use operand::{Operand, absmaxes, memory_of, quantise_into};
pub use path::Path;
pub use view::{Axis, StridedView};

/// The block products of two operands. `out[block][batch][m][n]` is the exact dot product, over the block's K, of
/// row `m` of `a` (`[batch, M, K]`) and row `n` of `b` (`[batch, N, K]`). The product is scaled back and rounded
/// once; it is NaN where either scale group is marked. An operand of batch 1 is shared by the whole batch of the
/// other.
///
/// # Panics
/// If K, the blocks or the batches of the operands do not agree, or `out` has another length than
/// `blocks * batch * M * N`.
pub fn product(a: &Operand, b: &Operand, out: &mut [u32]) {
    product_on(Path::fastest(), a, b, out);
}

/// The same operand in the form in which products of this machine read it fastest, if that is worth being kept for many products.
pub(crate) fn packed(operand: &Operand) -> Option<Operand> {
    #[cfg(target_arch = "x86_64")]
    {
        Some(operand.with_kept(dots::kept::pack(Path::fastest(), operand)?))
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = operand;
        None
    }
}

/// [`product`], or the error of its rounding.
pub(crate) fn product_part(part: ProductPart, a: &Operand, b: &Operand, out: &mut [u32]) {
    compute(Path::fastest(), part, a, b, out);
}

/// [`product`] on a given path; a path that this machine lacks is replaced by the best one below it.
pub(crate) fn product_on(path: Path, a: &Operand, b: &Operand, out: &mut [u32]) {
    compute(path, ProductPart::Rounded, a, b, out);
}

fn compute(path: Path, part: ProductPart, a: &Operand, b: &Operand, out: &mut [u32]) {
    assert_eq!((a.k(), a.block()), (b.k(), b.block()), "the operands have one K and one block");
    let (batch_a, batch_b) = (a.batch(), b.batch());
    assert!(
        batch_a == batch_b || batch_a == 1 || batch_b == 1,
        "batches {batch_a} and {batch_b} do not broadcast"
    );
    let batch = if batch_a == 1 { batch_b } else { batch_a };
    let (m, n) = (a.rows(), b.rows());
    assert_eq!(out.len(), a.blocks() * batch * m * n, "the output is [block, batch, M, N]");
    if out.is_empty() {
        return;
    }
    let path = path.supported();
    if few::computes(a, b) {
        return few::product(path, part, a, b, batch, out);
    }
    #[cfg(target_arch = "x86_64")]
    if dots::kept::computes(path, a, b) {
        return dots::kept::product(path, part, a, b, out);
    }
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    if dots::computes(path, a, b) {
        return dots::product(path, part, a, b, batch, out);
    }
    #[cfg(target_arch = "x86_64")]
    if path >= Path::Avx2 && pairs::computes(a, b) {
        return pairs::product(path, part, a, b, batch, out);
    }
    float_gemm::product(path, part, a, b, batch, out);
}
