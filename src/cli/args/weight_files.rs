//! The folder of a released model, here or at an address, and the files that are its weights: one, or those that an index names.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;

use crate::cli::args::place::file_at;
use crate::cli::view::report::{Exit, Failure};
use tiebreak_run::run::companions::Companions;
use tiebreak_run::run::weights::WeightFiles;
use tiebreak_run::run::{RunError, Store, Stored, disk, mistaken};

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
    /// The path of each file that it names.
    #[serde(skip)]
    places: BTreeMap<String, PathBuf>,
}

/// The sums in an index; other keys say nothing of the files.
#[derive(Deserialize)]
struct Metadata {
    /// Bytes of all tensors. Some writers made it a number with a point.
    total_size: Option<f64>,
}

/// The folder of a released model. Nobody vouches for what is in it.
pub struct ModelFolder {
    path: PathBuf,
    /// The store, if the folder is at an address. Files are asked for by their names, since nothing lists them.
    store: Option<Arc<dyn Store>>,
}

impl ModelFolder {
    /// The folder at a path or at an address. Nothing is asked of an address yet.
    ///
    /// # Errors
    /// If this build reads no address of that kind.
    pub fn at(place: &Path) -> Result<ModelFolder, RunError> {
        if !tiebreak_remote::is_address(place) {
            return Ok(ModelFolder { path: place.to_path_buf(), store: None });
        }
        let address = place.to_string_lossy();
        let address = address.trim_end_matches('/');
        Ok(ModelFolder { path: address.into(), store: Some(tiebreak_remote::open_files(address)?) })
    }

    /// The folder's path, or its address.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True if it is at an address.
    pub fn is_elsewhere(&self) -> bool {
        self.store.is_some()
    }

    /// The file of this name, if it is there. One here is the file behind links.
    ///
    /// # Errors
    /// If a link leads nowhere.
    pub fn file(&self, name: &str) -> Result<Option<Stored>, Failure> {
        match &self.store {
            Some(store) => Ok(Some(Stored::new(store, &self.path, name)).filter(Stored::is_here)),
            None => {
                let path = self.path.join(name);
                let is_there = path.symlink_metadata().is_ok();
                is_there.then(|| Ok(Stored::from(&real(&path)?))).transpose()
            }
        }
    }

    /// The bytes of the file of this name, at most so many, if it is there.
    ///
    /// # Errors
    /// As [`ModelFolder::file`], and if the file is larger or cannot be read.
    pub fn read(&self, name: &str, most: u64) -> Result<Option<Vec<u8>>, Failure> {
        Ok(self.file(name)?.map(|file| file.read(most)).transpose()?)
    }

    /// The files beside the weights: configuration, tokenizer.
    ///
    /// # Errors
    /// As [`Companions::released`] and [`Companions::released_at`].
    pub fn companions(&self) -> Result<Companions, RunError> {
        match &self.store {
            Some(store) => Companions::released_at(store, &self.path),
            None => Companions::released(&self.path),
        }
    }
}

/// The tokenizer at a path, or at an address: that of a folder, unless the address ends as a .json file's does.
///
/// # Errors
/// If this build reads no address of that kind, or a file at it or beside it cannot be read.
pub fn tokenizer_at(place: &Path) -> Result<(PathBuf, Companions), Failure> {
    let found = match (tiebreak_remote::is_address(place), place.to_string_lossy().ends_with(".json")) {
        (true, true) => Companions::tokenizer(&file_at(place)?)?,
        (true, false) => ModelFolder::at(place)?.companions()?,
        (false, _) if place.is_dir() => Companions::released(place)?,
        (false, _) => Companions::default(),
    };
    Ok((place.to_path_buf(), found))
}

/// True if a place names one file of weights, and not a folder: a file here, or an address that ends as one of safetensors does.
pub fn is_one_file(place: &Path) -> bool {
    match tiebreak_remote::is_address(place) {
        true => place.to_string_lossy().ends_with(".safetensors"),
        false => !place.is_dir(),
    }
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
pub fn weight_files(folder: &ModelFolder) -> Result<(Vec<Stored>, Option<Index>), Failure> {
    if let Some(one) = folder.file(ONE_FILE)? {
        return Ok((vec![one], None));
    }
    let Some(bytes) = folder.read(INDEX, INDEX_MAX)? else {
        return other_file(folder).map(|file| (vec![file], None));
    };
    let index = folder.path.join(INDEX);
    let wrong = |why: String| mistaken::config(&index, &bytes, format!("it is no index of weights: {why}"));
    let content: Index = serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
    let mut shards: Vec<String> = content.weight_map.values().cloned().collect();
    shards.sort_unstable();
    shards.dedup();
    let invalid = |why: String| Failure::from(RunError::invalid(&index, why));
    if shards.is_empty() || shards.len() > SHARDS_MAX {
        return Err(invalid(format!("it names {} files; 1 to {SHARDS_MAX} are read", shards.len())));
    }
    if let Some(shard) = shards.iter().find(|shard| !is_plain(shard)) {
        return Err(invalid(format!("{shard:?} is no name of a .safetensors file in the same folder")));
    }
    let (mut files, mut places, mut absent) = (Vec::new(), BTreeMap::new(), Vec::new());
    for shard in &shards {
        match folder.file(shard).ok().flatten() {
            None => absent.push(shard.as_str()),
            Some(file) => {
                places.insert(shard.clone(), file.path().to_path_buf());
                files.push(file);
            }
        }
    }
    if !absent.is_empty() {
        let (few, more) =
            (absent[..absent.len().min(LISTED)].join(", "), absent.len().saturating_sub(LISTED));
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        let (all, help) = (shards.len(), if folder.is_elsewhere() { "publish" } else { "download" });
        return Err(invalid(format!(
            "these of the {all} files that it names are not in the folder: {few}{more}; {help} them too"
        )));
    }
    Ok((files, Some(Index { path: index, places, ..content })))
}

/// The only .safetensors file of a folder, whatever its name is.
fn other_file(folder: &ModelFolder) -> Result<Stored, Failure> {
    let place = folder.path.display();
    if folder.is_elsewhere() {
        let why = format!("{place} has neither {ONE_FILE} nor {INDEX}, and no server lists others");
        return Err(Failure::new(Exit::Usage, why)
            .help("name the address of the folder with one of them, or that of a .safetensors file"));
    }
    let entries = fs::read_dir(&folder.path).map_err(RunError::io(&folder.path))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort_unstable();
    let has = |path: &&PathBuf, endings: &[&str]| {
        path.extension().and_then(|ending| ending.to_str()).is_some_and(|ending| endings.contains(&ending))
    };
    let ours: Vec<&PathBuf> = paths.iter().filter(|path| has(path, &["safetensors"])).collect();
    let why = match ours[..] {
        [one] => return Ok(Stored::from(&real(one)?)),
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
    Err(Failure::new(Exit::Usage, format!("{place} has neither {ONE_FILE} nor {INDEX}; {why}")))
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
    let Index { metadata, weight_map: map, path: index, places } = index;
    let mut listed = 0;
    for (name, path) in files.names() {
        let there = map.get(name).and_then(|file| places.get(file));
        if there.map(PathBuf::as_path) != Some(path) {
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
