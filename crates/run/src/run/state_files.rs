//! The state after a step as files that hold it: checked against the step's record, and read or mapped tensor by tensor.

use super::dir::Run;
use super::error::RunError;
use super::weights::{Elements, WeightFiles};
use super::{frozen, names, states, transcript};
use tiebreak_contract::program::models::released::Released;
use tiebreak_contract::program::step::StateTensor;
use tiebreak_job::initial::program_layout;
use tiebreak_record::commit::record::Record;
use tiebreak_record::commit::state::StateRoots;

/// Opens the files of the state after a step, by default the last one that the run holds: the step, the files, and the tensors in them.
///
/// # Errors
/// If the run has no such state any more, or another one than its records commit.
pub fn open(run: &Run, step: Option<u32>) -> Result<(u32, WeightFiles, Vec<StateTensor>), RunError> {
    let (transcript, _) = transcript::read(run.at(names::TRANSCRIPT))?;
    let steps = run.checkpoint_steps()?;
    let last = run.job().steps;
    let finished = matches!(transcript.records.last(), Some(Record::Final { .. }));
    let from_model = finished && !steps.contains(&last) && run.at(names::MODEL).is_here();
    let newest = if from_model { Some(last) } else { steps.last().copied() };
    let Some(step) = step.or(newest) else {
        return Err(RunError::Refused("the run holds no checkpoint".into()));
    };
    let table = run.program().state();
    let (file, table) = if steps.contains(&step) {
        (run.at(names::checkpoint(step)), table)
    } else if from_model && step == last {
        (run.at(names::MODEL), table[..run.program().released()].to_vec())
    } else {
        let few: Vec<String> = steps.iter().rev().take(8).rev().map(u32::to_string).collect();
        let why = format!("the run holds no checkpoint of step {step}; there are {}", few.join(", "));
        return Err(RunError::Refused(why));
    };
    let mut files = WeightFiles::open(std::slice::from_ref(&file))?;
    if steps.contains(&step) && frozen::Files::of(run, &[], step)?.are_two() {
        files = files.over(&run.at(names::checkpoint(0)))?;
    }
    let digests = files.digests(&table)?;
    let mut found = StateRoots::of(&table, &digests);
    if let (true, Some(Record::Final { roots, .. })) = (from_model, transcript.records.last()) {
        // A model leaves the optimizer's slots out, which the final record has a root of its own for.
        found.0[2] = roots.0[2];
    }
    let committed = transcript.records.get(step as usize).map(Record::state);
    if committed != Some(found.digest()) {
        let why = format!("it is not the state that the record of step {step} commits");
        return Err(RunError::invalid(file.path(), why));
    }
    if step > 0 {
        states::check_frozen(run, step, &digests, &frozen::kept(run, &[])?)?;
    }
    Ok((step, files, table))
}

/// The layout that an export of the run's model has: the names of other libraries, or with `own` the program's.
///
/// # Errors
/// If no other library has the model.
fn layout(run: &Run, own: bool) -> Result<Vec<Released>, RunError> {
    if own {
        return Ok(program_layout(run.program()));
    }
    let model = run.job().model().map(|job| &job.model);
    if model.is_some_and(|model| model.frozen() > 0) {
        let why = "the model has adapters, which other libraries keep in a file of their own: ask for the program's own names, or export the run";
        return Err(RunError::Refused(why.into()));
    }
    model.and_then(|model| model.released()).ok_or_else(|| {
        let why = "neither transformers nor torchvision has this model: ask for the program's own names";
        RunError::Refused(why.into())
    })
}

/// The tensors that an export of the state after a step would write, with the elements of each part ([`Released::parts`]). Counters have
/// no part: their value is the step.
pub type Exported = (u32, Vec<(Released, Vec<Elements>)>);

/// Finds the tensors of an export in the files of a state, without a copy. With `own` they have the program's own names.
///
/// # Errors
/// As [`open`]; also if no other library has the model and `own` is false.
pub fn exported(run: &Run, step: Option<u32>, own: bool) -> Result<Exported, RunError> {
    let layout = layout(run, own)?;
    let (step, mut files, table) = open(run, step)?;
    let mut elements = |name: &str| {
        let tensor = table.iter().find(|tensor| tensor.name == name);
        let tensor = tensor.ok_or_else(|| RunError::Refused(format!("the state has no tensor {name}")))?;
        files.elements(tensor)
    };
    let written = layout.into_iter().filter(Released::is_written);
    let tensors = written.map(|released| {
        let parts = released.parts().iter().map(|part| elements(&part.tensor));
        let parts = parts.collect::<Result<Vec<_>, RunError>>()?;
        Ok((released, parts))
    });
    Ok((step, tensors.collect::<Result<Vec<_>, RunError>>()?))
}
