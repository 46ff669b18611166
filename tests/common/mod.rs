//! Helpers of several test files: tiny jobs on disk and runs of them.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod edit;
pub mod encoders;
pub mod faulty;
pub mod forged;
pub mod planted;
pub mod predicting;
pub mod served;
#[cfg(feature = "cuda")]
pub mod shim;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use edit::{edit, edited};

use tiebreak_audit::plan::{Choice, plan};
use tiebreak_audit::{Report, audit, checks};
use tiebreak_contract::program::encoding::encode;
use tiebreak_contract::program::step::{MicroBatch, Program};
use tiebreak_dispute::verdict::Verdict;
use tiebreak_engine::Engine;
use tiebreak_engine::cpu::Cpu;
use tiebreak_job::Job;
use tiebreak_job::data::{Dataset, Place, Within};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::record::{Record, StepRecord};
use tiebreak_run::run::Folder;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::Disk;
use tiebreak_train::cheat::Cheat;
use tiebreak_train::hostile::rewrite;
use tiebreak_train::{Beginning, Silent, begin_with_any_thresholds, train, train_as};

/// A tiny GPT with dropout and accumulation; `extra` goes to the end of the file.
pub fn gpt_job(folder: &Path, granularity: &str, extra: &str) -> PathBuf {
    let text: String = (0..4000u32).map(|i| char::from(b'a' + (i * i % 23 + i % 3) as u8)).collect();
    std::fs::write(folder.join("text.txt"), text).unwrap();
    let job = format!(
        r#"steps = 8
clip_norm = 1.0

[model]
kind = "gpt"
vocabulary = 128
context = 12
layers = 1
heads = 2
width = 16
dropout = 0.1

[data]
kind = "bytes"
path = "text.txt"

[optimizer]
kind = "adamw"
beta1 = 0.9
beta2 = 0.95
epsilon = 1e-8
weight_decay = 0.1

[schedule]
peak = 1e-2
warmup = 3
floor = 1e-3

[batch]
micro_batch = 2
micro_batches = 3

[commit]
granularity = "{granularity}"
head_every = 3

[checkpoint]
every = 2
{extra}"#
    );
    let path = folder.join("job.toml");
    std::fs::write(&path, job).unwrap();
    path
}

/// [`gpt_job`] on 307 tokens with a mask: two of three targets count, but none of tokens 26 to 64. No target has id 127.
pub fn masked_job(folder: &Path, granularity: &str, windows: &str, extra: &str) -> PathBuf {
    let ids: Vec<u8> = (0..307u32).flat_map(|i| ((i * i % 101 + i % 7) as u16).to_le_bytes()).collect();
    let mask: Vec<u8> = (0..307).map(|i| u8::from(i % 3 != 1 && !(26..65).contains(&i))).collect();
    std::fs::write(folder.join("ids.npy"), npy("<u2", "(307,)", &ids)).unwrap();
    std::fs::write(folder.join("mask.bin"), &mask).unwrap();
    let job = gpt_job(folder, granularity, &format!("[loss]\nignore = 127\n{extra}"));
    let data = format!(
        "kind = \"tokens\"\npath = \"ids.npy\"\ndtype = \"u16\"\nmask = \"mask.bin\"\nwindows = \"{windows}\""
    );
    edit::edit(&job, &[("kind = \"bytes\"\npath = \"text.txt\"", &data)]);
    job
}

/// [`gpt_job`], with its program as a file beside it in place of the tables that describe it.
pub fn program_job(folder: &Path, granularity: &str, extra: &str) -> PathBuf {
    let path = gpt_job(folder, granularity, extra);
    let text = std::fs::read_to_string(&path).unwrap();
    let job = Job::parse("job", &text).unwrap();
    std::fs::write(folder.join("gpt.program"), encode(&job.program(None).unwrap())).unwrap();
    let described =
        |part: &&str| ["[model]", "[optimizer]", "[batch]"].iter().all(|table| !part.starts_with(table));
    let parts: Vec<&str> = text.split("\n\n").filter(described).collect();
    let text = edited(&parts.join("\n\n"), &[("clip_norm = 1.0", "program = \"gpt.program\"")]);
    std::fs::write(&path, text).unwrap();
    path
}

/// Writes 40 images of 8 x 8 pixels, and labels for them.
fn draw_images(folder: &Path) {
    let header = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|w| w.to_be_bytes()).collect() };
    let pixels = (0..40 * 64u32).map(|i| (i * i % 251) as u8);
    fs::write(folder.join("images"), [header(&[0x803, 40, 8, 8]), pixels.collect()].concat()).unwrap();
    let labels = (0..40u32).map(|i| (i * 7 % 10) as u8);
    fs::write(folder.join("labels"), [header(&[0x801, 40]), labels.collect()].concat()).unwrap();
}

/// A small residual network on drawn images; `extra` goes to the end of the file.
pub fn resnet_job(folder: &Path, granularity: &str, extra: &str) -> PathBuf {
    draw_images(folder);
    let job = format!(
        r#"steps = 4
clip_norm = 1.0
model = {{ kind = "resnet", height = 8, width = 8, planes = 1, stages = [16, 32], blocks = 1, classes = 10 }}
data = {{ kind = "idx", images = "images", labels = "labels" }}
optimizer = {{ kind = "sgd", momentum = 0.9, weight_decay = 5e-4 }}
schedule = {{ peak = 0.05 }}
batch = {{ micro_batch = 4, micro_batches = 2 }}
commit = {{ granularity = "{granularity}" }}
{extra}"#
    );
    let path = folder.join("resnet.toml");
    fs::write(&path, job).unwrap();
    path
}

/// [`resnet_job`] with batch normalisation, of so many micro-batches.
pub fn batch_norm_job(folder: &Path, granularity: &str, micro_batches: u32) -> PathBuf {
    let path = resnet_job(folder, granularity, "checkpoint = { every = 1 }");
    let micro_batches = format!("micro_batches = {micro_batches}");
    edit(
        &path,
        &[
            ("classes = 10", "classes = 10, norm = \"batch\", norm_momentum = 0.25"),
            ("micro_batches = 2", &micro_batches),
        ],
    );
    path
}

/// A NumPy file, version 1.0.
pub fn npy(descr: &str, shape: &str, bytes: &[u8]) -> Vec<u8> {
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    while (10 + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    [b"\x93NUMPY\x01\x00".as_slice(), &(header.len() as u16).to_le_bytes(), header.as_bytes(), bytes].concat()
}

/// The job of a small GPT whose tokens are in so many .npy files.
pub fn many_files_job(folder: &Path, files: u16) -> PathBuf {
    let names: Vec<String> = (0..files).map(|i| format!("\"{i}.npy\"")).collect();
    for i in 0..files {
        let tokens: Vec<u8> = (0..600u16).flat_map(|j| ((i * 7 + j) % 31).to_le_bytes()).collect();
        std::fs::write(folder.join(format!("{i}.npy")), npy("<u2", "(600,)", &tokens)).unwrap();
    }
    let job = folder.join("job.toml");
    let text = format!(
        r#"steps = 2
model = {{ kind = "gpt", vocabulary = 31, context = 3, layers = 1, heads = 1, width = 4 }}
data = {{ kind = "tokens", paths = [{}], dtype = "u16" }}
optimizer = {{ kind = "sgd", momentum = 0.9, weight_decay = 0.1 }}
schedule = {{ peak = 0.1 }}
batch = {{ micro_batch = 1, micro_batches = 1 }}
"#,
        names.join(", ")
    );
    std::fs::write(&job, text).unwrap();
    job
}

/// Logistic regression of two classes with clipping and momentum, two steps, on `samples` samples of `width` numbers.
pub fn logistic_job(
    folder: &Path,
    [samples, width]: [u32; 2],
    batch: [u32; 2],
    granularity: &str,
) -> PathBuf {
    let inputs: Vec<u8> = (0..samples * width).flat_map(|i| (i as f32 * 0.7).sin().to_le_bytes()).collect();
    let labels: Vec<u8> = (0..samples).map(|i| (i % 2) as u8).collect();
    fs::write(folder.join("inputs.npy"), npy("<f4", &format!("({samples}, {width})"), &inputs)).unwrap();
    fs::write(folder.join("labels.npy"), npy("|u1", &format!("({samples},)"), &labels)).unwrap();
    let [micro_batch, micro_batches] = batch;
    let job = format!(
        r#"steps = 2
clip_norm = 0.5
model = {{ kind = "mlp", inputs = {width}, hidden = [], classes = 2 }}
data = {{ kind = "arrays", inputs = "inputs.npy", labels = "labels.npy", dtype = "f32" }}
optimizer = {{ kind = "sgd", momentum = 0.9, weight_decay = 1e-2 }}
schedule = {{ peak = 0.5 }}
batch = {{ micro_batch = {micro_batch}, micro_batches = {micro_batches} }}
commit = {{ granularity = "{granularity}" }}
"#
    );
    let path = folder.join("logistic.toml");
    fs::write(&path, job).unwrap();
    path
}

/// A GPT of two tokens and few numbers, whose micro-batch has `context * samples` positions.
pub fn binary_text_job(folder: &Path, context: u32, samples: u32) -> PathBuf {
    let text: Vec<u8> = (0..4000u32).map(|i| (i * i % 7 % 2) as u8).collect();
    fs::write(folder.join("text.bin"), text).unwrap();
    let job = format!(
        r#"steps = 1
model = {{ kind = "gpt", vocabulary = 2, context = {context}, layers = 1, heads = 1, width = 2 }}
data = {{ kind = "bytes", path = "text.bin" }}
optimizer = {{ kind = "sgd", momentum = 0.9, weight_decay = 0.0 }}
schedule = {{ peak = 0.1 }}
batch = {{ micro_batch = {samples} }}
commit = {{ granularity = "step" }}
"#
    );
    let path = folder.join("binary.toml");
    fs::write(&path, job).unwrap();
    path
}

/// GPT-2 124M, 600 steps of 8 micro-batches of 1024 tokens.
pub fn gpt2_job() -> String {
    r#"steps = 600
clip_norm = 1.0
model = { kind = "gpt", vocabulary = 50257, context = 1024, layers = 12, heads = 12, width = 768, tied = true, dropout = 0.1 }
data = { kind = "tokens", path = "text.u16", dtype = "u16" }
optimizer = { kind = "adamw", beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1 }
schedule = { peak = 6e-4, warmup = 10, floor = 6e-5 }
batch = { micro_batch = 1, micro_batches = 8 }
"#
    .into()
}

/// A small perceptron with dropout on drawn images, of `micro_batches` micro-batches and `steps` steps.
pub fn mlp_job(folder: &Path, granularity: &str, steps: u32, micro_batches: u32) -> PathBuf {
    draw_images(folder);
    let job = format!(
        r#"steps = {steps}
clip_norm = 1.0

[model]
kind = "mlp"
inputs = 64
hidden = [33, 20]
classes = 10
dropout = 0.2

[data]
kind = "idx"
images = "images"
labels = "labels"

[optimizer]
kind = "sgd"
momentum = 0.9
weight_decay = 5e-4

[schedule]
peak = 0.05
warmup = 2
floor = 0.0

[batch]
micro_batch = 2
micro_batches = {micro_batches}

[commit]
granularity = "{granularity}"
head_every = 2

[checkpoint]
every = 2
"#
    );
    let path = folder.join("mlp.toml");
    fs::write(&path, job).unwrap();
    path
}

pub fn key() -> PrivateKey {
    PrivateKey::generate("trainer.example", [5; 32]).unwrap()
}

/// Begins a run with a fixed nonce and the test key, whatever thresholds its job has.
pub fn begin_run(disk: &Disk, job: &Path, out: &Path) -> Result<Run, tiebreak_run::run::RunError> {
    let (key, nonce) = (Some(&key()), [9; 16]);
    let out = Folder::on(disk, out);
    let beginning = Beginning { job, data_root: None, out, key, challenge: None, logged: false, nonce };
    begin_with_any_thresholds(&beginning)
}

/// Audits every step of a run.
pub fn audited(run: &Run, engine: &mut dyn Engine) -> (Report, Option<Verdict>) {
    let checked = checks::always(run, Some(&key().public())).unwrap();
    let plan = plan(run, &checked.checkpoints, run.job().steps, &Choice::All);
    audit(run, engine, checked, plan, None, &mut tiebreak_audit::Silent).unwrap()
}

/// Trains a run to its end on the CPU engine.
pub fn trained(job: &Path, out: &Path, cheat: Option<&str>) -> Run {
    trained_on(&mut Cpu::new(2).unwrap(), job, out, cheat)
}

/// Trains a run to its end, by a trainer with the cheat `NAME@STEP`.
pub fn trained_on(engine: &mut dyn Engine, job: &Path, out: &Path, cheat: Option<&str>) -> Run {
    let disk = Disk::default();
    let run = begin_run(&disk, job, out).unwrap();
    match cheat {
        None => train(&run, engine, Some(&key()), &mut Silent),
        Some(cheat) => {
            let cheat = &mut cheat.parse::<Cheat>().unwrap();
            train_as(&run, engine, Some(&key()), cheat, &mut Silent)
        }
    }
    .unwrap();
    run
}

/// Every file of a folder with its contents, sorted, without metrics, which hold times.
pub fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_path_buf();
                found.push((name, std::fs::read(&path).unwrap()));
            }
        }
    }
    found.retain(|(name, _)| {
        let name = name.to_string_lossy();
        !name.contains("tfevents") && name != "metrics.jsonl"
    });
    found.sort();
    found
}

/// Reports what a test leaves out, past the harness, which hides the output of passing tests.
pub fn not_tested(what: &str) {
    let _ = writeln!(std::io::stderr(), "NOT TESTED: {what}");
}

/// True if TIEBREAK_EVERY_PAIR asks for every pair (of a trainer and an auditor, or of an adapter and a variant of products).
/// Otherwise the output names the pairs that are left out.
pub fn every_pair(left_out: &str) -> bool {
    let all = std::env::var_os("TIEBREAK_EVERY_PAIR").is_some();
    if !all {
        not_tested(&format!("{left_out}: TIEBREAK_EVERY_PAIR asks for these pairs, as .ci/full does"));
    }
    all
}

/// Every usable adapter's name, after checking that those that TIEBREAK_REQUIRE_ADAPTERS names (parts, separated by commas) are
/// here. The output names a software adapter that is missing.
#[cfg(feature = "gpu")]
pub fn adapter_names() -> Vec<String> {
    let usable = tiebreak_gpu::adapters().into_iter().filter(|a| a.refused.is_none());
    let names: Vec<String> = usable.map(|a| a.name).collect();
    let mut here = names.clone();
    #[cfg(feature = "cuda")]
    here.extend(tiebreak_gpu::cuda_devices().unwrap().into_iter().map(|d| format!("cuda: {}", d.name)));
    let required = std::env::var("TIEBREAK_REQUIRE_ADAPTERS").unwrap_or_default();
    for wanted in required.split(',').filter(|w| !w.is_empty()) {
        assert!(here.iter().any(|n| n.contains(wanted)), "adapter {wanted} is required; here are {here:?}");
    }
    for usual in ["llvmpipe", "SwiftShader"] {
        if !names.iter().any(|n| n.contains(usual)) {
            not_tested(&format!("there is no adapter {usual} here"));
        }
    }
    names
}

/// Replaces the history by an edited one under one new head.
pub fn sign_again(run: &Run, edit: impl FnOnce(&mut Vec<Record>)) {
    rewrite(run, &key(), edit).unwrap();
}

pub fn sign(run: &Run, size: u64, root: Digest) {
    tiebreak_train::hostile::sign(run, &key(), size, root).unwrap();
}

pub fn step_mut(records: &mut [Record], step: usize) -> &mut StepRecord {
    match &mut records[step] {
        Record::Step { step, .. } => step,
        other => panic!("{other:?} is not a step"),
    }
}

/// Draws each element of the first micro-batch of a step alone, with the run's Philox key, and compares it with the batch.
pub fn one_by_one(data: &mut Dataset, program: &Program, (key, step): ([u32; 2], u32), batch: &MicroBatch) {
    for (tensor, bytes) in batch.tensors.iter().enumerate() {
        let words = words(bytes);
        let of_sample = words.len() / program.micro_batch as usize;
        for (i, word) in words.into_iter().enumerate() {
            let at = Place { step, batch: program.samples(), place: (i / of_sample) as u32 };
            let within = Within { tensor, element: (i % of_sample) as u64 };
            assert_eq!(data.element_of(key, at, within).unwrap(), word, "{tensor} {i}");
        }
    }
}

/// Canonical bytes as words.
pub fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// True if there is a Python. Without one these tests check nothing, unless TIEBREAK_REQUIRE_PYTHON is set, which makes that a
/// failure.
pub fn has_python() -> bool {
    let found = std::process::Command::new("python3").args(["-c", "import tomllib"]).output();
    if found.is_ok_and(|output| output.status.success()) {
        return true;
    }
    assert!(
        std::env::var_os("TIEBREAK_REQUIRE_PYTHON").is_none(),
        "python3 of version 3.11 or later is required"
    );
    not_tested("there is no python3 of version 3.11 or later, so no second implementation of the formats");
    false
}

/// The bytes that `assets/vectors/openings.py` finds in an opening of a run, or its error; `None` without Python.
pub fn opened_by_script(run: &str, opening: &str) -> Option<Result<Vec<u8>, String>> {
    if !has_python() {
        return None;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/vectors/openings.py");
    let shown = format!("{opening}.shown");
    let mut command = std::process::Command::new("python3");
    let output = command.args(["-B", script, run, opening, "--output", &shown]).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.success(), error.is_empty(), "{error}");
    assert!(error.is_empty() || error.starts_with("DIFFERS: "), "{error}");
    Some(if error.is_empty() { Ok(fs::read(shown).unwrap()) } else { Err(error) })
}

/// The exit code and output of `assets/vectors/verdict.py` on a verdict, and its errors.
pub fn verdict_script(folder: &Path, verdict: &[u8], program: &Path) -> (Option<i32>, String, String) {
    let file = folder.join("verdict.json");
    std::fs::write(&file, verdict).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/vectors/verdict.py");
    let mut command = std::process::Command::new("python3");
    let output = command.arg("-B").arg(script).arg(&file).arg("--program").arg(program).output().unwrap();
    let [out, error] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.code(), out, error)
}
