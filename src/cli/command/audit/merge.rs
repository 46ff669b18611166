//! `tiebreak audit merge`.

use super::page;
use crate::cli::args::decided::Decided;
use crate::cli::args::key;
use crate::cli::args::limits::Limits;
use crate::cli::view::outcome::ranges_text;
use crate::cli::view::page::audit::{Listed as Row, Told, merged as merged_page};
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer, named};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tiebreak_audit::Outcome;
use tiebreak_audit::coverage::plan_of;
use tiebreak_audit::merge::{Apart, Conclusion, Merged, Range, Required, merge, union};
use tiebreak_audit::plan::ReplayPlan;
use tiebreak_audit::report_file::{Account, REPORT_MAX, decode, is_signed};
use tiebreak_audit::shard::{Shard, missing};
use tiebreak_run::run::{RunError, disk};

/// Put the reports of several auditors of one run together.
///
/// The command ends with 0 only if every step that --require asks for was replayed, and nobody found anything.
#[derive(clap::Args)]
#[command(after_help = "Example:
  tiebreak audit merge mine.json theirs.json --auditor auditor.key.pub --auditor their.key.pub")]
pub struct Args {
    /// Reports that `tiebreak audit --report` wrote.
    #[arg(required = true, value_name = "REPORT")]
    reports: Vec<PathBuf>,
    /// Auditor whose reports count: a public key, as a file or its text.
    ///
    /// Give the option once for each auditor. Without the option every signed report counts.
    #[arg(long, value_name = "KEY")]
    auditor: Vec<String>,
    /// Count reports that nobody signed, too: anybody can have written them.
    #[arg(long, conflicts_with = "auditor")]
    unsigned: bool,
    /// Part of the run's steps that has to be replayed.
    ///
    /// The value is `all`, or a share above 0 and at most 1.
    #[arg(long, value_name = "SHARE", default_value = "all", value_parser = parse_required)]
    require: Required,
    /// File for all reports together, as one HTML page for people.
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    decided: Decided,
}

fn parse_required(text: &str) -> Result<Required, String> {
    match text.parse::<f64>() {
        _ if text == "all" => Ok(Required::All),
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(Required::Share(share)),
        _ => Err("`all`, or a share above 0 and at most 1".into()),
    }
}

/// A report, and whether it counts.
struct Listed {
    file: String,
    /// The auditor's key, or why the report counts for nothing.
    vouches: Result<String, String>,
    account: Option<Account>,
    /// The signer of the head, as a report that counts says it.
    signed: Option<String>,
    /// The plan of a report that counts.
    plan: Option<ReplayPlan>,
    /// The report for a page, if one is asked for.
    told: Option<Told>,
}

/// The part of a report that says who signed the head.
#[derive(Deserialize)]
struct Signed {
    signed: String,
}

/// Reads the reports.
fn read(args: &Args) -> Result<Vec<Listed>, Failure> {
    let known =
        args.auditor.iter().map(|argument| key::read_public(argument)).collect::<Result<Vec<_>, _>>()?;
    let mut listed = Vec::new();
    for path in &args.reports {
        let file = path.display().to_string();
        let bytes = disk::read(path, REPORT_MAX).map_err(named)?;
        if !is_signed(&bytes) && !args.unsigned {
            let why = "nobody vouches for it: no signature ends it, or it was cut off (tiebreak audit --key AUDITOR.key signs a report; --unsigned counts one without)";
            listed.push(Listed {
                file,
                vouches: Err(why.into()),
                account: None,
                signed: None,
                plan: None,
                told: None,
            });
            continue;
        }
        let (account, auditor) = decode(&bytes).map_err(|error| RunError::malformed(path, error))?;
        if account.native {
            let why = "is of a native auditor, who judges no rounding: it has no place beside exact ones";
            return Err(Failure::new(Exit::Usage, format!("{file} {why}")));
        }
        let vouches = match auditor {
            Some(key) if known.is_empty() || known.contains(&key) => Ok(key.to_text()),
            Some(key) => Err(format!("its auditor is none of --auditor: {}", key.to_text())),
            None => Ok("nobody (no signature)".into()),
        };
        let account = vouches.is_ok().then_some(account);
        let plan = account.as_ref().and_then(|account| plan_of(&bytes, account).ok());
        let signed = account.as_ref().and_then(|_| serde_json::from_slice::<Signed>(&bytes).ok());
        let signed = signed.map(|report| report.signed);
        let asked = args.page.is_some() && account.is_some();
        let told = asked.then(|| page::told(path, &bytes)).transpose()?;
        listed.push(Listed { file, vouches, account, signed, plan, told });
    }
    Ok(listed)
}

impl Listed {
    /// The shard that the report finished.
    fn finished(&self) -> Option<Shard> {
        let (account, plan) = (self.account.as_ref()?, self.plan.as_ref()?);
        let replayed: u64 =
            account.replayed.iter().map(|&(first, last)| u64::from(last) + 1 - u64::from(first)).sum();
        plan.shard.filter(|_| account.outcome == Outcome::Matches && replayed == plan.steps())
    }
}

/// The shards that no counted report finished, if the audit was divided once, in one way.
fn missing_shards(listed: &[Listed]) -> Vec<Shard> {
    let plans = || listed.iter().filter_map(|report| report.plan.as_ref());
    let mut ways = plans().filter_map(|plan| Some((plan.shard?.of, plan.file)));
    let Some((of, file)) = ways.next() else { return Vec::new() };
    if ways.any(|way| way != (of, file)) {
        return Vec::new();
    }
    missing(of, listed.iter().filter_map(Listed::finished))
}

/// The steps that plan files give to no shard and that nobody replayed.
fn omitted(merged: &Merged, listed: &[Listed]) -> Vec<Range> {
    let plans = listed.iter().filter_map(|report| report.plan.as_ref());
    let omitted = union(plans.flat_map(|plan| plan.omitted.iter().copied()).collect());
    // Covered ranges are ascending and apart, so the last one that begins before a segment's end decides.
    let is_covered = |&(first, last): &Range| {
        let at = merged.covered.partition_point(|&(from, _)| from <= first);
        at > 0 && last <= merged.covered[at - 1].1
    };
    omitted.into_iter().filter(|segment| !is_covered(segment)).collect()
}

/// Ascending numbers as a scheduler takes them: `0-2,5`.
fn array(numbers: impl IntoIterator<Item = u32>) -> String {
    let ranges = union(numbers.into_iter().map(|number| (number, number)).collect());
    let text =
        |(first, last): (u32, u32)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    ranges.into_iter().map(text).collect::<Vec<_>>().join(",")
}

/// The indices of shards in an array that begins with 0, as a scheduler takes them; `None` if there is no shard.
fn indices(shards: &[Shard]) -> Option<String> {
    (!shards.is_empty()).then(|| array(shards.iter().map(|shard| shard.number - 1)))
}

/// The signers of the head, as the reports that count name them: each text once, in the reports' order.
fn signers(listed: &[Listed]) -> Vec<&str> {
    let mut signers: Vec<&str> = Vec::new();
    for signed in listed.iter().filter_map(|report| report.signed.as_deref()) {
        if !signers.contains(&signed) {
            signers.push(signed);
        }
    }
    signers
}

/// A report for programs.
#[derive(Serialize)]
struct Shown<'a> {
    file: &'a str,
    counted: bool,
    auditor: Option<&'a str>,
    not_counted: Option<&'a str>,
    outcome: Option<&'a Outcome<String>>,
    replayed: Option<&'a [Range]>,
}

impl Shown<'_> {
    fn of(report: &Listed) -> Shown<'_> {
        let account = report.account.as_ref();
        Shown {
            file: &report.file,
            counted: account.is_some(),
            auditor: account.and_then(|account| account.auditor.as_deref()),
            not_counted: report.vouches.as_ref().err().map(String::as_str),
            outcome: account.map(|account| &account.outcome),
            replayed: account.map(|account| &account.replayed[..]),
        }
    }
}

/// The result for programs. It is written from these values as they are, since copies of many ranges as JSON values take much
/// memory.
#[derive(Serialize)]
struct Together<'a> {
    #[serde(flatten)]
    merged: &'a Merged,
    steps_replayed: u64,
    missing_array: Option<String>,
    missing_shards: Vec<Shard>,
    omitted: Vec<Range>,
    signed: Vec<&'a str>,
    reports: Vec<Shown<'a>>,
}

/// The result in words.
fn told(result: &Together, listed: &[Listed], counted: usize) -> Vec<String> {
    let Together { merged, missing_shards: shards, missing_array: indices, omitted, .. } = result;
    let word = match merged.result {
        Conclusion::Diverges => "DIVERGES",
        Conclusion::Matches => "MATCHES",
        Conclusion::Undecided => "UNDECIDED",
    };
    let mut lines = vec![format!(
        "{word}: {} of {} steps of run {} replayed, by {counted} of {} reports",
        merged.steps_covered(),
        merged.steps,
        merged.run.short(),
        listed.len(),
    )];
    lines.push(format!("  computation {}", merged.computation));
    lines.push(format!("  job         {}", merged.job));
    lines.push(format!("  data        {}", merged.data));
    lines.extend(signers(listed).iter().map(|signed| format!("  head        {signed}")));
    lines.extend(listed.iter().map(|report| match (&report.account, &report.vouches) {
        (Some(account), Ok(auditor)) => {
            let steps = ranges_text(&union(account.replayed.clone()), " ");
            let outcome = outcome_text(account);
            format!(
                "  {}: {outcome}, steps {}, vouched for by {auditor}",
                report.file,
                if steps.is_empty() { "none" } else { &steps }
            )
        }
        (_, vouches) => {
            format!("  {}: not counted, {}", report.file, vouches.as_ref().err().map_or("", |why| why))
        }
    }));
    lines.extend(merged.reasons.iter().map(|why| format!("  undecided: {why}")));
    if !omitted.is_empty() {
        let steps = ranges_text(omitted, " ");
        lines.push(format!("  omitted: steps {steps}, which the plan file gives to no shard"));
    }
    if let (Some(first), Some(indices)) = (shards.first(), indices) {
        let numbers = array(shards.iter().map(|shard| shard.number));
        lines.push(format!(
            "  missing: shards {numbers} of {}, in an array of Slurm --array={indices}",
            first.of
        ));
    } else if !merged.missing.is_empty() {
        lines.push(format!("  missing: --steps {}", ranges_text(&merged.missing, " ")));
    }
    lines
}

/// The name of a report's outcome, as JSON has it, and its step if it has one.
fn outcome_text(account: &Account) -> String {
    let value = serde_json::to_value(&account.outcome).unwrap_or_default();
    let name = value.get("result").and_then(Value::as_str).unwrap_or("unknown");
    let step = value.get("step").and_then(Value::as_u64);
    step.map_or(name.to_string(), |step| format!("{name} at step {step}"))
}

pub fn run(printer: Printer, args: &Args) -> CommandResult {
    args.decided.applied(merged(printer, args))
}

fn merged(printer: Printer, args: &Args) -> CommandResult {
    let _watch = args.limits.watch(printer);
    let listed = read(args)?;
    let accounts: Vec<Account> = listed.iter().filter_map(|report| report.account.clone()).collect();
    let counted: Vec<&Listed> = listed.iter().filter(|report| report.account.is_some()).collect();
    let merged = merge(&accounts, args.require).map_err(|apart| match apart {
        Apart::OtherRun(number) => {
            let runs = accounts[number].run.not(&accounts[0].run);
            let why = format!("{} is about another run than {}: {runs}", counted[number].file, counted[0].file);
            Failure::new(Exit::Usage, why)
        }
        Apart::Contradicts(number) => {
            let why = "contradicts the first report: they name different computations, jobs, data or numbers of steps for one run";
            Failure::new(Exit::Malformed, format!("{} {why}", counted[number].file))
        }
    })?;
    let reports: Vec<Shown> = listed.iter().map(Shown::of).collect();
    let Some(merged) = merged else {
        let mut lines = vec!["UNDECIDED: no report counts".to_string()];
        lines.extend(listed.iter().map(|report| {
            format!("  {}: {}", report.file, report.vouches.as_ref().err().map_or("", |why| why))
        }));
        printer.result(lines, &json!({ "result": Conclusion::Undecided, "reports": reports }));
        if args.page.is_some() {
            printer.problem("the page is not written: no report counts");
        }
        return Ok(Exit::Undecided);
    };
    let shards = missing_shards(&listed);
    let result = Together {
        merged: &merged,
        steps_replayed: merged.steps_covered(),
        missing_array: indices(&shards),
        missing_shards: shards,
        omitted: omitted(&merged, &listed),
        signed: signers(&listed),
        reports,
    };
    printer.result(told(&result, &listed, counted.len()), &result);
    let written = args.page.as_deref().map_or(Ok(()), |path| write_page(path, &merged, &listed));
    if let Err(error) = &written {
        printer.problem(&format!("the page could not be written ({error})"));
    }
    Ok(match merged.result {
        Conclusion::Diverges => Exit::Diverges,
        Conclusion::Matches if written.is_err() => Exit::Undecided,
        Conclusion::Matches => Exit::Match,
        Conclusion::Undecided => Exit::Undecided,
    })
}

/// Writes what the reports say together as a page.
fn write_page(path: &Path, merged: &Merged, listed: &[Listed]) -> Result<(), RunError> {
    let rows: Vec<Row> = listed
        .iter()
        .map(|report| Row {
            file: &report.file,
            vouches: report.vouches.as_deref().map_err(String::as_str),
            told: report.told.as_ref(),
        })
        .collect();
    page::save(path, &merged_page(merged, &rows))
}
