//! Runs whose trainer changes a frozen parameter between two steps: no replay may begin behind the change.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::common::{gpt_job, key, trained};
use tiebreak_audit::checks;
use tiebreak_audit::plan::{Choice, plan};
use tiebreak_audit::{Outcome, Silent, audit};
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::session::Session;
use tiebreak_engine::{Engine, EngineError, Tensor};
use tiebreak_record::commit::record::Record;
use tiebreak_record::commit::state::tensor_digests;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::{RunError, checkpoint, names, state_files, states, transcript};
use tiebreak_run::step;

/// A job whose first parameter is frozen, with these lines at its end.
fn job(folder: &Path, name: &str, end: &str) -> PathBuf {
    let text = fs::read_to_string(gpt_job(folder, "operator", "")).unwrap();
    let path = folder.join(name);
    fs::write(&path, format!("frozen = [\"token_embedding\"]\n{text}\n{end}")).unwrap();
    path
}

/// The outcome of an audit of step 6 alone.
fn of_step_6(run: &Run) -> (Vec<String>, Outcome) {
    let run = Run::open(&run.layout.root).unwrap();
    let checked = checks::always(&run, Some(&key().public())).unwrap();
    let damaged = checked.damaged.iter().map(ToString::to_string).collect();
    let plan = plan(&run, &checked.checkpoints, run.job().steps, &Choice::Range(6, 6));
    let (report, _) = audit(&run, &mut Cpu::new(2).unwrap(), checked, plan, None, &mut Silent).unwrap();
    (damaged, report.outcome)
}

/// The state after a step, whose frozen parameter the trainer changed before.
fn is_refused(run: &Run, step: u32) {
    let (records, says) =
        (records(run), "its param/token_embedding is frozen, and is not that of the initial state");
    let visited = states::visit(run, &records, step, |_, _| Ok(())).map(|()| Vec::new());
    let opened = state_files::open(run, Some(step)).map(|_| Vec::new());
    for found in [states::after(run, &records, step), visited, opened] {
        let why = found.unwrap_err().to_string();
        assert!(why.contains(says), "{why}");
    }
}

fn records(run: &Run) -> Vec<Record> {
    transcript::read(&run.layout.transcript()).unwrap().0.records
}

#[test]
fn a_sampled_step_behind_a_swapped_frozen_parameter_convicts() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let honest = trained(&job(folder.path(), "seeded.toml", ""), &at("seeded"), None);
    assert_eq!(of_step_6(&honest), (vec![], Outcome::Matches));
    fs::copy(honest.layout.model(), at("weights.safetensors")).unwrap();
    let tuned = job(folder.path(), "tuned.toml", "[init]\nweights = [\"weights.safetensors\"]\n");
    assert_eq!(of_step_6(&trained(&tuned, &at("tuned"), None)), (vec![], Outcome::Matches));

    for name in ["seeded", "tuned"] {
        let run =
            trained(&at(&format!("{name}.toml")), &at(&format!("{name} cheat")), Some("weight-after@3"));
        if name == "tuned" {
            // Their checkpoints lean on checkpoint 0. The cheat writes whole ones, which its records commit.
            swap_whole(&run);
        }
        let first = run.checkpoint_steps().unwrap().into_iter().find(|&step| step > 3).unwrap();
        is_refused(&run, first);
        let (damaged, outcome) = of_step_6(&run);
        assert!(damaged.iter().all(|why| why.contains("is frozen")) && !damaged.is_empty(), "{damaged:?}");
        assert!(matches!(outcome, Outcome::Diverges { step: 3, .. }), "{name}: {outcome:?}");
    }
}

/// Writes the checkpoints behind step 3 as whole states, with the frozen parameter that the records commit.
fn swap_whole(run: &Run) {
    let table = run.program().state();
    let records = records(run);
    for step in run.checkpoint_steps().unwrap().into_iter().filter(|&step| step >= 3) {
        let mut state = states::read(run, step).unwrap();
        let word = state[0].len() / 8 * 4;
        state[0][word + 2] ^= 0x10; // as the cheat does
        let digests = tensor_digests(&table, &state);
        assert_eq!(run.computation.state_digest(step, &table, &digests), records[step as usize].state());
        checkpoint::write::<RunError>(&run.layout.checkpoint(step), &table, |show| {
            state.iter().for_each(|bytes| show(bytes));
            Ok(())
        })
        .unwrap();
    }
}

/// The header of a checkpoint has more bytes than a small frozen parameter, and says which tensors are there.
#[test]
fn a_checkpoint_without_a_small_frozen_parameter_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let honest = trained(&gpt_job(folder.path(), "operator", ""), &folder.path().join("first"), None);
    fs::copy(honest.layout.model(), folder.path().join("weights.safetensors")).unwrap();
    let text = fs::read_to_string(gpt_job(folder.path(), "operator", "")).unwrap();
    let path = folder.path().join("small.toml");
    let end = "[init]\nweights = [\"weights.safetensors\"]\n";
    fs::write(&path, format!("frozen = [\"*norm1.bias\"]\n{text}\n{end}")).unwrap();
    let run = trained(&path, &folder.path().join("small"), None);
    let [first, last] = [0, 8].map(|step| run.at(names::checkpoint(step)).length().unwrap());
    assert!(last < first);
    assert_eq!(of_step_6(&run), (vec![], Outcome::Matches));
}

/// An engine that counts the bytes that it shows.
struct Counting(Cpu, Arc<AtomicUsize>);

impl Engine for Counting {
    tiebreak_engine::forward!(self => self.0; describe, upload, compile, run, finish);

    fn read(&mut self, tensor: &Tensor, visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError> {
        let shown = self.1.clone();
        self.0.read(tensor, &mut |bytes| {
            shown.fetch_add(bytes.len(), Relaxed);
            visit(bytes);
        })
    }
}

#[test]
fn a_tensor_of_the_state_is_hashed_once() {
    let folder = tempfile::tempdir().unwrap();
    let run = trained(&job(folder.path(), "seeded.toml", ""), &folder.path().join("seeded"), None);
    let shown = Arc::new(AtomicUsize::new(0));
    let mut engine = Counting(Cpu::new(1).unwrap(), shown.clone());
    let mut session = Session::new(&mut engine, Arc::new(run.program().clone())).unwrap();
    let state = states::read(&run, 8).unwrap();
    session.load(&state).unwrap();
    let bytes = || shown.swap(0, Relaxed);
    bytes();
    let all = state.iter().map(Vec::len).sum::<usize>();
    let first = step::noted_digests(&mut session).unwrap();
    assert_eq!((bytes(), step::noted_digests(&mut session).unwrap(), bytes()), (all, first.clone(), 0));
    // The memory itself is asked for where that is the question.
    assert_eq!((step::state_digests(&mut session).unwrap(), bytes()), (first.clone(), all));
    let changed: Vec<u8> = state[1].iter().map(|byte| !byte).collect();
    session.replace_state(1, &changed).unwrap();
    let second = step::noted_digests(&mut session).unwrap();
    assert_eq!(bytes(), changed.len());
    assert_eq!(second, step::state_digests(&mut session).unwrap());
    assert!(first[1] != second[1] && first[0] == second[0]);
}
