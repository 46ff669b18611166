//! The place of a record in its run: the index, the step, and the commitments that the job asks for.

use tiebreak_job::Granularity;
use tiebreak_record::commit::record::Record;
use tiebreak_run::run::dir::Run;

/// The reason why the run cannot have this record at this index, if there is one.
pub(crate) fn misplaced(run: &Run, index: usize, record: &Record) -> Option<String> {
    let (found, due) = (record.computation(), &run.computation.id);
    if found != due {
        return Some(format!("it is of another computation, {}", found.not(due)));
    }
    match record {
        Record::Initial { .. } if index == 0 => None,
        Record::Step { step, .. } if index > 0 && step.step as usize == index => {
            let granularity = run.job().commit.granularity;
            if step.step > run.job().steps {
                return Some(format!("it is of step {}, and the job has {}", step.step, run.job().steps));
            }
            let mismatch = |what: &str| {
                Some(format!("it commits to {what} although the job does not, or the other way round"))
            };
            if step.gradients.is_some() != (granularity != Granularity::Step) {
                return mismatch("gradients");
            }
            if step.trace.is_some() != (granularity == Granularity::Operator) {
                return mismatch("operators");
            }
            if step.log.is_some() != run.job().rounding.is_some() {
                return mismatch("a rounding log");
            }
            None
        }
        Record::Final { steps, .. } if index == *steps as usize + 1 && *steps == run.job().steps => None,
        _ => Some(format!("it is not in its place: it is {}, and steps must be contiguous", record.name())),
    }
}
