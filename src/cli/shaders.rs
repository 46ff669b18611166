//! `tiebreak shaders`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use clap::ValueEnum;
use serde_json::json;

use super::job::JobArgs;
use super::{CommandResult, Exit, Failure, Printer};
use crate::engine::fingerprint::FINGERPRINT;
use crate::engine::gpu::{Launches, TextLimits, Variant, adapters, recording, texts};
use crate::job::identity::CONTRACT;
use crate::program::step::Program;
use crate::run::disk::Disk;
use crate::run::{RunError, read_job, read_program};
use crate::shaders::lint;

/// Write the WGSL texts that a job runs, or a page that runs them in a browser.
///
/// With --dump: the text of every pipeline, as an adapter gets it, each linted again. With --page: a self-contained page. It has an adapter of this machine
/// run the self-test (or, with a job, a training step from a fixed seed on inputs at random), writes down every buffer, dispatch and result, and has the browser's
/// GPU do the same through WebGPU and compare.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  tiebreak shaders assets/jobs/demo.toml --dump shaders-out\n  \
tiebreak shaders --page selftest.html --adapter llvmpipe   (open it in any browser with WebGPU)")]
pub struct Args {
    /// The job file; with --page it may be left out.
    #[arg(required_unless_present = "page")]
    job: Option<PathBuf>,
    /// A folder whose files the job may name too, besides those in its own folder.
    #[arg(long, value_name = "DIR", requires = "job")]
    data_root: Option<PathBuf>,
    /// The folder to write texts to.
    #[arg(long, value_name = "FOLDER", requires = "job", required_unless_present = "page")]
    dump: Option<PathBuf>,
    /// Whose limits on buffers the texts keep to: WebGPU's default ones, which every browser has, or also larger ones.
    #[arg(long, value_enum, default_value_t = Limits::All)]
    limits: Limits,
    /// The page to write.
    #[arg(long, value_name = "FILE", conflicts_with = "dump")]
    page: Option<PathBuf>,
    /// The adapter that computes what the browser's GPU is compared with (see `tiebreak adapters`).
    #[arg(long, requires = "page")]
    adapter: Option<String>,
    /// Record only this way to compute products; without it all three.
    #[arg(long, value_enum, requires = "page")]
    products: Option<Products>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Limits {
    /// Of every adapter.
    #[default]
    All,
    /// WebGPU's defaults.
    Webgpu,
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
fn program(job: PathBuf, data_root: Option<PathBuf>) -> Result<Program, Failure> {
    let args = JobArgs { job, data_root };
    let (_, job) = read_job(&args.job)?;
    Ok(read_program(&args.files()?, &job)?.0)
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let job = args.job.clone();
    let program = args.job.map(|job| program(job, args.data_root)).transpose()?;
    match (program, args.dump, args.page) {
        (Some(program), Some(folder), _) => dump(printer, &program, &folder, args.limits),
        (program, _, Some(file)) => {
            let about = job.as_ref().map(|job| job.display().to_string());
            let program = program.map(Arc::new);
            let recorded = Recorded { program, about, adapter: args.adapter, products: args.products };
            page(printer, recorded, &file)
        }
        _ => Err(Failure::new(Exit::Usage, "give --dump FOLDER with a job, or --page FILE")),
    }
}

fn dump(printer: Printer, program: &Program, folder: &Path, limits: Limits) -> CommandResult {
    std::fs::create_dir_all(folder).map_err(RunError::io(folder))?;
    let limits = match limits {
        Limits::All => TextLimits::All,
        Limits::Webgpu => TextLimits::Webgpu,
    };
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
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(RunError::io(&path))?;
        violations.extend(lint::check(name, text).err().into_iter().flatten().map(|v| v.to_string()));
    }
    let text = format!("{} shaders in {}, {} lint errors", files.len(), folder.display(), violations.len());
    printer.result(text, &json!({ "shaders": files.len(), "violations": violations }));
    Ok(if violations.is_empty() { Exit::Match } else { Exit::Undecided })
}

/// What a page is made of.
struct Recorded {
    /// A step of this; the self-test without one.
    program: Option<Arc<Program>>,
    about: Option<String>,
    adapter: Option<String>,
    products: Option<Products>,
}

/// The page but for what it runs.
const PAGE: &str = include_str!("../../assets/browser/page.html");

fn page(printer: Printer, recorded: Recorded, file: &Path) -> CommandResult {
    let Recorded { program, about, adapter, products } = recorded;
    let variants = products.map_or(Variant::ALL.to_vec(), |products| vec![products.variant()]);
    let mut data: Vec<u8> = Vec::new();
    let mut runs = Vec::new();
    for variant in variants {
        printer.say(format!("recording {variant:?} products ..."));
        let mut launches = match &program {
            None => recording::of_selftest(adapter.as_deref(), variant)?,
            Some(program) => recording::of_step(adapter.as_deref(), variant, program)?,
        };
        launches.shift(data.len() as u64);
        data.append(&mut launches.data);
        let Launches { shaders, commands, .. } = launches;
        runs.push(json!({ "variant": format!("{variant:?}"), "shaders": shaders, "commands": commands }));
    }
    let used = adapters().into_iter().find(|used| {
        adapter.as_ref().is_none_or(|name| used.name.to_lowercase().contains(&name.to_lowercase()))
    });
    let launches = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "contract": CONTRACT,
        "about": about.map_or_else(|| "the self-test".into(), |job| format!("a step of {job}")),
        "expected": FINGERPRINT,
        "recorded": used.map_or_else(|| "the best adapter".into(), |used| format!("{}, {}", used.name, used.driver)),
        "runs": runs,
    });
    // In a script that holds JSON no `<` may begin a tag; all of them stand in strings.
    let launches = launches.to_string().replace('<', "\\u003c");
    // Base64 holds no placeholder; texts and names may.
    let page =
        PAGE.replacen("@DATA@", &BASE64_STANDARD.encode(&data), 1).replacen("@LAUNCHES@", &launches, 1);
    let path = std::path::absolute(file).map_err(RunError::io(file))?;
    Disk::default().replace(&path, page.as_bytes())?;
    let text = format!("{}: {} bytes; open it in a browser with WebGPU", path.display(), page.len());
    printer.result(text, &json!({ "page": path, "bytes": page.len() }));
    Ok(Exit::Match)
}
