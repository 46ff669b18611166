//! The strings that separate hashes and signatures are those of docs/DOMAINS.md.

use std::collections::BTreeMap;

use crate::rust;
use crate::tree::{Finding, Tree};

/// The page of the strings.
const PAGE: &str = "docs/DOMAINS.md";

/// Strings of the source that the page lacks, and strings of the page that the source lacks.
pub fn undocumented(tree: &Tree) -> Vec<Finding> {
    let mut used: BTreeMap<String, &str> = BTreeMap::new();
    let verifier = |path: &&String| path.starts_with("crates/") && path.ends_with(".rs");
    for (path, text) in tree.0.iter().filter(|(path, _)| verifier(path)) {
        for string in &rust::read(path, text).strings {
            if ["tiebreak ", "tiebreak/", "cosignature/"].iter().any(|start| string.starts_with(start)) {
                let domain = string.split(['\\', '{']).next().unwrap_or_default();
                used.insert(domain.to_string(), path);
            }
        }
    }
    let page: Vec<&str> =
        tree.text(PAGE).lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let missing = used.iter().filter(|(domain, _)| !page.contains(&domain.as_str())).map(|(domain, path)| {
        Finding { key: format!("domain {domain}"), message: format!("{PAGE} has not {domain:?} of {path}") }
    });
    let unused = page.iter().filter(|domain| !used.contains_key(**domain)).map(|domain| Finding {
        key: format!("domain {domain}"),
        message: format!("{PAGE} has {domain:?}, and no source does"),
    });
    missing.chain(unused).collect()
}

#[test]
fn a_domain_of_one_side_alone_is_found() {
    let page =
        "| string | of what |\n|---|---|\n| `tiebreak 2 job` | the job |\n| `tiebreak 2 old` | nothing |\n";
    let source = "fn f() { hash(\"tiebreak 2 job\"); sign(b\"tiebreak 2 new\\n\"); }";
    let command = "const HELP: &str = \"tiebreak train job.toml\";";
    let tree = Tree::made_up(&[(PAGE, page), ("crates/x/src/a.rs", source), ("src/cli/b.rs", command)]);
    let keys: Vec<String> = undocumented(&tree).into_iter().map(|finding| finding.key).collect();
    assert_eq!(keys, ["domain tiebreak 2 new", "domain tiebreak 2 old"]);
}
