//! `tiebreak compare`.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::cli::args::decided::Decided;
use crate::cli::args::limits::Limits;
use crate::cli::args::verdict_file;
use crate::cli::view::next::{self, Next};
use crate::cli::view::report::{CommandResult, Exit, Printer};
use tiebreak_audit::checks::{self, Checked};
use tiebreak_audit::step_of;
use tiebreak_dispute::verdict::{Claim, Fork, Ruling, Verdict};
use tiebreak_job::canonical::settings_that_differ;
use tiebreak_record::commit::state::tensor_digests;
use tiebreak_record::commit::{Malformed, merkle};
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::{RunError, shell, states};

/// Find the first record, and tensor, in which two runs of one computation differ.
///
/// The command names the settings in which two computations differ. Two signed histories of one run give a verdict.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tiebreak compare runs/mine runs/other")]
pub struct Args {
    /// Folder of the first run, or its address (http://HOST/PATH).
    first: PathBuf,
    /// Folder of the second run, or its address (http://HOST/PATH).
    second: PathBuf,
    /// File for the verdict, if these are two signed histories of one run.
    #[arg(long, value_name = "FILE", default_value = "verdict.json")]
    verdict: PathBuf,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    decided: Decided,
}

/// The common part of two runs.
enum Comparison {
    /// The settings that differ: (setting, value of the first, value of the second).
    OtherComputation(Vec<(String, String, String)>),
    /// Logs are their trainers' own claims, so records of two trainers differ.
    Logged,
    /// The same records, as many as both have; the first or the second run may have more.
    Same { records: u64, shorter: Option<&'static str> },
    /// The first record that differs: its step, and the state tensor if both runs have the checkpoint.
    Differs { index: u64, step: u32, tensor: Option<String> },
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let decided = args.decided;
    decided.applied(told_of(printer, args))
}

fn told_of(printer: Printer, args: Args) -> CommandResult {
    let _watch = args.limits.watch(printer);
    let runs = [args.limits.open(&args.first)?, args.limits.open(&args.second)?];
    let working = printer.working("checking both runs", None);
    let checked = [checks::structure(&runs[0], None)?, checks::structure(&runs[1], None)?];
    let comparison = compared(&runs, &checked)?;
    drop(working);
    let (mut lines, mut value, mut exit) = told(&comparison);
    let (mut problem, mut next) = (None, Vec::new());
    if let Comparison::Differs { index, .. } = &comparison
        && let Some(verdict) = fork(&runs, &checked, *index as u32)
    {
        let written = verdict_file::save_anywhere(&args.verdict, &verdict);
        let file =
            written.file.as_ref().map_or(String::new(), |file| format!("; verdict: {}", file.display()));
        lines.insert(0, format!("the trainer signed two histories of one run{file}"));
        next.extend(written.file.as_ref().map(|file| {
            Next::new("anybody can check it", format!("tiebreak verdict check {}", shell::path(file)))
        }));
        value["fork"] = json!(true);
        value["verdict_file"] = json!(written.file);
        if written.file.is_none() {
            value["verdict"] = json!(verdict_file::text(&verdict));
        }
        problem = written.problem;
        exit = Exit::Diverges;
    } else if exit == Exit::Diverges && matches!(comparison, Comparison::Differs { .. }) {
        next.extend(audits(&args));
    }
    lines.extend(next::lines(&next));
    value["next"] = json!(next);
    printer.result(lines, &value);
    if let Some(problem) = problem {
        printer.problem(&problem);
    }
    Ok(exit)
}

fn compared(runs: &[Run; 2], checked: &[Checked; 2]) -> Result<Comparison, RunError> {
    if runs[0].computation.id != runs[1].computation.id {
        let [first, second] = runs.each_ref().map(|run| run.computation.settings());
        return Ok(Comparison::OtherComputation(settings_that_differ(&first, &second)));
    }
    if runs[0].job().rounding.is_some() && runs[0].id != runs[1].id {
        return Ok(Comparison::Logged);
    }
    let sizes = [&checked[0], &checked[1]].map(|checked| checked.head.size);
    let both = sizes[0].min(sizes[1]);
    // What two parties do who have only heads, and ask each other for hashes: first the longer one's root over the shorter one's records.
    let root = |side: usize| -> Result<_, Malformed> {
        let leaves = &checked[side].transcript.leaves;
        let proof = merkle::prove_prefix(leaves, both as usize);
        Ok(merkle::roots_from_prefix_proof(both, leaves.len() as u64, &proof)?.0)
    };
    let roots =
        [root(0), root(1)].map(|root| root.map_err(|why| RunError::malformed(&runs[0].layout.root, why)));
    let [first, second] = roots;
    if first? == second? {
        let shorter = match sizes[0].cmp(&sizes[1]) {
            std::cmp::Ordering::Less => Some("first"),
            std::cmp::Ordering::Equal => None,
            std::cmp::Ordering::Greater => Some("second"),
        };
        return Ok(Comparison::Same { records: both, shorter });
    }
    let subtree = |side: usize| {
        let leaves = &checked[side].transcript.leaves;
        move |first: u64, count: u64| merkle::root(&leaves[first as usize..(first + count) as usize])
    };
    let index = merkle::first_difference(both, subtree(0), subtree(1)).unwrap_or(0);
    let step = step_of(&checked[0].transcript.records[index as usize]);
    Ok(Comparison::Differs { index, step, tensor: tensor_that_differs(runs, step)? })
}

/// The first state tensor that differs after a step, if both runs have the checkpoint.
fn tensor_that_differs(runs: &[Run; 2], step: u32) -> Result<Option<String>, RunError> {
    let table = runs[0].program().state();
    let paths = [0, 1].map(|side: usize| runs[side].layout.checkpoint(step));
    if !paths.iter().all(|path| path.exists()) {
        return Ok(None);
    }
    runs[0].within_memory("two states", runs[0].state_memory())?;
    let digests = |side: usize| Ok::<_, RunError>(tensor_digests(&table, &states::read(&runs[side], step)?));
    let (first, second) = (digests(0)?, digests(1)?);
    let differs = table.iter().zip(first.iter().zip(&second)).find(|(_, (x, y))| x != y);
    Ok(differs.map(|(tensor, _)| tensor.name.clone()))
}

/// A comparison as text, as JSON, and as an exit code.
fn told(comparison: &Comparison) -> (Vec<String>, Value, Exit) {
    match comparison {
        Comparison::OtherComputation(settings) => {
            let mut lines = vec!["two computations; these settings differ:".to_string()];
            lines.extend(settings.iter().map(|(key, x, y)| format!("  {key}: {x} | {y}")));
            let settings: Vec<Value> =
                settings.iter().map(|(key, x, y)| json!({ "setting": key, "values": [x, y] })).collect();
            (
                lines,
                json!({ "result": "other_computation", "settings": settings, "fork": false }),
                Exit::Diverges,
            )
        }
        Comparison::Logged => {
            let text =
                "logged: not comparable (a rounding log is its trainer's own claim; audit each run instead)";
            (vec![text.into()], json!({ "result": "not_comparable", "fork": false }), Exit::Undecided)
        }
        Comparison::Same { records, shorter } => {
            let text = match shorter {
                None => format!("no difference in {records} records"),
                Some(which) => {
                    format!("shorter: the {which} run has the first {records} records of the other")
                }
            };
            let result = if shorter.is_none() { "same" } else { "shorter" };
            let value = json!({ "result": result, "records": records, "shorter": shorter, "fork": false });
            // Nothing shows that the shorter run goes on like the longer one.
            let exit = if shorter.is_none() { Exit::Match } else { Exit::Undecided };
            (vec![text], value, exit)
        }
        Comparison::Differs { index, step, tensor } => {
            let named = match tensor {
                Some(tensor) => format!(", in {tensor}"),
                None => " (no checkpoint of both runs names the tensor)".into(),
            };
            let text = format!("record {index}, step {step}, differs first{named}");
            let value = json!({ "result": "differs", "record": index, "step": step, "tensor": tensor, "fork": false });
            (vec![text], value, Exit::Diverges)
        }
    }
}

/// The commands that find out which of two runs is wrong.
fn audits(args: &Args) -> [Next; 3] {
    let audit = |path: &Path| Next::new("audit it with", format!("tiebreak audit {}", shell::path(path)));
    let referee = Next::new("or have a referee question both trainers", "tiebreak referee new --help");
    [audit(&args.first), audit(&args.second), referee]
}

/// The verdict on two signed histories of one run.
fn fork(runs: &[Run; 2], checked: &[Checked; 2], index: u32) -> Option<Verdict> {
    let evidence = Fork::Record { record: checked[1].proven(index) };
    let claim = Claim::Fork { other: checked[1].note.clone(), evidence };
    let verdict = checked[0].verdict(&runs[0], index, claim);
    // Not if the runs are two, or nobody's.
    matches!(verdict.check(None), Ok(Ruling::Convicts(_))).then_some(verdict)
}
