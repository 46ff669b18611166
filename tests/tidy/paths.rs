//! The files and folders that pages name exist.

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
    "proptest-regressions",
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
