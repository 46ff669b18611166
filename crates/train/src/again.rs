//! Begins a run again from the records of an earlier one, for a trainer who takes the later records back.
//!
//! Records name the computation and not the run. So the new run has the earlier one's first records as they are, under heads of its
//! own, and a training that goes on from there writes what a training from the beginning would write.

use std::path::PathBuf;
use std::sync::Arc;

use super::begin::check_key;
use tiebreak_contract::program::encoding::PROGRAM_MAX;
use tiebreak_contract::program::network::NETWORK_MAX;
use tiebreak_job::initial::InitialOrigin;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::tree_head::Head;
use tiebreak_run::run::companions::Companions;
use tiebreak_run::run::create::{NewRun, check_unused, create};
use tiebreak_run::run::dir::{Run, RunFile};
use tiebreak_run::run::transcript::{self, Transcript};
use tiebreak_run::run::{RunError, Store, Stored, gradients, initial, names};

/// The inputs of a run that is begun again.
pub struct Again<'a> {
    /// The earlier run.
    pub run: &'a Run,
    /// The first step that the new run does not take over.
    pub step: u32,
    /// The store that will keep the new run.
    pub out: Arc<dyn Store>,
    /// The key that signs the heads: that of the earlier run.
    pub key: Option<&'a PrivateKey>,
    /// A nonce from the system's randomness.
    pub nonce: [u8; 16],
}

/// Begins a run again: job, data, and the records before [`Again::step`] with everything that belongs to them.
///
/// If a crash stops the work, the same call goes on with what is there.
///
/// # Errors
/// If the earlier run has not these records, its commitments hide, or its key is another one. Also if the store holds another run,
/// or a file cannot be read or written.
pub fn again(beginning: &Again) -> Result<Run, RunError> {
    let Again { run, step, out, key, .. } = beginning;
    let place = run.layout.root.display();
    if run.job().hides() {
        let why = "its commitments hide (commit.scheme 1), and one salt key is of one run: train it from the beginning";
        return Err(RunError::Refused(format!("{place}: {why}")));
    }
    check_key(run, *key)?;
    let (mut before, _) = transcript::read(run.at(names::TRANSCRIPT))?;
    let (found, due) = (before.records.len(), *step as usize);
    if *step == 0 || found < due {
        return Err(RunError::Refused(format!(
            "{place}: {due} records are before step {step}, and it has {found}"
        )));
    }
    before.records.truncate(due);
    before.leaves.truncate(due);
    let is_there = Stored::new(out, &PathBuf::from(out.place()), names::RUN_JSON).is_here();
    let new = if is_there { Run::of(out.clone())? } else { made(beginning)? };
    let goes_on = is_continued(&new, run, &before)?;
    if goes_on {
        let _lock = new.lock()?;
        records(run, &new, &before)?;
        heads(run, &new, &before, *key)?;
        checkpoints(run, &new, *step)?;
    }
    Ok(new)
}

/// Makes the new run, without records.
fn made(beginning: &Again) -> Result<Run, RunError> {
    let Again { run, out, nonce, .. } = beginning;
    check_unused(&**out, run.job().network.is_some())?;
    let nonce = nonce.iter().map(|byte| format!("{byte:02x}")).collect();
    let file = RunFile { nonce, ..run.file.clone() };
    let numbers = 0..file.data.len();
    let tree = |number| {
        let tree = run.at(names::data_tree(number));
        tree.read(tree.length()?)
    };
    let trees = numbers.clone().map(tree).collect::<Result<Vec<_>, RunError>>()?;
    let held: Vec<PathBuf> = numbers.filter(|_| run.holds_data()).map(|n| run.layout.data_file(n)).collect();
    for name in run.store.list(names::EVALUATION).map_err(RunError::io(&run.layout.root))? {
        let name = format!("{}/{name}", names::EVALUATION);
        run.at(name.clone()).copy_to(&Stored::new(out, &PathBuf::from(out.place()), name))?;
    }
    let kept = run.at(names::NETWORK);
    let network =
        (run.job().network.is_some() && kept.is_here()).then(|| kept.read_text(NETWORK_MAX)).transpose()?;
    let state = match file.origin {
        InitialOrigin::Seed => None,
        InitialOrigin::Weights { .. } | InitialOrigin::Run(_) => Some(initial::state(run)?),
    };
    let table = run.program().state();
    let new = NewRun {
        named: names::RUN_JSON,
        file: &file,
        job_text: &run.job_text,
        program: &run.at(names::PROGRAM).read(PROGRAM_MAX)?,
        network: network.as_deref(),
        logged: run.job().rounding.is_some(),
        trees: &trees,
        copied: held.iter().map(Stored::from).collect(),
        initial: state.as_ref().map(|state| (&table[..], &state[..])),
        companions: &Companions::of_run(run)?,
    };
    create(out, &new)?;
    Run::of(out.clone())
}

/// True if there is something left to take over. A run that has been trained further already is left as it is.
///
/// # Errors
/// If the store holds a run of something else, or one with other records.
fn is_continued(new: &Run, run: &Run, before: &Transcript) -> Result<bool, RunError> {
    let refused = |why: String| Err(RunError::Refused(format!("{}: {why}", new.layout.root.display())));
    let said = |run: &Run| (run.computation.id, run.file.trainer_key.clone(), run.job_text.clone());
    if new.id == run.id {
        return refused(format!("it is the run {} itself, which keeps its records", run.id));
    }
    if said(new) != said(run) {
        let found = new.computation.id.not(&run.computation.id);
        return refused(format!(
            "it holds a run of another job, computation or key; its computation is {found}"
        ));
    }
    let file = new.at(names::TRANSCRIPT);
    if file.length_or_0()? == 0 {
        return Ok(true);
    }
    let (there, _) = transcript::read(file)?;
    let shared = there.leaves.iter().zip(&before.leaves).take_while(|(mine, theirs)| mine == theirs).count();
    let due = there.leaves.len().min(before.leaves.len());
    if shared < due {
        return refused(format!(
            "its records differ from the earlier run's from number {shared} on, before {due}"
        ));
    }
    Ok(there.leaves.len() <= before.leaves.len())
}

/// Takes over the records, and what they commit.
fn records(run: &Run, new: &Run, before: &Transcript) -> Result<(), RunError> {
    let count = before.records.len() as u32;
    for step in 1..count {
        for name in [names::trace(step), names::log(step)] {
            run.at(name.clone()).copy_to(&new.at(name))?;
        }
    }
    let roots = gradients::offset(count, run.program().micro_batches as usize);
    let from = run.at(names::GRADIENTS);
    let roots = roots.min(from.length_or_0()?);
    if roots > 0 {
        new.at(names::GRADIENTS).replace(&from.read_range(0..roots)?)?;
    }
    for name in [names::METRICS, names::EVENTS] {
        run.at(name).copy_to(&new.at(name))?;
    }
    let bytes = transcript::length(&before.records);
    new.at(names::TRANSCRIPT).replace(&run.at(names::TRANSCRIPT).read_range(0..bytes)?)
}

/// Signs heads of the sizes that the earlier run's have.
fn heads(run: &Run, new: &Run, before: &Transcript, key: Option<&PrivateKey>) -> Result<(), RunError> {
    let covered = |size: &u64| (1..=before.records.len() as u64).contains(size);
    for size in run.head_sizes()?.into_iter().filter(covered) {
        let root: Digest = before.root(size as usize);
        let head = Head { run: new.id, size, root };
        new.at(names::head(size)).replace(head.to_note(key).as_bytes())?;
    }
    Ok(())
}

/// Takes over the states before the step. Those that crash or job left out follow from the others.
fn checkpoints(run: &Run, new: &Run, step: u32) -> Result<(), RunError> {
    for name in run.checkpoint_steps()?.into_iter().filter(|&at| at < step).map(names::checkpoint) {
        if !new.at(name.clone()).is_here() {
            run.at(name.clone()).copy_to(&new.at(name))?;
        }
    }
    Ok(())
}
