//! Native products by cuBLAS: which kernels a trainer of the logged profile may choose on an NVIDIA GPU, and where they are legal.

use std::sync::Arc;

use cuda_bridge::cublas::{Blas, BlasError, Precision};
use cuda_bridge::device::{self, Loaded, Memory, Slice};
use cuda_bridge::native::{self, Product};
use cuda_bridge::translate::Kernel;

use super::cuda;
use crate::arith::DType;
use crate::engine::EngineError;
use crate::program::builder::Builder;
use crate::program::graph::{Graph, Primitive, View};
use crate::program::products::ProductTable;

/// What cuBLAS computes a native product with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cublas {
    /// bfloat16 tensor cores for the bfloat16 grid, binary64 for finer ones.
    Fast,
    /// TF32 tensor cores: the bfloat16 grid only, whose operands they read without rounding.
    Tf32,
    /// binary32 without tensor cores: the bfloat16 grid only.
    Binary32,
}

impl Cublas {
    /// How many parts results have that it computes: up to two.
    pub fn parts(self) -> std::ops::RangeInclusive<u32> {
        if self == Cublas::Fast { 1..=2 } else { 1..=1 }
    }

    pub const ALL: [Cublas; 3] = [Cublas::Fast, Cublas::Tf32, Cublas::Binary32];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Cublas::Fast => "cublas",
            Cublas::Tf32 => "cublas-tf32",
            Cublas::Binary32 => "cublas-binary32",
        }
    }

    /// The precision of products whose results have one part, on the bfloat16 grid, or two, on a finer one. What is refused could
    /// not be told from a dishonest trainer's: the proved bound of finer grids is for sums in binary64 (`docs/ROUNDING.md`, section 4).
    fn precision(self, parts: u32) -> Result<Precision, &'static str> {
        match (self, parts) {
            (Cublas::Fast, 1) => Ok(Precision::Bfloat16),
            (Cublas::Fast, _) => Ok(Precision::Binary64),
            (Cublas::Tf32, 1) => Ok(Precision::Tf32),
            (Cublas::Binary32, 1) => Ok(Precision::Binary32),
            (Cublas::Tf32, _) => Err("TF32 rounds operands to 11 bits"),
            (Cublas::Binary32, _) => Err("its sums are rounded to 24 bits"),
        }
    }
}

/// The library with the kernels that were chosen, on one GPU.
pub struct Library {
    pub kernels: Cublas,
    blas: Arc<Blas>,
    device: Arc<device::Device>,
    /// For one product at a time: they run in order.
    scratch: Option<Memory>,
}

impl Library {
    pub fn open(device: &Arc<device::Device>, kernels: Cublas) -> Result<Library, BlasError> {
        let blas = Arc::new(Blas::open(device)?);
        Ok(Library { kernels, blas, device: device.clone(), scratch: None })
    }

    /// For people.
    pub fn describe(&self) -> String {
        format!("native products by cuBLAS {} ({})", self.blas.version, self.kernels.name())
    }

    /// Makes a product of views, with results of so many parts, ready. `load` compiles a kernel.
    pub fn product(
        &mut self,
        name: &str,
        views: [&View; 2],
        parts: u32,
        mut load: impl FnMut(Kernel) -> Result<Arc<Loaded>, EngineError>,
    ) -> Result<Arc<Product>, EngineError> {
        let precision = self.kernels.precision(parts).map_err(|why| EngineError::Unsupported {
            device: name.into(),
            reason: format!(
                "{} is for the bfloat16 grid, and this one is finer: {why}; use --native {}",
                self.kernels.name(),
                Cublas::Fast.name()
            ),
        })?;
        let views =
            views.map(|view| native::View { dims: view.dims, strides: view.strides, offset: view.offset });
        let load = |kernel| load(kernel).map_err(Failure::Engine);
        let product = Product::new(&self.blas, &self.device, precision, views, load);
        let product = product.map_err(|failure| failure.into_error(name))?;
        if self.scratch.as_ref().is_none_or(|memory| memory.whole().bytes() < product.scratch()) {
            // The old one goes first, so that there is room for the new one.
            self.scratch = None;
            let memory = self.device.allocate(product.scratch());
            self.scratch = Some(memory.map_err(|error| cuda::engine_error(name, error))?);
        }
        Ok(Arc::new(product))
    }

    /// Starts a product that was made ready here: left and right operand, and the result.
    pub fn run(&self, name: &str, product: &Product, buffers: [Slice; 3]) -> Result<(), EngineError> {
        let [a, b, out] = buffers;
        let scratch = self.scratch.as_ref().expect("allocated when the product was made ready");
        product.run(a, b, out, scratch).map_err(|error| engine_error(name, error))
    }
}

/// Views of a tensor of [`TRIAL_LEN`] elements: those of linear layers and of attention, and some that have to be copied.
const TRIAL: [[([u32; 4], [u32; 4]); 2]; 6] = [
    // Rows by rows, as a linear layer; columns by columns, as its weights' gradient; one of each.
    [([1, 1, 21, 40], [0, 0, 40, 1]), ([1, 1, 9, 40], [0, 0, 40, 1])],
    [([1, 1, 21, 40], [0, 0, 1, 21]), ([1, 1, 9, 40], [0, 0, 1, 9])],
    [([1, 1, 21, 40], [0, 0, 40, 1]), ([1, 1, 9, 40], [0, 0, 1, 9])],
    // Two samples of three heads side by side.
    [([2, 3, 8, 5], [120, 5, 15, 1]), ([2, 3, 8, 5], [120, 5, 15, 1])],
    [([2, 3, 8, 8], [192, 64, 8, 1]), ([2, 3, 5, 8], [120, 5, 1, 15])],
    // The same operand for all samples, every second element of a row.
    [([4, 1, 7, 20], [0, 0, 40, 2]), ([4, 1, 3, 20], [60, 0, 20, 1])],
];
const TRIAL_LEN: u32 = 900;

/// Native products in so many parts of every kind of view, and the tensors for them: integers whose sums every precision and every
/// order has exactly, so that a result is right or wrong.
pub fn trial(parts: u32) -> (Graph, Vec<Vec<u8>>) {
    let mut builder = Builder::new(ProductTable::uniform(2));
    let inputs = ["left", "right"].map(|name| builder.input(name, DType::F32, &[TRIAL_LEN]));
    for views in TRIAL {
        let view = |i: usize| {
            let (dims, strides) = views[i];
            View { tensor: inputs[i], offset: 7 * i as u32, dims, strides }
        };
        let ([b0, b1, m, _], n) = (views[0].0, views[1].0[2]);
        let output = builder.node(
            Primitive::Native { a: view(0), b: view(1) },
            DType::F32,
            &[parts, b0 * b1, m, n][if parts == 1 { 1.. } else { 0.. }],
        );
        builder.output("product", output);
    }
    let integers = |i: u32| {
        let value = move |j: u32| ((j + i).wrapping_mul(0x9e37_79b1) >> 28) as f32 + 1.0;
        (0..TRIAL_LEN).flat_map(|j| value(j).to_le_bytes()).collect()
    };
    (builder.finish(), vec![integers(0), integers(3)])
}

/// What making a product ready fails with.
enum Failure {
    Blas(BlasError),
    Engine(EngineError),
}

impl From<BlasError> for Failure {
    fn from(error: BlasError) -> Failure {
        Failure::Blas(error)
    }
}

impl Failure {
    fn into_error(self, name: &str) -> EngineError {
        match self {
            Failure::Blas(error) => engine_error(name, error),
            Failure::Engine(error) => error,
        }
    }
}

/// What an error of the bridge means for who runs a program.
pub fn engine_error(device: &str, error: BlasError) -> EngineError {
    let (device, reason) = (device.to_string(), error.to_string());
    match error {
        BlasError::Device(error) => cuda::engine_error(&device, error),
        BlasError::Arguments(_) => EngineError::Fault { device, reason },
        BlasError::NotFound { .. }
        | BlasError::TooOld { .. }
        | BlasError::Emulation { .. }
        | BlasError::Capability { .. }
        | BlasError::Failed { .. } => EngineError::Unsupported { device, reason },
    }
}
