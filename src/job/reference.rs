//! Every key that a job file may have, as one table. Errors (`check`), `docs/JOB.md` and the JSON Schema (`tiebreak job reference`) are made from it, and a
//! test holds it to what serde accepts (`tests/job_reference.rs`). A new key is one entry here beside its field in [`super::spec`].

/// What a key's value may be, with its bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Type {
    /// An integer from `least` to `most`.
    Integer {
        /// The least value.
        least: i128,
        /// The greatest value.
        most: i128,
    },
    /// A finite number; it is rounded to binary32 and compared then.
    Number {
        /// The number is at least this, or above it if `above`.
        least: f32,
        /// Whether `least` itself is not allowed.
        above: bool,
        /// The number is below this.
        below: Option<f32>,
    },
    /// `true` or `false`.
    Boolean,
    /// Any text.
    Text,
    /// A text, or a list of texts.
    Texts {
        /// The most texts.
        most: usize,
    },
    /// One of these texts.
    Choice(&'static [&'static str]),
    /// A list whose elements are all of one type.
    List {
        /// The type of an element.
        of: &'static Type,
        /// The fewest elements.
        least: usize,
        /// The most elements.
        most: usize,
    },
    /// A table; its keys have entries of their own.
    Table,
}

/// Whether a key has to be written, and what holds where it is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The key must be written, if its table is.
    Required,
    /// The key may be left out; then this value holds, as TOML.
    Optional(&'static str),
    /// The key may be left out; what that means.
    Absent(&'static str),
}

/// A key of a job file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Key {
    /// The dotted path; `*` stands for the name of a product class ([`crate::program::products::ProductClass::name`]).
    pub path: &'static str,
    /// The `kind` of the key's table that has it; `None` = every kind, or a table without kinds.
    pub kind: Option<&'static str>,
    /// Type and bounds.
    pub ty: Type,
    /// Whether it has to be written, and what holds without it.
    pub presence: Presence,
    /// The key of the same table that may stand in its place, and not beside it; empty if there is none.
    pub or: &'static str,
    /// The key of the same table that must not be written beside it; empty if there is none, or `or` names it.
    pub not_with: &'static str,
    /// Keys of the same table without which the example is wrong, as lines of TOML; empty if it needs none.
    pub beside: &'static str,
    /// The unit of the value; empty if it has none.
    pub unit: &'static str,
    /// Bounds that the type does not say; empty if there are none.
    pub rule: &'static str,
    /// What the key is for.
    pub meaning: &'static str,
    /// A value, as TOML. The examples of all required keys of a table fit each other.
    pub example: &'static str,
}

impl Key {
    /// The path of the table that has the key; empty for the top of the file.
    pub fn table(&self) -> &'static str {
        self.path.rsplit_once('.').map_or("", |(table, _)| table)
    }

    /// The last part of the path.
    pub fn name(&self) -> &'static str {
        self.path.rsplit_once('.').map_or(self.path, |(_, name)| name)
    }

    /// The key of the same table that must not be written beside this one.
    pub fn excludes(&self) -> Option<&'static str> {
        [self.or, self.not_with].into_iter().find(|name| !name.is_empty())
    }

    const fn kind(self, kind: &'static str) -> Key {
        Key { kind: Some(kind), ..self }
    }

    const fn or(self, or: &'static str) -> Key {
        Key { or, ..self }
    }

    const fn not_with(self, not_with: &'static str) -> Key {
        Key { not_with, ..self }
    }

    const fn beside(self, beside: &'static str) -> Key {
        Key { beside, ..self }
    }

    const fn unit(self, unit: &'static str) -> Key {
        Key { unit, ..self }
    }

    const fn rule(self, rule: &'static str) -> Key {
        Key { rule, ..self }
    }
}

const fn key(
    path: &'static str,
    ty: Type,
    presence: Presence,
    example: &'static str,
    meaning: &'static str,
) -> Key {
    Key {
        path,
        kind: None,
        ty,
        presence,
        or: "",
        not_with: "",
        beside: "",
        unit: "",
        rule: "",
        meaning,
        example,
    }
}

const fn integer(least: i128, most: i128) -> Type {
    Type::Integer { least, most }
}

/// Any number of 32 bits.
const U32_MAX: i128 = u32::MAX as i128;
/// 0 and above.
const NOT_NEGATIVE: Type = Type::Number { least: 0.0, above: false, below: None };
/// A probability that is not 1, or a rate of decay.
const BELOW_ONE: Type = Type::Number { least: 0.0, above: false, below: Some(1.0) };
const THRESHOLD: &str = "2^-32 of the norms (bits = 16), 2^-60 of them (more bits), 2^-24 of a step (preset)";

use Presence::{Absent, Optional, Required};
use Type::{Boolean, Choice, Table, Text, Texts};

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
        Absent("the program is made from `model`, `optimizer`, `batch`, `digits`, `clip_norm` and `frozen`"),
        r#""program.bin""#,
        "A program file (docs/ARITHMETIC.md, section 9; `tiebreak program export` writes one).",
    )
    .rule("not together with the keys that it replaces"),
    key("model", Table, Required, "", "The model.").or("program"),
    key("data", Table, Required, "", "The files of the samples, and how samples are drawn (docs/DATA.md)."),
    key("optimizer", Table, Required, "", "The optimizer.").or("program"),
    key("schedule", Table, Required, "", "The learning rate of each step."),
    key("batch", Table, Required, "", "How many samples a step has.").or("program"),
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
];

const MODEL: &[Key] = &[
    key("model.kind", Choice(&["gpt", "mlp", "resnet"]), Required, r#""gpt""#, "A decoder over tokens, a multi-layer perceptron or a residual network of convolutions over images."),
    key("model.vocabulary", integer(1, 1 << 20), Optional("256"), "128", "Tokens are numbers below this; 256 for bytes.").kind("gpt").unit("tokens"),
    key("model.context", integer(1, 1 << 16), Required, "64", "Positions of a sample.").kind("gpt").unit("tokens"),
    key("model.layers", integer(1, 1 << 10), Required, "2", "Decoder blocks.").kind("gpt").unit("blocks"),
    key("model.heads", integer(1, 1 << 10), Required, "4", "Attention heads of a block.").kind("gpt").unit("heads"),
    key("model.width", integer(1, 1 << 16), Required, "64", "Channels of a position.").kind("gpt").unit("channels").rule("a multiple of `heads`"),
    key("model.gelu", Choice(&["tanh", "erf"]), Optional(r#""tanh""#), r#""erf""#, "The form of GELU: the approximation by tanh, or the definition by erf.").kind("gpt"),
    key("model.dropout", BELOW_ONE, Optional("0.0"), "0.1", "Drop probability of embeddings, attention probabilities and residual branches.").kind("gpt"),
    key("model.tied", Boolean, Optional("true"), "false", "Whether the output projection is the token table.").kind("gpt"),
    key("model.init_std", NOT_NEGATIVE, Optional("0.02"), "0.01", "Standard deviation of initial weights; projections back to the residual stream get init_std / sqrt(2 layers).").kind("gpt"),
    key("model.inputs", integer(1, 1 << 20), Required, "784", "Numbers of a sample, such as the bytes of an image.").kind("mlp").unit("numbers"),
    key("model.hidden", Type::List { of: &integer(1, 1 << 20), least: 0, most: 64 }, Required, "[256, 128]", "The widths of the hidden layers, in order.").kind("mlp").unit("channels"),
    key("model.classes", integer(1, 1 << 20), Required, "10", "Classes of an image; labels are below this.").kind("mlp").unit("classes"),
    key("model.dropout", BELOW_ONE, Optional("0.0"), "0.1", "Drop probability after each hidden layer.").kind("mlp"),
    key("model.height", integer(1, 1 << 12), Required, "32", "Rows of an image.").kind("resnet").unit("pixels"),
    key("model.width", integer(1, 1 << 12), Required, "32", "Columns of an image.").kind("resnet").unit("pixels"),
    key("model.planes", integer(1, 1 << 8), Required, "3", "Planes of an image: 3 for red, green and blue. IDX files have 1, CIFAR-10 has 3.").kind("resnet").unit("planes"),
    key("model.stages", Type::List { of: &integer(1, 1 << 14), least: 1, most: 16 }, Required, "[16, 32]", "Channels of each stage. Each stage but the first halves rows and columns.").kind("resnet").unit("channels"),
    key("model.blocks", integer(1, 256), Required, "1", "Residual blocks of a stage, two convolutions each.").kind("resnet").unit("blocks"),
    key("model.classes", integer(1, 1 << 20), Required, "10", "Classes of an image; labels are below this.").kind("resnet").unit("classes"),
    key("model.norm", Choice(&["layer", "batch"]), Optional(r#""layer""#), r#""batch""#, "What is normalised before each ReLU: the channels of each pixel, or each channel over all pixels of a micro-batch, with running averages as buffers.").kind("resnet").rule("with `batch`, a step has at most 2^24 pixels"),
    key("model.norm_epsilon", Type::Number { least: 0.0, above: true, below: None }, Optional("1e-5"), "1e-3", "What a normalisation adds to the variance.").kind("resnet"),
    key("model.norm_momentum", BELOW_ONE, Optional("0.1"), "0.2", "The part by which a step moves the running averages towards its own mean and variance.").kind("resnet").rule("0.1 unless `norm` is `batch`").beside(r#"norm = "batch""#),
    key("model.convolution", integer(1, 2), Optional("1"), "2", "Version of conv2d: with 2, every pixel is quantised once, by a scale for each sample (for each channel in a kernel's gradient); with 1, once for each patch that has it, by the patch's scale.").kind("resnet"),
];

const INIT: &[Key] = &[
    key("init.weights", Type::List { of: &Text, least: 0, most: 4096 }, Optional("[]"), r#"["model.safetensors"]"#, "Safetensors files of the parameters, by their names; buffers too if they are there, else as the program begins them. Optimizer slots begin at zero.").not_with("run"),
    key("init.run", Text, Absent("no run"), r#""runs/first""#, "The folder of a finished run with the same parameters: its final state."),
    key("init.optimizer_state", Boolean, Optional("false"), "true", "Whether the run's optimizer slots are taken too; if not they begin at zero.").rule("true only with `run`").beside(r#"run = "runs/first""#),
];

const FILES: Type = Texts { most: 4096 };
const ONE_FILE: &str = "One file: the same as `paths` with one.";

const DATA: &[Key] = &[
    key("data.kind", Choice(&["bytes", "tokens", "idx", "cifar10", "arrays"]), Required, r#""bytes""#, "Tokens that are bytes, or token ids (for a gpt); images and labels in the IDX format of MNIST, records of CIFAR-10's binary format, or labelled arrays (docs/DATA.md). A file whose name ends in .gz is unpacked when a run is created.").rule("a gpt wants `bytes` or `tokens`; an mlp or a resnet wants `idx` (one plane), `cifar10` (3072 bytes, 3 planes of 32 x 32) or `arrays`"),
    key("data.sampling", Choice(&["permutation", "with_replacement"]), Optional(r#""permutation""#), r#""with_replacement""#, "`permutation`: every sample once an epoch, each epoch in an order of its own. `with_replacement`: every place of a batch draws from all samples."),
    key("data.copy", Boolean, Optional("true"), "false", "Whether the run holds a copy of the files. If not it holds what checks them, and an auditor says where they are (`--data`).").rule("true if a file's name ends in .gz"),
    key("data.path", Text, Required, r#""text.txt""#, ONE_FILE).kind("bytes").or("paths"),
    key("data.paths", FILES, Absent("`path` is required"), r#"["one.txt", "two.txt"]"#, "The files of bytes. A sample is a window inside one of them.").kind("bytes").not_with("path"),
    key("data.path", Text, Required, r#""tokens.bin""#, ONE_FILE).kind("tokens").or("paths"),
    key("data.paths", FILES, Absent("`path` is required"), r#"["one.npy", "two.npy"]"#, "The files of token ids: .npy, or nothing but the ids. A sample is a window inside one of them.").kind("tokens").not_with("path"),
    key("data.dtype", Choice(&["u16", "u32"]), Required, r#""u16""#, "The ids' type, little-endian.").kind("tokens"),
    key("data.images", Text, Required, r#""train-images-idx3-ubyte""#, "The file of images.").kind("idx"),
    key("data.labels", Text, Required, r#""train-labels-idx1-ubyte""#, "The file of labels.").kind("idx"),
    key("data.path", Text, Required, r#""data_batch_1.bin""#, ONE_FILE).kind("cifar10").or("paths"),
    key("data.paths", FILES, Absent("`path` is required"), r#"["data_batch_1.bin", "data_batch_2.bin"]"#, "The files of records: a label and 3072 bytes each.").kind("cifar10").not_with("path"),
    key("data.inputs", Text, Required, r#""inputs.npy""#, "The file of inputs, .npy or .safetensors: an array whose first dimension is over samples.").kind("arrays"),
    key("data.labels", Text, Required, r#""labels.npy""#, "The file of labels, integers; it may be the same.").kind("arrays"),
    key("data.dtype", Choice(&["u8", "f16", "bf16", "f32"]), Required, r#""f32""#, "The inputs' type: u8 are pixels, the others numbers that the model takes as they are.").kind("arrays"),
    key("data.inputs_tensor", Text, Absent("the file is .npy"), r#""inputs""#, "The inputs' name in a safetensors file.").kind("arrays").rule("required with a safetensors file, and only there").beside(r#"inputs = "inputs.safetensors""#),
    key("data.labels_tensor", Text, Absent("the file is .npy"), r#""labels""#, "The labels' name in a safetensors file.").kind("arrays").rule("required with a safetensors file, and only there").beside(r#"labels = "labels.safetensors""#),
];

const OPTIMIZER: &[Key] = &[
    key(
        "optimizer.kind",
        Choice(&["adamw", "sgd"]),
        Required,
        r#""adamw""#,
        "AdamW, or SGD with momentum. Weight decay is decoupled in both.",
    ),
    key("optimizer.beta1", BELOW_ONE, Required, "0.9", "The decay of the first moment.").kind("adamw"),
    key("optimizer.beta2", BELOW_ONE, Required, "0.95", "The decay of the second moment.").kind("adamw"),
    key("optimizer.epsilon", NOT_NEGATIVE, Required, "1e-8", "The addend of the denominator.").kind("adamw"),
    key(
        "optimizer.weight_decay",
        NOT_NEGATIVE,
        Required,
        "0.1",
        "Times the learning rate, the part of a weight that a step takes off.",
    )
    .kind("adamw"),
    key("optimizer.momentum", BELOW_ONE, Required, "0.9", "The decay of the momentum.").kind("sgd"),
    key(
        "optimizer.weight_decay",
        NOT_NEGATIVE,
        Required,
        "5e-4",
        "Times the learning rate, the part of a weight that a step takes off.",
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
        Absent("the rate stays at the peak"),
        "3e-4",
        "The learning rate of the last step, to which a cosine leads from the peak.",
    )
    .rule("at most `peak`"),
    key("batch.micro_batch", integer(1, 1 << 24), Required, "4", "Samples of a micro-batch.")
        .unit("samples")
        .rule("micro_batch * micro_batches at most 16777216, and no tensor above 2^31 elements"),
    key(
        "batch.micro_batches",
        integer(1, 1 << 16),
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
    key("rounding.floor", integer(0, 40), Absent("14 for 16 bits, else 0"), "14", "Results are not finer than 2^-floor of the scale of their row and column; 0 = no floor.").rule("0, or 4 to 40; 0 above 16 bits"),
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
        integer(0, U32_MAX),
        Optional("0"),
        "0",
        "How leaves are hashed: 0 is plain, as they are.",
    )
    .rule("0: other numbers are reserved for salted leaves, which hide small tensors"),
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

/// Every key, table by table.
pub fn keys() -> impl Iterator<Item = &'static Key> {
    [TOP, INIT, MODEL, DATA, OPTIMIZER, SCHEDULE_AND_BATCH, PRODUCTS, RECORDS].into_iter().flatten()
}

/// The keys of a table (its path, `*` for a class) of this kind.
pub fn keys_of<'a>(table: &'a str, kind: Option<&'a str>) -> impl Iterator<Item = &'static Key> + 'a {
    keys().filter(move |key| key.table() == table && (key.kind.is_none() || key.kind == kind))
}

impl std::fmt::Display for Type {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match self {
            Type::Integer { .. } => "an integer",
            Type::Number { .. } => "a number",
            Type::Boolean => "true or false",
            Type::Text => "a text",
            Type::Texts { .. } => "a text, or a list of texts",
            Type::Choice(_) => "one of",
            Type::List { .. } => "a list",
            Type::Table => "a table",
        };
        f.write_str(name)?;
        let bounds = self.bounds();
        match self {
            _ if bounds.is_empty() => Ok(()),
            Type::Choice(_) => write!(f, " {bounds}"),
            _ => write!(f, ", {bounds}"),
        }
    }
}

impl Type {
    /// The bounds in words; empty if there are none.
    pub fn bounds(&self) -> String {
        match self {
            Type::Integer { least, most } if *most >= U32_MAX => format!("at least {least}"),
            Type::Integer { least, most } => format!("{least} to {most}"),
            Type::Number { least, above, below } => {
                let least = format!("{} {least}", if *above { "above" } else { "at least" });
                below.map_or(least.clone(), |below| format!("{least} and below {below}"))
            }
            Type::Choice(choices) => {
                choices.iter().map(|choice| format!("\"{choice}\"")).collect::<Vec<_>>().join(", ")
            }
            Type::List { of, least, most } => format!("{least} to {most} elements, each {of}"),
            Type::Texts { most } => format!("1 to {most}"),
            Type::Boolean | Type::Text | Type::Table => String::new(),
        }
    }
}
