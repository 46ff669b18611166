//! Whole training steps against golden vectors that a script made from the contract's text (`assets/vectors/steps.py`, which
//! shares no code with us), and against a GPT that is written out by hand (`examples/reference_step.rs`). The tests compare every
//! tensor of the state after each step, and the gradients of the first, on the scalar reference and the CPU engine.

#[path = "../../examples/reference_step.rs"]
#[allow(dead_code)]
mod reference_step;

use std::collections::BTreeMap;
use std::sync::Arc;

use reference_step::{Float, Gelu, Gpt, State, Training};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tiebreak_contract::arith::words::bytes_of;
use tiebreak_contract::arith::{philox, tree};
use tiebreak_contract::program::init;
use tiebreak_contract::program::models::{self, Model};
use tiebreak_contract::program::operators::LossRule;
use tiebreak_contract::program::optimizer::{Decay, Optimizer};
use tiebreak_contract::program::products::ProductTable;
use tiebreak_contract::program::schedule::{Schedule, bias_correction};
use tiebreak_contract::program::step::MicroBatch;
use tiebreak_engine::Engine;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::reference::Reference;
use tiebreak_engine::session::{Session, StepScalars, Unobserved};
use tiebreak_job::{Job, ProgramSource};

#[derive(Deserialize)]
struct Vectors {
    learning_rates: Vec<(String, u32, u32, u32)>,
    corrections: Vec<(String, u32, u32)>,
    decimals: Vec<(String, u32)>,
    runs: Vec<Run>,
}

#[derive(Deserialize)]
struct Run {
    name: String,
    job: String,
    key: [u32; 2],
    steps: Vec<Step>,
}

/// A step's scalars as patterns, its micro-batches, and hashes by tensor.
#[derive(Deserialize)]
struct Step {
    learning_rate: u32,
    loss: u32,
    norm: u32,
    clip: u32,
    batches: Vec<Vec<Vec<u32>>>,
    state: BTreeMap<String, String>,
    gradients: Option<BTreeMap<String, String>>,
}

fn vectors() -> Vectors {
    serde_json::from_str(include_str!("../../assets/vectors/steps.json")).expect("the vectors are JSON")
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The tensors of each micro-batch of a step.
type Batch = Vec<Vec<Vec<u32>>>;

/// A step's scalars and the state after it.
struct After {
    loss_norm_clip: [u32; 3],
    state: BTreeMap<String, Vec<u8>>,
}

/// Receives the sums of gradients: step, name and bytes.
type Gradients<'a> = &'a mut dyn FnMut(u32, &str, &[u8]);

fn train(
    engine: &mut dyn Engine,
    job: &Job,
    key: [u32; 2],
    batches: &[Batch],
    seen: Gradients,
) -> Vec<After> {
    let program = Arc::new(job.program(None).unwrap());
    let (names, gradients) = (program.state(), program.gradients());
    let mut session = Session::new(engine, program.clone()).unwrap();
    let state: Vec<Vec<u8>> = init::state(&program, key).iter().map(|words| bytes_of(words)).collect();
    session.load(&state).unwrap();
    let step = |(number, batch): (u32, &Batch)| {
        let learning_rate = job.schedule.learning_rate(number, job.steps);
        let scalars = StepScalars { step: number, seed: key, learning_rate };
        let tensors = |micro: &Vec<Vec<u32>>| micro.iter().map(|words| bytes_of(words)).collect();
        let batch: Vec<_> = batch.iter().map(|micro| MicroBatch { tensors: tensors(micro) }).collect();
        let order = tree::operations(batch.len() as u32);
        let sums = session.partial_sums(scalars, order, &batch, &mut Unobserved, |_, _, _| Ok(()));
        let total = sums.unwrap().pop().unwrap();
        session.visit_gradients(&total, |i, bytes| seen(number, &gradients[i].name, bytes)).unwrap();
        let outcome = session.update(scalars, &total, &mut Unobserved).unwrap();
        let state = names.iter().map(|tensor| tensor.name.clone()).zip(session.download_state().unwrap());
        After { loss_norm_clip: [outcome.loss, outcome.norm, outcome.clip], state: state.collect() }
    };
    (1..).zip(batches).map(step).collect()
}

/// Checks that steps equal those of the vectors.
fn compare(steps: &[After], run: &Run, place: &str) {
    assert_eq!(steps.len(), run.steps.len(), "{place}");
    for (number, (after, step)) in (1..).zip(steps.iter().zip(&run.steps)) {
        let scalars = [step.loss, step.norm, step.clip];
        assert_eq!(after.loss_norm_clip, scalars, "loss, norm and clip of step {number}, {place}");
        let state = after.state.iter().map(|(name, bytes)| (name.clone(), sha256(bytes)));
        assert_eq!(state.collect::<BTreeMap<_, _>>(), step.state, "the state after step {number}, {place}");
    }
}

fn train_as_the_text(engine: &mut dyn Engine, run: &Run) {
    let place = format!("{}, {}", run.name, engine.describe());
    let job = Job::parse(&run.name, &run.job).unwrap();
    for (number, step) in (1..).zip(&run.steps) {
        let rate = job.schedule.learning_rate(number, job.steps);
        assert_eq!(rate, step.learning_rate, "the learning rate of step {number}, {place}");
    }
    let mut gradients: BTreeMap<u32, BTreeMap<String, String>> = BTreeMap::new();
    let batches: Vec<Batch> = run.steps.iter().map(|step| step.batches.clone()).collect();
    let steps = train(engine, &job, run.key, &batches, &mut |step, name, bytes| {
        if name != "loss" {
            gradients.entry(step).or_default().insert(name.into(), sha256(bytes));
        }
    });
    for (number, step) in (1..).zip(&run.steps) {
        if let Some(wanted) = &step.gradients {
            assert_eq!(&gradients[&number], wanted, "sums of the gradients of step {number}, {place}");
        }
    }
    compare(&steps, run, &place);
}

#[test]
fn steps_are_those_of_the_text() {
    let vectors = vectors();
    assert!(vectors.runs.len() >= 5 && vectors.runs.iter().all(|run| run.steps.len() == 3));
    for run in &vectors.runs {
        train_as_the_text(&mut Cpu::new(2).unwrap(), run);
        train_as_the_text(&mut Reference, run);
    }
}

/// A job's training for the hand-written reference; `None` for a job that the reference does not support.
fn by_hand(job: &Job, key: [u32; 2]) -> Option<Training> {
    let ProgramSource::Model(job) = &job.source else { return None };
    let (Model::Gpt(gpt), Optimizer::Adamw { beta1, beta2, epsilon, weight_decay }) =
        (&job.model, &job.optimizer.optimizer)
    else {
        return None;
    };
    let [vocabulary, context, layers, heads, width] =
        [gpt.vocabulary, gpt.context, gpt.layers, gpt.heads, gpt.width].map(|size| size as usize);
    let form = match gpt.gelu {
        models::Gelu::Tanh => Gelu::Tanh,
        models::Gelu::Erf => Gelu::Erf,
    };
    let &models::Gpt { dropout, tied, init_std, norm_epsilon, .. } = gpt;
    let sizes =
        Gpt { vocabulary, context, layers, heads, width, gelu: form, dropout, tied, init_std, norm_epsilon };
    let plain = gpt.lora.is_none()
        && job.products == ProductTable::preset()
        && job.loss == LossRule::default()
        && (job.optimizer.decay, job.optimizer.groups.len(), job.frozen.len()) == (Decay::Decoupled, 0, 0);
    plain.then_some(Training {
        gpt: sizes,
        key,
        clip_norm: job.clip_norm.unwrap_or(f32::INFINITY),
        betas: [*beta1, *beta2],
        epsilon: *epsilon,
        weight_decay: *weight_decay,
    })
}

/// Canonical bytes by a program's names for the tensors of a state.
fn tensors_of(state: &State) -> BTreeMap<String, Vec<u8>> {
    let slots = [("param", &state.parameters), ("m", &state.m), ("v", &state.v)];
    let bytes = |x: &reference_step::Matrix| bytes_of(&x.elements.iter().map(|x| x.0).collect::<Vec<_>>());
    let of_slot = |(slot, tensors): (&str, &Vec<reference_step::Matrix>)| -> Vec<(String, Vec<u8>)> {
        state.names.iter().zip(tensors).map(|(name, x)| (format!("{slot}/{name}"), bytes(x))).collect()
    };
    slots.into_iter().flat_map(of_slot).collect()
}

/// The hand-written reference's steps on these batches.
fn train_by_hand(job: &Job, training: &Training, batches: &[Batch]) -> Vec<After> {
    let mut state = State::first(&training.gpt, training.key);
    let step = |(number, batch): (u32, &Batch)| {
        let micro = |micro: &Vec<Vec<u32>>| {
            <reference_step::MicroBatch>::try_from(micro.clone()).expect("tokens and labels")
        };
        let batch: Vec<_> = batch.iter().map(micro).collect();
        let rate = Float(job.schedule.learning_rate(number, job.steps));
        let loss_norm_clip = training.step(&mut state, number, rate, &batch).map(|x| x.0);
        After { loss_norm_clip, state: tensors_of(&state) }
    };
    (1..).zip(batches).map(step).collect()
}

/// The job of the example.
const EXAMPLE: &str = r#"steps = 3
clip_norm = 1.0
model = { kind = "gpt", vocabulary = 128, context = 16, layers = 2, heads = 2, width = 16, dropout = 0.1 }
data = { kind = "bytes", path = "none" }
optimizer = { kind = "adamw", beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1 }
schedule = { peak = 1e-2 }
batch = { micro_batch = 1, micro_batches = 4 }
"#;

/// Other jobs, each as replacements for the example's lines of clip, model, weight decay, schedule and batch.
const OTHERS: [[&str; 5]; 5] = [
    [
        "",
        "vocabulary = 7, context = 4, layers = 1, heads = 1, width = 3, gelu = \"erf\", tied = false, init_std = 0.3",
        "0.0",
        "peak = 0.03, floor = 0.01",
        "micro_batch = 1, micro_batches = 3",
    ],
    [
        "clip_norm = 0.05",
        "vocabulary = 11, context = 5, layers = 3, heads = 3, width = 9, dropout = 0.5, tied = false, norm_epsilon = 1e-3",
        "0.3",
        "peak = 0.05, warmup = 2, floor = 1e-3",
        "micro_batch = 2, micro_batches = 5",
    ],
    // No tree has more than one term along the channels or the positions.
    [
        "clip_norm = 0.5",
        "vocabulary = 1, context = 1, layers = 1, heads = 1, width = 1, dropout = 0.2",
        "0.1",
        "peak = 0.1",
        "micro_batch = 3",
    ],
    // More rows than a leaf of a sum over rows takes, so engines add partial sums.
    [
        "clip_norm = 1e9",
        "vocabulary = 3, context = 70, layers = 1, heads = 2, width = 66, gelu = \"erf\", init_std = 2.0",
        "0.1",
        "peak = 0.1",
        "micro_batch = 1, micro_batches = 2",
    ],
    // Weights so large that values leave the range of binary32: infinities and NaNs are the same.
    [
        "clip_norm = 1.0",
        "vocabulary = 5, context = 3, layers = 2, heads = 1, width = 4, init_std = 1e19",
        "0.1",
        "peak = 0.1",
        "micro_batch = 2, micro_batches = 2",
    ],
];

fn other(parts: [&str; 5]) -> String {
    let [clip, model, decay, schedule, batch] = parts;
    format!(
        r#"steps = 3
{clip}
model = {{ kind = "gpt", {model} }}
data = {{ kind = "bytes", path = "none" }}
optimizer = {{ kind = "adamw", beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = {decay} }}
schedule = {{ {schedule} }}
batch = {{ {batch} }}
"#
    )
}

/// Tokens and labels of three steps, drawn by Philox.
fn drawn(job: &Job, key: [u32; 2]) -> Vec<Batch> {
    let ProgramSource::Model(job) = &job.source else { panic!("the job has a model") };
    let tensors = job.model.batch(job.batch.micro_batch);
    let token = |step, micro, port, i| philox::philox4x32_10(key, [i, port, micro, step])[0];
    let micro = |step, micro| {
        let of_port = |(port, tensor): (u32, &models::BatchTensor)| {
            let count = tensor.shape.iter().product::<u32>();
            (0..count).map(|i| token(step, micro, port, i) % tensor.below).collect()
        };
        (0..).zip(&tensors).map(of_port).collect()
    };
    (0..3).map(|step| (0..job.batch.micro_batches).map(|m| micro(step, m)).collect()).collect()
}

#[test]
fn engines_have_the_bits_of_the_reference_that_one_reads() {
    let (training, rate, batches) = reference_step::example();
    let job = Job::parse("example", EXAMPLE).unwrap();
    assert_eq!(by_hand(&job, training.key), Some(training.clone()));
    assert_eq!(job.schedule.learning_rate(3, job.steps), rate.0);
    let batches: Vec<Vec<_>> =
        batches.into_iter().map(|step| step.into_iter().map(Vec::from).collect()).collect();
    let mut cases = vec![("example".to_string(), job, training, batches)];
    for text in OTHERS.map(other) {
        let (job, key) = (Job::parse("other", &text).unwrap(), [17, 4]);
        let (training, batches) = (by_hand(&job, key).unwrap(), drawn(&job, key));
        cases.push((text, job, training, batches));
    }
    for (name, job, training, batches) in cases {
        let wanted = train_by_hand(&job, &training, &batches);
        let engines: [&mut dyn Engine; 2] = [&mut Cpu::new(2).unwrap(), &mut Reference];
        for engine in engines {
            let description = engine.describe();
            let steps = train(engine, &job, training.key, &batches, &mut |_, _, _| ());
            assert_eq!(steps.len(), wanted.len());
            for (step, (have, wanted)) in (1..).zip(steps.iter().zip(&wanted)) {
                let place = format!("step {step} on {description}, {name}");
                assert_eq!(have.loss_norm_clip, wanted.loss_norm_clip, "loss, norm and clip of {place}");
                assert!(have.state.keys().eq(wanted.state.keys()), "names of tensors after {place}");
                for (tensor, bytes) in &wanted.state {
                    assert!(have.state[tensor] == *bytes, "{tensor} after {place}");
                }
            }
        }
    }
}

#[test]
fn the_reference_that_one_reads_has_the_bits_of_the_text() {
    let mut compared = 0;
    for run in vectors().runs {
        let job = Job::parse(&run.name, &run.job).unwrap();
        let Some(training) = by_hand(&job, run.key) else { continue };
        let batches: Vec<Batch> = run.steps.iter().map(|step| step.batches.clone()).collect();
        compare(&train_by_hand(&job, &training, &batches), &run, &run.name);
        compared += 1;
    }
    assert!(compared > 0, "no run of the vectors is one that the reference can train");
}

/// A number in the form of job files.
#[derive(Deserialize)]
struct Number {
    x: f32,
}

fn number(text: &str) -> f32 {
    toml::from_str::<Number>(&format!("x = {text}")).expect("the vectors hold numbers").x
}

#[test]
fn host_scalars_are_those_of_the_text() {
    let vectors = vectors();
    for (text, pattern) in vectors.decimals {
        assert_eq!(number(&text).to_bits(), pattern, "{text}");
    }
    for (table, steps, step, pattern) in vectors.learning_rates {
        let schedule: Schedule = toml::from_str(&table).unwrap();
        assert_eq!(schedule.learning_rate(step, steps), pattern, "step {step} of {steps}, {table}");
    }
    for (beta, step, pattern) in vectors.corrections {
        assert_eq!(bias_correction(number(&beta), step), pattern, "1 - {beta}^{step}");
    }
}
