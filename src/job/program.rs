//! The program of a job: derived from a model kind, or decoded from a file and checked against the job.

use super::parse::{JobError, batch_error, data_error};
use super::spec::{Job, ProgramSource};
use crate::program::decoding::decode;
use crate::program::step::Program;

impl Job {
    /// The program that the job is. `file`: the bytes of the program file, for a job that names one.
    ///
    /// # Errors
    /// If the job names a file and no bytes are given, or the other way round; if the bytes are no program, or one that does not
    /// fit the job.
    pub fn program(&self, file: Option<&[u8]>) -> Result<Program, JobError> {
        let wrong = |why: String| JobError(format!("program: {why}"));
        match (&self.source, file) {
            (ProgramSource::Model(model), None) => {
                let treatments =
                    model.treatments().map_err(|(key, why)| JobError(format!("{key}: {why}")))?;
                Ok(Program::with_treatments(model.step_spec(), treatments))
            }
            (ProgramSource::File(_), Some(bytes)) => {
                let program = decode(bytes).map_err(|error| wrong(error.to_string()))?;
                match self.mismatch(&program) {
                    Some(why) => Err(wrong(why)),
                    None => Ok(program),
                }
            }
            (ProgramSource::Model(_), Some(_)) => {
                Err(wrong("a program file is given, and the job names a model kind".into()))
            }
            (ProgramSource::File(path), None) => Err(wrong(format!("the file {path:?} is not given"))),
        }
    }

    /// What of a program file does not fit the job, if anything.
    fn mismatch(&self, program: &Program) -> Option<String> {
        let numbers = [program.micro_batch, program.micro_batches, program.labels_per_sample];
        if let Some((key, why)) = batch_error(numbers, self.commit.granularity) {
            return Some(format!("{key}: {why}"));
        }
        if let Some((key, why)) = data_error(&self.data, &program.sample()) {
            return Some(format!("{key}: {why}"));
        }
        match (&self.rounding, program.micro.logged.first()) {
            (None, None) => None,
            (None, Some(_)) => Some("it has logged products; the job needs a [rounding] table".into()),
            (Some(_), None) => Some("it has no logged products; leave the [rounding] table out".into()),
            (Some(rounding), Some(_)) => {
                let rule = rounding.rule();
                let other = program.micro.logged.iter().find(|logged| logged.rule != rule)?;
                let (theirs, class) = (other.rule, other.class.name());
                Some(format!(
                    "a {class} product has a grid of {} bits and floor {}, the job's [rounding] says {} and {}",
                    theirs.bits, theirs.floor, rule.bits, rule.floor
                ))
            }
        }
    }
}
