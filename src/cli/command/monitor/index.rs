//! `tiebreak monitor index`.

use std::collections::BTreeSet;
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};

use serde_json::json;
use tiebreak_audit::checks;
use tiebreak_monitor::matching::run_index::{ENTRY_BYTES, Entry, IndexError, IndexedRun, RunIndex, write};
use tiebreak_record::commit::digest::Digest;
use tiebreak_run::run::disk::{self, Disk};
use tiebreak_run::run::{RunError, names, shell};

use super::shards::Opened;
use crate::cli::args::limits::Limits;
use crate::cli::view::next::Next;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer, bytes_text, named};

/// Index the states of declared runs: `monitor match` then opens only those that it needs.
///
/// The index has the beginning of each state digest in the runs' records. A question takes one read of the disk, for any number of runs.
/// The index leads to runs and decides nothing: `monitor match` opens each of them. Make the index again when runs have grown.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tiebreak monitor index runs/mine runs/other --out declared.index
  tiebreak monitor match chip-1.log --index declared.index")]
pub struct Args {
    /// Folders of declared runs, or folders that hold such folders.
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// File for the index.
    #[arg(long, short, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    limits: Limits,
}

/// The folders of runs that an argument stands for.
fn folders(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    let has_run = |path: &Path| path.join(names::RUN_JSON).is_file();
    if has_run(path) {
        return Ok(vec![path.to_path_buf()]);
    }
    let entries = std::fs::read_dir(path).map_err(RunError::io(path)).map_err(named)?;
    let entries = entries.map(|entry| Ok(entry.map_err(RunError::io(path))?.path()));
    let mut found = entries.collect::<Result<Vec<_>, RunError>>()?;
    found.retain(|path| has_run(path));
    found.sort();
    match found.is_empty() {
        false => Ok(found),
        true => Err(RunError::NoRun { folder: path.to_path_buf() }.into()),
    }
}

pub fn run(printer: Printer, args: &Args) -> CommandResult {
    let _watch = args.limits.watch(printer);
    disk::refuse_link(&args.out)?;
    let folders = args.runs.iter().map(|path| folders(path)).collect::<Result<Vec<_>, _>>()?.concat();
    let (mut runs, mut entries): (Vec<IndexedRun>, Vec<Entry>) = (Vec::new(), Vec::new());
    let bar = printer.bar(folders.len() as u64, "runs");
    for (number, path) in (0..).zip(&folders) {
        let run = args.limits.open(path)?;
        let checked = checks::structure(&run, None)?;
        if let Some(found) = &checked.inconsistent {
            let why = format!("{}: step {}: {}", path.display(), found.step, found.what);
            return Err(Failure::new(Exit::Diverges, why));
        }
        let steps = checked.transcript.records.iter().take(run.job().steps as usize + 1);
        entries.extend(steps.map(|record| Entry::new(&record.state(), number)));
        args.limits.check("the index", (entries.len() * ENTRY_BYTES) as u64)?;
        let absolute = std::path::absolute(path).map_err(RunError::io(path))?;
        let path = absolute.to_str().ok_or_else(|| {
            let why = format!("{}: the index holds paths in UTF-8 only", path.display());
            Failure::new(Exit::Usage, why)
        })?;
        let (path, records) = (path.to_string(), checked.head.size);
        runs.push(IndexedRun { path, run: run.id, computation: run.computation.id, records });
        bar.advance();
    }
    bar.finish_and_clear();
    let (all, states) = (runs.len(), entries.len());
    let out = std::path::absolute(&args.out).map_err(RunError::io(&args.out))?;
    printer.during("writing the index", || {
        Disk::default().replace_by(&out, |file| {
            let mut buffered = BufWriter::with_capacity(1 << 20, file);
            write(&mut buffered, &runs, entries)?;
            buffered.into_inner().map(|_| ()).map_err(|error| error.into_error())
        })
    })?;
    let bytes = std::fs::metadata(&out).map_err(RunError::io(&out))?.len();
    let command = format!("tiebreak monitor match LOG --index {}", shell::path(&args.out));
    let next = Next::new("match logs with", command).note("LOG is a chip's log");
    let lines = vec![
        format!("indexed {all} runs with {states} states: {}, {}", args.out.display(), bytes_text(bytes)),
        next.line(),
    ];
    let value = json!({ "file": args.out, "runs": all, "states": states, "bytes": bytes, "next": [next] });
    printer.result(lines, &value);
    Ok(Exit::Match)
}

/// The use of an index.
pub struct Indexed {
    pub runs: usize,
    pub states: u64,
    /// The indexed runs that the logs are about.
    pub opened: Vec<IndexedRun>,
}

/// Asks the index for the runs that are of one of these computations, or have one of these states.
pub fn asked(
    path: &Path,
    computations: impl Iterator<Item = Digest>,
    states: impl Iterator<Item = Digest>,
) -> Result<Indexed, Failure> {
    let failure = |error| match error {
        IndexError::Io(error) => named(RunError::io(path)(error)),
        IndexError::Malformed(error) => RunError::malformed(path, error).into(),
    };
    let file = disk::open(path).map_err(named)?;
    let mut index = RunIndex::open(BufReader::new(file)).map_err(failure)?;
    // A log may repeat a computation or a state a million times.
    let (computations, states): (BTreeSet<Digest>, BTreeSet<Digest>) =
        (computations.collect(), states.collect());
    let told = computations.iter().flat_map(|told| index.of_computation(told).to_vec());
    let mut wanted: BTreeSet<u32> = told.collect();
    for state in states {
        wanted.extend(index.find(&state).map_err(failure)?);
    }
    let opened: Vec<IndexedRun> =
        wanted.into_iter().map(|number| index.runs()[number as usize].clone()).collect();
    // `monitor index` writes whole paths of folders. Nobody signed the index, so it leads to no server.
    if let Some(run) = opened.iter().find(|run| !Path::new(&run.path).is_absolute()) {
        let why = format!("run {} is at {:?}; the whole path of a folder is wanted", run.run, run.path);
        return Err(RunError::invalid(path, why).into());
    }
    Ok(Indexed { runs: index.runs().len(), states: index.states(), opened })
}

impl Indexed {
    /// The folders of the runs to open.
    pub fn paths(&self) -> impl Iterator<Item = PathBuf> {
        self.opened.iter().map(|run| run.path.clone().into())
    }

    /// Compares the runs of [`paths`](Indexed::paths), as they were opened, with those that were indexed.
    pub fn check(&self, opened: &[Opened]) -> Result<(), Failure> {
        let same = |indexed: &IndexedRun, opened: &Opened| {
            (indexed.run, indexed.records) == (opened.run.id, opened.checked.head.size)
        };
        let Some((indexed, opened)) = self.opened.iter().zip(opened).find(|(one, other)| !same(one, other))
        else {
            return Ok(());
        };
        let why = format!(
            "{}: the index has {} records of run {}, and the folder has {} of run {}",
            indexed.path, indexed.records, indexed.run, opened.checked.head.size, opened.run.id
        );
        Err(Failure::new(Exit::Usage, why).help("make the index again with `tiebreak monitor index`"))
    }
}
