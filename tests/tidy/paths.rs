//! The files and folders that pages name exist, and the map of files names every file.

use std::collections::BTreeSet;

use crate::tree::{Finding, Tree, folder};

/// The folders at the top, by which a path is told from other words.
const TOPS: [&str; 15] = [
    ".ci",
    "assets",
    "benches",
    "crates",
    "cuda-bridge",
    "docs",
    "examples",
    "fuzz",
    "machine-code",
    "proofs",
    "python",
    "shaders",
    "src",
    "tests",
    "tiebreak-import",
];

/// Words in back quotes on pages that begin like paths, but lead to no file. Paths are from the top or from the page's folder,
/// and a star stands for any name.
pub fn missing(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (page, text) in tree.0.iter().filter(|(path, _)| path.ends_with(".md")) {
        for word in text.split('`').skip(1).step_by(2).flat_map(str::split_whitespace) {
            let word = word.trim_end_matches(['/', '.', ',', ':', ')']);
            findings.extend(missing_test(tree, page, word));
            let Some((top, rest)) = word.split_once('/') else { continue };
            let is_path = |c: char| c.is_ascii_alphanumeric() || "._-/*".contains(c);
            if !TOPS.contains(&top)
                || !rest.chars().all(is_path)
                || is_there(tree, word)
                || is_there(tree, &format!("{}/{word}", folder(page)))
            {
                continue;
            }
            let message = format!("{page} names {word}, which is not there");
            findings.push(Finding { key: format!("path {word} in {page}"), message });
        }
    }
    findings
}

/// The map of files, which `.ci/files.py` prints.
const MAP: &str = "docs/FILES.md";

/// Files of code, and scripts of `.ci`, that have no row on the map. Rows of lost files are found by [`missing`].
pub fn unmapped(tree: &Tree) -> Vec<Finding> {
    let rows: BTreeSet<&str> =
        tree.text(MAP).lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let code = |path: &str| {
        let kinds = ["rs", "wgsl", "cuh", "cpp", "h", "py", "sh"];
        path.starts_with(".ci/") || path.rsplit_once('.').is_some_and(|(_, kind)| kinds.contains(&kind))
    };
    let lost = tree.0.keys().filter(|path| code(path) && !rows.contains(path.as_str()));
    lost.map(|path| Finding {
        key: format!("unmapped {path}"),
        message: format!("{MAP} does not name {path}: run `.ci/files.py > {MAP}`"),
    })
    .collect()
}

/// A test that a page names as `FILE.rs::NAME`, if no such test is there.
fn missing_test(tree: &Tree, page: &str, word: &str) -> Option<Finding> {
    let (file, name) = word.split_once(".rs::")?;
    let file = format!("{file}.rs");
    // Its attributes stand right before it.
    let is_test = |text: &String| {
        let (before, _) = text.split_once(&format!("fn {name}("))?;
        Some(before[before.rfind("}\n").unwrap_or(0)..].contains("#[test]"))
    };
    let found = tree.0.get(&file).and_then(is_test).unwrap_or(false);
    let message = format!("{page} names the test {word}, which is not there");
    (!found).then(|| Finding { key: format!("test {word} in {page}"), message })
}

/// True if a file or folder has this path.
fn is_there(tree: &Tree, path: &str) -> bool {
    let (start, end) = path.split_once('*').unwrap_or((path, ""));
    tree.0.keys().any(|file| {
        let Some(rest) = file.strip_prefix(start) else { return false };
        if path.contains('*') { rest.contains(end) } else { rest.is_empty() || rest.starts_with('/') }
    })
}

#[test]
fn paths_that_lead_nowhere_are_found() {
    let page = "Look at `src/a.rs`, `src/`, `tests/*.rs`, `cargo run --bench src/lost.rs` and `docs/LOST.md`; `a/b` is none, `src/{x}` neither.";
    let tree = Tree::made_up(&[("docs/PAGE.md", page), ("src/a.rs", ""), ("tests/t.rs", "")]);
    let keys: Vec<String> = missing(&tree).into_iter().map(|finding| finding.key).collect();
    assert_eq!(keys, ["path src/lost.rs in docs/PAGE.md", "path docs/LOST.md in docs/PAGE.md"]);
}

#[test]
fn files_that_the_map_lacks_are_found() {
    let map = "`src/prose.rs` is no row\n| `src/a.rs` | the letter a |\n";
    let files = [(MAP, map), ("src/a.rs", ""), ("src/prose.rs", ""), (".ci/run", ""), ("docs/PAGE.md", "")];
    let keys: Vec<String> = unmapped(&Tree::made_up(&files)).into_iter().map(|finding| finding.key).collect();
    assert_eq!(keys, ["unmapped .ci/run", "unmapped src/prose.rs"]);
}

#[test]
fn tests_that_are_not_there_are_found() {
    let page =
        "`tests/t.rs::right`, `tests/t.rs::helper`, `tests/t.rs::lost`, `tests/u.rs::right`, `std::fs`";
    let tests = "#[test]\n#[ignore]\nfn right() {\n}\nfn helper() {\n}\n";
    let tree = Tree::made_up(&[("docs/PAGE.md", page), ("tests/t.rs", tests)]);
    let keys: Vec<String> = missing(&tree).into_iter().map(|finding| finding.key).collect();
    let expected = ["tests/t.rs::helper", "tests/t.rs::lost", "tests/u.rs::right"];
    assert_eq!(keys, expected.map(|test| format!("test {test} in docs/PAGE.md")));
}
