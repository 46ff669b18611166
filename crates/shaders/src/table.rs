//! The build script's half: composes the verifier's shaders, and emits one sorted table of them.

#[path = "compose.rs"]
mod compose;

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

/// (name, text) of every WGSL file of a folder, sorted; names are prefixed.
fn files(folder: &Path, prefix: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("the shaders' folder is there") {
        let path = entry.expect("its entries can be read").path();
        if path.extension().is_some_and(|e| e == "wgsl") {
            let name = path.file_name().expect("files have names").to_string_lossy().into_owned();
            found.push((format!("{prefix}{name}"), fs::read_to_string(&path).expect("shaders are UTF-8")));
        }
    }
    found.sort();
    found
}

/// Writes `shaders.rs` to cargo's `OUT_DIR`. An include of a file that does not exist is an error of the build.
pub fn build() {
    println!("cargo::rerun-if-changed=../../shaders");
    println!("cargo::rerun-if-changed=src");
    let shared = files(Path::new("../../shaders/shared"), "shared/");
    let lookup = |name: &str| shared.iter().find(|(n, _)| n == name).map(|(_, text)| text.as_str());
    let mut table = String::from("static SHADERS: &[(&str, &str)] = &[\n");
    let mut failed = false;
    for (file, text) in files(Path::new("../../shaders"), "") {
        let text = match compose::compose(&file, &text, &lookup) {
            Ok(text) => text,
            Err(error) => {
                println!("cargo::error={error}");
                failed = true;
                continue;
            }
        };
        let name = file.trim_end_matches(".wgsl");
        writeln!(table, "    ({name:?}, {text:?}),").expect("writing to a string");
    }
    table.push_str("];\nstatic NATIVE: &[(&str, &str)] = &[\n");
    for (file, text) in files(Path::new("../../shaders/native"), "") {
        writeln!(table, "    ({:?}, {text:?}),", file.trim_end_matches(".wgsl"))
            .expect("writing to a string");
    }
    table.push_str("];\nstatic SHARED: &[(&str, &str)] = &[\n");
    for (file, text) in &shared {
        writeln!(table, "    ({file:?}, {text:?}),").expect("writing to a string");
    }
    table.push_str("];\n");
    if !failed {
        let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
        fs::write(Path::new(&out).join("shaders.rs"), table).expect("OUT_DIR can be written");
    }
}
