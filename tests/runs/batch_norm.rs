//! Runs of networks with batch normalisation: running averages are buffers of the state, computed from moments that are pooled
//! over micro-batches.

use std::fs;
use std::path::Path;

use crate::common::{audited, batch_norm_job, begin_run, key, trained};
use tiebreak_audit::Outcome;
use tiebreak_audit::ground::Ground;
use tiebreak_contract::program::graph::Node;
use tiebreak_contract::program::phase::Phase;
use tiebreak_contract::program::step::MicroBatch;
use tiebreak_dispute::verdict::{Claim, Ruling, Verdict};
use tiebreak_engine::Engine;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::reference::Reference;
use tiebreak_engine::session::{Session, StepScalars};
use tiebreak_job::data::Dataset;
use tiebreak_run::run::arrays::{self, Array, FloatType};
use tiebreak_run::run::checkpoint;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::Disk;
use tiebreak_run::step::{CommittedStep, RunStep, StepRequest};
use tiebreak_train::conduct::Conduct;
use tiebreak_train::ranks::plan::ShardPlan;
use tiebreak_train::{Silent, TrainError, train_as};

fn state(run: &Run, step: u32) -> Vec<Vec<u8>> {
    checkpoint::read(&run.layout.checkpoint(step), &run.program().state()).unwrap()
}

/// The index ranges of parameters and of buffers in the state.
fn parts(run: &Run) -> [std::ops::Range<usize>; 2] {
    let (parameters, buffers) = (run.program().parameters.len(), run.program().buffers.len());
    [0..parameters, parameters..parameters + buffers]
}

#[test]
fn an_honest_run_has_running_averages_and_matches() {
    let folder = tempfile::tempdir().unwrap();
    for micro_batches in [1, 3] {
        let job = batch_norm_job(folder.path(), "operator", micro_batches);
        let run = trained(&job, &folder.path().join(format!("run-{micro_batches}")), None);
        let (table, states) = (run.program().state(), [0, 1, 4].map(|step| state(&run, step)));
        let [_, buffers] = parts(&run);
        assert_eq!(buffers.len(), 2 * 5, "two averages of each of five normalisations");
        for i in buffers {
            let first = if table[i].name.ends_with("running_mean") { 0f32 } else { 1.0 };
            assert!(states[0][i].chunks(4).all(|word| word == first.to_le_bytes()), "{}", table[i].name);
            assert!(states[0][i] != states[1][i] && states[1][i] != states[2][i], "{}", table[i].name);
        }
        for engine in [&mut Cpu::new(2).unwrap() as &mut dyn Engine, &mut Reference] {
            let (report, verdict) = audited(&run, engine);
            assert_eq!((report.outcome, verdict), (Outcome::Matches, None));
        }
    }
}

#[test]
fn whoever_changes_a_running_average_after_the_step_is_convicted() {
    let folder = tempfile::tempdir().unwrap();
    let job = batch_norm_job(folder.path(), "operator", 3);
    let run = trained(&job, &folder.path().join("run"), Some("buffer@3"));
    let (report, verdict) = audited(&run, &mut Cpu::new(2).unwrap());
    assert!(matches!(report.outcome, Outcome::Diverges { step: 3, .. }), "{:?}", report.outcome);
    let verdict = Verdict::from_bytes(&verdict.unwrap().to_bytes()).unwrap();
    assert!(matches!(verdict.claim, Claim::Binding { .. }), "{}", verdict.claim.kind());
    let outcome = verdict.check(Some(&key().public())).unwrap();
    assert!(matches!(outcome, Ruling::Convicts(finding) if finding.step == 3));

    // Without traces the audit names the tensor.
    let job = batch_norm_job(folder.path(), "microbatch", 3);
    let run = trained(&job, &folder.path().join("untraced"), Some("buffer@3"));
    let (report, _) = audited(&run, &mut Cpu::new(2).unwrap());
    let Outcome::Diverges { step: 3, what: Ground::Step { tensors, .. } } = &report.outcome else {
        panic!("{:?}", report.outcome)
    };
    assert_eq!(tensors[0], "buffer/stage0.block0.norm0.running_mean");
}

/// Changes the first element of the output of the first node of this name in one phase of the second step.
pub(crate) struct Tamperer(pub Phase, pub &'static str);

impl Conduct for Tamperer {
    fn step(
        &mut self,
        run: &Run,
        session: &mut Session,
        scalars: StepScalars,
        batch: Vec<MicroBatch>,
        _: &mut Dataset,
        run_step: &mut RunStep,
    ) -> Result<CommittedStep, TrainError> {
        let mut done = scalars.step != 2;
        let mut change = |phase: Phase, _: usize, node: &Node, bytes: &[u8]| {
            if done || phase != self.0 || node.primitive.name() != self.1 {
                return None;
            }
            done = true;
            let mut changed = bytes.to_vec();
            changed[2] ^= 0x10;
            Some(changed)
        };
        let request = StepRequest::new(&run.computation, scalars, &batch).tampered(Some(&mut change));
        Ok(run_step(session, request)?)
    }
}

#[test]
fn whoever_changes_moments_or_averages_is_convicted_by_an_element() {
    let folder = tempfile::tempdir().unwrap();
    let job = batch_norm_job(folder.path(), "operator", 3);
    for (number, (phase, name)) in [
        (Phase::Micro(2), "batch_norm_count.v1"),
        (Phase::Micro(1), "batch_norm_rstd.v1"),
        (Phase::Accumulate(0), "pooled_mean.v1"),
        (Phase::Accumulate(1), "pooled_m2.v1"),
        (Phase::Update, "running_var.v1"),
    ]
    .into_iter()
    .enumerate()
    {
        let disk = Disk::default();
        let run = begin_run(&disk, &job, &folder.path().join(number.to_string())).unwrap();
        let mut conduct = Tamperer(phase, name);
        train_as(&run, &mut Cpu::new(2).unwrap(), Some(&key()), &mut conduct, &mut Silent).unwrap();
        let (report, verdict) = audited(&run, &mut Cpu::new(2).unwrap());
        assert!(matches!(report.outcome, Outcome::Diverges { step: 2, .. }), "{:?}", report.outcome);
        let verdict = Verdict::from_bytes(&verdict.unwrap().to_bytes()).unwrap();
        assert!(matches!(verdict.claim, Claim::Tile(_)), "{name}: {}", verdict.claim.kind());
        let outcome = verdict.check(Some(&key().public())).unwrap();
        assert!(matches!(outcome, Ruling::Convicts(finding) if finding.step == 2), "{name}");
    }
}

/// Writes tensors of a state under their names.
fn write_weights(path: &Path, run: &Run, state: &[Vec<u8>], places: impl Iterator<Item = usize>) {
    let table = run.program().state();
    let array = |i: usize| Array { name: table[i].name.clone(), ty: table[i].ty(), bytes: state[i].clone() };
    arrays::write(path, &places.map(array).collect::<Vec<_>>(), FloatType::F32).unwrap();
}

#[test]
fn a_run_begins_from_the_buffers_of_its_weights_or_from_those_of_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let job = batch_norm_job(folder.path(), "operator", 2);
    let text = fs::read_to_string(&job).unwrap();
    let first = trained(&job, &folder.path().join("first"), None);
    let [parameters, buffers] = parts(&first);
    let (initial, last) = (state(&first, 0), state(&first, 4));
    for with_buffers in [true, false] {
        let name = format!("weights-{with_buffers}");
        let places = parameters.clone().chain(buffers.clone().filter(|_| with_buffers));
        write_weights(&folder.path().join(format!("{name}.safetensors")), &first, &last, places);
        fs::write(&job, format!("{text}\n[init]\nweights = [\"{name}.safetensors\"]\n")).unwrap();
        let run = trained(&job, &folder.path().join(name), None);
        let begun = state(&run, 0);
        assert_eq!(begun[parameters.clone()], last[parameters.clone()]);
        assert_eq!(begun[buffers.clone()], if with_buffers { &last } else { &initial }[buffers.clone()]);
        let (report, verdict) = audited(&run, &mut Cpu::new(2).unwrap());
        assert_eq!((report.outcome, verdict), (Outcome::Matches, None));
    }
}

#[test]
fn several_ranks_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let job = batch_norm_job(folder.path(), "operator", 3);
    let text = fs::read_to_string(&job).unwrap();
    let program = tiebreak_job::Job::parse("job", &text).unwrap().program(None).unwrap();
    assert!(ShardPlan::new(&program, 1).is_ok());
    let error = ShardPlan::new(&program, 2).err().unwrap().to_string();
    assert!(error.contains("train it with one rank"), "{error}");
}
