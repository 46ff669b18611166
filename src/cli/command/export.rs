//! `tiebreak export`.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde_json::json;

use crate::cli::args::limits::Limits;
use crate::cli::view::next::{self, Next};
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use tiebreak_job::initial::program_layout;
use tiebreak_run::run::adapter_config::{self, ADAPTER, ADAPTER_CONFIG};
use tiebreak_run::run::companions::{CONFIG, Companions, GENERATION, PREPROCESSOR};
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::{RunError, released_config, shell, state_files};

/// The file of a model's tensors.
const WEIGHTS: &str = "model.safetensors";

/// Names and layout of an export's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// As transformers (GPT-2), torchvision or torch.nn.Sequential name them, with a config.json and the tokenizer's files that the run has.
    Hf,
    /// The program's own names, for `init.weights`.
    Safetensors,
}

/// Write a run's model as a folder that other programs load.
///
/// The folder has model.safetensors, config.json, and the files that the run keeps of the model that it began from. In Python,
/// transformers.GPT2LMHeadModel.from_pretrained("tuned") loads it.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tiebreak export runs/mine --format hf --output tuned")]
pub struct Args {
    /// Folder of the run, or its address (http://HOST/PATH).
    run: PathBuf,
    /// Folder for the model, which is made.
    #[arg(long, value_name = "DIR")]
    output: PathBuf,
    /// Names and layout of the tensors.
    #[arg(long, value_enum, default_value = "hf")]
    format: Format,
    /// Add a model's adapters to its weights.
    ///
    /// Without the option the folder of a model with adapters has these alone, as PEFT writes them: adapter_model.safetensors and
    /// adapter_config.json.
    #[arg(long)]
    merged: bool,
    /// Step whose checkpoint is exported; by default the last one there is.
    ///
    /// 0 is the initial state.
    #[arg(long, value_name = "N")]
    step: Option<u32>,
    #[command(flatten)]
    limits: Limits,
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let _watch = args.limits.watch(printer);
    let run = args.limits.open(&args.run)?;
    let model = run.job().model().map(|job| &job.model);
    let adapters = model.map_or(Vec::new(), |model| model.adapters());
    if args.merged && (adapters.is_empty() || args.format == Format::Safetensors) {
        let why = "--merged is for a model with adapters ([model.lora]), in the format hf";
        return Err(Failure::new(Exit::Usage, why));
    }
    let alone = args.format == Format::Hf && !adapters.is_empty() && !args.merged;
    let layout = match args.format {
        Format::Safetensors => program_layout(run.program()),
        Format::Hf if alone => adapters,
        Format::Hf => model.and_then(|model| model.released()).ok_or_else(|| {
            let why = "neither transformers nor torchvision has this model; --format safetensors writes the program's own names";
            Failure::new(Exit::Usage, why)
        })?,
    };
    let working = printer.working("checking the state", None);
    let (step, mut files, table) = state_files::open(&run, args.step)?;
    drop(working);
    let output = std::path::absolute(&args.output).map_err(RunError::io(&args.output))?;
    if args.merged
        && let Some(model) = model
    {
        files = files.merged(model);
    }
    let companions = match args.format {
        Format::Hf if !alone => Companions::of_run(&run)?,
        _ => Companions::default(),
    };
    let prepared = model
        .filter(|_| args.format == Format::Hf)
        .and_then(|model| released_config::preprocessor(model, companions.text(PREPROCESSOR)));
    let weights = if alone { ADAPTER } else { WEIGHTS };
    let mut written = vec![weights];
    if alone {
        written.push(ADAPTER_CONFIG);
    } else if let (Format::Hf, Some(_)) = (args.format, model) {
        written.push(CONFIG);
        written.extend(companions.names().filter(|name| *name != CONFIG));
        let is_new = prepared.is_some() && companions.get(PREPROCESSOR).is_none();
        written.extend(is_new.then_some(PREPROCESSOR));
    }
    written.iter().try_for_each(|name| refuse_used(&output.join(name)))?;
    let disk = Disk::default();
    disk.create_folder(&output)?;
    let working = printer.working("writing the model", None);
    files.export(&disk, &output.join(weights), &table, &layout, step)?;
    if let (true, Some(text)) = (alone, model.and_then(adapter_config::text)) {
        disk.replace(&output.join(ADAPTER_CONFIG), text.as_bytes())?;
    } else if let (Format::Hf, Some(model)) = (args.format, model) {
        let [config, generation] = [CONFIG, GENERATION].map(|name| companions.text(name));
        let config = released_config::text(model, config, generation);
        let ours = [Some((CONFIG, config)), prepared.map(|text| (PREPROCESSOR, text))];
        let ours: Vec<(&str, String)> = ours.into_iter().flatten().collect();
        for (name, text) in &ours {
            disk.replace(&output.join(name), text.as_bytes())?;
        }
        companions.write(&disk, &output, &ours.iter().map(|(name, _)| *name).collect::<Vec<_>>())?;
    }
    drop(working);
    let tensors = layout.iter().filter(|released| released.is_written()).count();
    let is_hf = !alone && matches!((args.format, model), (Format::Hf, Some(_)));
    say(printer, &args, (step, tensors, is_hf), &written);
    Ok(Exit::Match)
}

/// Says what was written: so many tensors of a step, in a folder that `import` takes if it is one of transformers' names.
fn say(printer: Printer, args: &Args, (step, tensors, is_hf): (u32, usize, bool), written: &[&str]) {
    let text = format!(
        "{} of step {step} -> {} ({tensors} tensors): {}",
        args.run.display(),
        args.output.display(),
        written.join(", ")
    );
    let import = || Next::new("go on from it", format!("tiebreak import {}", shell::path(&args.output)));
    let next: Vec<Next> = is_hf.then(import).into_iter().collect();
    let lines: Vec<String> = [text].into_iter().chain(next::lines(&next)).collect();
    printer.result(
        lines,
        &json!({ "step": step, "output": args.output, "files": written, "tensors": tensors, "next": next }),
    );
}

/// Refuses to write over a file of a model.
fn refuse_used(path: &Path) -> Result<(), RunError> {
    match path.symlink_metadata() {
        Ok(_) => Err(RunError::Refused(format!("{} is there already: name another folder", path.display()))),
        Err(_) => Ok(()),
    }
}
