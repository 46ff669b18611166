//! `tiebreak import`.

mod images;
mod masking;

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Component, Path, PathBuf};

use serde_json::{Value, json};

use crate::cli::args::limits::Limits;
use crate::cli::args::weight_files::{Index, ModelFolder, check_map, weight_files};
use crate::cli::view::escape::Lines;
use crate::cli::view::next::Next;
use crate::cli::view::progress::Unit;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use images::{Decided, ImageArgs};
use tiebreak_contract::program::models::released::Released;
use tiebreak_contract::program::models::{Bert, Gpt, Llama, Model};
use tiebreak_contract::program::step::Program;
use tiebreak_job::Job;
use tiebreak_job::initial::{Drawn, weights_layout};
use tiebreak_run::run::adapter_config::{self, ADAPTER, ADAPTER_CONFIG};
use tiebreak_run::run::companions::{CONFIG, Companions};
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::weights::WeightFiles;
use tiebreak_run::run::{RunError, Stored, architectures, mistaken, released_config, shell};

/// Advice for a context that is too large.
const FEWER: &str = "; give fewer positions by --context N";

/// Make a job that goes on from released weights.
///
/// The folder has config.json and *.safetensors, as transformers' save_pretrained or `tiebreak export` write them. Afterwards name your data
/// in job.toml and train it.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tiebreak import tuned --output tuned-job")]
pub struct Args {
    /// Folder of the released model, or its address (http://HOST/PATH).
    folder: PathBuf,
    /// Folder for job.toml; by default the model's, which has to be here.
    ///
    /// The weights stay where they are.
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Positions of a sample, if fewer than config.json says.
    ///
    /// The weights of models with rotary positions do not depend on the number. Attention takes memory with its square.
    #[arg(long, value_name = "N", conflicts_with = "architecture", value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    context: Option<u32>,
    /// Folder or address of adapters of the model, as PEFT's save_pretrained writes it.
    ///
    /// The folder has adapter_config.json and adapter_model.safetensors. The job trains these adapters alone.
    #[arg(long, value_name = "DIR", conflicts_with = "architecture")]
    adapter: Option<PathBuf>,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    images: ImageArgs,
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let _watch = args.limits.watch(printer);
    let folder = folder_of(&args.folder)?;
    if args.output.is_none() && folder.is_elsewhere() {
        let why =
            format!("{} is an address, and job.toml is written to a folder here", args.folder.display());
        return Err(Failure::new(Exit::Usage, why).help("name the folder with --output DIR"));
    }
    // A pointer or a page in place of the configuration is found before any weights are.
    let config = if args.images.architecture.is_some() { None } else { configuration(&folder)? };
    let counting = printer.counting("looking at the weights", Unit::Bytes);
    let (paths, index) = weight_files(&folder)?;
    let files = WeightFiles::open(&paths)?;
    let (mut model, said) = described(&args, folder.path(), config, &files)?;
    let mut decided = args.images.decide(&mut model, &folder)?;
    let adapter = args.adapter.as_deref().map(|folder| adapted(folder, &mut model)).transpose()?;
    without_error(&model, folder.path())?;
    let prefix = added_prefix(&files, &model).to_string();
    args.images.keep(&model, &mut decided, |name| files.shape(&format!("{prefix}{name}")))?;
    decided.said.splice(0..0, said);
    if !prefix.is_empty() {
        decided.said.insert(0, format!("every tensor's name begins with {prefix}, as of a model that was compiled or wrapped: the job says init.prefix"));
    }
    let disk = Disk::default();
    let output = output_of(&args, &disk)?;
    let job_path = output.join("job.toml");
    if job_path.symlink_metadata().is_ok() {
        let why = format!("{} is there already: give --output another folder", job_path.display());
        return Err(Failure::new(Exit::Usage, why));
    }
    let names = paths.iter().map(|path| name_of(&output, path)).collect::<Result<Vec<_>, _>>()?;
    decided.adapter = adapter.as_ref().map(|path| name_of(&output, path)).transpose()?;
    let all: Vec<Stored> = paths.iter().chain(&adapter).cloned().collect();
    let roots = roots(&output, &all);
    let companions = folder.companions()?;
    masking::decide(&model, &companions, &mut decided, (&files, &prefix));
    let text = job_text(&model, &names, &prefix, !roots.is_empty(), &decided);
    let job = Job::parse(&job_path.display().to_string(), &text).map_err(|error| {
        let hint = if matches!(model, Model::Llama(_)) { FEWER } else { "" };
        Failure::new(Exit::Malformed, format!("the model's sizes do not make a job: {error}{hint}"))
    })?;
    let program = job.program(None).map_err(|error| Failure::new(Exit::Malformed, error))?;
    let all = adapter.is_some().then_some(&all[..]);
    check(files, (&job, &program), index, all, &mut counting.watch())?;
    drop(counting);
    if output != folder.path() {
        companions.names().try_for_each(|name| free_for(&companions, &output, name))?;
        companions.write(&disk, &output, &[])?;
    }
    disk.replace(&job_path, text.as_bytes())?;
    let options = roots.iter().map(|root| format!(" --data-root {}", shell::path(root)));
    let train = format!("tiebreak train {}{} --out RUN", shell::path(&job_path), options.collect::<String>());
    let next = Next::new("name your data in it, then", train);
    let said = format!(
        "{}{} parameters in {} file(s) -> {}\n{}",
        decided.said.iter().map(|line| format!("{line}\n")).collect::<String>(),
        program.parameter_count(),
        paths.len(),
        job_path.display(),
        next.line()
    );
    printer.result(
        Lines::split(&said),
        &json!({ "job": job_path, "parameters": program.parameter_count(), "weights": names, "data_root": roots.first(), "data_roots": roots,
            "said": decided.said, "kept": companions.names().collect::<Vec<_>>(), "next": [next] }),
    );
    Ok(Exit::Match)
}

/// The folder for the job, which is made if it is named.
fn output_of(args: &Args, disk: &Disk) -> Result<PathBuf, RunError> {
    let output = args.output.as_ref().unwrap_or(&args.folder);
    if args.output.is_some() {
        disk.create_folder(output)?;
    }
    output.canonicalize().map_err(RunError::io(output))
}

/// Checks that the files of weights are those of a job. `all` are the files with that of the adapters, if there is one.
fn check(
    mut files: WeightFiles,
    (job, program): (&Job, &Program),
    index: Option<Index>,
    all: Option<&[Stored]>,
    watch: &mut dyn FnMut(u64, u64),
) -> Result<(), Failure> {
    if let Some(index) = index {
        check_map(&files, &index)?;
    }
    if let Some(all) = all {
        files = WeightFiles::open(all)?;
    }
    let (layout, drawn) = (weights_layout(job, program), Drawn::of(job, [0; 2]));
    files.check(&layout, &drawn, |tensor| tensor.starts_with("buffer/"))?;
    Ok(files.check_copies(&layout, &drawn, watch)?)
}

/// Gives the model the adapters that a folder describes. Returns the file of their tensors.
fn adapted(folder: &Path, model: &mut Model) -> Result<Stored, Failure> {
    let folder = folder_of(folder)?;
    let path = folder.path().join(ADAPTER_CONFIG);
    let absent = |name: &str| {
        let why = io::Error::from(ErrorKind::NotFound);
        crate::cli::view::report::named(RunError::io(&folder.path().join(name))(why))
    };
    let bytes = folder.read(ADAPTER_CONFIG, released_config::CONFIG_MAX)?;
    let bytes = bytes.ok_or_else(|| absent(ADAPTER_CONFIG))?;
    let text = std::str::from_utf8(&bytes)
        .map_err(|error| format!("the text is not UTF-8 from byte {} on", error.valid_up_to()));
    let lora = text.and_then(adapter_config::parse);
    let lora = lora.map_err(|why| mistaken::config(&path, &bytes, why))?;
    if !adapter_config::adapt(model, Some(lora)) {
        return Err(RunError::invalid(&path, "adapters are for a GPT-2 or a decoder of Llama's kind").into());
    }
    match model.error() {
        Some((key, why)) if key.starts_with("lora") => {
            Err(RunError::invalid(&path, format!("the adapters' {key}: {why}")).into())
        }
        _ => folder.file(ADAPTER)?.ok_or_else(|| absent(ADAPTER)),
    }
}

/// Refuses a model whose numbers do not fit each other.
fn without_error(model: &Model, folder: &Path) -> Result<(), RunError> {
    let Some((key, why)) = model.error() else { return Ok(()) };
    let hint = if key == "context" { FEWER } else { "" };
    Err(RunError::invalid(&folder.join(CONFIG), format!("the model's {key}: {why}{hint}")))
}

/// The folder that was named.
fn folder_of(named: &Path) -> Result<ModelFolder, Failure> {
    if tiebreak_remote::is_address(named) {
        return Ok(ModelFolder::at(named)?);
    }
    let why = match named.metadata() {
        Ok(kind) if kind.is_dir() => {
            return Ok(ModelFolder::at(&named.canonicalize().map_err(RunError::io(named))?)?);
        }
        Ok(_) => "it is a file: name the folder that it lies in",
        Err(error) if error.kind() == ErrorKind::NotFound => {
            "there is no such folder here; a model of the Hugging Face hub is downloaded first: hf download NAME --local-dir FOLDER"
        }
        Err(error) => return Err(crate::cli::view::report::named(RunError::io(named)(error))),
    };
    Err(Failure::new(Exit::Usage, format!("{}: {why}", named.display())))
}

/// The text of the folder's `config.json`, if it has one.
fn configuration(folder: &ModelFolder) -> Result<Option<String>, Failure> {
    let path = folder.path().join(CONFIG);
    let Some(bytes) = folder.read(CONFIG, released_config::CONFIG_MAX)? else { return Ok(None) };
    let text = String::from_utf8(bytes);
    let text = text.map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        mistaken::config(&path, error.as_bytes(), format!("the text is not UTF-8 from byte {valid} on"))
    })?;
    match serde_json::from_str::<Value>(&text) {
        Ok(_) => Ok(Some(text)),
        Err(error) => Err(mistaken::config(
            &path,
            text.as_bytes(),
            format!("it is no configuration of a model: {error}"),
        )
        .into()),
    }
}

/// The prefix of every name in the files, without what the model's own names begin with: Llama's begin with `model.`.
fn added_prefix<'a>(files: &'a WeightFiles, model: &Model) -> &'a str {
    let whole = files.prefix();
    let has = |prefix: &&str| {
        let layout = model.released().unwrap_or_default();
        layout.iter().any(|released| files.shape(&format!("{prefix}{}", released.name)).is_some())
    };
    let shorter = whole.char_indices().rev().map(|(at, _)| &whole[..at]);
    let shorter = shorter.filter(|prefix| prefix.is_empty() || prefix.ends_with('.'));
    if has(&whole) { whole } else { { shorter }.find(has).unwrap_or(whole) }
}

/// The model that the weights are of, and what the user has to know of how that was found.
fn described(
    args: &Args,
    folder: &Path,
    config: Option<String>,
    files: &WeightFiles,
) -> Result<(Model, Vec<String>), Failure> {
    let (mut said, prefix) = (Vec::new(), files.prefix());
    let shape = |name: &str| files.shape(&format!("{prefix}{name}"));
    if let Some(name) = &args.images.architecture {
        let model =
            architectures::of_shapes(name, shape).ok_or_else(|| Failure::new(Exit::Usage, name.clone()))?;
        said.push(format!("the model is {name}, as --architecture says"));
        return Ok((model, said));
    }
    let path = folder.join(CONFIG);
    if let Some(text) = config {
        let model =
            released_config::parse(&text, args.context).map_err(|why| RunError::invalid(&path, why))?;
        return Ok((model, said));
    }
    let holds = |name: &&&str| {
        let model = architectures::of_shapes(name, shape).filter(|model| model.error().is_none());
        model.and_then(|model| model.released()).is_some_and(|layout| {
            let layout: Vec<Released> = layout.into_iter().map(|released| released.behind(prefix)).collect();
            files.check(&layout, &Drawn::default(), |tensor| tensor.starts_with("buffer/")).is_ok()
        })
    };
    let why = match architectures::NAMES.iter().find(holds) {
        Some(name) => format!("the tensors have the names and shapes of {name}: give --architecture {name}"),
        None => format!(
            "of a network of torchvision or timm give --architecture NAME ({}); of a GPT-2 get the file from where the weights are; for a model of your own \
             write {{\"model_type\": \"tiebreak\", \"model\": {{...}}}} there, with the keys of a job's [model] table (docs/WEIGHTS.md)",
            architectures::NAMES.join(", ")
        ),
    };
    Err(Failure::new(
        Exit::Usage,
        format!("{} has no {CONFIG}, which says the model: {why}", folder.display()),
    ))
}

/// Refuses to write over another file than the one that is to be there.
fn free_for(companions: &Companions, folder: &Path, name: &str) -> Result<(), RunError> {
    let path = folder.join(name);
    if path.symlink_metadata().is_err() || fs::read(&path).ok().as_deref() == companions.get(name) {
        return Ok(());
    }
    Err(RunError::Refused(format!(
        "{} is there already and differs: give --output another folder",
        path.display()
    )))
}

/// The name by which a job in `folder`, which is canonical, names a file.
fn name_of(folder: &Path, file: &Stored) -> Result<String, Failure> {
    match file.on_disk() {
        Some(path) => relative(folder, path),
        None => Ok(file.path().to_string_lossy().into_owned()),
    }
}

/// The folders and addresses outside of a job's folder in which its files lie.
fn roots(output: &Path, files: &[Stored]) -> Vec<PathBuf> {
    let (here, elsewhere): (Vec<&Stored>, Vec<&Stored>) =
        files.iter().partition(|file| file.on_disk().is_some());
    let here: Vec<PathBuf> = here.into_iter().map(|file| file.path().to_path_buf()).collect();
    let outside = here.iter().any(|path| !path.starts_with(output));
    let mut roots: Vec<PathBuf> = outside.then(|| common(&here)).into_iter().collect();
    roots.extend(elsewhere.into_iter().map(|file| PathBuf::from(file.store().place())));
    roots.dedup();
    roots
}

/// A path as a job in `folder` names it. Both are canonical.
fn relative(folder: &Path, path: &Path) -> Result<String, Failure> {
    let same = folder.components().zip(path.components()).take_while(|(x, y)| x == y).count();
    let up = folder.components().skip(same).map(|_| Component::ParentDir);
    let relative: PathBuf = up.chain(path.components().skip(same)).collect();
    relative.to_str().map(String::from).ok_or_else(|| {
        Failure::new(Exit::Usage, format!("{}: a job names files in UTF-8 only", path.display()))
    })
}

/// The folder that holds all files.
fn common(paths: &[PathBuf]) -> PathBuf {
    let mut root = paths[0].parent().unwrap_or(Path::new("/")).to_path_buf();
    while !paths.iter().all(|path| path.starts_with(&root)) && root.pop() {}
    root
}

/// A job that goes on training the model.
fn job_text(model: &Model, weights: &[String], prefix: &str, is_outside: bool, decided: &Decided) -> String {
    let ids = |vocabulary: u32| if vocabulary > 1 << 16 { "u32" } else { "u16" };
    let (data, rate) = match model {
        Model::Bert(Bert { vocabulary, context, classes: Some(classes), .. }) => {
            let data = format!(
                "# Token ids of the model's own tokenizer, [samples, {context}], and their labels, integers below {classes}.\n\
                 kind = \"arrays\"\ninputs = \"inputs.npy\"\nlabels = \"labels.npy\"\ndtype = \"{}\"\n",
                ids(*vocabulary)
            );
            (data, "3e-5")
        }
        Model::Gpt(Gpt { vocabulary, .. })
        | Model::Llama(Llama { vocabulary, .. })
        | Model::Bert(Bert { vocabulary, .. }) => {
            let dtype = ids(*vocabulary);
            let data = format!(
                "# Token ids of the model's own tokenizer.\nkind = \"tokens\"\npath = \"tokens.npy\"\ndtype = \"{dtype}\"\n"
            );
            (data, "3e-5")
        }
        _ => {
            let data = "# Samples and their labels: pixels (u8), or numbers that the model takes as they are (f32).\n\
                kind = \"arrays\"\ninputs = \"inputs.npy\"\nlabels = \"labels.npy\"\ndtype = \"u8\"\n";
            (data.into(), "1e-4")
        }
    };
    let reach = match is_outside {
        true => "# They lie outside of this folder: name their folder with --data-root when you train.\n",
        false => "",
    };
    let (weights, model, init) = (json!(weights), released_config::model_table(model), decided.init());
    let masking = &decided.masking;
    let prefix = match prefix.is_empty() {
        true => String::new(),
        false => format!("# The text before every name in them.\nprefix = {}\n", json!(prefix)),
    };
    format!(
        "# Goes on training released weights. Name your data below, then `tiebreak job check` says whether all fits.\n\
         steps = 100\nclip_norm = 1.0\n\n\
         [init]\n# Read where they are; a run names them by length and BLAKE3.\n{reach}weights = {weights}\n\
         # The names and layouts of transformers, torchvision or torch.nn.Sequential.\nnames = \"hf\"\n{prefix}{init}\n\
         [model]\n{model}\n\
         [data]\n{data}\n\
         [optimizer]\nkind = \"adamw\"\nbeta1 = 0.9\nbeta2 = 0.999\nepsilon = 1e-8\nweight_decay = 0.01\n\n\
         [schedule]\npeak = {rate}\nwarmup = 10\nfloor = 0.0\n\n\
         [batch]\nmicro_batch = 1\nmicro_batches = 8\n{masking}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_relative_to_the_job() {
        let relative = |folder: &str, path: &str| relative(Path::new(folder), Path::new(path)).ok().unwrap();
        assert_eq!(relative("/a/job", "/a/job/model.safetensors"), "model.safetensors");
        assert_eq!(relative("/a/job", "/a/gpt2/model.safetensors"), "../gpt2/model.safetensors");
        assert_eq!(common(&["/a/b/x".into(), "/a/c/y".into()]), Path::new("/a"));
    }
}
