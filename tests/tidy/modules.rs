//! The modules of a crate, each with its file, and the files that another file's names come from.

use std::collections::BTreeMap;

use crate::rust::{self, Named, Rust};
use crate::tree::{Tree, base, folder};

/// A module that has a file.
pub struct Source {
    pub file: String,
    pub rust: &'static Rust,
    /// True if only tests have it.
    pub test: bool,
}

/// A crate's modules by their paths; the root's is empty.
pub struct Crate {
    pub modules: BTreeMap<Vec<String>, Source>,
}

/// An edge: one file names something of another.
#[derive(Debug)]
pub struct Edge {
    pub from: Vec<String>,
    pub to: Vec<String>,
    /// File, line and path, for people.
    pub place: String,
}

impl Crate {
    /// Follows `mod` from a root file.
    pub fn of(tree: &Tree, root: &str) -> Crate {
        let mut found = Crate { modules: BTreeMap::new() };
        found.add(tree, Vec::new(), root.to_string(), false);
        found
    }

    fn add(&mut self, tree: &Tree, path: Vec<String>, file: String, test: bool) {
        let rust = rust::read(&file, tree.text(&file));
        for module in &rust.modules {
            let below = [path.clone(), module.path.clone()].concat();
            let candidates = match &module.file {
                Some(given) => vec![relative(folder(&file), given)],
                None => {
                    let is_root = path.is_empty() || base(&file) == "mod.rs";
                    let home = if is_root { folder(&file) } else { file.trim_end_matches(".rs") };
                    let stem = relative(home, &module.path.join("/"));
                    vec![format!("{stem}.rs"), format!("{stem}/mod.rs")]
                }
            };
            let there = candidates.into_iter().find(|candidate| tree.0.contains_key(candidate));
            let there =
                there.unwrap_or_else(|| panic!("{file}: the file of mod {:?} is not there", module.path));
            self.add(tree, below, there, test || module.test);
        }
        self.modules.insert(path, Source { file, rust, test });
    }

    /// The edges, with the first place of each pair of files; tests are left out.
    pub fn edges(&self) -> Vec<Edge> {
        let mut edges = Vec::new();
        for (from, source) in self.modules.iter().filter(|(_, source)| !source.test) {
            for named in &source.rust.named {
                let Some(path) = self.absolute(from, named, 0) else { continue };
                // `mod x; pub use x::Y;` re-exports another module's item.
                let passed_on = named.public && path.starts_with(from);
                let to = self.home(&path, 0);
                let known = |e: &Edge| e.from == *from && e.to == to;
                if to != *from && !passed_on && !edges.iter().any(known) {
                    let place = format!("{}:{} names {}", source.file, named.line, named.path.join("::"));
                    edges.push(Edge { from: from.clone(), to, place });
                }
            }
        }
        edges
    }

    /// The path from the crate's root, if it is one of this crate's.
    fn absolute(&self, from: &[String], named: &Named, depth: usize) -> Option<Vec<String>> {
        let mut base = [from, &named.inside].concat();
        let mut rest = named.path.as_slice();
        match rest.first()?.as_str() {
            "crate" => base.clear(),
            "self" | "super" => {}
            first => {
                let child = [base.clone(), vec![first.to_string()]].concat();
                if !self.modules.contains_key(&child) {
                    // An imported module's name, or no path of this crate.
                    let source = &self.modules[from];
                    let same = |n: &&Named| n.import.as_deref() == Some(first) && n.path != named.path;
                    let import = source.rust.named.iter().find(same).filter(|_| depth < 8)?;
                    let path = self.absolute(from, import, depth + 1)?;
                    return Some([path, rest[1..].to_vec()].concat());
                }
                base = child;
            }
        }
        if matches!(rest[0].as_str(), "crate" | "self") || base.last() == rest.first() {
            rest = &rest[1..];
        }
        while rest.first().is_some_and(|word| word == "super") {
            base.pop();
            rest = &rest[1..];
        }
        Some([base, rest.to_vec()].concat())
    }

    /// The module whose file defines what a path names; re-exports are followed.
    fn home(&self, path: &[String], depth: usize) -> Vec<String> {
        let len = (0..=path.len()).rev().find(|&len| self.modules.contains_key(&path[..len]));
        let module = &path[..len.expect("the root has a file")];
        if let Some(name) = path.get(module.len()).filter(|_| depth < 8) {
            let source = &self.modules[module];
            for import in source.rust.named.iter().filter(|n| n.import.as_ref() == Some(name)) {
                if let Some(there) = self.absolute(module, import, 0)
                    && there != path[..=module.len()]
                {
                    return self.home(&[&there, &path[module.len() + 1..]].concat(), depth + 1);
                }
            }
        }
        module.to_vec()
    }
}

/// A path relative to a folder, with `..` resolved.
fn relative(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts.join("/")
}

#[test]
fn names_are_followed_to_their_files() {
    let tree = Tree::made_up(&[
        ("src/lib.rs", "pub mod a; mod b;"),
        ("src/a/mod.rs", "mod x; mod y; #[cfg(test)] mod tests; pub use x::X; pub struct Own;"),
        ("src/a/x.rs", "use super::Own; use crate::b::deep; fn f() { deep::g() }"),
        ("src/a/y.rs", "use super::X; mod in_line { use super::super::x; }"),
        ("src/a/tests.rs", "use crate::b;"),
        ("src/b.rs", "pub mod deep; pub use crate::a::X as Y; fn f() { deep::g(); crate::a::Own; Y::new() }"),
        ("src/b/deep.rs", "pub fn g() {} #[cfg(test)] mod tests { use crate::a; }"),
    ]);
    let edges = Crate::of(&tree, "src/lib.rs").edges();
    let edges: Vec<_> =
        edges.iter().map(|e| format!("{} -> {}", e.from.join("::"), e.to.join("::"))).collect();
    let want = ["a::x -> a", "a::x -> b::deep", "a::y -> a::x", "b -> a::x", "b -> b::deep", "b -> a"];
    assert_eq!(edges, want);
}
