//! `tiebreak import`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use serde_json::json;

use super::import_images::{Decided, ImageArgs};
use super::limits::Limits;
use super::{CommandResult, Exit, Failure, Printer};
use crate::job::Job;
use crate::job::initial::{Drawn, weights_layout};
use crate::program::models::Model;
use crate::run::companions::Companions;
use crate::run::disk::{self, Disk};
use crate::run::weights::WeightFiles;
use crate::run::{RunError, released_config, shell};

const ONE_FILE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// The most bytes of an index: ten times that of the largest models.
const INDEX_MAX: u64 = 1 << 24;
/// The most files that an index names, as many as a job may.
const SHARDS_MAX: usize = 4096;

/// Make a job that goes on from released weights: a folder with config.json and *.safetensors, as transformers' save_pretrained or `tiebreak export` write it.
#[derive(clap::Args)]
#[command(
    after_help = "Example: tiebreak import gpt2\nThen name your data in gpt2/job.toml, and: tiebreak train gpt2/job.toml --out runs/tuned"
)]
pub struct Args {
    /// The folder of the released model.
    folder: PathBuf,
    /// The folder for job.toml; by default the model's. The weights stay where they are.
    #[arg(long, value_name = "JOBDIR")]
    output: Option<PathBuf>,
    #[command(flatten)]
    images: ImageArgs,
    #[command(flatten)]
    limits: Limits,
}

/// What an index of several files says.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let _watch = args.limits.watch(printer);
    let folder = args
        .folder
        .canonicalize()
        .map_err(|error| super::report::named(RunError::io(&args.folder)(error)))?;
    let config = real(&folder.join("config.json"))?;
    let text = disk::read_text(&config, released_config::CONFIG_MAX)?;
    let mut model =
        released_config::parse(&text).map_err(|why| RunError::invalid(&folder.join("config.json"), why))?;
    let decided = args.images.decide(&mut model, &folder)?;
    if let Some((key, why)) = model.error() {
        return Err(
            RunError::invalid(&folder.join("config.json"), format!("the model's {key}: {why}")).into()
        );
    }
    let (paths, map) = weight_files(&folder)?;
    let output = args.output.as_ref().unwrap_or(&args.folder);
    let disk = Disk::default();
    if args.output.is_some() {
        disk.create_folder(output)?;
    }
    let output = output.canonicalize().map_err(RunError::io(output))?;
    let job_path = output.join("job.toml");
    if job_path.symlink_metadata().is_ok() {
        let why = format!("{} is there already: give --output another folder", job_path.display());
        return Err(Failure::new(Exit::Usage, why));
    }
    let names = paths.iter().map(|path| relative(&output, path)).collect::<Result<Vec<_>, _>>()?;
    let outside = paths.iter().any(|path| !path.starts_with(&output));
    let root = outside.then(|| common(&paths));
    let text = job_text(&model, &names, root.as_deref(), &decided);
    let job = Job::parse(&job_path.display().to_string(), &text).map_err(|error| {
        Failure::new(Exit::Malformed, format!("the model's sizes do not make a job: {error}"))
    })?;
    let program = job.program(None).map_err(|error| Failure::new(Exit::Malformed, error))?;
    let files = WeightFiles::open(&paths)?;
    let buffers = |tensor: &str| tensor.starts_with("buffer/");
    files.check(&weights_layout(&job, &program), &Drawn::of(&job, [0; 2]), buffers)?;
    if let Some((map, index)) = map {
        check_map(&files, &map, &index)?;
    }
    let companions = Companions::released(&folder)?;
    if output != folder {
        companions.names().try_for_each(|name| free_for(&companions, &output, name))?;
        companions.write(&disk, &output, &[])?;
    }
    disk.replace(&job_path, text.as_bytes())?;
    let root_option =
        root.as_ref().map_or(String::new(), |root| format!(" --data-root {}", shell::path(root)));
    let said = format!(
        "{}{} parameters in {} file(s) -> {}\nname your data in it, then: tiebreak train {}{root_option} --out RUN",
        decided.said.iter().map(|line| format!("{line}\n")).collect::<String>(),
        program.parameter_count(),
        paths.len(),
        job_path.display(),
        shell::path(&job_path)
    );
    printer.result(
        super::Lines::split(&said),
        &json!({ "job": job_path, "parameters": program.parameter_count(), "weights": names, "data_root": root,
            "said": decided.said, "kept": companions.names().collect::<Vec<_>>() }),
    );
    Ok(Exit::Match)
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

/// A file of the model's folder, behind links: caches of downloads are made of them, and the user named the folder.
fn real(path: &Path) -> Result<PathBuf, Failure> {
    path.canonicalize().map_err(|error| super::report::named(RunError::io(path)(error)))
}

/// What an index says, with its path.
type Map = (BTreeMap<String, String>, PathBuf);

/// The files of the weights, and the index that names them if there is one.
fn weight_files(folder: &Path) -> Result<(Vec<PathBuf>, Option<Map>), Failure> {
    let (one, index) = (folder.join(ONE_FILE), folder.join(INDEX));
    if one.exists() {
        return Ok((vec![real(&one)?], None));
    }
    if !index.exists() {
        let why = format!(
            "{} has neither {ONE_FILE} nor {INDEX}; save the model as safetensors: model.save_pretrained(DIR, safe_serialization=True)",
            folder.display()
        );
        return Err(Failure::new(Exit::Usage, why));
    }
    let text = disk::read_text(&real(&index)?, INDEX_MAX)?;
    let Index { weight_map } = serde_json::from_str(&text)
        .map_err(|error| RunError::invalid(&index, format!("it is no index of weights: {error}")))?;
    let mut shards: Vec<&String> = weight_map.values().collect();
    shards.sort_unstable();
    shards.dedup();
    if shards.is_empty() || shards.len() > SHARDS_MAX {
        return Err(RunError::invalid(
            &index,
            format!("it names {} files; 1 to {SHARDS_MAX} are read", shards.len()),
        )
        .into());
    }
    let mut paths = Vec::new();
    for shard in shards {
        if !is_plain(shard) {
            return Err(RunError::invalid(
                &index,
                format!("{shard:?} is no name of a .safetensors file in the same folder"),
            )
            .into());
        }
        paths.push(real(&folder.join(shard))?);
    }
    Ok((paths, Some((weight_map, index))))
}

/// Whether a name leads to a safetensors file in the folder itself.
fn is_plain(name: &str) -> bool {
    let mut components = Path::new(name).components();
    let one = matches!((components.next(), components.next()), (Some(Component::Normal(_)), None));
    one && !name.contains(['/', '\\']) && name.ends_with(".safetensors")
}

/// Checks that every tensor is in the file that the index says, as readers that trust it would look there.
fn check_map(files: &WeightFiles, map: &BTreeMap<String, String>, index: &Path) -> Result<(), RunError> {
    let folder = index.parent().unwrap_or(Path::new("."));
    let mut listed = 0;
    for (name, path) in files.names() {
        let there = map.get(name).and_then(|file| folder.join(file).canonicalize().ok());
        if there.as_deref() != Some(path) {
            return Err(RunError::invalid(
                index,
                format!("it does not say that {name} is in {}", path.display()),
            ));
        }
        listed += 1;
    }
    if listed != map.len() {
        return Err(RunError::invalid(
            index,
            format!("it lists {} tensors, the files hold {listed}", map.len()),
        ));
    }
    Ok(())
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
fn job_text(model: &Model, weights: &[String], root: Option<&Path>, decided: &Decided) -> String {
    let (data, rate) = match model {
        Model::Gpt(gpt) => {
            let dtype = if gpt.vocabulary > 1 << 16 { "u32" } else { "u16" };
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
    let reach = root.map_or(String::new(), |_| {
        "# They lie outside of this folder: name their folder with --data-root when you train.\n".into()
    });
    let (weights, model, init) = (json!(weights), released_config::model_table(model), decided.init());
    format!(
        "# Goes on training released weights. Name your data below, then `tiebreak job check` says whether all fits.\n\
         steps = 100\nclip_norm = 1.0\n\n\
         [init]\n# Read where they are; a run names them by length and BLAKE3.\n{reach}weights = {weights}\n\
         # The names and layouts of transformers, torchvision or torch.nn.Sequential.\nnames = \"hf\"\n{init}\n\
         [model]\n{model}\n\
         [data]\n{data}\n\
         [optimizer]\nkind = \"adamw\"\nbeta1 = 0.9\nbeta2 = 0.999\nepsilon = 1e-8\nweight_decay = 0.01\n\n\
         [schedule]\npeak = {rate}\nwarmup = 10\nfloor = 0.0\n\n\
         [batch]\nmicro_batch = 1\nmicro_batches = 8\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_leave_the_folder_are_told() {
        for name in
            ["../a.safetensors", "/a.safetensors", "a/b.safetensors", "a\\b.safetensors", "..", "a.bin", ""]
        {
            assert!(!is_plain(name), "{name}");
        }
        assert!(is_plain("model-00001-of-00002.safetensors"));
    }

    #[test]
    fn paths_are_relative_to_the_job() {
        let relative = |folder: &str, path: &str| relative(Path::new(folder), Path::new(path)).ok().unwrap();
        assert_eq!(relative("/a/job", "/a/job/model.safetensors"), "model.safetensors");
        assert_eq!(relative("/a/job", "/a/gpt2/model.safetensors"), "../gpt2/model.safetensors");
        assert_eq!(common(&["/a/b/x".into(), "/a/c/y".into()]), Path::new("/a"));
    }
}
