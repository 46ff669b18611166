//! Imports point one way: between modules by ARCHITECTURE.md's list, and in a folder around no circle.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::modules::Crate;
use crate::rust;
use crate::tree::{Finding, Tree};

/// The modules of `src/` in the order of the list in ARCHITECTURE.md: its lines of two spaces and a folder's or a file's name.
pub fn order(architecture: &str) -> Vec<&str> {
    let list = architecture.lines().skip_while(|line| *line != "src/").skip(1);
    let inside = list.take_while(|line| line.starts_with("  "));
    inside
        .filter_map(|line| {
            let (name, _) = line.strip_prefix("  ")?.split_once(' ')?;
            name.strip_suffix('/').or(name.strip_suffix(".rs"))
        })
        .collect()
}

/// A module imports only what stands above it in the list, and the list is complete.
pub fn upwards(tree: &Tree) -> Vec<Finding> {
    let order = order(tree.text("ARCHITECTURE.md"));
    let found = Crate::of(tree, "src/lib.rs");
    let listed: BTreeSet<&str> = order.iter().copied().collect();
    let there: BTreeSet<&str> = found.modules.keys().filter_map(|m| m.first()).map(String::as_str).collect();
    let mut findings = Vec::new();
    for name in listed.symmetric_difference(&there) {
        let message = format!("src/{name} stands in ARCHITECTURE.md's list or in src/, not in both");
        findings.push(Finding { key: format!("import list: {name}"), message });
    }
    let place = |module: &str| order.iter().position(|name| *name == module);
    for edge in found.edges() {
        let Some(from) = edge.from.first() else { continue };
        let to = edge.to.first().map_or("the root", String::as_str);
        if to != from && place(to).is_none_or(|to| Some(to) > place(from)) {
            let key = format!("import of {to} by {from}");
            let message =
                format!("{from} imports {to}, which ARCHITECTURE.md lists below it: {}", edge.place);
            findings.push(Finding { key, message });
        }
    }
    findings
}

/// In each folder, files and subfolders import each other around no circle.
pub fn circles(tree: &Tree, root: &str) -> Vec<Finding> {
    let found = Crate::of(tree, root);
    // By folder (a module's path): who imports whom among its files and subfolders, with an example.
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
        let folder = [vec![root.trim_end_matches("/lib.rs").to_string()], folder].concat().join("/");
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

/// cuda-bridge's library does not know the verifier.
pub fn bridge_knows_no_verifier(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for path in tree.within("cuda-bridge/src", &["rs"]) {
        for named in rust::read(path, tree.text(path)).named {
            if named.path[0] == "tiebreak" {
                let message = format!("{path}:{} imports tiebreak", named.line);
                findings.push(Finding { key: format!("bridge {path}"), message });
            }
        }
    }
    findings
}

#[test]
fn imports_that_point_downwards_are_found() {
    let list = "x\n```\nsrc/\n  low/   what\n    deep/    more\n  mid/ x\n  high/ x\nshaders/\n```\n";
    let lib = "pub mod high; pub mod low; pub mod mid; pub struct Root;";
    let tree = |low: &str| {
        Tree::made_up(&[
            ("ARCHITECTURE.md", list),
            ("src/lib.rs", lib),
            ("src/low/mod.rs", low),
            ("src/mid.rs", "use crate::low;"),
            ("src/high.rs", "pub struct High; use crate::{low, mid};"),
        ])
    };
    assert_eq!(order(list), ["low", "mid", "high"]);
    assert_eq!(upwards(&tree("pub struct Low;")), []);
    for (text, to) in [
        ("use crate::high;", "high"),
        ("use crate::{mid as m};", "mid"),
        ("use super::high::High;", "high"),
        ("mod inner { use super::super::mid; }", "mid"),
        ("fn f() { println!(\"{}\", crate::high::High) }", "high"),
        ("use crate::Root;", "the root"),
    ] {
        let keys: Vec<String> = upwards(&tree(text)).into_iter().map(|f| f.key).collect();
        assert_eq!(keys, [format!("import of {to} by low")], "{text}");
    }
    let unlisted = Tree::made_up(&[
        ("ARCHITECTURE.md", list),
        ("src/lib.rs", "pub mod low; pub mod other; pub mod high;"),
        ("src/low.rs", ""),
        ("src/high.rs", ""),
        ("src/other.rs", ""),
    ]);
    let keys: Vec<String> = upwards(&unlisted).into_iter().map(|f| f.key).collect();
    assert_eq!(keys, ["import list: mid", "import list: other"]);
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
fn a_bridge_that_imports_the_verifier_is_found() {
    let tree = |text: &str| Tree::made_up(&[("cuda-bridge/src/lib.rs", text)]);
    assert_eq!(bridge_knows_no_verifier(&tree("//! tiebreak::arith\nfn f() {}")), []);
    assert_eq!(bridge_knows_no_verifier(&tree("fn f() { tiebreak::arith::g() }")).len(), 1);
}
