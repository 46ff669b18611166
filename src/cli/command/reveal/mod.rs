//! `tiebreak reveal`.

mod shard;

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::cli::args::decided::Decided;
use crate::cli::args::key;
use crate::cli::args::limits::Limits;
use crate::cli::args::part::parse_span;
use crate::cli::args::salts::SaltArgs;
use crate::cli::view::next::Next;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer, bytes_text, named};
use tiebreak_audit::checks::{self, Checked};
use tiebreak_job::opening::{OPENING_MAX, Opening, Part};
use tiebreak_job::shard_opening::SHARD_OPENING_MAX;
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::{self, Disk};
use tiebreak_run::run::{RunError, shell};

/// Open a sample of a run that hides or a shard of a state, or check an opening.
#[derive(clap::Args)]
#[command(
    after_help = "Example: tiebreak reveal runs/hidden --sample 3 --data private --output opening.json",
    after_long_help = "An opening of data shows whole slices of 1024 bytes, with a salt each, and tells nothing about other slices.\n\
An opening of a shard shows such slices of tensors, and hashes of the rest of these tensors; a guess confirms those.\n\n\
Examples:
  tiebreak reveal runs/hidden --sample 3 --data private --output opening.json
  tiebreak reveal runs/hidden --step 2 --shards rank-0.map --output opening.json
  tiebreak reveal runs/hidden --file 0 --bytes 0..100 --data private --output opening.json
  tiebreak reveal runs/hidden --check opening.json --trainer-key trainer.key.pub"
)]
pub struct Args {
    /// Folder of the run, or its address (http://HOST/PATH).
    run: PathBuf,
    /// Number of the sample to show, in file order from 0.
    #[arg(long, value_name = "N", conflicts_with_all = ["bytes", "check"])]
    sample: Option<u64>,
    /// Bytes to show of a data file: the first one, and the one behind the last.
    #[arg(long, value_name = "FIRST..END", value_parser = parse_span, conflicts_with = "check")]
    bytes: Option<(u64, u64)>,
    /// Number of the data file, in the order of run.json from 0.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "bytes")]
    file: usize,
    /// Step after which a shard of the state is to be shown; 0 for the initial state.
    ///
    /// A step without a checkpoint is replayed on the CPU from the nearest one before.
    #[arg(long, value_name = "N", requires = "shards", conflicts_with_all = ["sample", "bytes", "check"])]
    step: Option<u32>,
    /// With --step: shard map that says which elements of which tensors are shown.
    #[arg(long, value_name = "MAP", requires = "step")]
    shards: Option<PathBuf>,
    /// File for the opening; with --check, for the bytes that it shows.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Opening to check against the run; no salt key and no data are needed.
    #[arg(long, value_name = "FILE")]
    check: Option<PathBuf>,
    /// With --check: trainer's public key, a file or its text.
    #[arg(long, value_name = "KEY", requires = "check")]
    trainer_key: Option<String>,
    /// Folder or address of the data files, which a run that hides does not hold.
    #[arg(long, value_name = "DIR", conflicts_with = "check")]
    data: Option<PathBuf>,
    #[command(flatten)]
    salts: SaltArgs,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    decided: Decided,
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let decided = args.decided;
    decided.applied(revealed(printer, &args))
}

fn revealed(printer: Printer, args: &Args) -> CommandResult {
    let public = args.trainer_key.as_deref().map(key::read_public).transpose()?;
    let _watch = args.limits.watch(printer);
    let run = args.salts.open(&args.limits, &args.run)?;
    match &args.check {
        Some(file) => {
            let text = disk::read_text(file, OPENING_MAX.max(SHARD_OPENING_MAX)).map_err(named)?;
            let (key, opening) = (public.as_ref(), (file.as_path(), text.as_str()));
            match shard::is_of_shard(&text) {
                true => shard::checked(printer, &run, key, opening, args.output.as_deref()),
                false => checked(printer, args, &run, key, opening),
            }
        }
        None => written(printer, args, run),
    }
}

/// Refuses openings of data whose bytes anybody hashes.
fn hidden_data(args: &Args, run: &Run) -> Result<(), Failure> {
    if run.job().hides() {
        return Ok(());
    }
    let why =
        format!("{}: the run's commitments do not hide, so nothing is to be opened", args.run.display());
    Err(Failure::new(Exit::Usage, why).help("openings of data are of runs whose job has commit.scheme = 1"))
}

/// Writes an opening.
fn written(printer: Printer, args: &Args, run: Run) -> CommandResult {
    let Some(output) = &args.output else {
        let help = "tiebreak reveal RUN --sample 3 --output opening.json";
        return Err(Failure::new(Exit::Usage, "--output is missing, the file for the opening").help(help));
    };
    let run = Limits::with_data(run, args.data.as_ref())?;
    if let (Some(step), Some(shards)) = (args.step, &args.shards) {
        return shard::written(printer, &run, &shard::Asked { folder: &args.run, step, shards, output });
    }
    hidden_data(args, &run)?;
    let mut dataset = run.dataset()?;
    let places = match (args.sample, args.bytes) {
        (Some(sample), _) => dataset.places(sample).map_err(RunError::from)?,
        (None, Some((first, end))) => vec![(args.file, first, end - first)],
        (None, None) => {
            let help = "name a sample by --sample N, bytes by --file N --bytes FIRST..END, or a shard by --step N --shards MAP";
            return Err(Failure::new(Exit::Usage, "nothing is named that is to be shown").help(help));
        }
    };
    let parts = places.into_iter().map(|(file, first, count)| dataset.opened(file, first, count));
    let parts = parts.collect::<Result<Vec<Part>, _>>().map_err(RunError::from)?;
    let (meant, shown) = parts
        .iter()
        .fold((0, 0), |(meant, shown), part| (meant + part.count, shown + part.bytes.0.len() as u64));
    let path = std::path::absolute(output).map_err(RunError::io(output))?;
    Disk::default().replace(&path, Opening::new(run.id, parts).to_text().as_bytes())?;
    let command = format!("tiebreak reveal {} --check {}", shell::path(&args.run), shell::path(output));
    let next = Next::new("anybody can check it", command);
    let text = format!(
        "{}: {} of data, in slices that show {}",
        output.display(),
        bytes_text(meant),
        bytes_text(shown)
    );
    let json = json!({ "run": run.id, "output": output, "bytes": meant, "shown": shown, "next": [next] });
    printer.result(vec![text, next.line()], &json);
    Ok(Exit::Match)
}

/// Checks an opening against the published part of a run.
fn checked(
    printer: Printer,
    args: &Args,
    run: &Run,
    key: Option<&PublicKey>,
    (file, text): (&Path, &str),
) -> CommandResult {
    hidden_data(args, run)?;
    let malformed = |why| RunError::malformed(file, why);
    let opening = Opening::from_text(text).map_err(malformed)?;
    // The heads say whose run this is, and that nobody changed run.json since.
    let Checked { signed, .. } = checks::structure(run, key)?;
    if opening.run != run.id {
        let why = format!("the opening is of another run: {}", opening.run.not(&run.id));
        return Err(Failure::new(Exit::Diverges, why));
    }
    let (mut bytes, mut lines, mut parts) = (
        Vec::new(),
        vec!["OPENS: the run's data have these bytes".to_string(), format!("run {}: {signed}", run.id)],
        Vec::new(),
    );
    for part in &opening.parts {
        let manifest = run.file.data.get(part.file).ok_or_else(|| {
            let why = format!("it opens data file {}; the run has {}", part.file, run.file.data.len());
            RunError::invalid(file, why)
        })?;
        bytes.extend(part.shown(&manifest.root).map_err(malformed)?);
        let (number, first, end) = (part.file, part.first, part.first + part.count);
        lines.push(format!(
            "  ok: bytes {first}..{end} of data file {number}, which has {} bytes",
            part.length
        ));
        parts.push(json!({ "file": number, "first": first, "end": end, "length": part.length }));
    }
    if opening.parts.is_empty() {
        return Err(RunError::invalid(file, "it has 0 parts, and shows nothing").into());
    }
    if let Some(output) = &args.output {
        let path = std::path::absolute(output).map_err(RunError::io(output))?;
        Disk::default().replace(&path, &bytes)?;
        lines.push(format!("  the bytes: {}", output.display()));
    }
    let json =
        json!({ "run": run.id, "signed": signed, "opens": true, "parts": parts, "output": args.output });
    printer.result(lines, &json);
    Ok(Exit::Match)
}
