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
    /// Trains the network in a folder, and writes the job of the built-in model beside it. Returns the run.
    fn trained(&self, at: &Path) -> String {
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
        let [network, program, run] = ["network.json", "program.bin", "run"].map(|name| path(at, name));
        let (code, _, stderr) = output(&["program", "compile", &network, "--out", &program]);
        assert_eq!(code, 0, "{stderr}");
        let rest = format!("steps = 2\n{}\nschedule = {{ peak = 0.25 }}\n", self.data);
        let job = path(at, "job.toml");
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
    let nodes = text["nodes"].as_array().unwrap();
    let nothing = serde_json::json!({
        "name": "nothing", "operator": "dropout", "inputs": [nodes[nodes.len() - 1]["name"]], "attributes": {"p": 0}
    });
    let mut longer = text.clone();
    longer["nodes"].as_array_mut().unwrap().push(nothing);
    fs::write(&other, longer.to_string()).unwrap();
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
