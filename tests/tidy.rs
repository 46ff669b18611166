//! Promises that a reader relies on: imports point upwards, files can be read in one sitting, nothing is left open.

use std::fs;
use std::path::{Path, PathBuf};

/// The modules in the order of ARCHITECTURE.md: each may import those before it, and itself.
const ORDER: [&str; 10] =
    ["arith", "program", "shaders", "engine", "commit", "rounding", "run", "train", "dispute", "audit"];

/// The most lines of a file.
const LINES_MAX: usize = 600;

fn sources(folder: &str, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| extensions.iter().any(|x| e == *x)) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

#[test]
fn imports_point_upwards() {
    let mut wrong = Vec::new();
    for (place, module) in ORDER.iter().enumerate() {
        let folder = format!("src/{module}");
        for path in sources(&folder, &["rs"]) {
            let text = fs::read_to_string(&path).unwrap();
            // Tests inside a module may look anywhere.
            let code = text.split("#[cfg(test)]").next().unwrap_or("");
            for below in ORDER[place + 1..].iter().chain(&["cli"]) {
                if code.contains(&format!("crate::{below}::")) {
                    wrong.push(format!("{} imports {below}", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn files_can_be_read_in_one_sitting() {
    let mut wrong = Vec::new();
    for (folder, extensions) in
        [("src", &["rs"][..]), ("tests", &["rs"]), ("benches", &["rs"]), ("shaders", &["wgsl"])]
    {
        for path in sources(folder, extensions) {
            let text = fs::read_to_string(&path).unwrap();
            let lines = text.lines().count();
            if lines > LINES_MAX {
                wrong.push(format!("{}: {lines} lines", path.display()));
            }
            if path.extension().is_some_and(|e| e == "rs") && !text.starts_with("//!") {
                wrong.push(format!("{} does not say what it is for", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn shaders_name_their_operator() {
    // A kernel's stem is a primitive's name, or such a name with a variant's.
    for path in sources("shaders", &["wgsl"]) {
        if path.parent().unwrap().ends_with("shared") || path.parent().unwrap().ends_with("native") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let stem = path.file_stem().unwrap().to_string_lossy().replace("_long", "").replace("_words", "");
        assert!(text.contains(&format!("{stem}.v1")), "{} does not name {stem}.v1", path.display());
    }
}
