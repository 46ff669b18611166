//! `tiebreak eval`, `predict` and `receipt check` of runs whose program came from a network file.

use std::fs;
use std::path::Path;

use serde_json::Value;

use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::predictions::Predictions;

use super::common::{edit::edited, npy};
use super::{output, path};

/// The JSON of a command with its exit code; an error's, if it has no result.
fn json(args: &[&str]) -> (i32, Value) {
    let (code, stdout, stderr) = output(&[args, &["--json"]].concat());
    let text = if stdout.is_empty() { &stderr } else { &stdout };
    (code, serde_json::from_str(text).unwrap_or_else(|_| panic!("{args:?}: {stdout}{stderr}")))
}

/// A network with the data of its runs, and the model of a kind that has the same shape.
struct Twin {
    network: &'static str,
    model: &'static str,
    data: &'static str,
}

const RESNET: Twin = Twin {
    network: include_str!("../../assets/networks/resnet.json"),
    model: r#"model = { kind = "resnet", height = 6, width = 6, planes = 2, stages = [3, 5], blocks = 1, classes = 4, norm = "batch", order = "post", convolution = 2 }"#,
    data: r#"data = { kind = "arrays", inputs = "inputs.npy", labels = "labels.npy", dtype = "u8" }"#,
};

const GPT: Twin = Twin {
    network: include_str!("../../assets/networks/gpt.json"),
    model: r#"model = { kind = "gpt", vocabulary = 19, context = 5, layers = 2, heads = 2, width = 8, dropout = 0.1 }"#,
    data: r#"data = { kind = "tokens", path = "tokens.npy", dtype = "u16" }"#,
};

const ENCODER: Twin = Twin {
    network: include_str!("../../assets/networks/encoder.json"),
    model: "",
    data: r#"data = { kind = "arrays", inputs = "ids.npy", labels = "labels.npy", dtype = "u8" }"#,
};

impl Twin {
    /// Writes the network, its program and its data to a folder. Returns the lines of a job that both models have.
    fn written(&self, at: &Path) -> String {
        let bytes =
            |count: u32, below: u32| (0..count).map(|i| (i * i * 7 % 251 % below) as u8).collect::<Vec<u8>>();
        let tokens: Vec<u8> = (0..200u16).flat_map(|i| (i * i % 19).to_le_bytes()).collect();
        for (name, file) in [
            ("inputs.npy", npy("|u1", "(13, 2, 6, 6)", &bytes(13 * 72, 251))),
            ("labels.npy", npy("|u1", "(13,)", &bytes(13, 3))),
            ("ids.npy", npy("|u1", "(13, 6)", &bytes(13 * 6, 19))),
            ("tokens.npy", npy("<u2", "(200,)", &tokens)),
            ("network.json", self.network.into()),
        ] {
            fs::write(at.join(name), file).unwrap();
        }
        let [network, program] = ["network.json", "program.bin"].map(|name| path(at, name));
        let (code, _, stderr) = output(&["program", "compile", &network, "--out", &program]);
        assert_eq!(code, 0, "{stderr}");
        format!("steps = 2\n{}\nschedule = {{ peak = 0.25 }}\n", self.data)
    }

    /// Trains the network in a folder, and writes the job of the built-in model beside it. Returns the run.
    fn trained(&self, at: &Path) -> String {
        let (rest, [job, run]) = (self.written(at), ["job.toml", "run"].map(|name| path(at, name)));
        fs::write(&job, format!("program = \"program.bin\"\n{rest}")).unwrap();
        let optimizer = r#"optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }"#;
        let built_in = format!("{rest}{}\n{optimizer}\nbatch = {{ micro_batch = 2 }}\n", self.model);
        fs::write(at.join("built-in.toml"), built_in).unwrap();
        let (code, _, stderr) = output(&["train", &job, "--out", &run, "--engine", "cpu"]);
        assert_eq!(code, 0, "{stderr}");
        run
    }
}

#[test]
fn a_network_has_the_numbers_of_the_built_in_model() {
    for twin in [RESNET, GPT, ENCODER] {
        let folder = tempfile::tempdir().unwrap();
        let (at, run) = (folder.path(), twin.trained(folder.path()));
        let [network, report, job, built_in] =
            ["network.json", "report.json", "job.toml", "built-in.toml"].map(|name| path(at, name));
        let weights = path(Path::new(&run), "model.safetensors");
        let (code, found) = json(&["eval", &run, "--network", &network, "--report", &report]);
        assert_eq!((code, found["labels"].as_u64() > Some(12)), (0, true), "{found}");
        let next = found["next"][0]["command"].as_str().unwrap_or_default();
        assert!(next.contains("--network"), "{found}");
        for more in [
            &["--batch", "1", "--threads", "1"][..],
            &["--batch", "5", "--threads", "2"],
            &["--batch", "5", "--engine", "reference"],
        ] {
            let (code, again) =
                json(&[&["eval", &run, "--network", &network, "--expect", &report], more].concat());
            assert_eq!((code, &again["result"]), (0, &"matches".into()), "{again}");
        }
        let by_weights = [&weights[..], "--job", &job, "--network", &network];
        assert_eq!(json(&[&["eval"], &by_weights[..], &["--expect", &report]].concat()).0, 0);
        let (code, all) = json(&["predict", &run, "--network", &network]);
        assert_eq!(code, 0, "{all}");
        for more in [
            &[&run[..], "--network", &network, "--batch", "1", "--threads", "1"][..],
            &[&run, "--network", &network, "--batch", "5", "--threads", "2"],
            &[&run, "--network", &network, "--batch", "5", "--engine", "reference"],
            &by_weights,
        ] {
            let (code, again) = json(&[&["predict"], more].concat());
            assert_eq!((code, &again), (0, &all), "{more:?}");
        }
        if twin.model.is_empty() {
            continue;
        }
        let by_kind = [&weights[..], "--job", &built_in];
        let (code, theirs) = json(&[&["eval"], &by_kind[..]].concat());
        assert_eq!(code, 0, "{theirs}");
        for name in ["model", "data", "samples", "labels", "hits", "loss", "losses"] {
            assert_eq!(found[name], theirs[name], "{name}");
        }
        let (code, theirs) = json(&[&["predict"], &by_kind[..]].concat());
        assert_eq!((code, &theirs["samples"]), (0, &all["samples"]));
        assert_eq!(
            ["parameters", "buffers"].map(|name| &theirs[name]),
            ["parameters", "buffers"].map(|name| &all[name])
        );
        // A receipt says by which keys the model is named.
        assert_ne!(theirs["model"], all["model"]);
    }
}

#[test]
fn receipts_of_a_network_are_checked_and_lies_convict() {
    let folder = tempfile::tempdir().unwrap();
    let (at, run) = (folder.path(), RESNET.trained(folder.path()));
    let [network, receipt, trace, key, lie, verdict, other, built_in] = [
        "network.json",
        "p.json",
        "p.trace",
        "me.key",
        "lie.json",
        "verdict.json",
        "other.json",
        "built-in.toml",
    ]
    .map(|name| path(at, name));
    assert_eq!(output(&["key", "new", &key, "--name", "me.example"]).0, 0);
    let predict = ["predict", &run, "--network", &network, "--samples", "3..6"];
    let files = ["--receipt", &receipt, "--trace", &trace, "--key", &key];
    let (code, said) = json(&[&predict[..], &files].concat());
    let next = said["next"][0]["command"].as_str().unwrap_or_default();
    assert!(code == 0 && next.contains("--network"), "{said}");
    let check = |receipt: &str, more: &[&str]| {
        json(&[&["receipt", "check", receipt, &run, "--network", &network, "--trace", &trace], more].concat())
    };
    for engine in ["cpu", "reference"] {
        let (code, found) = check(&receipt, &["--engine", engine, "--verdict", &verdict]);
        assert_eq!((code, &found["result"], &found["samples"]), (0, &"matches".into(), &3.into()), "{found}");
    }
    // The verdict holds the network file, and needs neither it nor the run.
    let honest = Predictions::from_text(&fs::read_to_string(&receipt).unwrap()).unwrap().0;
    let private = PrivateKey::from_text(&fs::read_to_string(&key).unwrap()).unwrap();
    type Lie<'a> = &'a dyn Fn(&mut Predictions);
    let lies: [(Lie, &str); 2] = [
        (&|r| r.samples[1].predicted[0] ^= 1, "class"),
        (&|r| r.samples[1].logits = Digest([1; 32]), "logits"),
    ];
    for (edit, kind) in lies {
        let mut receipt = honest.clone();
        edit(&mut receipt);
        fs::write(&lie, receipt.to_text(Some(&private))).unwrap();
        let (code, found) = check(&lie, &["--verdict", &verdict]);
        assert_eq!((code, &found["differs"]), (1, &4.into()), "{found}");
        let (code, found) = json(&["verdict", "check", &verdict, "--signer-key", &format!("{key}.pub")]);
        assert_eq!((code, &found["claim"], &found["convicts"]), (1, &kind.into(), &true.into()), "{found}");
        fs::remove_file(&verdict).unwrap();
    }
    // The model of a receipt is that of the network, not of a kind with the same logits.
    let weights = path(Path::new(&run), "model.safetensors");
    let (code, found) = json(&["receipt", "check", &receipt, &weights, "--job", &built_in]);
    assert!(code == 1 && found["error"].as_str().unwrap().contains("is of another model"), "{found}");

    // A file that gives the same program in other words has another model, and accuses nobody.
    let text: Value = serde_json::from_str(RESNET.network).unwrap();
    fs::write(&other, in_other_words()).unwrap();
    assert_eq!(json(&["eval", &run, "--network", &other]).0, 0);
    let (code, _, stderr) = output(&["receipt", "check", &receipt, &run, "--network", &other]);
    assert!(code == 3 && stderr.contains("UNDECIDED: the receipt is of the model"), "{code}: {stderr}");

    // Another network, files that are none, and models that need none.
    let text = text.to_string();
    let digest = |network: &str| {
        let program = path(at, "other.bin");
        let (code, found) = json(&["program", "compile", network, "--out", &program]);
        assert_eq!(code, 0, "{found}");
        found["program"].as_str().unwrap().to_string()
    };
    let due = digest(&network);
    fs::write(&other, edited(&text, &[("\"norm_momentum\":0.1", "\"norm_momentum\":0.2")])).unwrap();
    let own = digest(&other);
    for command in [&["eval"][..], &["predict"], &["receipt", "check", &receipt]] {
        let (code, stdout, stderr) = output(&[command, &[&run, "--network", &other]].concat());
        let says = format!("the network gives program {own}, and the job's is {due}");
        assert!(code == 2 && stderr.contains(&says), "{command:?}: {code} {stdout}{stderr}");
        let (code, _, stderr) = output(&[command, &[&run]].concat());
        assert!(code == 2 && stderr.contains("with --network FILE"), "{command:?}: {stderr}");
        let by_kind = [&weights, "--job", &built_in, "--network", &network];
        let (code, _, stderr) = output(&[command, &by_kind[..]].concat());
        assert!(code == 2 && stderr.contains("leave --network out"), "{command:?}: {stderr}");
    }
    fs::write(&other, &text[1..]).unwrap();
    assert_eq!(output(&["eval", &run, "--network", &other]).0, 4);
}

/// The evaluations of a run's metrics: steps and losses.
fn evaluations(run: &str) -> Vec<(u64, f32)> {
    let text = fs::read_to_string(path(Path::new(run), "metrics.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let evaluation = |line: Value| {
        let loss = line.get("evaluation_loss")?.as_f64().unwrap() as f32;
        Some((line["step"].as_u64().unwrap(), loss))
    };
    lines.filter_map(evaluation).collect()
}

#[test]
fn a_run_keeps_its_network_and_evaluates_while_it_trains() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let rest = RESNET.written(at);
    let [network, job, plain, run, without] =
        ["network.json", "job.toml", "plain.toml", "run", "without"].map(|name| path(at, name));
    let lines = format!("program = \"program.bin\"\n{rest}checkpoint = {{ every = 1 }}\n");
    fs::write(&plain, &lines).unwrap();
    let evaluated =
        format!("network = \"network.json\"\n{lines}evaluation = {{ every = 1, samples = 11 }}\n");
    fs::write(&job, &evaluated).unwrap();
    let (code, _, stderr) = output(&["job", "check", &job]);
    assert_eq!(code, 0, "{stderr}");
    let (code, _, stderr) = output(&["train", &job, "--out", &run]);
    assert!(code == 0 && stderr.contains("step 1: evaluation loss"), "{stderr}");
    assert_eq!(output(&["train", &plain, "--out", &without]).0, 0);
    let transcript = |run: &str| fs::read(path(Path::new(run), "transcript")).unwrap();
    assert!(transcript(&run) == transcript(&without), "evaluations decide no record");
    for command in ["verify", "audit"] {
        let (code, stdout, stderr) = output(&[command, &run]);
        assert!(code == 0 && !stdout.contains("network.json"), "{stdout}{stderr}");
    }

    // Both states as anybody finds them: with the network file, and with the run's copy.
    let found = evaluations(&run);
    assert_eq!(found.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [1, 2]);
    for (step, loss) in &found {
        let step = step.to_string();
        let eval = |more: &[&str]| {
            let (code, found) = json(&[&["eval", &run, "--step", &step, "--samples", "11"], more].concat());
            assert_eq!(code, 0, "{found}");
            f32::from_bits(u32::from_str_radix(found["loss"].as_str().unwrap(), 16).unwrap())
        };
        assert_eq!(eval(&["--network", &network, "--engine", "reference"]), *loss);
        assert_eq!(eval(&["--batch", "3"]), *loss, "by the network that the run keeps");
    }
    assert_ne!(found[0].1, found[1].1);
    // A job of weights names the file, too. The run without one names none.
    let weights = path(Path::new(&run), "model.safetensors");
    assert_eq!(json(&["predict", &weights, "--job", &job]), json(&["predict", &run, "--network", &network]));
    let (code, _, stderr) = output(&["eval", &without]);
    assert!(code == 2 && stderr.contains("with --network FILE"), "{stderr}");
    same_logits(at, &run, &without);
    foreign(at, &plain, &without);
    rewritten(at, &run);
    doubted(at, &run);
    refused(at, &evaluated);
}

/// `logits` writes what `predict` does, with the run's file or a named one, and asks for one where there is none.
fn same_logits(at: &Path, run: &str, without: &str) {
    let [inputs, due, made, network] =
        ["inputs.npy", "due.npy", "made.npy", "network.json"].map(|name| path(at, name));
    let written = |run: &str, more: &[&str]| {
        let (code, _, stderr) =
            output(&[&["logits", run, "--inputs", &inputs, "--output", &made], more].concat());
        (code, stderr, fs::read(&made).unwrap_or_default())
    };
    let (code, stderr, _) = written(without, &[]);
    assert!(code == 2 && stderr.contains("with --network FILE"), "{stderr}");
    for step in ["1", "2"] {
        let predict = ["predict", run, "--inputs", &inputs, "--logits", &due, "--step", step];
        assert_eq!(output(&predict).0, 0);
        for (run, more) in [
            (run, &[][..]),
            (without, &["--network", &network]),
            (run, &["--engine", "reference", "--network", &network]),
        ] {
            let (code, stderr, made) = written(run, &[more, &["--step", step]].concat());
            assert!(code == 0 && made == fs::read(&due).unwrap(), "{stderr}");
        }
    }
    let (_, _, with_two_digits) = written(run, &["--digits", "2"]);
    assert_ne!(with_two_digits, fs::read(&due).unwrap());
}

/// Nobody's file is taken for the network of a run whose job names none.
fn foreign(at: &Path, plain: &str, without: &str) {
    let [stale, own] = [path(at, "stale"), path(Path::new(without), "network.json")];
    fs::create_dir(&stale).unwrap();
    fs::write(path(Path::new(&stale), "network.json"), "{\"password\": \"secret\"}").unwrap();
    let (code, _, stderr) = output(&["train", plain, "--out", &stale]);
    assert!(code == 2 && stderr.contains("holds network.json, but no run.json"), "{stderr}");
    fs::write(&own, "{}").unwrap();
    let (code, stdout, stderr) = output(&["verify", without]);
    assert!(code == 0 && stdout.contains("network.json"), "{stdout}{stderr}");
    fs::remove_file(own).unwrap();
}

/// The network in other words, which give the same program.
fn in_other_words() -> String {
    let mut longer: Value = serde_json::from_str(RESNET.network).unwrap();
    let nodes = longer["nodes"].as_array_mut().unwrap();
    let last = nodes[nodes.len() - 1]["name"].clone();
    nodes.push(serde_json::json!({
        "name": "nothing", "operator": "dropout", "inputs": [last], "attributes": {"p": 0}
    }));
    longer.to_string()
}

/// A receipt is of the signer's network. A trainer who keeps the network in other words makes nobody a liar.
fn rewritten(at: &Path, run: &str) {
    let [receipt, network] = ["kept.json", "network.json"].map(|name| path(at, name));
    let kept = path(Path::new(run), "network.json");
    assert_eq!(output(&["predict", run, "--samples", "3..6", "--receipt", &receipt]).0, 0);
    let check = |more: &[&str]| output(&[&["receipt", "check", &receipt, run], more].concat());
    assert_eq!(check(&[]).0, 0);
    fs::write(&kept, in_other_words()).unwrap();
    let (code, _, stderr) = check(&[]);
    assert!(code == 3 && stderr.contains("UNDECIDED: the receipt is of the model"), "{code}: {stderr}");
    assert_eq!(check(&["--network", &network]).0, 0);
    fs::write(&kept, RESNET.network).unwrap();
}

/// The network in a run is believed by nobody: another one is malformed, and none leaves the run as good as before.
fn doubted(at: &Path, run: &str) {
    let (kept, text) = (path(Path::new(run), "network.json"), RESNET.network);
    let resume = |run: &str| output(&["train", "--out", run, "--resume"]);
    assert_eq!(resume(run).0, 0);
    // A run that is begun again from its records keeps the file, too.
    let again = path(at, "again");
    assert_eq!(output(&["correct", "begin", run, "--step", "2", "--out", &again]).0, 0);
    assert_eq!(resume(&again).0, 0);
    assert_eq!(evaluations(&again), evaluations(run));
    fs::write(&kept, edited(text, &[("\"norm_momentum\": 0.1", "\"norm_momentum\": 0.2")])).unwrap();
    for command in [&["eval", run][..], &["predict", run]] {
        let (code, _, stderr) = output(command);
        assert!(
            code == 4 && stderr.contains("network.json: ") && stderr.contains("gives program"),
            "{stderr}"
        );
    }
    assert_eq!(resume(run).0, 4);
    fs::write(&kept, &text[1..]).unwrap();
    assert_eq!(output(&["eval", run]).0, 4);
    fs::remove_file(&kept).unwrap();
    assert_eq!(output(&["eval", run]).0, 2);
    let (code, _, stderr) = resume(run);
    assert!(code == 2 && stderr.contains("copy the network file"), "{stderr}");
    assert_eq!(output(&["verify", run]).0, 0);
    assert_eq!(output(&["eval", run, "--network", &path(at, "network.json")]).0, 0);
}

/// Jobs whose network is of another program, or cannot be evaluated, train nothing.
fn refused(at: &Path, evaluated: &str) {
    let [job, other, out] = ["other.toml", "other.json", "other"].map(|name| path(at, name));
    let tries = |text: &str, code: i32, why: &str| {
        fs::write(&job, text).unwrap();
        for command in [&["job", "check", &job][..], &["train", &job, "--out", &out]] {
            let (found, _, stderr) = output(command);
            assert!(found == code && stderr.contains(why), "{command:?}: {found} {stderr}");
        }
        assert!(!Path::new(&out).exists(), "{why}");
    };
    let named = edited(evaluated, &[("\"network.json\"", "\"other.json\"")]);
    fs::write(&other, edited(RESNET.network, &[("\"norm_momentum\": 0.1", "\"norm_momentum\": 0.2")]))
        .unwrap();
    tries(&named, 2, "the network gives program");
    fs::write(&other, "{}").unwrap();
    tries(&named, 4, "other.json");
    tries(
        &edited(evaluated, &[("network = \"network.json\"\n", "")]),
        2,
        "evaluation: a program file does not say",
    );
    tries(
        &edited(evaluated, &[("\"network.json\"", "\"../network.json\"")]),
        2,
        "network: \"../network.json\" leaves",
    );
    let optimizer = r#"optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }"#;
    let built_in = format!("{}\n{optimizer}\nbatch = {{ micro_batch = 2 }}", RESNET.model);
    let built_in = edited(evaluated, &[("program = \"program.bin\"", &built_in)]);
    tries(&built_in, 2, "network: the file is beside a program file");
    crossed(at, &job, &tries);
}

/// A network whose samples have rows of a parameter by their places trains, and cannot be evaluated.
fn crossed(at: &Path, job: &str, tries: &dyn Fn(&str, i32, &str)) {
    let [network, program, out] = ["crossed.json", "crossed.bin", "crossed"].map(|name| path(at, name));
    let text = r#"{"format": "tiebreak network 1", "micro_batch": 2, "inputs": {"name": "values", "shape": [2, 7]},
"labels": {"shape": [2], "below": 3}, "parameters": [{"name": "p", "shape": [2, 7]}],
"nodes": [{"name": "a", "operator": "residual", "inputs": ["inputs", "p"]}], "optimizer": {"kind": "sgd", "momentum": 0}}"#;
    fs::write(&network, text).unwrap();
    fs::write(at.join("values.npy"), npy("<f4", "(13, 7)", &[0; 13 * 28])).unwrap();
    assert_eq!(output(&["program", "compile", &network, "--out", &program]).0, 0);
    let lines = "program = \"crossed.bin\"\nnetwork = \"crossed.json\"\nsteps = 1\nschedule = { peak = 0.1 }\n\
                 data = { kind = \"arrays\", inputs = \"values.npy\", labels = \"labels.npy\", dtype = \"f32\" }\n";
    tries(
        &format!("{lines}evaluation = {{ every = 1 }}\n"),
        4,
        "node a (residual): y has no rows of samples",
    );
    fs::write(job, lines).unwrap();
    let (code, _, stderr) = output(&["train", job, "--out", &out]);
    assert_eq!(code, 0, "{stderr}");
    let (code, _, stderr) = output(&["eval", &out]);
    assert!(code == 4 && stderr.contains("y has no rows of samples"), "{stderr}");
}
