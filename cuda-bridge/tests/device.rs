//! The GPU, if there is one: the arithmetic library against the scalar reference. If there is no driver or no NVRTC, the test
//! says so, and checks that the error names what is missing.

mod common;

use cuda_bridge::device::{Device, DeviceError};
use cuda_bridge::nvrtc::Nvrtc;
use cuda_bridge::translate::Options;
use tiebreak_contract::arith::{elementary, float};
use tiebreak_shaders::compose_text;

#[test]
fn a_gpu_computes_the_bits_or_is_not_there() {
    let device = match Device::open(0) {
        Ok(device) => device,
        Err(error) => {
            let text = error.to_string();
            let missing = matches!(error, DeviceError::NoDriver(_) | DeviceError::NoDevice { .. });
            // The driver is installed without a GPU: cuInit's own error.
            assert!(missing || text.contains("cuInit"), "{text}");
            assert!(text.contains("driver") || text.contains("cuInit"), "{text}");
            assert!(std::env::var_os("TIEBREAK_REQUIRE_GPU").is_none(), "{text}");
            common::not_checked(&format!("on a GPU: {text}"));
            return;
        }
    };
    let nvrtc = Nvrtc::load_for(device.driver_major().unwrap()).unwrap_or_else(|error| panic!("{error}"));
    let text = "//!include shared/exp.wgsl
@group(0) @binding(0) var<storage, read> input: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read_write> output: array<vec4<u32>>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let a = input[id.x].x;
    let b = input[id.x].y;
    output[id.x] = vec4<u32>(f_add(a, b), f_mul(a, b), f_div(a, b), f_exp(a));
}";
    let text = compose_text("test", text).unwrap();
    const COUNT: u32 = 1 << 16;
    let input: Vec<u32> = (0..2 * COUNT).map(common::word).collect();
    for native in [false, true] {
        let kernel = common::try_kernel(&text, Options { native }).unwrap();
        let cubin = nvrtc.compile(&kernel.name, &kernel.source, &device.architecture()).unwrap();
        let loaded = device.load(&kernel, &cubin).unwrap();
        let bytes: Vec<u8> = input.iter().flat_map(|word| word.to_le_bytes()).collect();
        let (input_there, output) =
            (device.upload(&bytes).unwrap(), device.allocate(16 * COUNT as usize).unwrap());
        loaded.launch([COUNT / 64, 1, 1], &[input_there.whole(), output.whole()]).unwrap();
        let words: Vec<u32> = (output.read(16 * COUNT as usize).unwrap().chunks_exact(4))
            .map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap()))
            .collect();
        for (pair, have) in input.chunks_exact(2).zip(words.chunks_exact(4)) {
            let (a, b) = (pair[0], pair[1]);
            let want = [float::add(a, b), float::mul(a, b), float::div(a, b), elementary::exp(a)];
            assert_eq!(have, want, "{}: {a:08x} and {b:08x}, native: {native}", device.description.name);
        }
        assert!(
            loaded.launch([1; 3], &[output.whole(), output.whole()]).is_err(),
            "a written buffer is given twice"
        );
        assert!(loaded.launch([1; 3], &[output.whole()]).is_err(), "a buffer is missing");
    }
}
