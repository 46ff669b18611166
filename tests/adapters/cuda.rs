//! The engine for NVIDIA's GPUs, over a stand-in for the driver and NVRTC that runs kernels on the host. It gives the bits of
//! every other engine, and its errors say what to do when a GPU fails. `cuda-bridge/check-on-gpu.sh` makes similar checks on a
//! GPU.

use std::path::Path;

use crate::common::edit::edit;
use crate::common::gpt_job;
use crate::common::shim::{shim, tiebreak};
use tiebreak_engine::fingerprint::FINGERPRINT;
use tiebreak_record::commit::record::Record;
use tiebreak_run::run::transcript;

/// A run by the CUDA engine, audited by the CPU's, and the reverse; then a run on a GPU that is lost in the middle.
#[test]
fn runs_have_the_bits_of_other_engines_and_survive_a_lost_gpu() {
    let Some(shim) = shim() else { return };
    let (code, printed) = tiebreak(shim, &[], &["selftest", "--engine", "cuda"]);
    assert_eq!(code, 0, "{printed}");
    assert!(printed.contains("host shim") && printed.contains("equals the scalar reference"), "{printed}");

    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let job = gpt_job(folder.path(), "operator", "").to_str().unwrap().to_string();
    let (there, here, ranks, lost) = (path("cuda"), path("cpu"), path("ranks"), path("lost"));
    let run = |args: &[&str]| {
        let (code, printed) = tiebreak(shim, &[], args);
        assert_eq!(code, 0, "{args:?}: {printed}");
        printed
    };
    run(&["-q", "train", &job, "--out", &there, "--engine", "cuda"]);
    run(&["-q", "train", &job, "--out", &here]);
    assert!(run(&["compare", &there, &here]).contains("no difference"));
    assert!(run(&["audit", &there]).contains("MATCHES"));
    // Three processes share the one GPU.
    run(&["-q", "train", &job, "--out", &ranks, "--engine", "cuda", "--ranks", "3"]);
    assert!(run(&["compare", &ranks, &here]).contains("no difference"));
    assert!(run(&["audit", &ranks]).contains("MATCHES"));
    assert!(run(&["audit", &here, "--engine", "cuda"]).contains("MATCHES"));

    // The self-test's launches, then those of some steps, so that a checkpoint and later steps are there to resume from.
    let faults = [("TIEBREAK_SHIM_LOST", "11000")];
    let (code, printed) = tiebreak(shim, &faults, &["-q", "train", &job, "--out", &lost, "--engine", "cuda"]);
    assert_eq!(code, 3, "{printed}");
    assert!(printed.contains("was lost") && printed.contains("resumed"), "{printed}");
    let (history, _) = transcript::read(&Path::new(&lost).join("transcript")).unwrap();
    let steps = history.records.iter().filter(|record| matches!(record, Record::Step { .. })).count();
    assert!((3..8).contains(&steps), "the GPU was lost after {steps} of 8 steps; say another launch");
    run(&["-q", "train", "--out", &lost, "--resume", "--engine", "cuda"]);
    assert!(run(&["compare", &lost, &here]).contains("no difference"));
    assert!(run(&["audit", &lost]).contains("MATCHES"));
}

/// The stand-in's counts: kernels run, graphs made, graphs launched, kernels for rows between products and for columns, copies to
/// the host and to the GPU that return at once.
fn counted(file: &str) -> Vec<u64> {
    let text = std::fs::read_to_string(file).unwrap();
    text.lines().last().unwrap().split(' ').map(|n| n.parse().unwrap()).collect()
}

/// If nobody observes intermediate nodes, absmaxes are computed with the digits, rows are computed at once, and repeated launches
/// become graphs, after uploads without waiting. The GPU's state is still the CPU's, also with a driver that has neither graphs
/// nor such copies.
#[test]
fn steps_that_nobody_observes_have_the_same_bits() {
    let Some(shim) = shim() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    // Rows of attention and of layer norms that are long enough.
    let job = |steps: u32| {
        let job = gpt_job(folder.path(), "step", "");
        let steps = format!("steps = {steps}");
        let sizes = [("micro_batch = 2", "micro_batch = 1"), ("context = 12", "context = 65")];
        edit(&job, &[("steps = 8", &steps), sizes[0], sizes[1], ("width = 16", "width = 66")]);
        job.to_str().unwrap().to_string()
    };
    let run = |environment: &[(&str, &str)], args: &[&str]| {
        let (code, printed) = tiebreak(shim, environment, args);
        assert_eq!(code, 0, "{args:?}: {printed}");
        printed
    };
    // Without graphs every step launches the same.
    for (graphs, steps) in [("1", 14), ("0", 4)] {
        let (job, here) = (job(steps), path(&format!("cpu-{graphs}")));
        run(&[], &["-q", "train", &job, "--out", &here]);
        let (out, counts) = (path(&format!("cuda-{graphs}")), path(&format!("counts-{graphs}")));
        let environment = [
            ("TIEBREAK_SHIM_COUNTS", &counts[..]),
            ("TIEBREAK_SHIM_GRAPHS", graphs),
            ("TIEBREAK_SHIM_COPIES", graphs),
        ];
        run(&environment, &["-q", "train", &job, "--out", &out, "--engine", "cuda"]);
        assert!(run(&[], &["compare", &out, &here]).contains("no difference"));
        let counts = counted(&counts);
        if graphs == "1" {
            // A step launches ten sequences, and after a few steps every second one uses the same memory.
            assert!(counts[1] <= 20 && counts[2] >= 70, "made and launched: {counts:?}");
            // The counts of forward and backward passes of every micro-batch, and of the opening.
            assert!(counts[3..5].iter().all(|&count| count >= 2 + 14 * 3 * 2), "{counts:?}");
            // The uploads are tokens and labels, the scalars of a micro-batch and of a step, and the embedding's grouping.
            assert!(counts[5] == 0 && counts[6] > 100, "copies: {counts:?}");
        } else {
            assert_eq!([&counts[1..3], &counts[5..]].concat(), [0; 4]);
        }
    }
}

/// The run's traces hold the values that the search for near ties rounded.
#[test]
fn a_logged_run_replays_on_the_cpu() {
    let Some(shim) = shim() else { return };
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "operator", "").to_str().unwrap().to_string();
    let out = folder.path().join("run").to_str().unwrap().to_string();
    let train = ["-q", "train", &job, "--out", &out, "--profile", "logged", "--engine", "cuda"];
    let counts = folder.path().join("counts").to_str().unwrap().to_string();
    let (code, printed) = tiebreak(shim, &[("TIEBREAK_SHIM_COUNTS", &counts)], &train);
    assert_eq!(code, 0, "{printed}");
    let counts = counted(&counts);
    assert!(counts[5] > 1000, "what searches found was not copied beside them: {counts:?}");
    let (code, printed) = tiebreak(shim, &[], &["audit", &out]);
    assert!(code == 0 && printed.contains("MATCHES"), "{printed}");
}

/// Each fault of a machine has an error of its own, which says what to do, and gives no engine.
#[test]
fn faults_are_told_apart() {
    let Some(shim) = shim() else { return };
    let nowhere = ("TIEBREAK_CUDA_DRIVER", "/nowhere/libcuda.so");
    for (fault, says) in [
        (nowhere, "install the driver"),
        (("TIEBREAK_NVRTC", "/nowhere/libnvrtc.so"), "pip install nvidia-cuda-nvrtc"),
        (("TIEBREAK_SHIM_VERSION", "11010"), "install a newer driver"),
        (("TIEBREAK_SHIM_MEMORY", "300000"), "out of memory"),
        (("TIEBREAK_SHIM_LOST", "100"), "was lost"),
        (("TIEBREAK_SHIM_WRONG", "500"), "failed its self-test"),
    ] {
        let (code, printed) = tiebreak(shim, &[fault], &["selftest", "--engine", "cuda"]);
        assert_eq!(code, 3, "{fault:?}: {printed}");
        assert!(printed.contains(says), "{fault:?}: {printed}");
    }
    let (code, printed) = tiebreak(shim, &[], &["selftest", "--engine", "cuda", "--adapter", "H200"]);
    assert!(code == 3 && printed.contains("adapters here: 0: host shim"), "{printed}");
    let no_vulkan = ("VK_DRIVER_FILES", "/nowhere/icd.json");
    let (_, printed) = tiebreak(shim, &[nowhere, no_vulkan], &["adapters", "--test", "--json"]);
    assert!(!printed.contains("cuda"), "where there is no driver nothing is said of it: {printed}");
    let (code, printed) = tiebreak(shim, &[no_vulkan], &["adapters", "--test"]);
    assert!(code == 0 && printed.contains("cuda: host shim"), "{printed}");
    // A GPU with other bits is listed with its own fingerprint.
    let wrong = ("TIEBREAK_SHIM_WRONG", "500");
    let (code, printed) =
        tiebreak(shim, &[no_vulkan, wrong], &["adapters", "--test", "--adapter", "host shim"]);
    assert_eq!(code, 3, "{printed}");
    let row = printed.lines().find(|line| line.starts_with("| cuda: host shim")).expect("the GPU is listed");
    let have = row.split("**").nth(1).expect("what it has is emphasised");
    assert!(have.len() == 64 && have.bytes().all(|byte| byte.is_ascii_hexdigit()), "{row}");
    assert!(have != FINGERPRINT && printed.contains(FINGERPRINT) && row.contains("products"), "{printed}");
}
