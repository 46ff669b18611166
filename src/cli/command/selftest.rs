//! `tiebreak selftest`.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::builder::PossibleValuesParser;
use rayon::prelude::*;
use serde_json::json;

use crate::cli::args::engine::{EngineArgs, EngineKind, open_exact};
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use tiebreak_contract::arith::DType;
use tiebreak_contract::program::builder::Builder;
use tiebreak_contract::program::expr::{Body, UNARY};
use tiebreak_contract::program::graph::TensorType;
use tiebreak_contract::program::products::ProductTable;
use tiebreak_engine::fingerprint::fingerprint;
use tiebreak_engine::reference::Reference;
use tiebreak_engine::{Engine, EngineError};
use tiebreak_run::run::RunError;
use tiebreak_run::run::disk::Disk;
use tiebreak_train::hostile;

/// Check an engine of this machine against the scalar reference.
///
/// With --exhaustive the command checks every function of one number over all 2^32 inputs. The CPU engine takes minutes for it, a software
/// adapter up to hours.
#[derive(clap::Args)]
#[command(
    after_help = "Example: tiebreak selftest --engine wgpu --adapter llvmpipe",
    after_long_help = "Examples:
  tiebreak selftest --engine cpu
  tiebreak selftest --engine wgpu --adapter llvmpipe
  tiebreak selftest --exhaustive --function exp
  tiebreak selftest --exhaustive --function exp --from ffff0000   # goes on where the check stood
  tiebreak selftest --hostile cases   # a folder of runs that an auditor has to judge"
)]
pub struct Args {
    /// Check every input of each function on one number.
    ///
    /// The functions are exp, log, tanh, erf, sqrt and each other instruction on one number.
    #[arg(long)]
    exhaustive: bool,
    /// With --exhaustive: check this function alone.
    #[arg(
        long,
        value_name = "NAME",
        requires = "exhaustive",
        hide_possible_values = true,
        value_parser = PossibleValuesParser::new(UNARY.iter().map(|(name, _)| *name))
    )]
    function: Option<String>,
    /// With --function: begin with this input, eight hexadecimal digits.
    ///
    /// An earlier check of the function says at which input it stood.
    #[arg(long, value_name = "PATTERN", requires = "function", value_parser = pattern)]
    from: Option<u32>,
    /// Write runs of cheats, and damaged ones, to this new folder.
    ///
    /// The folder gets cheats, rewritten histories and damaged files, and the exit code of each in `cases.json`. They are for whoever
    /// writes or packages another auditor.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["exhaustive", "EngineArgs"])]
    hostile: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
}

/// A pattern of 32 bits.
fn pattern(text: &str) -> Result<u32, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u32::from_str_radix(digits, 16).map_err(|_| "give up to eight hexadecimal digits, as 3fc00000".into())
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    if let Some(folder) = &args.hostile {
        return hostile(printer, folder);
    }
    if args.exhaustive {
        args.engine.check()?;
        return exhaustive(printer, &args.engine, args.function.as_deref(), args.from.unwrap_or(0));
    }
    let opening = printer.working("opening the engine", None);
    let mut engine = open_exact(&args.engine)?;
    drop(opening);
    let working = printer.working("comparing every operator with the scalar reference", None);
    let (have, want) = (fingerprint(engine.as_mut())?, fingerprint(&mut Reference)?);
    drop(working);
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

/// Inputs of one stretch of the exhaustive check.
const STRETCH: u64 = 1 << 22;

/// The results of an engine for an instruction over all inputs, or those from one on.
#[derive(serde::Serialize)]
struct Row {
    function: &'static str,
    /// The pattern of the first input.
    from: String,
    inputs: u64,
    wrong: u64,
    /// The pattern of the first input with a wrong result.
    first_wrong: Option<String>,
}

/// All inputs of each instruction on one word, or of one instruction from one input on: the engine's results against the scalar reference's.
fn exhaustive(printer: Printer, args: &EngineArgs, function: Option<&str>, from: u32) -> CommandResult {
    if args.engine == EngineKind::Reference {
        let why =
            "--exhaustive compares an engine with the scalar reference: give --engine cpu, wgpu or cuda";
        return Err(Failure::new(Exit::Usage, why));
    }
    let mut engine = open_exact(args)?;
    let mut rows = Vec::new();
    for (name, write) in UNARY.iter().filter(|(name, _)| function.is_none_or(|function| function == *name)) {
        let bar = printer.bar(1 << 32, "inputs");
        bar.begin_at(from.into());
        let body = Body::new("selftest.v1", |w| {
            let x = w.input(0);
            write(w, x)
        });
        let from_text = format!("{from:08x}");
        let mut row = Row { function: name, from: from_text, inputs: 0, wrong: 0, first_wrong: None };
        let mut first = u64::from(from);
        while first < 1 << 32 {
            bar.set_message(format!("{name}: {} wrong; --from {first:08x} goes on here", row.wrong));
            let end = (first + 1).next_multiple_of(STRETCH);
            stretch(engine.as_mut(), &body, first..end, &mut row).map_err(|error| {
                let stands = format!("{name} stands at {first:08x}, {} wrong so far", row.wrong);
                Failure::new(Exit::Undecided, format!("{error} ({stands}; --from {first:08x} goes on there)"))
            })?;
            bar.set_position(end);
            first = end;
        }
        bar.finish_and_clear();
        let first = row.first_wrong.as_ref().map_or(String::new(), |x| format!(", first {x}"));
        printer.say(format!("{name}: {} inputs, {} wrong{first}", row.inputs, row.wrong));
        rows.push(row);
    }
    let wrong: u64 = rows.iter().map(|row| row.wrong).sum();
    let verdict =
        if wrong == 0 { "equals the scalar reference" } else { "DIFFERS from the scalar reference" };
    let of = function.map_or(String::new(), |name| format!(" of {name}"));
    let since = if from > 0 { format!(" from {from:08x} on") } else { String::new() };
    printer.result(format!("{}: every input{of}{since} {verdict}", engine.describe()), &rows);
    if wrong == 0 { Ok(Exit::Match) } else { Err(Failure::new(Exit::Undecided, format!("{wrong} inputs"))) }
}

/// A stretch of inputs on an engine against the scalar reference.
fn stretch(
    engine: &mut dyn Engine,
    body: &Body,
    inputs: Range<u64>,
    row: &mut Row,
) -> Result<(), EngineError> {
    let shape = [(inputs.end - inputs.start) as u32];
    let mut b = Builder::new(ProductTable::two_and_three());
    let x = b.input("x", DType::F32, &shape);
    let y = b.map(body.clone(), &[x], &shape);
    b.output("y", y);
    let graph = engine.compile(Arc::new(b.finish()))?;
    let words: Vec<u8> = inputs.clone().flat_map(|x| (x as u32).to_le_bytes()).collect();
    let input = engine.upload(&TensorType { dtype: DType::F32, shape: shape.to_vec() }, &words)?;
    let outputs = engine.run(&graph, &[input], None)?;
    let have = engine.download(&outputs[0])?;
    let all = have.par_chunks_exact(4).enumerate().map(|(i, y)| (inputs.start + i as u64, y));
    let differs = |(x, y): &(u64, &[u8])| *y != body.eval(&[*x as u32], [0; 4]).to_le_bytes();
    let wrong: Vec<u64> = all.filter(differs).map(|(x, _)| x).collect();
    row.inputs += inputs.end - inputs.start;
    row.wrong += wrong.len() as u64;
    row.first_wrong = row.first_wrong.take().or(wrong.first().map(|x| format!("{x:08x}")));
    Ok(())
}
