//! `tiebreak generate`, `serve-model` and receipts of answers for runs whose program came from a network file.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use tiebreak_contract::program::inference::Writer;
use tiebreak_contract::program::network;
use tiebreak_record::commit::answer_trace::AnswerTrace;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::merkle;
use tiebreak_record::commit::receipt::Receipt;
use tiebreak_run::inference::replay::Answerer;
use tiebreak_run::inference::traced::row_leaves;

use super::common::npy;
use super::served_models::{posted, read, served};
use super::{output, path};

const LLAMA: &str = include_str!("../../assets/networks/llama.json");
const BUILT_IN: &str = r#"model = { kind = "llama", vocabulary = 19, context = 5, layers = 2, heads = 4, kv_heads = 2, width = 8, hidden = 12 }"#;
/// A prompt of bytes below 19, and an answer that outgrows the context twice.
const ASKED: [&str; 8] = ["--prompt", "\t\u{1}\u{2}", "--length", "12", "--seed", "7", "--temperature", "3"];

/// The JSON of a command with its exit code; an error's, if it has no result.
fn found(args: &[&str]) -> (i32, Value) {
    let (code, stdout, stderr) = output(&[args, &["--json"]].concat());
    let text = if stdout.is_empty() { &stderr } else { &stdout };
    (code, serde_json::from_str(text).unwrap_or_else(|_| panic!("{args:?}: {stdout}{stderr}")))
}

/// Trains a network over bytes in a folder, by a job with these lines more. Returns the run.
fn trained(at: &Path, network: &str, more: &str) -> String {
    let [file, program, job, run] =
        ["network.json", "program.bin", "job.toml", "run"].map(|name| path(at, name));
    let text: Vec<u8> = (0..400u32).map(|i| (i * i * 7 % 251 % 19) as u8).collect();
    fs::write(at.join("text.txt"), text).unwrap();
    fs::write(&file, network).unwrap();
    let (code, _, stderr) = output(&["program", "compile", &file, "--out", &program]);
    assert_eq!(code, 0, "{stderr}");
    let rest = "steps = 2\ndata = { kind = \"bytes\", path = \"text.txt\" }\nschedule = { peak = 0.25 }\n";
    fs::write(&job, format!("{more}program = \"program.bin\"\n{rest}")).unwrap();
    let optimizer = r#"optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }"#;
    let built_in = format!("{rest}{BUILT_IN}\n{optimizer}\nbatch = {{ micro_batch = 2 }}\n");
    fs::write(at.join("built-in.toml"), built_in).unwrap();
    let (code, _, stderr) = output(&["train", &job, "--out", &run, "--engine", "cpu"]);
    assert_eq!(code, 0, "{stderr}");
    run
}

#[test]
fn a_network_answers_as_the_built_in_model_does() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let run = trained(at, LLAMA, "network = \"network.json\"\n");
    let [job, built_in, network] = ["job.toml", "built-in.toml", "network.json"].map(|name| path(at, name));
    let weights = path(Path::new(&run), "model.safetensors");
    let (code, all) = found(&[&["generate", &run], &ASKED[..]].concat());
    assert_eq!((code, all["ids"].as_array().map(Vec::len)), (0, Some(12)), "{all}");
    for model in [
        &[&run[..], "--engine", "reference"][..],
        &[&run, "--threads", "1"],
        &[&run, "--network", &network],
        &[&weights, "--job", &job],
        &[&weights, "--job", &built_in],
    ] {
        let (code, again) = found(&[&["generate"], model, &ASKED].concat());
        assert_eq!((code, &again["ids"]), (0, &all["ids"]), "{model:?} {again}");
    }
    // Token ids in place of a text; each byte of the model is one.
    let ids = ["--ids", "--prompt", "9,1 2", "--length", "12", "--seed", "7", "--temperature", "3"];
    let (code, again) = found(&[&["generate", &run], &ids[..]].concat());
    let numbers: String = all["ids"].as_array().unwrap().iter().map(|id| format!(" {id}")).collect();
    assert_eq!(
        (code, &again["ids"], again["answer"].as_str()),
        (0, &all["ids"], Some(&numbers[..])),
        "{again}"
    );
    for (prompt, says) in
        [("9 x", "has \"x\", which is no token id"), ("9 19", "has number 19"), (" ", "it has none")]
    {
        let (code, why) = found(&["generate", &run, "--ids", "--prompt", prompt]);
        assert!(code == 2 && why["error"].as_str().unwrap().contains(says), "{why}");
    }
    for option in ["--receipt", "--trace", "--opening", "--key"] {
        let words = ["generate", &run, "--ids", "--prompt", "9", option, "file"];
        let (code, why) = found(&words);
        assert!(code == 2 && why.to_string().contains("cannot be used with"), "{option}: {why}");
    }
    // A network says nothing of a model of a kind.
    let other = [&weights[..], "--job", &built_in, "--network", &network];
    let (code, why) = found(&[&["generate"], &other[..], &ASKED].concat());
    assert!(code == 2 && why.to_string().contains("leave --network out"), "{why}");
    // A server answers several at once.
    let server = served(&run, &["--name", "mine", "--most-tokens", "20"]);
    let fields = json!({"model": "mine", "prompt": ASKED[1], "max_tokens": 12, "temperature": 3, "seed": 7});
    let (status, _, body) = read(posted(&server.address, "/v1/completions", &fields));
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &body["choices"][0]["text"]), (200, &all["answer"]), "{body}");
}

#[test]
fn a_networks_logits_are_those_of_the_built_in_model() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let run = trained(at, LLAMA, "network = \"network.json\"\n");
    for job in ["job.toml", "built-in.toml"] {
        let text = fs::read_to_string(at.join(job)).unwrap();
        fs::write(at.join(job), format!("init = {{ weights = [\"run/model.safetensors\"] }}\n{text}"))
            .unwrap();
    }
    let [job, built_in, inputs, made] =
        ["job.toml", "built-in.toml", "inputs.npy", "made.npy"].map(|name| path(at, name));
    let logits = |of: &str, engine: &str| {
        let (code, _, stderr) =
            output(&["logits", of, "--inputs", &inputs, "--output", &made, "--engine", engine]);
        (code, stderr, fs::read(&made).unwrap_or_default())
    };
    // Texts are as long as the context, or shorter; one alone has no dimension of samples.
    for (shape, count) in [("(2, 5)", 10), ("(3, 2)", 6), ("(4,)", 4)] {
        let tokens: Vec<u8> = (0..count).map(|i| i * 7 % 19).collect();
        fs::write(&inputs, npy("|u1", shape, &tokens)).unwrap();
        let (code, stderr, due) = logits(&built_in, "reference");
        assert_eq!(code, 0, "{stderr}");
        assert!(
            String::from_utf8_lossy(&due).contains(&format!("{}, 19)", shape.trim_end_matches([',', ')'])))
        );
        for of in [&run, &job] {
            let (code, stderr, found) = logits(of, "cpu");
            assert!(code == 0 && found == due, "{shape} of {of}: {stderr}");
        }
    }
    for (shape, count) in [("(1, 6)", 6), ("(1, 2, 2)", 4), ("(1, 0)", 0)] {
        fs::write(&inputs, npy("|u1", shape, &vec![1; count])).unwrap();
        let (code, stderr, _) = logits(&run, "cpu");
        assert!(
            code == 4 && stderr.contains("the model takes U32 [samples, 1 to 5 positions]"),
            "{shape}: {stderr}"
        );
    }
}

#[test]
fn receipts_of_a_networks_answers_are_checked_and_lies_convict() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let run = trained(at, LLAMA, "network = \"network.json\"\n");
    let [receipt, trace, key, lie, verdict, other, built_in] =
        ["r.json", "r.trace", "me.key", "lie.json", "verdict.json", "other.json", "built-in.toml"]
            .map(|name| path(at, name));
    assert_eq!(output(&["key", "new", &key, "--name", "me.example"]).0, 0);
    let files = ["--receipt", &receipt, "--trace", &trace, "--key", &key];
    let (code, said) = found(&[&["generate", &run], &ASKED[..], &files].concat());
    assert_eq!(code, 0, "{said}");
    let check = |receipt: &str, more: &[&str]| {
        found(&[&["receipt", "check", receipt, &run, "--trace", &trace], more].concat())
    };
    for more in [&["--engine", "cpu"][..], &["--engine", "reference"], &["--sample", "3"]] {
        let (code, matches) = check(&receipt, more);
        assert_eq!((code, &matches["result"]), (0, &"matches".into()), "{matches}");
    }
    // The verdicts need neither the run nor a network file: one about a row holds the file.
    let (honest, _) = Receipt::from_text(&fs::read_to_string(&receipt).unwrap()).unwrap();
    let private = PrivateKey::from_text(&fs::read_to_string(&key).unwrap()).unwrap();
    let (_, model) = network::model(LLAMA).unwrap();
    let model = Writer::Network(&model);
    let answerer = Answerer { model, parameters: (&[], &[]), known: &[true; 19], ends: &[] };
    let graphs = answerer.window_graphs(&honest);
    let honest_trace = AnswerTrace::decode(&fs::read(&trace).unwrap(), 12, &graphs).unwrap();
    for kind in ["token", "row"] {
        let (mut lies, mut rows) = (honest.clone(), honest_trace.clone());
        match kind {
            "token" => *lies.answer.last_mut().unwrap() ^= 1,
            _ => rows.rows[11] = Digest([9; 32]),
        }
        lies.root = merkle::root(&row_leaves(&lies, &rows.rows));
        fs::write(&lie, lies.to_text(Some(&private))).unwrap();
        fs::write(&trace, rows.encode()).unwrap();
        let (code, differs) = check(&lie, &["--verdict", &verdict]);
        assert_eq!(code, 1, "{kind}: {differs}");
        let (code, convicts) = found(&["verdict", "check", &verdict, "--signer-key", &format!("{key}.pub")]);
        assert_eq!((code, &convicts["claim"], &convicts["convicts"]), (1, &kind.into(), &true.into()));
        fs::remove_file(&verdict).unwrap();
    }
    fs::write(&trace, honest_trace.encode()).unwrap();
    // The model of a receipt is that of the network, not of a kind with the same logits.
    let weights = path(Path::new(&run), "model.safetensors");
    let (code, why) = found(&["receipt", "check", &receipt, &weights, "--job", &built_in]);
    assert!(code == 1 && why.to_string().contains("the receipt is of another model"), "{why}");
    // A file that gives the same program in other words has another model, and accuses nobody.
    let longer = LLAMA.replace(
        "  }\n ],\n \"optimizer\"",
        "  },\n {\"name\": \"nothing\", \"operator\": \"dropout\", \"inputs\": [\"logits\"], \"attributes\": {\"p\": 0}}\n ],\n \"optimizer\"",
    );
    assert_ne!(longer, LLAMA);
    fs::write(&other, longer).unwrap();
    let (code, why) = check(&receipt, &["--network", &other]);
    assert!(code == 3 && why.to_string().contains("UNDECIDED: the receipt is of the model"), "{code}: {why}");
}

#[test]
fn networks_without_a_file_or_without_text_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let run = trained(at, LLAMA, "");
    let network = path(at, "network.json");
    let (code, why) = found(&[&["generate", &run], &ASKED[..]].concat());
    assert!(code == 2 && why.to_string().contains("with --network FILE"), "{why}");
    let (code, found_here) = found(&[&["generate", &run, "--network", &network], &ASKED[..]].concat());
    assert_eq!(code, 0, "{found_here}");
    // The same network, whose positions attend to all of a text.
    let other = tempfile::tempdir().unwrap();
    let text = LLAMA.replace("\"grouped_attention\"", "\"bidirectional_attention\"");
    let run = trained(other.path(), &text, "network = \"network.json\"\n");
    for command in ["generate", "serve-model"] {
        let (code, why) = found(&[command, &run]);
        let says = "the network writes no text: node block0.attention (bidirectional_attention)";
        assert!(code == 2 && why.to_string().contains(says), "{command}: {why}");
    }
}
