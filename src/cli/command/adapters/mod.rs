//! `tiebreak adapters`: the engines and GPUs of a machine, what proves that they compute the contract's bits, and how fast they are.

pub mod doctor;
mod speed;

use std::time::Instant;

use serde::Serialize;

use crate::cli::args::engine::cores;
use crate::cli::view::next::{self, Next};
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use speed::Speed;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::fingerprint::{FINGERPRINT, fingerprint};
use tiebreak_engine::reference::Reference;
use tiebreak_engine::{Engine, EngineError};
use tiebreak_job::identity::CONTRACT;

/// List the engines and adapters here; test and measure them on request.
///
/// The test takes a digest over every operator of small training steps with ordinary and extreme inputs: the fingerprint. Every right engine
/// has the one that this version expects, on every machine. The output of --test and --bench can be pasted into a report:
/// docs/PORTABILITY.md collects them.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tiebreak adapters
  tiebreak adapters --adapter reference --test --bench")]
pub struct Args {
    /// Take each one's fingerprint, and compare it with this version's.
    #[arg(long)]
    test: bool,
    /// Measure each one: a product, and a training step.
    ///
    /// The product is of two square matrices of two digits. The step is of a GPT with 1.06 million parameters on 1024 tokens. A slow engine
    /// gets smaller matrices and 128 tokens, so that the measurement takes less than a minute.
    #[arg(long)]
    bench: bool,
    /// List those alone whose name contains this text.
    #[arg(long, value_name = "NAME")]
    adapter: Option<String>,
}

/// A function that opens an engine.
type Open = Box<dyn Fn() -> Result<Box<dyn Engine>, EngineError>>;

/// An engine of this machine.
struct Openable {
    row: Row,
    /// True if opening it compares its fingerprint with the scalar reference's.
    tested: bool,
    open: Open,
}

/// The facts about an engine.
#[derive(Clone, Debug, Default, Serialize)]
struct Row {
    /// reference, cpu, wgpu or cuda.
    engine: &'static str,
    /// The device, and once it was opened how it computes products.
    name: String,
    /// The driver and its version.
    driver: Option<String>,
    /// Discrete, integrated, virtual or software.
    kind: Option<&'static str>,
    /// The digest over every operator; absent where it was not tested.
    fingerprint: Option<String>,
    /// True if the fingerprint is this version's.
    matches: Option<bool>,
    /// Seconds to open and test it.
    seconds: Option<f64>,
    #[serde(flatten)]
    speed: Option<Speed>,
    /// Why it is not used.
    error: Option<String>,
}

/// The output of the command.
#[derive(Serialize)]
struct Report {
    version: &'static str,
    contract: &'static str,
    os: String,
    arch: &'static str,
    cores: usize,
    /// The fingerprint that every engine of this version has.
    expected: &'static str,
    engines: Vec<Row>,
    next: Vec<Next>,
}

fn candidate(row: Row, open: Open) -> Openable {
    Openable { tested: false, row, open }
}

/// Every engine of this machine, the reference first.
fn candidates() -> Vec<Openable> {
    let named = |engine, name: &str| Row { engine, name: name.into(), ..Row::default() };
    #[allow(unused_mut, reason = "a build without GPUs has none to add")]
    let mut all = vec![
        candidate(named("reference", "scalar reference"), Box::new(|| Ok(Box::new(Reference)))),
        candidate(named("cpu", "cpu"), Box::new(|| Ok(Box::new(Cpu::new(0)?)))),
    ];
    #[cfg(feature = "gpu")]
    all.extend(tiebreak_gpu::adapters().into_iter().map(|adapter| {
        let row =
            Row { driver: Some(adapter.driver), kind: Some(adapter.kind), ..named("wgpu", &adapter.name) };
        let (name, refused) = (adapter.name, adapter.refused);
        let open: Open = Box::new(move || match &refused {
            Some(why) => Err(EngineError::Unsupported { device: name.clone(), reason: why.clone() }),
            None => Ok(Box::new(tiebreak_gpu::Gpu::open(Some(&name))?)),
        });
        Openable { tested: true, row, open }
    }));
    #[cfg(feature = "cuda")]
    match tiebreak_gpu::cuda_devices() {
        Err(error) => {
            let why = error.to_string();
            let failed = move || Err(EngineError::Unsupported { device: "cuda".into(), reason: why.clone() });
            all.push(candidate(named("cuda", "cuda"), Box::new(failed)));
        }
        Ok(devices) => all.extend(devices.into_iter().map(|device| {
            let index = device.index.to_string();
            let open: Open = Box::new(move || Ok(Box::new(tiebreak_gpu::Cuda::open(Some(&index))?)));
            let row = Row { kind: Some("discrete"), ..named("cuda", &device.name) };
            Openable { tested: true, ..candidate(row, open) }
        })),
    }
    all
}

/// Opens, tests and measures an engine, as far as that was asked for.
fn probed(printer: Printer, args: &Args, candidate: Openable) -> Row {
    let Openable { mut row, tested, open } = candidate;
    printer.say(format!("{} {} ...", if args.test { "testing" } else { "measuring" }, row.name));
    let working = printer.working("at work on it", None);
    let begin = Instant::now();
    let tried = open().and_then(|mut engine| {
        row.name = engine.describe();
        if args.test {
            // A GPU that was opened has shown that its fingerprint is the scalar reference's.
            let have = if tested { fingerprint(&mut Reference)? } else { fingerprint(engine.as_mut())? };
            let have = have.to_string();
            row.matches = Some(have == FINGERPRINT);
            row.fingerprint = Some(have);
            row.seconds = Some(begin.elapsed().as_secs_f64());
        }
        if args.bench && row.engine != "reference" {
            row.speed = Some(speed::measure(engine.as_mut())?);
        }
        Ok(())
    });
    drop(working);
    if let Err(error) = tried {
        row.error = Some(error.to_string());
        // The report of a device that computes other bits is worth most.
        if let EngineError::SelfTest { device, fingerprint, .. } = error {
            row.name = device;
            row.matches = Some(false);
            row.fingerprint = fingerprint;
            row.seconds = Some(begin.elapsed().as_secs_f64());
        }
    }
    row
}

/// The system's name, as it calls itself.
fn system() -> String {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let name = name.map(|name| name.trim_matches('"'));
    name.map_or(std::env::consts::OS.into(), |name| format!("{}: {name}", std::env::consts::OS))
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let wanted = args.adapter.as_ref().map(|name| name.to_lowercase());
    let mut candidates = candidates();
    candidates.retain(|candidate| {
        wanted.as_ref().is_none_or(|wanted| candidate.row.name.to_lowercase().contains(wanted))
    });
    if candidates.is_empty() {
        let why =
            format!("no engine or adapter here is called {:?}", args.adapter.as_deref().unwrap_or_default());
        let help = "see `tiebreak adapters` without --adapter, which lists all of them";
        return Err(Failure::new(Exit::Usage, why).help(help));
    }
    let engines = match args.test || args.bench {
        true => candidates.into_iter().map(|candidate| probed(printer, &args, candidate)).collect(),
        false => candidates.into_iter().map(|candidate| candidate.row).collect(),
    };
    let commands = [
        ("take each one's fingerprint (software adapters: half a minute)", "tiebreak adapters --test"),
        ("measure each one", "tiebreak adapters --bench"),
    ];
    let next = commands.map(|(why, command)| Next::new(why, command));
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        contract: CONTRACT,
        os: system(),
        arch: std::env::consts::ARCH,
        cores: cores(),
        expected: FINGERPRINT,
        engines,
        next: if args.test { Vec::new() } else { next.to_vec() },
    };
    printer.document(lines(&report), &report);
    match report.engines.iter().find(|row| row.matches == Some(false)) {
        Some(row) => Err(Failure::new(
            Exit::Undecided,
            format!("{} does not compute this version's bits: use another engine, and report it", row.name),
        )),
        None => Ok(Exit::Match),
    }
}

/// The report as Markdown.
fn lines(report: &Report) -> Vec<String> {
    let Report { version, contract, os, arch, cores, expected, engines, next } = report;
    let mut lines = vec![
        format!("tiebreak {version}, {contract}; {os}, {arch}, {cores} cores"),
        format!("expected fingerprint: {expected}"),
        String::new(),
        "| engine | kind | driver | fingerprint | seconds | GMAC/s (side) | step (tokens) |".into(),
        "|---|---|---|---|---|---|---|".into(),
    ];
    let or = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    lines.extend(engines.iter().map(|row| {
        let why = row.error.as_ref().map(|why| why.replace('|', "/").replace('\n', " "));
        let said = match (row.matches, &row.fingerprint, why) {
            (Some(true), _, None) => "as expected".into(),
            (Some(true), _, Some(why)) => format!("as expected; {why}"),
            (_, Some(have), Some(why)) => format!("**{have}**: {why}"),
            (_, Some(have), None) => format!("**{have}**"),
            (_, None, Some(why)) => format!("**{why}**"),
            (_, None, None) => "not tested".into(),
        };
        format!(
            "| {} | {} | {} | {said} | {} | {} | {} |",
            row.name,
            row.kind.unwrap_or("-"),
            or(row.driver.clone()),
            or(row.seconds.map(|seconds| format!("{seconds:.1}"))),
            or(row.speed.as_ref().map(|speed| format!("{:.3} ({})", speed.gmacs, speed.side))),
            or(row.speed.as_ref().map(|speed| format!("{:.3} s ({})", speed.step_seconds, speed.tokens))),
        )
    }));
    if !next.is_empty() {
        lines.push(String::new());
        lines.extend(next::lines(next));
    }
    lines
}
