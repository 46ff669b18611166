//! Errors that tell of a difference say the value that was found: the words that tell of one, and the errors that have no value to say.

use std::collections::BTreeSet;

use crate::catalogue;
use crate::errors::Text;

/// Words of a text that compares something with what it should be.
const COMPARING: &[&str] = &[
    "is not",
    "are not",
    "does not match",
    "does not fit",
    "does not give",
    "does not belong",
    "does not verify",
    "do not give",
    "differ",
    "differs",
    "another",
    "others",
    "more than",
    "less than",
    "fewer than",
    "too many",
    "too few",
    "too long",
    "too short",
    "too large",
    "no such",
    "wrong",
    "malformed",
    "outside",
    "longer",
    "shorter",
    "larger",
    "smaller",
];

/// Errors without a value, each group with the reason.
const EXCEPTIONS: &[(&str, &[&str])] = &[
    (
        // A reader plays the game of a verdict again and compares these sentences with the file's: they are a format.
        "a game's verdict holds it",
        &[
            "a decision of more than {BITS_MAX} bits",
            "a slice is not what the manifest promises",
            "a slice is outside the log",
            "a slice is too short",
            "an input slice has the wrong place or length",
            "an input slice is not what the run committed to",
            "an integer is not in its shortest form",
            "an integer is too long",
            "it answers another question",
            "it has no places, no bytes or too many",
            "it is no .npy file: its first bytes are others",
            "it is not in its one encoding",
            "it lies outside the part",
            "it lists another number of frozen parameters",
            "it lists another number of outputs",
            "it lists too few tensors",
            "its slices are not those that show the block",
            "its slices are not those that were asked for",
            "padding that is not zero",
            "slices are not of the run's files, each once, in order",
            "the element is not rounded by a log",
            "the file is too short",
            "the header is not text",
            "the leaf is outside the tree",
            "the log has no such part",
            "the log is not the one that the record commits",
            "the log's part has no such block",
            "the manifest is not that of the run's data",
            "the number of hashes is wrong",
            "the outputs are not what it stated",
            "the part has no such block",
            "the record before the step is another step's",
            "the record is not a step's",
            "the record is of another computation",
            "there is no such node",
            "too few hashes",
            "too many hashes",
        ],
    ),
    (
        // Whoever reads or counts stops there.
        "nobody knows the value: the limit ended the reading",
        &[
            "it begins as a token file of llm.c, and its header holds more than three numbers",
            "it holds more than {HEADS_MAX} heads",
            "it holds more than {UNPACKED_MAX} bytes; unpack it and name the file without .gz",
            "more than {UNEXPECTED_MAX} files are there that are not a run's",
            "the file has more than {FILE_MAX} bytes",
            "the job has more than {JOB_MAX} bytes",
            "too many questions are waiting: ask again later",
        ],
    ),
    (
        // A malformed private key, or a code that only the secret gives.
        "the value is secret, or would help to find a secret",
        &[
            "it has another secret",
            "its checksum is wrong: it was damaged, or its sender does not know the run's secret",
        ],
    ),
    (
        // The error that carries it names the device, the operator or the file.
        "it is the name of a check, and a part of a sentence",
        &[
            "BLAKE3 roots differ from the host's",
            "an operator's bits differ from the scalar reference",
            "another agent listens there",
            "another agent writes this log",
            "another part of this process",
            "cuBLAS gives wrong products of small integers",
            "its order and offsets are not those of a grouping",
            "operands differ in samples or K",
            "operands or result have no element, or more than 2^32 - 1",
            "rows computed at once differ from the scalar reference",
            "there is no such file",
        ],
    ),
    (
        // A setting that is there or not, or an entry of a folder that nothing is read of.
        "it refuses something that has no value",
        &[
            "a folder is wanted (links are not followed)",
            "a plain file is wanted (links and folders are not followed)",
            "a run holds plain files and folders only (links are not followed)",
        ],
    ),
];

/// True if a text compares and says no value. A constant's name, in capitals, stands for what is expected and for nothing found.
fn is_bare(text: &str) -> bool {
    let (mut words, mut values, mut rest) = (String::from(" "), 0, text);
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}').unwrap_or((after, ""));
        let is_constant = name.contains(char::is_uppercase) && !name.contains(char::is_lowercase);
        values += usize::from(!is_constant);
        words += before;
        words += "N";
        rest = after;
    }
    words += rest;
    words.push(' ');
    let words: String = words.chars().map(|c| if c.is_alphanumeric() { c } else { ' ' }).collect();
    let words = format!(" {} ", words.split_whitespace().collect::<Vec<_>>().join(" "));
    values == 0 && COMPARING.iter().any(|phrase| words.contains(&format!(" {phrase} ")))
}

/// The texts that compare and say no value. Findings carry their values beside their sentences.
fn bare(texts: &[Text]) -> BTreeSet<&str> {
    let errors = texts.iter().filter(|text| !catalogue::is_finding(&text.kind));
    errors.map(|text| text.text.as_str()).filter(|text| is_bare(text)).collect()
}

#[test]
fn errors_that_compare_say_what_was_found() {
    let texts = catalogue::of_repository();
    let bare = bare(texts);
    let allowed: Vec<&str> = EXCEPTIONS.iter().flat_map(|(_, texts)| texts.iter().copied()).collect();
    let places = |text: &str| {
        let files = texts.iter().filter(|other| other.text == text).map(|other| other.file.as_str());
        files.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", ")
    };
    let new: Vec<String> = bare
        .iter()
        .filter(|text| !allowed.contains(text))
        .map(|text| format!("{}: {text}", places(text)))
        .collect();
    assert!(new.is_empty(), "these errors compare, and say no value that was found:\n{}", new.join("\n"));
    let gone: Vec<&&str> = allowed.iter().filter(|text| !bare.contains(**text)).collect();
    assert!(gone.is_empty(), "no bare error has these texts any more: {gone:#?}");
    let once: BTreeSet<&str> = allowed.iter().copied().collect();
    assert_eq!(once.len(), allowed.len(), "an exception stands twice");
}

#[test]
fn a_bare_error_is_found() {
    for text in [
        "the head is of another run",
        "a node has too few tiles",
        "it has more than {LINES_MAX} bytes",
        "the size is not, it seems, right: it is wrong",
    ] {
        assert!(is_bare(text), "{text}");
    }
    for text in [
        "the head is of another run, {found}",
        "format {} is not {FORMAT}",
        "there is no blank line",
        "an otherwise fine text",
        "{path}: it differs",
    ] {
        assert!(!is_bare(text), "{text}");
    }
}
