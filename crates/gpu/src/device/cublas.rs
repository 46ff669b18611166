//! Native products by cuBLAS: the kernels that a trainer of the logged profile may choose on an NVIDIA GPU, and where they are
//! legal.

use std::sync::Arc;

use cuda_bridge::cublas::{Blas, BlasError, Precision};
use cuda_bridge::device::{self, Loaded, Memory, Slice};
use cuda_bridge::native::{self, Product};
use cuda_bridge::translate::Kernel;

use super::error::{blas_error, engine_error};
use tiebreak_contract::program::graph::View;
use tiebreak_engine::EngineError;

/// The kernels of cuBLAS that compute native products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cublas {
    /// bfloat16 tensor cores for the bfloat16 grid, binary64 for finer grids.
    Fast,
    /// TF32 tensor cores, for the bfloat16 grid only, whose operands they read without rounding.
    Tf32,
    /// binary32 without tensor cores, for the bfloat16 grid only.
    Binary32,
}

impl Cublas {
    /// The numbers of parts of the results that these kernels compute: up to two.
    #[doc(hidden)] // for the layers above
    pub fn parts(self) -> std::ops::RangeInclusive<u32> {
        if self == Cublas::Fast { 1..=2 } else { 1..=1 }
    }

    /// Every choice, the fastest first.
    #[doc(hidden)] // for the layers above
    pub const ALL: [Cublas; 3] = [Cublas::Fast, Cublas::Tf32, Cublas::Binary32];

    /// The name on the command line.
    #[doc(hidden)] // for the layers above
    pub fn name(self) -> &'static str {
        match self {
            Cublas::Fast => "cublas",
            Cublas::Tf32 => "cublas-tf32",
            Cublas::Binary32 => "cublas-binary32",
        }
    }

    /// The precision of products whose results have one part, on the bfloat16 grid, or two, on a finer grid. The results of a
    /// refused choice would look like a dishonest trainer's: the proved bound of finer grids is for sums in binary64
    /// (`docs/ROUNDING.md`, section 4).
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

/// The library with the chosen kernels, on one GPU.
pub(crate) struct Library {
    pub kernels: Cublas,
    blas: Arc<Blas>,
    device: Arc<device::Device>,
    /// Scratch memory for one product at a time: products run in order.
    scratch: Option<Memory>,
}

impl Library {
    pub(crate) fn open(device: &Arc<device::Device>, kernels: Cublas) -> Result<Library, BlasError> {
        let blas = Arc::new(Blas::open(device)?);
        Ok(Library { kernels, blas, device: device.clone(), scratch: None })
    }

    /// The library and its kernels, for people.
    pub(crate) fn describe(&self) -> String {
        format!("native products by cuBLAS {} ({})", self.blas.version, self.kernels.name())
    }

    /// Prepares a product of views, with results of `parts` parts. `load` compiles a kernel.
    pub(crate) fn product(
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
            // The old memory is freed first, so that there is room for the new one.
            self.scratch = None;
            let memory = self.device.allocate(product.scratch());
            self.scratch = Some(memory.map_err(|error| engine_error(name, error))?);
        }
        Ok(Arc::new(product))
    }

    /// Starts a product that was prepared here. `buffers` are the left operand, the right operand and the result.
    pub(crate) fn run(&self, name: &str, product: &Product, buffers: [Slice; 3]) -> Result<(), EngineError> {
        let [a, b, out] = buffers;
        let scratch = self.scratch.as_ref().expect("allocated when the product was made ready");
        product.run(a, b, out, scratch).map_err(|error| blas_error(name, error))
    }
}

/// An error in preparing a product.
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
            Failure::Blas(error) => blas_error(name, error),
            Failure::Engine(error) => error,
        }
    }
}
