//! `tiebreak monitor pack`: everything that a replay of a run needs, sealed for a neutral box.

use std::fs;
use std::fs::File;
use std::io::{self, BufWriter, Read};
use std::path::{Path, PathBuf};

use serde_json::json;
use tiebreak_audit::needed::{Needed, needed};
use tiebreak_monitor::pack::error::PackError;
use tiebreak_monitor::pack::name;
use tiebreak_monitor::pack::seal::{Recipient, seal};
use tiebreak_monitor::pack::write::Writer;
use tiebreak_run::run::disk::{self, Disk};
use tiebreak_run::run::{RunError, shell};

use crate::cli::args::limits::Limits;
use crate::cli::args::part;
use crate::cli::view::next::Next;
use crate::cli::view::progress::Unit;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer, bytes_text};

/// The most bytes of a file with a box's key.
const KEY_MAX: u64 = 4096;

/// Pack what a replay of a run needs, sealed for a neutral box.
///
/// The pack is one file in the age format, which the box's identity alone opens. Records, heads, states, logs and data are in it; metrics
/// and evaluations are not. No part of the run is written in the clear.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tiebreak monitor pack runs/mine --to box.identity.pub --out mine.pack
  tiebreak monitor pack runs/other --to box.identity.pub --steps 3..4 --data . --out part.pack")]
pub struct Args {
    /// Folder of the run, or its address (http://HOST/PATH).
    run: PathBuf,
    /// Key of a box, as `monitor box --new-identity` printed it: a file or its text, age1...
    ///
    /// Give the option once for each box. Each can open the whole pack.
    #[arg(long, value_name = "KEY", required = true)]
    to: Vec<String>,
    /// Pack the files for these steps alone, both ends included.
    ///
    /// The pack begins at the checkpoint before. Data files come whole.
    #[arg(long, value_name = "FIRST..LAST", value_parser = part::parse_range)]
    steps: Option<(u32, u32)>,
    /// Folder or address of the data files that the run does not hold.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// File for the pack, which must not be there yet.
    #[arg(long, short, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    limits: Limits,
}

/// Contents whose bytes are counted as they are read.
struct Counted<'a, R> {
    contents: R,
    count: &'a mut dyn FnMut(u64),
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.contents.read(buffer)?;
        (self.count)(read as u64);
        Ok(read)
    }
}

fn plain(error: PackError) -> io::Error {
    match error {
        PackError::Io(error) => error,
        PackError::Malformed(error) => io::Error::new(io::ErrorKind::InvalidData, error),
        error => io::Error::other(error),
    }
}

/// Writes the pack into an open file, encrypted from the first byte on.
fn write(
    out: &mut File,
    recipients: &[Recipient],
    files: &[Needed],
    mut count: impl FnMut(u64),
) -> io::Result<()> {
    let sealed = seal(recipients, BufWriter::new(out)).map_err(plain)?;
    let mut pack = Writer::new(sealed).map_err(plain)?;
    for file in files {
        let contents = file.file.open().map_err(|error| io::Error::other(error.to_string()))?;
        let mut contents = Counted { contents, count: &mut count };
        pack.add(&file.name, file.length, &mut contents).map_err(plain)?;
    }
    pack.finish().map_err(plain)?.finish()?.into_inner()?;
    Ok(())
}

/// Writes the file as a whole or not at all.
fn written(printer: Printer, path: &Path, recipients: &[Recipient], files: &[Needed]) -> Result<(), Failure> {
    let all: u64 = files.iter().map(|file| file.length).sum();
    let counting = printer.counting("packing", Unit::Bytes);
    let (mut watch, mut done) = (counting.watch(), 0);
    let count = |bytes| {
        done += bytes;
        watch(done, all);
    };
    let written = Disk::default().replace_by(path, |out| write(out, recipients, files, count));
    written.map_err(|error| {
        // The first error is the one to report; a full disk gets its bytes back.
        let _ = fs::remove_file(disk::partial(path));
        error.into()
    })
}

/// A box's key: a file, or the text itself.
fn recipient(argument: &str) -> Result<Recipient, Failure> {
    let path = Path::new(argument);
    if path.exists() {
        let text = disk::read_text(path, KEY_MAX)?;
        return Recipient::from_text(&text).map_err(|error| RunError::malformed(path, error).into());
    }
    Recipient::from_text(argument).map_err(|error| {
        let help = "`tiebreak monitor box --new-identity FILE` makes a key; the public half is in FILE.pub";
        Failure::new(Exit::Usage, format!("--to: {error}")).help(help)
    })
}

pub fn run(printer: Printer, args: &Args) -> CommandResult {
    let _watch = args.limits.watch(printer);
    let recipients = args.to.iter().map(|key| recipient(key)).collect::<Result<Vec<_>, _>>()?;
    let path = std::path::absolute(&args.out).map_err(RunError::io(&args.out))?;
    if fs::symlink_metadata(&path).is_ok() {
        let why = format!("{} is there already, and a pack replaces no file", args.out.display());
        return Err(Failure::new(Exit::Usage, why).help("name another file, or move this one away"));
    }
    let run = args.limits.open_with_data(&args.run, args.data.as_ref())?;
    part::check_steps(args.steps, run.job().steps)?;
    let mut files = needed(&run, args.steps)?;
    files.sort_by(|one, other| name::order(&one.name, &other.name));
    written(printer, &path, &recipients, &files)?;
    let bytes: u64 = files.iter().map(|file| file.length).sum();
    let sealed = fs::metadata(&path).map_err(RunError::io(&path))?.len();
    let steps =
        args.steps.map_or(String::new(), |(first, last)| format!(" --steps {first}..{last} --prefix"));
    let next = Next::new(
        "at the box",
        format!(
            "tiebreak monitor box {} --identity IDENTITY --run-id {}{steps} --key KEY --report FILE",
            shell::path(&args.out),
            run.id
        ),
    )
    .note("IDENTITY and KEY are files of the box");
    let boxes: Vec<String> = recipients.iter().map(Recipient::to_text).collect();
    let names: Vec<_> = files.iter().map(|file| json!({ "name": file.name, "bytes": file.length })).collect();
    printer.result(
        vec![
            format!("packed run {}: {} files, {}", run.id.short(), files.len(), bytes_text(bytes)),
            format!("  sealed for {}", boxes.join(", ")),
            format!("  pack: {} ({})", path.display(), bytes_text(sealed)),
            next.line(),
        ],
        &json!({
            "file": path, "run": run.id, "bytes": bytes, "sealed_bytes": sealed, "to": boxes, "files": names,
            "next": [next],
        }),
    );
    Ok(Exit::Match)
}
