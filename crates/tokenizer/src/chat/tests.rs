//! Templates in the forms of released models against transformers, whose texts `assets/vectors/chats.py` wrote down; bounds; refusals.

use std::fs;

use serde_json::{Value, json};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use super::render::Compiled;
use super::{Bounds, Chat, Renderer, TEXT_MAX, Template};
use crate::files;
use crate::local::Local;

const CASES: &str = include_str!("../../../../assets/vectors/chats.json");

fn template(source: &str) -> Template {
    let tokens = json!({ "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>" });
    Template { source: source.into(), tokens: tokens.as_object().unwrap().clone() }
}

/// A template's text of a chat with the beginning of an answer.
fn prompt(source: &str, messages: &Value) -> Result<String, String> {
    asked(&Compiled::of(&template(source))?, &Chat::read(messages)?)
}

fn asked(compiled: &Compiled, chat: &Chat) -> Result<String, String> {
    compiled.prompt(chat, TEXT_MAX as u64)
}

fn hello() -> Value {
    json!([{ "role": "user", "content": "Hi" }])
}

/// The tokenizer of the script: bytes and special tokens.
fn tokenizer(special: &Value) -> Local {
    let folder = tempfile::tempdir().unwrap();
    let mut letters: Vec<String> = ByteLevel::alphabet().into_iter().map(String::from).collect();
    letters.sort();
    let added = special.as_array().unwrap().iter().map(|token| token.as_str().unwrap().to_string());
    let tokens: Vec<String> = letters.into_iter().chain(added).collect();
    let ids = |from: usize| -> serde_json::Map<String, Value> {
        tokens.iter().cloned().zip((0..).map(Value::from)).skip(from).collect()
    };
    let all: serde_json::Map<String, Value> =
        ids(0).into_iter().filter(|(_, id)| id.as_u64() < Some(256)).collect();
    fs::write(folder.path().join("vocab.json"), Value::from(all).to_string()).unwrap();
    fs::write(folder.path().join("merges.txt"), "#version: 0.2\n").unwrap();
    fs::write(folder.path().join("added_tokens.json"), Value::from(ids(256)).to_string()).unwrap();
    Local::of(folder.path(), &files::read(folder.path()).unwrap()).unwrap()
}

#[test]
fn texts_are_those_of_transformers() {
    let file: Value = serde_json::from_str(CASES).unwrap();
    let loaded = tokenizer(&file["special"]);
    let cases = file["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 30);
    let mut masks = 0;
    for case in cases {
        let name = case["template"].as_str().unwrap();
        let compiled = Compiled::of(&template(file["templates"][name].as_str().unwrap())).unwrap();
        let chat = Chat::read(&case["messages"]).unwrap();
        if let Some(why) = case["error"].as_str() {
            assert_eq!(
                asked(&compiled, &chat).unwrap_err(),
                format!("the chat template refuses the messages: {why}")
            );
            continue;
        }
        assert_eq!(
            asked(&compiled, &chat).as_deref(),
            Ok(case["prompt"].as_str().unwrap()),
            "{name} {chat:?}"
        );
        let Ok(rendered) = compiled.answers(&chat) else {
            // A qwen's earlier answers, and texts without an order, have no parts that could be told.
            assert!(["qwen", "sundry"].contains(&name), "{name} {chat:?}");
            continue;
        };
        assert_eq!(rendered.text, case["text"].as_str().unwrap(), "{name} {chat:?}");
        if rendered.said {
            let (ids, inside) = loaded.ids_and_parts(&rendered.text, &rendered.spans).unwrap();
            let mask: Vec<u8> = inside.into_iter().map(u8::from).collect();
            assert_eq!((json!(ids), json!(mask)), (case["ids"].clone(), case["mask"].clone()), "{chat:?}");
            masks += 1;
        }
    }
    assert_eq!(masks, 5);
}

#[test]
fn answers_are_told_by_prefixes_or_refused() {
    let file: Value = serde_json::from_str(CASES).unwrap();
    let of = |name: &str, number: usize| {
        let compiled = Compiled::of(&template(file["templates"][name].as_str().unwrap())).unwrap();
        let rendered = compiled.answers(&Chat::read(&file["cases"][number]["messages"]).unwrap())?;
        let parts = rendered.spans.iter().map(|[begin, end]| rendered.text[*begin..*end].to_string());
        Ok::<Vec<String>, String>(parts.collect())
    };
    assert_eq!(of("chatml", 0).unwrap(), ["Four.<|im_end|>\n"]);
    assert_eq!(of("chatml", 1).unwrap(), ["  Hello  <|im_end|>\n", "B\u{e9}. \u{1f600}<|im_end|>\n"]);
    assert_eq!(of("llama", 1).unwrap(), ["Hello<|eot|>", "B\u{e9}. \u{1f600}<|eot|>"]);
    assert_eq!(of("mistral", 0).unwrap(), [" Four.</s>"]);
    assert_eq!(of("generation", 1).unwrap(), ["Hello<|im_end|>", "B\u{e9}. \u{1f600}<|im_end|>"]);
    assert!(of("qwen", 2).unwrap_err().contains("the messages up to message 2 in another way"));
    // The beginning of an answer is another one than that of an answer that is there.
    let other = "{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}{% if add_generation_prompt %}assistant, {% endif %}";
    let chat = Chat::read(&file["cases"][0]["messages"]).unwrap();
    let why = Compiled::of(&template(other)).unwrap().answers(&chat).unwrap_err();
    assert!(why.contains("the messages up to message 2 in another way"), "{why}");
    let changed = "{% for m in messages %}{% set t %}{% generation %} {{ m.content }}{% endgeneration %}{% endset %}{{ t | trim }}{% endfor %}";
    let chat = Chat::read(&json!([{ "role": "assistant", "content": "a" }])).unwrap();
    let why = Compiled::of(&template(changed)).unwrap().answers(&chat).unwrap_err();
    assert!(why.contains("changes the text of its {% generation %} blocks"), "{why}");
}

#[test]
fn what_a_template_may_not_do_is_an_error() {
    for (source, why) in [
        ("{{ raise_exception('no tools') }}", "the chat template refuses the messages: no tools"),
        (
            "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
            "units of work",
        ),
        ("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", "units of work"),
        ("{{ 'x' * 1000000000000 }}", "units of work"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion limit"),
        ("{{ strftime_now('%Y') }}", "today's date"),
        ("{% include 'x' %}", "is not understood"),
        ("{% for %}", "is not understood"),
        ("{{ messages[5].content.x }}", "the chat template fails"),
        ("{{ 'x' | tojson(ensure_ascii=true) }}", "leave ensure_ascii out"),
    ] {
        let error = prompt(source, &hello()).unwrap_err();
        assert!(error.contains(why), "{source}: {error}");
    }
    // A template that asks whether it can have the date does without it.
    assert_eq!(
        prompt("{{ 'today' if strftime_now is defined else 'some day' }}", &hello()).unwrap(),
        "some day"
    );
    for (messages, why) in [
        (json!([]), "no list of one message"),
        (json!({ "role": "user" }), "no list of one message"),
        (json!(["Hi"]), "message 1: it is no object"),
        (json!([{ "content": "Hi" }]), "message 1: it has no role"),
        (json!([{ "role": null, "content": "Hi" }]), "message 1: it has no role"),
        (
            json!([{ "role": "user", "content": [{ "type": "text", "text": "Hi" }] }]),
            "its field \"content\" is no text",
        ),
        (json!([{ "role": "user", "content": "x".repeat(1 << 24) }]), "at most 16777216 are taken"),
        (json!(vec![json!({ "role": "user" }); 65537]), "it has 65537 messages"),
    ] {
        let error = Chat::read(&messages).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
}

/// A unit is 64 bytes that are made: the 2^21 units of a rendering are 134.2 million bytes.
#[test]
fn the_work_of_a_rendering_is_bounded_where_the_page_says() {
    let made = |last: u32| {
        let source = format!("{{% set a = 'x' * 60000000 %}}{{% set b = 'x' * {last} %}}");
        prompt(&source, &hello())
    };
    assert_eq!(made(73_000_000).as_deref(), Ok(""));
    let why = made(75_000_000).unwrap_err();
    assert!(why.contains("used up its 2097152 units of work"), "{why}");
    let chat = Chat::read(&hello()).unwrap();
    let long = Compiled::of(&template("12345")).unwrap();
    assert_eq!(long.prompt(&chat, 5).as_deref(), Ok("12345"));
    let why = long.prompt(&chat, 4).unwrap_err();
    assert!(why.contains("a text of 5 bytes; at most 4 are taken"), "{why}");
}

/// The Python package calls commands in a process of Python, which is no renderer.
#[test]
fn a_program_that_is_no_renderer_starts_none() {
    let bounds = Bounds { seconds: 1, help: "" };
    let why = Renderer::start(template("a"), bounds).err().unwrap();
    assert!(why.contains("this program starts no process for the chat template"), "{why}");
}

#[test]
fn a_template_is_found_where_transformers_finds_it() {
    let of = |files: &[(&str, &'static str)]| {
        Template::of(|name| files.iter().find(|(file, _)| *file == name).map(|(_, text)| text.as_bytes()))
    };
    let config = (
        "tokenizer_config.json",
        r#"{"chat_template": "c", "bos_token": {"content": "<s>"}, "eos_token": null}"#,
    );
    let map = ("special_tokens_map.json", r#"{"bos_token": "<b>", "eos_token": "</s>"}"#);
    let found = of(&[config, map]).unwrap();
    assert_eq!(
        (&found.source[..], json!(found.tokens)),
        ("c", json!({ "bos_token": "<s>", "eos_token": "</s>" }))
    );
    assert_eq!(of(&[config, ("chat_template.jinja", "j")]).unwrap().source, "j");
    let list =
        r#"{"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}"#;
    assert_eq!(of(&[("tokenizer_config.json", list)]).unwrap().source, "d");
    for (text, why) in [
        ("{}", "the tokenizer has no chat template"),
        (r#"{"chat_template": [{"name": "x", "template": "t"}]}"#, "has the name default"),
        ("[", "no object of JSON"),
    ] {
        let error = of(&[("tokenizer_config.json", text)]).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
}
