//! The state that a run and `--step` name, as bytes.

use crate::cli::view::report::{Exit, Failure};
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::{checkpoint, names, states, transcript};

/// The parameters and buffers of the released model, or of the checkpoint after a step, which has to be the state of its record.
pub fn released(run: &Run, step: Option<u32>) -> Result<Vec<Vec<u8>>, Failure> {
    let (table, released) = (run.program().state(), run.program().released());
    let Some(step) = step else {
        if !run.at(names::MODEL).is_here() {
            let steps = run.checkpoint_steps()?;
            let why = format!("the run is not finished: name one of its checkpoints, {}", listed(&steps));
            return Err(Failure::new(Exit::Usage, why));
        }
        return Ok(checkpoint::read(run.at(names::MODEL), &table[..released])?);
    };
    let steps = run.checkpoint_steps()?;
    if !steps.contains(&step) {
        let why = format!("there is no checkpoint after step {step}; there are {}", listed(&steps));
        return Err(Failure::new(Exit::Usage, why));
    }
    let mut state = states::read(run, step)?;
    let (transcript, _) = transcript::read(run.at(names::TRANSCRIPT))?;
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
