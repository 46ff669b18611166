//! The GPUs of this machine, opened once a program.

use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use tiebreak_engine::Engine;
use tiebreak_gpu::{Cuda, Gpu, cuda_devices};

use crate::common::adapter_names;

/// The GPUs of this machine.
#[derive(Default)]
pub struct Gpus {
    /// The adapters through wgpu.
    pub adapters: Vec<Gpu>,
    /// NVIDIA's GPUs, through their driver.
    pub nvidia: Vec<Cuda>,
}

impl Gpus {
    pub fn engines(&mut self) -> Vec<&mut AnyEngine> {
        let mut all: Vec<&mut AnyEngine> = Vec::new();
        all.extend(self.adapters.iter_mut().map(|gpu| gpu as &mut AnyEngine));
        all.extend(self.nvidia.iter_mut().map(|gpu| gpu as &mut AnyEngine));
        all
    }

    /// All engines; unless `slow`, without SwiftShader, which takes seconds to compile a shader.
    pub fn chosen(&mut self, slow: bool) -> Vec<&mut AnyEngine> {
        let mut engines = self.engines();
        engines.retain(|engine| slow || !engine.describe().contains("SwiftShader"));
        engines
    }
}

/// An engine that can move to a thread.
pub type AnyEngine = dyn Engine + Send;

/// Runs a test with each engine on a thread of its own: a software adapter leaves cores idle while it compiles.
pub fn at_once(engines: &mut [&mut AnyEngine], test: impl Fn(&mut dyn Engine) + Sync) {
    let test = &test;
    std::thread::scope(|scope| {
        for engine in engines {
            scope.spawn(move || test(*engine));
        }
    });
}

/// Every usable adapter and every NVIDIA GPU, opened once. Each must pass its self-test, which takes a software adapter most of a
/// minute, so they are opened in parallel. Tensors are hashed on the device and rows computed at once, as on GPUs, on software
/// adapters too.
pub fn gpus() -> MutexGuard<'static, Gpus> {
    static GPUS: LazyLock<Mutex<Gpus>> = LazyLock::new(|| Mutex::new(open_gpus()));
    // A failed test leaves the engines usable.
    GPUS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open_gpus() -> Gpus {
    let mut all = Gpus::default();
    std::thread::scope(|scope| {
        let open = |name: String| scope.spawn(move || Gpu::open(Some(&name)));
        let opening: Vec<_> = adapter_names().into_iter().map(open).collect();
        for gpu in opening.into_iter().map(|gpu| gpu.join().unwrap()) {
            all.adapters.push(gpu.unwrap_or_else(|error| panic!("{error}")).hashing(true).fusing_rows(true));
        }
    });
    for device in cuda_devices().unwrap() {
        let gpu = Cuda::open(Some(&device.index.to_string()));
        all.nvidia.push(gpu.unwrap_or_else(|error| panic!("{error}")));
    }
    all
}
