//! The files of a folder that are its weights: one, or those that an index names.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use crate::cli::view::report::{Exit, Failure};
use tiebreak_run::run::weights::WeightFiles;
use tiebreak_run::run::{RunError, disk, mistaken};

const ONE_FILE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// The most bytes of an index: ten times that of the largest models.
const INDEX_MAX: u64 = 1 << 24;
/// The most files that an index names, as many as a job may.
const SHARDS_MAX: usize = 4096;
/// The most names that an error lists.
const LISTED: usize = 8;
/// Endings of other libraries' weights.
const OTHERS: [&str; 8] = ["bin", "pt", "pth", "ckpt", "gguf", "h5", "msgpack", "onnx"];

/// The content of an index of several files.
#[derive(Deserialize)]
pub struct Index {
    metadata: Option<Metadata>,
    weight_map: BTreeMap<String, String>,
    #[serde(skip)]
    path: PathBuf,
}

/// The sums in an index; other keys say nothing of the files.
#[derive(Deserialize)]
struct Metadata {
    /// Bytes of all tensors. Some writers made it a number with a point.
    total_size: Option<f64>,
}

/// A file of the model's folder, behind links: caches of downloads are made of them, and the user named the folder.
///
/// # Errors
/// If it is not there.
pub fn real(path: &Path) -> Result<PathBuf, Failure> {
    path.canonicalize().map_err(|error| crate::cli::view::report::named(RunError::io(path)(error)))
}

/// True if a folder has weights where a run would have its records.
pub fn is_released(folder: &Path) -> bool {
    let has = |name: &str| folder.join(name).symlink_metadata().is_ok();
    !has("run.json") && (has(ONE_FILE) || has(INDEX))
}

/// The files of the weights, and the index that names them if there is one.
///
/// # Errors
/// If there are none, one is not there, or the index is none.
pub fn weight_files(folder: &Path) -> Result<(Vec<PathBuf>, Option<Index>), Failure> {
    let (one, index) = (folder.join(ONE_FILE), folder.join(INDEX));
    if one.symlink_metadata().is_ok() {
        return Ok((vec![real(&one)?], None));
    }
    if index.symlink_metadata().is_err() {
        return other_file(folder).map(|path| (vec![path], None));
    }
    let bytes = disk::read(&real(&index)?, INDEX_MAX)?;
    let wrong = |why: String| mistaken::config(&index, &bytes, format!("it is no index of weights: {why}"));
    let content: Index = serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
    let content = Index { path: index.clone(), ..content };
    let mut shards: Vec<&String> = content.weight_map.values().collect();
    shards.sort_unstable();
    shards.dedup();
    let invalid = |why: String| Failure::from(RunError::invalid(&index, why));
    if shards.is_empty() || shards.len() > SHARDS_MAX {
        return Err(invalid(format!("it names {} files; 1 to {SHARDS_MAX} are read", shards.len())));
    }
    if let Some(shard) = shards.iter().find(|shard| !is_plain(shard)) {
        return Err(invalid(format!("{shard:?} is no name of a .safetensors file in the same folder")));
    }
    let absent = shards.iter().filter(|shard| !folder.join(shard).exists());
    let absent: Vec<&str> = absent.map(|shard| shard.as_str()).collect();
    if !absent.is_empty() {
        let (few, more) =
            (absent[..absent.len().min(LISTED)].join(", "), absent.len().saturating_sub(LISTED));
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        let all = shards.len();
        return Err(invalid(format!(
            "these of the {all} files that it names are not in the folder: {few}{more}; download them too"
        )));
    }
    let paths = shards.iter().map(|shard| real(&folder.join(shard))).collect::<Result<_, _>>()?;
    Ok((paths, Some(content)))
}

/// The only .safetensors file of a folder, whatever its name is.
fn other_file(folder: &Path) -> Result<PathBuf, Failure> {
    let entries = fs::read_dir(folder).map_err(RunError::io(folder))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort_unstable();
    let has = |path: &&PathBuf, endings: &[&str]| {
        path.extension().and_then(|ending| ending.to_str()).is_some_and(|ending| endings.contains(&ending))
    };
    let ours: Vec<&PathBuf> = paths.iter().filter(|path| has(path, &["safetensors"])).collect();
    let why = match ours[..] {
        [one] => return real(one),
        [] => match paths.iter().find(|path| has(path, &OTHERS)) {
            Some(other) => {
                let head = real(other).and_then(|path| Ok(mistaken::head(disk::open(&path)?)))?;
                return Err(
                    mistaken::weights(other, &head, "it is no safetensors file, which is wanted").into()
                );
            }
            None => {
                "save the model as safetensors: model.save_pretrained(DIR), or safetensors.torch.save_file(model.state_dict(), FILE)"
            }
        },
        _ => "several other .safetensors files are there: keep the one that is meant in a folder of its own",
    };
    Err(Failure::new(Exit::Usage, format!("{} has neither {ONE_FILE} nor {INDEX}; {why}", folder.display())))
}

/// True if a name leads to a safetensors file in the folder itself.
fn is_plain(name: &str) -> bool {
    let mut components = Path::new(name).components();
    let one = matches!((components.next(), components.next()), (Some(Component::Normal(_)), None));
    one && !name.contains(['/', '\\']) && name.ends_with(".safetensors")
}

/// Checks that every tensor is in the file that the index says, as readers that trust it would look there, and the sum of their
/// bytes.
///
/// # Errors
/// If a tensor is elsewhere, or the sum is another one.
pub fn check_map(files: &WeightFiles, index: &Index) -> Result<(), RunError> {
    let Index { metadata, weight_map: map, path: index } = index;
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
    let total = metadata.as_ref().and_then(|metadata| metadata.total_size);
    // Sums below 2^53 are exact, and no folder has more bytes.
    match total.filter(|&total| total != files.tensor_bytes() as f64) {
        Some(total) => Err(RunError::invalid(
            index,
            format!(
                "metadata.total_size is {total}, the tensors have {} bytes: download index and files anew, or remove the key",
                files.tensor_bytes()
            ),
        )),
        None => Ok(()),
    }
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
}
