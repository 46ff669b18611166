//! The checks of a run whose commitments hide, by a reader who has not its salt key.

use super::ground::Ground;
use tiebreak_record::commit::record::Record;
use tiebreak_run::run::RunError;
use tiebreak_run::run::dir::Run;

/// The findings of a reader without the salt key.
pub(super) struct Closed {
    pub passed: Vec<String>,
    pub not_checked: Vec<String>,
    pub incomplete: Option<Ground>,
}

/// Checks what no salt hides in these records, which stand in their places, and names the rest.
///
/// # Errors
/// If a record contradicts the job, or another record.
pub(super) fn closed(run: &Run, records: &[Record]) -> Result<Closed, RunError> {
    let invalid = |why: String| Err(RunError::invalid(&run.layout.transcript(), why));
    let initial = records[0].state();
    if initial != run.file.initial {
        let states = initial.not(&run.file.initial);
        return invalid(format!("record 0 is of another initial state than run.json names: {states}"));
    }
    for record in records {
        let Record::Step { step: record, .. } = record else { continue };
        let (step, found) = (record.step, (record.learning_rate, record.cursor));
        let rate = run.job().schedule.learning_rate(step, run.job().steps);
        let cursor = u64::from(step) * u64::from(run.program().samples());
        if found != (rate, cursor) {
            let (found_rate, found_cursor) = found;
            return invalid(format!(
                "record {step} has the learning rate {found_rate:08x} and {found_cursor} samples drawn; the job gives {rate:08x} and {cursor}"
            ));
        }
    }
    let mut passed = vec!["learning rates and cursors of all steps follow from the job".to_string()];
    let mut incomplete = None;
    if let Some(Record::Final { roots, steps, .. }) = records.last() {
        let (found, due) = (roots.digest(), records[*steps as usize].state());
        if found != due {
            return invalid(format!("the final record is not of the last step's state: {}", found.not(&due)));
        }
        passed.push("the final record is of the last step's state".into());
    } else {
        incomplete = Some(Ground::NoEnd { covered: records.len() - 1, steps: run.job().steps, model: false });
    }
    let hidden = "initial state, batches, checkpoints, losses, clip factors, released model, and whether somebody's data are the run's";
    let how = "who has the salt key names it with --salt-key FILE";
    let not_checked = vec![format!("{hidden}: the commitments hide them (commit.scheme 1); {how}")];
    Ok(Closed { passed, not_checked, incomplete })
}
