//! Repeated launches as graphs: a sequence that was launched before is launched as one graph, with the buffers' present contents,
//! and no other sequence is. The tests run over the stand-in for the driver, which counts, in a process of its own, and on a GPU
//! if there is one.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use cuda_bridge::device::{Call, Device, Loaded, Memory};
use cuda_bridge::graphs::Graphs;
use cuda_bridge::nvrtc::Nvrtc;

const COUNT: u32 = 300;

/// Adds and multiplies, so that an order of launches shows.
fn text(factor: u32) -> String {
    format!(
        "@group(0) @binding(0) var<storage, read> a: array<u32>;\n\
         @group(0) @binding(1) var<storage, read_write> b: array<u32>;\n\
         @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {{\n\
         if (id.x < {COUNT}u) {{ b[id.x] = a[id.x] * {factor}u + id.x; }} }}\n"
    )
}

fn load(device: &Arc<Device>, nvrtc: &Nvrtc, factor: u32) -> Arc<Loaded> {
    let kernel = common::kernel(&text(factor));
    let cubin = nvrtc.compile(&kernel.name, &kernel.source, &device.architecture()).unwrap();
    Arc::new(device.load(&kernel, &cubin).unwrap())
}

fn words(first: u32) -> Vec<u8> {
    (0..COUNT).flat_map(|i| (first + 5 * i).to_le_bytes()).collect()
}

/// The bytes that the launches of `factors` make from `first`, one after the other.
fn expected(first: u32, factors: &[u32]) -> Vec<u8> {
    let of = |i: u32| factors.iter().fold(first + 5 * i, |x, factor| x.wrapping_mul(*factor).wrapping_add(i));
    (0..COUNT).flat_map(|i| of(i).to_le_bytes()).collect()
}

/// Twelve runs of five sequences.
fn sequences(device: &Arc<Device>, nvrtc: &Nvrtc) {
    let graphs = Graphs::new(device);
    let (three, seven) = (load(device, nvrtc, 3), load(device, nvrtc, 7));
    let memory: Vec<Memory> = (0..4).map(|_| device.upload(&words(0)).unwrap()).collect();
    let call = |kernel: &Arc<Loaded>, groups: u32, from: usize, to: usize| {
        Call::new(kernel, [groups, 1, 1], &[memory[from].whole(), memory[to].whole()]).unwrap()
    };
    let run = |first: u32, calls: &[Call], last: usize, factors: &[u32]| {
        memory[0].write(&words(first)).unwrap();
        graphs.run(calls.to_vec()).unwrap();
        assert!(memory[last].read(4 * COUNT as usize).unwrap() == expected(first, factors), "{factors:?}");
    };
    let groups = COUNT.div_ceil(64);
    // The same launches on contents that change: plainly, as a new graph, as that graph.
    let both = [call(&three, groups, 0, 1), call(&seven, groups, 1, 2)];
    run(1, &both, 2, &[3, 7]);
    run(1000, &both, 2, &[3, 7]);
    run(77, &both, 2, &[3, 7]);
    // Another order, other memory, one launch more: each sequence is new, and none is taken for the one before.
    let swapped = [call(&seven, groups, 0, 1), call(&three, groups, 1, 2)];
    run(5, &swapped, 2, &[7, 3]);
    let elsewhere = [call(&three, groups, 0, 1), call(&seven, groups, 1, 3)];
    run(6, &elsewhere, 3, &[3, 7]);
    let longer = [both.as_slice(), &[call(&three, groups, 2, 3)]].concat();
    run(7, &longer, 3, &[3, 7, 3]);
    run(8, &longer, 3, &[3, 7, 3]);
    // Fewer blocks of the same kernels: the words that they leave out stay.
    run(9, &both, 2, &[3, 7]);
    let fewer = [call(&three, groups, 0, 1), call(&seven, 1, 1, 2)];
    memory[0].write(&words(10)).unwrap();
    graphs.run(fewer.to_vec()).unwrap();
    let have = memory[2].read(4 * COUNT as usize).unwrap();
    assert!(have[..256] == expected(10, &[3, 7])[..256] && have[256..] == expected(9, &[3, 7])[256..]);
    // A single launch is no sequence.
    for first in [11, 12] {
        run(first, &both[..1], 1, &[3]);
    }
    // Sequences keep their kernels: no other function gets their handles.
    drop((both, swapped, elsewhere, longer, fewer, three, seven));
    let (nine, three) = (load(device, nvrtc, 9), load(device, nvrtc, 3));
    run(13, &[call(&nine, groups, 0, 1), call(&three, groups, 1, 2)], 2, &[9, 3]);
}

#[test]
fn on_a_gpu_if_there_is_one() {
    if let Some((device, nvrtc)) = common::gpu() {
        sequences(device, nvrtc);
    }
}

#[test]
#[ignore = "a process of its own, which the next test starts"]
fn child() {
    sequences(&Device::open(0).unwrap(), &Nvrtc::load().unwrap());
}

#[test]
fn sequences_that_come_back_are_graphs() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("graphs-shim");
    let shim = match cuda_bridge::host::driver(&folder) {
        Ok(shim) => shim,
        Err(error) => {
            assert!(std::env::var_os("TIEBREAK_REQUIRE_SHIM").is_none(), "{error}");
            return common::not_checked(&format!("graphs over the stand-in for a driver: {error}"));
        }
    };
    // The counts are: kernels run, graphs made, graphs launched, four counts about attention and copies, which are zero. Two
    // sequences came back, one of them three times. Without graphs the same kernels run.
    for (graphs, counts) in [("1", "24 2 4 0 0 0 0"), ("0", "24 0 0 0 0 0 0")] {
        let file = folder.join(format!("counts-{}-{graphs}", std::process::id()));
        let mut child = Command::new(std::env::current_exe().unwrap());
        for variable in ["TIEBREAK_CUDA_DRIVER", "TIEBREAK_NVRTC"] {
            child.env(variable, &shim);
        }
        child.env("TIEBREAK_SHIM_COUNTS", &file).env("TIEBREAK_SHIM_GRAPHS", graphs);
        let output = child.args(["--exact", "child", "--ignored", "--nocapture"]).output().unwrap();
        let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
        let counted = fs::read_to_string(&file).unwrap();
        fs::remove_file(&file).unwrap();
        assert_eq!(counted.lines().last(), Some(counts), "graphs {graphs}");
    }
}
