//! `tiebreak demo --monitor`: a month of compute monitoring, from the register of chips to signed statements and one page.

mod chips;
mod commands;
mod folder;
mod found;
mod inspection;
mod pictured;
mod scenario;
mod training;

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::{Value, json};

use crate::cli::view::next::Next;
use crate::cli::view::page::monitoring;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use chips::Chips;
pub use folder::Month;
use folder::{close, prepare, write};
use found::{Found, Inspected, Limit};
use inspection::inspect;
use scenario::{CHIPS, Cheat, DAYS, LIMIT, Operator, Seed, operators};
use tiebreak_monitor::rules::flop;
use tiebreak_run::run::shell;
use training::{Place, trained};

/// Lets the month pass for an operator's chips. Returns the FLOP of a step.
fn pass(printer: Printer, month: &Month, operator: &Operator, seed: Seed) -> Result<Option<u128>, Failure> {
    let (key, witness) = (seed.key(&operator.file())?, seed.key("witness")?);
    let place = Place { folder: month.folder, operator: &key, witness: &witness, seed };
    let (mut first, mut step) = (0, None);
    for group in &operator.groups {
        let own = first..first + group.chips;
        first += group.chips;
        let mut chips = Chips::start(operator, own, &month.folder.join("logs"), seed)?;
        for training in &group.trainings {
            let (run, seconds) = trained(printer, &place, training, &mut chips)?;
            step = Some(flop::of_step(run.program()));
            let (from, to) = training.days;
            let how = match (training.declared, training.after) {
                (false, _) => "trains a run that nobody is told of".to_string(),
                (true, None) => "declares and trains a run".to_string(),
                (true, Some(before)) => format!("declares and trains a run that goes on from {before}"),
            };
            printer.say(format!(
                "  {} {how}: {}, {} steps on {} chips, days {from} to {to} (in {seconds:.1} s)",
                operator.name,
                training.name,
                training.steps,
                chips.len()
            ));
        }
        let end = (scenario::END.0 * 1000 - scenario::START) as f64 / 86_400_000.0;
        chips.pass_until(end)?;
    }
    Ok(step)
}

/// The limit, and the speed at which a chip does its share of a run at the limit.
fn limit(step: u128, fleet: u32) -> Limit {
    let flop = step * u128::from(LIMIT.0);
    let speed = flop as f64 / (f64::from(LIMIT.1) * DAYS * 86_400.0);
    // Rounded up, so that the run does not need a part of one chip more.
    Limit { flop, chip: (speed * 100.0).ceil() / 100.0, fleet }
}

/// The end of the demo: its first line, and whether all is as it should be.
fn ended(operators: &[Operator], found: &Found) -> (String, bool) {
    let pairs = || operators.iter().zip(&found.operators);
    let honest = |cheat: Cheat| cheat == Cheat::None;
    let accused = pairs().any(|(operator, inspected)| honest(operator.cheat) && inspected.is_accused());
    let right = pairs().all(|(operator, inspected)| inspected.is_right(operator.cheat));
    let cheats = pairs().filter(|(operator, _)| !honest(operator.cheat));
    let caught = cheats.clone().filter(|(operator, inspected)| inspected.is_right(operator.cheat)).count();
    let first = match (cheats.count(), accused) {
        (_, true) => "an honest operator is accused".to_string(),
        (0, false) if right => "nobody is accused, and nobody cheated".into(),
        (0, false) => "nobody cheated, and something is not decided".into(),
        (of, false) if right => {
            format!("{caught} of {of} cheats are found, and the honest operator is not accused")
        }
        (of, false) => format!("{caught} of {of} cheats are found"),
    };
    (first, right)
}

fn as_json(operator: &Operator, inspected: &Inspected) -> Value {
    json!({
        "operator": operator.name,
        "cheat": operator.cheat,
        "declared": operator.declared().map(|run| run.name).collect::<Vec<_>>(),
        "drawn": inspected.drawn,
        "defects": inspected.defects,
        "snapshots": { "declared": inspected.declared(), "undeclared": inspected.undeclared().len() },
        "violated": inspected.violated(),
        "audited": inspected.audited,
        "as_expected": inspected.is_right(operator.cheat),
        "says": inspected.sentence(),
        "statements": inspected.statements.iter().map(|stated| &stated.file).collect::<Vec<_>>(),
    })
}

/// The commands that go on with the demo's files, from wherever it was called.
fn next(folder: &Path, operators: &[Operator], found: &Found) -> Vec<Next> {
    let program = std::env::args().next().unwrap_or_else(|| "tiebreak".into());
    let program = shell::word(&program);
    let at = |name: &str| shell::path(&folder.join(name));
    let mut next = vec![Next::new(
        "Repeat the draw",
        format!(
            "{program} monitor draw --register {} --registrar {} --closed {} --check {}",
            at("chips.register"),
            at("keys/registrar.pub"),
            at("heads.txt"),
            at("draw.json")
        ),
    )];
    for (operator, inspected) in operators.iter().zip(&found.operators) {
        let runs = || operator.declared().map(|run| at(&format!("runs/{}", run.name)));
        let chip = inspected.undeclared().first().and_then(|one| one["chip"].as_str().map(String::from));
        next.extend(chip.map(|chip| {
            let runs: String = runs().map(|run| format!(" --run {run}")).collect();
            let log = at(&format!("drawn/{}/{chip}.log", operator.file()));
            let keys: String = [
                ("register", "chips.register".to_string()),
                ("registrar", "keys/registrar.pub".into()),
                ("trainer-key", format!("keys/{}.pub", operator.file())),
                ("witness", "keys/witness.pub".into()),
            ]
            .map(|(option, file)| format!(" --{option} {}", at(&file)))
            .concat();
            let command = format!("{program} monitor match {log}{runs}{keys}");
            Next::new(format!("Compare a chip of {}", operator.name), command)
        }));
        if !inspected.violated().is_empty() {
            let runs = runs().collect::<Vec<_>>().join(" ");
            let command = format!("{program} monitor rules {runs} {}", at("rules.toml"));
            next.push(Next::new(format!("Add up {}'s runs", operator.name), command));
        }
    }
    let statements = found.operators.iter().flat_map(|inspected| &inspected.statements);
    next.extend(statements.last().map(|stated| {
        let (file, key) = (at(&stated.file), at("keys/inspector.pub"));
        Next::new("Check a statement", format!("{program} monitor statement --check {file} --key {key}"))
    }));
    next
}

/// Passes a month, inspects it, and says what came out.
///
/// # Errors
/// If a training or a command fails, or a file cannot be written.
pub fn run(printer: Printer, month: &Month) -> CommandResult {
    let (start, seed, folder) = (Instant::now(), Seed(month.seed), month.folder);
    let operators = operators(month.honest);
    let fleet = CHIPS * operators.len() as u32;
    let names: Vec<&str> = operators.iter().map(|operator| operator.name).collect();
    printer.say(format!(
        "1. The register: {} own {CHIPS} chips each. Every chip logs its state at random times, about once in ten days",
        names.join(", ")
    ));
    printer.say(format!(
        "  real trainings and commands; a month passes in seconds, by a clock of the demo's (all files: {})",
        folder.display()
    ));
    prepare(month, &operators, seed)?;
    printer.say("2. A month of training");
    let mut step = None;
    for operator in &operators {
        step = step.or(pass(printer, month, operator, seed)?);
    }
    close(folder, &operators)?;
    let limit = limit(step.unwrap_or(1), fleet);
    let rules =
        format!("# No run may take more, with all runs that it began from.\n[flop]\nmost = {}\n", limit.flop);
    write(folder, "rules.toml", rules.as_bytes())?;
    let found = inspect(printer, folder, &operators, limit, seed)?;
    let next = next(folder, &operators, &found);
    let told = pictured::told(month, &operators, &found, limit)?;
    write(folder, "report.html", monitoring::page(&told).as_bytes())?;
    let page: PathBuf = folder.join("report.html");
    let (first, right) = ended(&operators, &found);
    let seconds = start.elapsed().as_secs_f64();
    let mut lines = vec![format!("{first} ({seconds:.0} s)")];
    lines.extend(
        operators
            .iter()
            .zip(&found.operators)
            .map(|(operator, inspected)| format!("  {}: {}", operator.name, inspected.sentence())),
    );
    lines.push(format!("the page for people: {}", shell::path(&page)));
    lines.extend(next.iter().map(|next| format!("{:<24} {}", format!("{}:", next.why()), next.command())));
    printer.result(
        lines,
        &json!({
            "as_expected": right,
            "chips": fleet,
            "days": DAYS,
            "days_are_simulated": true,
            "seed": month.seed,
            "limit_flop": limit.flop as f64,
            "samples": found.samples,
            "probability": found.probability,
            "drawn": found.drawn,
            "operators": operators.iter().zip(&found.operators).map(|(a, b)| as_json(a, b)).collect::<Vec<_>>(),
            "page": page,
            "seconds": seconds,
            "next": next,
        }),
    );
    Ok(if right { Exit::Match } else { Exit::Undecided })
}
