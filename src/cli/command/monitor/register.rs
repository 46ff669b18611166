//! `tiebreak monitor register`: the list of chips that an inspector samples from.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::{Value, json};
use tiebreak_monitor::register::entry::{Change, Entry, LINE_MAX};
use tiebreak_monitor::register::file::{FILE_MAX, HEADER, from_text, head_from, to_text};
use tiebreak_monitor::register::history::{Counts, ENTRIES_MAX, Register};
use tiebreak_monitor::snapshot::record::Serial;

use super::registry::{exclusive, now, read, seconds, serial, write};
use crate::cli::args::key;
use crate::cli::args::limits::Limits;
use crate::cli::view::next::Next;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer, named};
use tiebreak_record::commit::cosignature::utc;
use tiebreak_record::commit::keys::{PrivateKey, PublicKey};
use tiebreak_run::run::disk;
use tiebreak_run::run::{RunError, shell};

/// Keep the register of chips: owners, places and keys, in a signed file to which entries are only added.
#[derive(clap::Args)]
#[command(after_help = "Example:
  tiebreak monitor register new fresh.register --name treaty.example/2026 --key registrar.key")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    New(New),
    Add(Add),
    Transfer(Transfer),
    ReplaceKey(ReplaceKey),
    Retire(Retire),
    Append(Append),
    Show(Show),
}

/// The register that an entry is added to.
#[derive(clap::Args)]
struct Target {
    /// File of the register.
    register: PathBuf,
    /// Private key of the registrar, which signs the register.
    #[arg(long, value_name = "KEY")]
    key: PathBuf,
    /// File for the longer register; by default it replaces the one that was read.
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl Target {
    /// The registrar's key, and the register, which this key signed.
    fn read(&self) -> Result<(PrivateKey, Register), Failure> {
        let key = key::read_private(&self.key)?;
        let register = read(&self.register, Some(&key.public()))?;
        Ok((key, register))
    }

    /// Writes the register, and prints its head, which others keep.
    fn write(&self, printer: Printer, key: &PrivateKey, register: &Register, said: String) -> CommandResult {
        written(printer, self.out.as_ref().unwrap_or(&self.register), key, register, said)
    }
}

/// A new entry of one chip.
#[derive(clap::Args)]
struct OfChip {
    #[command(flatten)]
    target: Target,
    /// Serial number of the chip.
    #[arg(long, value_parser = serial, value_name = "SERIAL")]
    serial: Serial,
    /// Date from which on the entry counts; by default now.
    ///
    /// The forms are 2026-11-25 and 2026-11-25T10:20:30Z.
    #[arg(long, value_parser = seconds, value_name = "DATE")]
    date: Option<u64>,
}

/// Make a register without chips.
#[derive(clap::Args)]
#[command(after_help = "Example:
  tiebreak monitor register new fresh.register --name treaty.example/2026 --key registrar.key")]
struct New {
    /// File of the register.
    register: PathBuf,
    /// Private key of the registrar, which signs the register.
    #[arg(long, value_name = "KEY")]
    key: PathBuf,
    /// Name of the register, which is part of each of its heads.
    #[arg(long, value_name = "NAME")]
    name: String,
    #[command(flatten)]
    limits: Limits,
}

/// Enter a chip.
#[derive(clap::Args)]
#[command(after_help = "Example:
  tiebreak monitor register add chips.register --key registrar.key --serial A-9 --chip-key chip.pub --model h100 --owner Alice --site north")]
#[command(override_usage = "tiebreak monitor register add REGISTER --key KEY --serial SERIAL [OPTIONS]")]
struct Add {
    #[command(flatten)]
    chip: OfChip,
    /// Public key of the chip: a file, or the key's text.
    #[arg(long, value_name = "KEY")]
    chip_key: String,
    /// Kind of chip, such as h100.
    #[arg(long, value_name = "NAME")]
    model: String,
    /// Owner of the chip.
    #[arg(long, value_name = "NAME")]
    owner: String,
    /// Place where the chip stands.
    #[arg(long, value_name = "NAME")]
    site: String,
    /// Reason why the chip is not monitored.
    ///
    /// An exempt chip is counted and never drawn.
    #[arg(long, value_name = "WHY")]
    exempt: Option<String>,
    #[command(flatten)]
    limits: Limits,
}

/// Give a chip another owner or another place.
#[derive(clap::Args)]
#[command(after_help = "Example:
  tiebreak monitor register transfer chips.register --key registrar.key --serial A-3 --owner Bob")]
struct Transfer {
    #[command(flatten)]
    chip: OfChip,
    /// New owner; by default the owner stays.
    #[arg(long, value_name = "NAME", required_unless_present = "site")]
    owner: Option<String>,
    /// New place; by default the place stays.
    #[arg(long, value_name = "NAME")]
    site: Option<String>,
    #[command(flatten)]
    limits: Limits,
}

/// Give a chip another key, for example after a repair.
#[derive(clap::Args)]
#[command(after_help = "Example:
  tiebreak monitor register replace-key chips.register --key registrar.key --serial A-2 --chip-key new.pub --why repair")]
#[command(
    override_usage = "tiebreak monitor register replace-key REGISTER --key KEY --serial SERIAL [OPTIONS]"
)]
struct ReplaceKey {
    #[command(flatten)]
    chip: OfChip,
    /// New public key of the chip: a file, or the key's text.
    #[arg(long, value_name = "KEY")]
    chip_key: String,
    /// Reason.
    #[arg(long, value_name = "WHY")]
    why: String,
    #[command(flatten)]
    limits: Limits,
}

/// Take a chip off the register, for example when it is destroyed.
#[derive(clap::Args)]
#[command(after_help = "Example:
  tiebreak monitor register retire chips.register --key registrar.key --serial A-4 --why destroyed")]
#[command(override_usage = "tiebreak monitor register retire REGISTER --key KEY --serial SERIAL [OPTIONS]")]
struct Retire {
    #[command(flatten)]
    chip: OfChip,
    /// Reason.
    #[arg(long, value_name = "WHY")]
    why: String,
    #[command(flatten)]
    limits: Limits,
}

/// Add many entries from a file that has a line of JSON for each, as the register has.
#[derive(clap::Args)]
#[command(after_help = "Example:
  tiebreak monitor register append new.register --key registrar.key --entries more.jsonl")]
struct Append {
    #[command(flatten)]
    target: Target,
    /// File of entries.
    #[arg(long, value_name = "FILE")]
    entries: PathBuf,
    #[command(flatten)]
    limits: Limits,
}

/// Show how many chips there are, who owns them, and whether the register continues an earlier one.
///
/// The command ends with exit code 1 if an earlier entry was changed or removed.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tiebreak monitor register show chips.register --registrar registrar.key.pub
  tiebreak monitor register show chips.register --since last-year.register")]
struct Show {
    /// File of the register.
    register: PathBuf,
    /// Public key of the registrar: a file, or the key's text.
    #[arg(long, value_name = "KEY")]
    registrar: Option<String>,
    /// Earlier register, or its head alone, which this one has to continue.
    #[arg(long, value_name = "FILE")]
    since: Option<PathBuf>,
    /// Date of which the chips are shown; by default now.
    #[arg(long, value_parser = seconds, value_name = "DATE")]
    date: Option<u64>,
    /// Show this chip and its entries.
    #[arg(long, value_parser = serial, value_name = "SERIAL")]
    serial: Option<Serial>,
    #[command(flatten)]
    limits: Limits,
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    match args.command {
        Command::New(args) => new(printer, &args),
        Command::Add(args) => add(printer, args),
        Command::Transfer(args) => transfer(printer, args),
        Command::ReplaceKey(args) => {
            let _watch = args.limits.watch(printer);
            let key = key::read_public(&args.chip_key)?.to_text();
            added(printer, &args.chip, |_| Ok(Change::Key { key, why: args.why }))
        }
        Command::Retire(args) => {
            let _watch = args.limits.watch(printer);
            added(printer, &args.chip, |_| Ok(Change::Leave { why: args.why }))
        }
        Command::Append(args) => append(printer, &args),
        Command::Show(args) => show(printer, &args),
    }
}

/// Writes a register, and prints its head, which others keep.
fn written(
    printer: Printer,
    path: &Path,
    key: &PrivateKey,
    register: &Register,
    said: String,
) -> CommandResult {
    write(path, &to_text(register, key))?;
    let head = register.head();
    let show = format!("tiebreak monitor register show {}", shell::path(path));
    let registrar = shell::word(&key.public().to_text());
    let next = Next::new("show it with", format!("{show} --registrar {registrar}"));
    printer.result(
        vec![said, format!("{}: {} entries, root {}", shell::path(path), head.size, head.root), next.line()],
        &json!({ "register": register.name(), "entries": head.size, "root": head.root, "next": [next] }),
    );
    Ok(Exit::Match)
}

fn new(printer: Printer, args: &New) -> CommandResult {
    let _watch = args.limits.watch(printer);
    if args.register.symlink_metadata().is_ok() {
        return Err(Failure::new(Exit::Usage, format!("{} is there already", args.register.display())));
    }
    let register = Register::new(&args.name).map_err(|error| Failure::new(Exit::Usage, error))?;
    let key = key::read_private(&args.key)?;
    let said = format!("the register {} is signed by {}", register.name(), key.public().identified());
    written(printer, &args.register, &key, &register, said)
}

fn add(printer: Printer, args: Add) -> CommandResult {
    let _watch = args.limits.watch(printer);
    let key = key::read_public(&args.chip_key)?.to_text();
    let Add { chip, model, owner, site, exempt, .. } = args;
    added(printer, &chip, |_| Ok(Change::Enter { key, model, owner, site, exempt }))
}

fn transfer(printer: Printer, args: Transfer) -> CommandResult {
    let _watch = args.limits.watch(printer);
    let Transfer { chip, owner, site, .. } = args;
    added(printer, &chip, |before| {
        let (owner_now, site_now) = before?;
        Ok(Change::Transfer { owner: owner.unwrap_or(owner_now), site: site.unwrap_or(site_now) })
    })
}

/// Adds one entry. `change` gets the chip's owner and place at the date, or the error that there is no such chip.
fn added(
    printer: Printer,
    args: &OfChip,
    change: impl FnOnce(Result<(String, String), Failure>) -> Result<Change, Failure>,
) -> CommandResult {
    let _lock = exclusive(&args.target.register);
    let (key, mut register) = args.target.read()?;
    let time = args.date.map_or_else(now, Ok)?;
    let chip = register.chip_at(&args.serial, time).map(|chip| (chip.owner.into(), chip.site.into()));
    let unknown = || {
        let why = format!("the register has no chip {} at {}", args.serial, utc(time));
        Failure::new(Exit::Usage, why)
    };
    let entry = Entry { time, serial: args.serial.clone(), change: change(chip.ok_or_else(unknown))? };
    let said = entry.said();
    register.append(entry).map_err(|error| Failure::new(Exit::Usage, error))?;
    args.target.write(printer, &key, &register, format!("added the {said}"))
}

fn append(printer: Printer, args: &Append) -> CommandResult {
    let _watch = args.limits.watch(printer);
    let _lock = exclusive(&args.target.register);
    let (key, mut register) = args.target.read()?;
    let most = (ENTRIES_MAX as u64).saturating_mul(LINE_MAX as u64).min(FILE_MAX);
    let text = disk::read_text(&args.entries, most).map_err(named)?;
    let before = register.entries().len();
    for (number, line) in text.lines().enumerate() {
        let added = Entry::from_line(line).and_then(|entry| register.append(entry));
        let wrong = |error| format!("{}: line {}: {error}", args.entries.display(), number + 1);
        added.map_err(|error| Failure::new(Exit::Malformed, wrong(error)))?;
    }
    let said = format!("added {} entries", register.entries().len() - before);
    args.target.write(printer, &key, &register, said)
}

/// The reason why the register does not continue an earlier one, with its kind.
fn rewritten(
    register: &Register,
    earlier: &Path,
    key: Option<&PublicKey>,
) -> Result<Option<(String, &'static str)>, Failure> {
    let text = disk::read_text(earlier, FILE_MAX).map_err(named)?;
    let malformed = |error| RunError::malformed(earlier, error);
    let (head, copy) = match text.starts_with(HEADER) {
        true => {
            let copy = from_text(&text, key).map_err(malformed)?;
            (copy.head(), Some(copy))
        }
        false => (head_from(&text, key).map_err(malformed)?, None),
    };
    let Err(rewritten) = register.check_extends(&head) else { return Ok(None) };
    let first = copy.and_then(|copy| register.first_difference(&copy));
    let first = first.map_or(String::new(), |entry| format!("; the first difference is entry {entry}"));
    Ok(Some((format!("{rewritten}{first}"), rewritten.kind())))
}

fn counted(counts: &Counts) -> Vec<String> {
    let owners = counts.owners.iter();
    let owners = owners.map(|(owner, (monitored, exempt))| format!("{monitored:>10} {exempt:>8}  {owner}"));
    let mut lines = vec![format!("{:>10} {:>8}  owner", "monitored", "exempt")];
    lines.extend(owners);
    lines
}

/// A chip and its entries, as text and as JSON.
fn of_chip(register: &Register, serial: &Serial, time: u64) -> (Vec<String>, Value) {
    let chip = register.chip_at(serial, time);
    let mut lines = vec![match &chip {
        None => format!("chip {serial}: not in the register at {}", utc(time)),
        Some(chip) => {
            let how = chip.exempt.map_or("monitored".to_string(), |why| format!("exempt ({why})"));
            format!("chip {serial}: {}, {} at {}, {how}, key {}", chip.model, chip.owner, chip.site, chip.key)
        }
    }];
    lines.extend(
        register.entries_of(serial).map(|(number, entry)| format!("  entry {number}: {}", entry.line())),
    );
    let entries: Vec<_> = register
        .entries_of(serial)
        .map(|(number, entry)| json!({ "number": number, "entry": entry }))
        .collect();
    let chip = chip.map(|chip| {
        json!({
            "since": chip.since, "key": chip.key, "model": chip.model, "owner": chip.owner, "site": chip.site,
            "exempt": chip.exempt,
        })
    });
    (lines, json!({ "serial": serial, "now": chip, "entries": entries }))
}

fn show(printer: Printer, args: &Show) -> CommandResult {
    let _watch = args.limits.watch(printer);
    let key = args.registrar.as_deref().map(key::read_public).transpose()?;
    let register = read(&args.register, key.as_ref())?;
    let time = args.date.map_or_else(now, Ok)?;
    let counts = register.counts_at(time);
    let head = register.head();
    let mut lines = vec![format!(
        "register {}: {} monitored chips, {} exempt, {} gone at {}",
        register.name(),
        counts.monitored,
        counts.exempt,
        counts.gone,
        utc(time)
    )];
    lines.push(match &key {
        Some(key) => format!("{} entries, root {}, signed by {}", head.size, head.root, key.identified()),
        None => format!(
            "{} entries, root {}; nobody checked the signature: give --registrar",
            head.size, head.root
        ),
    });
    lines.extend(counted(&counts));
    let mut value = json!({
        "register": register.name(), "entries": head.size, "root": head.root, "time": time,
        "signature_checked": key.is_some(), "monitored": counts.monitored, "exempt": counts.exempt,
        "gone": counts.gone,
        "owners": counts.owners.iter().map(|(owner, (monitored, exempt))| {
            json!({ "owner": owner, "monitored": monitored, "exempt": exempt })
        }).collect::<Vec<_>>(),
    });
    if let Some(serial) = &args.serial {
        let (more, chip) = of_chip(&register, serial, time);
        lines.extend(more);
        value["chip"] = chip;
    }
    let mut exit = Exit::Match;
    if let Some(earlier) = &args.since {
        let found = rewritten(&register, earlier, key.as_ref())?;
        value["rewritten"] = json!(found.as_ref().map(|(why, kind)| json!({ "kind": kind, "why": why })));
        match found {
            None => lines.push(format!("the register continues {}", earlier.display())),
            Some((why, _)) => {
                lines.insert(0, format!("DIFFERS: {why}"));
                exit = Exit::Diverges;
            }
        }
    }
    let next = draw_next(args, counts.monitored).filter(|_| exit == Exit::Match);
    lines.extend(next.iter().map(Next::line));
    value["next"] = json!(next.as_slice());
    printer.result(lines, &value);
    Ok(exit)
}

/// The command that draws chips from a register with monitored ones.
fn draw_next(args: &Show, monitored: u64) -> Option<Next> {
    let registrar =
        args.registrar.as_deref().map_or(String::new(), |key| format!(" --registrar {}", shell::word(key)));
    let register = shell::path(&args.register);
    let draw = format!(
        "tiebreak monitor draw --register {register}{registrar} --closed HEADS --chips NUMBER --beacon HEX --round ROUND"
    );
    let note = "HEADS is the list of the logs' heads, NUMBER what `monitor plan` says, HEX the value of the beacon's ROUND";
    (monitored > 0).then(|| Next::new("draw chips from it with", draw).note(note))
}
