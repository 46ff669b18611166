//! NVIDIA's matrix products, loaded at the first use: cuBLAS on the stream of a [`Device`]'s launches.
//!
//! No contract includes cuBLAS's results: this is a trainer's "native kernel" on an NVIDIA GPU. Written after the headers of CUDA
//! 12 and NVIDIA's manual; **nothing here has run on a GPU yet**. Tests run it over `shim/cublas.cpp`.

use std::ffi::{c_int, c_longlong, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use crate::device::{Device, DeviceError, Memory, Slice};
use crate::library::{Missing, Opened, candidates, functions};

/// The advice in errors on how to get the library.
const INSTALL: &str = "install the CUDA toolkit, or `pip install nvidia-cublas-cu12` and set TIEBREAK_CUBLAS to its \
                       libcublas.so.12 or to the folder that holds it (site-packages/nvidia/cublas/lib)";

/// The library's file names, best first. The functions have these types from CUDA 12 on.
const NAMES: &[&str] = if cfg!(windows) {
    &["cublas64_13.dll", "cublas64_12.dll"]
} else {
    &["libcublas.so.13", "libcublas.so.12"]
};

/// The beginning of the name of the library's companion.
const LIGHT: &str = if cfg!(windows) { "cublasLt64_" } else { "libcublasLt.so." };

/// Environment variables that make cuBLAS compute a precision from products in lower ones (on some GPUs, since CUDA 12.9). The
/// errors of such products have other bounds than those of the docs, so no product is computed that way.
const EMULATION: [&str; 2] = ["CUBLAS_EMULATE_SINGLE_PRECISION", "CUBLAS_EMULATE_DOUBLE_PRECISION"];

/// The reasons why there is no product.
#[derive(Debug, thiserror::Error)]
pub enum BlasError {
    /// No file that may be the library can be loaded.
    #[error("NVIDIA's library cuBLAS was not found ({tried}): {INSTALL}")]
    NotFound {
        /// The files that were tried, each with the loader's words.
        tried: String,
    },
    /// The library is older than the functions that are called.
    #[error("{library} lacks {symbol}, which cuBLAS has had since CUDA 12: {source}")]
    TooOld {
        /// The file that was loaded.
        library: String,
        /// The function that it lacks.
        symbol: &'static str,
        /// The loader's error.
        source: libloading::Error,
    },
    /// An environment variable makes cuBLAS compute a precision from products in lower ones, whose errors have no proved bound
    /// here.
    #[error(
        "{variable} is set, with which cuBLAS does not compute in the precision it is asked for: unset it"
    )]
    Emulation {
        /// The variable's name.
        variable: &'static str,
    },
    /// The GPU has no tensor cores for a precision.
    #[error(
        "{precision:?} products need compute capability {}.{}, and this GPU has {}.{}",
        .needed.0, .needed.1, .here.0, .here.1
    )]
    Capability {
        /// The requested precision.
        precision: Precision,
        /// The least compute capability that supports it, major and minor.
        needed: (i32, i32),
        /// This GPU's compute capability.
        here: (i32, i32),
    },
    /// A call of the library failed.
    #[error("cuBLAS {call}: {status}")]
    Failed {
        /// The function: `cublasGemmStridedBatchedEx`.
        call: &'static str,
        /// The returned status.
        status: Status,
    },
    /// The operands do not form one product, are too long for the library, or memory is too small for them or for the result; in
    /// words.
    #[error("a product's {0}")]
    Arguments(String),
    /// The driver failed: memory is short, or the GPU was lost.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// The status of a call of the library: a `cublasStatus_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(c_int);

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self.0 {
            1 => "CUBLAS_STATUS_NOT_INITIALIZED (no usable GPU or driver, or no memory left on it)",
            3 => "CUBLAS_STATUS_ALLOC_FAILED (no memory left)",
            7 => "CUBLAS_STATUS_INVALID_VALUE",
            8 => "CUBLAS_STATUS_ARCH_MISMATCH (this GPU lacks it)",
            11 => "CUBLAS_STATUS_MAPPING_ERROR",
            13 => "CUBLAS_STATUS_EXECUTION_FAILED",
            14 => "CUBLAS_STATUS_INTERNAL_ERROR",
            15 => "CUBLAS_STATUS_NOT_SUPPORTED",
            16 => "CUBLAS_STATUS_LICENSE_ERROR",
            other => return write!(f, "status {other}"),
        })
    }
}

/// The format of a product's operands, and the precision of its accumulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// bfloat16 on tensor cores, which accumulate in binary32 in their own way; the result is binary32.
    Bfloat16,
    /// binary32, but tensor cores read only the first 19 bits; accumulated as for bfloat16.
    Tf32,
    /// binary32 in every phase, without tensor cores.
    Binary32,
    /// binary64 in every phase.
    Binary64,
}

// Constants of library_types.h and cublas_api.h.
const REAL_F32: c_int = 0;
const REAL_F64: c_int = 1;
const REAL_BF16: c_int = 14;
const COMPUTE_32F: c_int = 68;
const COMPUTE_32F_PEDANTIC: c_int = 69;
const COMPUTE_64F: c_int = 70;
const COMPUTE_32F_FAST_TF32: c_int = 77;
const ALGORITHM_DEFAULT: c_int = -1;
const NOT_TRANSPOSED: c_int = 0;
const TRANSPOSED: c_int = 1;
const ATOMICS_NOT_ALLOWED: c_int = 0;
/// Default math, except that partial sums of a split K are added in the accumulator's precision, not in the result's.
const DISALLOW_REDUCED_PRECISION_REDUCTION: c_uint = 16;

impl Precision {
    /// Bytes of an element of an operand.
    pub fn operand_bytes(self) -> usize {
        match self {
            Precision::Bfloat16 => 2,
            Precision::Tf32 | Precision::Binary32 => 4,
            Precision::Binary64 => 8,
        }
    }

    /// Bytes of an element of the result.
    pub(crate) fn result_bytes(self) -> usize {
        if self == Precision::Binary64 { 8 } else { 4 }
    }

    /// The types of operands and result, and the kind of computation.
    fn types(self) -> [c_int; 3] {
        match self {
            Precision::Bfloat16 => [REAL_BF16, REAL_F32, COMPUTE_32F],
            Precision::Tf32 => [REAL_F32, REAL_F32, COMPUTE_32F_FAST_TF32],
            Precision::Binary32 => [REAL_F32, REAL_F32, COMPUTE_32F_PEDANTIC],
            Precision::Binary64 => [REAL_F64, REAL_F64, COMPUTE_64F],
        }
    }

    /// The least compute capability whose tensor cores support the precision.
    fn needed(self) -> (i32, i32) {
        match self {
            Precision::Bfloat16 | Precision::Tf32 => (8, 0),
            Precision::Binary32 | Precision::Binary64 => (0, 0),
        }
    }
}

/// The layout of a product's operand in memory, in elements, as cuBLAS supports it: one of rows and K is contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// True if K is contiguous, false if rows are.
    pub along_k: bool,
    /// The distance from one row (one place of K) to the next.
    pub leading: u32,
    /// The distance from one sample to the next.
    pub sample: u64,
}

impl Layout {
    /// The layout of a [batch0, batch1, rows, K] view with these strides, if cuBLAS supports it: two dimensions of samples have
    /// to be equivalent to one, and rows must not overlap.
    pub(crate) fn of([b0, b1, rows, k]: [u32; 4], [s0, s1, row, along]: [u32; 4]) -> Option<Layout> {
        let sample = match (b0, b1) {
            (_, 1) => u64::from(s0),
            (1, _) => u64::from(s1),
            _ if u64::from(s0) == u64::from(s1) * u64::from(b1) => u64::from(s1),
            _ => return None,
        };
        if (along == 1 || k == 1) && (rows == 1 || row >= k) {
            return Some(Layout { along_k: true, leading: if rows == 1 { k } else { row }, sample });
        }
        ((row == 1 || rows == 1) && along >= rows).then_some(Layout {
            along_k: false,
            leading: along,
            sample,
        })
    }

    /// Elements from the first to the last of [batch, rows, K], both included.
    fn reach(self, [batch, rows, k]: [u32; 3]) -> u64 {
        let (outer, inner) = if self.along_k { (rows, k) } else { (k, rows) };
        let last = |count: u32, stride: u64| u64::from(count.max(1) - 1).saturating_mul(stride);
        last(batch, self.sample)
            .saturating_add(last(outer, self.leading.into()))
            .saturating_add(u64::from(inner))
    }
}

/// An operand: memory from its first element on, with its layout.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    pub at: Slice<'a>,
    pub layout: Layout,
}

type Handle = *mut c_void;

functions! {
    /// The library's functions that are used here.
    Functions:
    create = "cublasCreate_v2" (*mut Handle);
    destroy = "cublasDestroy_v2" (Handle);
    version = "cublasGetVersion_v2" (Handle, *mut c_int);
    set_workspace = "cublasSetWorkspace_v2" (Handle, *mut c_void, usize);
    set_math = "cublasSetMathMode" (Handle, c_uint);
    set_atomics = "cublasSetAtomicsMode" (Handle, c_int);
    product = "cublasGemmStridedBatchedEx" (
        Handle, c_int, c_int, c_int, c_int, c_int, *const c_void, *const c_void, c_int, c_int, c_longlong,
        *const c_void, c_int, c_int, c_longlong, *const c_void, *mut c_void, c_int, c_int, c_longlong, c_int, c_int, c_int
    );
}

/// Finds and loads the library.
fn load() -> Result<(Functions, Opened), BlasError> {
    let mut tried = Vec::new();
    for path in candidates("TIEBREAK_CUBLAS", NAMES) {
        match Opened::new(&path, LIGHT) {
            Ok(opened) => {
                let library = path.display().to_string();
                let functions = Functions::from(&opened.library);
                let functions = functions.map_err(|Missing { symbol, source }| BlasError::TooOld {
                    library,
                    symbol,
                    source,
                })?;
                return Ok((functions, opened));
            }
            Err(error) => tried.push(format!("{}: {error}", path.display())),
        }
    }
    Err(BlasError::NotFound { tried: format!("tried {}", tried.join(", ")) })
}

/// Checks that the library is here; it is not started.
///
/// # Errors
/// If it is not there or too old; the message says how to get it.
pub fn available() -> Result<(), BlasError> {
    load().map(drop)
}

/// The library on one GPU.
pub struct Blas {
    functions: Functions,
    _opened: Opened,
    handle: Handle,
    device: Arc<Device>,
    /// The library's own memory: as much as NVIDIA's manual advises.
    workspace: Memory,
    /// The library's version: `12.9.1`.
    pub version: String,
}

// SAFETY: the manual calls the library thread-safe except for changes of a handle's settings, which end before it is shared.
unsafe impl Send for Blas {}
// SAFETY: as above.
unsafe impl Sync for Blas {}

impl Blas {
    /// Finds, loads and starts the library on a GPU.
    ///
    /// # Errors
    /// If it is not there or too old (the message says how to get it), it does not start, the environment asks it to emulate
    /// precisions, or memory is short.
    pub fn open(device: &Arc<Device>) -> Result<Blas, BlasError> {
        let asked =
            |name: &&&str| std::env::var_os(name).is_some_and(|value| !value.is_empty() && value != "0");
        if let Some(variable) = EMULATION.iter().find(asked) {
            return Err(BlasError::Emulation { variable });
        }
        let (functions, _opened) = load()?;
        let workspace =
            device.allocate(if device.description.capability.0 >= 9 { 32 << 20 } else { 4 << 20 })?;
        device.current()?;
        let mut handle = null_mut();
        // SAFETY: the pointer is valid for writing a handle; the context that it belongs to was made current.
        check("cublasCreate", unsafe { (functions.create)(&mut handle) })?;
        let mut blas =
            Blas { functions, _opened, handle, device: device.clone(), workspace, version: String::new() };
        let mut version = 0;
        let Blas { functions, workspace, .. } = &blas;
        // SAFETY: calls as cublas_api.h has them. The workspace outlives the handle: it is freed after `drop` has ended it.
        unsafe {
            check("cublasGetVersion", (functions.version)(handle, &mut version))?;
            let at = workspace.whole();
            check(
                "cublasSetWorkspace",
                (functions.set_workspace)(handle, at.address() as *mut c_void, at.bytes()),
            )?;
            check("cublasSetMathMode", (functions.set_math)(handle, DISALLOW_REDUCED_PRECISION_REDUCTION))?;
            check("cublasSetAtomicsMode", (functions.set_atomics)(handle, ATOMICS_NOT_ALLOWED))?;
        }
        blas.version = format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100);
        Ok(blas)
    }

    /// Checks that this GPU has products of a precision.
    ///
    /// # Errors
    /// If the GPU does not.
    pub(crate) fn supports(&self, precision: Precision) -> Result<(), BlasError> {
        let (needed, here) = (precision.needed(), self.device.description.capability);
        if here < needed {
            return Err(BlasError::Capability { precision, needed, here });
        }
        Ok(())
    }

    /// Starts the product of `a` [batch, M, K] and `b` [batch, N, K], after everything that was launched before: `out` becomes
    /// [batch, M, N], row-major.
    ///
    /// # Errors
    /// If an operand or the result does not fit its memory, the GPU lacks the precision, or the library or the GPU fails.
    pub(crate) fn product(
        &self,
        precision: Precision,
        [batch, m, n, k]: [u32; 4],
        [a, b]: [Matrix; 2],
        out: Slice,
    ) -> Result<(), BlasError> {
        self.supports(precision)?;
        fits(precision, [batch, m, n, k], [a, b], out)?;
        let int = |size: u32| {
            c_int::try_from(size).map_err(|_| BlasError::Arguments(format!("dimension {size} is too long")))
        };
        // Row-major [M, N] is column-major [N, M]: the library computes B' A', with N first. A row-major operand with contiguous
        // K is the library's [K, rows], and has to be transposed as the left operand.
        let operation =
            |layout: Layout, left: bool| if layout.along_k == left { TRANSPOSED } else { NOT_TRANSPOSED };
        let [operands, results, compute] = precision.types();
        let (one, zero) = ((1f32, 1f64), (0f32, 0f64));
        let scalar = |(single, double): &(f32, f64)| -> *const c_void {
            if compute == COMPUTE_64F {
                std::ptr::from_ref(double).cast()
            } else {
                std::ptr::from_ref(single).cast()
            }
        };
        self.device.current()?;
        // SAFETY: a call as cublas_api.h has it. Every element that dimensions and strides reach is in its memory, which `fits`
        // has checked; the scalars are of the type that the computation asks for, and are read before the call returns.
        let status = unsafe {
            (self.functions.product)(
                self.handle,
                operation(b.layout, true),
                operation(a.layout, false),
                int(n)?,
                int(m)?,
                int(k)?,
                scalar(&one),
                b.at.address() as *const c_void,
                operands,
                int(b.layout.leading)?,
                b.layout.sample as c_longlong,
                a.at.address() as *const c_void,
                operands,
                int(a.layout.leading)?,
                a.layout.sample as c_longlong,
                scalar(&zero),
                out.address() as *mut c_void,
                results,
                int(n)?,
                c_longlong::from(m) * c_longlong::from(n),
                int(batch)?,
                compute,
                ALGORITHM_DEFAULT,
            )
        };
        check("cublasGemmStridedBatchedEx", status).map_err(|failed| match self.device.finish() {
            // The driver knows better than the library that a GPU is lost.
            Err(lost @ DeviceError::Lost { .. }) => lost.into(),
            _ => failed,
        })
    }
}

/// Checks that the operands and the result of a product lie in their memory.
fn fits(
    precision: Precision,
    [batch, m, n, k]: [u32; 4],
    [a, b]: [Matrix; 2],
    out: Slice,
) -> Result<(), BlasError> {
    for (name, matrix, rows) in [("left operand", a, m), ("right operand", b, n)] {
        let reach = matrix.layout.reach([batch, rows, k]);
        let have = matrix.at.bytes() / precision.operand_bytes();
        if reach > have as u64 {
            return Err(BlasError::Arguments(format!("{name} takes {reach} elements of {have}")));
        }
    }
    let elements = u64::from(batch) * u64::from(m) * u64::from(n);
    if elements > (out.bytes() / precision.result_bytes()) as u64 {
        return Err(BlasError::Arguments(format!("result takes {elements} elements")));
    }
    Ok(())
}

fn check(call: &'static str, status: c_int) -> Result<(), BlasError> {
    if status == 0 { Ok(()) } else { Err(BlasError::Failed { call, status: Status(status) }) }
}

impl Drop for Blas {
    fn drop(&mut self) {
        if self.device.current().is_ok() {
            // SAFETY: made by this library and not destroyed yet.
            unsafe { (self.functions.destroy)(self.handle) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_those_of_views() {
        let layout = |along_k, leading, sample| Some(Layout { along_k, leading, sample });
        // A linear layer's activations and weights, and the latter transposed.
        assert_eq!(Layout::of([1, 1, 8, 5], [0, 0, 5, 1]), layout(true, 5, 0));
        assert_eq!(Layout::of([1, 1, 5, 8], [0, 0, 1, 5]), layout(false, 5, 0));
        // Heads of one sample, side by side in rows of 12.
        assert_eq!(Layout::of([1, 3, 8, 4], [96, 4, 12, 1]), layout(true, 12, 4));
        // Two samples of heads: no single stride leads from head to head and on to the next sample.
        assert_eq!(Layout::of([2, 3, 8, 4], [96, 4, 12, 1]), None);
        assert_eq!(Layout::of([2, 3, 8, 4], [96, 32, 4, 1]), layout(true, 4, 32));
        // The same operand for all samples.
        assert_eq!(Layout::of([4, 1, 8, 5], [0, 0, 5, 1]), layout(true, 5, 0));
        // One row, one place, equal rows, nothing contiguous.
        assert_eq!(Layout::of([1, 1, 1, 7], [0, 0, 3, 1]), layout(true, 7, 0));
        assert_eq!(Layout::of([1, 1, 7, 1], [0, 0, 3, 9]), layout(true, 3, 0));
        assert_eq!(Layout::of([1, 1, 7, 4], [0, 0, 0, 1]), None);
        assert_eq!(Layout::of([1, 1, 7, 4], [0, 0, 8, 2]), None);
        assert_eq!(Layout::of([1, 1, 7, 4], [0, 0, 3, 1]), None);
    }
}
