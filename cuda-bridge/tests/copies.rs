//! Copies that return at once: they bring the contents after the launches before them, whatever is launched later, and writes are
//! ordered among launches. The tests run over the stand-in for the driver, in processes of its own: there copies run as late as
//! they may, so that mistakes show. The tests also run on a GPU if there is one.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use cuda_bridge::copies::{BYTES_MAX, Copies};
use cuda_bridge::device::{Call, Device, DeviceError, Loaded, Memory};
use cuda_bridge::nvrtc::Nvrtc;

const COUNT: u32 = 5000;

const TEXT: &str = "
    @group(0) @binding(0) var<storage, read> a: array<u32>;
    @group(0) @binding(1) var<storage, read_write> b: array<u32>;
    @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
        if (id.x < arrayLength(&b)) { b[id.x] = a[id.x] * 3u + id.x; }
    }";

fn load(device: &Arc<Device>, nvrtc: &Nvrtc) -> Arc<Loaded> {
    let kernel = common::kernel(TEXT);
    let cubin = nvrtc.compile(&kernel.name, &kernel.source, &device.architecture()).unwrap();
    Arc::new(device.load(&kernel, &cubin).unwrap())
}

fn bytes(words: impl Iterator<Item = u32>) -> Vec<u8> {
    words.flat_map(u32::to_le_bytes).collect()
}

fn words(first: u32) -> Vec<u8> {
    bytes((0..COUNT).map(|i| first + 5 * i))
}

/// The bytes that so many launches, one after the other, make from `words(first)`.
fn expected(first: u32, launches: u32) -> Vec<u8> {
    bytes((0..COUNT).map(|i| (0..launches).fold(first + 5 * i, |x, _| x.wrapping_mul(3).wrapping_add(i))))
}

fn launch(kernel: &Arc<Loaded>, from: &Memory, to: &Memory) {
    let groups = [COUNT.div_ceil(64), 1, 1];
    Call::new(kernel, groups, &[from.whole(), to.whole()]).unwrap().launch().unwrap();
}

fn copies_and_launches(device: &Arc<Device>, nvrtc: &Nvrtc) {
    let (kernel, copies) =
        (load(device, nvrtc), Copies::new(device).unwrap().expect("the driver has streams"));
    let size = 4 * COUNT as usize;
    let [first, second, third] = [0; 3].map(|_| device.allocate(size).unwrap());
    let mut waiting = Vec::new();
    for round in 0..20 {
        // The host's buffer may be freed at once after a write.
        let mut given = words(round);
        assert!(copies.write(&first, &given).unwrap());
        given.fill(0);
        launch(&kernel, &first, &second);
        // Two parts: the second launch writes one of them, the first launch the other.
        launch(&kernel, &second, &third);
        let parts = [third.slice(0, size), second.slice(8, 400), first.slice(0, 0)];
        let copying = copies.begin(&parts).unwrap().expect("there is room");
        // The next write begins while the copy is under way.
        assert!(copies.write(&first, &words(1000 + round)).unwrap());
        let mut have = Vec::new();
        copying.end(&mut |bytes| have.extend_from_slice(bytes)).unwrap();
        assert!(have == [&expected(round, 2)[..], &expected(round, 1)[8..408]].concat(), "round {round}");
        // After the copy has ended, no further wait is needed.
        assert!(
            copies
                .read(third.slice(0, 40), &mut |bytes| assert!(*bytes == expected(round, 2)[..40]))
                .unwrap()
        );
        assert!(first.read(size).unwrap() == words(1000 + round));
        // Several copies at once, of memory that does not change.
        let kept = device.upload(&words(round)).unwrap();
        let copying = copies.begin(&[kept.whole()]).unwrap().expect("there is room");
        waiting.push((copying, kept));
    }
    for (round, (copying, kept)) in (0..).zip(waiting) {
        copying.end(&mut |bytes| assert!(bytes == words(round))).unwrap();
        drop(kept);
    }
    // A copy that is too large waits.
    let large = device.allocate(BYTES_MAX + 4).unwrap();
    assert!(copies.begin(&[large.whole()]).unwrap().is_none());
    assert!(!copies.read(large.whole(), &mut |_| panic!("nothing is shown")).unwrap());
    assert!(!copies.write(&large, &vec![0; BYTES_MAX + 1]).unwrap());
    assert!(copies.write(&large, &[]).unwrap());
    let copying = copies.begin(&[large.slice(4, BYTES_MAX)]).unwrap().expect("this is not too large");
    // Dropping a copy waits for it.
    drop(copying);
    drop(large);
    // More copies than may be under way, each from memory of its own until it has ended.
    let memories: Vec<Memory> = (0..6).map(|_| device.allocate(BYTES_MAX).unwrap()).collect();
    for (i, memory) in (0u8..).zip(&memories) {
        assert!(copies.write(memory, &vec![i; BYTES_MAX]).unwrap());
    }
    for (i, memory) in (0u8..).zip(&memories) {
        assert!(memory.read(BYTES_MAX).unwrap().iter().all(|&byte| byte == i));
    }
}

#[test]
fn on_a_gpu_if_there_is_one() {
    if let Some((device, nvrtc)) = common::gpu() {
        copies_and_launches(device, nvrtc);
    }
}

#[test]
#[ignore = "a process of its own, which the last test starts"]
fn child_right() {
    copies_and_launches(&Device::open(0).unwrap(), &Nvrtc::load().unwrap());
}

/// The stand-in without streams: then there are no such copies.
#[test]
#[ignore = "a process of its own, which the last test starts"]
fn child_without() {
    assert!(Copies::new(&Device::open(0).unwrap()).unwrap().is_none());
}

/// Mistakes that a GPU might hide show over the stand-in.
#[test]
#[ignore = "a process of its own, which the last test starts"]
fn child_wrong() {
    let (device, nvrtc) = (Device::open(0).unwrap(), Nvrtc::load().unwrap());
    let (kernel, copies) = (load(&device, &nvrtc), Copies::new(&device).unwrap().unwrap());
    let [first, second] = [1, 2].map(|first| device.upload(&words(first)).unwrap());
    // A read before anybody knows that the launch has ended.
    launch(&kernel, &first, &second);
    copies.read(second.whole(), &mut |bytes| assert!(bytes != expected(1, 1))).unwrap();
    device.finish().unwrap();
    copies.read(second.whole(), &mut |bytes| assert!(bytes == expected(1, 1))).unwrap();
    // A read waits for no copy that waits for launches.
    let [early, late] = [&first, &second].map(|memory| copies.begin(&[memory.whole()]).unwrap().unwrap());
    early.end(&mut |bytes| assert!(bytes == words(1))).unwrap();
    copies.read(first.whole(), &mut |bytes| assert!(bytes == words(1))).unwrap();
    second.write(&words(8)).unwrap();
    late.end(&mut |bytes| assert!(bytes == words(8), "the copy was waited for")).unwrap();
    // A write while a copy is under way.
    let copying = copies.begin(&[second.whole()]).unwrap().unwrap();
    launch(&kernel, &first, &second);
    second.write(&words(9)).unwrap();
    copying.end(&mut |bytes| assert!(bytes == words(9))).unwrap();
    // Memory is freed while a copy is under way.
    let copying = copies.begin(&[second.whole()]).unwrap().unwrap();
    drop(second);
    let lost = copying.end(&mut |_| panic!("the GPU was lost")).unwrap_err();
    assert!(matches!(&lost, DeviceError::Lost { .. }) && lost.to_string().contains("under way"), "{lost}");
}

#[test]
fn copies_run_as_late_as_they_may() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("copies-shim");
    let shim = match cuda_bridge::host::driver(&folder) {
        Ok(shim) => shim,
        Err(error) => {
            assert!(std::env::var_os("TIEBREAK_REQUIRE_SHIM").is_none(), "{error}");
            return common::not_checked(&format!("copies over the stand-in for a driver: {error}"));
        }
    };
    // The counts are: kernels run, graphs made and launched, attention, columns, copies to the host and to the GPU.
    for (name, copies, counts) in [
        ("child_right", "1", "40 0 0 0 0 81 46"),
        ("child_without", "0", "0 0 0 0 0 0 0"),
        ("child_wrong", "1", ""),
    ] {
        let file = folder.join(format!("counts-{}-{name}", std::process::id()));
        let mut child = Command::new(std::env::current_exe().unwrap());
        for variable in ["TIEBREAK_CUDA_DRIVER", "TIEBREAK_NVRTC"] {
            child.env(variable, &shim);
        }
        child.env("TIEBREAK_SHIM_COUNTS", &file).env("TIEBREAK_SHIM_COPIES", copies);
        let output = child.args(["--exact", name, "--ignored", "--nocapture"]).output().unwrap();
        let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
        let counted = fs::read_to_string(&file).unwrap();
        fs::remove_file(&file).unwrap();
        assert!(counts.is_empty() || counted.lines().last() == Some(counts), "{name}: {counted}");
    }
}
