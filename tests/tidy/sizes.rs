//! Files and functions can be read in one sitting, and a file states its purpose.

use crate::rust;
use crate::tree::{Finding, Tree};

/// The most lines of a file.
pub const FILE_LINES: usize = 600;
/// The most lines of a function.
pub const FUNCTION_LINES: usize = 70;

const CODE: [&str; 6] = ["rs", "wgsl", "cuh", "cpp", "h", "py"];

/// Files of code above [`FILE_LINES`].
pub fn long_files(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in &tree.0 {
        let lines = text.lines().count();
        if CODE.iter().any(|e| path.ends_with(&format!(".{e}"))) && lines > FILE_LINES {
            let key = format!("file {path}");
            findings.push(Finding { message: format!("{key} has {lines} lines"), key });
        }
    }
    findings
}

/// Rust files that do not begin with their purpose.
pub fn without_subject(tree: &Tree) -> Vec<Finding> {
    let rust = tree.0.iter().filter(|(path, _)| path.ends_with(".rs") && !path.starts_with("fuzz/"));
    rust.filter(|(_, text)| !text.starts_with("//!"))
        .map(|(path, _)| Finding {
            key: format!("subject {path}"),
            message: format!("{path} does not say what it is for"),
        })
        .collect()
}

/// Functions above [`FUNCTION_LINES`]; tests in the same file as their code are not counted.
pub fn long_functions(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.0.iter().filter(|(path, _)| path.ends_with(".rs")) {
        for function in &rust::read(path, text).functions {
            if function.lines > FUNCTION_LINES {
                let key = format!("function {path}: {}", function.name);
                findings.push(Finding { message: format!("{key} has {} lines", function.lines), key });
            }
        }
    }
    findings
}

#[test]
fn long_files_and_functions_are_found() {
    let body =
        |lines: usize| format!("//! x\nimpl X {{\n    fn f() {{\n{}    }}\n}}\n", "g();\n".repeat(lines));
    let (short, long) = (body(FUNCTION_LINES - 2), body(FUNCTION_LINES - 1));
    let most = "// x\n".repeat(FILE_LINES);
    let more = "// x\n".repeat(FILE_LINES + 1);
    let tree = Tree::made_up(&[
        ("src/short.rs", &short),
        ("src/long.rs", &long),
        ("shaders/most.wgsl", &most),
        ("k/more.cuh", &more),
        ("docs/more.md", &more),
        ("src/no_subject.rs", "fn f() {}"),
    ]);
    let keys = |findings: Vec<Finding>| findings.into_iter().map(|f| f.key).collect::<Vec<_>>();
    assert_eq!(keys(long_functions(&tree)), ["function src/long.rs: f"]);
    assert_eq!(keys(long_files(&tree)), ["file k/more.cuh"]);
    assert_eq!(keys(without_subject(&tree)), ["subject src/no_subject.rs"]);
}
