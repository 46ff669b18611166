//! `tiebreak shaders`.

mod launches;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{ArgGroup, ValueEnum};
use serde_json::json;

use crate::cli::args::job::JobArgs;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use launches::{Launches, Recorded};
use tiebreak_contract::program::step::Program;
use tiebreak_gpu::{TextLimits, Variant, texts};
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::{RunError, read_job, read_program};
use tiebreak_shaders::lint;

/// Write the WGSL texts that a job runs, or all that a GPU is asked for.
///
/// With --dump the command writes the text of every pipeline, as an adapter gets it, each linted again. With --dump and --launches, or with
/// --page, an adapter of this machine runs the self-test. With a job, it runs a training step from a fixed seed on random inputs.
/// The command writes down every buffer, dispatch and result, as files (docs/PORTABILITY.md describes them) or as a page. The page needs no
/// other file; it has the browser's GPU do the same through WebGPU and compare.
#[derive(clap::Args)]
#[command(group(ArgGroup::new("recorded").args(["page", "launches"]).multiple(true)))]
#[command(after_help = "Examples:
  tiebreak shaders job.toml --dump shaders-out
  tiebreak shaders --dump launches-out --launches --adapter llvmpipe
  tiebreak shaders --page selftest.html --adapter llvmpipe")]
pub struct Args {
    /// Job file; with --launches or --page it may be left out.
    #[arg(required_unless_present = "recorded")]
    job: Option<PathBuf>,
    /// Folder for the texts.
    #[arg(long, value_name = "DIR", required_unless_present = "page")]
    dump: Option<PathBuf>,
    /// With --dump: write launches.json, launches.bin and the texts that ran.
    ///
    /// These are all that an adapter was asked for.
    #[arg(long, requires = "dump")]
    launches: bool,
    /// File for the page, which any browser with WebGPU opens.
    ///
    /// With --launches the page is of the list in the folder.
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Limits on buffers that the texts keep to.
    ///
    /// The default is `all`, and with --launches or --page `webgpu`.
    #[arg(long, value_enum)]
    limits: Option<Limits>,
    /// Another folder whose files the job may name, besides its own, or an address; once for each.
    ///
    /// A job reaches files at addresses only below the addresses given here: your credentials may open others.
    #[arg(long, value_name = "DIR", requires = "job")]
    data_root: Vec<PathBuf>,
    /// Adapter that computes the results that others are compared with.
    #[arg(long, value_name = "NAME", requires = "recorded")]
    adapter: Option<String>,
    /// Record this way to compute products alone; by default all three.
    #[arg(long, value_enum, requires = "recorded")]
    products: Option<Products>,
    #[command(flatten)]
    taking: crate::cli::args::limits::Limits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Limits {
    /// Limits of every adapter, larger ones too.
    All,
    /// WebGPU's default limits, which every browser has.
    Webgpu,
}

impl Limits {
    fn of_texts(self) -> TextLimits {
        match self {
            Limits::All => TextLimits::All,
            Limits::Webgpu => TextLimits::Webgpu,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Products {
    /// Packed dot products of bytes.
    Dot,
    /// binary32 `fma` on digits.
    Float,
    /// 32-bit integers.
    Words,
}

impl Products {
    fn variant(self) -> Variant {
        match self {
            Products::Dot => Variant::Dot,
            Products::Float => Variant::Float,
            Products::Words => Variant::Words,
        }
    }
}

/// A job's program.
fn program(job: PathBuf, data_root: Vec<PathBuf>) -> Result<Program, Failure> {
    let args = JobArgs { job, data_root };
    let (_, job) = read_job(&args.job)?;
    Ok(read_program(&args.files()?, &job)?.0)
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let Args { job, data_root, dump, launches, limits, page, adapter, products, taking } = args;
    let _watch = taking.watch(printer);
    let about = job.as_ref().map(|job| job.display().to_string());
    let program = job.map(|job| program(job, data_root)).transpose()?;
    if !launches && page.is_none() {
        let (Some(program), Some(folder)) = (program, dump) else {
            return Err(Failure::new(
                Exit::Usage,
                "give --dump FOLDER with a job, or --launches, or --page FILE",
            ));
        };
        return dump_texts(printer, &program, &folder, limits.unwrap_or(Limits::All).of_texts());
    }
    if dump.is_some() && !launches {
        let why = "--page and --dump write one recording, if --launches is given too";
        return Err(Failure::new(Exit::Usage, why));
    }
    if page.is_some() && limits == Some(Limits::All) {
        let why = "a page keeps to WebGPU's default limits, which are all that a browser has to offer: leave out --limits all";
        return Err(Failure::new(Exit::Usage, why));
    }
    let recorded = Recorded {
        program: program.map(Arc::new),
        about,
        adapter,
        variants: products.map_or(Variant::ALL.to_vec(), |products| vec![products.variant()]),
        limits: limits.unwrap_or(Limits::Webgpu).of_texts(),
    };
    record(printer, &recorded, dump.as_deref(), page.as_deref())
}

/// Writes one recording to a folder, to a page, or to both.
fn record(
    printer: Printer,
    recorded: &Recorded,
    folder: Option<&Path>,
    page: Option<&Path>,
) -> CommandResult {
    let launches = Launches::record(printer, recorded)?;
    let (mut lines, mut written) = (Vec::new(), serde_json::Map::new());
    if let Some(folder) = folder {
        launches.write(folder)?;
        lines.push(format!("a launch list with {} shaders in {}", launches.shaders(), folder.display()));
        written.insert("folder".into(), json!(folder));
        written.insert("shaders".into(), json!(launches.shaders()));
    }
    if let Some(file) = page {
        let path = std::path::absolute(file).map_err(RunError::io(file))?;
        let page = launches.page()?;
        Disk::default().replace(&path, page.as_bytes())?;
        lines.push(format!("{}: {} bytes; open it in a browser with WebGPU", path.display(), page.len()));
        written.insert("page".into(), json!(path));
        written.insert("bytes".into(), json!(page.len()));
    }
    printer.result(lines, &written);
    Ok(Exit::Match)
}

fn dump_texts(printer: Printer, program: &Program, folder: &Path, limits: TextLimits) -> CommandResult {
    let disk = Disk::default();
    let whole = std::path::absolute(folder).map_err(RunError::io(folder))?;
    disk.create_folder(&whole)?;
    let mut files: Vec<(String, String)> = Vec::new();
    for graph in [&program.micro, &program.accumulate, &program.update] {
        for (name, text) in texts(graph, limits) {
            if !files.iter().any(|(_, t)| *t == text) {
                let same_name = files.iter().filter(|(n, _)| n.starts_with(&name)).count();
                files.push((format!("{name}-{same_name}.wgsl"), text));
            }
        }
    }
    let mut violations = Vec::new();
    for (name, text) in &files {
        disk.replace(&whole.join(name), text.as_bytes())?;
        violations.extend(lint::check(name, text).err().into_iter().flatten().map(|v| v.to_string()));
    }
    let text = format!("{} shaders in {}, {} lint errors", files.len(), folder.display(), violations.len());
    printer.result(text, &json!({ "shaders": files.len(), "violations": violations }));
    Ok(if violations.is_empty() { Exit::Match } else { Exit::Undecided })
}
