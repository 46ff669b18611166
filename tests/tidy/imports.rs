//! Imports point one way: Cargo ensures it between crates; this rule ensures that a folder has no circle.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::modules::Crate;
use crate::rust;
use crate::tree::{Finding, Tree};

/// In each folder, files and subfolders import each other around no circle.
pub fn circles(tree: &Tree, root: &str) -> Vec<Finding> {
    let found = Crate::of(tree, root);
    // By folder (a module's path): the imports among its files and subfolders, each with an example.
    let mut graphs: BTreeMap<Vec<String>, Graph> = BTreeMap::new();
    for edge in found.edges() {
        let shared = edge.from.iter().zip(&edge.to).take_while(|(a, b)| a == b).count();
        // A folder's own file (mod.rs) is one of its files.
        let own = "mod.rs".to_string();
        let [from, to] = [&edge.from, &edge.to].map(|path| path.get(shared).unwrap_or(&own).clone());
        let graph = graphs.entry(edge.from[..shared].to_vec()).or_default();
        graph.entry(from).or_default().entry(to).or_insert(edge.place);
    }
    let mut findings = Vec::new();
    for (folder, graph) in graphs {
        let home = root.trim_end_matches("/lib.rs").trim_end_matches("/main.rs").to_string();
        let folder = [vec![home], folder].concat().join("/");
        findings.extend(circles_of(&folder, &graph));
    }
    findings
}

type Graph = BTreeMap<String, BTreeMap<String, String>>;

/// The shortest circle through each node that no circle before went through.
fn circles_of(folder: &str, graph: &Graph) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut seen = BTreeSet::new();
    for start in graph.keys() {
        if seen.contains(start) {
            continue;
        }
        let Some(circle) = circle_through(graph, start) else { continue };
        seen.extend(circle.iter().cloned());
        let key = format!("circle in {folder}");
        let mut message = format!("{key}: {} -> {start}", circle.join(" -> "));
        for (i, from) in circle.iter().enumerate() {
            let to = &circle[(i + 1) % circle.len()];
            message.push_str(&format!("\n    {}", graph[from][to]));
        }
        findings.push(Finding { key, message });
    }
    findings
}

/// The shortest circle from a node to itself.
fn circle_through(graph: &Graph, start: &str) -> Option<Vec<String>> {
    let mut before: BTreeMap<&str, &str> = BTreeMap::new();
    let mut open = VecDeque::from([start]);
    while let Some(node) = open.pop_front() {
        for next in graph.get(node).into_iter().flat_map(|to| to.keys()) {
            if next == start {
                let mut circle = vec![node.to_string()];
                while circle[circle.len() - 1] != start {
                    circle.push(before[circle[circle.len() - 1].as_str()].to_string());
                }
                circle.reverse();
                return Some(circle);
            }
            if !before.contains_key(next.as_str()) {
                before.insert(next, node);
                open.push_back(next);
            }
        }
    }
    None
}

/// The folders of the command, from `src/cli`.
const COMMANDS: &str = "command";
const ARGUMENTS: &str = "args";
const VIEWS: &str = "view";

/// The view that arguments may import: errors, exit codes and the printer.
const PRINTER: &str = "report";

/// The command that runs other commands' work.
const DEMO: &str = "demo";

/// In `src/cli` no command imports another, except the demo. Arguments import no command and of the views only the printer; views
/// import neither. No file of them imports what is above the three folders.
pub fn command_hairballs(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for edge in Crate::of(tree, "src/lib.rs").edges() {
        let within =
            |path: &[String]| -> Option<Vec<String>> { (path.first()? == "cli").then(|| path[1..].to_vec()) };
        let (Some(from), Some(to)) = (within(&edge.from), within(&edge.to)) else { continue };
        let at = |path: &[String], place: usize| path.get(place).cloned().unwrap_or_default();
        let allowed = match (at(&from, 0).as_str(), at(&to, 0).as_str()) {
            // The parser may import everything.
            ("", _) => true,
            (COMMANDS, COMMANDS) => [at(&to, 1).as_str(), DEMO].contains(&at(&from, 1).as_str()),
            (COMMANDS, ARGUMENTS | VIEWS) | (ARGUMENTS, ARGUMENTS) | (VIEWS, VIEWS) => true,
            (ARGUMENTS, VIEWS) => at(&to, 1) == PRINTER,
            _ => false,
        };
        if !allowed {
            let key = format!("command {} -> {}", from.join("::"), to.join("::"));
            findings.push(Finding { message: format!("{key}: {}", edge.place), key });
        }
    }
    findings
}

/// Folders whose code reads and writes runs only through their stores.
const STORED: [&str; 4] =
    ["crates/audit/src", "crates/game/src/party", "crates/run/src/step", "crates/train/src/ranks"];

/// Files of these folders that open a file by themselves.
pub fn runs_past_their_store(tree: &Tree) -> Vec<Finding> {
    let paths = STORED.iter().flat_map(|folder| tree.within(folder, &["rs"]));
    let more = ["crates/run/src/evaluate.rs", "crates/train/src/lib.rs", "crates/train/src/begin.rs"];
    let named = |path| rust::read(path, tree.text(path)).named.iter().map(move |named| (path, named));
    let opens = paths
        .chain(more)
        .flat_map(named)
        .filter(|(_, named)| named.path.starts_with(&["std".into(), "fs".into()]));
    let finding = |(path, named): (&str, &rust::Named)| {
        let message = format!("{path}:{} imports std::fs: a run's files are behind its store", named.line);
        Finding { key: format!("store {path}"), message }
    };
    opens.map(finding).collect()
}

#[test]
fn circles_are_found() {
    let tree = |y: &str, deep: &str| {
        Tree::made_up(&[
            ("src/lib.rs", "pub mod a;"),
            ("src/a/mod.rs", "mod x; mod y; mod sub; pub use y::Y;"),
            ("src/a/x.rs", "use super::Y;"),
            ("src/a/y.rs", y),
            ("src/a/sub/mod.rs", "mod deep;"),
            ("src/a/sub/deep.rs", deep),
        ])
    };
    let found = |tree: &Tree| -> Vec<String> {
        let findings = circles(tree, "src/lib.rs").into_iter();
        findings.map(|f| f.message.lines().next().unwrap().to_string()).collect()
    };
    assert_eq!(found(&tree("pub struct Y;", "use super::super::y::Y;")), [""; 0]);
    assert_eq!(found(&tree("use super::x;", "")), ["circle in src/a: x -> y -> x"]);
    let through_a_folder = tree("use super::sub::deep::D;", "use crate::a::x::X;");
    assert_eq!(found(&through_a_folder), ["circle in src/a: sub -> x -> y -> sub"]);
    let with_the_folders_own = Tree::made_up(&[
        ("src/lib.rs", "pub mod a;"),
        ("src/a/mod.rs", "mod x; pub struct Own; fn f() { x::g() }"),
        ("src/a/x.rs", "use super::Own;"),
    ]);
    assert_eq!(found(&with_the_folders_own), ["circle in src/a: mod.rs -> x -> mod.rs"]);
}

#[test]
fn a_hairball_of_commands_is_found() {
    let tree = |arguments: &str, printer: &str, page: &str, eval: &str, serve: &str| {
        Tree::made_up(&[
            ("src/lib.rs", "pub mod cli; pub mod run;"),
            ("src/run.rs", ""),
            ("src/cli/mod.rs", "mod args; mod command; mod view; use command::eval; pub struct Top;"),
            ("src/cli/args/mod.rs", "pub mod job; pub mod key;"),
            ("src/cli/args/job.rs", arguments),
            ("src/cli/args/key.rs", "use crate::run; use crate::cli::view::report::Failure;"),
            ("src/cli/view/mod.rs", "pub mod page; pub mod report;"),
            ("src/cli/view/report.rs", printer),
            ("src/cli/view/page.rs", page),
            ("src/cli/command/mod.rs", "pub mod demo; pub mod eval; pub mod serve;"),
            ("src/cli/command/demo.rs", "use crate::cli::command::eval; use super::serve::Port;"),
            ("src/cli/command/eval/mod.rs", "mod report; use report::R;"),
            ("src/cli/command/eval/report.rs", eval),
            ("src/cli/command/serve.rs", serve),
        ])
    };
    let keys = |tree: &Tree| command_hairballs(tree).into_iter().map(|f| f.key).collect::<Vec<_>>();
    let good =
        ["use super::key;", "", "use super::report::P;", "use crate::cli::{args::job, view::page};", ""];
    let [arguments, printer, page, eval, serve] = good;
    assert_eq!(keys(&tree(arguments, printer, page, eval, serve)), [""; 0]);
    let bad = |tree: Tree, key: &str| assert_eq!(keys(&tree), [format!("command {key}")]);
    let (view, command) = ("use crate::cli::view::page;", "use crate::cli::command::serve::Port;");
    let (argument, top) = ("use crate::cli::args::key;", "use crate::cli::Top;");
    bad(tree(view, printer, page, eval, serve), "args::job -> view::page");
    bad(tree(command, printer, page, eval, serve), "args::job -> command::serve");
    bad(tree(arguments, argument, page, eval, serve), "view::report -> args::key");
    bad(tree(arguments, printer, command, eval, serve), "view::page -> command::serve");
    bad(tree(arguments, printer, page, command, serve), "command::eval::report -> command::serve");
    bad(tree(arguments, printer, page, eval, "use super::eval;"), "command::serve -> command::eval");
    bad(tree(arguments, printer, page, top, serve), "command::eval::report -> ");
}

#[test]
fn a_run_that_is_read_past_its_store_is_found() {
    let [evaluate, train, begin] =
        ["crates/run/src/evaluate.rs", "crates/train/src/lib.rs", "crates/train/src/begin.rs"];
    let tree = |text: &str| {
        Tree::made_up(&[(evaluate, ""), (train, ""), (begin, ""), ("crates/audit/src/x.rs", text)])
    };
    assert_eq!(runs_past_their_store(&tree("fn f() { run.at(names::MODEL).is_here() }")), []);
    assert_eq!(runs_past_their_store(&tree("use std::fs; fn f() { std::fs::read(path) }")).len(), 2);
}
