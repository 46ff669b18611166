//! The forms of one tokenizer, and what is no tokenizer.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use crate::files::{self, GPT2_END};
use crate::local::Local;
use crate::{Bounds, Cuts, Error, Loaded};

/// The tokenizer at a path, in this process.
fn opened(path: &Path) -> Result<Local, Error> {
    Local::of(path, &files::read(path)?)
}

/// A vocabulary over bytes, with two merges and an end of text.
fn vocabulary() -> (String, &'static str) {
    let mut tokens: Vec<String> = ByteLevel::alphabet().into_iter().map(String::from).collect();
    tokens.sort();
    tokens.extend(["he", "\u{120}he", GPT2_END].map(String::from));
    let ids: serde_json::Map<String, Value> = tokens.into_iter().zip((0..).map(Value::from)).collect();
    (Value::from(ids).to_string(), "#version: 0.2\nh e\n\u{120} he\n")
}

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    files.iter().for_each(|(name, text)| fs::write(folder.path().join(name), text).unwrap());
    folder
}

#[test]
fn every_form_of_one_tokenizer_gives_the_same_tokens() {
    let (ids, merges) = vocabulary();
    let text = "he, he said\u{e9} <|endoftext|>\n 12";
    let released = folder(&[("encoder.json", &ids), ("vocab.bpe", merges)]);
    let released = opened(released.path()).unwrap();
    let expected = released.ids(text).unwrap();
    assert!(expected.starts_with(&[256]) && expected.contains(&257) && expected.contains(&258));
    let transformers = folder(&[("vocab.json", &ids), ("merges.txt", merges)]);
    let described = released.tokenizer.to_string(false).unwrap();
    let json = folder(&[("tokenizer.json", &described), ("vocab.json", "not looked at")]);
    let file = json.path().join("tokenizer.json");
    for (path, cuts) in
        [(transformers.path(), Cuts::WhiteSpace), (json.path(), Cuts::WhiteSpace), (&file, Cuts::WhiteSpace)]
    {
        let loaded = opened(path).unwrap();
        assert_eq!(
            (loaded.ids(text).unwrap(), loaded.cuts, loaded.ids.last()),
            (expected.clone(), cuts, Some(&258))
        );
        assert_eq!(loaded.text(&expected).unwrap(), text);
        assert_eq!(loaded.tokenizer.token_to_id(GPT2_END), Some(258));
    }
    let added =
        folder(&[("vocab.json", &ids), ("merges.txt", merges), ("added_tokens.json", r#"{"<|x|>":259}"#)]);
    let added = opened(added.path()).unwrap();
    assert_eq!(
        (added.ids("<|x|>").unwrap(), added.cuts, added.ids.last()),
        (vec![259], Cuts::Nowhere, Some(&259))
    );
    let prefixed = [
        ("vocab.json", &ids[..]),
        ("merges.txt", merges),
        ("tokenizer_config.json", r#"{"add_prefix_space":true}"#),
    ];
    assert_eq!(opened(folder(&prefixed).path()).unwrap().ids("he").unwrap(), [257]);
}

#[test]
fn what_is_no_tokenizer_is_named() {
    let (ids, merges) = vocabulary();
    let gpt2 = [("vocab.json", &ids[..]), ("merges.txt", merges)];
    let piece = "\n\u{e}\n\u{5}<unk>\u{15}\0\0\0\0\u{18}\u{2}";
    for (files, name, why) in [
        (&[][..], "", "tokenizer.json is wanted"),
        (&[("vocab.json", &ids[..])], "", "vocab.json with merges.txt"),
        (&[("tokenizer.model", piece)], "", "convert SentencePiece models first"),
        (
            &[("tokenizer.model", piece)],
            "tokenizer.model",
            "this is no tokenizer.json; convert SentencePiece models first",
        ),
        (&[("tokenizer.model", "")], "tokenizer.model", "convert SentencePiece models first"),
        (&[("vocab.json", &ids)], "vocab.json", "name the folder"),
        (&[("t.json", "to be")], "t.json", "this is no tokenizer.json"),
        (&[("t.json", "<!DOCTYPE html>")], "t.json", "a web page (HTML)"),
        (&[("t.json", "version https://git-lfs.github.com/spec/v1\n")], "t.json", "git lfs pull"),
        (&[("vocab.json", r#"{"a":0}"#), ("merges.txt", merges)], "", "no vocabulary over bytes"),
        (&[gpt2[0], ("merges.txt", "h\n")], "", "line 1 has not two parts"),
        (
            &[gpt2[0], gpt2[1], ("tokenizer_config.json", r#"{"tokenizer_class":"Qwen2Tokenizer"}"#)],
            "",
            "Qwen2Tokenizer",
        ),
        (&[gpt2[0], gpt2[1], ("added_tokens.json", r#"{"<|x|>":300}"#)], "", "cannot have the number 300"),
    ] {
        let folder = folder(files);
        let error = opened(&folder.path().join(name)).err().unwrap().to_string();
        assert!(error.contains(why), "{why}: {error}");
    }
}

/// The Python package calls commands in a process of Python, which is no worker.
#[test]
fn a_program_that_is_no_worker_starts_none() {
    let (ids, merges) = vocabulary();
    let folder = folder(&[("vocab.json", &ids), ("merges.txt", merges)]);
    let bounds = Bounds { seconds: 1, threads: 1, help: "" };
    let why = Loaded::open(folder.path(), bounds).err().unwrap().to_string();
    assert!(why.contains("this program starts no process for the tokenizer"), "{why}");
}
