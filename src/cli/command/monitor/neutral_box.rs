//! `tiebreak monitor box`: opens a sealed pack in memory, replays it, and keeps nothing but a signed report.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use serde_json::json;
use tiebreak_audit::attachments::note;
use tiebreak_audit::checks::Checked;
use tiebreak_audit::ground::Ground;
use tiebreak_audit::plan::{Choice, plan};
use tiebreak_audit::refused::refused;
use tiebreak_audit::work::Work;
use tiebreak_audit::{Report, audit, report_file, watched};
use tiebreak_engine::Engine;
use tiebreak_monitor::pack::error::PackError;
use tiebreak_monitor::pack::read::{Bounds, read};
use tiebreak_monitor::pack::seal::{IDENTITY_MAX, Identity, open};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::{PrivateKey, PublicKey};
use tiebreak_record::commit::tree_head::{Head, NOTE_MAX};
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::{self, Disk};
use tiebreak_run::run::{Memory, RunError, names, shell};

use crate::cli::args::engine::{EngineArgs, open_exact};
use crate::cli::args::expect::Expectations;
use crate::cli::args::key;
use crate::cli::args::limits::{Limits, Watch, left};
use crate::cli::args::part::{self, PartArgs};
use crate::cli::view::next::Next;
use crate::cli::view::outcome::{ReplayBar, exit};
use crate::cli::view::progress::Unit;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer, bytes_text, named};

/// Replay a sealed pack as a neutral box: one signed report, pass or fail, nothing kept.
///
/// The pack is decrypted into memory alone and audited. All that decides the result is given here, by the inspector, and never taken from the
/// pack. The exit code is 0 for pass, 1 for fail and 3 if nothing was decided. No verdict is written, since verdicts hold data.
#[derive(clap::Args)]
#[command(
    after_help = "Example: tiebreak monitor box --new-identity my.identity",
    after_long_help = "Examples:
  tiebreak monitor box --new-identity my.identity
  tiebreak monitor box mine.pack --identity box.identity --run-id declared.head --key auditor.key --report box.json"
)]
pub struct Args {
    /// Pack that `tiebreak monitor pack` wrote.
    #[arg(required_unless_present = "new_identity")]
    pack: Option<PathBuf>,
    /// Make the box's identity in FILE instead, and the key for `monitor pack --to` in FILE.pub.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pack", "identity", "run_id", "key", "report"])]
    new_identity: Option<PathBuf>,
    /// File of the box's identity, which opens the pack.
    #[arg(long, value_name = "FILE", required_unless_present = "new_identity")]
    identity: Option<PathBuf>,
    /// Id of the run that is to be audited: its digest, or a file with a head of it, as it was declared.
    #[arg(long, value_name = "ID", required_unless_present = "new_identity")]
    run_id: Option<String>,
    /// Trainer's public key: a file or its text.
    #[arg(long, value_name = "KEY")]
    trainer_key: Option<String>,
    /// Box's private key, which signs the report.
    #[arg(long, value_name = "KEY", required_unless_present = "new_identity")]
    key: Option<PathBuf>,
    /// File for the report, which must not be there yet.
    #[arg(long, value_name = "FILE", required_unless_present = "new_identity")]
    report: Option<PathBuf>,
    #[command(flatten)]
    part: PartArgs,
    /// Audit the records that the head covers, and nothing more.
    #[arg(long)]
    prefix: bool,
    /// Head of this run that the inspector has, such as a declared one.
    ///
    /// Give the option once for each head.
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    head: Vec<PathBuf>,
    #[command(flatten)]
    expect: Expectations,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    limits: Limits,
}

/// The files and keys of the box, read before anything is decrypted.
struct Given<'a> {
    pack: &'a Path,
    report: &'a Path,
    identity: Identity,
    signer: PrivateKey,
    trainer: Option<PublicKey>,
    run: Digest,
    heads: Vec<(&'a Path, String)>,
    choice: Choice,
}

/// The id of a run: its text, or a file with one of the run's heads.
fn run_id(argument: &str) -> Result<Digest, Failure> {
    let path = Path::new(argument);
    if path.exists() {
        let note = disk::read_text(path, NOTE_MAX as u64)?;
        let head = Head::from_note(&note, None).map_err(|error| RunError::malformed(path, error))?;
        return Ok(head.0.run);
    }
    argument.parse().map_err(|error| {
        let why = format!("--run-id {argument:?} is no file with a head, and no digest: {error}");
        Failure::new(Exit::Usage, why)
    })
}

impl Args {
    fn given(&self) -> Result<Given<'_>, Failure> {
        let missing =
            || Failure::new(Exit::Usage, "PACK, --identity, --run-id, --key and --report are wanted");
        let identity = self.identity.as_ref().ok_or_else(missing)?;
        let text = disk::read_text(identity, IDENTITY_MAX).map_err(named)?;
        let report = self.report.as_deref().ok_or_else(missing)?;
        if fs::symlink_metadata(report).is_ok() {
            let why = format!("{} is there already, and a report replaces no file", report.display());
            return Err(Failure::new(Exit::Usage, why).help("name another file, or move this one away"));
        }
        let mut heads = Vec::new();
        for path in &self.head {
            heads.push((path.as_path(), disk::read_text(path, NOTE_MAX as u64)?));
        }
        Ok(Given {
            pack: self.pack.as_deref().ok_or_else(missing)?,
            report,
            identity: Identity::from_text(&text).map_err(|error| RunError::malformed(identity, error))?,
            signer: key::read_private(self.key.as_deref().ok_or_else(missing)?)?,
            trainer: self.trainer_key.as_deref().map(key::read_public).transpose()?,
            run: run_id(self.run_id.as_deref().ok_or_else(missing)?)?,
            // The pack is here already, so nobody chose its contents by the seed.
            choice: self.part.choice()?,
            heads,
        })
    }
}

/// Makes an identity that only the box's user can read.
fn new_identity(printer: Printer, file: &Path) -> CommandResult {
    key::refuse_in_run(file)?;
    let identity = Identity::generate();
    let recipient = identity.recipient().to_text();
    key::write_new(file, &identity.to_text(), true)?;
    let public = key::public_path(file);
    key::write_new(&public, &format!("{recipient}\n"), false)?;
    let pack = format!("tiebreak monitor pack RUN --to {} --out FILE", shell::path(&public));
    let next = Next::new("whoever has a run seals it for this box with", pack).note("RUN is its folder");
    printer.result(&recipient, &json!({ "recipient": recipient, "next": [next] }));
    printer.say(next.line());
    Ok(Exit::Match)
}

/// Keeps the system from writing this process's memory to a core file.
#[cfg(unix)]
fn without_core_files() -> Result<(), Failure> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let done = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    // A system that hands cores to a program does not ask for that limit.
    #[cfg(target_os = "linux")]
    let done = done.and_then(|()| {
        use rustix::process::{DumpableBehavior, set_dumpable_behavior};
        set_dumpable_behavior(DumpableBehavior::NotDumpable)
    });
    done.map_err(|error| {
        let why = format!("the system does not switch this process's core files off: {error}");
        Failure::new(Exit::Undecided, why)
    })
}

#[cfg(not(unix))]
fn without_core_files() -> Result<(), Failure> {
    Ok(())
}

/// True if the machine may write memory to a disk. Systems other than Linux do not say it here.
fn swaps() -> bool {
    fs::read_to_string("/proc/swaps").is_ok_and(|text| text.lines().count() > 1)
}

fn failure(path: &Path, error: PackError) -> Failure {
    match error {
        PackError::Malformed(error) => RunError::malformed(path, error).into(),
        PackError::Io(error) => RunError::io(path)(error).into(),
        PackError::Memory { needed, .. } => {
            Failure::new(Exit::Undecided, format!("{}: {error}", path.display())).needs_memory(needed)
        }
        PackError::NotForUs(_) => Failure::new(Exit::Usage, format!("{}: {error}", path.display()))
            .help("give the identity whose key the pack was sealed for with `monitor pack --to`"),
    }
}

/// Decrypts the pack into memory. The second value is the bytes that it takes there.
fn unpacked(printer: Printer, limits: &Limits, given: &Given) -> Result<(Memory, u64), Failure> {
    let file: File = disk::open(given.pack).map_err(named)?;
    let there = file.metadata().map_err(RunError::io(given.pack))?.len();
    let counting = printer.counting("opening the pack", Unit::Bytes);
    let mut watch = counting.watch();
    let (mut files, mut held) = (BTreeMap::new(), 0);
    let bounds = Bounds { memory: limits.memory(), there };
    let keep = |name, contents: Vec<u8>| {
        held += contents.len() as u64;
        watch(held, there);
        files.insert(name, contents);
    };
    open(BufReader::new(file), &given.identity)
        .and_then(|plain| read(plain, bounds, keep))
        .map_err(|error| failure(given.pack, error))?;
    Ok((Memory::holding(files), held))
}

/// An error about what is in the pack, without the words that may quote it. What the machine lacks says nothing of the pack.
fn withheld(failure: Failure) -> Failure {
    if failure.exit == Exit::Undecided {
        return failure;
    }
    Failure::new(failure.exit, "the run in the pack cannot be audited with these options").help(WITHHELD)
}

/// The reason why a line of the box is short.
const WITHHELD: &str =
    "the reason may quote the run, so the box keeps it; `tiebreak audit` of the run itself says it";

/// The box's result.
struct Boxed {
    report: Report,
    /// The finding that ended the box's work before the audit: the exit code, and a line.
    refused: Option<(Exit, String)>,
}

/// The part of a run that no audit goes without, if the pack lacks it.
fn lacks(run: &Run) -> Result<Option<&'static str>, RunError> {
    if !run.at(names::TRANSCRIPT).is_here() {
        return Ok(Some("its transcript"));
    }
    Ok(run.head_sizes()?.is_empty().then_some("a head"))
}

/// Checks the files of the run, without a replay.
fn files(printer: Printer, given: &Given, run: &Run) -> Result<Checked, Failure> {
    let counting = printer.counting("checking the run", Unit::Bytes);
    let mut counted = counting.watch();
    let mut work = Work::of_all_files(&mut counted);
    let mut checked = watched::always(run, given.trainer.as_ref(), &mut work)?;
    if checked.inconsistent.is_none() {
        let beside = watched::attachments(run, &checked, &mut work);
        note(&mut checked, beside);
    }
    Ok(checked)
}

/// The memory and time that the box has used up so far.
struct Since {
    /// Bytes of the pack's files in memory.
    held: u64,
    start: Instant,
    watch: Watch,
}

/// Replays the run, by the inspector's options alone.
fn audited(
    printer: Printer,
    args: &Args,
    given: &Given,
    run: &Run,
    engine: &mut dyn Engine,
    Since { held, start, watch }: Since,
) -> Result<Boxed, Failure> {
    let no_audit = |why, exit, line: String| {
        let report = refused(run, engine.describe(), given.choice.clone(), why);
        Ok(Boxed { report, refused: Some((exit, line)) })
    };
    if run.id != given.run {
        let line = format!("FAIL: the pack holds run {}, and --run-id is {}", run.id, given.run);
        return no_audit(Ground::OtherRun { wanted: given.run }, Exit::Diverges, line);
    }
    let expected = match args.expect.check(run) {
        // The order is met or not: which setting differs would tell the job.
        Err(failure) if failure.exit == Exit::Diverges => {
            let line = format!("FAIL: the run in the pack was not ordered ({WITHHELD})");
            return no_audit(Ground::NotOrdered, Exit::Diverges, line);
        }
        expected => expected?,
    };
    let lack = lacks(run).map_err(Failure::from);
    if let Ok(Some(file)) = lack {
        let line = format!("NOT DECIDED: the pack holds run {} without {file}", run.id);
        return no_audit(Ground::Without { file }, Exit::Undecided, line);
    }
    let named =
        run.file.summary().named_key().map_err(|why| RunError::malformed(&run.layout.run_json(), why))?;
    if given.trainer.is_some() && named != given.trainer {
        return Err(Failure::new(Exit::Malformed, "`--trainer-key` is no key of the run in the pack"));
    }
    let mut checked = match lack.and_then(|_| files(printer, given, run)) {
        Err(failure) if failure.exit == Exit::Malformed => {
            let line =
                format!("NOT DECIDED: a file of run {} in the pack breaks its format ({WITHHELD})", run.id);
            return no_audit(Ground::Unreadable, Exit::Malformed, line);
        }
        checked => checked?,
    };
    expected.note(&mut checked);
    for (path, text) in &given.heads {
        checked.other_head(run, path, text)?;
    }
    if args.prefix {
        checked.allow_prefix();
    }
    let last = (checked.transcript.records.len() as u32 - 1).min(run.job().steps);
    part::check_steps(args.part.steps, last)?;
    let plan = plan(run, &checked.checkpoints, last, &given.choice);
    if checked.inconsistent.is_none() {
        args.limits.check("a replay beside the pack", plan.memory.saturating_add(held))?;
        let steps = plan.steps();
        printer.say(format!("replaying {steps} steps in {}", bytes_text(plan.memory.saturating_add(held))));
    }
    let mut bar = ReplayBar::new(printer, &plan);
    // From here on the audit itself stops, with a report.
    drop(watch);
    let limit = left(args.limits.time(), start);
    // The verdict, if there is one, holds data and tensors. It ends here.
    let (report, _verdict) = audit(run, engine, checked, plan, limit, &mut bar)?;
    Ok(Boxed { report, refused: None })
}

pub fn run(printer: Printer, args: &Args) -> CommandResult {
    if let Some(file) = &args.new_identity {
        return new_identity(printer, file);
    }
    without_core_files()?;
    let (start, watch) = (Instant::now(), args.limits.watch(printer));
    let given = args.given()?;
    let mut engine = open_exact(&args.engine)?;
    let swaps = swaps();
    if swaps {
        printer
            .say("note: this machine swaps, so memory may be written to its disk; `swapoff -a` stops that");
    }
    let (memory, held) = unpacked(printer, &args.limits, &given)?;
    let run = Run::of(Arc::new(memory)).map_err(|error| withheld(error.into()))?;
    let run = run.with_memory(args.limits.memory());
    if run.id == given.run {
        part::check_steps(args.part.steps, run.job().steps)?;
    }
    let since = Since { held, start, watch };
    let found = audited(printer, args, &given, &run, engine.as_mut(), since).map_err(withheld)?;
    let Boxed { report, refused } = found;
    let path = std::path::absolute(given.report).map_err(RunError::io(given.report))?;
    let exit = refused.as_ref().map_or_else(|| exit(&report), |(exit, _)| *exit);
    Disk::default().replace(&path, &report_file::encode(report, Some(&given.signer)))?;
    let word = match exit {
        Exit::Match => "PASS",
        Exit::Diverges => "FAIL",
        _ => "NOT DECIDED",
    };
    let statement =
        format!("tiebreak monitor statement --report {} --key KEY --out FILE", shell::path(given.report));
    let next = Next::new("state it with", statement).note("KEY is the inspector's");
    // No statement rests on a report of a run that was refused.
    let next = if refused.is_none() { vec![next] } else { Vec::new() };
    let mut lines = vec![
        refused.map_or_else(|| format!("{word}: run {}", run.id), |(_, line)| line),
        format!("  report: {}", path.display()),
    ];
    lines.extend(next.iter().map(Next::line));
    printer.result(
        lines,
        &json!({ "pass": exit == Exit::Match, "run": run.id, "report": path, "swaps": swaps, "next": next }),
    );
    Ok(exit)
}
