//! Chats as samples whose answers count, and the bounds of chat templates.

use std::fs;

use serde_json::Value;

use crate::{command, error, gpt2, made, names, npy};

/// The program is also the process that a chat template runs in, so its bounds are tested here.
#[test]
fn chats_become_samples_whose_answers_count() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    gpt2(&at("gpt2"));
    let template = |source: &str| fs::write(at("gpt2/chat_template.jinja"), source).unwrap();
    let chat = |messages: &[(&str, &str)]| {
        let message =
            |(role, content): &(&str, &str)| serde_json::json!({ "role": role, "content": content });
        let messages: Vec<Value> = messages.iter().map(message).collect();
        format!("{}\n", serde_json::json!({ "messages": messages, "id": 5, "tools": null }))
    };
    let talk = [("user", "he"), ("assistant", " he"), ("user", " he he"), ("assistant", "he")];
    fs::write(at("a.jsonl"), chat(&talk) + "{\"prompt\":\"he\",\"completion\":\" he\"}\n").unwrap();
    fs::write(at("e.jsonl"), chat(&[("user", "h"), ("assistant", "e")])).unwrap();
    fs::write(at("question.jsonl"), chat(&talk[..1])).unwrap();
    fs::write(at("both.jsonl"), "{\"messages\":[{\"role\":\"user\"}],\"prompt\":\"he\"}\n").unwrap();
    fs::write(at("tools.jsonl"), "{\"messages\":[{\"role\":\"user\"}],\"tools\":[1]}\n").unwrap();
    fs::write(at("roleless.jsonl"), "\n{\"messages\":[{\"content\":\"he\"}]}\n").unwrap();
    let common = ["answers", "--tokenizer", "gpt2", "--pad", "<|endoftext|>", "--context", "8"];
    let import =
        |output: &str| made(folder.path(), &[&common[..], &["--output", output, "a.jsonl"]].concat());
    let array = |output: &str| npy(&at(output)).1;
    // A turn ends with a special token. First without blocks; then with blocks, of which that token is no part.
    let turns = |[begin, end]: [&str; 2]| {
        format!(
            "{{% for m in messages %}}{{% if m.role == 'assistant' %}}{begin}{{{{ m.content }}}}{end}{{% else %}}{{{{ m.content }}}}{{% endif %}}<|endoftext|>{{% endfor %}}"
        )
    };
    let plain = turns(["", ""]);
    template(&plain);
    let said = import("found.npy");
    let ids: Vec<u16> =
        [[256, 258, 257, 258, 257, 257, 258, 256, 258], [256, 257, 258, 258, 258, 258, 258, 258, 258]]
            .concat();
    assert_eq!(array("found.npy"), ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>());
    assert_eq!(array("found.mask.npy"), [[0, 0, 1, 1, 0, 0, 0, 1, 1], [0, 1, 0, 0, 0, 0, 0, 0, 0]].concat());
    assert_eq!([&said["samples"], &said["counted"]], [2, 5]);
    assert_eq!(said["chat_template"]["blake3"], blake3::hash(plain.as_bytes()).to_hex().as_str());
    assert!(names(&at("found.npy.tokenizer")).contains(&"chat_template.jinja".to_string()));
    template(&turns(["{% generation %}", "{% endgeneration %}"]));
    import("said.npy");
    assert_eq!(array("said.mask.npy")[..9], [0, 0, 1, 0, 0, 0, 0, 1, 0]);
    assert_eq!(array("said.npy"), array("found.npy"));

    // The template engine counts no walk through lists that were joined, and drops values in values by recursion.
    let joined = "{% set n = namespace(x=[1, 2]) %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}{{ n.x | length }}";
    let nested =
        "{% set n = namespace(x=[]) %}{% for i in range(90000) %}{% set n.x = [[[[[n.x]]]]] %}{% endfor %}";
    // The engine counts a list once it is made, and this one takes 0.8 GiB of memory beside its text.
    let split = r"{{ ('\n' * 17000000).split('\n') | length }}";
    let too_much = match cfg!(target_os = "linux") {
        true => "the chat template was stopped: it took more than 1024 MiB of memory",
        false => "units of work",
    };
    let last = "{% for m in messages %}{{ m.content }}{% if loop.last %}!{% endif %}{% endfor %}";
    let before = names(folder.path());
    for (source, more, file, why) in [
        (&plain[..], &[][..], "question.jsonl", "line 1: its answers have no token"),
        (&plain, &[], "both.jsonl", "line 1: it has messages and prompt"),
        (&plain, &[], "tools.jsonl", "line 1: it has messages and tools"),
        (&plain, &[], "roleless.jsonl", "line 2: message 1: it has no role"),
        (&plain, &["--end-of-text", "<|endoftext|>"], "a.jsonl", "leave out --end-of-text"),
        ("{{ raise_exception('no') }}", &[], "a.jsonl", "line 1: the chat template refuses the messages: no"),
        (last, &[], "a.jsonl", "the messages up to message 2 in another way"),
        (
            "{% for m in messages %}{{ m.content }}{% endfor %}",
            &[],
            "e.jsonl",
            "a token holds an end of an answer",
        ),
        ("{% for %}", &[], "a.jsonl", "line 1: the chat template is not understood"),
        (
            joined,
            &["--template-time", "1"],
            "a.jsonl",
            "the chat template was stopped: it took more than 1 s",
        ),
        (
            nested,
            &[],
            "a.jsonl",
            "the chat template was stopped: it took more than 64 MiB of stack; shorten the messages, or use another template",
        ),
        (split, &[], "a.jsonl", too_much),
    ] {
        template(source);
        let arguments = [&common[..], &["--output", "out.npy"], more, &[file]].concat();
        let (exit, error) = error(folder.path(), &arguments);
        assert!(exit == 4 && error.contains(why), "{file}: {exit} {error}");
        assert_eq!(names(folder.path()), before, "{file}");
    }
    // A terminal obeys none of a template's words.
    template("{{ raise_exception('\u{1b}[31mno\u{202e}\nerror') }}");
    let said = command(folder.path(), &[&common[..], &["--output", "out.npy", "a.jsonl"]].concat()).stderr;
    let said = String::from_utf8(said).unwrap();
    assert!(said.ends_with("messages: \\u{1b}[31mno\\u{202e}\\nerror\n"), "{said:?}");
}
