//! Metrics that Prometheus reads while a command works: they are those of the run, the page names each, and a parser of others reads
//! them.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::answers::small;
use crate::common::{edit::edit, gpt_job, not_tested};
use crate::served_models::{posted, read, sent, served, started};
use crate::witness::witness;
use crate::{output, path, tiebreak};

/// The longest that a test waits.
const PATIENCE: Duration = Duration::from_secs(60);

/// A command that serves metrics, and their address.
struct Exposing {
    /// The command, if the test started it for its metrics.
    child: Option<Child>,
    address: String,
}

impl Exposing {
    fn started(args: &[&str]) -> Exposing {
        let mut child =
            tiebreak(&[args, &["--metrics", "127.0.0.1:0"]].concat()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let said = lines.find_map(|line| Some(line.strip_prefix("metrics at http://")?.to_string()));
        // A pipe that nobody reads fills up.
        std::thread::spawn(move || lines.for_each(drop));
        let address = said.expect("the address is said").strip_suffix("/metrics").unwrap().to_string();
        Exposing { child: Some(child), address }
    }

    /// The answer to a request, head and body.
    fn asked(&self, request: &str) -> (String, String) {
        self.asked_by_name(request, "localhost")
    }

    /// The answer to a request whose header `Host` has this name.
    fn asked_by_name(&self, request: &str, host: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(format!("{request} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_lowercase(), body.to_string())
    }

    /// The metrics as soon as one of them has at least this value: the text, and the values by name and labels.
    fn until(&self, name: &str, least: f64) -> (String, BTreeMap<String, f64>) {
        let begin = Instant::now();
        loop {
            let (head, text) = self.asked("GET /metrics");
            assert!(head.starts_with("http/1.1 200"), "{head}");
            assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0"), "{head}");
            let samples = text.lines().filter(|line| !line.starts_with('#'));
            let values: BTreeMap<String, f64> = samples
                .map(|line| line.rsplit_once(' ').unwrap())
                .map(|(name, value)| (name.to_string(), value.parse().unwrap()))
                .collect();
            if values.get(name).is_some_and(|value| *value >= least) {
                return (text, values);
            }
            assert!(begin.elapsed() < PATIENCE, "{name} does not come to {least}: {text}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends the command, and gives its exit code.
    fn stopped(mut self) -> Option<i32> {
        let child = self.child.as_mut().unwrap();
        Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
        let code = child.wait().unwrap().code();
        assert!(TcpStream::connect(&self.address).is_err(), "nobody listens any more");
        code
    }
}

impl Drop for Exposing {
    fn drop(&mut self) {
        self.child.iter_mut().for_each(|child| drop(child.kill()));
    }
}

/// A served model: how its requests ended, and the tokens that it gave.
#[test]
fn a_served_model_shows_its_requests_and_its_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let run = small(folder.path(), "3e-2");
    let model =
        served(&run, &["--metrics", "127.0.0.1:0", "--seats", "1", "--waiting", "0", "--name", "mine"]);
    let address = model.said["metrics"].as_str().unwrap().strip_prefix("http://").unwrap();
    let address = address.strip_suffix("/metrics").unwrap().to_string();
    let ask = |length: u32| {
        let asked = json!({ "model": "mine", "prompt": [1, 2, 3], "max_tokens": length });
        read(posted(&model.address, "/v1/completions", &asked))
    };
    let (status, _, body) = ask(4);
    assert_eq!(status, 200, "{body}");
    assert_eq!(ask(100_000).0, 400);
    let metrics = Exposing { child: None, address };
    let (text, values) = metrics.until("tiebreak_model_answers_total{end=\"whole\"}", 1.0);
    documented(&text);
    let value = |name: &str| values[&format!("tiebreak_model_{name}")];
    assert_eq!((value("seats"), value("answering"), value("waiting")), (1.0, 0.0, 0.0), "{text}");
    assert_eq!((value("prompt_tokens_total"), value("tokens_total")), (3.0, 4.0), "{text}");
    let [ok, bad] = ["200", "400"].map(|status| value(&format!("responses_total{{status=\"{status}\"}}")));
    assert_eq!((ok, bad), (1.0, 1.0), "{text}");
    assert_eq!((value("first_token_seconds_count"), value("answer_seconds_count")), (1.0, 1.0), "{text}");
    let digest = model.said["model_digest"].as_str().unwrap();
    assert!(
        text.contains(&format!("tiebreak_model_info{{name=\"mine\",model=\"{digest}\",engine=\"cpu (")),
        "{text}"
    );
}

/// The metrics of a server that said where they are; and the values by name without this beginning.
fn scraped(said: &Value, prefix: &str, name: &str, least: f64) -> (String, BTreeMap<String, f64>) {
    let address = said["metrics"].as_str().unwrap().strip_prefix("http://").unwrap();
    let address = address.strip_suffix("/metrics").unwrap().to_string();
    let (text, values) = Exposing { child: None, address }.until(&format!("{prefix}{name}"), least);
    documented(&text);
    let without = |name: String| name.strip_prefix(prefix).unwrap().to_string();
    (text, values.into_iter().map(|(name, value)| (without(name), value)).collect())
}

/// A game of two honest parties, one of them over HTTP: its questions, and the messages of strangers.
#[test]
fn a_party_shows_its_questions_and_what_it_refused() {
    let folder = tempfile::tempdir().unwrap();
    let run = small(folder.path(), "0.01");
    let at = |name: &str| path(folder.path(), name);
    for name in ["alice", "bob", "referee"] {
        assert_eq!(output(&["key", "new", &at(name), "--name", name]).0, 0);
    }
    let [alice, bob, public] = ["alice.pub", "bob.pub", "referee.pub"].map(at);
    let (terms, questions) = (at("terms"), at("questions"));
    let keys = ["--party", &alice, "--party", &bob, "--referee", &public, "--replay", "60"];
    let new = [&["referee", "new", "--run", &run, "--out", &terms], &keys[..]].concat();
    assert_eq!(output(&new).0, 0, "{:?}", output(&new));
    let party = |key: &str, more: &[&str]| {
        let args = ["serve", &run, "--key", &at(key), "--terms", &terms, "--referee-key", &public, "--json"];
        started(&[&args[..], more].concat())
    };
    let first = party("alice", &["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]);
    let _second = party("bob", &["--files", &questions]);
    let address = first.said["address"].as_str().unwrap();
    let places = [format!("alice={address}"), format!("bob={questions}")];
    let play = ["referee", &terms, "--key", &at("referee"), &places[0], &places[1], "--out", &at("v")];
    let (code, _, stderr) = output(&play);
    assert_eq!(code, 0, "{stderr}");
    // The other party's question of this turn is the same, and its answer is there. A changed one is not the referee's.
    let question = fs::read_to_string(format!("{questions}/question-0000.json")).unwrap();
    let changed = question.replacen("\"turn\":0", "\"turn\":9", 1);
    assert_ne!(question, changed);
    let ask = |body: &str| {
        let head = format!("POST /v1/answer HTTP/1.0\r\nContent-Length: {}", body.len());
        read(sent(address.strip_prefix("http://").unwrap(), &head, body.as_bytes())).0
    };
    assert_eq!([question.as_str(), &changed, "{}", "garbage"].map(ask), [200, 403, 400, 400]);
    let (text, values) = scraped(&first.said, "tiebreak_party_", "repeated_total", 1.0);
    let value = |name: &str| values.get(name).copied().unwrap_or_default();
    let all = |prefix: &str| {
        let some = values.iter().filter(|(name, _)| name.starts_with(prefix));
        some.map(|(_, value)| value).sum::<f64>()
    };
    assert_eq!(
        [value("questions_total{kind=\"commit\"}"), value("questions_total{kind=\"reveal\"}")],
        [1.0; 2]
    );
    assert_eq!([all("questions_total"), value("answers_total{end=\"answered\"}")], [2.0; 2], "{text}");
    assert_eq!(
        [all("answers_total"), value("kept_answers"), value("answer_seconds_count")],
        [2.0; 3],
        "{text}"
    );
    let reasons =
        ["malformed", "foreign"].map(|reason| value(&format!("refused_total{{reason=\"{reason}\"}}")));
    assert_eq!((reasons, all("refused_total"), value("open_questions")), ([2.0, 1.0], 3.0, 0.0), "{text}");
    let responses = [200, 403, 400].map(|status| value(&format!("responses_total{{status=\"{status}\"}}")));
    assert_eq!(responses, [3.0, 1.0, 2.0], "{text}");
    let game = first.said["game"].as_str().unwrap();
    assert!(text.contains(&format!("tiebreak_party_info{{game=\"{game}\",party=\"0\",version=\"")), "{text}");
    assert!(
        values.contains_key("stranger_connections") && values.contains_key("referee_connections"),
        "{text}"
    );
}

/// Heads that a witness cosigned, and those that it refused.
#[test]
fn a_witness_shows_what_it_cosigned_and_what_it_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    for name in ["trainer", "witness"] {
        assert_eq!(output(&["key", "new", &at(name), "--name", name]).0, 0);
    }
    let job = gpt_job(folder.path(), "step", "");
    let runs = ["run", "other"].map(|name| {
        let args =
            ["train", job.to_str().unwrap(), "--out", &at(name), "--key", &at("trainer"), "--engine", "cpu"];
        assert_eq!(output(&args).0, 0);
        at(name)
    });
    let (state, trainer, public) = (at("state"), at("trainer.pub"), at("witness.pub"));
    fs::create_dir(&state).unwrap();
    let more = ["--trainer-key", &trainer, "--logs-at-most", "1", "--metrics", "127.0.0.1:0"];
    let served = witness(&at("witness"), &state, &more);
    let declare = |run: &str| {
        let args = ["monitor", "declare", run, "--witness", &served.address, "--witness-key", &public];
        output(&args).0
    };
    let before = scraped(&served.said, "tiebreak_witness_", "connections", 0.0).1;
    assert_eq!(
        [before["cosigned_total"], before["logs"], before["last_cosigned_timestamp_seconds"]],
        [0.0; 3]
    );
    let note = fs::read_to_string(format!("{}/heads/000000000001", runs[0])).unwrap();
    let address = served.address.strip_prefix("http://").unwrap();
    let ask = |body: &str| {
        let head = format!("POST /add-checkpoint HTTP/1.0\r\nContent-Length: {}", body.len());
        read(sent(address, &head, body.as_bytes())).0
    };
    let [again, proof] =
        ["", &format!("{}=\n", "A".repeat(43))].map(|proof| format!("old 0\n{proof}\n{note}"));
    assert_eq!(ask(&proof), 422);
    assert_eq!([declare(&runs[0]), declare(&runs[1])], [0, 3]);
    // The witness knows one record of the log now.
    let unsigned = format!("old 1\n\n{}", note.replacen("\u{2014} trainer ", "\u{2014} nobody ", 1));
    assert_eq!([again.as_str(), &unsigned, "garbage", "old 7\n"].map(ask), [409, 403, 400, 400]);
    let (text, values) = scraped(&served.said, "tiebreak_witness_", "cosigned_total", 1.0);
    let refused: BTreeMap<&str, f64> = values
        .iter()
        .filter_map(|(name, value)| {
            Some((name.strip_prefix("refused_total{reason=\"")?.strip_suffix("\"}")?, *value))
        })
        .collect();
    let wanted =
        [("full", 1.0), ("inconsistent", 1.0), ("malformed", 2.0), ("other_size", 1.0), ("unsigned", 1.0)];
    assert_eq!(refused, BTreeMap::from(wanted), "{text}");
    assert_eq!(
        [values["cosigned_total"], values["logs"], values["store_errors_total"]],
        [1.0, 1.0, 0.0],
        "{text}"
    );
    assert!(values["last_cosigned_timestamp_seconds"] > 1.7e9, "{text}");
    assert_eq!(values["responses_total{status=\"400\"}"], 2.0, "{text}");
    let key = fs::read_to_string(&public).unwrap();
    assert!(text.contains(&format!("tiebreak_witness_info{{key=\"{}\",version=\"", key.trim())), "{text}");
}

/// The families of a text, each with its type, as the library of Prometheus's authors for Python reads them.
fn read_by_others(text: &str) -> Option<Vec<String>> {
    let python = std::env::var("TIEBREAK_PYTEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let script = "import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as families
for family in families(sys.stdin.read()): print(family.name, family.type)";
    let mut command = Command::new(python);
    command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = command.spawn().and_then(|mut child| {
        child.stdin.take().unwrap().write_all(text.as_bytes())?;
        child.wait_with_output()
    });
    match output {
        Ok(output) if output.status.success() => {
            Some(String::from_utf8(output.stdout).unwrap().lines().map(String::from).collect())
        }
        Ok(output) if !String::from_utf8_lossy(&output.stderr).contains("ModuleNotFoundError") => {
            panic!("{}\n{text}", String::from_utf8_lossy(&output.stderr))
        }
        _ => {
            let missing = "no Python with prometheus-client (TIEBREAK_PYTEST_PYTHON names one)";
            assert!(std::env::var_os("TIEBREAK_REQUIRE_PYTEST").is_none(), "{missing}");
            not_tested(missing);
            None
        }
    }
}

/// Checks that the page has a row for each metric, with its type, and that others read them all.
fn documented(text: &str) {
    let page = include_str!("../../docs/METRICS.md");
    let types: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    assert!(types.len() >= 6, "{text}");
    for family in &types {
        let (name, kind) = family.split_once(' ').unwrap();
        let total = if kind == "counter" { "_total" } else { "" };
        assert!(page.contains(&format!("| `{name}{total}` | {kind} |")), "METRICS.md has no row of {family}");
    }
    if let Some(read) = read_by_others(text) {
        assert_eq!(read, types);
    }
}

#[test]
fn a_training_shows_what_its_files_of_metrics_say() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "operator", "\n[evaluation]\nevery = 2\nsamples = 4\n");
    edit(&job, &[("steps = 8", "steps = 5000")]);
    let run = path(folder.path(), "run");
    let training = Exposing::started(&["train", job.to_str().unwrap(), "--out", &run, "--engine", "cpu"]);
    let (_, values) = training.until("tiebreak_training_step", 3.0);
    assert_eq!(values["tiebreak_training_steps"], 5000.0);
    let (text, values) = training.until("tiebreak_training_evaluation_step", 2.0);
    documented(&text);
    let step = values["tiebreak_training_step"];
    let samples = values["tiebreak_training_samples_total"];
    assert!(
        samples == step * (samples / step).round()
            && values["tiebreak_training_targets_total"] == 12.0 * samples
    );
    assert_eq!(values["tiebreak_training_step_seconds_count"], step, "{text}");
    let id = tiebreak_run::run::dir::Run::open(Path::new(&run)).unwrap().id;
    assert!(text.contains(&format!("tiebreak_training_run_info{{id=\"{id}\",engine=\"cpu (")), "{text}");
    // A text is read between two steps or within one, so the loss is that of the step or of the next one.
    let lines = fs::read_to_string(format!("{run}/metrics.jsonl")).unwrap();
    let lines = lines.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let losses: Vec<f64> = lines
        .filter(|line| [step, step + 1.0].map(Some).contains(&line["step"].as_f64()))
        .filter_map(|line| line["loss"].as_f64())
        .collect();
    let loss = values["tiebreak_training_loss"];
    assert!(losses.iter().any(|found| *found as f32 == loss as f32), "{loss}: {losses:?}");
    assert!(values["tiebreak_training_evaluation_perplexity"] > 1.0, "{text}");
    for (request, status) in
        [("GET /", "404"), ("POST /metrics", "405"), ("GET /metrics/x", "404"), ("DELETE /metrics", "405")]
    {
        assert!(training.asked(request).0.starts_with(&format!("http/1.1 {status}")), "{request}");
    }
    // A page of another site has its browser ask by the site's name.
    let named = |host: &str| training.asked_by_name("GET /metrics", host);
    for foreign in ["evil.example", "evil.example:9464", "localhost.evil.example"] {
        let (head, body) = named(foreign);
        assert!(head.starts_with("http/1.1 421") && !body.contains("tiebreak_"), "{foreign}: {head}{body}");
    }
    for own in [&training.address, "LocalHost:1", "[::1]:9464"] {
        assert!(named(own).0.starts_with("http/1.1 200"), "{own}");
    }
    // Somebody who connects and says nothing holds nothing up.
    let silent: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(&training.address).unwrap()).collect();
    training.until("tiebreak_training_step", step + 1.0);
    drop(silent);
    assert_eq!(training.stopped(), Some(3));
}

#[test]
fn a_watch_shows_its_looks_and_its_replays() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "operator", "");
    let [run, here] = ["run", "here"].map(|name| path(folder.path(), name));
    assert_eq!(output(&["train", job.to_str().unwrap(), "--out", &run, "-q"]).0, 0);
    let watch = Exposing::started(&["watch", &here, "--every", "1", "--engine", "reference"]);
    let (text, values) = watch.until("tiebreak_watch_failed_looks_total", 1.0);
    assert!(values["tiebreak_audit_replayed_steps_total"] == 0.0, "{text}");
    // The released model is missing, so the watch waits for it at the end.
    fs::rename(format!("{run}/model.safetensors"), path(folder.path(), "model")).unwrap();
    fs::rename(&run, &here).unwrap();
    let last = fs::read_dir(format!("{here}/heads")).unwrap().map(|head| head.unwrap().path()).max().unwrap();
    fs::remove_file(last).unwrap();
    let (text, values) = watch.until("tiebreak_audit_replayed_steps_total", 6.0);
    documented(&text);
    assert_eq!(values["tiebreak_audit_steps"], 8.0);
    assert_eq!(values["tiebreak_audit_planned_steps"], 6.0, "{text}");
    assert!((7.0..11.0).contains(&values["tiebreak_watch_head_records"]), "{text}");
    let [head, step] = ["watch_last_head", "audit_last_step"]
        .map(|name| values[&format!("tiebreak_{name}_timestamp_seconds")]);
    assert!(head > 1.7e9 && step >= head, "{text}");
    // The look that replays is counted when it ends, and others follow.
    let (text, _) = watch.until("tiebreak_watch_last_look_timestamp_seconds", head);
    let id = tiebreak_run::run::dir::Run::open(Path::new(&here)).unwrap().id;
    assert!(
        text.contains(&format!("tiebreak_audit_run_info{{id=\"{id}\",engine=\"scalar reference")),
        "{text}"
    );
}
