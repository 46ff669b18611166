//! Files that no other file names.

use std::collections::{BTreeMap, BTreeSet};

use crate::modules::Crate;
use crate::rust;
use crate::tree::{Finding, Tree, base, folder};

/// Rust files that no Cargo target reaches by `mod`.
pub fn unreached(tree: &Tree) -> Vec<Finding> {
    let mut reached = BTreeSet::new();
    for root in roots(tree) {
        reached.extend(Crate::of(tree, &root).modules.into_values().map(|source| source.file));
    }
    let rust = tree.0.keys().filter(|path| path.ends_with(".rs"));
    let dead = rust.filter(|path| !reached.contains(*path));
    dead.map(|path| Finding {
        key: format!("unreached {path}"),
        message: format!("no target of Cargo's has {path}"),
    })
    .collect()
}

/// The root files of Cargo's targets: those that Cargo finds by itself, and those that a manifest names.
fn roots(tree: &Tree) -> Vec<String> {
    let mut roots = Vec::new();
    for manifest in tree.0.keys().filter(|path| base(path) == "Cargo.toml") {
        let home = folder(manifest);
        let at = |path: &str| if home.is_empty() { path.to_string() } else { format!("{home}/{path}") };
        roots.extend(["src/lib.rs", "src/main.rs", "build.rs"].map(at));
        for kind in ["tests", "benches", "examples"] {
            let files = tree.0.keys().filter(|path| folder(path) == at(kind) && path.ends_with(".rs"));
            roots.extend(files.cloned());
            let inside = |path: &&String| base(path) == "main.rs" && folder(folder(path)) == at(kind);
            roots.extend(tree.0.keys().filter(inside).cloned());
        }
        for line in tree.text(manifest).lines() {
            if let Some(path) = line.strip_prefix("path = \"").and_then(|rest| rest.strip_suffix('"')) {
                roots.push(at(path));
            }
        }
    }
    roots.retain(|path| tree.0.contains_key(path));
    roots
}

/// Shaders, CUDA and C++ texts that no code includes or names in a string; scripts that no file names at all.
pub fn unnamed(tree: &Tree) -> Vec<Finding> {
    let strings: BTreeMap<&str, &Vec<String>> = tree
        .0
        .iter()
        .filter(|(path, _)| path.ends_with(".rs"))
        .map(|(path, text)| (path.as_str(), &rust::read(path, text).strings))
        .collect();
    let including = |line: &&str| line.starts_with("#include") || line.starts_with("//!include");
    let includes: BTreeMap<&str, Vec<&str>> =
        tree.0.iter().map(|(path, text)| (path.as_str(), text.lines().filter(including).collect())).collect();
    let in_code = |name: &str, own: &str| {
        let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
        let in_rust = strings.values().copied().flatten().any(|string| {
            string == stem && name.ends_with(".wgsl")
                || string.strip_suffix(name).is_some_and(|folder| folder.is_empty() || folder.ends_with('/'))
        });
        let is_include = |line: &&str| line.trim_end_matches('"').ends_with(name);
        in_rust || includes.iter().any(|(path, lines)| *path != own && lines.iter().any(is_include))
    };
    let anywhere =
        |name: &str, own: &str| tree.0.iter().any(|(path, text)| path != own && text.contains(name));
    let mut findings = Vec::new();
    for path in tree.0.keys() {
        let name = base(path);
        let named = match name.rsplit_once('.') {
            Some((_, "wgsl" | "cuh" | "cpp" | "h")) => in_code(name, path),
            Some((_, "py" | "sh")) => anywhere(name, path),
            // Scripts of `.ci` have no extension.
            None if folder(path) == ".ci" => anywhere(path, path),
            _ => true,
        };
        if !named {
            findings
                .push(Finding { key: format!("unnamed {path}"), message: format!("nothing names {path}") });
        }
    }
    findings
}

#[test]
fn files_that_no_target_has_are_found() {
    let mut files = vec![
        ("Cargo.toml", "[[bench]]\nname = \"b\""),
        ("fuzz/Cargo.toml", "[[bin]]\npath = \"targets/t.rs\""),
        ("src/lib.rs", "mod a; mod inner { mod c; }"),
        ("src/a.rs", "#[cfg(test)] mod tests;"),
        ("src/a/tests.rs", ""),
        ("src/inner/c.rs", ""),
        ("benches/b.rs", "#[path = \"common/x.rs\"] mod x;"),
        ("benches/common/x.rs", ""),
        ("tests/t/main.rs", "mod other;"),
        ("tests/t/other.rs", ""),
        ("fuzz/targets/t.rs", ""),
    ];
    assert_eq!(unreached(&Tree::made_up(&files)), []);
    files.extend([("src/b.rs", ""), ("tests/t/lost.rs", ""), ("fuzz/targets/u.rs", "")]);
    let keys: Vec<String> = unreached(&Tree::made_up(&files)).into_iter().map(|f| f.key).collect();
    assert_eq!(
        keys,
        ["fuzz/targets/u.rs", "src/b.rs", "tests/t/lost.rs"].map(|path| format!("unreached {path}"))
    );
}

#[test]
fn texts_that_nothing_names_are_found() {
    let mut files = vec![
        ("src/lib.rs", "fn f() { pipeline(\"kernel\"); include_str!(\"../k/text.cuh\") }"),
        ("shaders/kernel.wgsl", "//!include shared/part.wgsl"),
        ("shaders/shared/part.wgsl", ""),
        ("k/text.cuh", "#include \"more.h\""),
        ("k/more.h", ""),
        ("README.md", "run tool.py, then .ci/run"),
        ("tool.py", "tool.py"),
        (".ci/run", ""),
    ];
    assert_eq!(unnamed(&Tree::made_up(&files)), []);
    files.extend([
        ("shaders/lost.wgsl", "// lost.wgsl"),
        ("k/lost.cpp", "// mentions lost.wgsl"),
        ("lost.sh", ""),
        (".ci/lost", ""),
    ]);
    let keys: Vec<String> = unnamed(&Tree::made_up(&files)).into_iter().map(|f| f.key).collect();
    assert_eq!(
        keys,
        [".ci/lost", "k/lost.cpp", "lost.sh", "shaders/lost.wgsl"].map(|path| format!("unnamed {path}"))
    );
}
