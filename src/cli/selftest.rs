//! `tiebreak selftest`.

use serde_json::json;

use super::engine::{EngineArgs, open};
use super::{CommandResult, Exit, Failure, Printer};
use crate::arith::elementary;
use crate::arith::elementary::oracle::{Function, Tally, check_range};
use crate::engine::fingerprint::fingerprint;
use crate::engine::reference::Reference;

/// Check this machine: an engine against the scalar reference, and with --exhaustive the elementary functions over all
/// 2^32 inputs.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  tiebreak selftest --engine wgpu --adapter llvmpipe\n  \
tiebreak selftest --exhaustive   (minutes to hours, by the number of cores)")]
pub struct Args {
    /// Every input of exp, log, tanh and erf.
    #[arg(long)]
    exhaustive: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    if args.exhaustive {
        return exhaustive(printer);
    }
    let mut engine = open(&args.engine)?;
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

type Compute = fn(u32) -> u32;

/// Inputs of one stretch of the exhaustive check.
const STRETCH: u64 = 1 << 22;

fn exhaustive(printer: Printer) -> CommandResult {
    let functions: [(Function, Compute); 4] = [
        (Function::Exp, elementary::exp),
        (Function::Log, elementary::log),
        (Function::Tanh, elementary::tanh),
        (Function::Erf, elementary::erf),
    ];
    let mut rows = Vec::new();
    let mut wrong = 0;
    for (function, compute) in functions {
        let bar = printer.bar(1 << 32, "inputs");
        bar.set_message(format!("{function:?}"));
        let mut total = Tally::default();
        for first in (0..1u64 << 32).step_by(STRETCH as usize) {
            total.add(check_range(function, compute, first..first + STRETCH));
            bar.set_position(first + STRETCH);
        }
        bar.finish_and_clear();
        printer.say(format!(
            "{function:?}: {} inputs, {} by the arbitrary-precision oracle, {} wrong{}",
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
