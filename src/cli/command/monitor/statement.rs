//! `tiebreak monitor statement`: what audits, matches and rules established, signed in a form that tools of others verify.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tiebreak_audit::coverage::{coverage, plan_of};
use tiebreak_audit::merge::{Apart, Conclusion, Merged, Required, merge};
use tiebreak_audit::plan::ReplayPlan;
use tiebreak_audit::report_file::{Account, REPORT_MAX, decode};
use tiebreak_job::identity::CONTRACT;
use tiebreak_monitor::statement::dsse::ENVELOPE_MAX;
use tiebreak_monitor::statement::in_toto::Statement;
use tiebreak_record::commit::cosignature::utc;
use tiebreak_record::commit::tree_head::Head;
use tiebreak_run::run::disk::{self, Disk};
use tiebreak_run::run::{RunError, shell};

use super::covered::{self, Segments, percent};
use super::drawn::DrawArgs;
use crate::cli::args::key;
use crate::cli::args::limits::Limits;
use crate::cli::view::next::Next;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer, named};

/// The most bytes of a result of `monitor match` or `monitor rules`.
const RESULT_MAX: u64 = 1 << 26;

/// Write what was established about a run as a signed in-toto statement, or check one.
///
/// Only signed reports count; they are of one run. The envelope is DSSE, which tools for software supply chains verify.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tiebreak monitor statement --report auditor.json --key inspector.key --out run.dsse.json
  tiebreak monitor statement --report auditor.json --inspection a-1.json --draw draw.json --register chips.register --closed heads.txt --key inspector.key --out run.dsse.json
  tiebreak monitor statement --check run.dsse.json --key inspector.key.pub")]
pub struct Args {
    /// Signed report of `tiebreak audit`; once for each auditor.
    #[arg(long, value_name = "REPORT", required_unless_present = "check")]
    report: Vec<PathBuf>,
    /// Output of `tiebreak monitor match --json`.
    #[arg(long, value_name = "FILE", conflicts_with = "check")]
    r#match: Option<PathBuf>,
    /// Output of `tiebreak monitor inspect --json`; once for each inspected log.
    #[arg(long, value_name = "FILE", conflicts_with = "check")]
    inspection: Vec<PathBuf>,
    /// Output of `tiebreak monitor rules --json`.
    #[arg(long, value_name = "FILE", conflicts_with = "check")]
    rules: Option<PathBuf>,
    #[command(flatten)]
    draw: DrawArgs,
    /// Owner whose chips the statement is about, if the draw is over the chips of several.
    #[arg(long, value_name = "NAME", requires = "draw")]
    owner: Option<String>,
    /// The run, whose records join the heads of draw and reports if these differ.
    #[arg(long, value_name = "DIR", requires = "draw")]
    run: Option<PathBuf>,
    /// Confidence of the bounds on segments that deviate, and on chips.
    #[arg(long, value_name = "P", default_value_t = 0.95, conflicts_with = "check")]
    confidence: f64,
    /// Key of the inspector: the private one signs, the public one checks.
    #[arg(long, value_name = "KEY")]
    key: String,
    /// File for the statement.
    #[arg(long, value_name = "FILE", required_unless_present = "check", conflicts_with = "check")]
    out: Option<PathBuf>,
    /// Check this statement instead, and print it.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["report", "draw", "register", "registrar", "closed", "chain", "owner", "run"])]
    check: Option<PathBuf>,
    #[command(flatten)]
    limits: Limits,
}

/// A report that counts, with the digest of its file.
struct Counted {
    account: Account,
    plan: ReplayPlan,
    sha256: String,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn read_report(path: &Path) -> Result<Counted, Failure> {
    let bytes = disk::read(path, REPORT_MAX).map_err(named)?;
    let malformed = |error| RunError::malformed(path, error);
    let (account, auditor) = decode(&bytes).map_err(malformed)?;
    if auditor.is_none() {
        let why = format!("{}: nobody signed the report, so it vouches for nothing", path.display());
        return Err(Failure::new(Exit::Usage, why).help("tiebreak audit RUN --report FILE --key AUDITOR.key"));
    }
    if account.head_size == 0 {
        let why = "the report is of a run that the auditor refused before reading its head: no statement rests on it";
        return Err(Failure::new(Exit::Usage, format!("{}: {why}", path.display())));
    }
    if account.native {
        let why = "the report is of a native auditor, who judges no rounding: no statement rests on it";
        return Err(Failure::new(Exit::Usage, format!("{}: {why}", path.display())));
    }
    let plan = plan_of(&bytes, &account).map_err(malformed)?;
    Ok(Counted { account, plan, sha256: hex(&Sha256::digest(&bytes)) })
}

fn merged(args: &Args, counted: &[Counted]) -> Result<Merged, Failure> {
    let accounts: Vec<Account> = counted.iter().map(|report| report.account.clone()).collect();
    let name = |number: usize| args.report[number].display();
    // The statement says how much was replayed; any share will do.
    let merged = merge(&accounts, Required::Share(f64::MIN_POSITIVE)).map_err(|apart| match apart {
        Apart::OtherRun(number) => {
            Failure::new(Exit::Usage, format!("{} is about another run than {}", name(number), name(0)))
        }
        Apart::Contradicts(number) => {
            Failure::new(Exit::Malformed, format!("{} contradicts {} about the run", name(number), name(0)))
        }
    })?;
    merged.ok_or_else(|| Failure::new(Exit::Usage, "no report is given"))
}

/// The segments that auditors drew by themselves, if they match and saw the same ones.
fn sampled(merged: &Merged, counted: &[Counted]) -> Option<Segments> {
    let reports: Vec<(Account, ReplayPlan)> =
        counted.iter().map(|report| (report.account.clone(), report.plan.clone())).collect();
    let found = coverage(&reports).filter(|found| found.all > 0 && merged.result == Conclusion::Matches)?;
    let [all, replayed, drawn] = [found.all, found.replayed, found.drawn].map(|count| count as u64);
    Some(Segments { all, replayed, drawn, left: Vec::new(), by_draw: false, bridge: None })
}

/// The part of a predicate about audits: a sentence, and the numbers in it.
fn audited(
    merged: &Merged,
    counted: &[Counted],
    by_draw: Option<Segments>,
    confidence: f64,
) -> (String, Value) {
    let bound = by_draw.or_else(|| sampled(merged, counted)).map(|found| {
        let most = found.most(confidence);
        (found, most)
    });
    let text = match (&bound, merged.result) {
        (Some((found, most)), _) => {
            let left = match found.left.len() {
                0 => String::new(),
                left => format!("; {left} of {} drawn segments were not replayed", found.drawn),
            };
            format!(
                "of {} segments {} were replayed exactly, so with confidence {confidence} at most {:.2} % deviate{left}",
                found.all,
                found.replayed,
                percent(*most, found.all)
            )
        }
        (None, Conclusion::Diverges) => "an auditor found a difference".into(),
        (None, _) => format!("{} of {} steps were replayed exactly", merged.steps_covered(), merged.steps),
    };
    let unreachable: Vec<_> = counted.iter().filter_map(|report| report.plan.unreachable).collect();
    let json = json!({
        "text": text,
        "result": merged.result,
        "reasons": merged.reasons,
        "steps": merged.steps,
        "replayed": merged.covered,
        "unreachable": unreachable,
        "segments": bound.as_ref().map(|(found, most)| json!({
            "all": found.all, "replayed": found.replayed, "drawn": found.drawn, "drawnByDraw": found.by_draw,
            "drawnNotReplayed": found.left, "confidence": confidence, "deviatingAtMost": most,
            "heads": found.bridge.as_ref().map(|bridge| json!({
                "old": { "records": bridge.old.0, "root": bridge.old.1 },
                "new": { "records": bridge.new.0, "root": bridge.new.1 },
                "consistency": bridge.proof,
            })),
        })),
        "reports": counted.iter().map(|report| json!({
            "auditor": report.account.auditor, "digest": { "sha256": report.sha256 }, "replayed": report.account.replayed,
        })).collect::<Vec<_>>(),
    });
    (text, json)
}

/// The output of another command, and the digest of its file.
fn output_of(path: &Path) -> Result<(Value, String), Failure> {
    let bytes = disk::read(path, RESULT_MAX).map_err(named)?;
    let value = serde_json::from_slice(&bytes).map_err(|error| RunError::invalid(path, error.to_string()))?;
    Ok((value, hex(&Sha256::digest(&bytes))))
}

/// The inspection of a chip's log: the whole output, and the part of a predicate.
fn inspection_of(path: &Path) -> Result<(Value, Value), Failure> {
    let (value, sha256) = output_of(path)?;
    let (Some(result), Some(chip), Some(findings)) =
        (value["result"].as_str(), value["serial"].as_str(), value["findings"].as_array())
    else {
        let why = "it lacks result, serial or findings, which `tiebreak monitor inspect` prints with --json";
        return Err(RunError::invalid(path, why).into());
    };
    let kinds: BTreeSet<&str> = findings.iter().filter_map(|finding| finding["kind"].as_str()).collect();
    let part = json!({
        "result": result, "chip": chip, "findings": kinds, "records": value["records"], "head": value["head"],
        "closed": value["closed"], "rate": value["rate"], "offMilliseconds": value["off_milliseconds"],
        "registerChecked": value["register_checked"], "digest": { "sha256": sha256 },
    });
    Ok((value, part))
}

/// The result of another command: its outcome, its counts and the digest of its file.
fn result_of(path: &Path, run: &Merged) -> Result<Value, Failure> {
    let (value, sha256) = output_of(path)?;
    let (Some(result), Some(counts), Some(runs)) =
        (value["result"].as_str(), value["counts"].as_object(), value["runs"].as_array())
    else {
        let why = "it lacks result, counts or runs, which the command prints with --json";
        return Err(RunError::invalid(path, why).into());
    };
    let id = run.run.to_string();
    if !runs.iter().any(|run| run["run"] == id.as_str()) {
        let why =
            format!("{}: the result is not about run {id}, which the reports are about", path.display());
        return Err(Failure::new(Exit::Usage, why));
    }
    let of_run = |list: &str| -> Vec<Value> {
        let all = value[list].as_array().cloned().unwrap_or_default();
        all.into_iter().filter(|one| one["run"] == id.as_str()).collect()
    };
    // Whether somebody checked who wrote the logs, and who signed the runs: absent from the output of `monitor rules`.
    let logs = value["logs"].as_array();
    let logs_checked = logs.map(|logs| logs.iter().all(|log| !log["defects"].is_null()));
    let runs_checked = logs.map(|_| runs.iter().all(|run| run["signature_checked"] == true));
    let runs: Vec<&Value> = runs.iter().map(|run| &run["run"]).collect();
    Ok(json!({
        "result": result, "counts": counts, "runs": runs, "rules": of_run("rules"),
        "logsChecked": logs_checked, "signaturesOfRunsChecked": runs_checked, "digest": { "sha256": sha256 },
    }))
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let _watch = args.limits.watch(printer);
    match &args.check {
        Some(path) => checked(printer, path, &args.key),
        None => written(printer, &args),
    }
}

fn written(printer: Printer, args: &Args) -> CommandResult {
    if !(args.confidence > 0.0 && args.confidence < 1.0) {
        let why = format!("--confidence {}: a number between 0 and 1 is wanted", args.confidence);
        return Err(Failure::new(Exit::Usage, why));
    }
    let key = key::read_private(Path::new(&args.key))?;
    let counted = args.report.iter().map(|path| read_report(path)).collect::<Result<Vec<_>, _>>()?;
    let merged = merged(args, &counted)?;
    let first = &counted[0].account;
    let drawn = args.draw.read()?;
    let segments = |drawn| covered::segments(drawn, &merged, first, args.run.as_deref());
    let by_draw = drawn.as_ref().map(segments).transpose()?.flatten();
    let (text, audits) = audited(&merged, &counted, by_draw, args.confidence);
    let other = |path: &Option<PathBuf>| path.as_deref().map(|path| result_of(path, &merged)).transpose();
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_err(|_| Failure::new(Exit::Undecided, "the clock is before 1970"))?.as_secs();
    let inspections =
        args.inspection.iter().map(|path| inspection_of(path)).collect::<Result<Vec<_>, _>>()?;
    let (outputs, inspections): (Vec<Value>, Vec<Value>) = inspections.into_iter().unzip();
    let mut lines = vec![text];
    let chips = match (&drawn, &args.draw.draw) {
        (Some(drawn), Some(path)) => {
            let matched = args.r#match.as_deref().map(output_of).transpose()?.map(|(value, _)| value);
            let sha256 = output_of(path)?.1;
            let of = drawn.chips(args.owner.as_deref())?;
            let (text, value) =
                covered::chips(drawn, &of, &outputs, matched.as_ref(), args.confidence, &sha256);
            lines.push(text);
            Some(value)
        }
        _ => None,
    };
    let predicate = json!({
        "verifier": { "id": key.public().name(), "key": key.public().to_text() },
        "timeCreated": utc(now).replacen(' ', "T", 1).replace(" UTC", "Z"),
        "contract": CONTRACT,
        "run": {
            "id": merged.run, "computation": merged.computation, "job": merged.job, "data": merged.data,
        },
        "audits": audits,
        "draw": chips,
        "match": other(&args.r#match)?,
        "rules": other(&args.rules)?,
        "inspections": inspections,
    });
    lines.extend(without_draw(&predicate).map(str::to_string));
    let head = Head { run: merged.run, size: first.head_size, root: first.head_root };
    let statement = Statement::about(&head, predicate);
    let out = args.out.as_ref().expect("clap wants it");
    let path = std::path::absolute(out).map_err(RunError::io(out))?;
    Disk::default().replace(&path, statement.signed(&key).as_bytes())?;
    let public = key::public_path(Path::new(&args.key));
    let public = if public.exists() { shell::path(&public) } else { shell::word(&key.public().to_text()) };
    let check = format!("tiebreak monitor statement --check {} --key {public}", shell::path(out));
    let next = Next::new("check it with", check);
    lines.extend([format!("statement: {}", path.display()), next.line()]);
    printer.result(lines, &json!({ "statement": statement, "file": path, "next": [next] }));
    Ok(Exit::Match)
}

/// A line that says so if chips were inspected and no draw says which ones had to be.
fn without_draw(predicate: &Value) -> Option<&'static str> {
    let inspected = predicate["inspections"].as_array().is_some_and(|all| !all.is_empty());
    (inspected && predicate["draw"].is_null())
        .then_some("inspections: no draw says which chips had to be inspected (--draw)")
}

fn checked(printer: Printer, path: &Path, argument: &str) -> CommandResult {
    let key = key::read_public(argument)?;
    let text = disk::read_text(path, ENVELOPE_MAX as u64).map_err(named)?;
    let statement = Statement::open(&text, &key).map_err(|error| RunError::malformed(path, error))?;
    let said = &statement.predicate;
    let mut lines = vec![format!("the statement is signed by {}", key.identified()), "it says:".to_string()];
    lines.extend(statement.subject.iter().map(|subject| format!("  about {}", subject.name)));
    for (name, part) in [
        ("audits", &said["audits"]["text"]),
        ("draw", &said["draw"]["text"]),
        ("match", &said["match"]["result"]),
        ("rules", &said["rules"]["result"]),
    ] {
        lines.extend(part.as_str().map(|part| format!("  {name}: {part}")));
    }
    let not_checked =
        [("logsChecked", "who wrote the logs"), ("signaturesOfRunsChecked", "who signed the runs")];
    lines.extend(
        not_checked
            .into_iter()
            .filter(|(field, _)| said["match"][field] == false)
            .map(|(_, what)| format!("  match: nobody checked {what}")),
    );
    lines.extend(without_draw(said).map(|line| format!("  {line}")));
    lines.extend(said["inspections"].as_array().into_iter().flatten().map(|one| {
        let text = |field: &str| one[field].as_str().unwrap_or("?").to_string();
        let kinds: Vec<&str> =
            one["findings"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let kinds = if kinds.is_empty() { String::new() } else { format!(" ({})", kinds.join(", ")) };
        format!("  inspection of chip {}: {}{kinds}", text("chip"), text("result"))
    }));
    printer.result(lines, &json!(statement));
    Ok(Exit::Match)
}
