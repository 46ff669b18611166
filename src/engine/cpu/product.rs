//! The integer product on the CPU through exact binary64 matrix products. Contract: section 4.
//!
//! With |q_a q_b| <= 2^(mA + mB) a block of K of 2^(53 - mA - mB) terms sums exactly in f64 in any order, so a
//! library's f64 product computes it; block results are added as integers.

use gemm::{Parallelism, gemm};
use rayon::prelude::*;

use crate::arith::digits;
use crate::program::element::unravel;
use crate::program::graph::{View, block_count};

/// A quantised operand: [batch, rows, K], K contiguous.
pub struct Operand {
    pub digits: u8,
    pub batch: usize,
    pub rows: usize,
    pub k: usize,
    /// The integers, exact in f64.
    values: Vec<f64>,
}

impl Operand {
    /// The canonical bytes: `digits`-byte little-endian two's complement.
    pub fn to_canonical(&self) -> Vec<u8> {
        let size = self.digits as usize;
        self.values.iter().flat_map(|&v| (v as i32).to_le_bytes().into_iter().take(size)).collect()
    }

    /// An operand from canonical bytes.
    pub fn from_canonical(digits: u8, [batch, rows, k]: [usize; 3], bytes: &[u8]) -> Operand {
        let words = crate::engine::reference::words_from_bytes(crate::arith::DType::Q(digits), bytes);
        let values = words.into_iter().map(|w| f64::from(w as i32)).collect();
        Operand { digits, batch, rows, k, values }
    }
}

/// The rows [batch0*batch1*rows] of a view, each as (base element, stride along K).
fn row_bases(view: &View) -> impl IndexedParallelIterator<Item = usize> + '_ {
    let rows = view.dims[..3].iter().product::<u32>() as usize;
    (0..rows).into_par_iter().map(move |row| {
        let [b0, b1, r, _] = unravel(row, [view.dims[0], view.dims[1], view.dims[2], 1]);
        view.at([b0, b1, r, 0])
    })
}

/// The magnitudes of every scale group: [batch, rows, blocks].
pub fn magnitudes(words: &[u32], view: &View, block: u32, out: &mut [u32]) {
    let (k, stride) = (view.dims[3] as usize, view.strides[3] as usize);
    let blocks = block_count(view.dims[3], block) as usize;
    let step = if block == 0 { k } else { block as usize };
    out.par_chunks_mut(blocks).zip(row_bases(view)).for_each(|(out, base)| {
        for (b, magnitude) in out.iter_mut().enumerate() {
            let range = b * step..((b + 1) * step).min(k);
            *magnitude = digits::group_magnitude(range.map(|j| words[base + j * stride]));
        }
    });
}

/// The integers of a view, given its magnitudes.
pub fn quantise(words: &[u32], view: &View, magnitudes: &[u32], digits: u8, block: u32) -> Operand {
    let (k, stride) = (view.dims[3] as usize, view.strides[3] as usize);
    let batch = (view.dims[0] * view.dims[1]) as usize;
    let rows = view.dims[2] as usize;
    let blocks = block_count(view.dims[3], block) as usize;
    let step = if block == 0 { k.max(1) } else { block as usize };
    let mut values = vec![0.0; batch * rows * k];
    if k > 0 {
        values.par_chunks_mut(k).zip(row_bases(view)).enumerate().for_each(|(row, (out, base))| {
            for (j, value) in out.iter_mut().enumerate() {
                let magnitude = magnitudes[row * blocks + j / step];
                *value = f64::from(digits::quantise(words[base + j * stride], magnitude, u32::from(digits)));
            }
        });
    }
    Operand { digits, batch, rows, k, values }
}

/// out[block][batch, m, n] = the exact dot product of a's and b's rows over each block, scaled back once.
pub fn product(
    a: &Operand,
    magnitudes_a: &[u32],
    b: &Operand,
    magnitudes_b: &[u32],
    block: u32,
    out: &mut [u32],
) {
    let (m, n, k) = (a.rows, b.rows, a.k);
    let blocks = block_count(k as u32, block) as usize;
    let step = if block == 0 { k } else { block as usize };
    let (digits_a, digits_b) = (u32::from(a.digits), u32::from(b.digits));
    let bits = digits::magnitude_bits(digits_a) + digits::magnitude_bits(digits_b);
    // d = 4 on both sides leaves no exact block; split off the low half of a then.
    let exact = if bits >= 53 { 0 } else { 1usize << (53 - bits) };
    if m * n == 0 {
        return;
    }
    out.par_chunks_mut(m * n).enumerate().for_each(|(slot, out)| {
        let (block_index, sample) = (slot / a.batch, slot % a.batch);
        let range = block_index * step..((block_index + 1) * step).min(k);
        let rows_a = &a.values[sample * m * k..];
        let rows_b = &b.values[sample * n * k..];
        let mut sums = vec![0i128; m * n];
        if exact > 0 {
            let mut part = vec![0f64; m * n];
            for first in range.clone().step_by(exact) {
                let len = exact.min(range.end - first);
                f64_product(&mut part, &rows_a[first..], &rows_b[first..], [m, n, k, len]);
                for (sum, p) in sums.iter_mut().zip(&part) {
                    *sum += i128::from(*p as i64);
                }
            }
        } else {
            for (i, sum) in sums.iter_mut().enumerate() {
                let (ra, rb) = (&rows_a[i / n * k..], &rows_b[i % n * k..]);
                *sum = range.clone().map(|j| i128::from(ra[j] as i64 * rb[j] as i64)).sum();
            }
        }
        for (i, (out, sum)) in out.iter_mut().zip(sums).enumerate() {
            let ma = magnitudes_a[(sample * m + i / n) * blocks + block_index];
            let mb = magnitudes_b[(sample * n + i % n) * blocks + block_index];
            *out = digits::scale_back(sum, ma, mb, digits_a, digits_b);
        }
    });
}

/// part [m, n] = the first `len` of K of a's rows times b's rows.
fn f64_product(part: &mut [f64], a: &[f64], b: &[f64], [m, n, k, len]: [usize; 4]) {
    let (row, unit) = (k as isize, 1);
    // SAFETY: the three matrices are inside their slices: `a` holds m rows, `b` n rows of stride k and length len.
    unsafe {
        gemm(
            m,
            n,
            len,
            part.as_mut_ptr(),
            1,
            n as isize,
            false,
            a.as_ptr(),
            unit,
            row,
            b.as_ptr(),
            row,
            unit,
            0.0,
            1.0,
            false,
            false,
            false,
            Parallelism::Rayon(0),
        );
    }
}
