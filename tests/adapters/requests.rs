//! The requests of a training step to a GPU, counted without one. The bars hold what start-up and steps cost: fewer is progress,
//! and a change that needs more has to raise a number here.

use std::process::Command as Process;
use std::sync::Arc;

use crate::common::{adapter_names, gpt2_job, mlp_job, not_tested};
use tiebreak_contract::program::step::MicroBatch;
use tiebreak_engine::session::Session;
use tiebreak_gpu::{DeviceMemory, Planned, Requests, TextLimits, Variant};
use tiebreak_job::computation::Computation;
use tiebreak_job::identity::{CONTRACT, ComputationSummary, program_digest};
use tiebreak_job::manifest::files_root;
use tiebreak_record::commit::digest::Digest;
use tiebreak_run::step::{Roundings, StepRequest, Watch, scalars};

/// A job's computation, of data that are not read.
fn computation(job: &str) -> Computation {
    let (_, program) = Computation::parsed("job", job, None).unwrap();
    let summary = ComputationSummary {
        contract: CONTRACT.into(),
        challenge: None,
        program: program_digest(&program),
        data: files_root(&[]),
        initial: Digest([0; 32]),
    };
    Computation::derive("job", job, None, summary).unwrap()
}

/// The requests of a job until its state is there, of its second step, and of both together with the first step.
struct Counts {
    start: Requests,
    step: Requests,
    all: Requests,
}

fn requests(job: &str, limits: TextLimits) -> Counts {
    let computation = computation(job);
    let program = Arc::new(computation.program.clone());
    let (mut engine, counter) = Planned::within(limits, Variant::Dot);
    let mut session = Session::new(&mut engine, program.clone()).unwrap();
    let state = program.state();
    session.load_each(|i| vec![0; state[i].ty().bytes()]).unwrap();
    let start = counter.requests();
    let zeros = |shape: &[u32]| vec![0; 4 * shape.iter().product::<u32>() as usize];
    let batch: Vec<MicroBatch> = (0..program.micro_batches)
        .map(|_| MicroBatch { tensors: program.batch.iter().map(|tensor| zeros(&tensor.shape)).collect() })
        .collect();
    let mut before = start;
    for step in 1..=2 {
        before = counter.requests();
        let request = StepRequest::new(&computation, scalars(&computation, step), &batch);
        // A trainer looks at the loss before the update.
        request.run(&mut session, Roundings::Logged, &Watch { finite: true, ..Watch::default() }).unwrap();
    }
    let all = counter.requests();
    Counts { start, step: all.since(before), all }
}

/// The most that a job may ask for.
struct Bars {
    /// Pipelines that are made, and those that run.
    pipelines: [u64; 2],
    dispatches: u64,
    submissions: u64,
    /// Bytes that the host writes in a step.
    written: u64,
    /// Bytes that the host reads in a step, and how often it waits for them.
    read: u64,
    waits: u64,
    /// The most memory at once.
    memory: u64,
}

fn hold(name: &str, counts: Counts, bars: Bars) {
    let Counts { start, step, all } = counts;
    println!("{name}: start {start:?}\nstep {step:?}\npipelines used {}", all.pipelines_used);
    let figures = [
        ("pipelines", all.pipelines, bars.pipelines[0]),
        ("pipelines that run", all.pipelines_used, bars.pipelines[1]),
        ("dispatches", step.dispatches, bars.dispatches),
        ("submissions", step.submissions, bars.submissions),
        ("bytes written", step.written, bars.written),
        ("bytes read", step.read, bars.read),
        ("waits", step.waits, bars.waits),
        ("bytes of memory", all.memory_most, bars.memory),
    ];
    for (figure, found, bar) in figures {
        assert!(found <= bar, "{name}: {found} {figure}, and at most {bar} are allowed");
    }
    assert_eq!(step.pipelines, 0, "{name}: the second step makes pipelines");
    assert!(step.dispatches > 0 && step.written > 0 && step.waits > 0, "{name}: nothing was counted");
}

/// GPT-2 124M, 8 micro-batches of 1024 tokens, with the limits of usual GPUs and of browsers.
#[test]
fn a_step_of_gpt2_asks_for_no_more() {
    let usual = Bars {
        pipelines: [70, 49],
        dispatches: 21_627,
        submissions: 163,
        written: 1_706_732,
        read: 69_264,
        waits: 2,
        memory: 7_839_022_080,
    };
    hold("GPT-2", requests(&gpt2_job(), TextLimits::All), usual);
    let webgpu = Bars {
        pipelines: [68, 55],
        dispatches: 22_936,
        submissions: 190,
        written: 1_706_732,
        read: 1_698_353_456,
        waits: 33,
        memory: 8_163_047_936,
    };
    hold("GPT-2 in WebGPU's limits", requests(&gpt2_job(), TextLimits::Webgpu), webgpu);
}

/// The residual network of assets/jobs/cifar-resnet.toml, 2 micro-batches of 32 images.
#[test]
fn a_step_of_a_residual_network_asks_for_no_more() {
    let bars = Bars {
        pipelines: [52, 49],
        dispatches: 868,
        submissions: 11,
        written: 786_740,
        read: 3280,
        waits: 2,
        memory: 339_581_440,
    };
    let job = include_str!("../../assets/jobs/cifar-resnet.toml");
    hold("residual network", requests(job, TextLimits::All), bars);
}

/// The memory plan of docs/PORTABILITY.md: GPT-2 124M with micro-batches of 1, 2, 4 and 8 windows of 1024 tokens, 8 in a step.
#[test]
fn the_memory_of_gpt2_is_planned() {
    let planned = [1, 2, 4, 8].map(|micro_batch| {
        let batch = format!("micro_batch = {micro_batch}, micro_batches = {}", 8 / micro_batch);
        let job = gpt2_job().replace("micro_batch = 1, micro_batches = 8", &batch);
        let (_, program) = Computation::parsed("job", &job, None).unwrap();
        let memory = DeviceMemory::of(&program, false).unwrap();
        println!("micro-batch {micro_batch}: {memory:?}, {} bytes in all", memory.total());
        memory.total()
    });
    assert!(
        planned[0] < 8 << 30 && planned[1] > 8 << 30,
        "a micro-batch of one window fits 8 GiB: {planned:?}"
    );
    let growth = planned.windows(2).all(|two| two[0] < two[1]);
    assert!(growth, "{planned:?}");
}

/// Training that does not fit the GPU is refused, and the job that the error names fits.
#[test]
fn training_that_does_not_fit_is_refused() {
    let names = adapter_names();
    let Some(adapter) = names.iter().find(|name| name.contains("llvmpipe")).or(names.first()) else {
        return not_tested("no adapter is here");
    };
    let folder = tempfile::tempdir().unwrap();
    let job = mlp_job(folder.path(), "step", 1, 2);
    let edit = |from: &str, to: &str| {
        let text = std::fs::read_to_string(&job).unwrap();
        assert!(text.contains(from), "{text}");
        std::fs::write(&job, text.replace(from, to)).unwrap();
    };
    edit("hidden = [33, 20]", "hidden = [16384]");
    edit("micro_batch = 2", "micro_batch = 256");
    let train = |memory: &str, out: &str| {
        let mut command = Process::new(env!("CARGO_BIN_EXE_tiebreak"));
        command.arg("train").arg(&job).arg("--out").arg(folder.path().join(out));
        command.args(["--engine", "wgpu", "--adapter", adapter]).env("TIEBREAK_GPU_MEMORY", memory);
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, text) = train("many", "wrong");
    assert!(code == Some(2) && text.contains("a number of MiB"), "{code:?}: {text}");
    let (code, text) = train("140", "large");
    assert!(code == Some(3) && text.contains("of the GPU's memory"), "{code:?}: {text}");
    let fits = text.split("micro_batch = ").nth(1).and_then(|rest| rest.split_whitespace().next());
    let fits: u32 = fits.and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{text}"));
    edit("micro_batch = 256", &format!("micro_batch = {fits}"));
    let (code, text) = train("140", "less");
    assert_eq!(code, Some(0), "{text}");
}
