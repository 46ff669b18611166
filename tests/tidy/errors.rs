//! The texts of all errors, read from the code: those of error types' variants, and those that calls make.
//! A call counts if it constructs an error, or if its argument becomes one (`Err`, `ok_or`, `map_err`); so do the variables, closures
//! and functions of the same file that its argument names.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::rust::{attribute, double_colon, ident, item_end};

/// The text of an error.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Text {
    /// The type and variant, or the call, that makes it an error.
    pub kind: String,
    /// The sentence with its placeholders.
    pub text: String,
    /// The file.
    pub file: String,
    /// The docstring of the variant, of the function or of the file: the first sentence.
    pub when: String,
    /// The help beside it, if the call has one.
    pub help: Option<String>,
}

/// Calls that construct an error, by their last two names.
const CONSTRUCTORS: [&str; 15] = [
    "Malformed::invalid",
    "DataError::invalid",
    "RunError::invalid",
    "RunError::Refused",
    "RunError::Job",
    "DataError::Job",
    "RankError::Refused",
    "PartyError::Refused",
    "AuditError::Limit",
    "EngineError::Unsupported",
    "EngineError::OutOfMemory",
    "EngineError::Fault",
    "EngineError::Stopped",
    "RegimeError",
    "JobError",
];
/// Calls whose argument becomes an error of the function.
const CARRIERS: [&str; 4] = ["Err", "ok_or", "ok_or_else", "map_err"];
/// Calls whose texts are no part of an error.
const ASIDE: [&str; 5] = ["help", "expect", "join", "contains", "starts_with"];
/// Error types as they stand in signatures.
const TYPES: [&str; 14] = [
    "Failure",
    "Malformed",
    "RunError",
    "JobError",
    "DataError",
    "EngineError",
    "RankError",
    "TrainError",
    "AuditError",
    "PartyError",
    "ComputationError",
    "LeafError",
    "StepError",
    "String",
];

/// A name that a `let` binds, and the tokens that it stands for.
struct Bound {
    name: String,
    tokens: Vec<TokenTree>,
}

/// A function of the file.
struct Function {
    name: String,
    doc: String,
    returns: String,
    body: Vec<TokenTree>,
}

struct Reader {
    file: String,
    subject: String,
    functions: Vec<Function>,
    found: Vec<Text>,
}

/// The texts of a file's errors.
///
/// # Panics
/// If the file is no sequence of Rust's tokens.
pub fn read(path: &str, source: &str) -> Vec<Text> {
    let tokens: TokenStream = source.parse().unwrap_or_else(|error| panic!("{path}: {error}"));
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let lines = source.lines().map(|line| line.trim_start().strip_prefix("//!"));
    let subject: Vec<&str> = lines.skip_while(Option::is_none).map_while(|line| line).collect();
    let subject = subject.join("");
    let mut reader = Reader {
        file: path.to_string(),
        subject: first_sentence(&subject),
        functions: Vec::new(),
        found: Vec::new(),
    };
    reader.items(&tokens, "");
    let functions = std::mem::take(&mut reader.functions);
    for function in &functions {
        let kind = default_kind(&function.returns);
        let mut scope = Vec::new();
        let mut walk = Walk { reader: &mut reader, functions: &functions, function, depth: 0 };
        walk.statements(&function.body, &mut scope, &kind, None);
    }
    reader.found.sort();
    reader.found.dedup();
    reader.found
}

/// The first sentence of a docstring, without links' brackets.
fn first_sentence(doc: &str) -> String {
    let doc = doc.split_whitespace().collect::<Vec<_>>().join(" ").replace(['[', ']'], "");
    match doc.find(". ") {
        Some(end) => doc[..end].to_string(),
        None => doc.trim_end_matches('.').to_string(),
    }
}

/// The error type that a function's signature names, as the kind of what it carries.
fn default_kind(returns: &str) -> String {
    let names: Vec<&str> = returns.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let found = names.iter().rev().find(|name| TYPES.contains(name));
    found.map_or("text".into(), |name| if *name == "String" { "text".into() } else { name.to_string() })
}

/// A literal's text; none if it is no string.
pub fn string(literal: &str) -> Option<String> {
    if literal.starts_with(['b', 'c', '\'']) {
        return None;
    }
    let (first, last) = (literal.find('"')?, literal.rfind('"')?);
    let inner = literal.get(first + 1..last)?;
    if literal.starts_with('r') {
        return Some(inner.to_string());
    }
    let mut text = String::new();
    let mut rest = inner.chars().peekable();
    while let Some(c) = rest.next() {
        match (c, rest.peek()) {
            ('\\', Some('\n')) => while rest.next_if(|c| c.is_whitespace()).is_some() {},
            ('\\', Some('u')) => {
                let code: String = rest.by_ref().take_while(|c| *c != '}').collect();
                let code = u32::from_str_radix(code.trim_start_matches("u{"), 16).ok();
                text.extend(code.and_then(char::from_u32));
            }
            ('\\', Some(_)) => text.extend(rest.next().map(|c| if c == 'n' { ' ' } else { c })),
            _ => text.push(c),
        }
    }
    Some(text)
}

/// Tells texts from names: a text has three words or more, or two beside a placeholder.
fn has_words(text: &str) -> bool {
    let mut own = String::new();
    let mut inside = 0;
    for c in text.chars() {
        match c {
            '{' => inside += 1,
            '}' => inside -= 1,
            c if inside == 0 => own.push(c),
            _ => {}
        }
    }
    let own = own.split_whitespace().filter(|word| word.chars().any(char::is_alphabetic)).count();
    own > 2 || own == 2 && text.contains('{')
}

impl Reader {
    /// Items: error types and functions, at any depth. `owner`: the enum whose variants these are.
    fn items(&mut self, tokens: &[TokenTree], owner: &str) {
        let mut i = 0;
        let (mut test, mut doc, mut error) = (false, String::new(), None);
        while i < tokens.len() {
            if let Some(group) = attribute(tokens, i) {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                let text = group.stream().to_string().replace(' ', "");
                test |= text == "test" || text == "cfg(test)" || text.starts_with("cfg(all(test,");
                match (ident(&inner, 0).as_deref(), inner.last()) {
                    (Some("doc"), Some(TokenTree::Literal(line))) => {
                        doc += &string(&line.to_string()).unwrap_or_default();
                        doc.push(' ');
                    }
                    (Some("error"), Some(TokenTree::Group(group))) => {
                        error = group.stream().into_iter().find_map(|token| match token {
                            TokenTree::Literal(text) => string(&text.to_string()),
                            _ => None,
                        });
                    }
                    _ => {}
                }
                i += 2;
                continue;
            }
            if test {
                i = item_end(tokens, i);
            } else {
                i = self.item(tokens, i, owner, (&doc, error.take()));
                // Words before the item's own, such as `pub`, do not end what its attributes say.
                if matches!(tokens.get(i - 1), Some(TokenTree::Ident(word)) if ["pub", "const", "unsafe", "async"].contains(&word.to_string().as_str()))
                {
                    continue;
                }
            }
            (test, doc) = (false, String::new());
        }
    }

    /// Takes what begins at a place; where the next begins.
    fn item(
        &mut self,
        tokens: &[TokenTree],
        i: usize,
        owner: &str,
        (doc, error): (&str, Option<String>),
    ) -> usize {
        let name = ident(tokens, i + 1).unwrap_or_default();
        match &tokens[i] {
            TokenTree::Ident(word) if word == "enum" || word == "struct" => {
                if let Some(text) = error {
                    self.add(&name, text, doc, None);
                }
                let end = item_end(tokens, i);
                for token in &tokens[i..end] {
                    if let TokenTree::Group(group) = token
                        && word == "enum"
                    {
                        self.items(&group.stream().into_iter().collect::<Vec<_>>(), &name);
                    }
                }
                end
            }
            TokenTree::Ident(word) if word == "fn" => {
                let is_end = |t: &TokenTree| match t {
                    TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                    TokenTree::Punct(end) => end.as_char() == ';',
                    _ => false,
                };
                let len = tokens[i..].iter().position(is_end).unwrap_or(tokens.len() - i - 1);
                if let TokenTree::Group(body) = &tokens[i + len] {
                    let signature: TokenStream = tokens[i..i + len].iter().cloned().collect();
                    let signature = signature.to_string();
                    let returns = signature.rsplit_once("->").map_or("", |(_, returns)| returns);
                    let returns = returns.split(" where ").next().unwrap_or_default().to_string();
                    let body = body.stream().into_iter().collect();
                    self.functions.push(Function { name, doc: first_sentence(doc), returns, body });
                }
                i + len + 1
            }
            TokenTree::Ident(variant) => {
                if let Some(text) = error {
                    self.add(&format!("{owner}::{variant}"), text, doc, None);
                }
                i + 1
            }
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                self.items(&group.stream().into_iter().collect::<Vec<_>>(), owner);
                i + 1
            }
            _ => i + 1,
        }
    }

    fn add(&mut self, kind: &str, text: String, when: &str, help: Option<String>) {
        if has_words(&text) {
            let when = if when.is_empty() { self.subject.clone() } else { first_sentence(when) };
            self.found.push(Text { kind: kind.to_string(), text, file: self.file.clone(), when, help });
        }
    }
}

/// A walk through one function.
struct Walk<'r, 'f> {
    reader: &'r mut Reader,
    functions: &'f [Function],
    function: &'f Function,
    /// The number of names that were followed to get here.
    depth: usize,
}

impl Walk<'_, '_> {
    /// Looks for errors. `kind`: what the function carries; `inside`: the kind of the error whose argument these are.
    fn statements(
        &mut self,
        tokens: &[TokenTree],
        scope: &mut Vec<Bound>,
        kind: &str,
        inside: Option<(&str, &Option<String>)>,
    ) {
        let outer = scope.len();
        let mut i = 0;
        while i < tokens.len() {
            if let Some((begin, end)) = bound(tokens, i, scope) {
                // A closure's or a variable's own errors; what it stands for is looked up where it is named.
                self.statements(&tokens[begin..end], scope, kind, None);
                i = end;
                continue;
            }
            if attribute(tokens, i).is_some() {
                i += 2;
                continue;
            }
            if let Some((called, group, end)) = call(tokens, i) {
                let is_method = i > 0 && matches!(&tokens[i - 1], TokenTree::Punct(p) if p.as_char() == '.');
                let arguments: Vec<TokenTree> = group.stream().into_iter().collect();
                let last = called.rsplit("::").next().unwrap_or_default().to_string();
                let help = help(tokens, end, scope);
                if called == "Failure::new" {
                    let exit = exit_of(&arguments);
                    self.statements(
                        after_comma(&arguments),
                        scope,
                        kind,
                        Some((&format!("Failure::new {exit}"), &help)),
                    );
                } else if CONSTRUCTORS.contains(&called.as_str()) {
                    let first =
                        if called.ends_with("::invalid") { after_comma(&arguments) } else { &arguments };
                    self.statements(first, scope, kind, Some((&called, &help)));
                } else if let Some(made) = self.makes(&last, scope).filter(|_| !is_method) {
                    self.statements(&arguments, scope, kind, Some((&made, &help)));
                } else if CARRIERS.contains(&last.as_str()) {
                    self.statements(&arguments, scope, kind, Some((kind, &help)));
                } else if !ASIDE.contains(&last.as_str()) {
                    if let Some((inner, help)) = inside.filter(|_| !is_method) {
                        self.follow(&last, scope, kind, (inner, help));
                    }
                    self.statements(&arguments, scope, kind, inside);
                }
                i = end;
                continue;
            }
            match (&tokens[i], inside) {
                (TokenTree::Literal(literal), Some((inner, help))) => {
                    if let Some(text) = string(&literal.to_string()) {
                        let doc = self.function.doc.clone();
                        self.reader.add(inner, text, &doc, help.clone());
                    }
                }
                (TokenTree::Ident(name), Some((inner, help))) => {
                    let name = name.to_string();
                    self.follow(&name, scope, kind, (inner, help));
                }
                (TokenTree::Group(group), _) => {
                    self.statements(&group.stream().into_iter().collect::<Vec<_>>(), scope, kind, inside);
                }
                _ => {}
            }
            i += 1;
        }
        scope.truncate(outer);
    }

    /// The texts that a name stands for: a variable's, a closure's, or those of a function in this file that gives a text.
    fn follow(&mut self, name: &str, scope: &mut Vec<Bound>, kind: &str, inside: (&str, &Option<String>)) {
        if self.depth > 3 {
            return;
        }
        self.depth += 1;
        if let Some(place) = scope.iter().rposition(|bound| bound.name == name) {
            let tokens = scope[place].tokens.clone();
            let mut before: Vec<Bound> = scope.drain(place..).collect();
            self.statements(&tokens, scope, kind, Some(inside));
            scope.append(&mut before);
        } else if let Some(function) =
            self.functions.iter().find(|function| function.name == name && gives_text(&function.returns))
        {
            let outer = std::mem::replace(&mut self.function, function);
            self.statements(&function.body, &mut Vec::new(), kind, Some(inside));
            self.function = outer;
        }
        self.depth -= 1;
    }

    /// The kind of the error that a closure or a function of this file makes of its argument.
    fn makes(&self, name: &str, scope: &[Bound]) -> Option<String> {
        let tokens = match scope.iter().rfind(|bound| bound.name == name) {
            Some(bound) => bound.tokens.as_slice(),
            None => {
                let function = self.functions.iter().find(|function| function.name == name)?;
                let returns = function.returns.trim();
                let direct = TYPES.contains(&returns) && returns != "String"
                    || returns.contains("Fn (")
                    || returns.contains("Fn(");
                if !direct {
                    return None;
                }
                function.body.as_slice()
            }
        };
        made(tokens)
    }
}

/// Tells functions that give a text, or may give one.
fn gives_text(returns: &str) -> bool {
    let plain = returns.replace(' ', "");
    ["String", "&'staticstr", "&str", "Option<String>", "Option<&'staticstr>", "(&'staticstr,String)"]
        .contains(&plain.as_str())
}

/// The kind of the error that tokens construct.
fn made(tokens: &[TokenTree]) -> Option<String> {
    for i in 0..tokens.len() {
        if let Some((called, group, _)) = call(tokens, i) {
            if called == "Failure::new" {
                return Some(format!(
                    "Failure::new {}",
                    exit_of(&group.stream().into_iter().collect::<Vec<_>>())
                ));
            }
            if CONSTRUCTORS.contains(&called.as_str()) {
                return Some(called);
            }
        }
        if let TokenTree::Group(group) = &tokens[i]
            && let Some(kind) = made(&group.stream().into_iter().collect::<Vec<_>>())
        {
            return Some(kind);
        }
    }
    None
}

/// `let NAME = TOKENS;`, `if let PATTERN = TOKENS {`: binds the names; where the tokens end.
fn bound(tokens: &[TokenTree], i: usize, scope: &mut Vec<Bound>) -> Option<(usize, usize)> {
    if ident(tokens, i).as_deref() != Some("let") {
        return None;
    }
    let conditional = i > 0 && matches!(ident(tokens, i - 1).as_deref(), Some("if" | "while"));
    let is_equals = |i: usize| {
        let is = |i: usize, c: char| matches!(tokens.get(i), Some(TokenTree::Punct(p)) if p.as_char() == c);
        is(i, '=') && !is(i + 1, '=') && !is(i - 1, '=') && !is(i + 1, '>')
    };
    let equals = (i + 1..tokens.len()).find(|&i| is_equals(i))?;
    let ends = |token: &TokenTree| match token {
        TokenTree::Punct(p) => p.as_char() == ';',
        TokenTree::Group(group) => conditional && group.delimiter() == Delimiter::Brace,
        _ => false,
    };
    let end = (equals + 1..tokens.len()).find(|&i| ends(&tokens[i])).unwrap_or(tokens.len());
    let mut names = Vec::new();
    pattern(&tokens[i + 1..equals], &mut names);
    let value = tokens[equals + 1..end].to_vec();
    // Elements of a pattern share what it is made of.
    for name in names {
        scope.push(Bound { name, tokens: value.clone() });
    }
    Some((equals + 1, end))
}

/// The names that a pattern binds; a type behind a colon has capitals.
fn pattern(tokens: &[TokenTree], names: &mut Vec<String>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => pattern(&group.stream().into_iter().collect::<Vec<_>>(), names),
            TokenTree::Ident(word) => {
                let word = word.to_string();
                let keyword = ["mut", "ref", "_", "str", "dyn", "move"].contains(&word.as_str());
                if !keyword && word.chars().next().is_some_and(char::is_lowercase) {
                    names.push(word);
                }
            }
            _ => {}
        }
    }
}

/// A call, or a struct with fields, that begins here: its last two names, its arguments, and where it ends.
fn call(tokens: &[TokenTree], i: usize) -> Option<(String, &proc_macro2::Group, usize)> {
    if double_colon(tokens, i.wrapping_sub(2)) && i >= 2 {
        return None;
    }
    let mut names = vec![ident(tokens, i)?];
    let mut end = i + 1;
    while double_colon(tokens, end) {
        names.push(ident(tokens, end + 2)?);
        end += 3;
    }
    let Some(TokenTree::Group(group)) = tokens.get(end) else { return None };
    let path = names[names.len().saturating_sub(2)..].join("::");
    let fits = match group.delimiter() {
        Delimiter::Parenthesis => true,
        Delimiter::Brace => CONSTRUCTORS.contains(&path.as_str()),
        _ => false,
    };
    let keyword = ["if", "match", "while", "for", "in", "return", "let", "else", "move", "as", "matches"];
    (fits && !keyword.contains(&path.as_str())).then_some((path, group, end + 1))
}

/// The exit that the arguments of `Failure::new` name.
fn exit_of(arguments: &[TokenTree]) -> String {
    let at = arguments.iter().position(|token| matches!(token, TokenTree::Ident(word) if word == "Exit"));
    at.and_then(|at| ident(arguments, at + 3)).unwrap_or_default()
}

/// The arguments after the first.
fn after_comma(arguments: &[TokenTree]) -> &[TokenTree] {
    let comma = arguments.iter().position(|token| matches!(token, TokenTree::Punct(p) if p.as_char() == ','));
    comma.map_or(&[], |comma| &arguments[comma + 1..])
}

/// The text of `.help(...)` behind a call, or of the variable that it names.
fn help(tokens: &[TokenTree], i: usize, scope: &[Bound]) -> Option<String> {
    let (called, group, _) = call(tokens, i + 1)?;
    if called != "help" {
        return None;
    }
    let arguments: Vec<TokenTree> = group.stream().into_iter().collect();
    let named = match &arguments[..] {
        [TokenTree::Ident(name)] => scope.iter().rfind(|bound| *name == bound.name.as_str()),
        _ => None,
    };
    first_text(named.map_or(&arguments, |bound| &bound.tokens))
}

/// The first text with words among tokens.
fn first_text(tokens: &[TokenTree]) -> Option<String> {
    tokens.iter().find_map(|token| match token {
        TokenTree::Literal(text) => string(&text.to_string()).filter(|text| text.contains(' ')),
        TokenTree::Group(group) => first_text(&group.stream().into_iter().collect::<Vec<_>>()),
        _ => None,
    })
}

#[test]
fn texts_are_found_where_they_become_errors() {
    let found = read(
        "made-up",
        r##"
        //! A file. More.
        /// All errors.
        #[derive(thiserror::Error)]
        pub enum Wrong {
            /// The thing is so. Really.
            #[error("{what} is {found}, not \
                     as expected")]
            Thing { what: u8 },
            #[error(transparent)]
            Other(X),
        }
        /// Opens it.
        fn open(a: u8) -> Result<(), RunError> {
            let wrong = |why: &str| Malformed::invalid("job file", why);
            let why = format!("the value {a} is wrong");
            let unused = "a text of no error";
            if a == 1 { return Err(RunError::Refused(why)); }
            if let Some(why) = reason(a) { return Err(RunError::invalid(path, why)); }
            x.ok_or_else(|| wrong("it has no end"))?;
            println!("not an error here");
            Err(Failure::new(Exit::Usage, "give one of them").help("try --this one"))
        }
        fn reason(a: u8) -> Option<&'static str> { (a == 2).then_some("two is too many") }
        #[cfg(test)]
        mod tests { fn f() { Err("never seen here") } }
        "##,
    );
    let found: Vec<String> = found
        .iter()
        .map(|t| format!("{} | {} | {} | {}", t.kind, t.text, t.when, t.help.as_deref().unwrap_or("-")))
        .collect();
    let want = [
        "Failure::new Usage | give one of them | Opens it | try --this one",
        "Malformed::invalid | it has no end | Opens it | -",
        "RunError::Refused | the value {a} is wrong | Opens it | -",
        "RunError::invalid | two is too many | A file | -",
        "Wrong::Thing | {what} is {found}, not as expected | The thing is so | -",
    ];
    assert_eq!(found, want);
}
