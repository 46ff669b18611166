//! Kernels for NVIDIA's driver: shaders translated to CUDA C++ and kernels written by hand, compiled for one GPU and loaded.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use cuda_bridge::cache::{self, Cache};
use cuda_bridge::device::{Device, Loaded};
use cuda_bridge::nvrtc::{self, Nvrtc, Version};
use cuda_bridge::tensor_core::{Shape, product};
use cuda_bridge::translate::{Kernel, Options, translate};
use naga::Module;
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use rayon::prelude::*;

use super::error::engine_error;
use super::linted;
use tiebreak_engine::EngineError;

/// The options of translation: the GPU's own instructions are used where they are exact.
pub(crate) const OPTIONS: Options = Options { native: true };

/// A shader's text, and the shape of the tensor cores' kernel that replaces it, if there is one.
pub(crate) type Key = (String, Option<Shape>);

/// The kernels that were compiled for a GPU.
pub(crate) struct Modules {
    name: String,
    device: Arc<Device>,
    nvrtc: Nvrtc,
    /// NVRTC's version.
    compiler: Version,
    cache: Cache,
    shaders: HashMap<Key, Arc<Loaded>>,
    /// Kernels that are not made from a shader alone, by their text: digitising kernels, rows between products, kernels about a
    /// library's products, and the search for near ties.
    by_hand: HashMap<String, Arc<Loaded>>,
}

impl Modules {
    pub(crate) fn new(name: &str, device: &Arc<Device>, nvrtc: Nvrtc, compiler: Version) -> Modules {
        let (cache, shaders, by_hand) = (Cache::of_this_user(), HashMap::new(), HashMap::new());
        Modules { name: name.into(), device: device.clone(), nvrtc, compiler, cache, shaders, by_hand }
    }

    /// A shader's kernel.
    pub(crate) fn shader(&mut self, key: Key) -> Result<Arc<Loaded>, EngineError> {
        if let Some(loaded) = self.shaders.get(&key) {
            return Ok(loaded.clone());
        }
        let loaded = self.load(&key)?;
        self.shaders.insert(key, loaded.clone());
        Ok(loaded)
    }

    /// Compiles shaders on all cores, since compiling takes longer than all other work before the first step.
    pub(crate) fn compile_all(&mut self, keys: impl Iterator<Item = Key>) -> Result<(), EngineError> {
        let missing: HashSet<Key> = keys.filter(|key| !self.shaders.contains_key(key)).collect();
        let loaded: Vec<(Key, Arc<Loaded>)> = missing
            .into_par_iter()
            .map(|key| {
                let loaded = self.load(&key)?;
                Ok((key, loaded))
            })
            .collect::<Result<_, EngineError>>()?;
        self.shaders.extend(loaded);
        Ok(())
    }

    /// A kernel that is not made from a shader alone.
    pub(crate) fn by_hand(&mut self, kernel: Kernel) -> Result<Arc<Loaded>, EngineError> {
        if let Some(loaded) = self.by_hand.get(&kernel.source) {
            return Ok(loaded.clone());
        }
        let loaded = self.compile(&kernel)?;
        self.by_hand.insert(kernel.source, loaded.clone());
        Ok(loaded)
    }

    /// The module of a text that the lint passes.
    pub(crate) fn parse(&self, text: &str) -> Result<(Module, ModuleInfo), EngineError> {
        linted(&self.name, text)?;
        let module = naga::front::wgsl::parse_str(text).map_err(|e| self.fault(e))?;
        let info = Validator::new(ValidationFlags::all(), Capabilities::empty()).validate(&module);
        let info = info.map_err(|e| self.fault(e))?;
        Ok((module, info))
    }

    /// A fault of this program: every text that comes here has passed the lint.
    pub(crate) fn fault(&self, reason: impl ToString) -> EngineError {
        EngineError::Fault { device: self.name.clone(), reason: reason.to_string() }
    }

    /// Loads a shader's translated text, or the product that replaces it.
    fn load(&self, (text, shape): &Key) -> Result<Arc<Loaded>, EngineError> {
        let (module, info) = self.parse(text)?;
        let kernel = match shape {
            None => translate(&module, &info, "main", OPTIONS).map_err(|e| self.fault(e))?,
            Some(shape) => product(&module, &info, *shape, OPTIONS).map_err(|e| self.fault(e))?,
        };
        self.compile(&kernel)
    }

    fn compile(&self, kernel: &Kernel) -> Result<Arc<Loaded>, EngineError> {
        let architecture = self.device.architecture();
        let key = cache::Key::new(&kernel.source, self.compiler, &architecture, &nvrtc::OPTIONS);
        let compile = || self.nvrtc.compile(&kernel.name, &kernel.source, &architecture);
        let (cubin, _) = self.cache.get(key, compile).map_err(|e| self.fault(e))?;
        let loaded = self.device.load(kernel, &cubin);
        Ok(Arc::new(loaded.map_err(|error| engine_error(&self.name, error))?))
    }
}
