//! docs/ERRORS.md: every error, by the exit code that it ends a command with. `TIEBREAK_WRITE=1 cargo test --test tidy errors_` writes the page again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use proc_macro2::{TokenStream, TokenTree};

use crate::errors::{self, Text, string};
use crate::rust::{double_colon, ident};
use crate::tree::Tree;

/// The page.
const PAGE: &str = "docs/ERRORS.md";
/// Folders whose errors a command can end with.
const FOLDERS: [&str; 3] = ["crates", "cuda-bridge/src", "src"];
/// The file with the help of error types.
const HELP: &str = "src/cli/view/help.rs";

/// An error type or a call: the exit code of its errors, whose fault they are, and what to do next.
struct Kind {
    /// The name, or what it begins with.
    name: &'static str,
    exit: u8,
    next: &'static str,
}

const fn kind(name: &'static str, exit: u8, next: &'static str) -> Kind {
    Kind { name, exit, next }
}

const MEND_LINE: &str = "mend the command line or the job that the error names";
const OTHER_ENGINE: &str =
    "use another engine (`tiebreak adapters` lists them), or mend what the error names on this machine";
const RESUME: &str = "mend what the error names, then `tiebreak train --out RUN --resume`";
const ASK_MAKER: &str = "ask whoever made the file for a whole copy; it is the maker's fault";
const REPORT: &str = "none; the error that carries it says what to do";

/// Every kind of the code; the longest name that fits counts.
const KINDS: &[Kind] = &[
    kind("Failure::new Usage", 2, MEND_LINE),
    kind("Failure::new Undecided", 3, "change the limit, the engine or the file that the error names"),
    kind("Failure::new Malformed", 4, ASK_MAKER),
    kind(
        "Failure::new Diverges",
        1,
        "compare the run with what was ordered; `tiebreak audit RUN` writes a verdict where a record is wrong",
    ),
    kind("Failure", 2, MEND_LINE),
    kind("Malformed", 4, ASK_MAKER),
    kind("RunError", 4, ASK_MAKER),
    kind("RunError::", 2, MEND_LINE),
    kind("RunError::invalid", 4, ASK_MAKER),
    kind("RunError::Unsigned", 4, ASK_MAKER),
    kind("RunError::OtherKey", 4, ASK_MAKER),
    kind("RunError::Memory", 3, "give more memory"),
    kind("JobError", 2, "mend the job; `tiebreak job check JOB` says when it is right"),
    kind("DataError", 4, "mend the data; `tiebreak job check JOB` reads them"),
    kind("DataError::Job", 2, "mend the job or its data; `tiebreak job check JOB` reads both"),
    kind("RegimeError", 2, MEND_LINE),
    kind("CatalogueError", 4, ASK_MAKER),
    kind("PackError", 4, ASK_MAKER),
    kind("PackError::Memory", 3, "give more memory"),
    kind("PackError::NotForUs", 2, "give the identity whose key the pack was sealed for"),
    kind("RulesError", 2, "mend the file of rules"),
    kind("ComputationError", 4, ASK_MAKER),
    kind("RankError::Refused", 2, MEND_LINE),
    kind("RankError", 3, RESUME),
    kind("TrainError", 3, RESUME),
    kind("AuditError", 3, "raise the limit, or ask for fewer steps"),
    kind("PartyError::Refused", 2, MEND_LINE),
    kind("PartyError", 3, "answer with another engine, or from a whole copy of the run"),
    kind("EngineError::Outside", 3, "free room in the folder, or name one on another disk"),
    kind("EngineError::Kernel", 3, "mend the kernel, or give another one; the same call resumes"),
    kind("EngineError", 3, OTHER_ENGINE),
    kind("LeafError", 4, ASK_MAKER),
];

/// The exit code by folder, for texts that another error carries: their kind says nothing of it.
const PLACES: &[(&str, u8)] = &[
    ("src/cli/", 2),
    ("crates/job/src/", 2),
    ("crates/run/src/run/", 2),
    ("crates/monitor/", 2),
    ("crates/contract/", 2),
    ("crates/tokenizer/", 2),
    ("crates/token-files/", 2),
    ("crates/engine/", 3),
    ("crates/gpu/", 3),
    ("cuda-bridge/", 3),
    ("crates/train/", 3),
    ("crates/game/", 3),
    ("crates/collector/", 3),
    ("crates/remote/", 3),
    ("crates/audit/", 4),
    ("crates/run/", 4),
    ("crates/record/", 4),
    ("crates/job/", 4),
    ("crates/dispute/", 4),
];

/// Findings of audits, games and inspections. They are no errors: the outcome that carries them decides the exit code.
const FINDINGS: [&str; 13] = [
    "Basis",
    "Breach",
    "Evidence",
    "Explicable",
    "Finding",
    "Ground",
    "Misdrawn",
    "Provenance",
    "RecordFault",
    "Rewritten",
    "Silence",
    "Unknown",
    "Unsettled",
];

/// Parts of a sentence that never begin it: `... is not 1, what the operands give`.
const PARTS: [&str; 2] = ["what the operands give", "what the rounding log says"];

/// All errors of the repository.
pub fn of_repository() -> &'static [Text] {
    static ALL: LazyLock<Vec<Text>> = LazyLock::new(|| all(&Tree::repository()));
    &ALL
}

fn all(tree: &Tree) -> Vec<Text> {
    let mut found = Vec::new();
    for folder in FOLDERS {
        let sources =
            tree.within(folder, &["rs"]).filter(|path| path.starts_with("src/") || path.contains("/src/"));
        found.extend(sources.flat_map(|path| errors::read(path, tree.text(path))));
    }
    found
}

/// The helps of error types' variants: the first text of the arm that names a variant.
fn helps(source: &str) -> BTreeMap<String, String> {
    fn flat(stream: TokenStream, to: &mut Vec<TokenTree>) {
        for token in stream {
            match token {
                TokenTree::Group(group) => flat(group.stream(), to),
                token => to.push(token),
            }
        }
    }
    let mut tokens = Vec::new();
    flat(source.parse().expect("the file is Rust"), &mut tokens);
    let (mut named, mut helps) = (Vec::new(), BTreeMap::new());
    for i in 0..tokens.len() {
        match &tokens[i] {
            TokenTree::Ident(word)
                if ["RunError", "EngineError", "Malformed"].contains(&word.to_string().as_str())
                    && double_colon(&tokens, i + 1) =>
            {
                named.extend(ident(&tokens, i + 3).map(|variant| format!("{word}::{variant}")));
            }
            TokenTree::Ident(word) if word == "None" || word == "return" => named.clear(),
            TokenTree::Literal(literal) => {
                if let Some(text) = string(&literal.to_string()).filter(|text| text.contains(' ')) {
                    named
                        .drain(..)
                        .for_each(|variant| _ = helps.entry(variant).or_insert_with(|| text.clone()));
                }
            }
            _ => {}
        }
    }
    helps
}

/// True for findings' kinds.
pub fn is_finding(kind: &str) -> bool {
    FINDINGS.iter().any(|name| kind == *name || kind.starts_with(&format!("{name}::")))
}

/// The exit code of an error, and what to do next; 0 for a finding.
fn end(text: &Text) -> Option<(u8, &'static str)> {
    if is_finding(&text.kind) {
        let pages =
            "docs/AUDIT.md, docs/DISPUTE.md and docs/MONITORING.md say what follows from each outcome";
        return Some((0, pages));
    }
    let kind =
        KINDS.iter().filter(|kind| text.kind.starts_with(kind.name)).max_by_key(|kind| kind.name.len());
    kind.map(|kind| (kind.exit, kind.next)).or_else(|| {
        let place = PLACES.iter().find(|(place, _)| text.file.starts_with(place))?;
        Some((place.1, REPORT))
    })
}

fn cell(text: &str) -> String {
    // An address that nobody can follow is code, or readers and checkers of links take it for one.
    let text = text.replace("http://HOST:PORT", "`http://HOST:PORT`").replace("`/PATH", "/PATH`");
    text.replace('|', "\\|").replace('<', "&lt;").replace("{}", "{…}")
}

/// The page's text.
fn page(texts: &[Text], helps: &BTreeMap<String, String>) -> String {
    let mut page = String::from(
        "# Errors\n\n\
         This page lists the text of every error, by the exit code that a command ends with.\n\
         `TIEBREAK_WRITE=1 cargo test --test tidy errors_` makes it from the code; a test holds it to the code.\n\n\
         A name in braces stands for a value. An error often begins with the file that it is about. A text can be a part\n\
         of a longer error. Where a command or an action helps, the terminal shows a line `help:` below the error\n\
         ([COMMANDS.md](COMMANDS.md), \"Output and exit codes\").\n\
         Where a type's errors are carried by another one, the exit code is that of the type alone. Exit 5 ends a dispute\n\
         game that somebody forfeited; no error comes with it.\n",
    );
    let meanings = [
        (1, "a difference was found"),
        (2, "the command line, a job or the files that it names are wrong"),
        (3, "this machine could not decide, or could not write the result"),
        (4, "bytes that somebody else made are not what they should be"),
        (0, ""),
    ];
    for (exit, meaning) in meanings {
        let rows: BTreeSet<(String, String, String, String)> = texts
            .iter()
            .filter_map(|text| {
                let (_, next) = end(text).filter(|(code, _)| *code == exit)?;
                let next = text
                    .help
                    .as_deref()
                    .or_else(|| helps.get(&text.kind).map(String::as_str))
                    .unwrap_or(next);
                let (kind, place) = (
                    text.kind.replace("Failure::new ", "Exit::"),
                    text.file.replace("/src/", "/").replace(".rs", ""),
                );
                let kind = if kind == "text" { place } else { format!("`{kind}`") };
                Some((kind, cell(&text.text), cell(&text.when.replace('`', "")), cell(next)))
            })
            .collect();
        let title = match exit {
            0 => "Findings of audits, games and inspections: the outcome decides the exit code".to_string(),
            _ => format!("Exit {exit}: {meaning}"),
        };
        page += &format!(
            "\n## {title}\n\n{} texts.\n\n| kind | error | when | what to do next |\n|---|---|---|---|\n",
            rows.len()
        );
        for (kind, text, when, next) in rows {
            page += &format!("| {kind} | {text} | {when} | {next} |\n");
        }
    }
    page
}

/// The words of a text, each placeholder one of them.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut inside = 0;
    for c in text.chars() {
        match c {
            '{' => {
                inside += 1;
                plain.push('N');
            }
            '}' => inside -= 1,
            c if inside == 0 => plain.push(c),
            _ => {}
        }
    }
    plain
}

/// Every objection to the words of an error.
fn objections(text: &str) -> Vec<String> {
    let plain = plain(text);
    let mut wrong = Vec::new();
    let first = plain.split_whitespace().next().unwrap_or_default().to_lowercase();
    let is_part = PARTS.contains(&text);
    if !is_part && ["of", "what", "who", "whose", "whom", "whoever", "whatever"].contains(&first.as_str()) {
        wrong.push(format!("begins with {first:?}"));
    }
    for sentence in plain.split(". ") {
        let words = sentence.split_whitespace().count();
        if words > 35 {
            wrong.push(format!("has a sentence of {words} words"));
        }
    }
    let vague = |word: &str| {
        let word = word.trim_matches(|c: char| !c.is_alphabetic()).to_lowercase();
        word == "invalid" || word == "bad"
    };
    if plain.split_whitespace().any(vague) && !text.contains('{') {
        wrong.push("says \"invalid\" or \"bad\" without the value that was found".into());
    }
    wrong
}

#[test]
fn errors_are_on_their_page() {
    let tree = Tree::repository();
    let texts = of_repository();
    assert!(texts.len() > 500, "{}", texts.len());
    let unknown: Vec<String> = texts
        .iter()
        .filter(|text| end(text).is_none())
        .map(|text| format!("{}: {}: {}", text.file, text.kind, text.text))
        .collect();
    assert!(unknown.is_empty(), "no exit code is known for:\n{}", unknown.join("\n"));
    let page = page(texts, &helps(tree.text(HELP)));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    if std::env::var_os("TIEBREAK_WRITE").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        there == page,
        "{PAGE} is of other errors: run `TIEBREAK_WRITE=1 cargo test --test tidy errors_`"
    );
}

#[test]
fn errors_are_sentences_that_name_their_thing() {
    let wrong: BTreeSet<String> = of_repository()
        .iter()
        .flat_map(|text| {
            objections(&text.text)
                .into_iter()
                .map(|why| format!("{}: {why}: {}", text.file, text.text))
                .collect::<Vec<_>>()
        })
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.into_iter().collect::<Vec<_>>().join("\n"));
}

/// Each kind of the table is met, so that a kind that vanishes takes its row with it.
#[test]
fn errors_have_no_kinds_that_nothing_makes() {
    let texts = of_repository();
    let kinds = KINDS.iter().map(|kind| kind.name).chain(FINDINGS);
    let kinds = kinds.filter(|name| !texts.iter().any(|text| text.kind.starts_with(name)));
    let places = PLACES.iter().map(|(place, _)| *place);
    let places = places.filter(|place| !texts.iter().any(|text| text.file.starts_with(place)));
    let unmet: Vec<&str> = kinds.chain(places).collect();
    assert!(unmet.is_empty(), "no error is of {unmet:?}");
}

#[test]
fn errors_are_objected_to_for_one_reason_each() {
    let long = "word ".repeat(36);
    assert!(objections("the file {path} has {n} bytes, 8 are expected").is_empty());
    assert!(objections("invalid value {found:?}").is_empty());
    assert_eq!(objections("What it reads is gone"), ["begins with \"what\""]);
    assert_eq!(objections("the header is bad").len(), 1);
    assert_eq!(objections(&long), ["has a sentence of 36 words"]);
    assert!(objections(&format!("{}. {}", "word ".repeat(30), "word ".repeat(30))).is_empty());
}

#[test]
fn errors_of_a_type_have_the_help_of_their_arm() {
    let helps = helps(
        "fn f() { match e { RunError::A { .. } => format!(\"do a {x}\"), RunError::B | EngineError::C => return None, RunError::D(_) => \"do d now\".into() } }",
    );
    let helps: Vec<String> = helps.into_iter().map(|(kind, help)| format!("{kind} {help}")).collect();
    assert_eq!(helps, ["RunError::A do a {x}", "RunError::D do d now"]);
}
