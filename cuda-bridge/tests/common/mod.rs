//! Turns WGSL into a kernel that runs on the host.

#![allow(dead_code, reason = "each test file uses a part")]

pub mod engine;
pub mod ptxas;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use cuda_bridge::device::{Device, Loaded, Memory};
use cuda_bridge::host::{Buffer, Checks, HostKernel};
use cuda_bridge::nvrtc::{Nvrtc, NvrtcError};
use cuda_bridge::tensor_core::{Shape, product};
use cuda_bridge::translate::{Kernel, Options, TranslateError, native_functions, translate};
use naga::Module;
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use tiebreak_shaders as shaders;
use tiebreak_shaders::product::{Choice, Variant};

/// A text that must be valid.
pub fn valid(text: &str) -> (Module, ModuleInfo) {
    let module = naga::front::wgsl::parse_str(text).unwrap_or_else(|e| panic!("{}", e.emit_to_string(text)));
    // All capabilities are on, so that the translation makes every refusal.
    let info = Validator::new(ValidationFlags::all(), Capabilities::all()).validate(&module);
    let info = info.unwrap_or_else(|e| panic!("{}", e.emit_to_string(text)));
    (module, info)
}

/// Translates the entry point `main` of a text that must be valid.
pub fn try_kernel(text: &str, options: Options) -> Result<Kernel, TranslateError> {
    let (module, info) = valid(text);
    translate(&module, &info, "main", options)
}

/// The tensor cores' product.
pub fn tensor_core(shape: Shape, options: Options) -> Kernel {
    let choice = Choice::new(Variant::Dot, shape.digits_a, shape.digits_b, 1);
    let (module, info) = valid(&choice.complete(shaders::source("product").unwrap()));
    product(&module, &info, shape, options).unwrap_or_else(|error| panic!("{error}"))
}

/// The functions of the arithmetic library that a text has in software although the processor has them: `TB_FN TYPE fN_NAME(`.
pub fn software(source: &str) -> Vec<&'static str> {
    let heads = || source.lines().filter_map(|line| line.strip_prefix("TB_FN ")?.split('(').next());
    let own =
        |head: &str| Some(head.split(' ').next_back()?.strip_prefix('f')?.split_once('_')?.1.to_string());
    let there: BTreeSet<String> = heads().filter_map(own).collect();
    native_functions().filter(|name| there.contains(*name)).collect()
}

/// Reports what a test leaves out, past the harness, which hides the output of passing tests.
pub fn not_checked(what: &str) {
    let _ = writeln!(std::io::stderr(), "NOT CHECKED: {what}");
}

/// NVRTC; `None` ends the test if NVRTC is not there and need not be.
pub fn nvrtc() -> Option<Nvrtc> {
    match Nvrtc::load() {
        Ok(nvrtc) => Some(nvrtc),
        Err(error @ NvrtcError::NotFound { .. }) if std::env::var_os("TIEBREAK_REQUIRE_NVRTC").is_none() => {
            not_checked(&error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

pub fn kernel(text: &str) -> Kernel {
    try_kernel(text, Options::default()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Compiles for the host, into the folder that Cargo keeps for tests.
pub fn host(kernel: &Kernel, checks: Checks) -> HostKernel {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("host-kernels");
    HostKernel::compile(kernel, &folder, checks).unwrap_or_else(|error| panic!("{error}"))
}

/// The GPU of this machine, if there is one: the same kernels run there too, and must leave the same words.
pub fn gpu() -> Option<&'static (Arc<Device>, Nvrtc)> {
    static GPU: OnceLock<Option<(Arc<Device>, Nvrtc)>> = OnceLock::new();
    let open = || match Device::open(0) {
        Ok(device) => {
            let nvrtc = Nvrtc::load_for(device.driver_major().unwrap());
            Some((device, nvrtc.unwrap_or_else(|error| panic!("{error}"))))
        }
        Err(error) => {
            assert!(std::env::var_os("TIEBREAK_REQUIRE_GPU").is_none(), "{error}");
            not_checked(&format!("on a GPU: {error}"));
            None
        }
    };
    GPU.get_or_init(open).as_ref()
}

/// The words that a kernel leaves in its buffers on the GPU, if there is one.
pub fn on_gpu(kernel: &Kernel, groups: [u32; 3], before: &[Vec<u32>]) -> Option<Vec<Vec<u32>>> {
    let (device, nvrtc) = gpu()?;
    static LOADED: Mutex<BTreeMap<String, Arc<Loaded>>> = Mutex::new(BTreeMap::new());
    let load = || {
        let cubin = nvrtc.compile(&kernel.name, &kernel.source, &device.architecture());
        Arc::new(device.load(kernel, &cubin.unwrap_or_else(|error| panic!("{error}"))).unwrap())
    };
    let loaded = LOADED.lock().unwrap().entry(kernel.source.clone()).or_insert_with(load).clone();
    let bytes = |words: &Vec<u32>| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let memory: Vec<Memory> = before.iter().map(|words| device.upload(&bytes(words)).unwrap()).collect();
    let slices: Vec<_> = memory.iter().map(Memory::whole).collect();
    loaded.launch(groups, &slices).unwrap_or_else(|error| panic!("{error}"));
    let after = memory.iter().zip(before).map(|(memory, before)| {
        let bytes = memory.read(4 * before.len()).unwrap();
        bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    });
    Some(after.collect())
}

/// The machine that ran a kernel, and the words that the kernel left in every buffer.
pub type Left = (&'static str, Vec<Vec<u32>>);

/// The words that a kernel leaves in its buffers, on the host and on the GPU if there is one. If a GPU is required, the kernel
/// runs there alone. Such a machine need not have a compiler, and the caller knows which bits are right. Other runs show that the
/// host gives them.
pub fn everywhere(kernel: &Kernel, checks: Checks, groups: [u32; 3], before: &[Vec<u32>]) -> Vec<Left> {
    let mut all = Vec::new();
    if std::env::var_os("TIEBREAK_REQUIRE_GPU").is_none() {
        let mut after = before.to_vec();
        let parameters = after.iter_mut().zip(&kernel.parameters);
        let mut buffers: Vec<Buffer> = parameters
            .map(|(words, parameter)| match parameter.writable {
                true => Buffer::Write(words),
                false => Buffer::Read(words),
            })
            .collect();
        let run = host(kernel, checks).run(groups, &mut buffers);
        run.unwrap_or_else(|error| panic!("{}: {error}", kernel.name));
        all.push(("the host", after));
    }
    all.extend(on_gpu(kernel, groups, before).map(|after| ("the GPU", after)));
    all
}

/// Runs a kernel everywhere: all runs leave the same words, which are in the buffers afterwards.
pub fn execute(kernel: &Kernel, checks: Checks, groups: [u32; 3], buffers: &mut [Buffer]) {
    let words = |buffer: &Buffer| match buffer {
        Buffer::Read(words) => words.to_vec(),
        Buffer::Write(words) => words.to_vec(),
    };
    let before: Vec<Vec<u32>> = buffers.iter().map(words).collect();
    let all = everywhere(kernel, checks, groups, &before);
    let (first, left) = &all[0];
    for (other, after) in &all[1..] {
        assert!(after == left, "{}: {other} leaves other words than {first}", kernel.name);
    }
    for (buffer, left) in buffers.iter_mut().zip(left) {
        if let Buffer::Write(words) = buffer {
            words.copy_from_slice(left);
        }
    }
}

/// Runs a text with an input at binding 0 and an output at binding 1, trapping undefined behaviour.
pub fn run(text: &str, input: &[u32], outputs: usize, groups: [u32; 3]) -> Vec<u32> {
    let mut output = vec![0x5555_5555; outputs];
    let mut buffers = [Buffer::Read(input), Buffer::Write(&mut output)];
    execute(&kernel(text), Checks { undefined: true }, groups, &mut buffers);
    output
}

/// Mixed patterns: small numbers, powers of two and their neighbours, any bits.
pub fn word(i: u32) -> u32 {
    let r = tiebreak_contract::arith::philox::philox4x32_10([7, 7], [i, 0, 0, 0]);
    match r[1] % 6 {
        0 => r[0] % 40,
        1 => 0u32.wrapping_sub(r[0] % 40),
        2 => (1 << (r[0] % 32)) - r[2] % 2,
        3 => [0, u32::MAX, i32::MAX as u32, 1 << 31][(r[0] % 4) as usize],
        _ => r[0],
    }
}
