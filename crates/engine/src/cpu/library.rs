//! Products by the kernels of the `gemm` crates, for binary32 and binary64, without the crates for complex numbers.

use gemm_common::Parallelism;

/// A factor's elements: the first one, and the distances to the next row and to the next element along K.
#[derive(Clone, Copy)]
pub(super) struct Factor<T> {
    pub first: *const T,
    pub row: usize,
    pub along: usize,
}

/// A number that the library multiplies.
pub(super) trait Number: Copy + Default + Send + Sync + 'static {
    /// c = a b^T, or c + a b^T if it `continues`, on this thread: a `[m, k]`, b `[n, k]`, c `[m, n]` with contiguous rows.
    ///
    /// # Safety
    /// All elements of the factors and of `c` exist, and `c` overlaps neither factor.
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
                // Kernels write columns, so the transposed product is computed for rows of more than one element.
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
