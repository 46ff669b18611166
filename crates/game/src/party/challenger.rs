//! A challenger's run in the logged profile: the trainer's rounding decisions, replayed step by step, with the challenger's own
//! records.

use std::path::Path;
use std::sync::Arc;

use super::error::PartyError;
use tiebreak_contract::program::encoding::encode;
use tiebreak_engine::Engine;
use tiebreak_engine::session::Session;
use tiebreak_job::initial::InitialOrigin;
use tiebreak_job::manifest::GroupTree;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::record::Record;
use tiebreak_record::commit::state::{StateRoots, state_digest, tensor_digests};
use tiebreak_run::run::companions::Companions;
use tiebreak_run::run::create::{NewRun, check_unused, create};
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::transcript::{self, TranscriptWriter};
use tiebreak_run::run::{Store, Stored, initial, names, states};
use tiebreak_run::step::disputed_step;

/// Replays a trainer's whole run, whose records must have the `claim`ed root, under its rounding logs into a store of the
/// challenger's own. The result is a run to play with ([`super::Party::open`]): the challenger's records carry the trainer's log
/// roots. Steps that are there from before an interruption are not computed again. `progress` sees each step that is done.
///
/// # Errors
/// If the run is not of the logged profile or has another root, or a file of it cannot be read or is not what its record commits.
/// Also if the own run cannot be written, or the engine fails.
pub fn challenger(
    trainer: &Run,
    claim: &Digest,
    out: &Arc<dyn Store>,
    engine: &mut dyn Engine,
    progress: impl FnMut(u32),
) -> Result<Run, PartyError> {
    logged(trainer)?;
    let (promised, _) = transcript::read(trainer.at(names::TRANSCRIPT))?;
    let root = promised.root(promised.leaves.len());
    if root != *claim {
        return Err(PartyError::Refused(format!(
            "the terms dispute a run with root {claim}, and {} has root {root}: its logs are not those that count; ask the trainer for the folder of the disputed run",
            trainer.layout.root.display()
        )));
    }
    let run = begun(trainer, out)?;
    let take = |run: &Run, step: u32| take_log(trainer, promised.records.get(step as usize), run, step);
    replay(run, engine, take, progress)
}

/// Replays a run under the rounding logs that `take` puts into it, step by step, and writes the run's records.
pub(super) fn replay(
    run: Run,
    engine: &mut dyn Engine,
    take: impl Fn(&Run, u32) -> Result<(), PartyError>,
    mut progress: impl FnMut(u32),
) -> Result<Run, PartyError> {
    let _lock = run.lock()?;
    let program = Arc::new(run.program().clone());
    let (table, last) = (run.program().state(), run.job().steps);
    let (mut writer, have) = TranscriptWriter::open(run.at(names::TRANSCRIPT), 0)?;
    let mut session = Session::new(engine, program)?;
    let device = session.engine().describe();
    let mut append = |index: u32, record: Record| match have.records.get(index as usize) {
        Some(before) if *before == record => Ok(()),
        Some(_) => Err(PartyError::NotReproduced { step: index, device: device.clone() }),
        None => Ok(writer.append(&record)?),
    };
    let near = states::nearest_checkpoint(&run, &have.records, last + 1)?;
    let (from, state) = match near {
        Some(near) => near,
        None => (0, initial::state(&run)?),
    };
    let mut digests = tensor_digests(&table, &state);
    if from == 0 {
        let state = state_digest(&table, &digests);
        append(0, Record::Initial { computation: run.computation.id, state })?;
    }
    session.load(&state)?;
    drop(state);
    let mut dataset = run.dataset()?;
    for step in from + 1..=last {
        take(&run, step)?;
        let batch = run.batch(&mut dataset, step)?;
        let done = disputed_step(&run, &mut session, step, &batch)?;
        digests = done.state;
        append(step, Record::Step { computation: run.computation.id, step: done.record })?;
        if run.job().is_checkpoint(step) {
            states::write::<PartyError>(&run, step, |show| Ok(session.visit_state(|_, bytes| show(bytes))?))?;
        }
        progress(step);
    }
    let roots = StateRoots::of(&table, &digests);
    append(last + 1, Record::Final { computation: run.computation.id, steps: last, roots })?;
    writer.sync()?;
    Ok(run)
}

/// Refuses a run of the exact profile.
fn logged(trainer: &Run) -> Result<(), PartyError> {
    if trainer.job().rounding.is_some() {
        return Ok(());
    }
    Err(PartyError::Refused(format!(
        "{} is of the exact profile, in which a challenger trains by itself: `tiebreak train`",
        trainer.layout.root.display()
    )))
}

/// The challenger's run: new, or as an interruption left it. The data stay in the trainer's folder.
fn begun(trainer: &Run, out: &Arc<dyn Store>) -> Result<Run, PartyError> {
    let trees: Vec<Vec<u8>> = trainer.data_trees()?.iter().map(GroupTree::encode).collect();
    if !Stored::new(out, Path::new(&out.place()), names::RUN_JSON).is_here() {
        check_unused(&**out, false)?;
        let state = match trainer.file.origin {
            InitialOrigin::Seed => None,
            InitialOrigin::Weights { .. } | InitialOrigin::Run(_) => Some(initial::state(trainer)?),
        };
        let table = trainer.program().state();
        let new = NewRun {
            named: names::RUN_JSON,
            file: &trainer.file,
            job_text: &trainer.job_text,
            program: &encode(trainer.program()),
            network: None,
            logged: true,
            trees: &trees,
            copied: Vec::new(),
            initial: state.as_ref().map(|state| (&table[..], &state[..])),
            companions: &Companions::default(),
        };
        create(out, &new)?;
    }
    let run = Run::of(out.clone())?.with_data_of(trainer);
    if run.id != trainer.id {
        let why =
            format!("{} is of another run, {}: choose another folder", out.place(), run.id.not(&trainer.id));
        return Err(PartyError::Refused(why));
    }
    Ok(run)
}

/// Copies a step's rounding log from the trainer, after checking that it is the one that the trainer's record commits.
fn take_log(trainer: &Run, promised: Option<&Record>, run: &Run, step: u32) -> Result<(), PartyError> {
    let log = trainer.rounding_log(step)?;
    let due = match promised {
        Some(Record::Step { step: record, .. }) => record.log,
        _ => None,
    };
    if due != Some(log.root()) {
        return Err(tiebreak_audit::other_log(trainer, step, Some(log.root()), due).into());
    }
    Ok(run.at(names::log(step)).replace(log.bytes())?)
}
