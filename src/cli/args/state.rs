//! The state that a run and `--step` name, as bytes.

use crate::cli::view::report::{Exit, Failure};
use tiebreak_contract::program::step::StateTensor;
use tiebreak_record::commit::record::Record;
use tiebreak_record::commit::state::tensor_digests;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::{RunError, checkpoint, names, states, transcript};

/// The parameters and buffers of the released model, or of the checkpoint after a step. A record of the run commits them.
pub fn released(run: &Run, step: Option<u32>) -> Result<Vec<Vec<u8>>, Failure> {
    let (table, released) = (run.program().state(), run.program().released());
    let Some(step) = step else {
        if !run.at(names::MODEL).is_here() {
            let steps = run.checkpoint_steps()?;
            let why = format!("the run is not finished: name one of its checkpoints, {}", listed(&steps));
            return Err(Failure::new(Exit::Usage, why));
        }
        return final_model(run, &table[..released]);
    };
    let steps = run.checkpoint_steps()?;
    if !steps.contains(&step) {
        let why = format!("there is no checkpoint after step {step}; there are {}", listed(&steps));
        return Err(Failure::new(Exit::Usage, why));
    }
    let (transcript, _) = transcript::read(run.at(names::TRANSCRIPT))?;
    let mut state = states::after(run, &transcript.records, step)?;
    state.truncate(released);
    Ok(state)
}

/// The released model, which has to be the one that the final record commits: the file is a container, which anybody may have put there.
fn final_model(run: &Run, released: &[StateTensor]) -> Result<Vec<Vec<u8>>, Failure> {
    let model = checkpoint::read(run.at(names::MODEL), released)?;
    let (transcript, _) = transcript::read(run.at(names::TRANSCRIPT))?;
    let path = run.layout.model();
    let Some(Record::Final { roots, .. }) = transcript.records.last() else {
        let why = "no final record commits the model: finish the training, or name a checkpoint by --step";
        return Err(RunError::invalid(&path, why).into());
    };
    let digests = tensor_digests(released, &model);
    checkpoint::is_released(&path, &run.computation.state_roots(run.job().steps, released, &digests), roots)?;
    Ok(model)
}

/// Steps as options, the last ten if there are more.
fn listed(steps: &[u32]) -> String {
    let shown: Vec<String> =
        steps[steps.len().saturating_sub(10)..].iter().map(|step| format!("--step {step}")).collect();
    if shown.is_empty() { "but it has none yet".into() } else { shown.join(", ") }
}
