//! Promises that a reader relies on: imports point one way, files and functions can be read in one sitting, nothing lies about unused.
//! Each rule is tested on a small made-up tree beside it, and held against the repository here.

mod dead;
mod domains;
mod imports;
mod modules;
mod paths;
mod rust;
mod sizes;
mod tree;

use std::collections::BTreeSet;

use tree::{Finding, Tree, base, folder};

/// Functions above the limit that are better whole, each with why.
const WHOLE: &[(&str, &str)] = &[];

/// Fails for each finding that the list does not allow, and for each entry of it that begins with `rule` and is no finding.
fn check(findings: &[Finding], rule: &str) {
    let listed = || WHOLE.iter().map(|(key, _)| *key);
    let wrong: Vec<_> = findings.iter().filter(|f| !listed().any(|key| key == f.key)).collect();
    let wrong: Vec<_> = wrong.iter().map(|finding| finding.message.as_str()).collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    let found: BTreeSet<&str> = findings.iter().map(|f| f.key.as_str()).collect();
    let stale: Vec<_> = listed().filter(|key| key.starts_with(rule) && !found.contains(key)).collect();
    assert!(stale.is_empty(), "no longer so, and must be taken off the list: {stale:#?}");
}

#[test]
fn imports_go_around_no_circle() {
    let tree = Tree::repository();
    let roots = ["src/lib.rs", "src/main.rs"].map(|root| tree.ending(&format!("/{root}")));
    let crates: Vec<&str> = roots.into_iter().flatten().filter(|path| !path.starts_with("fuzz/")).collect();
    assert!(crates.len() > 10, "{crates:?}");
    let findings = ["src/lib.rs"].into_iter().chain(crates).flat_map(|root| imports::circles(&tree, root));
    check(&findings.collect::<Vec<_>>(), "circle ");
}

#[test]
fn commands_import_no_commands() {
    let tree = Tree::repository();
    // The rule sees the folders: there are edges to judge.
    let folders = ["args", "command", "view"].map(|name| format!("src/cli/{name}"));
    assert!(folders.iter().all(|folder| tree.within(folder, &["rs"]).count() > 5), "{folders:?}");
    check(&imports::command_hairballs(&tree), "command ");
}

#[test]
fn pages_name_files_that_are_there() {
    check(&paths::missing(&Tree::repository()), "path ");
}

#[test]
fn the_bridge_knows_no_verifier() {
    check(&imports::bridge_knows_no_verifier(&Tree::repository()), "bridge ");
}

#[test]
fn runs_are_read_through_their_stores() {
    check(&imports::runs_past_their_store(&Tree::repository()), "store ");
}

#[test]
fn nothing_lies_about_unused() {
    let tree = Tree::repository();
    check(&dead::unreached(&tree), "unreached ");
    check(&dead::unnamed(&tree), "unnamed ");
}

#[test]
fn domains_stand_on_their_page() {
    check(&domains::undocumented(&Tree::repository()), "domain ");
}

#[test]
fn files_can_be_read_in_one_sitting() {
    let tree = Tree::repository();
    check(&sizes::long_files(&tree), "file ");
    check(&sizes::without_subject(&tree), "subject ");
}

#[test]
fn functions_can_be_read_at_once() {
    check(&sizes::long_functions(&Tree::repository()), "function ");
}

#[test]
fn shaders_name_their_operator() {
    let tree = Tree::repository();
    // A kernel's stem is a primitive's name, or such a name with a variant's.
    for path in tree.within("shaders", &["wgsl"]) {
        if folder(path) == "shaders" {
            let stem = base(path).trim_end_matches(".wgsl").replace("_long", "").replace("_words", "");
            assert!(tree.text(path).contains(&format!("{stem}.v1")), "{path} does not name {stem}.v1");
        }
    }
}
