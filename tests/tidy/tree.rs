//! The repository's files as texts, or a made-up tree for the test of a rule.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Texts by their path from the repository's root.
pub struct Tree(pub BTreeMap<String, String>);

/// An objection of a rule.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    /// The name of the finding, without line numbers.
    pub key: String,
    pub message: String,
}

/// Folders and files that people wrote; a build adds none of its own.
const PLACES: [&str; 23] = [
    ".ci",
    "assets",
    "benches",
    "crates",
    "cuda-bridge",
    "docs",
    "fuzz/Cargo.toml",
    "fuzz/fuzz_targets",
    "machine-code",
    "proofs",
    "python",
    "shaders",
    "src",
    "tests",
    "tiebreak-import",
    "Cargo.toml",
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "STYLE.md",
    "examples",
];

/// Extensions of texts that contain names of files; the empty one is for scripts of `.ci`.
const TEXTS: [&str; 10] = ["", "rs", "wgsl", "cuh", "cpp", "h", "py", "sh", "toml", "md"];

impl Tree {
    /// The repository.
    pub fn repository() -> Tree {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut files = BTreeMap::new();
        let mut open: Vec<_> = PLACES.iter().map(|place| root.join(place)).collect();
        while let Some(path) = open.pop() {
            if path.is_dir() {
                if path.file_name().is_some_and(|name| name != "target") {
                    open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                }
            } else {
                let name = path.strip_prefix(root).unwrap().to_string_lossy().replace('\\', "/");
                let is_text = TEXTS.iter().any(|e| path.extension().unwrap_or_default() == *e);
                files.insert(name, if is_text { fs::read_to_string(&path).unwrap() } else { String::new() });
            }
        }
        Tree(files)
    }

    pub fn made_up(files: &[(&str, &str)]) -> Tree {
        Tree(files.iter().map(|(path, text)| (path.to_string(), text.to_string())).collect())
    }

    pub fn text(&self, path: &str) -> &str {
        self.0.get(path).unwrap_or_else(|| panic!("{path} is not there"))
    }

    /// Paths with this end.
    pub fn ending<'a>(&'a self, end: &str) -> Vec<&'a str> {
        self.0.keys().map(String::as_str).filter(|path| path.ends_with(end)).collect()
    }

    /// Paths in a folder, at any depth, with one of the extensions.
    pub fn within<'a>(&'a self, folder: &'a str, extensions: &'a [&'a str]) -> impl Iterator<Item = &'a str> {
        let below = move |path: &str| path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
        let kind =
            |path: &str| extensions.iter().any(|e| path.rsplit_once('.').is_some_and(|(_, x)| x == *e));
        self.0.keys().map(String::as_str).filter(move |path| below(path) && kind(path))
    }
}

/// The file's name without folders.
pub fn base(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// The folder of a path; empty at the root.
pub fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}
