//! The GPUs of this machine, opened once a program.

use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use tiebreak::engine::Engine;
use tiebreak::engine::gpu::{Cuda, Gpu, cuda_devices};

use crate::common::adapter_names;

/// The GPUs of this machine.
#[derive(Default)]
pub struct Gpus {
    /// Through wgpu.
    pub adapters: Vec<Gpu>,
    /// NVIDIA's, through their driver.
    pub nvidia: Vec<Cuda>,
}

impl Gpus {
    pub fn engines(&mut self) -> Vec<&mut AnyEngine> {
        let mut all: Vec<&mut AnyEngine> = Vec::new();
        all.extend(self.adapters.iter_mut().map(|gpu| gpu as &mut AnyEngine));
        all.extend(self.nvidia.iter_mut().map(|gpu| gpu as &mut AnyEngine));
        all
    }
}

/// An engine that a thread may take.
pub type AnyEngine = dyn Engine + Send;

/// Gives each engine to a test on a thread of its own: a software adapter leaves cores idle while it compiles.
pub fn at_once(engines: &mut [&mut AnyEngine], test: impl Fn(&mut dyn Engine) + Sync) {
    let test = &test;
    std::thread::scope(|scope| {
        for engine in engines {
            scope.spawn(move || test(*engine));
        }
    });
}

/// Every usable adapter and every NVIDIA GPU, opened once: each must pass its self-test, which takes a software adapter most of
/// a minute, so that they are opened beside each other. Tensors are hashed where they are and rows computed at once, as GPUs do it, on software adapters too.
pub fn gpus() -> MutexGuard<'static, Gpus> {
    static GPUS: LazyLock<Mutex<Gpus>> = LazyLock::new(|| Mutex::new(open_gpus()));
    // A test that failed leaves engines as they were.
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
