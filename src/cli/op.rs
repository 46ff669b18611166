//! `tiebreak op`: one operator of the contract on arrays that people bring.

use std::path::PathBuf;
use std::sync::Arc;

use clap::ValueEnum;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::json;

use super::engine::{EngineArgs, open};
use super::{CommandResult, Exit, Failure, Printer};
use crate::arith::DType;
use crate::commit::tensor::digest;
use crate::program::builder::Builder;
use crate::program::expr::{Body, Reg, Writer};
use crate::program::graph::{TensorId, TensorType, View};
use crate::program::operators;
use crate::program::products::{ProductClass, ProductDigits, ProductTable};
use crate::run::RunError;
use crate::run::disk::{self, Disk};

/// The most bytes of an input file.
const INPUT_MAX: u64 = 1 << 34;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Operator {
    /// a + b, a - b, a * b, a / b: two tensors of one shape.
    Add,
    Sub,
    Mul,
    Div,
    Sqrt,
    Exp,
    Log,
    Tanh,
    Erf,
    /// GELU in its tanh form.
    Gelu,
    GeluErf,
    Relu,
    /// a [M, K] times b [N, K] transposed, digitised.
    Matmul,
    /// The tree sum over the last dimension.
    Sum,
    /// The maximum over the last dimension.
    Max,
    /// x [N, C] with gain [C] and bias [C].
    LayerNorm,
}

/// Run one operator of the contract on F32 tensors of a safetensors file, on any engine.
///
/// Inputs are the file's tensors in the order of their names; the output is the tensor `out`.
#[derive(clap::Args)]
#[command(after_help = "Example: tiebreak op matmul in.safetensors out.safetensors --digits 3 --engine wgpu")]
pub struct Args {
    operator: Operator,
    input: PathBuf,
    output: PathBuf,
    /// Digits of both operands of a product.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=4))]
    digits: u8,
    /// Scale block of a product along K: 0, or a power of two of at least 64.
    #[arg(long, default_value_t = 0)]
    block: u32,
    #[command(flatten)]
    engine: EngineArgs,
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let bytes = disk::read(&args.input, INPUT_MAX)?;
    let invalid = |why: String| Failure::from(RunError::invalid(&args.input, why));
    let file = SafeTensors::deserialize(&bytes).map_err(|error| invalid(error.to_string()))?;
    let mut names = file.names();
    names.sort_unstable();
    let mut inputs = Vec::new();
    for name in names {
        let view = file.tensor(name).map_err(|error| invalid(error.to_string()))?;
        let shape: Option<Vec<u32>> = view.shape().iter().map(|&d| u32::try_from(d).ok()).collect();
        let shape = shape.filter(|s| (1..=4).contains(&s.len()) && view.data().len() / 4 < 1 << 31);
        match (view.dtype(), shape) {
            (Dtype::F32, Some(shape)) => {
                inputs.push((TensorType { dtype: DType::F32, shape }, view.data().to_vec()));
            }
            _ => return Err(invalid(format!("{name}: F32 tensors of rank 1 to 4 are wanted"))),
        }
    }
    let digits = ProductDigits { digits_a: args.digits, digits_b: args.digits, block: args.block };
    if let Some(why) = digits.error() {
        return Err(Failure::new(Exit::Usage, why));
    }
    let mut table = ProductTable::preset();
    table.set(ProductClass::Linear, digits);
    let mut b = Builder::new(table);
    let ids: Vec<TensorId> = inputs
        .iter()
        .enumerate()
        .map(|(i, (ty, _))| b.input(format!("in{i}"), ty.dtype, &ty.shape))
        .collect();
    let out = build(&mut b, args.operator, &ids).map_err(|why| Failure::new(Exit::Usage, why))?;
    b.output("out", out);
    let ty = b.tensor(out).clone();
    let mut engine = open(&args.engine)?;
    let graph = engine.compile(Arc::new(b.finish()))?;
    let mut tensors = Vec::new();
    for (ty, bytes) in &inputs {
        tensors.push(engine.upload(ty, bytes)?);
    }
    let outputs = engine.run(&graph, &tensors, None)?;
    let result = engine.download(&outputs[0])?;
    let shape = ty.shape.iter().map(|&d| d as usize).collect();
    let saved = TensorView::new(Dtype::F32, shape, &result)
        .and_then(|view| safetensors::serialize([("out", view)], None))
        .map_err(|error| Failure::new(Exit::Undecided, error))?;
    let path = std::path::absolute(&args.output).map_err(RunError::io(&args.output))?;
    Disk::default().replace(&path, &saved)?;
    let digest = digest(&ty, &result);
    printer.result(
        format!("{:?} on {}: {digest}", ty.shape, engine.describe()),
        &json!({ "shape": ty.shape, "digest": digest, "engine": engine.describe() }),
    );
    Ok(Exit::Match)
}

/// Appends the operator, after checking the shapes that people brought.
fn build(b: &mut Builder, operator: Operator, ids: &[TensorId]) -> Result<TensorId, String> {
    let shapes: Vec<Vec<u32>> = ids.iter().map(|&id| b.shape(id)).collect();
    let wants = |what: &str| Err(format!("{operator:?} wants {what}, the file holds {shapes:?}"));
    let unary = |b: &mut Builder, f: fn(&mut Writer, Reg) -> Reg| {
        let body = Body::new("op.v1", |w| {
            let x = w.input(0);
            f(w, x)
        });
        b.map(body, &ids[..1], &shapes[0])
    };
    let one = ids.len() == 1;
    let pair = ids.len() == 2 && shapes[0] == shapes[1];
    Ok(match operator {
        Operator::Add if pair => b.zip("add.v1", ids[0], ids[1], Writer::add),
        Operator::Sub if pair => b.zip("sub.v1", ids[0], ids[1], Writer::sub),
        Operator::Mul if pair => b.zip("mul.v1", ids[0], ids[1], Writer::mul),
        Operator::Div if pair => b.zip("div.v1", ids[0], ids[1], Writer::div),
        Operator::Add | Operator::Sub | Operator::Mul | Operator::Div => {
            return wants("two tensors of one shape");
        }
        Operator::Matmul => match (&shapes[..], ids) {
            ([a, c], [x, y]) if a.len() == 2 && c.len() == 2 && a[1] == c[1] => {
                let rows = |tensor, s: &[u32]| View {
                    tensor,
                    offset: 0,
                    dims: [1, 1, s[0], s[1]],
                    strides: [0, 0, s[1], 1],
                };
                b.product(ProductClass::Linear, rows(*x, a), rows(*y, c), &[a[0], c[0]])
            }
            _ => return wants("a [M, K] and b [N, K]"),
        },
        Operator::LayerNorm => match (&shapes[..], ids) {
            ([x, gain, bias], _) if x.len() == 2 && *gain == x[1..] && gain == bias => {
                operators::layer_norm(b, ids[0], ids[1], ids[2], 1e-5)
            }
            _ => return wants("x [N, C], then gain [C] and bias [C], in the order of their names"),
        },
        _ if !one => return wants("one tensor"),
        Operator::Sqrt => unary(b, Writer::sqrt),
        Operator::Exp => unary(b, Writer::exp),
        Operator::Log => unary(b, Writer::log),
        Operator::Tanh => unary(b, Writer::tanh),
        Operator::Erf => unary(b, Writer::erf),
        Operator::Gelu => operators::gelu_tanh(b, ids[0]),
        Operator::GeluErf => operators::gelu_erf(b, ids[0]),
        Operator::Relu => operators::relu(b, ids[0]),
        Operator::Sum => b.sum_last(ids[0]),
        Operator::Max => b.max_last(ids[0]),
    })
}
