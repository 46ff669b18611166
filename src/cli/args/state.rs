//! The state that a run and `--step` name: as bytes, or as files.

use crate::cli::view::report::{Exit, Failure};
use tiebreak_contract::program::step::StateTensor;
use tiebreak_record::commit::record::Record;
use tiebreak_record::commit::state::StateRoots;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::weights::WeightFiles;
use tiebreak_run::run::{RunError, checkpoint, states, transcript};

/// The parameters and buffers of the released model, or of the checkpoint after a step, which has to be the state of its record.
pub fn released(run: &Run, step: Option<u32>) -> Result<Vec<Vec<u8>>, Failure> {
    let (table, released) = (run.program().state(), run.program().released());
    let Some(step) = step else {
        if !run.layout.model().exists() {
            let steps = run.checkpoint_steps()?;
            let why = format!("the run is not finished: name one of its checkpoints, {}", listed(&steps));
            return Err(Failure::new(Exit::Usage, why));
        }
        return Ok(checkpoint::read(&run.layout.model(), &table[..released])?);
    };
    let steps = run.checkpoint_steps()?;
    if !steps.contains(&step) {
        let why = format!("there is no checkpoint after step {step}; there are {}", listed(&steps));
        return Err(Failure::new(Exit::Usage, why));
    }
    let path = run.layout.checkpoint(step);
    let mut state = checkpoint::read(&path, &table)?;
    let (transcript, _) = transcript::read(&run.layout.transcript())?;
    states::check(run, &transcript.records, step, &state)?;
    state.truncate(released);
    Ok(state)
}

/// Steps as options, the last ten if there are more.
fn listed(steps: &[u32]) -> String {
    let shown: Vec<String> =
        steps[steps.len().saturating_sub(10)..].iter().map(|step| format!("--step {step}")).collect();
    if shown.is_empty() { "but it has none yet".into() } else { shown.join(", ") }
}

/// The state after a step, in files that were checked against the step's record: the step, the files, and the tensors that they hold.
///
/// # Errors
/// If the run has no such state any more, or another one than its records commit.
pub fn state_files(run: &Run, step: Option<u32>) -> Result<(u32, WeightFiles, Vec<StateTensor>), Failure> {
    let (transcript, _) = transcript::read(&run.layout.transcript())?;
    let steps = run.checkpoint_steps()?;
    let last = run.job().steps;
    let finished = matches!(transcript.records.last(), Some(Record::Final { .. }));
    let from_model = finished && !steps.contains(&last) && run.layout.model().exists();
    let newest = if from_model { Some(last) } else { steps.last().copied() };
    let Some(step) = step.or(newest) else {
        return Err(Failure::new(Exit::Usage, "the run holds no checkpoint"));
    };
    let table = run.program().state();
    let (path, table) = if steps.contains(&step) {
        (run.layout.checkpoint(step), table)
    } else if from_model && step == last {
        (run.layout.model(), table[..run.program().released()].to_vec())
    } else {
        let few: Vec<String> = steps.iter().rev().take(8).rev().map(u32::to_string).collect();
        let why = format!("the run holds no checkpoint of step {step}; there are {}", few.join(", "));
        return Err(Failure::new(Exit::Usage, why));
    };
    let mut files = WeightFiles::open(std::slice::from_ref(&path))?;
    let mut found = StateRoots::of(&table, &files.digests(&table)?);
    if let (true, Some(Record::Final { roots, .. })) = (from_model, transcript.records.last()) {
        // A model leaves the optimizer's slots out, which the final record has a root of its own for.
        found.0[2] = roots.0[2];
    }
    let committed = transcript.records.get(step as usize).map(Record::state);
    if committed != Some(found.digest()) {
        let why = format!("it is not the state that the record of step {step} commits");
        return Err(RunError::invalid(&path, why).into());
    }
    Ok((step, files, table))
}
