//! `tiebreak op`: one operator of the contract on arrays that people bring.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;

use crate::cli::args::engine::{EngineArgs, open_exact};
use crate::cli::args::limits::Limits;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use tiebreak_contract::arith::DType;
use tiebreak_contract::program::builder::Builder;
use tiebreak_contract::program::catalogue::{Appended, Attributes, OPERATORS, Operator};
use tiebreak_contract::program::graph::TensorType;
use tiebreak_contract::program::products::{ProductClass, ProductDigits, ProductTable};
use tiebreak_record::commit::tensor::digest;
use tiebreak_run::run::RunError;
use tiebreak_run::run::arrays::{self, Array, FloatType};

/// Arguments, and groups of them, that a list of operators has no use for.
const ALL_BUT_LIST: [&str; 9] =
    ["operator", "inputs", "out", "gradient", "digits", "block", "out_dtype", "Flags", "EngineArgs"];

/// Run one operator of the contract on arrays of your own, on any engine.
///
/// Inputs are .npy files in the operator's order, or one safetensors file with tensors of the inputs' names. Floats of 16 bits are read as the
/// binary32 of the same value.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tiebreak op matmul a.npy b.npy --out c.npy --digits 3
  tiebreak op --list")]
pub struct Args {
    /// Operator, by its name in the list.
    #[arg(required_unless_present = "list")]
    operator: Option<String>,
    /// Inputs: .npy files, or one safetensors file.
    #[arg(value_name = "INPUT")]
    inputs: Vec<PathBuf>,
    /// Output: a .npy or .safetensors file.
    ///
    /// Operators with several outputs need a .safetensors file.
    #[arg(long, short, value_name = "FILE", required_unless_present = "list")]
    out: Option<PathBuf>,
    /// Print every operator: name, inputs with shapes, and a gradient if it has one.
    #[arg(long, conflicts_with_all = ALL_BUT_LIST)]
    list: bool,
    /// Compute the gradients; one more input is `dy`, of the output's shape.
    #[arg(long)]
    gradient: bool,
    /// Digits of both operands of products, 1 to 4.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=4))]
    digits: u8,
    /// Terms of a product's scale group along K.
    ///
    /// 0 is all of K. Other values are powers of two of at least 64.
    #[arg(long, value_name = "TERMS", default_value_t = 0)]
    block: u32,
    /// Type of the floats that are written.
    ///
    /// Values are rounded to nearest, ties to even. bf16 needs a .safetensors file.
    #[arg(long, value_enum, value_name = "TYPE", default_value_t = FloatOutput::F32)]
    out_dtype: FloatOutput,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    attributes: Flags,
}

/// [`FloatType`] on the command line.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum FloatOutput {
    /// Binary32.
    F32,
    /// Binary16.
    F16,
    /// Bfloat16.
    Bf16,
}

impl From<FloatOutput> for FloatType {
    fn from(output: FloatOutput) -> FloatType {
        match output {
            FloatOutput::F32 => FloatType::F32,
            FloatOutput::F16 => FloatType::F16,
            FloatOutput::Bf16 => FloatType::Bf16,
        }
    }
}

/// [`Attributes`] as people write them.
#[derive(clap::Args)]
#[command(next_help_heading = "Attributes of operators")]
struct Flags {
    /// Samples in the rows of attentions, `rotary`, `dropout`, and of operators with positions.
    #[arg(long, value_name = "N", default_value_t = 1)]
    samples: u32,
    /// Heads of attentions, `rotary` and `rms_norm`.
    #[arg(long, value_name = "N", default_value_t = 1)]
    heads: u32,
    /// Pixels between patches of a convolution, or windows of a pool.
    #[arg(long, value_name = "N", default_value_t = 1)]
    stride: u32,
    /// Places around each image that are no pixels.
    #[arg(long, value_name = "N", default_value_t = 0)]
    padding: u32,
    /// Pixels of a window of `max_pool` or `avg_pool`, down and across.
    #[arg(long, value_name = "N", default_value_t = 2, hide_short_help = true)]
    kernel: u32,
    /// Windows of `adaptive_avg_pool`, down and across.
    #[arg(long, num_args = 2, value_names = ["DOWN", "ACROSS"], default_values_t = [1, 1], hide_short_help = true)]
    windows: Vec<u32>,
    /// Groups of channels of `grouped_conv2d`.
    #[arg(long, value_name = "N", default_value_t = 1, hide_short_help = true)]
    groups: u32,
    /// Share of each target of `weighted_cross_entropy` that all classes have.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, hide_short_help = true)]
    smoothing: f32,
    /// Label of `weighted_cross_entropy` without a loss; row of `embedding` without a gradient; id of padding.
    #[arg(long, value_name = "LABEL", hide_short_help = true)]
    ignore: Option<u32>,
    /// Last positions, its own included, to which a position of `window_attention` attends.
    #[arg(long, value_name = "N", hide_short_help = true)]
    window: Option<u32>,
    /// Drop probability of `dropout`.
    #[arg(long, value_name = "P", default_value_t = 0.1, hide_short_help = true)]
    p: f32,
    /// Number of a `dropout` in its model.
    #[arg(long, value_name = "N", default_value_t = 0, hide_short_help = true)]
    number: u32,
    /// Epsilon of norms and `adamw`.
    ///
    /// Norms of models have 1e-5; `adamw` usually has 1e-8.
    #[arg(long, value_name = "X", default_value_t = 1e-5)]
    epsilon: f32,
    /// Base of the frequencies of `rotary`.
    #[arg(long, value_name = "X", default_value_t = 10_000.0, hide_short_help = true)]
    theta: f32,
    /// Decay of the first moment of `adamw`.
    #[arg(long, value_name = "X", default_value_t = 0.9, hide_short_help = true)]
    beta1: f32,
    /// Decay of the second moment of `adamw`.
    #[arg(long, value_name = "X", default_value_t = 0.95, hide_short_help = true)]
    beta2: f32,
    /// Weight decay of `adamw` and `sgd`.
    #[arg(long, value_name = "X", default_value_t = 0.1, hide_short_help = true)]
    weight_decay: f32,
    /// Momentum of `sgd`.
    #[arg(long, value_name = "X", default_value_t = 0.9, hide_short_help = true)]
    momentum: f32,
    /// Largest norm that `clip` leaves.
    #[arg(long, value_name = "X", default_value_t = 1.0, hide_short_help = true)]
    max_norm: f32,
}

impl From<Flags> for Attributes {
    fn from(flags: Flags) -> Attributes {
        Attributes {
            samples: flags.samples,
            heads: flags.heads,
            stride: flags.stride,
            padding: flags.padding,
            kernel: flags.kernel,
            windows: [flags.windows[0], flags.windows[1]],
            groups: flags.groups,
            smoothing: flags.smoothing,
            ignore: flags.ignore,
            window: flags.window,
            p: flags.p,
            number: flags.number,
            epsilon: flags.epsilon,
            theta: flags.theta,
            beta1: flags.beta1,
            beta2: flags.beta2,
            weight_decay: flags.weight_decay,
            momentum: flags.momentum,
            max_norm: flags.max_norm,
            ..Attributes::default()
        }
    }
}

/// The names of those that are not the defaults, and how each becomes its default.
fn given(attributes: &Attributes) -> Vec<(&'static str, Attributes)> {
    let default = Attributes::default();
    let mut given = Vec::new();
    macro_rules! each {
        ($($field:ident)*) => {$(
            if attributes.$field != default.$field {
                given.push((stringify!($field), Attributes { $field: default.$field, ..attributes.clone() }));
            }
        )*};
    }
    each!(samples heads stride padding kernel windows groups smoothing ignore window p number);
    each!(epsilon theta beta1 beta2 weight_decay momentum max_norm);
    given
}

/// An operator in a graph, as the command line asks for it.
struct Asked<'a> {
    operator: &'a Operator,
    shapes: Vec<Vec<u32>>,
    gradient: bool,
}

impl Asked<'_> {
    /// Appends the operator to a graph of its own.
    fn append(&self, digits: ProductDigits, attributes: &Attributes) -> Result<(Builder, Appended), String> {
        let mut table = ProductTable::uniform(digits.digits_a);
        ProductClass::ALL.into_iter().for_each(|class| table.set(class, digits));
        let mut b = Builder::new(table);
        let appended = self.operator.append(&mut b, &self.shapes, attributes, self.gradient)?;
        Ok((b, appended))
    }

    /// The graph that `digits` and `attributes` give.
    ///
    /// # Errors
    /// If the operator refuses its inputs, or one of the options changes nothing of it.
    fn appended(
        &self,
        digits: ProductDigits,
        attributes: &Attributes,
    ) -> Result<(Builder, Appended), String> {
        let appended = self.append(digits, attributes)?;
        let (two, whole) =
            (ProductDigits { digits_a: 2, digits_b: 2, ..digits }, ProductDigits { block: 0, ..digits });
        let others = given(attributes).into_iter().map(|(name, other)| (name, digits, other));
        let others =
            others.chain([("digits", two, attributes.clone()), ("block", whole, attributes.clone())]);
        let graph = self.append(digits, attributes)?.0.finish();
        for (name, other, otherwise) in others {
            let is_given = other != digits || !matches!(name, "digits" | "block");
            if is_given && self.append(other, &otherwise).is_ok_and(|(b, _)| b.finish() == graph) {
                let option = name.replace('_', "-");
                return Err(format!(
                    "--{option} changes nothing of {} here: leave it out",
                    self.operator.name
                ));
            }
        }
        Ok(appended)
    }
}

fn list(printer: Printer) -> CommandResult {
    let mut text = Vec::new();
    let mut rows = Vec::new();
    for operator in OPERATORS {
        let integers = |i: &tiebreak_contract::program::catalogue::Input| i.dtype != DType::F32;
        let inputs: Vec<String> = operator
            .inputs
            .iter()
            .map(|i| format!("{} [{}]{}", i.name, i.shape, if integers(i) { " u32" } else { "" }))
            .collect();
        let gradient = if operator.differentiable { "; --gradient" } else { "" };
        text.push(format!("{:14} {}", operator.name, operator.about));
        text.push(format!("{:14} {}{gradient}", "", inputs.join(", ")));
        rows.push(json!({ "name": operator.name, "about": operator.about, "inputs": inputs, "gradient": operator.differentiable }));
    }
    printer.document(text, &json!(rows));
    Ok(Exit::Match)
}

/// The inputs in the operator's order: by name from one safetensors file, else as they come.
fn arranged(operator: &Operator, args: &Args) -> Result<Vec<Array>, Failure> {
    let mut files = Vec::new();
    for path in &args.inputs {
        files.push(arrays::read(path)?);
    }
    let mut names: Vec<&str> = operator.inputs.iter().map(|input| input.name).collect();
    if args.gradient {
        names.push("dy");
    }
    if files.iter().any(|file| file.iter().any(|array| !array.name.is_empty())) {
        let [file] = &files[..] else {
            return Err(Failure::new(Exit::Usage, "inputs are .npy files, or one safetensors file"));
        };
        let have: Vec<&str> = file.iter().map(|array| array.name.as_str()).collect();
        let by_name = |name: &&str| {
            let found = file.iter().find(|array| array.name == **name).cloned();
            found.ok_or_else(|| format!("there is no tensor {name}; the file holds {}", have.join(", ")))
        };
        let arranged: Result<Vec<Array>, String> = names.iter().map(by_name).collect();
        return arranged.map_err(|why| Failure::from(RunError::invalid(&args.inputs[0], why)));
    }
    let arrays: Vec<Array> = files.into_iter().flatten().collect();
    if arrays.len() != names.len() {
        let (found, due) = (arrays.len(), names.len());
        let why = format!("{} takes {due} inputs: {}; {found} are given", operator.name, names.join(", "));
        return Err(Failure::new(Exit::Usage, why));
    }
    Ok(arrays)
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    if args.list {
        return list(printer);
    }
    let _watch = args.limits.watch(printer);
    let usage = |why: String| Failure::new(Exit::Usage, why);
    let name = args.operator.as_deref().unwrap_or_default();
    let operator = Operator::by_name(name)
        .ok_or_else(|| usage(format!("there is no operator {name}; tiebreak op --list prints them all")))?;
    let inputs = arranged(operator, &args)?;
    let wanted = operator.inputs.iter().map(|input| (input.name, input.dtype)).chain([("dy", DType::F32)]);
    for (array, (name, dtype)) in inputs.iter().zip(wanted) {
        if array.ty.dtype != dtype {
            let kind = if dtype == DType::F32 { "floats" } else { "integers" };
            return Err(usage(format!("{name} must hold {kind}, and holds {:?}", array.ty.dtype)));
        }
    }
    let shapes: Vec<Vec<u32>> =
        inputs.iter().take(operator.inputs.len()).map(|array| array.ty.shape.clone()).collect();
    let digits = ProductDigits { digits_a: args.digits, digits_b: args.digits, block: args.block };
    if let Some(why) = digits.error() {
        return Err(usage(why));
    }
    let asked = Asked { operator, shapes, gradient: args.gradient };
    let (b, Appended { inputs: ids, outputs }) =
        asked.appended(digits, &Attributes::from(args.attributes)).map_err(usage)?;
    let shapes = asked.shapes;
    for (array, id) in inputs.iter().zip(&ids) {
        let ty = b.tensor(*id);
        if array.ty != *ty {
            return Err(usage(format!("dy has shape {:?}, the output {:?}", array.ty.shape, ty.shape)));
        }
    }
    for (index, bound) in operator.index_bounds(&shapes) {
        let words = tiebreak_contract::arith::words::words_from_bytes(DType::U32, &inputs[index].bytes);
        if let Some(word) = words.into_iter().find(|&word| word >= bound) {
            let name = operator.inputs[index].name;
            return Err(usage(format!("{name} holds {word}; every number must be below {bound}")));
        }
    }
    let types: Vec<TensorType> = outputs.iter().map(|(_, id)| b.tensor(*id).clone()).collect();
    let mut engine = open_exact(&args.engine)?;
    let graph = engine.compile(Arc::new(b.finish()))?;
    let mut tensors = Vec::new();
    for array in &inputs {
        tensors.push(engine.upload(&array.ty, &array.bytes)?);
    }
    let working = printer.working("computing", None);
    let computed = engine.run(&graph, &tensors, None)?;
    let mut results = Vec::new();
    for ((name, _), (ty, tensor)) in outputs.into_iter().zip(types.into_iter().zip(&computed)) {
        results.push(Array { name, ty, bytes: engine.download(tensor)? });
    }
    drop(working);
    let path = args.out.unwrap_or_default();
    arrays::write(&path, &results, args.out_dtype.into())?;
    let rows: Vec<_> = results
        .iter()
        .map(|a| json!({ "name": a.name, "shape": a.ty.shape, "digest": digest(&a.ty, &a.bytes) }))
        .collect();
    let line = |a: &Array| format!("{} {:?} {}", a.name, a.ty.shape, digest(&a.ty, &a.bytes));
    let mut text: Vec<String> = results.iter().map(line).collect();
    text.push(format!("on {}", engine.describe()));
    printer.document(text, &json!({ "outputs": rows, "engine": engine.describe() }));
    Ok(Exit::Match)
}
