//! The environment variables that the code reads are those of docs/ENVIRONMENT.md.

use std::collections::BTreeMap;

use crate::tree::{Finding, Tree};

/// The page of the variables.
const PAGE: &str = "docs/ENVIRONMENT.md";

/// Text before a variable's name, by which a program asks for it.
const ASKED: [&str; 8] =
    ["var(\"", "var_os(\"", "variable(\"", "number(\"", "named(\"", "path(\"", "getenv(\"", "environ.get(\""];

fn of_a_name(c: char) -> bool {
    c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'
}

/// The variables that a text asks for: each that is ours, and others by the call that reads them.
fn read_by(text: &str) -> Vec<&str> {
    // A guard of a header is no variable.
    let lines =
        text.lines().filter(|line| !["#define", "#ifndef", "#ifdef"].iter().any(|d| line.starts_with(d)));
    let mut found = Vec::new();
    // Most lines have neither, and are not taken apart.
    for line in lines.filter(|line| line.contains("TIEBREAK_") || line.contains("(\"")) {
        let words = line.split(|c: char| !of_a_name(c) && !c.is_ascii_lowercase());
        found.extend(words.filter(|word| {
            word.len() > "TIEBREAK_".len() && word.starts_with("TIEBREAK_") && word.chars().all(of_a_name)
        }));
        for call in ASKED {
            let asked = line.split(call).skip(1).filter_map(|rest| rest.split('"').next());
            found.extend(asked.filter(|name| name.len() > 1 && name.chars().all(of_a_name)));
        }
    }
    found
}

/// Variables of the code that the page has not, and such of the page that no code names.
pub fn undocumented(tree: &Tree) -> Vec<Finding> {
    let code = |path: &&String| !path.ends_with(".md") && !path.starts_with("tests/tidy/");
    let sources: Vec<(&String, &String)> = tree.0.iter().filter(|(path, _)| code(path)).collect();
    let mut used: BTreeMap<&str, &str> = BTreeMap::new();
    for (path, text) in &sources {
        used.extend(read_by(text).into_iter().map(|name| (name, path.as_str())));
    }
    let rows = tree.text(PAGE).lines().filter(|line| line.starts_with("| `"));
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    let page: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let missing = used.iter().filter(|(name, _)| !page.contains(name)).map(|(name, path)| Finding {
        key: format!("variable {name}"),
        message: format!("{PAGE} has not the variable {name} of {path}"),
    });
    let named = |name: &str| {
        let is_word = |text: &str| {
            text.split(|c: char| !of_a_name(c) && !c.is_ascii_lowercase()).any(|word| word == name)
        };
        sources.iter().any(|(_, text)| text.contains(name) && is_word(text))
    };
    let unused = page.iter().filter(|name| !named(name)).map(|name| Finding {
        key: format!("variable {name}"),
        message: format!("{PAGE} has the variable {name}, and no code does"),
    });
    missing.chain(unused).collect()
}

#[test]
fn a_variable_of_one_side_alone_is_found() {
    let page = "| variable | values |\n|---|---|\n| `TIEBREAK_A`, `CXX` | any |\n| `TIEBREAK_OLD` | none |\n";
    let source =
        "const A: &str = \"TIEBREAK_A\"; fn f() { env::var(\"CXX\"); env::var_os(\"NEW\"); path(\"a/b\"); }";
    let script = "#define TIEBREAK_GUARD\nx=${TIEBREAK_B:-1}\n";
    let tree = Tree::made_up(&[(PAGE, page), ("src/a.rs", source), ("benches/b.sh", script)]);
    let keys: Vec<String> = undocumented(&tree).into_iter().map(|finding| finding.key).collect();
    assert_eq!(keys, ["variable NEW", "variable TIEBREAK_B", "variable TIEBREAK_OLD"]);
}
