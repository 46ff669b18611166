//! A trainer's native product by cuBLAS: converts operands to the library's format and layout, computes the product, and stores
//! its result as the engine needs it. The kernels around the library are `kernels/native.cuh`.

use std::sync::Arc;

use crate::cublas::{Blas, BlasError, Layout, Matrix, Precision};
use crate::device::{Device, Loaded, Memory, Slice};
use crate::translate::{Kernel, Parameter};

/// The kernels of this file.
const TEXT: &str = include_str!("../kernels/native.cuh");
/// Threads of a block; each has one element.
const BLOCK: u32 = 256;
/// The alignment of addresses for a GPU's vector loads, and for the library's best kernels.
const ALIGNMENT: usize = 256;

/// A view of a binary32 tensor, in elements: [batch0, batch1, rows, K].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// The number of elements along each dimension.
    pub dims: [u32; 4],
    /// The distance from one element to the next along each dimension; 0 where all are the same.
    pub strides: [u32; 4],
    /// The offset of the view's first element in the tensor.
    pub offset: u32,
}

impl View {
    /// Elements of the view.
    fn len(&self) -> u64 {
        self.dims.iter().map(|&dim| u64::from(dim)).fold(1, u64::saturating_mul)
    }

    /// Elements of the tensor up to the view's last one.
    fn reach(&self) -> u64 {
        let along = self.dims.iter().zip(&self.strides);
        let last = along.map(|(&dim, &stride)| u64::from(dim.max(1) - 1).saturating_mul(stride.into()));
        last.fold(u64::from(self.offset) + 1, u64::saturating_add)
    }

    /// True if neighbours along K are closer in memory than neighbouring rows.
    fn along_k(&self) -> bool {
        let [_, _, rows, k] = self.dims;
        k != 1 && (rows == 1 || self.strides[3] <= self.strides[2])
    }

    /// The layout of the view's copy: samples one after the other, each with the contiguous dimension that it had.
    fn packed(&self) -> Layout {
        let [_, _, rows, k] = self.dims;
        let along_k = self.along_k();
        Layout { along_k, leading: if along_k { k } else { rows }, sample: u64::from(rows) * u64::from(k) }
    }

    /// Dimensions and strides of that copy. Dimensions that run into each other are merged into one, which is the last.
    fn merged(&self) -> ([u32; 4], [u32; 4]) {
        let order = if self.along_k() { [0, 1, 2, 3] } else { [0, 1, 3, 2] };
        let (mut dims, mut strides) = (vec![], vec![]);
        for (dim, stride) in order.map(|i| (self.dims[i], self.strides[i])) {
            if dim == 1 {
                continue;
            }
            match strides.last() {
                Some(&outer) if u64::from(outer) == u64::from(dim) * u64::from(stride) => {
                    *dims.last_mut().expect("as many as strides") *= dim;
                    *strides.last_mut().expect("there is one") = stride;
                }
                _ => {
                    dims.push(dim);
                    strides.push(stride);
                }
            }
        }
        let four = |mut words: Vec<u32>, front| {
            words.splice(0..0, vec![front; 4 - words.len()]);
            [words[0], words[1], words[2], words[3]]
        };
        (four(dims, 1), four(strides, 0))
    }
}

/// A kernel of this file.
fn kernel(name: &str, defines: &str, [input, output]: [u32; 2]) -> Kernel {
    Kernel {
        name: name.into(),
        source: format!("{defines}#define KERNEL {name}\n{TEXT}"),
        parameters: Parameter::by_hand(10, &[("input", input, false), ("output", output, true)]),
        block: [BLOCK, 1, 1],
        barriers: false,
        dynamic_shared: 0,
    }
}

/// The kernel that copies a view's elements into operands of a precision.
pub fn pack(precision: Precision) -> Kernel {
    let (name, defines) = match precision {
        Precision::Bfloat16 => {
            ("pack_bfloat16", "#define PACK\n#define BFLOAT16\n#define OPERAND unsigned short\n")
        }
        Precision::Tf32 | Precision::Binary32 => ("pack_binary32", "#define PACK\n#define OPERAND float\n"),
        Precision::Binary64 => ("pack_binary64", "#define PACK\n#define OPERAND double\n"),
    };
    kernel(name, defines, [4, precision.operand_bytes() as u32])
}

/// The kernel that takes binary64 results apart.
pub fn parts() -> Kernel {
    kernel("binary64_parts", "", [8, 4])
}

/// A launch of one of these kernels.
struct Launch {
    kernel: Arc<Loaded>,
    uniform: Memory,
    elements: u64,
}

impl Launch {
    fn new(
        device: &Arc<Device>,
        kernel: Arc<Loaded>,
        words: [u32; 10],
        elements: u64,
    ) -> Result<Launch, BlasError> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        Ok(Launch { kernel, uniform: device.upload(&bytes)?, elements })
    }

    fn run(&self, input: Slice, output: Slice) -> Result<(), BlasError> {
        let groups = [self.elements.div_ceil(BLOCK.into()) as u32, 1, 1];
        Ok(self.kernel.launch(groups, &[self.uniform.whole(), input, output])?)
    }
}

/// An operand: its layout for cuBLAS, and the copy that it needs first, if any.
struct NativeOperand {
    view: View,
    layout: Layout,
    copy: Option<(Launch, usize)>,
}

/// A prepared product: [batch0, batch1, M, K] by [batch0, batch1, N, K] of binary32 tensors.
pub struct Product {
    blas: Arc<Blas>,
    precision: Precision,
    /// [batch, M, N, K]
    dims: [u32; 4],
    operands: [NativeOperand; 2],
    /// For binary64 results: the kernel that splits them, and their offset in scratch memory.
    parts: Option<(Launch, usize)>,
    scratch: usize,
}

impl Product {
    /// Prepares a product in a precision. `load` loads a kernel of this file on the device.
    ///
    /// # Errors
    /// If the views are not those of one product or too large, the GPU lacks the precision, or memory is short; or the errors of
    /// `load`.
    pub fn new<E: From<BlasError>>(
        blas: &Arc<Blas>,
        device: &Arc<Device>,
        precision: Precision,
        [a, b]: [View; 2],
        mut load: impl FnMut(Kernel) -> Result<Arc<Loaded>, E>,
    ) -> Result<Product, E> {
        let wrong = |reason: &str| E::from(BlasError::Arguments(reason.into()));
        blas.supports(precision)?;
        let [b0, b1, m, k] = a.dims;
        let n = b.dims[2];
        if [b.dims[0], b.dims[1], b.dims[3]] != [b0, b1, k] {
            return Err(wrong("operands differ in samples or K"));
        }
        let elements = u64::from(b0) * u64::from(b1) * u64::from(m) * u64::from(n);
        let sizes = [a.len(), b.len(), elements, a.reach(), b.reach()];
        if sizes.iter().any(|&size| size == 0 || size > u64::from(u32::MAX)) {
            return Err(wrong("operands or result have no element, or more than 2^32 - 1"));
        }
        let mut scratch = 0usize;
        let mut place = |bytes: u64| {
            let at = scratch;
            scratch += (bytes as usize).next_multiple_of(ALIGNMENT);
            at
        };
        let mut operand = |view: View| {
            let as_it_is = Layout::of(view.dims, view.strides);
            let layout = match precision {
                Precision::Tf32 | Precision::Binary32 => as_it_is,
                // Another format is a copy in any case.
                Precision::Bfloat16 | Precision::Binary64 => None,
            };
            if let Some(layout) = layout {
                return Ok(NativeOperand { view, layout, copy: None });
            }
            let (dims, strides) = view.merged();
            let [d0, d1, d2, d3] = dims;
            let [s0, s1, s2, s3] = strides;
            let words = [d0, d1, d2, d3, s0, s1, s2, s3, view.len() as u32, view.offset];
            let launch = Launch::new(device, load(pack(precision))?, words, view.len())?;
            let at = place(view.len() * precision.operand_bytes() as u64);
            Ok::<_, E>(NativeOperand { view, layout: view.packed(), copy: Some((launch, at)) })
        };
        let operands = [operand(a)?, operand(b)?];
        let parts = if precision == Precision::Binary64 {
            let mut words = [0; 10];
            words[0] = elements as u32;
            let launch = Launch::new(device, load(parts())?, words, elements)?;
            Some((launch, place(elements * 8)))
        } else {
            None
        };
        let dims = [b0 * b1, m, n, k];
        Ok(Product { blas: blas.clone(), precision, dims, operands, parts, scratch })
    }

    /// Bytes of scratch memory that the product needs while it runs.
    pub fn scratch(&self) -> usize {
        self.scratch
    }

    /// Starts the product, after everything that was launched before. `a` and `b` are the tensors of the views. `out` becomes
    /// [batch, M, N] in binary32; for binary64 results [2, batch, M, N]: each nearest binary32, then each residue. Products that
    /// are started one after the other may share scratch memory, since everything runs in order.
    ///
    /// # Errors
    /// If memory does not fit, or the library or the GPU fails.
    pub fn run(&self, a: Slice, b: Slice, out: Slice, scratch: &Memory) -> Result<(), BlasError> {
        let mut matrices = [
            Matrix { at: a, layout: self.operands[0].layout },
            Matrix { at: b, layout: self.operands[1].layout },
        ];
        for (operand, matrix) in self.operands.iter().zip(&mut matrices) {
            let (reach, have) = (operand.view.reach(), matrix.at.bytes() as u64 / 4);
            if reach > have {
                return Err(BlasError::Arguments(format!("view reaches {reach} elements of {have}")));
            }
            matrix.at = match &operand.copy {
                None => matrix.at.after(4 * operand.view.offset as usize),
                Some((launch, at)) => {
                    let copy = scratch.slice(*at, launch.elements as usize * self.precision.operand_bytes());
                    launch.run(matrix.at, copy)?;
                    copy
                }
            };
        }
        let Some((launch, at)) = &self.parts else {
            return self.blas.product(self.precision, self.dims, matrices, out);
        };
        let elements = launch.elements as usize;
        if out.bytes() < 8 * elements {
            return Err(BlasError::Arguments(format!("two parts take {elements} elements each")));
        }
        let sums = scratch.slice(*at, elements * self.precision.result_bytes());
        self.blas.product(self.precision, self.dims, matrices, sums)?;
        launch.run(sums, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_that_run_into_each_other_are_one() {
        let merged = |dims, strides| View { dims, strides, offset: 0 }.merged();
        assert_eq!(merged([2, 3, 8, 4], [96, 32, 4, 1]), ([1, 1, 1, 192], [0, 0, 0, 1]));
        // A transposed operand is one contiguous range too, along its rows.
        assert_eq!(merged([1, 1, 5, 8], [0, 0, 1, 5]), ([1, 1, 1, 40], [0, 0, 0, 1]));
        // Heads side by side: a head's rows are apart, samples follow each other.
        assert_eq!(merged([2, 3, 8, 4], [96, 4, 12, 1]), ([2, 3, 8, 4], [96, 4, 12, 1]));
        // The same rows for every head.
        assert_eq!(merged([2, 3, 8, 4], [32, 0, 4, 1]), ([1, 2, 3, 32], [0, 32, 0, 1]));
        assert_eq!(merged([1, 1, 1, 1], [7, 7, 7, 7]), ([1; 4], [0; 4]));
    }
}
