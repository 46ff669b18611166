//! Launches that are timed one by one: each once, in order, under its announced name.

mod common;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use cuda_bridge::device::{Call, Device};
use cuda_bridge::nvrtc::Nvrtc;
use cuda_bridge::timer::Timer;

const TEXT: &str = "@group(0) @binding(0) var<storage, read_write> output: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) { output[id.x] += id.x; }";

/// Runs five launches, of which four have a name, while one of the names is for something else; returns their seconds.
fn launches(device: &Arc<Device>, nvrtc: &Nvrtc) -> Vec<f64> {
    let kernel = common::kernel(TEXT);
    let cubin = nvrtc.compile(&kernel.name, &kernel.source, &device.architecture()).unwrap();
    let loaded = Arc::new(device.load(&kernel, &cubin).unwrap());
    let memory = device.upload(&[0; 4 * 128]).unwrap();
    let call = |groups: u32| Call::new(&loaded, [groups, 1, 1], &[memory.whole()]).unwrap();
    let timer = Timer::new(device).unwrap();
    timer.announce(&mut ["a", "b", "other"].map(String::from).into_iter());
    timer.run(&[call(1), call(2)]).unwrap();
    timer.skip();
    timer.announce(&mut ["c", "d"].map(String::from).into_iter());
    timer.run(&[call(1)]).unwrap();
    timer.run(&[call(2), call(1)]).unwrap();
    let timed = timer.take().unwrap();
    let seen: Vec<_> = timed.iter().map(|t| (&t.name[..], &t.kernel[..], t.groups[0])).collect();
    assert_eq!(
        seen,
        [
            ("a", "k_main", 1),
            ("b", "k_main", 2),
            ("c", "k_main", 1),
            ("d", "k_main", 2),
            ("k_main", "k_main", 1)
        ]
    );
    assert!(timer.take().unwrap().is_empty(), "each is given once");
    let words = memory.read(4 * 128).unwrap();
    let word = |i: usize| u32::from_le_bytes(words[4 * i..][..4].try_into().unwrap());
    assert_eq!([word(10), word(100)], [5 * 10, 2 * 100], "each ran once");
    timed.iter().map(|timed| timed.seconds).collect()
}

#[test]
fn on_a_gpu_if_there_is_one() {
    if let Some((device, nvrtc)) = common::gpu() {
        let seconds = launches(device, nvrtc);
        assert!(seconds.iter().all(|seconds| (1e-7..1e-1).contains(seconds)), "{seconds:?}");
    }
}

#[test]
#[ignore = "a process of its own, which the next test starts"]
fn child() {
    // The stand-in takes a microsecond for each launch between two events.
    let seconds = launches(&Device::open(0).unwrap(), &Nvrtc::load().unwrap());
    assert!(seconds.iter().all(|seconds| (seconds - 1e-6).abs() < 1e-12), "{seconds:?}");
}

#[test]
fn launches_are_timed_under_their_names() {
    let shim = match cuda_bridge::host::driver(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("timer-shim")) {
        Ok(shim) => shim,
        Err(error) => {
            assert!(std::env::var_os("TIEBREAK_REQUIRE_SHIM").is_none(), "{error}");
            return common::not_checked(&format!("times over the stand-in for a driver: {error}"));
        }
    };
    let mut child = Command::new(std::env::current_exe().unwrap());
    for variable in ["TIEBREAK_CUDA_DRIVER", "TIEBREAK_NVRTC"] {
        child.env(variable, &shim);
    }
    let output = child.args(["--exact", "child", "--ignored", "--nocapture"]).output().unwrap();
    let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
}
