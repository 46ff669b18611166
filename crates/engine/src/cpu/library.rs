//! Products by the kernels of the `gemm` crate, for binary32 and binary64: the crates that hold these, without those of complex numbers.

use gemm_common::Parallelism;

/// A factor's elements: the first, and how far the next row's and the next one along K are from it.
#[derive(Clone, Copy)]
pub(super) struct Factor<T> {
    pub first: *const T,
    pub row: usize,
    pub along: usize,
}

/// A number that the library multiplies.
pub(super) trait Number: Copy + Default + Send + Sync + 'static {
    /// c = a b^T, or c + a b^T if it `continues`, on this thread: a `[m, k]`, b `[n, k]`, c `[m, n]` whose rows lie one after the other.
    ///
    /// # Safety
    /// All elements of the factors are there, and those of `c`, which overlap neither.
    unsafe fn product(shape: [usize; 3], a: Factor<Self>, b: Factor<Self>, c: *mut Self, continues: bool);
}

macro_rules! number {
    ($type:ident, $kernels:ident) => {
        impl Number for $type {
            unsafe fn product(
                [m, n, k]: [usize; 3],
                a: Factor<Self>,
                b: Factor<Self>,
                c: *mut Self,
                continues: bool,
            ) {
                let across = n as isize;
                // Kernels write columns, so that of rows with more than one element the transposed product is computed.
                let (shape, [column, row], left, right) = match n > 1 {
                    true => ([n, m], [across, 1], b, a),
                    false => ([m, n], [1, across], a, b),
                };
                let kept = if continues { 1.0 } else { 0.0 };
                // SAFETY: the caller's promise.
                unsafe {
                    $kernels::gemm::$type::get_gemm_fn()(
                        shape[0],
                        shape[1],
                        k,
                        c,
                        column,
                        row,
                        continues,
                        left.first,
                        left.along as isize,
                        left.row as isize,
                        right.first,
                        right.row as isize,
                        right.along as isize,
                        kept,
                        1.0,
                        false,
                        false,
                        false,
                        Parallelism::None,
                    );
                }
            }
        }
    };
}

number!(f32, gemm_f32);
number!(f64, gemm_f64);
