//! `tiebreak program`.

mod network;
mod picture;
mod reference;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde::Serialize;
use serde_json::json;

use crate::cli::args::job::JobArgs;
use crate::cli::args::limits::Limits;
use crate::cli::view::escape::Lines;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer, named};
use picture::svg;
use tiebreak_contract::arith::DType;
use tiebreak_contract::program::decoding::decode;
use tiebreak_contract::program::encoding::{PROGRAM_MAX, encode};
use tiebreak_contract::program::graph::{Graph, LoggedProduct, Node, Primitive, TensorId};
use tiebreak_contract::program::models::Init;
use tiebreak_contract::program::step::Program;
use tiebreak_job::identity::program_digest;
use tiebreak_run::run::disk::{self, Disk};
use tiebreak_run::run::{RunError, read_job, read_program};

/// Write, show and explain programs: the graphs of a training step, as a file.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tiebreak program export job.toml --out demo.program")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Derive the program of a network file (docs/NETWORKS.md), which a job can name: `program = "FILE"`.
    #[command(after_help = "Example:\n  tiebreak program compile network.json --out net.program")]
    Compile {
        /// Network file: nodes, parameters and an optimizer, as JSON.
        network: PathBuf,
        /// File for the program.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        #[command(flatten)]
        limits: Limits,
    },
    /// Write the program of a job to a file, which another job can name: `program = "FILE"`.
    #[command(after_help = "Example:\n  tiebreak program export job.toml --out demo.program")]
    Export {
        #[command(flatten)]
        job: JobArgs,
        /// File for the program.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        #[command(flatten)]
        limits: Limits,
    },
    /// Print the format of network files, with the operators of nodes (docs/NETWORKS.md).
    #[command(after_help = "Example:\n  tiebreak program networks")]
    Networks,
    /// Print the names in a program's bytes: classes of products, bodies, nodes of models (docs/PROGRAMS.md).
    #[command(after_help = "Example:\n  tiebreak program reference")]
    Reference,
    /// Check a program file and say which computation it holds.
    #[command(after_help = "Example:\n  tiebreak program show demo.program --svg demo.svg")]
    Show {
        /// Program file.
        file: PathBuf,
        /// Also draw the graph of a micro-batch as an SVG picture, a box an operator.
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
        #[command(flatten)]
        limits: Limits,
    },
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    match args.command {
        Command::Compile { network, out, limits } => {
            let _watch = limits.watch(printer);
            written(printer, &network::program(&network)?, &out)
        }
        Command::Networks => {
            let page = network::markdown();
            printer.document(Lines::split(page.trim_end()), &network::operators());
            Ok(Exit::Match)
        }
        Command::Export { job, out, limits } => {
            let _watch = limits.watch(printer);
            export(printer, &job, &out)
        }
        Command::Reference => {
            let page = reference::markdown();
            printer.document(Lines::split(page.trim_end()), &reference::names());
            Ok(Exit::Match)
        }
        Command::Show { file, svg, limits } => {
            let _watch = limits.watch(printer);
            show(printer, &file, svg.as_deref())
        }
    }
}

fn export(printer: Printer, args: &JobArgs, out: &Path) -> CommandResult {
    let (_, job) = read_job(&args.job)?;
    let (program, _) = read_program(&args.files()?, &job)?;
    written(printer, &program, out)
}

/// Writes a program to a file, and says its digest.
fn written(printer: Printer, program: &Program, out: &Path) -> CommandResult {
    let bytes = encode(program);
    replace(out, &bytes)?;
    let digest = program_digest(program);
    printer.result(
        vec![format!("{}: {} bytes", out.display(), bytes.len()), format!("program {digest}")],
        &json!({ "program": digest, "bytes": bytes.len() }),
    );
    Ok(Exit::Match)
}

/// Writes a file whole or not at all.
fn replace(path: &Path, bytes: &[u8]) -> Result<(), RunError> {
    Disk::default().replace(&std::path::absolute(path).map_err(RunError::io(path))?, bytes)
}

/// Nodes of one operator.
#[derive(Serialize)]
struct Operator {
    operator: String,
    nodes: usize,
    /// The last node's output.
    shape: Vec<u32>,
    flops: u64,
}

/// A product of a micro-batch.
#[derive(Serialize)]
struct Product {
    operator: String,
    /// The place of the product in a model; only logged products say so.
    class: Option<&'static str>,
    digits: [u8; 2],
    block: u32,
    batch: u32,
    m: u32,
    n: u32,
    k: u32,
    /// Bits and floor of the grid that it is rounded to, if it is logged.
    grid: Option<[u8; 2]>,
}

/// The operators of a graph, in the order of their first nodes.
fn operators(graph: &Graph) -> Vec<Operator> {
    let mut places = HashMap::new();
    let mut found: Vec<Operator> = Vec::new();
    for node in &graph.nodes {
        let place = *places.entry(&node.operator).or_insert(found.len());
        if place == found.len() {
            let operator = node.operator.clone();
            found.push(Operator { operator, nodes: 0, shape: Vec::new(), flops: 0 });
        }
        let of = &mut found[place];
        of.nodes += 1;
        of.flops += graph.flops(node);
        of.shape.clone_from(&graph.tensor(node.output).shape);
    }
    found
}

fn products(graph: &Graph) -> Vec<Product> {
    let logged: HashMap<TensorId, &LoggedProduct> = graph
        .logged
        .iter()
        .flat_map(|logged| logged.exact.iter().chain([&logged.product]).map(move |&tensor| (tensor, logged)))
        .collect();
    let of_node = |node: &Node| {
        let Primitive::Product { a, b, block, .. } = &node.primitive else { return None };
        let (left, right) = (graph.tensor(*a), graph.tensor(*b));
        let (DType::Q(digits_a), DType::Q(digits_b)) = (left.dtype, right.dtype) else { return None };
        let logged = logged.get(&node.output);
        Some(Product {
            operator: node.operator.clone(),
            class: logged.map(|l| l.class.name()),
            digits: [digits_a, digits_b],
            block: *block,
            batch: left.shape[0],
            m: left.shape[1],
            n: right.shape[1],
            k: left.shape[2],
            grid: logged.map(|l| [l.rule.bits, l.rule.floor]),
        })
    };
    graph.nodes.iter().filter_map(of_node).collect()
}

fn init_text(init: Init) -> String {
    match init {
        Init::Zeros => "zeros".into(),
        Init::Ones => "ones".into(),
        Init::Normal { std } => format!("normal, std {std}"),
        Init::Uniform { bound } => format!("uniform, -{bound} to {bound}"),
    }
}

/// The content of the file, for people.
fn text(program: &Program, operators: &[Operator], products: &[Product]) -> Vec<String> {
    let mut lines = vec![format!(
        "{} parameters ({} scalars), {} buffers, slots {}; {} micro-batches of {} samples, {} labels each",
        program.parameters.len(),
        program.parameter_count(),
        program.buffers.len(),
        program.slots.join(", "),
        program.micro_batches,
        program.micro_batch,
        program.labels_per_sample
    )];
    for t in &program.batch {
        lines.push(format!("batch      {:<32} {:?} {:?} below {}", t.name, t.dtype, t.shape, t.below));
    }
    for p in &program.parameters {
        let frozen = if p.frozen { ", frozen" } else { "" };
        lines.push(format!("parameter  {:<32} {:?} {}{frozen}", p.name, p.shape, init_text(p.init)));
    }
    for b in &program.buffers {
        lines.push(format!("buffer     {:<32} {:?} {}", b.name, b.shape, init_text(b.init)));
    }
    let total: u64 = operators.iter().map(|o| o.flops).sum();
    lines.push(String::new());
    lines.push(format!("a micro-batch: {} nodes, {total} operations", program.micro.nodes.len()));
    for o in operators {
        lines.push(format!(
            "operator   {:<44} {:>4} nodes {:>14} operations {:?}",
            o.operator, o.nodes, o.flops, o.shape
        ));
    }
    lines.push(String::new());
    lines.push(format!("{} products", products.len()));
    for p in products {
        let grid =
            p.grid.map_or("exact".into(), |[bits, floor]| format!("grid of {bits} bits, floor {floor}"));
        lines.push(format!(
            "product    {:<44} {:<10} {} x [{} x {}] [{} x {}], digits {} {}, block {}, {grid}",
            p.operator,
            p.class.unwrap_or("-"),
            p.batch,
            p.m,
            p.k,
            p.k,
            p.n,
            p.digits[0],
            p.digits[1],
            p.block
        ));
    }
    lines
}

fn show(printer: Printer, path: &Path, picture: Option<&Path>) -> CommandResult {
    let bytes = disk::read(path, PROGRAM_MAX).map_err(named)?;
    let refused = |why| Failure::new(Exit::Malformed, format!("{}: {why}", path.display()));
    let program = decode(&bytes).map_err(refused)?;
    if let Some(out) = picture {
        replace(out, svg(&program.micro).as_bytes())?;
    }
    let (operators, products) = (operators(&program.micro), products(&program.micro));
    let digest = program_digest(&program);
    let batch = program.batch.iter().map(|t| json!({ "name": t.name, "shape": t.shape, "below": t.below }));
    let parameters = program
        .parameters
        .iter()
        .map(|p| json!({ "name": p.name, "shape": p.shape, "init": init_text(p.init), "frozen": p.frozen }));
    let buffers = program
        .buffers
        .iter()
        .map(|b| json!({ "name": b.name, "shape": b.shape, "init": init_text(b.init) }));
    let mut lines = vec![format!("program {digest}, {} bytes", bytes.len())];
    lines.extend(text(&program, &operators, &products));
    printer.document(
        lines,
        &json!({
            "program": digest,
            "bytes": bytes.len(),
            "micro_batch": program.micro_batch,
            "micro_batches": program.micro_batches,
            "labels_per_sample": program.labels_per_sample,
            "batch": batch.collect::<Vec<_>>(),
            "parameters": parameters.collect::<Vec<_>>(),
            "buffers": buffers.collect::<Vec<_>>(),
            "slots": program.slots,
            "operators": operators,
            "products": products,
        }),
    );
    Ok(Exit::Match)
}
