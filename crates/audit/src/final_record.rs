//! The checks of a run's end: the final record, and the released model.

use super::checked::Checked;
use super::ground::Ground;
use super::work::Work;
use tiebreak_dispute::verdict::Claim;
use tiebreak_record::commit::record::Record;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::{RunError, checkpoint, names};

/// Checks that the final record is of the last step's state.
pub(super) fn alone(run: &Run, checked: &mut Checked, _: &mut Work) -> Result<(), RunError> {
    let Some(Record::Final { roots, .. }) = checked.transcript.records.last().cloned() else {
        let (covered, steps) = (checked.transcript.records.len() - 1, run.job().steps);
        let model = run.at(names::MODEL).is_here();
        checked.incomplete = Some(Ground::NoEnd { covered, steps, model });
        return Ok(());
    };
    if roots.digest() != checked.transcript.records[run.job().steps as usize].state() {
        let steps = run.job().steps;
        return checked.fail(run, steps, Ground::FinalState, |checked| {
            Ok((Some(steps + 1), Claim::Final { last: checked.proven(steps) }))
        });
    }
    Ok(())
}

/// Checks the final record and the released model.
pub(super) fn with_model(run: &Run, checked: &mut Checked, work: &mut Work) -> Result<(), RunError> {
    let path = run.layout.model();
    alone(run, checked, work)?;
    let Some(Record::Final { roots, .. }) = checked.transcript.records.last() else { return Ok(()) };
    if checked.inconsistent.is_some() {
        return Ok(());
    }
    if !run.at(names::MODEL).is_here() {
        checked.incomplete = Some(Ground::NoModel);
        return Ok(());
    }
    let table = run.program().state();
    let released = &table[..run.program().released()];
    let file = run.promised(names::MODEL.into(), "model", roots.digest());
    let model = file.settled(|file| {
        let digests = checkpoint::digests(file, released)?;
        let found = run.computation.state_roots(run.job().steps, released, &digests);
        checkpoint::is_released(&path, &found, roots)
    });
    work.file(run, names::MODEL);
    if let Err(error) = model {
        checked.incomplete = Some(Ground::Model(error.to_string()));
        checked.damaged.push(error);
        return Ok(());
    }
    checked.end_checked = true;
    checked.passed.push("the final record and the released model agree".into());
    Ok(())
}
