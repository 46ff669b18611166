//! Imports point one way: between crates Cargo sees to it; here, in a folder around no circle.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::modules::Crate;
use crate::rust;
use crate::tree::{Finding, Tree};

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
