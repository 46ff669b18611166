//! Whole training steps against golden vectors that a script made from the contract's text (`assets/vectors/steps.py`, which
//! shares no code with us): every tensor of the state after each step, and the gradients of the first, on the scalar reference and
//! the CPU engine.

#![cfg(feature = "engine")]

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use sha2::{Digest, Sha256};
use tiebreak::arith::tree;
use tiebreak::arith::words::bytes_of;
use tiebreak::engine::Engine;
use tiebreak::engine::cpu::Cpu;
use tiebreak::engine::reference::Reference;
use tiebreak::engine::session::{Session, StepScalars, Unobserved};
use tiebreak::job::Job;
use tiebreak::program::init;
use tiebreak::program::schedule::{Schedule, bias_correction};
use tiebreak::program::step::MicroBatch;

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
    serde_json::from_str(include_str!("../assets/vectors/steps.json")).expect("the vectors are JSON")
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn train(engine: &mut dyn Engine, run: &Run) {
    let name = format!("{}, {}", run.name, engine.describe());
    let job = Job::parse(&run.name, &run.job).unwrap();
    let program = Arc::new(job.program(None).unwrap());
    let mut session = Session::new(engine, program.clone()).unwrap();
    let state: Vec<Vec<u8>> = init::state(&program, run.key).iter().map(|words| bytes_of(words)).collect();
    session.load(&state).unwrap();
    for (number, step) in (1..).zip(&run.steps) {
        let learning_rate = job.schedule.learning_rate(number, job.steps);
        assert_eq!(learning_rate, step.learning_rate, "the learning rate of step {number}, {name}");
        let scalars = StepScalars { step: number, seed: run.key, learning_rate };
        let tensors = |micro: &Vec<Vec<u32>>| micro.iter().map(|words| bytes_of(words)).collect();
        let batches: Vec<MicroBatch> =
            step.batches.iter().map(|micro| MicroBatch { tensors: tensors(micro) }).collect();
        let order = tree::operations(batches.len() as u32);
        let sums = session.partial_sums(scalars, order, &batches, &mut Unobserved, |_, _, _| Ok(()));
        let total = sums.unwrap().pop().unwrap();
        if let Some(wanted) = &step.gradients {
            let names = program.gradients();
            let mut gradients = BTreeMap::new();
            session
                .visit_gradients(&total, |i, bytes| {
                    gradients.insert(names[i].name.clone(), sha256(bytes));
                })
                .unwrap();
            gradients.remove("loss");
            assert_eq!(&gradients, wanted, "sums of the gradients of step {number}, {name}");
        }
        let outcome = session.update(scalars, &total, &mut Unobserved).unwrap();
        let scalars = [outcome.loss, outcome.norm, outcome.clip];
        assert_eq!(
            scalars,
            [step.loss, step.norm, step.clip],
            "loss, norm and clip of step {number}, {name}"
        );
        let names = program.state();
        let state = session.download_state().unwrap();
        let state: BTreeMap<String, String> =
            names.into_iter().zip(state).map(|(tensor, bytes)| (tensor.name, sha256(&bytes))).collect();
        assert_eq!(state, step.state, "the state after step {number}, {name}");
    }
}

#[test]
fn steps_are_those_of_the_text() {
    let vectors = vectors();
    assert!(vectors.runs.len() >= 5 && vectors.runs.iter().all(|run| run.steps.len() == 3));
    for run in &vectors.runs {
        train(&mut Cpu::new(2).unwrap(), run);
        train(&mut Reference, run);
    }
}

/// A number as job files have them.
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
