//! `tiebreak correct check`.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::cli::args::key;
use crate::cli::args::limits::Limits;
use crate::cli::view::next::Next;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use tiebreak_audit::checks;
use tiebreak_audit::corrections::{Listed, is_under};
use tiebreak_record::commit::correction::{CORRECTION_MAX, Correction};
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::commit::tree_head::Head;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::{RunError, disk, shell};

/// Check a correction: its signature, both heads, and both records under them.
///
/// With the folders of the runs the command also checks that the heads are over the records there. An audit of each run says which
/// record is right.
#[derive(clap::Args)]
#[command(after_help = "Example:
  tiebreak correct check runs/mine/corrections/step-000000017 --old runs/mine --new runs/mine-2")]
pub struct Args {
    /// Correction.
    file: PathBuf,
    /// Trainer's public key: a file or its text; by default the one that the old run names.
    #[arg(long, value_name = "KEY", required_unless_present = "old")]
    trainer_key: Option<String>,
    /// Folder of the run whose records are taken back.
    #[arg(long, value_name = "RUN")]
    old: Option<PathBuf>,
    /// Folder of the corrected run.
    #[arg(long, value_name = "NEW")]
    new: Option<PathBuf>,
    #[command(flatten)]
    limits: Limits,
}

/// A correction for people and programs.
pub struct Told(Listed);

impl Told {
    pub fn of(correction: &Correction) -> Told {
        Told(Listed::of(correction, true))
    }

    pub fn lines(&self) -> Vec<String> {
        let Listed { old, new, last_state, step, .. } = &self.0;
        let side = |name: &str, side: &tiebreak_audit::corrections::Side| {
            format!(
                "  {name} run {}: head over {} records, root {}",
                side.run, side.head_size, side.head_root
            )
        };
        let last = step - 1;
        let shared = format!("  shared: the records up to that of step {last}, whose state is {last_state}");
        vec![self.0.line(), side("old", old), side("new", new), shared]
    }

    pub fn json(&self) -> Value {
        json!({ "correction": self.0 })
    }
}

/// The key by which a correction is checked.
fn public(args: &Args, old: Option<&Run>) -> Result<PublicKey, Failure> {
    let given = args.trainer_key.as_deref().map(key::read_public).transpose()?;
    let Some(old) = old else {
        return given.ok_or_else(|| Failure::new(Exit::Usage, "no key is given: name it with --trainer-key"));
    };
    let path = old.layout.run_json();
    let named = old.file.summary().named_key().map_err(|why| RunError::malformed(&path, why))?;
    let why = "the old run names no key, and a correction is by the key that signed the run's heads";
    let named = named.ok_or_else(|| RunError::invalid(&path, why))?;
    match given {
        Some(given) if given != named => {
            Err(RunError::OtherKey { path, named: named.to_text(), given: given.to_text() }.into())
        }
        _ => Ok(named),
    }
}

/// Checks that a head is of the run, and over its records.
fn hold(args: &Args, run: &Run, key: &PublicKey, head: &Head) -> Result<(), Failure> {
    if head.run != run.id {
        let why = format!(
            "the correction is of run {}, and {} is run {}",
            head.run,
            run.layout.root.display(),
            run.id
        );
        return Err(RunError::invalid(&args.file, why).into());
    }
    let checked = checks::structure(run, Some(key))?;
    Ok(is_under(&args.file, head, &checked.transcript.leaves)?)
}

pub fn run(printer: Printer, args: &Args) -> CommandResult {
    let _watch = args.limits.watch(printer);
    let open = |path: &Option<PathBuf>| path.as_ref().map(|path| args.limits.open(path)).transpose();
    let [old, new] = [open(&args.old)?, open(&args.new)?];
    let key = public(args, old.as_ref())?;
    let bytes = disk::read(&args.file, CORRECTION_MAX)?;
    let correction =
        Correction::from_bytes(&bytes, &key).map_err(|why| RunError::malformed(&args.file, why))?;
    let sides = [(&old, &correction.old.head), (&new, &correction.new.head)];
    for (run, head) in sides {
        if let Some(run) = run {
            printer.during("reading the runs", || hold(args, run, &key, head))?;
        }
    }
    let told = Told::of(&correction);
    let mut lines = told.lines();
    lines.push(format!("  ok: signed by {}", key.identified()));
    let held: Vec<&str> = [("old", &old), ("new", &new)]
        .into_iter()
        .filter_map(|(name, run)| run.as_ref().map(|_| name))
        .collect();
    lines.push(format!("  ok: the heads are over the records of these runs: {}", held.join(", ")));
    let audit = args.new.as_ref().map(|path| {
        let command =
            format!("tiebreak audit {} --trainer-key {}", shell::path(path), shell::word(&key.to_text()));
        Next::new("whether the corrected run is right says", command)
    });
    lines.extend(audit.iter().map(Next::line));
    let mut json = told.json();
    json["signed"] = json!(key.to_text());
    json["held_to"] = json!(held);
    json["next"] = json!(audit.iter().collect::<Vec<_>>());
    printer.result(lines, &json);
    Ok(Exit::Match)
}
