//! A job's text: parsed, and refused with file, line and key where it cannot be carried out.

use super::check::{Wrong, check};
use super::data::CIFAR;
use super::sizes;
use super::spec::{DataSpec, Granularity, Job};
use crate::rounding::thresholds::Rounding;

/// The most bytes of a job file.
pub const JOB_MAX: u64 = 1 << 20;
/// The most samples of a batch.
const BATCH_MAX: u64 = 1 << 24;
/// The most micro-batches of a step whose operators are committed: every one has a trace of its own.
const TRACED_MICRO_BATCHES_MAX: u32 = 256;

/// What is wrong with a job, with file, line and key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct JobError(pub String);

/// A dotted key, and what is wrong with it.
type Found = Option<(String, String)>;

fn found(key: &str, why: impl Into<String>) -> Found {
    Some((key.to_string(), why.into()))
}

impl Job {
    /// Parses and validates a job's text; `name` is how errors call the file.
    ///
    /// # Errors
    /// If the text is no TOML, has an unknown key, or a value is not allowed: the message names the line.
    pub fn parse(name: &str, text: &str) -> Result<Job, JobError> {
        if let Some(Wrong { at, key, why }) = check(text) {
            return Err(JobError(format!("{name}:{}: {key}: {why}", line_at(text, at))));
        }
        let job: Job = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| line_at(text, span.start));
            let source = text.lines().nth(line - 1).unwrap_or("").trim();
            JobError(format!("{name}:{line}: {} (in `{source}`)", error.message()))
        })?;
        match error(&job) {
            None => Ok(job),
            Some((key, why)) => {
                let line = line_of(text, &key).map_or(String::new(), |line| format!(":{line}"));
                Err(JobError(format!("{name}{line}: {key}: {why}")))
            }
        }
    }
}

/// What is wrong with keys that are each within their bounds, if anything. Nothing here allocates by the job's numbers.
fn error(job: &Job) -> Found {
    if let Some((key, why)) = job.model.error() {
        return found(&format!("model.{key}"), why);
    }
    if let Some((key, why)) = job.schedule.error() {
        return found(&format!("schedule.{key}"), why);
    }
    batch_error(job).or_else(|| products_error(job)).or_else(|| sizes::error(job))
}

/// Of data and batches, and of how finely they are committed.
fn batch_error(job: &Job) -> Found {
    let fits = match (&job.data, job.model.images()) {
        (DataSpec::Bytes { .. }, images) => images.is_none(),
        // IDX files of bytes have one plane.
        (DataSpec::Idx { .. }, images) => {
            images.is_some_and(|images| images.shape.is_none_or(|[planes, ..]| planes == 1))
        }
        (DataSpec::Cifar10 { .. }, images) => images.is_some_and(|images| images.are(CIFAR)),
    };
    if !fits {
        let why = "this kind of data does not fit the model: a gpt wants bytes, an mlp or a resnet idx (one plane) or cifar10 (3 planes of 32 x 32)";
        return found("data.kind", why);
    }
    let samples = u64::from(job.batch.micro_batch) * u64::from(job.batch.micro_batches);
    if samples > BATCH_MAX {
        return found("batch.micro_batch", format!("the whole batch must have at most {BATCH_MAX} samples"));
    }
    if samples * u64::from(job.model.labels_per_sample()) > u64::from(u32::MAX) {
        return found("batch.micro_batches", "the whole batch has more labels than a u32 counts");
    }
    let operators = job.commit.granularity == Granularity::Operator;
    if operators && job.batch.micro_batches > TRACED_MICRO_BATCHES_MAX {
        let why = format!("at most {TRACED_MICRO_BATCHES_MAX} micro-batches when operators are committed");
        return found("batch.micro_batches", why);
    }
    None
}

/// Of digits and of rounding.
fn products_error(job: &Job) -> Found {
    for (class, digits) in &job.digits.class {
        if let Some(why) = digits.error() {
            return found(&format!("digits.class.{}.block", class.name()), why);
        }
    }
    if let Some((key, why)) = job.rounding.as_ref().and_then(Rounding::error) {
        return found(&format!("rounding.{key}"), why);
    }
    if job.rounding.is_some()
        && let Some((class, _)) = job.digits.class.iter().find(|(_, digits)| digits.block != 0)
    {
        let why = "products of the logged profile are not cut along K; leave block out";
        return found(&format!("digits.class.{}.block", class.name()), why);
    }
    None
}

fn line_at(text: &str, offset: usize) -> usize {
    text[..offset.min(text.len())].bytes().filter(|&b| b == b'\n').count() + 1
}

/// The line of a dotted key, or of its nearest ancestor that is written out.
fn line_of(text: &str, key: &str) -> Option<usize> {
    let root = toml::de::DeTable::parse(text).ok()?;
    let mut table = root.get_ref();
    let mut line = None;
    for part in key.split('.') {
        let Some((name, value)) = table.iter().find(|(name, _)| name.get_ref() == part) else { break };
        line = Some(line_at(text, name.span().start));
        match value.get_ref() {
            toml::de::DeValue::Table(inner) => table = inner,
            _ => break,
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::products::{ProductClass, ProductDigits};

    const JOB: &str = r#"steps = 3

[model]
kind = "gpt"
context = 8
layers = 1
heads = 2
width = 16

[data]
kind = "bytes"
path = "text.txt"

[optimizer]
kind = "adamw"
beta1 = 0.9
beta2 = 0.95
epsilon = 1e-8
weight_decay = 0.1

[schedule]
peak = 1e-3

[batch]
micro_batch = 2

[digits.class.head]
digits_a = 3
digits_b = 3
"#;

    #[test]
    fn a_job_is_read() {
        let job = Job::parse("job.toml", JOB).unwrap();
        assert_eq!(job.products().get(ProductClass::Head), ProductDigits::uniform(3));
        assert_eq!(job.products().get(ProductClass::Linear), ProductDigits::uniform(2));
        assert!(job.program().parameter_count() > 1000);
    }

    #[test]
    fn a_residual_network_must_fit_its_data_and_the_machine() {
        const RESNET: &str = r#"steps = 3
model = { kind = "resnet", height = 32, width = 32, planes = 3, stages = [8, 16], blocks = 2, classes = 10 }
data = { kind = "cifar10", path = "data_batch_1.bin" }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }
schedule = { peak = 1e-1 }
batch = { micro_batch = 2 }
"#;
        assert!(Job::parse("job.toml", RESNET).unwrap().program().parameter_count() > 8000);
        for (from, to, key) in [
            ("planes = 3", "planes = 1", "data.kind"),
            ("height = 32, width = 32", "height = 16, width = 64", "data.kind"),
            ("stages = [8, 16]", "stages = []", "model.stages"),
            ("stages = [8, 16]", "stages = [8, 0]", "model.stages"),
            ("blocks = 2", "blocks = 4294967295", "model.blocks"),
            ("height = 32", "height = 4294967295", "model.height"),
            ("stages = [8, 16]", "stages = [16384, 16384]", "batch.micro_batch"),
            ("micro_batch = 2", "micro_batch = 16777216", "batch.micro_batch"),
        ] {
            let text = RESNET.replace(from, to);
            assert_ne!(text, RESNET);
            let error = Job::parse("job.toml", &text).unwrap_err().to_string();
            assert!(error.contains(key), "{to}: {error}");
        }
        // IDX files hold one plane.
        let idx =
            RESNET.replace(r#""cifar10", path = "data_batch_1.bin""#, r#""idx", images = "i", labels = "l""#);
        assert!(Job::parse("job.toml", &idx).unwrap_err().to_string().contains("one plane"));
        assert!(Job::parse("job.toml", &idx.replace("planes = 3", "planes = 1")).is_ok());
    }

    #[test]
    fn errors_name_key_and_line() {
        let error = |from: &str, to: &str| {
            let text = JOB.replace(from, to);
            assert_ne!(text, JOB);
            Job::parse("job.toml", &text).unwrap_err().to_string()
        };
        assert_eq!(
            error("width = 16", "width = 15"),
            "job.toml:8: model.width: must be a multiple of heads (2)"
        );
        assert_eq!(error("steps = 3", "steps = 0"), "job.toml:1: steps: must be 1 to 33554432, is 0");
        assert_eq!(
            error("digits_a = 3", "digits_a = 9"),
            "job.toml:28: digits.class.head.digits_a: must be 1 to 4, is 9"
        );
        assert_eq!(
            error("beta2 = 0.95", "beta2 = 1.0"),
            "job.toml:17: optimizer.beta2: must be at least 0 and below 1, is 1.0"
        );
        assert!(error("micro_batch = 2", "micro_batch = 4294967295").contains("batch.micro_batch"));
        assert!(error("layers = 1", "layers = 1025").starts_with("job.toml:6: model.layers"));
        assert!(error("peak = 1e-3", "peak = nan").starts_with("job.toml:22: schedule.peak"));
    }

    #[test]
    fn errors_name_the_line_that_is_wrong_and_suggest() {
        let error = |from: &str, to: &str| {
            let text = JOB.replacen(from, to, 1);
            assert_ne!(text, JOB);
            Job::parse("job.toml", &text).unwrap_err().to_string()
        };
        for (from, to, wanted) in [
            ("layers = 1", "layer = 1", "6: model.layer: there is no such key; did you mean `layers`?"),
            ("width = 16", "wdith = 16", "8: model.wdith: there is no such key; did you mean `width`?"),
            ("width = 16", "d_model = 16", "8: model.d_model: there is no such key; did you mean `width`?"),
            (
                "beta1 = 0.9",
                "lr = 0.9",
                "16: optimizer.lr: there is no such key; did you mean `schedule.peak`?",
            ),
            ("steps = 3", "epochs = 3", "1: epochs: there is no such key; did you mean `steps`?"),
            (
                "micro_batch = 2",
                "batch_size = 2",
                "25: batch.batch_size: there is no such key; did you mean `micro_batch`?",
            ),
            ("path = ", "images = ", "12: data.images: there is no such key; here are kind, path"),
            ("heads = 2\n", "", "3: model.heads: the key is missing; it is an integer, 1 to 1024"),
            (
                "kind = \"gpt\"\n",
                "",
                "3: model.kind: the key is missing; it is one of \"gpt\", \"mlp\", \"resnet\"",
            ),
            ("[batch]\nmicro_batch = 2\n", "", "1: batch: the key is missing; it is a table"),
            (
                "\"gpt\"",
                "\"gtp\"",
                "4: model.kind: must be one of \"gpt\", \"mlp\", \"resnet\", is \"gtp\"; did you mean \"gpt\"?",
            ),
            ("layers = 1", "layers = \"1\"", "6: model.layers: must be an integer, 1 to 1024, is a text"),
            ("layers = 1", "layers = 1.0", "6: model.layers: must be an integer, 1 to 1024, is a number"),
            (
                "beta2 = 0.95",
                "beta2 = true",
                "17: optimizer.beta2: must be a number, at least 0 and below 1, is true or false",
            ),
            (
                "[digits.class.head]",
                "[digits.class.haed]",
                "27: digits.class.haed: there is no such key; did you mean `head`?",
            ),
            (
                "digits_b = 3",
                "",
                "27: digits.class.head.digits_b: the key is missing; it is an integer, 1 to 4",
            ),
            (
                "digits_b = 3",
                "digits_b = 3\nblock = 65",
                "30: digits.class.head.block: block must be 0 (all of K) or a power of two of at least 64",
            ),
            (
                "steps = 3",
                "steps = 3\ncommit = { granularity = \"layer\" }",
                "2: commit.granularity: must be one of \"step\", \"microbatch\", \"operator\", is \"layer\"",
            ),
            (
                "steps = 3",
                "steps = 3\ncheckpoint = { keep = 1 }",
                "2: checkpoint.every: the key is missing; it is an integer, at least 1",
            ),
            (
                "[schedule]\npeak = 1e-3\n",
                "[schedule]\npeak = 1e39\n",
                "22: schedule.peak: must be at least 0, is 1e39",
            ),
        ] {
            assert_eq!(error(from, to), format!("job.toml:{wanted}"));
        }
    }
}
