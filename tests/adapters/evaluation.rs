//! Evaluations and inference on every engine and adapter: the same loss, hits and losses, in batches of any size; the same
//! logits over caches, in chunks and batches of any size.

use std::ops::ControlFlow;
use std::path::Path;

use tiebreak_audit::plan::{Choice, plan};
use tiebreak_audit::{Outcome, Silent, audit, checks};
use tiebreak_engine::Engine;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::reference::Reference;
use tiebreak_run::evaluate::{Evaluation, Evaluator};
use tiebreak_run::predict::{Inputs, Predictor};
use tiebreak_run::run::checkpoint;
use tiebreak_run::run::dir::Run;

use crate::cached_decoders::{decoders, network};
use crate::common::encoders::{BERT, images_job, sequences_job};
use crate::common::{batch_norm_job, gpt_job, key, masked_job, trained};
use crate::gpus::{AnyEngine, at_once, gpus};
use crate::together::{all_decoders, alone, together};

/// An evaluation of a run's model over its own data.
fn evaluated(run: &Run, engine: &mut dyn Engine, batch: u32) -> Evaluation {
    let table = run.program().state();
    let table = &table[..run.program().released()];
    let model = checkpoint::read(&run.layout.model(), table).unwrap();
    let tensors = table.iter().zip(&model).map(|(t, bytes)| engine.upload(&t.ty(), bytes).unwrap());
    let tensors: Vec<_> = tensors.collect();
    let evaluator = Evaluator::new(engine, run.job().model().unwrap(), batch).unwrap();
    let mut dataset = run.dataset().unwrap();
    evaluator.run(engine, &tensors, &mut dataset, Some(10), &mut |_, _| ControlFlow::Continue(())).unwrap()
}

#[test]
fn evaluations_have_the_same_bits_on_every_engine() {
    let folder = tempfile::tempdir().unwrap();
    let (mut cpu, mut gpus) = (Cpu::new(2).unwrap(), gpus());
    let mut engines: Vec<&mut AnyEngine> = vec![&mut cpu];
    engines.extend(gpus.engines());
    let jobs = [batch_norm_job(folder.path(), "step", 2), gpt_job(folder.path(), "step", "")];
    for (number, job) in jobs.iter().enumerate() {
        let run = trained(job, &folder.path().join(format!("run-{number}")), None);
        let expected = evaluated(&run, &mut Reference, 4);
        assert_eq!((expected.samples, expected.labels), (10, [10, 120][number]));
        at_once(&mut engines, |engine| {
            for batch in [3, 10] {
                let have = evaluated(&run, engine, batch);
                assert_eq!(have, expected, "{} on {}", job.display(), engine.describe());
            }
        });
    }
}

/// Samples of a run's own data, and the bits of their logits.
fn predicted(run: &Run, engine: &mut dyn Engine, batch: u32, numbers: &[u64]) -> Vec<(u64, Vec<u32>)> {
    let table = run.program().state();
    let table = &table[..run.program().released()];
    let model = checkpoint::read(&run.layout.model(), table).unwrap();
    let tensors = table.iter().zip(&model).map(|(t, bytes)| engine.upload(&t.ty(), bytes).unwrap());
    let tensors: Vec<_> = tensors.collect();
    let predictor = Predictor::new(engine, run.job().model().unwrap(), batch).unwrap();
    let mut inputs = Inputs::Data(Box::new(run.dataset().unwrap()));
    let mut found = Vec::new();
    let end = predictor.run(engine, &tensors, &mut inputs, numbers, |sample| {
        found.push((sample.number, sample.logits));
        None::<()>
    });
    assert!(end.unwrap().is_none());
    found
}

#[test]
fn evaluations_of_single_samples_have_the_same_bits_on_every_engine() {
    let folder = tempfile::tempdir().unwrap();
    let mut gpus = gpus();
    let mut engines = gpus.engines();
    let jobs = [batch_norm_job(folder.path(), "step", 2), gpt_job(folder.path(), "step", "")];
    for (number, job) in jobs.iter().enumerate() {
        let run = trained(job, &folder.path().join(format!("run-{number}")), None);
        let all: Vec<u64> = (0..10).collect();
        let expected = predicted(&run, &mut Reference, 1, &all);
        at_once(&mut engines, |engine| {
            for (batch, numbers) in [(10, &all[..]), (3, &[9, 0, 4, 4])] {
                let have = predicted(&run, engine, batch, numbers);
                let due: Vec<_> = numbers.iter().map(|number| expected[*number as usize].clone()).collect();
                assert_eq!(have, due, "{} on {}", job.display(), engine.describe());
            }
        });
    }
}

/// A run whose mask leaves out targets, and whole micro-batches, in each profile.
#[test]
fn masked_runs_are_audited_on_every_engine() {
    let folder = tempfile::tempdir().unwrap();
    let (mut cpu, mut gpus) = (Cpu::new(2).unwrap(), gpus());
    let mut engines: Vec<&mut AnyEngine> = vec![&mut cpu];
    engines.extend(gpus.engines());
    for (name, extra) in [("exact", ""), ("logged", "[rounding]\n")] {
        let job = masked_job(folder.path(), "operator", "separate", extra);
        let run = trained(&job, &folder.path().join(name), None);
        let expected = evaluated(&run, &mut Reference, 4);
        assert!(expected.labels < 80, "some of 120 labels do not count: {}", expected.labels);
        at_once(&mut engines, |engine| {
            assert_eq!(evaluated(&run, engine, 3), expected, "{name} on {}", engine.describe());
            matches(&run, engine, Choice::Range(7, 8));
        });
    }
}

/// Audits these steps of a run, which have to be replayed and to match.
fn matches(run: &Run, engine: &mut dyn Engine, choice: Choice) {
    let checked = checks::always(run, Some(&key().public())).unwrap();
    let plan = plan(run, &checked.checkpoints, run.job().steps, &choice);
    assert!(plan.steps() > 0);
    let (report, verdict) = audit(run, engine, checked, plan, None, &mut Silent).unwrap();
    let found = (report.outcome, verdict);
    assert_eq!(found, (Outcome::Matches, None), "{} on {}", run.layout.root.display(), engine.describe());
}

/// Encoders that classify: of sequences with padding, and of images, with every kind of dropout.
#[test]
fn encoders_are_audited_on_every_engine() {
    let folder = tempfile::tempdir().unwrap();
    let mut gpus = gpus();
    let mut engines = gpus.engines();
    let run = |name: &str, job: &Path| trained(job, &folder.path().join(name), None);
    let runs = [run("bert", &sequences_job(folder.path(), BERT)), run("vit", &images_job(folder.path()))];
    for run in &runs {
        at_once(&mut engines, |engine| matches(run, engine, Choice::Range(1, 1)));
    }
}

#[test]
fn inference_over_caches_has_the_same_bits_on_every_engine() {
    let mut gpus = gpus();
    let mut engines = gpus.engines();
    for decoder in decoders().into_iter().chain([network()]) {
        let expected = decoder.expected(&mut Reference);
        at_once(&mut engines, |engine| decoder.check(engine, &expected, &[2]));
    }
}

/// Answers that are computed together, of which some join and leave midway, are those that the CPU gives alone.
#[test]
fn answers_together_are_those_alone_on_every_engine() {
    let mut gpus = gpus();
    let mut engines = gpus.chosen(false);
    for decoder in all_decoders() {
        let alone = alone(&decoder, &mut Cpu::new(1).unwrap());
        at_once(&mut engines, |engine| together(&decoder, engine, &alone, 5));
    }
}
