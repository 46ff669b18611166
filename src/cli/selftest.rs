//! `tiebreak selftest`.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;

use super::engine::{EngineArgs, Kind, open_exact};
use super::{CommandResult, Exit, Failure, Printer};
use crate::arith::elementary::oracle::{Function, Tally, check_range};
use crate::arith::{DType, elementary};
use crate::engine::fingerprint::fingerprint;
use crate::engine::reference::Reference;
use crate::engine::{Engine, EngineError};
use crate::program::builder::Builder;
use crate::program::expr::Body;
use crate::program::graph::TensorType;
use crate::program::products::ProductTable;
use crate::run::RunError;
use crate::run::disk::Disk;
use crate::train::hostile;

/// Check this machine: an engine against the scalar reference, and with --exhaustive the elementary functions over all
/// 2^32 inputs.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  tiebreak selftest --engine wgpu --adapter llvmpipe\n  \
tiebreak selftest --exhaustive   (minutes)\n  \
tiebreak selftest --exhaustive --engine wgpu   (hours on a software adapter)\n  \
tiebreak selftest --hostile cases   (a folder of runs that an auditor has to judge)")]
pub struct Args {
    /// Every input of exp, log, tanh and erf: the scalar functions against an oracle, a GPU's against those.
    #[arg(long)]
    exhaustive: bool,
    /// Write runs of cheats, rewritten histories and damaged files to this new folder, with the exit code of each in `cases.json`: for whoever
    /// writes or packages another auditor.
    #[arg(long, value_name = "FOLDER", conflicts_with = "exhaustive")]
    hostile: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    if let Some(folder) = &args.hostile {
        return hostile(printer, folder);
    }
    if args.exhaustive {
        args.engine.check()?;
        return exhaustive(printer, &args.engine);
    }
    let mut engine = open_exact(&args.engine)?;
    let (have, want) = (fingerprint(engine.as_mut())?, fingerprint(&mut Reference)?);
    let same = have == want;
    let text = format!(
        "{}: {}",
        engine.describe(),
        if same { "every operator equals the scalar reference" } else { "DIFFERS from the scalar reference" }
    );
    printer.result(
        text,
        &json!({ "engine": engine.describe(), "fingerprint": have.to_string(), "matches": same }),
    );
    Ok(if same { Exit::Match } else { Exit::Undecided })
}

/// Writes the runs that an auditor has to judge.
fn hostile(printer: Printer, folder: &Path) -> CommandResult {
    if folder.exists() {
        let why = format!("{} is there already: give a folder that is not", folder.display());
        return Err(Failure::new(Exit::Usage, why));
    }
    let cases = hostile::write(folder, &mut |name| printer.say(format!("writing {name}")))?;
    let list = serde_json::to_vec_pretty(&cases).map_err(|error| Failure::new(Exit::Undecided, error))?;
    let file = std::path::absolute(folder.join("cases.json")).map_err(RunError::io(folder))?;
    Disk::default().replace(&file, &list)?;
    let count = cases.len();
    let mut lines = vec![format!(
        "{count} cases; each command of {} ends with its exit code, run from the folder",
        file.display()
    )];
    lines.extend(cases.iter().map(|case| format!("  exit {}: {} ({})", case.exit, case.name, case.about)));
    printer.result(lines, &cases);
    Ok(Exit::Match)
}

type Compute = fn(u32) -> u32;

/// Inputs of one stretch of the exhaustive check.
const STRETCH: u64 = 1 << 22;

const FUNCTIONS: [(Function, Compute); 4] = [
    (Function::Exp, elementary::exp),
    (Function::Log, elementary::log),
    (Function::Tanh, elementary::tanh),
    (Function::Erf, elementary::erf),
];

/// All inputs of each function: the scalar functions against the oracle, and with an engine, the engine's against the
/// scalar ones.
fn exhaustive(printer: Printer, args: &EngineArgs) -> CommandResult {
    let mut engine: Option<Box<dyn Engine>> = match args.engine {
        Kind::Cpu | Kind::Reference => None, // they call the scalar functions
        #[cfg(feature = "gpu")]
        Kind::Wgpu => Some(open_exact(args)?),
        #[cfg(feature = "cuda")]
        Kind::Cuda => Some(open_exact(args)?),
    };
    let mut rows = Vec::new();
    let mut wrong = 0;
    for (function, compute) in FUNCTIONS {
        let bar = printer.bar(1 << 32, "inputs");
        bar.set_message(format!("{function:?}"));
        let mut total = Tally::default();
        for first in (0..1u64 << 32).step_by(STRETCH as usize) {
            let inputs = first..first + STRETCH;
            total.add(match engine.as_mut() {
                None => check_range(function, compute, inputs),
                Some(engine) => engine_range(engine.as_mut(), function, compute, inputs)?,
            });
            bar.set_position(first + STRETCH);
        }
        bar.finish_and_clear();
        printer.say(format!(
            "{function:?}: {} inputs, {} that binary64 does not decide, {} wrong{}",
            total.inputs,
            total.hard,
            total.wrong,
            total.first_wrong.map_or(String::new(), |x| format!(", first {x:08x}")),
        ));
        wrong += total.wrong;
        rows.push(
            json!({ "function": format!("{function:?}"), "inputs": total.inputs, "wrong": total.wrong }),
        );
    }
    printer.result(if wrong == 0 { "all correctly rounded" } else { "NOT correctly rounded" }, &rows);
    if wrong == 0 { Ok(Exit::Match) } else { Err(Failure::new(Exit::Undecided, format!("{wrong} inputs"))) }
}

/// A stretch of inputs on an engine against the scalar function.
fn engine_range(
    engine: &mut dyn Engine,
    function: Function,
    compute: Compute,
    inputs: Range<u64>,
) -> Result<Tally, EngineError> {
    let shape = [(inputs.end - inputs.start) as u32];
    let mut b = Builder::new(ProductTable::preset());
    let x = b.input("x", DType::F32, &shape);
    let body = Body::new("selftest.v1", |w| {
        let x = w.input(0);
        match function {
            Function::Exp => w.exp(x),
            Function::Log => w.log(x),
            Function::Tanh => w.tanh(x),
            Function::Erf => w.erf(x),
        }
    });
    let y = b.map(body, &[x], &shape);
    b.output("y", y);
    let graph = engine.compile(Arc::new(b.finish()))?;
    let words: Vec<u8> = inputs.clone().flat_map(|x| (x as u32).to_le_bytes()).collect();
    let input = engine.upload(&TensorType { dtype: DType::F32, shape: shape.to_vec() }, &words)?;
    let outputs = engine.run(&graph, &[input], None)?;
    let have = engine.download(&outputs[0])?;
    let mut tally = Tally { inputs: inputs.end - inputs.start, ..Tally::default() };
    for (x, y) in inputs.zip(have.chunks_exact(4)) {
        if y != compute(x as u32).to_le_bytes() {
            tally.wrong += 1;
            tally.first_wrong.get_or_insert(x as u32);
        }
    }
    Ok(tally)
}
