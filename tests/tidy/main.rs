//! Promises that a reader relies on: imports point one way, files and functions can be read in one sitting, and no file is
//! unused. Each rule is tested on a small made-up tree beside it, and checked against the repository here.

mod bare;
mod catalogue;
mod dead;
mod domains;
mod environment;
mod errors;
mod imports;
mod modules;
mod paths;
mod rust;
mod sizes;
mod tree;

use tree::{Finding, Tree, base, folder};

fn check(findings: &[Finding]) {
    let wrong: Vec<_> = findings.iter().map(|finding| finding.message.as_str()).collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn imports_go_around_no_circle() {
    let tree = Tree::repository();
    let roots = ["src/lib.rs", "src/main.rs"].map(|root| tree.ending(&format!("/{root}")));
    let crates: Vec<&str> = roots.into_iter().flatten().filter(|path| !path.starts_with("fuzz/")).collect();
    assert!(crates.len() > 10, "{crates:?}");
    let findings = ["src/lib.rs"].into_iter().chain(crates).flat_map(|root| imports::circles(&tree, root));
    check(&findings.collect::<Vec<_>>());
}

#[test]
fn commands_import_no_commands() {
    let tree = Tree::repository();
    // The rule sees the folders: there are edges to judge.
    let folders = ["args", "command", "view"].map(|name| format!("src/cli/{name}"));
    assert!(folders.iter().all(|folder| tree.within(folder, &["rs"]).count() > 5), "{folders:?}");
    check(&imports::command_hairballs(&tree));
}

#[test]
fn pages_name_files_that_are_there() {
    check(&paths::missing(&Tree::repository()));
}

#[test]
fn the_map_names_every_file() {
    check(&paths::unmapped(&Tree::repository()));
}

#[test]
fn runs_are_read_through_their_stores() {
    check(&imports::runs_past_their_store(&Tree::repository()));
}

#[test]
fn nothing_lies_about_unused() {
    let tree = Tree::repository();
    check(&dead::unreached(&tree));
    check(&dead::unnamed(&tree));
}

#[test]
fn domains_stand_on_their_page() {
    check(&domains::undocumented(&Tree::repository()));
}

#[test]
fn variables_stand_on_their_page() {
    check(&environment::undocumented(&Tree::repository()));
}

#[test]
fn files_can_be_read_in_one_sitting() {
    let tree = Tree::repository();
    check(&sizes::long_files(&tree));
    check(&sizes::without_subject(&tree));
}

#[test]
fn functions_can_be_read_at_once() {
    check(&sizes::long_functions(&Tree::repository()));
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
