//! `tiebreak serve-model`: clients at once against `generate`'s bytes, what is refused, bounds, clients that leave, and the end.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::answers::small;
use super::{output, path, tiebreak};

/// The longest that a test waits for anything.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A server that ends with the test.
pub struct Served {
    pub child: Child,
    pub address: String,
    pub said: Value,
    _stderr: ChildStderr,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a server and waits until it listens.
pub fn served(run: &str, more: &[&str]) -> Served {
    started(&[&["serve-model", run, "--listen", "127.0.0.1:0", "--engine", "cpu", "--json"], more].concat())
}

/// Starts a command that says in JSON what it serves.
pub fn started(args: &[&str]) -> Served {
    let mut child = tiebreak(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut stderr, mut text) = (child.stderr.take().unwrap(), String::new());
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        text += &line.unwrap();
        if text.ends_with('}') && serde_json::from_str::<Value>(&text).is_ok() {
            break;
        }
    }
    let Ok(said) = serde_json::from_str::<Value>(&text) else {
        let mut why = String::new();
        stderr.read_to_string(&mut why).unwrap();
        panic!("{why}");
    };
    let address = said["address"].as_str().and_then(|address| address.strip_prefix("http://"));
    let address = address.unwrap_or_default().to_string();
    Served { child, address, said, _stderr: stderr }
}

/// A connection on which a request was sent. A server answers HTTP 1.0 without chunks.
pub fn sent(address: &str, head: &str, body: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(format!("{head}\r\n\r\n").as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    stream
}

fn asking(address: &str, fields: &Value) -> TcpStream {
    posted(address, "/v1/completions", fields)
}

pub fn posted(address: &str, path: &str, fields: &Value) -> TcpStream {
    let body = fields.to_string();
    let head = format!(
        "POST {path} HTTP/1.0\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: {}",
        body.len()
    );
    sent(address, &head, body.as_bytes())
}

/// The status, the headers and the body of an answer.
pub fn read(mut stream: TcpStream) -> (u16, String, String) {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_lowercase(), body.into())
}

fn asked(address: &str, fields: &Value) -> (u16, Value) {
    let (status, _, body) = read(asking(address, fields));
    (status, serde_json::from_str(&body).unwrap_or_else(|_| panic!("{status} {body}")))
}

/// The messages of a stream's body.
pub fn events(body: &str) -> Vec<Value> {
    let mut events: Vec<&str> = body.split_terminator("\n\n").collect();
    assert_eq!(events.pop(), Some("data: [DONE]"), "{body}");
    events.iter().map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap()).collect()
}

/// The next line of a stream that has text.
fn next_part(stream: &mut BufReader<TcpStream>) -> String {
    loop {
        let mut line = String::new();
        assert!(stream.read_line(&mut line).unwrap() > 0, "the stream ended");
        if line.starts_with("data: ") {
            return line;
        }
    }
}

/// The answer's text and the receipt's file by `generate`.
fn generated(run: &str, receipt: &str, options: &[String]) -> (String, String) {
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let more = ["--json", "--receipt", receipt, "--engine", "cpu"];
    let (code, stdout, stderr) = output(&[&["generate", run], &more[..], &options].concat());
    assert_eq!(code, 0, "{stderr}");
    let found: Value = serde_json::from_str(&stdout).unwrap();
    (found["text"].as_str().unwrap().into(), fs::read_to_string(receipt).unwrap())
}

#[test]
fn answers_of_clients_at_once_are_those_of_generate() {
    let folder = tempfile::tempdir().unwrap();
    let (run, key) = (small(folder.path(), "0.01"), path(folder.path(), "me.key"));
    assert_eq!(output(&["key", "new", &key, "--name", "me.example"]).0, 0);
    let server = served(&run, &["--key", &key, "--name", "mine", "--seats", "3", "--most-tokens", "90"]);
    assert_eq!(
        (&server.said["model"], &server.said["seats"], &server.said["most_tokens"]),
        (&"mine".into(), &3.into(), &90.into())
    );
    // Longer than the context of 40 tokens, and shorter; by temperature, by seed, greedy.
    let prompts =
        ["The quick", "T", "jumps over the lazy dog. The quick brown", "fox", "a", "lazy", "dog", "over"];
    let one = |number: usize| {
        let (prompt, length) = (prompts[number], [50, 7, 30, 80, 1, 60, 20, 11][number]);
        let temperature = [1.0, 0.0, 2.0, 0.5][number % 4];
        let mut fields = json!({
            "model": "mine", "prompt": prompt, "max_tokens": length, "temperature": temperature, "seed": number,
        });
        let mut options: Vec<String> = ["--prompt", prompt, "--key", &key].map(String::from).into();
        for (name, value) in [
            ("length", length.to_string()),
            ("temperature", temperature.to_string()),
            ("seed", number.to_string()),
        ] {
            options.extend([format!("--{name}"), value]);
        }
        if number % 4 == 2 {
            fields["top_p"] = json!(0.9);
            fields["top_k"] = json!(20);
            options.extend(["--top-p", "0.9", "--top-k", "20"].map(String::from));
        }
        if number == 3 {
            fields["prompt"] = json!(prompt.bytes().collect::<Vec<u8>>());
        }
        let streams = number.is_multiple_of(2);
        if streams {
            fields["stream"] = json!(true);
            fields["stream_options"] = json!({ "include_usage": number == 4 });
        }
        let (status, _, body) = read(asking(&server.address, &fields));
        assert_eq!(status, 200, "{body}");
        let file = path(folder.path(), &format!("{number}.json"));
        let (text, receipt) = generated(&run, &file, &options);
        let mut messages = if streams { events(&body) } else { vec![serde_json::from_str(&body).unwrap()] };
        let usage = json!({
            "prompt_tokens": prompt.len(), "completion_tokens": length, "total_tokens": prompt.len() + length,
        });
        if number == 4 {
            let last = messages.pop().unwrap();
            assert_eq!((&last["choices"], &last["usage"]), (&json!([]), &usage));
        }
        let last = messages.last().unwrap();
        assert_eq!(last["tiebreak_receipt"], receipt, "answer {number}");
        assert_eq!(last["choices"][0]["finish_reason"], "length");
        assert_eq!(last["usage"], if streams { Value::Null } else { usage });
        let parts = messages.iter().map(|message| message["choices"][0]["text"].as_str().unwrap());
        assert_eq!(parts.collect::<String>(), text[prompt.len()..], "answer {number}");
        assert!(!streams || messages.len() > length / 2, "the text of a stream comes in parts");
        let public = format!("{key}.pub");
        let (code, stdout, stderr) = output(&["receipt", "check", &file, &run, "--signer-key", &public]);
        assert!(code == 0 && stdout.starts_with("MATCHES"), "{stdout}{stderr}");
    };
    thread::scope(|scope| {
        for number in 0..prompts.len() {
            let one = &one;
            scope.spawn(move || one(number));
        }
    });
}

#[test]
fn a_seed_that_no_request_names_is_in_the_receipt() {
    let folder = tempfile::tempdir().unwrap();
    let run = small(folder.path(), "0.01");
    let server = served(&run, &["--step", "1"]);
    let seeds = [0, 1].map(|number| {
        let (status, answer) = asked(&server.address, &json!({ "model": "run", "prompt": "The" }));
        assert_eq!((status, &answer["usage"]["completion_tokens"]), (200, &16.into()), "{answer}");
        let (receipt, file) =
            (answer["tiebreak_receipt"].as_str().unwrap(), path(folder.path(), &format!("{number}")));
        fs::write(&file, receipt).unwrap();
        assert_eq!(output(&["receipt", "check", &file, &run, "--step", "1"]).0, 0);
        assert_eq!(output(&["receipt", "check", &file, &run]).0, 1);
        let fields: Value = serde_json::from_str(receipt).unwrap();
        assert_eq!(fields["signer"], Value::Null);
        fields["seed"].as_str().unwrap().to_string()
    });
    assert_ne!(seeds[0], seeds[1]);
}

#[test]
fn requests_that_are_not_served_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let server = served(&small(folder.path(), "0.01"), &[]);
    let address = &server.address;
    let slow = thread::spawn({
        let address = address.clone();
        move || {
            let head =
                "POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: 100";
            (Instant::now(), read(sent(&address, head, b"{")).0)
        }
    });
    for (fields, status, code) in [
        (json!({ "stop": "." }), 400, "unsupported_parameter"),
        (json!({ "n": 2 }), 400, "unsupported_parameter"),
        (json!({ "model": "other" }), 404, "model_not_found"),
        (json!({ "prompt": "" }), 400, "invalid_value"),
        (json!({ "prompt": [128] }), 400, "invalid_value"),
        (json!({ "prompt": "\u{e9}" }), 400, "invalid_value"),
        (json!({ "max_tokens": 38 }), 400, "context_length_exceeded"),
        (json!({ "max_tokens": 4_294_967_295u32 }), 400, "context_length_exceeded"),
        (json!({ "temperature": -1 }), 400, "invalid_value"),
    ] {
        let mut all = json!({ "model": "run", "prompt": "The", "max_tokens": 5 });
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let (found, answer) = asked(address, &all);
        assert_eq!((found, &answer["error"]["code"]), (status, &code.into()), "{fields}: {answer}");
        assert!(answer["error"]["param"].is_string() && answer["error"]["message"].is_string());
    }
    let get = |path: &str| read(sent(address, &format!("GET {path} HTTP/1.0"), b""));
    let post = |path: &str, kind: &str, length: usize| {
        let head = format!("POST {path} HTTP/1.0\r\nContent-Type: {kind}\r\nContent-Length: {length}");
        read(sent(address, &head, b"{}"))
    };
    assert_eq!((get("/healthz").0, get("/healthz").2), (200, "ok\n".into()));
    let models: Value = serde_json::from_str(&get("/v1/models").2).unwrap();
    assert_eq!(models["data"][0]["id"], "run");
    assert_eq!(models["data"][0]["tiebreak"]["parameters"], server.said["parameters"]);
    let chat = post("/v1/chat/completions", "application/json", 2);
    let no_chat = "chats are not served: the model is over bytes";
    assert!(chat.0 == 404 && chat.2.contains(no_chat) && server.said["chat"] == false, "{chat:?}");
    assert_eq!(get("/v1/chat/completions").0, 405);
    assert_eq!(get("/v1/other").0, 404);
    assert_eq!(get("/v1/completions").0, 405);
    assert_eq!(post("/v1/completions", "text/plain", 2).0, 415);
    assert_eq!(post("/v1/completions", "application/json", 2).0, 404);
    let long = post("/v1/completions", "application/json", (1 << 20) + 1);
    assert!(long.0 == 413 && long.2.contains("at most 1048576 bytes"), "{long:?}");
    let (begun, status) = slow.join().unwrap();
    assert!(status == 408 && begun.elapsed() < PATIENCE, "{status}");
    // Nothing of this kept the server from its work.
    assert_eq!(asked(address, &json!({ "model": "run", "prompt": "The", "max_tokens": 37 })).0, 200);
}

/// A page whose site's name means 127.0.0.1 reads no answer, and no page of another site makes the server work.
#[test]
fn a_web_page_cannot_ask_a_server_at_a_loopback_address() {
    let folder = tempfile::tempdir().unwrap();
    let server = served(&small(folder.path(), "0.01"), &[]);
    let asked = json!({ "model": "run", "prompt": "The", "max_tokens": 1 }).to_string();
    let ask = |what: &str, host: &str, kind: &str| {
        let more =
            format!("Origin: http://evil.example\r\nContent-Type: {kind}\r\nContent-Length: {}", asked.len());
        let head = format!("{what} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{more}");
        let (status, head, body) = read(sent(&server.address, &head, asked.as_bytes()));
        assert!(!head.contains("access-control-"), "{head}");
        (status, body)
    };
    let port = server.address.rsplit_once(':').unwrap().1;
    for what in ["GET /v1/models", "GET /healthz", "POST /v1/completions", "POST /other"] {
        let (status, body) = ask(what, &format!("evil.example:{port}"), "application/json");
        let error: Value = serde_json::from_str(&body).unwrap();
        let (code, why) = (&error["error"]["code"], error["error"]["message"].as_str().unwrap());
        assert!(
            status == 421 && code == "unknown_host" && why.contains("localhost"),
            "{what}: {status} {body}"
        );
    }
    for own in [&server.address, "localhost", "[::1]:8704"] {
        assert_eq!(ask("POST /v1/completions", own, "application/json").0, 200, "{own}");
    }
    // Across sites a browser sends a text unasked, and JSON only after this question, which nobody answers with a permission.
    assert_eq!(ask("POST /v1/completions", "localhost", "text/plain").0, 415);
    assert_eq!(ask("OPTIONS /v1/completions", "localhost", "text/plain").0, 405);
}

/// A request whose answer takes longer than the tests.
fn endless(address: &str) -> BufReader<TcpStream> {
    let fields = json!({ "model": "run", "prompt": "The", "max_tokens": 500_000, "stream": true });
    BufReader::new(asking(address, &fields))
}

/// Waits until the server has room for a request, and asks it.
fn once_there_is_room(address: &str, fields: &Value) -> TcpStream {
    let begin = Instant::now();
    loop {
        let stream = asking(address, fields);
        let mut first = [0; 12];
        // A stream's head comes as soon as the request is admitted.
        stream.peek(&mut first).unwrap();
        while stream.peek(&mut first).unwrap() < first.len() {}
        if &first != b"HTTP/1.0 429" {
            return stream;
        }
        assert!(begin.elapsed() < PATIENCE, "a place is not freed");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_full_server_refuses_and_clients_that_leave_free_their_places() {
    let folder = tempfile::tempdir().unwrap();
    let many = ["--seats", "1", "--waiting", "1", "--most-tokens", "524288"];
    let server = served(&small(folder.path(), "0.01"), &many);
    let address = &server.address;
    let short = json!({ "model": "run", "prompt": "The", "max_tokens": 4, "stream": true });
    let is_full = || {
        let (status, head, body) = read(asking(address, &short));
        assert!(status == 429 && head.contains("retry-after: 1"), "{status} {head} {body}");
        assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["error"]["type"], "rate_limit_error");
    };
    let mut first = endless(address);
    next_part(&mut first);
    let mut second = endless(address);
    second.get_ref().peek(&mut [0]).unwrap();
    is_full();
    is_full();
    // The seat of a client that leaves is the next one's.
    drop(first);
    next_part(&mut second);
    // So is the place of one that waits.
    let waits = once_there_is_room(address, &short);
    is_full();
    drop(waits);
    let third = once_there_is_room(address, &short);
    is_full();
    drop(second);
    let (status, _, body) = read(third);
    assert!(
        status == 200 && events(&body).last().unwrap()["tiebreak_receipt"].is_string(),
        "{status} {body}"
    );
    // Each of these finds the place that the one before it left.
    for _ in 0..5 {
        let (status, answer) = asked(address, &json!({ "model": "run", "prompt": "The", "max_tokens": 4 }));
        assert_eq!(status, 200, "{answer}");
    }
}

#[test]
fn an_answer_that_takes_too_long_ends() {
    let folder = tempfile::tempdir().unwrap();
    let more = ["--seats", "1", "--answer-time", "2", "--most-tokens", "524288"];
    let server = served(&small(folder.path(), "0.01"), &more);
    let fields = json!({ "model": "run", "prompt": "The", "max_tokens": 500_000 });
    thread::scope(|scope| {
        // One that is answered, and one that waits.
        let both = [0, 1].map(|_| scope.spawn(|| asked(&server.address, &fields)));
        for one in both {
            let (status, answer) = one.join().unwrap();
            assert!(status == 503 && answer["error"]["code"] == "timeout", "{status} {answer}");
        }
    });
    let short = json!({ "model": "run", "prompt": "The", "max_tokens": 4 });
    assert_eq!(asked(&server.address, &short).0, 200);
}

/// Asks a server to end.
#[cfg(unix)]
fn asked_to_end(server: &Served, signal: &str) {
    let id = server.child.id().to_string();
    assert!(std::process::Command::new("kill").args([signal, &id]).status().unwrap().success());
}

#[cfg(unix)]
#[test]
fn a_server_that_is_asked_to_end_ends_its_answers() {
    let folder = tempfile::tempdir().unwrap();
    let run = small(folder.path(), "0.01");
    for (signal, grace) in [("-INT", "30"), ("-TERM", "1")] {
        let more = ["--seats", "1", "--grace", grace, "--most-tokens", "524288"];
        let mut server = served(&run, &more);
        let running = json!({ "model": "run", "prompt": "The", "max_tokens": 300, "stream": true });
        let mut first = if grace == "30" {
            BufReader::new(asking(&server.address, &running))
        } else {
            endless(&server.address)
        };
        next_part(&mut first);
        let waits = asking(&server.address, &json!({ "model": "run", "prompt": "The" }));
        // The request is in the queue once another one is answered in the meantime.
        thread::sleep(Duration::from_millis(100));
        asked_to_end(&server, signal);
        let (status, _, body) = read(waits);
        assert!(status == 503 && body.contains("the server ends"), "{status} {body}");
        let mut rest = String::new();
        first.read_to_string(&mut rest).unwrap();
        let is_whole = rest.ends_with("data: [DONE]\n\n") && rest.contains("tiebreak_receipt");
        assert_eq!(is_whole, grace == "30", "{rest}");
        assert!(is_whole || rest.contains("the server ended before the answer was whole"), "{rest}");
        assert_eq!(server.child.wait().unwrap().code(), Some(0));
        assert!(TcpStream::connect(&server.address).is_err());
    }
}
