//! The parser of a job's text, which refuses jobs that cannot be carried out, with file, line and key.

use serde::Deserialize;

use super::check::{Wrong, check};
use super::data_keys::{Found, data_error, found};
use super::hiding::{self, HIDING};
use super::sizes;
use super::spec::{
    BATCH_MAX, BatchSpec, CheckpointSpec, CommitSpec, DataFiles, DataSpec, DigitsSpec, DisputeSpec,
    EvaluationSpec, Granularity, InitSpec, Job, MICRO_BATCHES_MAX, ModelJob, OptimizerSpec, ProgramSource,
    WeightNames,
};
use tiebreak_contract::program::models::{IDS, Model};
use tiebreak_contract::program::operators::LossRule;
use tiebreak_contract::program::schedule::Schedule;
use tiebreak_record::rounding::thresholds::Rounding;

/// The most bytes of a job file.
pub const JOB_MAX: u64 = 1 << 20;
/// The most micro-batches of a step whose operators are committed: every micro-batch has a trace of its own.
const TRACED_MICRO_BATCHES_MAX: u32 = 256;

/// The most characters of a line that an error shows.
const SHOWN_MAX: usize = 120;

/// The error in a job, with file, line and key.
///
/// ```
/// use tiebreak_job::Job;
///
/// let error = Job::parse("job.toml", "steps = 8\nstep = 9\n").unwrap_err().to_string();
/// assert!(error.starts_with("job.toml:2: step: "), "{error}");
/// let error = Job::parse("job.toml", "steps = 0\n").unwrap_err().to_string();
/// assert!(error.starts_with("job.toml:1: steps: "), "{error}");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct JobError(pub String);

/// A job's text, key by key, as serde reads it. [`Job::parse`] checks the text first.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobText {
    steps: u32,
    #[serde(default)]
    seed: u64,
    #[serde(default)]
    init: InitSpec,
    program: Option<String>,
    network: Option<String>,
    model: Option<Model>,
    data: DataSpec,
    optimizer: Option<OptimizerSpec>,
    schedule: Schedule,
    batch: Option<BatchSpec>,
    clip_norm: Option<f32>,
    loss: Option<LossRule>,
    digits: Option<DigitsSpec>,
    frozen: Option<Vec<String>>,
    rounding: Option<Rounding>,
    #[serde(default)]
    commit: CommitSpec,
    #[serde(default)]
    checkpoint: CheckpointSpec,
    evaluation: Option<EvaluationSpec>,
    dispute: Option<DisputeSpec>,
}

impl JobText {
    /// The job of this text; errors quote the text.
    pub(super) fn checked(self, name: &str, text: &str) -> Result<Job, JobError> {
        let checked = self.job().and_then(|job| match error(&job) {
            None => Ok(job),
            Some(wrong) => Err(wrong),
        });
        checked.map_err(|(key, why)| {
            let line = line_of(text, &key).map_or(String::new(), |line| format!(":{line}"));
            JobError(format!("{name}{line}: {key}: {why}"))
        })
    }

    /// The job; otherwise the wrong key and why. `check` has already refused missing keys and keys that exclude each other.
    fn job(self) -> Result<Job, (String, String)> {
        let missing = |key: &str| (key.to_string(), "the key is missing".to_string());
        if let Some(why) = self.rounding.as_ref().and_then(Rounding::error) {
            return Err((format!("rounding.{}", why.0), why.1));
        }
        let source = if let Some(path) = self.program {
            ProgramSource::File(path)
        } else if self.network.is_some() {
            let why = "the file is beside a program file that it gave: name that file with the key `program`";
            return Err(("network".into(), why.into()));
        } else {
            let digits = self.digits.unwrap_or_default();
            if let Some(wrong) = digits_error(&digits, self.rounding.is_some()) {
                return Err(wrong);
            }
            let mut model = self.model.ok_or_else(|| missing("model"))?;
            model.take(self.data.files.input());
            ProgramSource::Model(Box::new(ModelJob {
                model,
                optimizer: self.optimizer.ok_or_else(|| missing("optimizer"))?,
                batch: self.batch.ok_or_else(|| missing("batch"))?,
                clip_norm: self.clip_norm,
                loss: self.loss.unwrap_or_default(),
                products: digits.products(self.rounding.as_ref()),
                frozen: self.frozen.unwrap_or_default(),
            }))
        };
        Ok(Job {
            steps: self.steps,
            seed: self.seed,
            init: self.init,
            data: DataSpec { uncounted: self.loss.and_then(|loss| loss.ignore), ..self.data },
            source,
            network: self.network,
            schedule: self.schedule,
            rounding: self.rounding,
            commit: self.commit,
            checkpoint: self.checkpoint,
            evaluation: self.evaluation,
            dispute: self.dispute,
        })
    }
}

impl Job {
    /// Parses and validates a job's text; `name` is the file's name in errors.
    ///
    /// # Errors
    /// If the text is no TOML, has an unknown key, or a value is not allowed: the message names the line.
    ///
    /// ```
    /// use tiebreak_job::Job;
    ///
    /// let text = r#"
    /// steps = 8
    /// model = { kind = "mlp", inputs = 6, hidden = [4], classes = 3 }
    /// data = { kind = "idx", images = "images", labels = "labels" }
    /// optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }
    /// schedule = { peak = 0.5 }
    /// batch = { micro_batch = 2, micro_batches = 3 }
    /// "#;
    /// let job = Job::parse("job.toml", text)?;
    /// assert_eq!((job.steps, job.program(None)?.samples()), (8, 6));
    /// # Ok::<(), tiebreak_job::JobError>(())
    /// ```
    pub fn parse(name: &str, text: &str) -> Result<Job, JobError> {
        if let Some(Wrong { at, key, why }) = check(text) {
            return Err(JobError(format!("{name}:{}: {key}: {why}", line_at(text, at))));
        }
        let parsed: JobText = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| line_at(text, span.start));
            let source = text.lines().nth(line - 1).unwrap_or("").trim();
            let source: String = source.chars().take(SHOWN_MAX).collect();
            JobError(format!("{name}:{line}: {} (in `{source}`)", error.message()))
        })?;
        parsed.checked(name, text)
    }
}

/// The error in keys that are each within their bounds, if there is one. Nothing here allocates by the job's numbers.
fn error(job: &Job) -> Found {
    // The model comes first, since its numbers bound everything that is computed from them.
    if let Some((key, why)) = job.model().and_then(|job| job.model.error()) {
        return found(&format!("model.{key}"), why);
    }
    if let Some((key, why)) = job.schedule.error() {
        return found(&format!("schedule.{key}"), why);
    }
    if let Some(why) = hiding::error(job) {
        return found("commit.scheme", format!("{HIDING} hides what commitments are of, and {why}"));
    }
    if let Some((key, why)) = job.init.error() {
        return found(&format!("init.{key}"), why);
    }
    let files = job.evaluation.as_ref().and_then(|evaluation| evaluation.files.as_ref());
    if let Some(why) = files.and_then(|files| job.data.files.with_paths(files).err()) {
        return found("evaluation.files", why);
    }
    match &job.source {
        ProgramSource::Model(model) => model_error(job, model),
        ProgramSource::File(path) => file_error(job, path),
    }
}

/// The error in a job whose program is a file.
fn file_error(job: &Job, path: &str) -> Found {
    if path.is_empty() {
        return found("program", "a file's path is wanted");
    }
    if job.network.as_deref() == Some("") {
        return found("network", "a file's path is wanted");
    }
    if job.evaluation.is_some() && job.network.is_none() {
        let why = "a program file does not say how its model is evaluated: name the network file that gave the program with the key `network`";
        return found("evaluation", why);
    }
    let names_only = "a program file has its own names only: leave the key out";
    if job.init.names != WeightNames::Program {
        return found("init.names", names_only);
    }
    if job.init.adapter.is_some() {
        return found("init.adapter", names_only);
    }
    if !job.init.reinitialize.is_empty() {
        let why =
            "a program file is without a model kind, whose parameters these would be: leave the key out";
        return found("init.reinitialize", why);
    }
    None
}

/// The error in a program that is derived from a model kind.
fn model_error(job: &Job, model: &ModelJob) -> Found {
    if let Some(wrong) = data_error(&job.data, &model.model.batch(1)) {
        return Some(wrong);
    }
    match (model.model.learns_masked(), &job.data.masking) {
        (true, None) => {
            let why = "a bert without classes learns the tokens that its inputs mask: write the table [data.masking] with `token`, the token that stands for a masked one";
            return found("data.masking", why);
        }
        (false, Some(_)) => {
            let why = "this model learns no masked tokens, as only a bert without classes does; leave the table out";
            return found("data.masking", why);
        }
        _ => {}
    }
    let are_ids = matches!(&job.data.files, DataFiles::Arrays(arrays) if arrays.has_ids());
    match (&*model.model.batch(1)[0].name, are_ids) {
        (IDS, false) => {
            let why = "a bert with classes takes token ids with a label: write kind = \"arrays\" and dtype = \"u16\" or \"u32\"";
            return found("data.kind", why);
        }
        (IDS, true) | (_, false) => {}
        (_, true) => {
            let why = "u16 and u32 are token ids with a label, which a program file or a bert with classes takes, and no other model";
            return found("data.dtype", why);
        }
    }
    let (BatchSpec { micro_batch, micro_batches }, labels) = (&model.batch, model.model.labels_per_sample());
    let wrong = batch_error([*micro_batch, *micro_batches, labels], job.commit.granularity);
    if let Some((key, why)) = wrong {
        return found(&format!("batch.{key}"), why);
    }
    let labels = model.model.batch(1).into_iter().find(|tensor| tensor.name == "labels");
    let classes = labels.map_or(0, |labels| labels.below);
    if let Some(ignored) = model.loss.ignore.filter(|label| *label >= classes) {
        let why = format!("must be a label of the model, which are below {classes}, is {ignored}");
        return found("loss.ignore", why);
    }
    if job.init.adapter.is_some() && model.model.frozen() == 0 {
        return found("init.adapter", "the model has no adapters: a table [model.lora] describes them");
    }
    let unnamed = || {
        let named = job.init.names == WeightNames::Program || model.model.released().is_some();
        let why =
            "this model is in neither transformers nor torchvision: write \"program\", or leave the key out";
        if named { None } else { found("init.names", why) }
    };
    let untreated = || model.treatments().err().map(|(key, why)| (key.to_string(), why));
    let undrawn = || job.reinitialized().err().map(|why| ("init.reinitialize".to_string(), why));
    sizes::error(job, model).or_else(untreated).or_else(unnamed).or_else(undrawn)
}

/// The error in the numbers of samples of a micro-batch, of micro-batches and of labels of a sample, or in the granularity of
/// commitments: (key, why).
pub(super) fn batch_error(
    [micro_batch, micro_batches, labels]: [u32; 3],
    granularity: Granularity,
) -> Option<(&'static str, String)> {
    if !(1..=MICRO_BATCHES_MAX).contains(&micro_batches) {
        return Some(("micro_batches", format!("must be 1 to {MICRO_BATCHES_MAX}")));
    }
    let samples = u64::from(micro_batch) * u64::from(micro_batches);
    if samples == 0 || samples > BATCH_MAX {
        return Some(("micro_batch", format!("the whole batch must have 1 to {BATCH_MAX} samples")));
    }
    if samples * u64::from(labels) > u64::from(u32::MAX) {
        return Some(("micro_batches", "the whole batch has more labels than a u32 counts".into()));
    }
    if granularity == Granularity::Operator && micro_batches > TRACED_MICRO_BATCHES_MAX {
        let why = format!("at most {TRACED_MICRO_BATCHES_MAX} micro-batches when operators are committed");
        return Some(("micro_batches", why));
    }
    None
}

/// The error in the products' digits.
fn digits_error(digits: &DigitsSpec, logged: bool) -> Found {
    for (class, digits) in &digits.class {
        if let Some(why) = digits.error() {
            return found(&format!("digits.class.{}.block", class.name()), why);
        }
    }
    if logged && let Some((class, _)) = digits.class.iter().find(|(_, digits)| digits.block != 0) {
        let why = "products of the logged profile are not cut along K; leave block out";
        return found(&format!("digits.class.{}.block", class.name()), why);
    }
    None
}

fn line_at(text: &str, offset: usize) -> usize {
    text[..offset.min(text.len())].bytes().filter(|&b| b == b'\n').count() + 1
}

/// The line of a dotted key, or of its nearest ancestor that the text contains.
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
pub(super) mod tests {
    use super::*;
    use tiebreak_contract::program::products::{ProductClass, ProductDigits};

    pub(crate) const JOB: &str = r#"steps = 3

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
        let job = Job::parse("job.toml", &JOB.replace("digits_b = 3", "digits_b = 1")).unwrap();
        let products = &job.model().unwrap().products;
        let head = ProductDigits { digits_a: 3, digits_b: 1, block: 0 };
        assert_eq!(products.get(ProductClass::Head), head);
        assert_eq!(products.get(ProductClass::Linear), ProductDigits::uniform(3));
        assert!(job.program(None).unwrap().parameter_count() > 1000);
    }

    #[test]
    fn a_residual_network_must_fit_its_data_and_the_machine() {
        const RESNET: &str = r#"steps = 3
seed = 1
model = { kind = "resnet", height = 32, width = 32, planes = 3, stages = [8, 16], blocks = 2, classes = 10 }
data = { kind = "cifar10", path = "data_batch_1.bin" }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }
schedule = { peak = 1e-1 }
batch = { micro_batch = 2 }
"#;
        assert!(Job::parse("job.toml", RESNET).unwrap().program(None).unwrap().parameter_count() > 8000);
        for (from, to, key) in [
            ("planes = 3", "planes = 1", "data.kind"),
            ("height = 32, width = 32", "height = 16, width = 64", "data.kind"),
            ("stages = [8, 16]", "stages = []", "model.stages"),
            ("stages = [8, 16]", "stages = [8, 0]", "model.stages"),
            ("blocks = 2", "blocks = 2, groups = 2", "model.groups"),
            (
                "blocks = 2",
                "blocks = 2, block = \"bottleneck\", width_per_group = 7",
                "model.width_per_group",
            ),
            ("blocks = 2", "blocks = 2, block = \"bottleneck\", groups = 2, convolution = 2", "model.groups"),
            ("blocks = 2", "blocks = 4294967295", "model.blocks"),
            ("height = 32", "height = 4294967295", "model.height"),
            ("stages = [8, 16]", "stages = [16384, 16384]", "batch.micro_batch"),
            ("micro_batch = 2", "micro_batch = 16777216", "batch.micro_batch"),
            ("blocks = 2", "blocks = [2, 2, 2]", "model.blocks"),
            ("blocks = 2", "blocks = [2, 0]", "model.blocks"),
            ("blocks = 2", "blocks = 2, stem = \"none\"", "model.stem"),
            ("seed = 1", "loss = { ignore = 10 }", "loss.ignore"),
            ("seed = 1", "loss = { smoothing = 1.0 }", "loss.smoothing"),
            ("blocks = 2", "blocks = 2, norm = \"none\"", "model.norm"),
            ("blocks = 2", "blocks = 2, norm_epsilon = 0.0", "model.norm_epsilon"),
            ("blocks = 2", "blocks = 2, norm_momentum = 0.2", "model.norm_momentum"),
            ("blocks = 2", "blocks = 2, norm = \"batch\", norm_momentum = 1.0", "model.norm_momentum"),
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
    fn frozen_parameters_are_named_by_patterns() {
        let parse = |frozen: &str| Job::parse("job.toml", &format!("frozen = [{frozen}]\n{JOB}"));
        let program = parse("\"block0.norm*.gain\"").unwrap().program(None).unwrap();
        let frozen: Vec<&str> =
            program.parameters.iter().filter(|p| p.frozen).map(|p| p.name.as_str()).collect();
        assert_eq!(frozen, ["block0.norm1.gain", "block0.norm2.gain"]);
        let error = |frozen: &str| parse(frozen).unwrap_err().to_string();
        let unknown = error("\"token_embedding\", \"block7.*\"");
        assert!(unknown.starts_with("job.toml:1: frozen: no parameter is named \"block7.*\""), "{unknown}");
        assert!(unknown.contains("token_embedding, position_embedding"), "{unknown}");
        assert!(error("\"*\"").contains("every parameter is frozen"));
        let grouped = |names: &str| {
            let group = format!(
                "weight_decay = 0.1\n[[optimizer.group]]\nparameters = [{names}]\nrate_factor = 0.5\n"
            );
            Job::parse("job.toml", &JOB.replace("weight_decay = 0.1\n", &group))
        };
        let rates = |job: Job| {
            job.program(None)
                .unwrap()
                .update
                .nodes
                .iter()
                .filter(|n| n.primitive.name() == "own_rate.v1")
                .count()
        };
        assert_eq!(rates(grouped("\"*.gain\"").unwrap()), 1);
        let unknown = grouped("\"*.gain\", \"head*\"").unwrap_err().to_string();
        assert!(
            unknown.starts_with("job.toml:20: optimizer.group: no parameter is named \"head*\""),
            "{unknown}"
        );
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
            ("path = ", "file = ", "12: data.file: there is no such key; did you mean `path`?"),
            (
                "steps = 3",
                "steps = 3\ninit = { checkpoint = \"a\" }",
                "2: init.checkpoint: there is no such key; did you mean `weights`?",
            ),
            (
                "path = \"text.txt\"",
                "path = \"text.txt\"\npaths = [\"b\"]",
                "12: data.path: it cannot be together with `paths`; leave one of them out",
            ),
            (
                "path = ",
                "images = ",
                "12: data.images: there is no such key; here are kind, sampling, copy, validation_split, augment, masking, path, paths",
            ),
            ("heads = 2\n", "", "3: model.heads: the key is missing; it is an integer, 1 to 1024"),
            (
                "kind = \"gpt\"\n",
                "",
                "3: model.kind: the key is missing; it is one of \"gpt\", \"llama\", \"mlp\", \"resnet\", \"vgg11\", \"bert\", \"vit\"",
            ),
            (
                "[batch]\nmicro_batch = 2\n",
                "",
                "1: batch: the key is missing; it is a table; or write `program`",
            ),
            (
                "\"gpt\"",
                "\"gtp\"",
                "4: model.kind: must be one of \"gpt\", \"llama\", \"mlp\", \"resnet\", \"vgg11\", \"bert\", \"vit\", is \"gtp\"; did you mean \"gpt\"?",
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
