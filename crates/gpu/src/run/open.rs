//! Opens devices: chooses the variant of products, and tests everything against the scalar reference before a program runs.

use std::sync::Arc;
use std::time::{Duration, Instant};

#[cfg(feature = "cuda")]
use super::engine::Cuda;
#[cfg(feature = "wgpu")]
use super::engine::Gpu;
use super::engine::GpuEngine;
use crate::device::Device;
#[cfg(feature = "cuda")]
use crate::device::{cublas::Cublas, cuda::CudaDevice};
use crate::selftest;
use tiebreak_engine::{Engine, EngineError, fingerprint};
use tiebreak_shaders::product::Variant;

impl<D: Device> GpuEngine<D> {
    /// Opens a device by a part of its name (NVIDIA's also by its number), or the best one, and tests it. Every operator of small
    /// programs with ordinary and extreme inputs must equal the scalar reference.
    ///
    /// # Errors
    /// If there is no such device, it cannot be opened, or it fails the test; on NVIDIA's also if there is no driver or no NVRTC.
    pub fn open(name: Option<&str>) -> Result<Self, EngineError> {
        let device = D::open(name)?;
        let variant = device.variant();
        Self::on(device).chosen(variant)?.tested()
    }

    /// [`GpuEngine::open`], with products by a given variant instead of the fastest.
    #[doc(hidden)] // for the layers above
    pub fn open_with(name: Option<&str>, variant: Variant) -> Result<Self, EngineError> {
        Self::on(D::open(name)?).chosen(Some(variant))?.tested()
    }

    /// Sets the given variant, or else the variant for GPUs that is fastest on this adapter for a product of two digits.
    pub(super) fn chosen(mut self, variant: Option<Variant>) -> Result<Self, EngineError> {
        if let Some(variant) = variant {
            self.variant = variant;
            return Ok(self);
        }
        let (graph, bytes) = selftest::product();
        let graph = Arc::new(graph);
        let ty = graph.tensor(graph.inputs[0].tensor).clone();
        let mut fastest: Option<(Duration, Variant)> = None;
        for variant in Variant::FOR_GPUS {
            self.variant = variant;
            let compiled = self.compile(graph.clone())?;
            let inputs = [self.upload(&ty, &bytes)?, self.upload(&ty, &bytes)?];
            // The first of these runs also compiles and allocates.
            for _ in 0..3 {
                let begin = Instant::now();
                let outputs = self.run(&compiled, &inputs, None)?;
                self.read(&outputs[0], &mut |_| {})?;
                let time = begin.elapsed();
                if fastest.is_none_or(|(least, _)| time < least) {
                    fastest = Some((time, variant));
                }
            }
        }
        self.variant = fastest.map_or(Variant::Dot, |(_, variant)| variant);
        Ok(self)
    }

    /// The engine, if it passes its self-test; otherwise the error has its fingerprint.
    pub(super) fn tested(mut self) -> Result<Self, EngineError> {
        let expected = fingerprint::fingerprint(&mut tiebreak_engine::reference::Reference)?;
        let have = fingerprint::fingerprint(&mut self)?;
        let check = if have != expected {
            "an operator's bits differ from the scalar reference"
        } else if self.hashes && !self.hashes_well()? {
            "BLAKE3 roots differ from the host's"
        } else if self.fuses_rows && !selftest::computes_rows_well(&mut self)? {
            "rows computed at once differ from the scalar reference"
        } else {
            return Ok(self);
        };
        Err(EngineError::SelfTest {
            device: self.describe(),
            check: check.into(),
            fingerprint: Some(have.to_string()),
        })
    }
}

#[cfg(feature = "wgpu")]
impl Gpu {
    /// Another engine on the same device, with products by a given variant, which is tested like the first engine. Shaders of
    /// both engines are compiled once.
    ///
    /// # Errors
    /// If the engine fails the test.
    #[doc(hidden)] // for measurements
    pub fn beside(&self, variant: Variant) -> Result<Gpu, EngineError> {
        Self::on(self.device.clone()).chosen(Some(variant))?.tested()
    }
}

#[cfg(feature = "cuda")]
impl Cuda {
    /// [`GpuEngine::open`], with cuBLAS's kernels for a trainer's native products, which are tested with integers.
    ///
    /// # Errors
    /// As [`GpuEngine::open`]; also if the library cannot be used here (the message says what is missing), or computes other
    /// products.
    pub fn open_with_cublas(name: Option<&str>, kernels: Cublas) -> Result<Self, EngineError> {
        let mut device = CudaDevice::open(name)?;
        device.use_cublas(kernels)?;
        let variant = device.variant();
        let mut engine = Self::on(device).chosen(variant)?;
        for parts in kernels.parts() {
            if !selftest::multiplies_integers_well(&mut engine, parts)? {
                return Err(engine.untrusted("cuBLAS gives wrong products of small integers"));
            }
        }
        engine.tested()
    }
}
