//! `tiebreak demo`: the main job from end to end.

mod game;
mod monitor;

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::json;

use crate::cli::args::engine::{EngineArgs, EngineKind, open};
use crate::cli::args::random::random;
use crate::cli::command::train::bar::Bar;
use crate::cli::view::escape::{Lines, one_line};
use crate::cli::view::next::Next;
use crate::cli::view::outcome::{ReplayBar, outcome_json};
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer, bytes_text};
use game::dispute;
use tiebreak_audit::plan::{Choice, plan};
use tiebreak_audit::{Outcome, Report, audit, checks};
use tiebreak_dispute::verdict::{Finding, Ruling, VERDICT_MAX, Verdict};
use tiebreak_engine::Engine;
use tiebreak_engine::cpu::Cpu;
use tiebreak_job::JOB_MAX;
use tiebreak_record::commit::keys::{PrivateKey, PublicKey};
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::{Folder, RunError, shell};
use tiebreak_train::cheat::Cheat;
use tiebreak_train::{Beginning, begin, train, train_as};

const JOB: &str = include_str!("../../../../assets/jobs/demo.toml");
const TEXT: &[u8] = include_bytes!("../../../../assets/jobs/text/shakespeare.txt");

/// Train a small GPT, plant a cheat in one step, and convict it.
///
/// A trainer trains honestly and an auditor replays the run. Then a trainer cheats in one step and carries on. The auditor, on another
/// engine, stops at that step, names the operator and the first differing tile, and writes a verdict that anybody can check. Then the two
/// trainers stand before a referee, who asks both and computes one element. The command ends with 0 when the honest run matched and the
/// cheat was convicted twice.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tiebreak demo --cheat weight-before@12 --dir demo\n  tiebreak demo --monitor --dir month"
)]
pub struct Args {
    /// Folder for all files, which is not there yet: by default tiebreak-demo, with --monitor tiebreak-monitor-demo.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Lie of the dishonest trainer, and its step.
    #[arg(long, value_name = "NAME@STEP", default_value = "operator@17")]
    cheat: Cheat,
    /// Auditor's engine.
    ///
    /// The default is a GPU if there is one, else the CPU engine with one thread. Software adapters do not count.
    #[arg(long, value_enum, help_heading = "Engine")]
    engine: Option<EngineKind>,
    /// GPU whose name contains this text; `tiebreak adapters` lists all.
    #[arg(long, value_name = "NAME", help_heading = "Engine")]
    adapter: Option<String>,
    /// Show compute monitoring instead: two of three operators cheat, and an inspector finds both.
    ///
    /// Sixty chips log a simulated month of small real trainings. One operator hides a run, and another declares one above the limit as
    /// two. The plan says how many chips to draw; draw, inspection, match, rules, audits and signed statements follow, and one HTML page
    /// tells it all. The command ends with 0 if both cheats were found and nobody else is accused.
    #[arg(long, conflicts_with_all = ["cheat", "engine", "adapter"], help_heading = "Monitoring")]
    monitor: bool,
    /// Let nobody cheat: then nobody may be accused.
    #[arg(long, requires = "monitor", help_heading = "Monitoring")]
    honest: bool,
    /// Number that all keys, times and the draw follow from.
    #[arg(
        long,
        requires = "monitor",
        value_name = "NUMBER",
        default_value_t = 0,
        help_heading = "Monitoring"
    )]
    seed: u64,
}

/// Checks, before anything is trained, that the auditor's engine can be meant.
fn check_engine(args: &Args) -> Result<(), Failure> {
    let engine = args.engine.or(if cfg!(feature = "gpu") { None } else { Some(EngineKind::Cpu) });
    let args = EngineArgs { adapter: args.adapter.clone(), ..EngineArgs::default() };
    engine.map_or(Ok(()), |engine| EngineArgs { engine, ..args }.check())
}

/// The auditor's engine, another one than the trainer's.
fn auditor(args: &Args) -> Result<Box<dyn Engine>, Failure> {
    let engine_args = |engine, threads| EngineArgs {
        engine,
        adapter: args.adapter.clone(),
        threads,
        ..EngineArgs::default()
    };
    match args.engine {
        Some(EngineKind::Cpu) => Ok(open(&engine_args(EngineKind::Cpu, 1))?),
        Some(kind) => Ok(open(&engine_args(kind, 0))?),
        // A GPU that is named is meant.
        #[cfg(feature = "gpu")]
        None if args.adapter.is_some() => Ok(open(&engine_args(EngineKind::Wgpu, 0))?),
        None => {
            // A software adapter would take minutes to tell what the CPU engine tells in seconds.
            #[cfg(feature = "gpu")]
            if tiebreak_gpu::adapters().iter().any(|a| !a.software)
                && let Ok(gpu) = open(&engine_args(EngineKind::Wgpu, 0))
            {
                return Ok(gpu);
            }
            Ok(open(&engine_args(EngineKind::Cpu, 1))?)
        }
    }
}

fn trained(
    printer: Printer,
    job: &Path,
    out: &Path,
    key: &PrivateKey,
    cheat: Option<Cheat>,
) -> Result<Run, Failure> {
    let (nonce, out) = (random()?, Folder::at(out));
    let beginning =
        Beginning { job, data_root: None, out, key: Some(key), challenge: None, logged: false, nonce };
    let run = begin(&beginning)?;
    let mut cheat = cheat;
    let mut cpu = Cpu::new(0)?;
    let mut bar = Bar::new(printer, &run);
    let start = Instant::now();
    match &mut cheat {
        Some(cheat) => train_as(&run, &mut cpu, Some(key), cheat, &mut bar)?,
        None => train(&run, &mut cpu, Some(key), &mut bar)?,
    };
    bar.bar.finish_and_clear();
    printer.say(format!(
        "  trained {} steps of {} parameters on {} in {:.1} s, every operator committed",
        run.job().steps,
        run.program().parameter_count(),
        cpu.describe(),
        start.elapsed().as_secs_f64()
    ));
    Ok(run)
}

fn audited(
    printer: Printer,
    run: &Run,
    args: &Args,
    key: &PublicKey,
) -> Result<(Report, Option<Verdict>), Failure> {
    let run = Run::open(&run.layout.root)?; // as a stranger reads it
    let checked = checks::always(&run, Some(key))?;
    let plan = plan(&run, &checked.checkpoints, run.job().steps, &Choice::All);
    let mut engine = auditor(args)?;
    printer.say(format!("  auditing on {}", engine.describe()));
    let mut bar = ReplayBar::new(printer, &plan);
    let (report, verdict) = audit(&run, engine.as_mut(), checked, plan, None, &mut bar)?;
    drop(bar);
    let line = match &report.outcome {
        Outcome::Matches => {
            format!("  MATCHES: {} steps replayed bit for bit in {:.1} s", run.job().steps, report.seconds)
        }
        Outcome::Diverges { step, what } => {
            printer.say(format!("  DIVERGES at step {step}"));
            format!("  {what}")
        }
        other => format!("  {:?}", other.clone().map(|what| what.to_string())),
    };
    printer.say(line);
    Ok((report, verdict))
}

/// Writes the demo's job and its text; returns the job's path.
fn prepare(disk: &Disk, folder: &Path) -> Result<PathBuf, Failure> {
    let io = |path: &Path| {
        let path = path.to_path_buf();
        move |source| RunError::Io { path, source }
    };
    let jobs = folder.join("jobs");
    // The folder to which the job's data path is relative.
    let texts = jobs.join("text");
    std::fs::create_dir_all(&texts).map_err(io(&texts))?;
    let job = std::path::absolute(jobs.join("demo.toml")).map_err(io(&jobs))?;
    debug_assert!((JOB.len() as u64) < JOB_MAX);
    disk.replace(&texts.join("shakespeare.txt"), TEXT)?;
    disk.replace(&job, JOB.as_bytes())?;
    Ok(job)
}

/// The finding of a verdict, read again from its file as anybody would.
fn convicted(
    disk: &Disk,
    file: &Path,
    verdict: &Verdict,
    key: &PublicKey,
) -> Result<Option<Finding>, Failure> {
    disk.replace(file, &verdict.to_bytes())?;
    let again = Verdict::from_bytes(&tiebreak_run::run::disk::read(file, VERDICT_MAX)?)?;
    Ok(match again.check(Some(key))? {
        Ruling::Convicts(finding) => Some(finding),
        _ => None,
    })
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let start = Instant::now();
    let default = if args.monitor { "tiebreak-monitor-demo" } else { "tiebreak-demo" };
    let folder = &args.dir.clone().unwrap_or_else(|| default.into());
    if folder.exists() {
        let why = format!("{} is there already: remove it, or give another --dir", folder.display());
        return Err(Failure::new(Exit::Usage, why));
    }
    if args.monitor {
        let Args { honest, seed, .. } = args;
        return monitor::run(printer, &monitor::Month { folder, honest, seed, text: TEXT });
    }
    check_engine(&args)?;
    let disk = Disk::default();
    let job = prepare(&disk, folder)?;
    let key = PrivateKey::generate("trainer.demo", random()?)?;
    let public = key.public();
    disk.replace(&folder.join("trainer.pub"), format!("{}\n", public.to_text()).as_bytes())?;

    printer.say("1. An honest trainer");
    let honest = trained(printer, &job, &folder.join("honest"), &key, None)?;
    let (honest_report, _) = audited(printer, &honest, &args, &public)?;

    let (cheat, step) = (args.cheat.kind.name(), args.cheat.step);
    printer.say(format!("2. A trainer that cheats ({cheat}@{step}) and carries on"));
    let cheated = trained(printer, &job, &folder.join("cheated"), &key, Some(args.cheat))?;
    let (report, verdict) = audited(printer, &cheated, &args, &public)?;

    printer.say("3. The two as providers of one computation, before a referee who trains nothing");
    let game = dispute(printer, folder, &honest, &cheated, args.cheat)?;

    printer.say("4. The auditor's verdict");
    let matched = honest_report.outcome == Outcome::Matches;
    let file = folder.join("verdict.json");
    let size = verdict.as_ref().map_or(0, |verdict| verdict.to_bytes().len() as u64);
    let finding = match &verdict {
        Some(verdict) => convicted(&disk, &file, verdict, &public)?,
        None => None,
    };
    let seconds = start.elapsed().as_secs_f64();
    let next = finding.as_ref().map_or(Vec::new(), |_| next(folder, &file, &game.file));
    let text = match &finding {
        Some(finding) => Lines::split(&format!(
            "  CONVICTED by the scalar reference from the file alone ({}):\n  step {}: {}\n\n\
             honest run: {}; cheat: convicted; {seconds:.0} s\n{}",
            bytes_text(size),
            finding.step,
            one_line(&finding.what.to_string()),
            if matched { "matches" } else { "DOES NOT MATCH" },
            next.iter().map(hint).collect::<Vec<_>>().join("\n"),
        )),
        None => format!("  no conviction: {:?}", report.outcome.clone().map(|what| what.to_string())).into(),
    };
    printer.result(
        text,
        &json!({
            "honest": outcome_json(&honest_report.outcome),
            "cheated": outcome_json(&report.outcome),
            "convicted": finding.as_ref().map(|f| {
                json!({ "step": f.step, "kind": f.what.0.kind(), "what": f.what.to_string() })
            }),
            "verdict": file,
            "verdict_bytes": size,
            "dispute": game.json,
            "seconds": seconds,
            "next": next,
        }),
    );
    Ok(if matched && finding.is_some() && game.convicted { Exit::Match } else { Exit::Undecided })
}

/// The commands that go on with the demo's files.
fn next(folder: &Path, file: &Path, game: &Path) -> Vec<Next> {
    // As it was called: after `cargo run` it is not on the path.
    let program = std::env::args().next().unwrap_or_else(|| "tiebreak".into());
    let (program, key) = (shell::word(&program), shell::path(&folder.join("trainer.pub")));
    let (file, game, cheated) = (shell::path(file), shell::path(game), shell::path(&folder.join("cheated")));
    let audit = format!("{program} audit {cheated} --trainer-key {key} --engine wgpu --adapter NAME");
    vec![
        Next::new("Re-check it anywhere", format!("{program} verdict check {file} --trainer-key {key}")),
        Next::new("The dispute as a page", format!("{program} verdict report {game} -o report.html")),
        Next::new("Audit on another GPU", audit),
    ]
}

/// The line of such a command for people, in two columns.
fn hint(next: &Next) -> String {
    format!("{:<23} {}", format!("{}:", next.why()), next.command())
}
