//! The program of a job: derived from a model kind, or decoded from a file and checked against the job.

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer};

use super::check::{Wrong, check_table};
use super::data_keys::data_error;
use super::parse::{JobError, JobText, batch_error};
use super::reference::keys_of;
use super::spec::{Job, ModelJob, ProgramSource};
use tiebreak_contract::program::decoding::decode;
use tiebreak_contract::program::encoding::encode;
use tiebreak_contract::program::models::KINDS;
use tiebreak_contract::program::step::{Program, StepSpec};

/// The job of a text without the keys that describe a program, since the program is in a file. `None` if this version knows the
/// job's model kind, or the text has no kind.
fn of_program_file(name: &str, text: &str) -> Option<Result<Job, JobError>> {
    let mut job = DeTable::parse(text).ok()?;
    let DeValue::Table(model) = job.get_ref().get("model")?.get_ref() else { return None };
    let kind = model.get("kind")?.get_ref().as_str()?;
    if KINDS.contains(&kind) {
        return None;
    }
    for key in keys_of("", None).filter(|key| key.excludes() == Some("program")) {
        job.get_mut().remove(key.name());
    }
    // No network file says how a model of this kind is evaluated.
    job.get_mut().remove("evaluation");
    let file = DeValue::String("program.bin".into());
    job.get_mut().insert(Spanned::new(0..0, "program".into()), Spanned::new(0..0, file));
    if let Some(Wrong { key, why, .. }) = check_table(job.get_ref()) {
        return Some(Err(JobError(format!("{name}: {key}: {why}"))));
    }
    let read = JobText::deserialize(Deserializer::from(job));
    Some(
        read.map_err(|error| JobError(format!("{name}: {}", error.message())))
            .and_then(|read| read.checked(name, text)),
    )
}

impl Job {
    /// The job of a run that has a program file. The result is that of [`Job::parse`]; if this version does not know the model
    /// kind, the file is the program.
    ///
    /// # Errors
    /// As [`Job::parse`].
    #[doc(hidden)] // for the layers above
    pub fn of_run(name: &str, text: &str) -> Result<Job, JobError> {
        Job::parse(name, text).or_else(|error| of_program_file(name, text).unwrap_or(Err(error)))
    }

    /// The job's program. `file` gives the bytes of the program file; a job that names such a file needs them. For a job with a
    /// model kind, they are compared with the program of that kind.
    ///
    /// # Errors
    /// If the job names a file and no bytes are given; if the bytes are no program, one that does not fit the job, or not the
    /// model kind's program.
    pub fn program(&self, file: Option<&[u8]>) -> Result<Program, JobError> {
        let wrong = |why: String| JobError(format!("program: {why}"));
        match (&self.source, file) {
            (ProgramSource::Model(model), file) => {
                let treatments =
                    model.treatments().map_err(|(key, why)| JobError(format!("{key}: {why}")))?;
                let program = Program::with_treatments(model.step_spec(), treatments);
                let Some(file) = file else { return Ok(program) };
                let right = encode(&program);
                if right == file {
                    return Ok(program);
                }
                let same = right.iter().zip(file).take_while(|(right, found)| right == found).count();
                let (found, due) = (file.len(), right.len());
                Err(wrong(format!(
                    "the file is not what the job's model kind gives: the first {same} bytes are equal, of {found} and {due}; file or job was changed, or the trainer ran another version"
                )))
            }
            (ProgramSource::File(_), Some(bytes)) => {
                let program = decode(bytes).map_err(|error| wrong(error.to_string()))?;
                match self.mismatch(&program) {
                    Some(why) => Err(wrong(why)),
                    None => Ok(program),
                }
            }
            (ProgramSource::File(path), None) => Err(wrong(format!("the file {path:?} is not given"))),
        }
    }

    /// The conflict between a program file and the job, if there is one.
    fn mismatch(&self, program: &Program) -> Option<String> {
        let numbers = [program.micro_batch, program.micro_batches, program.labels_per_sample];
        if let Some((key, why)) = batch_error(numbers, self.commit.granularity) {
            return Some(format!("{key}: {why}"));
        }
        if let Some((key, why)) = data_error(&self.data, &program.sample()) {
            return Some(format!("{key}: {why}"));
        }
        let labels: u32 = program.sample().last().map_or(0, |labels| labels.shape.iter().product());
        if program.labels_per_sample != labels {
            let said = program.labels_per_sample;
            return Some(format!("labels_per_sample: it is {said}, and a sample has {labels} labels"));
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

#[doc(hidden)] // for the layers above
impl ModelJob {
    /// The specification of a step of the job.
    pub fn step_spec(&self) -> StepSpec {
        StepSpec {
            model: self.model.clone(),
            optimizer: self.optimizer.optimizer.clone(),
            clip_norm: self.clip_norm,
            loss: self.loss,
            micro_batch: self.batch.micro_batch,
            micro_batches: self.batch.micro_batches,
            products: self.products.clone(),
        }
    }
}

#[doc(hidden)] // for the layers above
impl Job {
    /// The model kind that the job's program is derived from; `None` if the program is a file.
    pub fn model(&self) -> Option<&ModelJob> {
        match &self.source {
            ProgramSource::Model(model) => Some(model),
            ProgramSource::File(_) => None,
        }
    }

    /// The path of the job's program file, relative to the job file.
    pub fn program_file(&self) -> Option<&str> {
        match &self.source {
            ProgramSource::Model(_) => None,
            ProgramSource::File(path) => Some(path),
        }
    }

    /// True if the program never clips its gradients, so that every clip factor is 1. Only a model kind tells.
    pub fn never_clips(&self) -> bool {
        self.model().is_some_and(|model| model.clip_norm.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::tests::JOB;

    #[test]
    fn a_program_file_takes_the_place_of_what_describes_a_program() {
        const FILE: &str = r#"steps = 3
program = "gpt.program"
data = { kind = "bytes", path = "text.txt" }
schedule = { peak = 1e-3 }
"#;
        let job = Job::parse("job.toml", FILE).unwrap();
        assert_eq!(job.program_file(), Some("gpt.program"));
        assert!(!job.never_clips());
        let refused = |bytes: Option<&[u8]>| job.program(bytes).unwrap_err().to_string();
        assert_eq!(refused(None), "program: the file \"gpt.program\" is not given");
        assert_eq!(refused(Some(&[])), "program: the bytes end before the program does");
        for (key, value) in [
            ("clip_norm", "1.0"),
            ("loss", "{ smoothing = 0.1 }"),
            ("frozen", "[]"),
            ("digits", "{ all = 2 }"),
            ("batch", "{ micro_batch = 2 }"),
            ("optimizer", "{ kind = \"sgd\", momentum = 0.9, weight_decay = 0.0 }"),
        ] {
            let error = Job::parse("job.toml", &format!("{key} = {value}\n{FILE}")).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("job.toml:1: {key}: it cannot be together with `program`")),
                "{error}"
            );
        }
        let neither = FILE.replace("program = \"gpt.program\"\n", "");
        assert!(
            Job::parse("job.toml", &neither).unwrap_err().to_string().contains("model: the key is missing")
        );
        // These files do not fit the job's data, batch or rounding.
        let described = Job::parse("job.toml", JOB).unwrap();
        let bytes = tiebreak_contract::program::encoding::encode(&described.program(None).unwrap());
        assert!(job.program(Some(&bytes)).is_ok());
        assert!(described.program(Some(&bytes)).is_ok());
        assert!(
            described
                .program(Some(&bytes[1..]))
                .is_err_and(|why| why.0.contains("what the job's model kind gives"))
        );
        for (from, to, why) in [
            (
                "{ kind = \"bytes\", path = \"text.txt\" }",
                "{ kind = \"cifar10\", path = \"a\" }",
                "data.kind",
            ),
            ("schedule", "rounding = {}\nschedule", "leave the [rounding] table out"),
        ] {
            let job = Job::parse("job.toml", &FILE.replace(from, to)).unwrap();
            let error = job.program(Some(&bytes)).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
