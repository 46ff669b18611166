//! Every key that a job file may have, as one table. Errors (`check`), `docs/JOB.md` and the JSON Schema (`tiebreak job
//! reference`) are made from the table. A test compares it with the keys that serde accepts (`tests/cli/job_reference.rs`). A new
//! key is one entry here beside its field in [`super::spec`].

use super::spec::{BATCH_MAX, CROP_MAX, MICRO_BATCHES_MAX};
use tiebreak_contract::program::keys::{BELOW_ONE, NOT_NEGATIVE, U32_MAX, integer, key};
pub use tiebreak_contract::program::keys::{Key, Presence, Type};
use tiebreak_contract::program::models;

use Presence::{Absent, Optional, Required};
use Type::{Boolean, Choice, Table, Tables, Text, Texts};

const THRESHOLD: &str = "2^-32 of the norms (bits = 16), 2^-60 of them (more bits), 2^-24 of a step (preset)";

/// The keys at the top of the file.
const TOP: &[Key] = &[
    key("steps", integer(1, 1 << 25), Required, "40", "Training steps of the run.").unit("steps"),
    key(
        "seed",
        integer(0, u64::MAX as i128),
        Optional("0"),
        "7",
        "Any number. The run's randomness follows from the text of the whole job file, so another number makes another run.",
    ),
    key(
        "clip_norm",
        Type::Number { least: 0.0, above: true, below: None },
        Absent("the gradient is not clipped"),
        "1.0",
        "The greatest norm of a step's gradient, over all parameters together.",
    )
    .not_with("program"),
    key(
        "frozen",
        Type::List { of: &Text, least: 0, most: 1 << 16 },
        Absent("every parameter is trained"),
        r#"["*embedding"]"#,
        "Parameters that training leaves as they are: names, in which `*` stands for any characters.",
    )
    .not_with("program")
    .rule("each matches a parameter, at most 256 have a `*`, and one parameter is left to train"),
    key(
        "program",
        Text,
        Absent("the program is made from `model`, `optimizer`, `batch`, `digits`, `clip_norm`, `loss` and `frozen`"),
        r#""program.bin""#,
        "A program file (docs/ARITHMETIC.md, section 9; `tiebreak program export` writes one).",
    )
    .rule("not together with the keys that it replaces"),
    key(
        "network",
        Text,
        Absent("evaluations, predictions and answers of a program file need `--network`"),
        r#""network.json""#,
        "The network file that gave `program` (docs/NETWORKS.md). A run keeps a copy, and takes the model of evaluations, predictions and answers from it.",
    )
    .rule("only with `program`, which it has to give")
    .beside(r#"program = "program.bin""#),
    key("model", Table, Required, "", "The model.").or("program"),
    key("data", Table, Required, "", "The files of the samples, and how samples are drawn (docs/DATA.md)."),
    key("optimizer", Table, Required, "", "The optimizer.").or("program"),
    key("schedule", Table, Required, "", "The learning rate of each step."),
    key("batch", Table, Required, "", "How many samples a step has.").or("program"),
    key("loss", Table, Absent("the defaults of its keys"), "", "The targets of the loss, and the labels that count.").not_with("program"),
    key("init", Table, Absent("from the seed"), "", "What the initial state is made from."),
    key(
        "digits",
        Table,
        Absent("the defaults of docs/ARITHMETIC.md, section 8.1"),
        "",
        "Digits of the matrix products.",
    )
    .not_with("program"),
    key(
        "rounding",
        Table,
        Absent("the exact profile"),
        "",
        "The logged profile: native kernels may compute the products (docs/ROUNDING.md).",
    ),
    key(
        "commit",
        Table,
        Absent("the defaults of its keys"),
        "",
        "What is committed, and how often it is signed.",
    ),
    key("checkpoint", Table, Absent("every = 100, all kept"), "", "How often the state is written."),
    key(
        "evaluation",
        Table,
        Absent("nothing is evaluated while training"),
        "",
        "Evaluations while training, by loss, accuracy and perplexity (docs/ARITHMETIC.md, section 8.6). They decide no record.",
    )
    .rule("with `program` only beside `network`"),
    key("dispute", Table, Absent("the terms of a dispute say how long replays may take"), "", "How long a dispute about the run may take (docs/DISPUTE.md). It decides no record."),
];

const MODEL: &[Key] = &[key("model.kind", Choice(models::KINDS), Required, r#""gpt""#, models::KINDS_ARE)];

const LOSS: &[Key] = &[
    key("loss.smoothing", BELOW_ONE, Optional("0.0"), "0.1", "Label smoothing: this part of each target is shared by all classes."),
    key("loss.ignore", integer(0, (1 << 20) - 1), Absent("every label counts"), "0", "The label whose places have no loss, such as padding. The mean is over the labels of the step that count.").rule("below the model's `vocabulary` or `classes`"),
];

const INIT: &[Key] = &[
    key("init.weights", Type::List { of: &Text, least: 0, most: 4096 }, Optional("[]"), r#"["model.safetensors"]"#, "Safetensors files of the parameters, or their addresses, by the names of the tensors; buffers too if they are there, else as the program begins them. Optimizer slots begin at zero.").not_with("run"),
    key("init.adapter", Text, Absent("adapters are drawn from the seed with `names = \"hf\"`; else the files of weights have them"), r#""adapter_model.safetensors""#, "The file of the adapters of `[model.lora]`, in PEFT's names, see docs/WEIGHTS.md.").rule("only with `weights`, and a model that has adapters").beside(r#"weights = ["model.safetensors"]"#),
    key("init.names", Choice(&["program", "hf"]), Optional(r#""program""#), r#""hf""#, "The names and layouts of the tensors in these files: the program's own, or those of transformers (`gpt`, `llama`), torchvision, or `torch.nn.Sequential` (`mlp`), see docs/WEIGHTS.md.").rule("`hf` only with `weights`, and a model kind that one of them has").beside(r#"weights = ["model.safetensors"]"#),
    key("init.prefix", Text, Optional(r#""""#), r#""_orig_mod.""#, "The text before the name of every tensor in these files, as `torch.compile` (`_orig_mod.`) and `DataParallel` (`module.`) put it there. `tiebreak import` finds it.").rule("only with `weights`; at most 256 bytes").beside(r#"weights = ["model.safetensors"]"#),
    key("init.reinitialize", Type::List { of: &Text, least: 0, most: 1 << 16 }, Optional("[]"), r#"["final_norm.*"]"#, "Parameters and buffers that are drawn anew, as if there were no files: names as the program has them, in which `*` stands for any characters. So a new head is trained for another number of classes; the files may have these tensors in other shapes, or not at all.").rule("only with `weights`; each matches a parameter or buffer, at most 256 have a `*`, and one parameter is in the files").beside(r#"weights = ["model.safetensors"]"#),
    key("init.run", Text, Absent("no run"), r#""runs/first""#, "The folder of a finished run with the same parameters, or its address: its final state."),
    key("init.optimizer_state", Boolean, Optional("false"), "true", "Whether the run's optimizer slots are taken too; if not they begin at zero.").rule("true only with `run`").beside(r#"run = "runs/first""#),
];

/// The most tokens that are never masked.
const NEVER_MAX: usize = 256;
const TOKEN: Type = integer(0, (1 << 20) - 1);
const FILES: Type = Texts { most: 4096 };
const ONE_FILE: &str = "One file: the same as `paths` with one.";

const DATA: &[Key] = &[
    key("data.kind", Choice(&["bytes", "tokens", "idx", "cifar10", "cifar100", "arrays"]), Required, r#""bytes""#, "Tokens that are bytes, or token ids (for a gpt, a llama or a bert without classes); images and labels in the IDX format of MNIST, records of CIFAR-10's or CIFAR-100's binary format, or labelled arrays (docs/DATA.md). A file whose name ends in .gz is unpacked when a run is created.").rule("a gpt, a llama or a bert without classes wants `bytes` or `tokens`, a bert with classes `arrays` of token ids; every other model wants `idx` (one plane), `cifar10` or `cifar100` (3072 bytes, 3 planes of 32 x 32) or `arrays`"),
    key("data.sampling", Choice(&["permutation", "with_replacement", "in_order"]), Optional(r#""permutation""#), r#""with_replacement""#, "`permutation`: every sample once an epoch, each epoch in an order of its own. `with_replacement`: every place of a batch draws from all samples. `in_order`: the samples as the files have them, windows of a text one behind the other; the trainer chooses the order (docs/DATA.md)."),
    key("data.copy", Boolean, Optional("true"), "false", "Whether the run holds a copy of the files. If not it holds what checks them, and an auditor says where they are (`--data`).").rule("true if a file's name ends in .gz"),
    key("data.validation_split", Type::Number { least: 0.0, above: true, below: Some(1.0) }, Absent("every sample may be drawn"), "0.1", "The share of the samples, the last ones in the order of the files, that no step draws: what evaluations take, unless they have files of their own (docs/DATA.md).").rule("some samples are kept, and some left to draw from"),
    key("data.augment", Table, Absent("images are taken as they are"), "", "How images are moved at random as a step draws them: anew for every step and place (docs/ARITHMETIC.md, section 6). An evaluation takes them as they are.").rule("not with `bytes` or `tokens`"),
    key("data.augment.crop", integer(0, CROP_MAX as i128), Optional("0"), "4", "Pixels of zeros around an image, out of which one of its size is cut at random; 0 = none.").unit("pixels").rule("below the image's rows and columns"),
    key("data.augment.flip", Boolean, Optional("false"), "true", "Whether an image is mirrored, left to right, with probability 1/2."),
    key("data.masking", Table, Absent("nothing is masked"), "", "Tokens that a bert has to find: drawn anew for every step and place (docs/ARITHMETIC.md, section 6). An evaluation draws them by the place of a sample alone.").rule("required by a bert without classes, and not with another model or a mask; only with `loss.ignore`"),
    key("data.masking.token", integer(0, (1 << 20) - 1), Required, "256", "The token that stands for a masked one, such as BERT's `[MASK]`, 103.").rule("below `vocabulary`"),
    key("data.masking.probability", Type::Number { least: 0.0, above: true, below: None }, Optional("0.15"), "0.3", "The probability that a position is chosen. Chosen positions have a loss, and no others.").rule("at most 1, and above 2^-33"),
    key("data.masking.mask_share", NOT_NEGATIVE, Optional("0.8"), "0.9", "The share of the chosen positions whose input becomes `token`.").rule("at most 1"),
    key("data.masking.random_share", NOT_NEGATIVE, Optional("0.1"), "0.0", "The share of the chosen positions whose input becomes a random token below `vocabulary`. The rest of them keep their token.").rule("with `mask_share` at most 1"),
    key("data.masking.never", Type::List { of: &TOKEN, least: 0, most: NEVER_MAX }, Optional("[]"), "[0, 101, 102]", "Tokens that are never chosen, such as `[PAD]`, `[CLS]` and `[SEP]`. `loss.ignore` is never chosen either.").rule("each below `vocabulary`"),
    key("data.path", Text, Required, r#""text.txt""#, ONE_FILE).kind("bytes").or("paths"),
    key("data.paths", FILES, Absent("`path` is required"), r#"["one.txt", "two.txt"]"#, "The files of bytes. A sample is a window inside one of them.").kind("bytes").not_with("path"),
    key("data.path", Text, Required, r#""tokens.bin""#, ONE_FILE).kind("tokens").or("paths"),
    key("data.paths", FILES, Absent("`path` is required"), r#"["one.npy", "two.npy"]"#, "The files of token ids: .npy, or nothing but the ids. A sample is a window inside one of them.").kind("tokens").not_with("path"),
    key("data.dtype", Choice(&["u16", "u32"]), Required, r#""u16""#, "The ids' type, little-endian.").kind("tokens"),
    key("data.mask", Text, Absent("every target counts"), r#""tokens.mask.npy""#, "One file: the same as `masks` with one.").kind("tokens").not_with("masks").rule("only with `loss.ignore`"),
    key("data.masks", FILES, Absent("every target counts"), r#"["tokens.mask.npy"]"#, "A file of bytes for each file of token ids, with one byte for each token: 1 where the loss counts the token as a target, 0 where it does not. So a model learns the answers of a chat alone (docs/how-to/fine-tune-on-chat.md).").kind("tokens").not_with("mask").rule("as many as `paths`, only with `loss.ignore`"),
    key("data.windows", Choice(&["every", "separate"]), Optional(r#""every""#), r#""separate""#, "The tokens at which samples begin. `every`: each token that a whole window follows. `separate`: the first token of a file, and each token behind a window, so that a sample can be one conversation (docs/DATA.md).").kind("tokens"),
    key("data.images", Text, Required, r#""train-images-idx3-ubyte""#, "The file of images.").kind("idx"),
    key("data.labels", Text, Required, r#""train-labels-idx1-ubyte""#, "The file of labels.").kind("idx"),
    key("data.path", Text, Required, r#""data_batch_1.bin""#, ONE_FILE).kind("cifar10").or("paths"),
    key("data.paths", FILES, Absent("`path` is required"), r#"["data_batch_1.bin", "data_batch_2.bin"]"#, "The files of records: a label and 3072 bytes each.").kind("cifar10").not_with("path"),
    key("data.path", Text, Required, r#""train.bin""#, ONE_FILE).kind("cifar100").or("paths"),
    key("data.paths", FILES, Absent("`path` is required"), r#"["train.bin"]"#, "The files of records: two labels and 3072 bytes each.").kind("cifar100").not_with("path"),
    key("data.labels", Choice(&["fine", "coarse"]), Required, r#""fine""#, "Which label is learned: one of 100 classes, or one of 20 superclasses.").kind("cifar100"),
    key("data.inputs", Text, Required, r#""inputs.npy""#, "The file of inputs, .npy or .safetensors: an array whose first dimension is over samples.").kind("arrays"),
    key("data.labels", Text, Required, r#""labels.npy""#, "The file of labels, integers; it may be the same.").kind("arrays"),
    key("data.dtype", Choice(&["u8", "u16", "u32", "f16", "bf16", "f32"]), Required, r#""f32""#, "The inputs' type: u8 are pixels, u16 and u32 the token ids of a program file or of a bert with classes, the others numbers that the model takes as they are.").kind("arrays"),
    key("data.inputs_tensor", Text, Absent("the file is .npy"), r#""inputs""#, "The inputs' name in a safetensors file.").kind("arrays").rule("required with a safetensors file, and only there").beside(r#"inputs = "inputs.safetensors""#),
    key("data.labels_tensor", Text, Absent("the file is .npy"), r#""labels""#, "The labels' name in a safetensors file.").kind("arrays").rule("required with a safetensors file, and only there").beside(r#"labels = "labels.safetensors""#),
];

const OPTIMIZER: &[Key] = &[
    key("optimizer.kind", Choice(&["adamw", "sgd"]), Required, r#""adamw""#, "AdamW, or SGD with momentum."),
    key(
        "optimizer.decay",
        Choice(&["decoupled", "coupled"]),
        Optional(r#""decoupled""#),
        r#""coupled""#,
        "Where weight decay enters. `decoupled`: a step takes learning rate * weight_decay * p off a weight p. `coupled`: weight_decay * p is added to its clipped gradient, as torch.optim.SGD and torch.optim.Adam do.",
    ),
    key(
        "optimizer.group",
        Tables { most: 256 },
        Absent("every parameter is treated alike"),
        "",
        "Parameters with a weight decay or a learning rate of their own; the first group that names a parameter has it.",
    ),
    key(
        "optimizer.group.parameters",
        Type::List { of: &Text, least: 1, most: 1 << 16 },
        Required,
        r#"["*bias", "*gain"]"#,
        "The group's parameters: names, in which `*` stands for any characters.",
    )
    .rule("each matches a parameter, and at most 256 of all groups have a `*`"),
    key(
        "optimizer.group.weight_decay",
        NOT_NEGATIVE,
        Absent("as outside of groups"),
        "0.0",
        "The weight decay of all the group's parameters, biases and gains too. Outside of groups only matrices, tables and kernels decay.",
    ),
    key(
        "optimizer.group.rate_factor",
        NOT_NEGATIVE,
        Optional("1.0"),
        "0.1",
        "The group's learning rate is this times that of the schedule.",
    ),
    key("optimizer.beta1", BELOW_ONE, Required, "0.9", "The decay of the first moment.").kind("adamw"),
    key("optimizer.beta2", BELOW_ONE, Required, "0.95", "The decay of the second moment.").kind("adamw"),
    key("optimizer.epsilon", NOT_NEGATIVE, Required, "1e-8", "The addend of the denominator.").kind("adamw"),
    key(
        "optimizer.weight_decay",
        NOT_NEGATIVE,
        Required,
        "0.1",
        "The weight decay of matrices, tables and kernels; `decay` says where it enters.",
    )
    .kind("adamw"),
    key("optimizer.momentum", BELOW_ONE, Required, "0.9", "The decay of the momentum.").kind("sgd"),
    key(
        "optimizer.weight_decay",
        NOT_NEGATIVE,
        Required,
        "5e-4",
        "The weight decay of matrices, tables and kernels; `decay` says where it enters.",
    )
    .kind("sgd"),
];

const SCHEDULE_AND_BATCH: &[Key] = &[
    key("schedule.peak", NOT_NEGATIVE, Required, "3e-3", "The learning rate after the warm-up."),
    key(
        "schedule.warmup",
        integer(0, U32_MAX),
        Optional("0"),
        "5",
        "Steps of linear warm-up: step t of them has peak * t / warmup.",
    )
    .unit("steps"),
    key(
        "schedule.floor",
        NOT_NEGATIVE,
        Absent("0 with `kind`; the rate stays at the peak without"),
        "3e-4",
        "The learning rate of the last step, to which a line or a cosine leads from the peak.",
    )
    .rule("at most `peak`; only for a line or a cosine"),
    key(
        "schedule.kind",
        Choice(&["constant", "linear", "cosine", "step"]),
        Absent("`cosine` if there is a `floor`, else `constant`"),
        r#""linear""#,
        "How the rate falls after the warm-up: not at all, in a line or along a cosine to `floor`, or by the factor `gamma` after certain steps.",
    ),
    key(
        "schedule.gamma",
        BELOW_ONE,
        Absent("the rate has no steps"),
        "0.1",
        "The factor by which the rate falls.",
    )
    .rule("required with kind `step`, and only there")
    .beside("kind = \"step\"\nevery = 10"),
    key(
        "schedule.every",
        integer(1, U32_MAX),
        Absent("the rate has no steps, or falls after `milestones`"),
        "10",
        "The rate falls after every so many steps, those of the warm-up counted.",
    )
    .unit("steps")
    .not_with("milestones")
    .rule("only with kind `step`")
    .beside("kind = \"step\"\ngamma = 0.1"),
    key(
        "schedule.milestones",
        Type::List { of: &integer(1, U32_MAX), least: 1, most: 1 << 10 },
        Absent("the rate has no steps, or falls after `every` so many"),
        "[20, 30]",
        "The steps after which the rate falls, ascending; those of the warm-up are counted.",
    )
    .unit("steps")
    .rule("only with kind `step`")
    .beside("kind = \"step\"\ngamma = 0.1"),
    key("batch.micro_batch", integer(1, BATCH_MAX as i128), Required, "4", "Samples of a micro-batch.")
        .unit("samples")
        .rule("micro_batch * micro_batches at most 16777216, and no tensor of 2^31 elements or more"),
    key(
        "batch.micro_batches",
        integer(1, MICRO_BATCHES_MAX as i128),
        Optional("1"),
        "2",
        "Micro-batches of a step: their gradients are added before the update.",
    )
    .unit("micro-batches")
    .rule("at most 256 if operators are committed"),
];

const PRODUCTS: &[Key] = &[
    key("digits.all", integer(1, 4), Absent("the defaults of docs/ARITHMETIC.md, section 8.1"), "3", "Base-256 digits of both operands of every product.").unit("digits"),
    key("digits.class", Table, Absent("no class has digits of its own"), "", "Classes of products with digits of their own, whatever `all` says."),
    key("digits.class.*", Table, Absent("`all`, or the defaults"), "", "A class of products; docs/ARITHMETIC.md, section 8, says which products are in it."),
    key("digits.class.*.digits_a", integer(1, 4), Required, "3", "Digits of the left operand.").unit("digits"),
    key("digits.class.*.digits_b", integer(1, 4), Required, "2", "Digits of the right operand.").unit("digits"),
    key("digits.class.*.block", integer(0, U32_MAX), Optional("0"), "64", "Terms of a scale group along K; 0 = all of K.").unit("terms").rule("0, or a power of two of at least 64; 0 in the logged profile"),
    key("rounding.preset", Choice(&["paper"]), Absent("the default profile"), r#""paper""#, "A known setting: binary64 kernels on the binary32 grid, thresholds in parts of the grid's step (docs/ROUNDING.md)."),
    key("rounding.bits", integer(16, 32), Absent("16, in the paper's preset 32"), "16", "The grid: leading bits of binary32 that results keep. 16 is bfloat16.").unit("bits").rule("16, 26 to 30 or 32; not 16 in the paper's preset"),
    key("rounding.floor", integer(0, 40), Absent("14 for 16 bits, else 0"), "14", "Results are not finer than 2^-floor of the size that the absmaxes of their row and column give; 0 = no floor.").rule("0, or 4 to 40; 0 above 16 bits"),
    key("rounding.threshold", integer(1, 1 << 24), Absent("grows with sqrt(K); in the paper's preset 4194303"), "4096", "How near a boundary of the grid a rounding is logged, for every class without a threshold of its own.").unit(THRESHOLD).rule("at most as docs/ROUNDING.md, section 3, says; in the paper's preset 4194303"),
    key("rounding.class", Table, Absent("no class has a threshold of its own"), "", "Thresholds of single classes of products."),
    key("rounding.class.*", integer(1, 1 << 24), Absent("`threshold`"), "8192", "The threshold of a class of products.").unit(THRESHOLD).rule("at most as docs/ROUNDING.md, section 3, says; in the paper's preset 4194303"),
];

const RECORDS: &[Key] = &[
    key(
        "commit.granularity",
        Choice(&["step", "microbatch", "operator"]),
        Optional(r#""microbatch""#),
        r#""operator""#,
        "`step`: the state after each step. `microbatch`: also the gradient of each micro-batch, so that one can be replayed alone. `operator`: also the output of every operator, so that a verdict can name an operator and a tile.",
    ),
    key("commit.head_every", integer(1, U32_MAX), Optional("10"), "10", "Steps between signed heads.")
        .unit("steps"),
    key(
        "commit.scheme",
        integer(0, 1),
        Optional("0"),
        "0",
        "How leaves are hashed: 0 is plain, as they are; 1 is salted, so that nobody without the run's salt key can test a guess of the data.",
    )
    .rule("1 only with `data.copy = false`, and without `operator`, `[rounding]` and `init.run`"),
    key(
        "checkpoint.every",
        integer(1, U32_MAX),
        Required,
        "100",
        "Steps between checkpoints: an auditor replays whole segments from one to the next.",
    )
    .unit("steps"),
    key(
        "checkpoint.keep",
        integer(0, U32_MAX),
        Absent("all"),
        "5",
        "How many checkpoints to keep besides the first and the last.",
    )
    .unit("checkpoints"),
];

const DISPUTE: &[Key] = &[key(
    "dispute.step_seconds",
    integer(1, 86_400),
    Required,
    "30",
    "Seconds that a step takes: in a dispute a party has (steps between checkpoints + 1) times as many, times 4, for all its replays.",
)
.unit("seconds")];

const EVALUATION: &[Key] = &[
    key(
        "evaluation.every",
        integer(1, U32_MAX),
        Required,
        "100",
        "Steps between evaluations; the last step has one too.",
    )
    .unit("steps"),
    key(
        "evaluation.files",
        FILES,
        Absent("the training data"),
        r#"["valid.txt"]"#,
        "Files in the place of those of `[data]`, of the same kind and in the same order: paths; or images, labels; or inputs, labels. A run holds a copy if it holds its data.",
    ),
    key("evaluation.samples", integer(1, 1 << 40), Absent("all"), "1000", "The first so many samples only.")
        .unit("samples"),
];

/// Every key, table by table.
pub fn keys() -> impl Iterator<Item = &'static Key> {
    let (before, after) = (
        [TOP, INIT, MODEL],
        [LOSS, DATA, OPTIMIZER, SCHEDULE_AND_BATCH, PRODUCTS, RECORDS, EVALUATION, DISPUTE],
    );
    before.into_iter().chain(models::keys()).chain(after).flatten()
}

/// The kinds of a table that has keys of one kind only; `None` if it has no such keys.
pub fn kinds(table: &str) -> Option<(&'static Key, &'static [&'static str])> {
    keys().find(|key| key.table() == table && key.kind.is_some())?;
    let key = keys_of(table, None).find(|key| key.name() == "kind")?;
    match key.ty {
        Type::Choice(kinds) => Some((key, kinds)),
        _ => None,
    }
}

/// The keys of a table (its path, `*` for a class) of this kind.
pub fn keys_of<'a>(table: &'a str, kind: Option<&'a str>) -> impl Iterator<Item = &'static Key> + 'a {
    keys().filter(move |key| key.table() == table && (key.kind.is_none() || key.kind == kind))
}
