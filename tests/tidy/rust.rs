//! The names in a Rust file: modules, imports, paths in its code (macros' arguments too), strings; also the lengths of its
//! functions. Tokens are proc-macro2's, so comments, strings and lifetimes are told apart as the compiler does it.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// `mod name;`
pub struct Module {
    /// The names of the inline modules around it, then its own.
    pub path: Vec<String>,
    /// `#[path = "..."]`
    pub file: Option<String>,
    pub test: bool,
}

/// A path that begins with `crate`, `self`, `super` or a name of this file's.
pub struct Named {
    /// The inline modules around it.
    pub inside: Vec<String>,
    pub path: Vec<String>,
    pub line: usize,
    /// For an import: its name in the file, or `*`.
    pub import: Option<String>,
    /// True for a re-export (`pub use`).
    pub public: bool,
}

pub struct Function {
    pub name: String,
    pub lines: usize,
}

/// The contents of one file. Code under `#[cfg(test)]` and `#[test]` adds only modules and strings.
#[derive(Default)]
pub struct Rust {
    pub modules: Vec<Module>,
    pub named: Vec<Named>,
    pub strings: Vec<String>,
    pub functions: Vec<Function>,
}

/// Reads a file; a text is read once.
///
/// # Panics
/// If the text is no sequence of Rust's tokens.
pub fn read(path: &str, text: &str) -> &'static Rust {
    // Most rules read all files. The program ends soon, so a file that was read stays.
    static READ: Mutex<Option<HashMap<String, &'static OnceLock<Rust>>>> = Mutex::new(None);
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    let place =
        *read.get_or_insert_default().entry(text.to_string()).or_insert_with(|| Box::leak(Box::default()));
    drop(read);
    place.get_or_init(|| parsed(path, text))
}

fn parsed(path: &str, text: &str) -> Rust {
    let tokens: TokenStream = text.parse().unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut reader = Reader { rust: Rust::default(), inside: Vec::new(), test: false };
    reader.tokens(&tokens.into_iter().collect::<Vec<_>>());
    reader.rust
}

struct Reader {
    rust: Rust,
    inside: Vec<String>,
    test: bool,
}

impl Reader {
    fn tokens(&mut self, tokens: &[TokenTree]) {
        let mut i = 0;
        // The attributes before the next item.
        let (mut test, mut file) = (false, None);
        while i < tokens.len() {
            if let Some(attribute) = attribute(tokens, i) {
                let text = attribute.stream().to_string().replace(' ', "");
                test |= text == "test" || text == "cfg(test)" || text.starts_with("cfg(all(test,");
                if let Some(quoted) = text.strip_prefix("path=") {
                    file = Some(quoted.trim_matches('"').to_string());
                }
                self.strings(attribute.stream());
                i += 2;
                continue;
            }
            let end = if test { item_end(tokens, i) } else { i };
            if test {
                let outer = std::mem::replace(&mut self.test, true);
                self.item(&tokens[i..end], file.take());
                self.test = outer;
                i = end;
            } else {
                // `pub` may be between the attribute and `mod`.
                let file =
                    if ident(tokens, i).as_deref() == Some("pub") { file.clone() } else { file.take() };
                i += self.step(tokens, i, file);
            }
            test = false;
        }
    }

    /// Everything of one item.
    fn item(&mut self, tokens: &[TokenTree], file: Option<String>) {
        let mut i = 0;
        while i < tokens.len() {
            i += self.step(tokens, i, file.clone());
        }
    }

    /// Handles the item that begins at a token; returns the number of tokens that it took.
    fn step(&mut self, tokens: &[TokenTree], i: usize, file: Option<String>) -> usize {
        match &tokens[i] {
            TokenTree::Group(group) => self.group(group),
            TokenTree::Literal(literal) => self.string(&literal.to_string()),
            TokenTree::Ident(word) if word == "mod" => return self.module(tokens, i, file),
            TokenTree::Ident(word) if word == "use" => return self.import(tokens, i),
            // `pub(in crate::a)` names a module that may see the item, and imports nothing.
            TokenTree::Ident(word) if word == "pub" && parenthesis(tokens, i + 1) => return 2,
            TokenTree::Ident(word) if word == "fn" => self.function(tokens, i),
            TokenTree::Ident(_) if !double_colon(tokens, i.wrapping_sub(2)) => return self.path(tokens, i),
            _ => {}
        }
        1
    }

    fn group(&mut self, group: &Group) {
        self.tokens(&group.stream().into_iter().collect::<Vec<_>>());
    }

    fn module(&mut self, tokens: &[TokenTree], i: usize, file: Option<String>) -> usize {
        let Some(name) = ident(tokens, i + 1) else { return 1 };
        match tokens.get(i + 2) {
            Some(TokenTree::Group(body)) if body.delimiter() == Delimiter::Brace => {
                self.inside.push(name);
                self.group(body);
                self.inside.pop();
                3
            }
            Some(TokenTree::Punct(end)) if end.as_char() == ';' => {
                let path = [self.inside.clone(), vec![name]].concat();
                self.rust.modules.push(Module { path, file, test: self.test });
                3
            }
            _ => 1,
        }
    }

    fn import(&mut self, tokens: &[TokenTree], i: usize) -> usize {
        let is_end = |t: &TokenTree| matches!(t, TokenTree::Punct(p) if p.as_char() == ';');
        // `use<'a>` in a type is no import.
        let Some(len) = tokens[i..].iter().position(is_end) else { return 1 };
        let before = |back: usize| i.checked_sub(back).and_then(|place| ident(tokens, place));
        let scoped = i > 0 && parenthesis(tokens, i - 1);
        let public = before(1).as_deref() == Some("pub") || scoped && before(2).as_deref() == Some("pub");
        self.tree(&tokens[i + 1..i + len], Vec::new(), public);
        len + 1
    }

    /// A tree of imports: `a::{self, b as c, d::*}`.
    fn tree(&mut self, tokens: &[TokenTree], mut path: Vec<String>, public: bool) {
        let mut i = if double_colon(tokens, 0) { 2 } else { 0 };
        let mut name = None;
        while let Some(token) = tokens.get(i) {
            match token {
                TokenTree::Group(group) => {
                    let inner: Vec<_> = group.stream().into_iter().collect();
                    let comma = |t: &TokenTree| matches!(t, TokenTree::Punct(p) if p.as_char() == ',');
                    for one in inner.split(comma).filter(|one| !one.is_empty()) {
                        self.tree(one, path.clone(), public);
                    }
                    return;
                }
                TokenTree::Punct(star) if star.as_char() == '*' => name = Some("*".to_string()),
                TokenTree::Ident(word) if word == "as" => {
                    name = ident(tokens, i + 1);
                    break;
                }
                TokenTree::Ident(word) if word == "self" && !path.is_empty() => {}
                TokenTree::Ident(word) => path.push(word.to_string()),
                _ => {}
            }
            i += 1;
        }
        let Some(last) = path.last() else { return };
        let import = Some(name.unwrap_or_else(|| last.clone()));
        let line = tokens[0].span().start().line;
        self.name(Named { inside: self.inside.clone(), path, line, import, public });
    }

    fn path(&mut self, tokens: &[TokenTree], i: usize) -> usize {
        let mut path = vec![ident(tokens, i).unwrap_or_default()];
        let mut end = i + 1;
        while double_colon(tokens, end) {
            let Some(next) = ident(tokens, end + 2) else { break };
            path.push(next);
            end += 3;
        }
        if path.len() > 1 || double_colon(tokens, end) {
            let line = tokens[i].span().start().line;
            self.name(Named { inside: self.inside.clone(), path, line, import: None, public: false });
        }
        end - i
    }

    fn name(&mut self, named: Named) {
        if !self.test {
            self.rust.named.push(named);
        }
    }

    fn function(&mut self, tokens: &[TokenTree], i: usize) {
        let Some(name) = ident(tokens, i + 1) else { return };
        let end = |t: &&TokenTree| match t {
            TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
            TokenTree::Punct(end) => end.as_char() == ';',
            _ => false,
        };
        if let Some(TokenTree::Group(body)) = tokens[i..].iter().find(end)
            && !self.test
        {
            let lines = body.span_close().end().line - tokens[i].span().start().line + 1;
            self.rust.functions.push(Function { name, lines });
        }
    }

    fn strings(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.strings(group.stream()),
                TokenTree::Literal(literal) => self.string(&literal.to_string()),
                _ => {}
            }
        }
    }

    fn string(&mut self, literal: &str) {
        if let (Some(first), Some(last)) = (literal.find('"'), literal.rfind('"'))
            && first < last
        {
            self.rust.strings.push(literal[first + 1..last].to_string());
        }
    }
}

/// The brackets of the attribute that begins at a place.
pub fn attribute(tokens: &[TokenTree], i: usize) -> Option<&Group> {
    match (tokens.get(i)?, tokens.get(i + 1)?) {
        (TokenTree::Punct(hash), TokenTree::Group(group))
            if hash.as_char() == '#' && group.delimiter() == Delimiter::Bracket =>
        {
            Some(group)
        }
        _ => None,
    }
}

/// The end of the item that begins at a token: after its braces or its semicolon.
pub fn item_end(tokens: &[TokenTree], i: usize) -> usize {
    let is_end = |t: &TokenTree| match t {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        TokenTree::Punct(end) => end.as_char() == ';',
        _ => false,
    };
    let end = tokens[i..].iter().position(is_end).map_or(tokens.len(), |len| i + len + 1);
    // The semicolon after an import's braces.
    match tokens.get(end) {
        Some(TokenTree::Punct(semicolon)) if semicolon.as_char() == ';' => end + 1,
        _ => end,
    }
}

pub fn ident(tokens: &[TokenTree], i: usize) -> Option<String> {
    match tokens.get(i)? {
        TokenTree::Ident(word) => Some(word.to_string()),
        _ => None,
    }
}

pub fn double_colon(tokens: &[TokenTree], i: usize) -> bool {
    let colon = |i| matches!(tokens.get(i), Some(TokenTree::Punct(p)) if p.as_char() == ':');
    colon(i) && i.checked_add(1).is_some_and(colon)
}

fn parenthesis(tokens: &[TokenTree], i: usize) -> bool {
    matches!(tokens.get(i), Some(TokenTree::Group(g)) if g.delimiter() == Delimiter::Parenthesis)
}

#[test]
fn everything_that_a_file_names_is_seen() {
    let rust = read(
        "made-up",
        r##"
        //! use crate::comment;
        use crate::{a, b::{self, c as d}};
        pub(crate) use super::super::e::*;
        mod inner { fn f() { let x = vec![crate::g::h()]; "crate::string"; 'l: loop { k::l(); break 'l } } }
        #[cfg(test)]
        mod tests { use crate::unseen; include_str!("seen.txt") }
        #[cfg(test)]
        use crate::{unseen};
        #[path = "other.rs"]
        mod far;
        pub(in crate::who) fn long<T>(a: [u8; 3]) -> Option<T>
        where T: Into<u8> {
            None
        }
        "##,
    );
    let named: Vec<String> = rust
        .named
        .iter()
        .map(|n| format!("{} {}", n.path.join("::"), n.import.as_deref().unwrap_or("-")))
        .collect();
    let want = ["crate::a a", "crate::b b", "crate::b::c d", "super::super::e *", "crate::g::h -", "k::l -"];
    assert_eq!(named, want);
    assert!(rust.named[3].public && !rust.named[0].public);
    assert_eq!(rust.named[4].inside, ["inner"]);
    assert_eq!(rust.modules[0].file.as_deref(), Some("other.rs"));
    assert!(rust.strings.contains(&"seen.txt".to_string()));
    let functions: Vec<_> = rust.functions.iter().map(|f| (f.name.as_str(), f.lines)).collect();
    assert_eq!(functions, [("f", 1), ("long", 4)]);
}
