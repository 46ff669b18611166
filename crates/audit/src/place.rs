//! The place of a record in its run: the index, the step, and the commitments that the job asks for.

use tiebreak_record::commit::record::Record;
use tiebreak_record::job::Granularity;
use tiebreak_run::run::dir::Run;

/// The reason why the run cannot have this record at this index, if there is one.
pub(crate) fn misplaced(run: &Run, index: usize, record: &Record) -> Option<&'static str> {
    if *record.computation() != run.computation.id {
        return Some("it is of another computation");
    }
    match record {
        Record::Initial { .. } if index == 0 => None,
        Record::Step { step, .. } if index > 0 && step.step as usize == index => {
            let granularity = run.job().commit.granularity;
            if step.step > run.job().steps {
                return Some("the job has fewer steps");
            }
            if step.gradients.is_some() != (granularity != Granularity::Step) {
                return Some("it commits to gradients although the job does not, or the other way round");
            }
            if step.trace.is_some() != (granularity == Granularity::Operator) {
                return Some("it commits to operators although the job does not, or the other way round");
            }
            if step.log.is_some() != run.job().rounding.is_some() {
                return Some("it commits a rounding log although the job has none, or the other way round");
            }
            None
        }
        Record::Final { steps, .. } if index == *steps as usize + 1 && *steps == run.job().steps => None,
        _ => Some("it is not in its place: steps must be contiguous"),
    }
}
