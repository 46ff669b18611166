//! Answers over a tokenizer's tokens, while the tokenizer is slow for somebody: nobody else waits for it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::answers::tokenizer;
use super::chats::trained;
use super::path;
use super::served_models::{PATIENCE, Served, posted, read, sent, served};

/// A server of a model with the tokenizer of `answers`, in one file, with these parts.
fn slow(folder: &Path, run: &str, parts: &Value) -> Served {
    let vocabulary = fs::read_to_string(folder.join("gpt2/vocab.json")).unwrap();
    let mut vocabulary: Value = serde_json::from_str(&vocabulary).unwrap();
    vocabulary.as_object_mut().unwrap().remove("<|endoftext|>");
    let bytes =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    let mut all = json!({ "version": "1.0", "added_tokens": [], "pre_tokenizer": bytes, "decoder": bytes,
        "model": { "type": "BPE", "vocab": vocabulary, "merges": ["h e"] } });
    all.as_object_mut().unwrap().extend(parts.as_object().unwrap().clone());
    let file = path(folder, "tokenizer.json");
    fs::write(&file, all.to_string()).unwrap();
    served(run, &["--tokenizer", &file, "--most-tokens", "524288"])
}

/// How often a server says that it is well, and `more` is done, before it answers a request; and that answer.
fn meanwhile(server: &Served, fields: &Value, more: impl Fn()) -> (usize, u16, String) {
    let answer = posted(&server.address, "/v1/completions", fields);
    thread::scope(|scope| {
        let answer = scope.spawn(|| read(answer));
        let mut count = 0;
        loop {
            thread::sleep(Duration::from_millis(50));
            assert_eq!(read(sent(&server.address, "GET /healthz HTTP/1.0", b"")).2, "ok\n");
            more();
            if answer.is_finished() {
                let (status, _, body) = answer.join().unwrap();
                return (count, status, body);
            }
            count += 1;
        }
    })
}

/// The server's thread never waits for the tokenizer's process: neither for a prompt's tokens, during which streams go on, nor for the
/// text of tokens.
#[test]
fn a_slow_tokenizer_stops_no_other_request() {
    let folder = tempfile::tempdir().unwrap();
    let run = trained(folder.path());
    tokenizer(&folder.path().join("gpt2"));

    // Each step reads the whole prompt.
    let steps = json!({ "type": "Sequence", "normalizers": vec![json!({ "type": "Lowercase" }); 50] });
    let server = slow(folder.path(), &run, &json!({ "normalizer": steps }));
    let endless =
        json!({ "model": "run", "prompt": [1, 2, 3], "max_tokens": 500_000, "stream": true, "seed": 1 });
    let stream = posted(&server.address, "/v1/completions", &endless);
    let parts = Arc::new(AtomicUsize::new(0));
    thread::spawn({
        let parts = parts.clone();
        move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                parts.fetch_add(usize::from(line.starts_with("data: ")), Ordering::Relaxed);
            }
        }
    });
    let part = || {
        let (before, begin) = (parts.load(Ordering::Relaxed), Instant::now());
        while parts.load(Ordering::Relaxed) == before {
            assert!(begin.elapsed() < PATIENCE, "the stream stops");
            thread::sleep(Duration::from_millis(1));
        }
    };
    part();
    let long = json!({ "model": "run", "prompt": "a ".repeat(100_000), "max_tokens": 524_287 });
    let (count, status, body) = meanwhile(&server, &long, part);
    assert!(status == 400 && body.contains("the prompt has 200000 tokens"), "{status} {body}");
    assert!(count > 9, "{count} rounds while a prompt's tokens are made");
    drop(server);

    // Each step reads the text of each token.
    let mut steps = vec![json!({ "type": "Replace", "pattern": { "String": "~" }, "content": "-" }); 1000];
    steps.push(
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true }),
    );
    let server = slow(folder.path(), &run, &json!({ "decoder": { "type": "Sequence", "decoders": steps } }));
    let short = json!({ "model": "run", "prompt": vec![64; 5000], "max_tokens": 1 });
    let (count, status, body) = meanwhile(&server, &short, || {});
    assert!(status == 200 && body.contains("tiebreak_receipt"), "{status} {body}");
    assert!(count > 9, "{count} rounds while the text of tokens is made");
}
