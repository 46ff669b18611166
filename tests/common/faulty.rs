//! Trainers whose device computes wrongly for a while, and who go on with another one.

use std::path::Path;

use tiebreak_engine::Engine;
use tiebreak_engine::cpu::Cpu;
use tiebreak_record::commit::record::StepRecord;
use tiebreak_run::run::Folder;
use tiebreak_run::run::dir::Run;
use tiebreak_train::{Beginning, Progress, Silent, TrainError, begin_with_any_thresholds, train};

use super::key;
use super::planted::{Fault, Planted};

/// Asks to stop after a step.
struct StopAt {
    step: u32,
    done: u32,
}

impl Progress for StopAt {
    fn step(&mut self, record: &StepRecord, _: u32) {
        self.done = record.step;
    }

    fn is_asked_to_stop(&mut self) -> bool {
        self.done >= self.step
    }
}

/// Trains a run up to a step, with a checkpoint there.
pub fn train_until(run: &Run, engine: &mut dyn Engine, step: u32) {
    let stopped = train(run, engine, Some(&key()), &mut StopAt { step, done: 0 });
    assert!(matches!(stopped, Err(TrainError::Asked { step: at }) if at == step), "{stopped:?}");
}

/// A device whose GELU is wrong in one bit.
pub fn faulty() -> Planted<Cpu> {
    let fault = Fault::Output { operator: "block0.gelu", primitive: "gelu.v1", word: 7, bit: 20 };
    Planted { engine: Cpu::new(2).unwrap(), fault, computes_sums: false }
}

/// A run of [`super::gpt_job`], whose trainer does not know that step `step` was computed by a faulty device.
pub fn faulty_at(job: &Path, out: &Path, nonce: [u8; 16], step: u32) -> Run {
    let (key, out) = (&key(), Folder::at(out));
    let beginning =
        Beginning { job, data_root: None, out, key: Some(key), challenge: None, logged: false, nonce };
    let run = begin_with_any_thresholds(&beginning).unwrap();
    let mut right = Cpu::new(2).unwrap();
    train_until(&run, &mut right, step - 1);
    train_until(&run, &mut faulty(), step);
    train(&run, &mut right, Some(key), &mut Silent).unwrap();
    run
}
