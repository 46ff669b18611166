//! `tiebreak monitor inspect`.

use std::path::PathBuf;

use serde_json::{Value, json};
use tiebreak_monitor::closed::LogHead;
use tiebreak_monitor::inspection::examine::{Examined, HOUR, Inspection, examine};
use tiebreak_monitor::inspection::seen::{SEEN_MAX, Seen};
use tiebreak_monitor::regime::{RATE_MAX, check_probability};
use tiebreak_monitor::snapshot::log::{ChipLog, RECORDS_MAX};
use tiebreak_monitor::snapshot::record::{RECORD_BYTES, Serial};

use super::inspections::{short, usage};
use super::registry::{RegisterArgs, finding_json, now, read_closed, seconds, serial, unchecked, write};
use crate::cli::args::limits::Limits;
use crate::cli::view::next::Next;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer, named};
use tiebreak_run::run::{RunError, disk, shell};

/// Findings, gaps and owners that the text lists; --json lists all.
const SHOWN: usize = 20;

/// Inspect a chip's log: who wrote it, whether it is whole, and whether the chip logs often enough.
///
/// The command ends with exit code 1 if it finds a defect, and names the record.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tiebreak monitor inspect chip.log --register chips.register --serial A-1
  tiebreak monitor inspect chip.log --register chips.register --previous may.seen --seen-out june.seen")]
pub struct Args {
    /// File of the chip's log.
    log: PathBuf,
    #[command(flatten)]
    register: RegisterArgs,
    /// Serial number on the chip; by default the one that the log's first record names.
    #[arg(long, value_parser = serial, value_name = "SERIAL")]
    serial: Option<Serial>,
    /// File that --seen-out wrote at an earlier inspection.
    ///
    /// The log has to continue it, and the rate is that of the records since.
    #[arg(long, value_name = "FILE")]
    previous: Option<PathBuf>,
    /// Heads of logs that were published before the draw, which the log has to continue.
    #[arg(long, value_name = "FILE")]
    closed: Option<PathBuf>,
    /// Snapshots that the chip has to log in a day, on average.
    #[arg(long, default_value_t = 0.1, value_name = "NUMBER")]
    rate: f64,
    /// Probability with which an honest chip is said neither to log too rarely nor to be silent for too long.
    #[arg(long, default_value_t = 0.999, value_name = "P")]
    confidence: f64,
    /// Seconds that the chip's agent gives a training to answer: its --patience.
    ///
    /// A record may be so much later than its snapshot was due. No time up to this one counts as silent.
    #[arg(long, default_value_t = 600, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=86_400))]
    patience: u64,
    /// Hours for which the chip may have been off; more is a defect.
    ///
    /// Off is the time before a begin, in which nothing shows that the chip logged. By default any time is allowed.
    #[arg(long, value_name = "HOURS")]
    off_at_most: Option<f64>,
    /// End of the inspected time, at which the log was read; by default now.
    #[arg(long, value_parser = seconds, value_name = "DATE")]
    until: Option<u64>,
    /// File for what was seen, for --previous of the next inspection.
    #[arg(long, value_name = "FILE")]
    seen_out: Option<PathBuf>,
    #[command(flatten)]
    limits: Limits,
}

/// The chip that is inspected.
fn chip(args: &Args, log: &ChipLog) -> Result<Serial, Failure> {
    let first = log.records.first().map(|signed| signed.record.serial.clone());
    args.serial.clone().or(first).ok_or_else(|| {
        let why = format!("{} has no records: give the chip's --serial", args.log.display());
        Failure::new(Exit::Usage, why)
    })
}

fn previous(args: &Args, serial: &Serial) -> Result<Option<Seen>, Failure> {
    let Some(path) = &args.previous else { return Ok(None) };
    let text = disk::read_text(path, SEEN_MAX).map_err(named)?;
    let seen = Seen::from_text(&text).map_err(|error| RunError::malformed(path, error))?;
    if seen.serial != *serial {
        let why = format!(
            "{} is of chip {}, and the log is inspected as that of {serial}",
            path.display(),
            seen.serial
        );
        return Err(Failure::new(Exit::Usage, why));
    }
    Ok(Some(seen))
}

/// The published head of the log. A chip without one has nothing to continue.
fn closed(args: &Args, serial: &Serial) -> Result<Option<LogHead>, Failure> {
    let Some(path) = &args.closed else { return Ok(None) };
    read_closed(path)?
        .0
        .get(serial)
        .copied()
        .map(Some)
        .ok_or_else(|| Failure::new(Exit::Usage, format!("{} has no head of chip {serial}", path.display())))
}

pub fn run(printer: Printer, args: &Args) -> CommandResult {
    let _watch = args.limits.watch(printer);
    check_probability(args.confidence).map_err(usage)?;
    if !(1e-6..=RATE_MAX).contains(&args.rate) {
        let why = format!("--rate {}: a number from 0.000001 to {RATE_MAX} is wanted", args.rate);
        return Err(Failure::new(Exit::Usage, why));
    }
    if let Some(hours) = args.off_at_most.filter(|hours| !(0.0..=f64::MAX).contains(hours)) {
        let why = format!("--off-at-most {hours}: a number of hours from 0 on is wanted");
        return Err(Failure::new(Exit::Usage, why));
    }
    let (register, signed) = args.register.read()?;
    let bytes = disk::read(&args.log, (RECORDS_MAX * RECORD_BYTES) as u64).map_err(named)?;
    let log = ChipLog::read(&bytes).map_err(|error| RunError::malformed(&args.log, error))?;
    let serial = chip(args, &log)?;
    let (previous, closed) = (previous(args, &serial)?, closed(args, &serial)?);
    let inspection = Inspection {
        register: &register,
        serial: &serial,
        previous: previous.as_ref(),
        closed: closed.as_ref(),
        rate: args.rate,
        confidence: args.confidence,
        until: args.until.map_or_else(now, Ok)?.saturating_mul(1000),
        off_at_most: args.off_at_most,
        patience: args.patience * 1000,
    };
    let examined = printer.during("checking the log's records", || examine(&log, inspection));
    if let Some(path) = &args.seen_out {
        write(path, &Seen::of(&serial, &log).to_text())?;
    }
    let head = LogHead::of(&log).map(|head| head.line(&serial));
    let mut lines = told(args, &serial, &examined);
    lines.extend(head.iter().map(|line| format!("head       {line}")));
    lines.extend(args.seen_out.iter().map(|path| format!("seen       {}", shell::path(path))));
    lines.extend(unchecked(signed));
    let next = next(args);
    lines.push(next.line());
    let findings: Vec<Value> = examined.findings.iter().map(finding_json).collect();
    let value = json!({
        "result": if findings.is_empty() { "matches" } else { "differs" },
        "serial": serial, "records": examined.records, "torn_bytes": examined.torn,
        "findings": findings, "more_findings": examined.more, "kinds": examined.kinds,
        "rate": examined.rate, "silence": examined.silence, "gaps": examined.gaps, "off_milliseconds": examined.off_milliseconds(),
        "holders": examined.holders, "head": head, "closed": closed.map(|closed| closed.line(&serial)), "register_checked": signed, "seen": args.seen_out,
        "next": [next],
    });
    printer.result(lines, &value);
    Ok(if examined.findings.is_empty() { Exit::Match } else { Exit::Diverges })
}

/// The command that compares the log with the declared runs.
fn next(args: &Args) -> Next {
    let command = format!("tiebreak monitor match {} --run RUN", shell::path(&args.log));
    Next::new("compare its snapshots with the declared runs", command)
        .note("RUN is the folder of a declared run")
}

fn told(args: &Args, serial: &Serial, examined: &Examined) -> Vec<String> {
    let found = examined.findings.len() as u64 + examined.more;
    let mut lines = vec![match found {
        0 => format!("MATCHES: the log of chip {serial}, {} records, has no defect", examined.records),
        _ => format!("DIFFERS: {found} defects in the log of chip {serial}, {} records", examined.records),
    }];
    lines.extend(
        examined.findings.iter().take(SHOWN).map(|finding| format!("  {}: {finding}", finding.kind())),
    );
    if found > SHOWN as u64 {
        lines.push(format!("  and {} more", found - SHOWN as u64));
    }
    let (rate, kinds) = (&examined.rate, &examined.kinds);
    lines.push(format!(
        "snapshots  {} due in {:.1} days, {} expected at {} a day{}",
        rate.events,
        rate.days,
        short(rate.expected),
        args.rate,
        rate.at_most.map_or(String::new(), |most| {
            format!("; with probability {} the chip's rate is at most {}", args.confidence, short(most))
        })
    ));
    lines.push(format!(
        "records    {} snapshots, {} unanswered, {} idle; {} attachments, {} begins, {} clocks set back",
        kinds.snapshot, kinds.unanswered, kinds.idle, kinds.attach, kinds.begin, kinds.clock
    ));
    let silence = &examined.silence;
    lines.push(format!(
        "silent     {:.2} days at most without a due snapshot{}; probability at most {}",
        silence.days,
        silence.record.map_or(String::new(), |record| format!(", before record {record}")),
        short(silence.probability)
    ));
    lines.push(format!("off        {:.2} hours before {} begins", examined.off_hours(), examined.gaps.len()));
    let longest = examined.gaps.iter().filter(|gap| gap.milliseconds > 0).take(SHOWN);
    lines
        .extend(longest.map(|gap| {
            format!("  {:.2} hours before record {}", gap.milliseconds as f64 / HOUR, gap.record)
        }));
    for holder in examined.holders.iter().take(SHOWN) {
        let exempt = if holder.exempt { ", exempt" } else { "" };
        lines.push(format!(
            "owner      {} at {}{exempt}, from record {}",
            holder.owner, holder.site, holder.record
        ));
    }
    if examined.torn > 0 {
        lines.push(format!("torn       {} bytes at the end, which a crash cut off", examined.torn));
    }
    lines
}
