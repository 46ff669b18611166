//! `tiebreak predict` and `tiebreak receipt check` of its receipts: runs, weights and arrays, each lie, samples, hostile files.

use std::fs;
use std::path::Path;

use serde_json::Value;

use tiebreak_job::Job;
use tiebreak_record::commit::answer_trace::AnswerTrace;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::predictions::Predictions;
use tiebreak_record::commit::trace::TracedNode;
use tiebreak_record::commit::{merkle, tensor};
use tiebreak_run::predict::traced::{SamplePass, sample_leaves};

use super::common::{logistic_job, npy};
use super::{gpt_job, output, path};

/// The JSON of a command with its exit code; an error's, if it has no result.
fn json(args: &[&str]) -> (i32, Value) {
    let (code, stdout, stderr) = output(&[args, &["--json"]].concat());
    let text = if stdout.is_empty() { &stderr } else { &stdout };
    (code, serde_json::from_str(text).unwrap_or_else(|_| panic!("{args:?}: {stdout}{stderr}")))
}

/// A trained logistic regression of three numbers and two classes, with 10 samples.
pub fn logistic(folder: &Path) -> String {
    let (job, run) = (logistic_job(folder, [10, 3], [4, 1], "step"), path(folder, "run"));
    let (code, _, stderr) = output(&["train", job.to_str().unwrap(), "--out", &run, "--engine", "cpu"]);
    assert_eq!(code, 0, "{stderr}");
    run
}

#[test]
fn predictions_are_the_same_from_every_form_of_model_and_data() {
    let folder = tempfile::tempdir().unwrap();
    let (at, run) = (folder.path(), logistic(folder.path()));
    let [inputs, labels, logits, job] =
        ["inputs.npy", "labels.npy", "logits.npy", "logistic.toml"].map(|name| path(at, name));
    let (code, all) = json(&["predict", &run, "--inputs", &inputs, "--top", "2", "--logits", &logits]);
    let samples = all["samples"].as_array().unwrap();
    assert_eq!((code, samples.len()), (0, 10), "{all}");
    let evaluated = json(&["eval", &run, "--data", &inputs, "--data", &labels]).1;
    let hits = samples.iter().zip(0..).filter(|(sample, i)| sample["classes"][0] == i % 2).count();
    assert_eq!(evaluated["hits"], hits, "{evaluated}");

    // The file has the bits that the rows show.
    let bytes = fs::read(&logits).unwrap();
    let words: Vec<String> = bytes[bytes.len() - 80..]
        .as_chunks()
        .0
        .iter()
        .map(|c| format!("{:08x}", u32::from_le_bytes(*c)))
        .collect();
    for (sample, row) in samples.iter().zip(words.chunks(2)) {
        let [first, second] = [0, 1].map(|place| &sample["top"][0][place]);
        assert_eq!(first["class"], sample["classes"][0]);
        for shown in [first, second] {
            assert_eq!(shown["bits"], row[shown["class"].as_u64().unwrap() as usize], "{sample}");
        }
        assert!(first["logit"].as_f64() >= second["logit"].as_f64());
    }
    let model = path(Path::new(&run), "model.safetensors");
    let plain: Vec<Value> = samples
        .iter()
        .map(|sample| {
            let mut sample = sample.clone();
            sample.as_object_mut().unwrap().remove("top");
            sample
        })
        .collect();
    for more in [
        &[&run[..], "--data", &inputs, "--data", &labels][..],
        &[&run, "--inputs", &inputs, "--batch", "7", "--engine", "reference"],
        &[&model, "--job", &job, "--inputs", &inputs],
        &[&run],
    ] {
        let (code, found) = json(&[&["predict"], more].concat());
        assert_eq!((code, found["samples"].as_array().unwrap()), (0, &plain), "{more:?}");
        for name in ["model", "parameters", "buffers"] {
            assert_eq!(found[name], all[name]);
        }
    }
    let (code, part) = json(&["predict", &run, "--inputs", &inputs, "--samples", "3..5"]);
    assert_eq!((code, part["samples"].as_array().unwrap()), (0, &plain[3..5].to_vec()));
    let (code, stdout, _) = output(&["predict", &run, "--inputs", &inputs, "--samples", "0..1"]);
    let class = &plain[0]["classes"][0];
    assert_eq!((code, stdout.contains(&format!("sample 0: class {class}"))), (0, true), "{stdout}");

    for (more, code, why) in [
        (&["--inputs", &inputs, "--samples", "3..11"][..], 2, "the data have 10 samples"),
        (&["--inputs", &inputs, "--samples", "3..3"], 2, "FIRST..END"),
        (&["--inputs", &labels], 4, "the model takes F32 [samples, 3]"),
        (&["--inputs", &inputs, "--data", &inputs], 2, "cannot be used with"),
        (&["--data", &inputs], 2, "--data"),
        (&["--inputs", "missing.npy"], 2, "missing.npy"),
        (&["--inputs", &inputs, "--key", "missing"], 2, "--receipt"),
        (&["--inputs", &inputs, "--step", "9"], 2, "there is no checkpoint after step 9"),
    ] {
        let (found, _, stderr) = output(&[&["predict", &run], more].concat());
        assert!(found == code && stderr.contains(why), "{more:?}: {found} {stderr}");
    }
}

/// Changes a receipt.
type Lie<'a> = &'a dyn Fn(&mut Predictions);

#[test]
fn each_lie_of_a_receipt_of_predictions_is_caught() {
    let folder = tempfile::tempdir().unwrap();
    let (at, run) = (folder.path(), logistic(folder.path()));
    let [inputs, signed, plain, lie, key] =
        ["inputs.npy", "signed.json", "plain.json", "lie.json", "me.key"].map(|name| path(at, name));
    assert_eq!(output(&["key", "new", &key, "--name", "me.example"]).0, 0);
    let write = ["predict", &run, "--inputs", &inputs, "--samples", "2..9", "--receipt"];
    assert_eq!(output(&[&write[..], &[&signed, "--key", &key]].concat()).0, 0);
    assert_eq!(output(&[&write[..], &[&plain]].concat()).0, 0);
    let check = |receipt: &str, more: &[&str]| {
        json(&[&["receipt", "check", receipt, &run, "--inputs", &inputs], more].concat())
    };
    let public = format!("{key}.pub");
    for engine in ["cpu", "reference"] {
        for (receipt, more) in [(&signed, &["--signer-key", &public][..]), (&plain, &[])] {
            let (code, found) = check(receipt, &[more, &["--engine", engine]].concat());
            let found = (code, &found["result"], &found["samples"], &found["first"]);
            assert_eq!(found, (0, &"matches".into(), &7.into(), &2.into()));
        }
    }
    // The job's own data have the same samples.
    assert_eq!(output(&["receipt", "check", &plain, &run]).0, 0);

    let honest = Predictions::from_text(&fs::read_to_string(&plain).unwrap()).unwrap().0;
    let private = PrivateKey::from_text(&fs::read_to_string(&key).unwrap()).unwrap();
    let zeros = Digest([0; 32]);
    let lies: [(Lie, i32, &str); 10] = [
        (&|r| r.samples[4].predicted[0] ^= 1, 1, "row 0 of sample 6 is said to predict class"),
        (&|r| r.samples[4].logits = zeros, 1, "sample 6 has the classes of the model, and other bits"),
        (&|r| r.samples[4].input = zeros, 1, "sample 6 of the data has the digest"),
        (&|r| r.first = 3, 1, "sample 3 of the data has the digest"),
        (&|r| r.first = 4, 1, "is of samples 4..11, and the data have 10"),
        (&|r| r.first = u32::MAX, 1, "is of samples 4294967295..4294967302"),
        (&|r| r.model.model = zeros, 1, "is of another model"),
        (&|r| r.model.state[0] = zeros, 1, "is of other parameters"),
        (&|r| r.model.state[1] = zeros, 1, "is of other buffers"),
        (&|r| r.model.classes = 3, 1, "is of logits of another size: 3 classes"),
    ];
    for (edit, code, why) in lies {
        let mut receipt = honest.clone();
        edit(&mut receipt);
        for key in [None, Some(&private)] {
            fs::write(&lie, receipt.to_text(key)).unwrap();
            let (found, json) = check(&lie, &[]);
            let words =
                [&json["difference"], &json["error"]].map(|text| text.as_str().unwrap_or_default()).concat();
            assert!(found == code && words.contains(why), "{why}: {found} {json}");
        }
        assert_eq!(check(&lie, &["--decided-is-success"]).0, 0);
    }
    let mut receipt = honest.clone();
    receipt.samples[4].predicted[0] ^= 1;
    fs::write(&lie, receipt.to_text(None)).unwrap();
    assert_eq!(check(&lie, &[]).1["differs"], 6);

    // Signatures, other kinds of receipts, options of the other kind.
    let text = fs::read_to_string(&signed).unwrap();
    fs::write(&lie, text.replacen("\"first\":2", "\"first\":1", 1)).unwrap();
    let (code, found) = check(&lie, &[]);
    assert!(code == 4 && found["error"].as_str().unwrap().contains("is not over this text"), "{found}");
    let (code, found) = check(&plain, &["--signer-key", &public]);
    assert!(code == 4 && found["error"].as_str().unwrap().contains("signed by nobody"), "{found}");
    for (text, why) in [
        (text.replacen("predictions 1", "predictions 3", 1), "its format is"),
        (text.replacen("{\"format\"", " {\"format\"", 1), "format"),
        (text[..text.len() / 2].to_string(), "EOF"),
    ] {
        fs::write(&lie, text).unwrap();
        let (code, found) = check(&lie, &[]);
        assert!(code == 4 && found["error"].as_str().unwrap().contains(why), "{found}");
    }
    fs::write(&lie, " ".repeat((1 << 24) + 1)).unwrap();
    assert_eq!(check(&lie, &[]).0, 4);
    for (more, says) in [
        (["--trace", &plain], "commits no traces: leave --trace out"),
        (["--tokenizer", &plain], "--tokenizer is for receipts of answers"),
    ] {
        let (code, found) = check(&plain, &more);
        assert!(code == 2 && found["error"].as_str().unwrap().contains(says), "{found}");
    }
    // Data with other bits.
    let others = path(at, "others.npy");
    let values: Vec<u8> = (0..30).flat_map(|i| (i as f32).to_le_bytes()).collect();
    fs::write(&others, npy("<f4", "(10, 3)", &values)).unwrap();
    let (code, found) = json(&["receipt", "check", &plain, &run, "--inputs", &others]);
    assert!(code == 1 && found["difference"].as_str().unwrap().contains("sample 2 of the data"), "{found}");
}

#[test]
fn drawn_samples_of_a_receipt_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let (at, run) = (folder.path(), logistic(folder.path()));
    let [inputs, receipt, lie] = ["inputs.npy", "r.json", "lie.json"].map(|name| path(at, name));
    assert_eq!(output(&["predict", &run, "--inputs", &inputs, "--receipt", &receipt]).0, 0);
    let check = |receipt: &str, count: &str, more: &[&str]| {
        let all = ["receipt", "check", receipt, &run, "--inputs", &inputs, "--sample", count];
        json(&[&all[..], more].concat())
    };
    // The greatest w with C(10 - w, K) / C(10, K) > 0.05.
    for (count, drawn, wrong) in [("1", 1, 9), ("3", 3, 5), ("10", 10, 0), ("50", 10, 0)] {
        let (code, found) = check(&receipt, count, &[]);
        let said = &found["sample"];
        assert_eq!(
            (code, &said["drawn"], &said["wrong_at_most"]),
            (0, &drawn.into(), &wrong.into()),
            "{found}"
        );
        let seed = said["seed"].as_u64().unwrap().to_string();
        assert_eq!(check(&receipt, count, &["--seed", &seed, "--engine", "reference"]), (0, found));
    }
    // Other bits of one sample's logits: draws that reach it name it, and no other draw does.
    let mut other = Predictions::from_text(&fs::read_to_string(&receipt).unwrap()).unwrap().0;
    other.samples[7].logits = Digest([1; 32]);
    fs::write(&lie, other.to_text(None)).unwrap();
    let mut codes = [0, 0];
    for seed in 0..24 {
        let (code, found) = check(&lie, "3", &["--seed", &seed.to_string()]);
        codes[code as usize] += 1;
        assert!(code == 0 || found["differs"] == 7, "{found}");
    }
    // Drawn with a probability of 3 / 10: of 24 draws 7.2 reach it, with a standard deviation of 2.2.
    assert!((1..=15).contains(&codes[1]), "{codes:?}");
}

/// A decoder predicts a token for each position of its context, and a model with a NaN predicts nothing.
#[test]
fn decoders_predict_positions_and_a_nan_predicts_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let (job, run) = (gpt_job(at, "step", ""), path(at, "gpt"));
    assert_eq!(output(&["train", job.to_str().unwrap(), "--out", &run, "--engine", "cpu"]).0, 0);
    let [receipt, inputs] = ["r.json", "inputs.npy"].map(|name| path(at, name));
    let (code, found) = json(&["predict", &run, "--samples", "0..3", "--receipt", &receipt]);
    let positions: Vec<usize> =
        found["samples"].as_array().unwrap().iter().map(|s| s["classes"].as_array().unwrap().len()).collect();
    assert_eq!((code, positions), (0, vec![12; 3]), "{found}");
    let (code, stdout, _) = output(&["predict", &run, "--samples", "1..2"]);
    assert_eq!((code, stdout.contains("sample 1, position 11: class ")), (0, true), "{stdout}");
    let (code, found) = json(&["receipt", "check", &receipt, &run, "--engine", "reference"]);
    assert_eq!((code, &found["samples"]), (0, &3.into()), "{found}");
    let (code, _, stderr) =
        output(&["generate", &run, "--length", "3", "--seed", "1", "--receipt", &receipt]);
    assert_eq!(code, 0, "{stderr}");
    let (code, _, stderr) = output(&["receipt", "check", &receipt, &run, "--data", &inputs]);
    assert!(code == 2 && stderr.contains("--data is for receipts of predictions"), "{stderr}");

    let second = at.join("second");
    fs::create_dir(&second).unwrap();
    let run = logistic(&second);
    let values: Vec<u8> = [1.0, f32::NAN, 0.0, 1.0, 2.0, 3.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    fs::write(&inputs, npy("<f4", "(2, 3)", &values)).unwrap();
    let (code, stdout, _) = output(&["predict", &run, "--inputs", &inputs, "--top", "2"]);
    assert!(code == 0 && stdout.contains("sample 0: no class, since a logit is NaN"), "{stdout}");
    let missing = path(at, "none.json");
    let (code, _, stderr) = output(&["predict", &run, "--inputs", &inputs, "--receipt", &missing]);
    assert!(
        code == 3 && stderr.contains("sample 0 predicts no class") && !fs::exists(&missing).unwrap(),
        "{stderr}"
    );
    let (code, found) = json(&["predict", &run, "--inputs", &inputs]);
    assert_eq!((code, &found["samples"][0]["classes"][0]), (0, &Value::Null), "{found}");
}

/// A signer who changes a class, logits or an operator is convicted by whoever has the verdict's file alone.
#[test]
fn a_wrong_prediction_convicts_without_the_model_and_the_data() {
    let folder = tempfile::tempdir().unwrap();
    let (at, run) = (folder.path(), logistic(folder.path()));
    let [inputs, receipt, trace, key, lie, job, model] =
        ["inputs.npy", "p.json", "p.trace", "me.key", "lie.json", "logistic.toml", "run/model.safetensors"]
            .map(|name| path(at, name));
    assert_eq!(output(&["key", "new", &key, "--name", "me.example"]).0, 0);
    let (public, private) = (format!("{key}.pub"), fs::read_to_string(&key).unwrap());
    let private = PrivateKey::from_text(&private).unwrap();
    let write =
        ["predict", &run, "--inputs", &inputs, "--receipt", &receipt, "--trace", &trace, "--key", &key];
    assert_eq!(output(&write).0, 0);
    let check = |receipt: &str, more: &[&str]| {
        json(&[&["receipt", "check", receipt, &run, "--inputs", &inputs], more].concat())
    };
    let unused = path(at, "unused.json");
    for more in [&[][..], &["--trace", &trace, "--verdict", &unused], &["--engine", "reference"]] {
        assert_eq!(check(&receipt, more).1["result"], "matches");
    }
    assert!(!fs::exists(&unused).unwrap(), "nothing is wrong");

    let (honest, _) = Predictions::from_text(&fs::read_to_string(&receipt).unwrap()).unwrap();
    let parsed = Job::parse("job", &fs::read_to_string(&job).unwrap()).unwrap();
    let graphs = SamplePass::graphs(parsed.model().unwrap(), 10);
    let mut theirs = AnswerTrace::decode(&fs::read(&trace).unwrap(), 0, &graphs).unwrap();
    let ty = graphs[0].tensor(graphs[0].nodes[0].output);
    theirs.windows[7][0] = TracedNode::new(ty, tensor::tile_values(&vec![7; ty.bytes()]));
    let tampered = path(at, "tampered.trace");
    fs::write(&tampered, theirs.encode()).unwrap();
    let lied = |edit: Lie| {
        let mut receipt = honest.clone();
        edit(&mut receipt);
        receipt
    };
    let class = lied(&|r| r.samples[4].predicted[0] ^= 1);
    let logits = lied(&|r| r.samples[5].logits = Digest([1; 32]));
    let tile = lied(&|r| r.traces = Some(merkle::root(&sample_leaves(r, &theirs))));
    let weights = [&model[..], "--job", &job];
    for (number, (said, of, more, kind, sample)) in (0..).zip([
        (&class, &[&run[..]][..], &["--trace", &trace][..], "class", 4),
        (
            &lied(&|r| (r.traces, r.samples[4].predicted[0]) = (None, class.samples[4].predicted[0])),
            &weights,
            &[],
            "class",
            4,
        ),
        (&logits, &[&run], &["--trace", &trace, "--sample", "10"], "logits", 5),
        (&tile, &[&run], &["--trace", &tampered], "tile", 7),
        (&tile, &weights, &["--trace", &tampered, "--engine", "reference"], "tile", 7),
    ]) {
        fs::write(&lie, said.to_text(Some(&private))).unwrap();
        let file = path(at, &format!("verdict-{number}.json"));
        let asked = ["--inputs", &inputs, "--verdict", &file];
        let (code, found) = json(&[&["receipt", "check", &lie], of, &asked, more].concat());
        assert_eq!(
            (code, &found["verdict_file"], &found["differs"]),
            (1, &file.clone().into(), &sample.into())
        );
        let (code, found) = json(&["verdict", "check", &file, "--signer-key", &public]);
        assert_eq!((code, &found["convicts"], &found["claim"]), (1, &true.into(), &kind.into()), "{found}");
        assert!(found["text"].as_str().unwrap().starts_with("CONVICTS me.example"), "{found}");
    }

    // Where there is no evidence the line says why.
    let input = lied(&|r| r.samples[5].input = Digest([1; 32]));
    let without = lied(&|r| (r.traces, r.samples[5].logits) = (None, Digest([1; 32])));
    for (said, key, more, says) in [
        (&class, None, &[][..], "nobody signed the receipt"),
        (
            &without,
            Some(&private),
            &[],
            "the receipt commits other logits than the model gives, and no traces",
        ),
        (&logits, Some(&private), &[], "Ask the signer for the trace's file"),
        (&logits, Some(&private), &["--trace", &tampered], "Ask the signer for the trace's file"),
        (&tile, Some(&private), &[], "Ask the signer for the trace's file"),
        (&input, Some(&private), &["--trace", &trace], "the receipt may be true of its own data"),
    ] {
        fs::write(&lie, said.to_text(key)).unwrap();
        let (code, found) = check(&lie, &[more, &["--verdict", &unused]].concat());
        assert!(code == 1 && found["no_verdict"].as_str().unwrap().contains(says), "{says}: {found}");
    }
    assert!(!fs::exists(&unused).unwrap());
    // Somebody else's key, an edited file, the evidence with an honest receipt; a trace that is not the receipt's.
    let stranger = path(at, "stranger.key");
    assert_eq!(output(&["key", "new", &stranger, "--name", "me.example"]).0, 0);
    let text = fs::read_to_string(path(at, "verdict-0.json")).unwrap();
    let quoted = |receipt: &Predictions| serde_json::to_string(&receipt.to_text(Some(&private))).unwrap();
    let framed = text.replace(&quoted(&class), &quoted(&honest));
    assert_ne!(framed, text);
    let of_stranger = ["--signer-key", &format!("{stranger}.pub")];
    for (text, more, code, says) in [
        (text.clone(), &of_stranger[..], 4, "--signer-key is me.example"),
        (text.replacen("\"sample\":4", "\"sample\":3", 1), &[], 4, "an input slice is not what"),
        (text.clone() + " ", &[], 4, "verdict"),
        (text[..text.len() - 1].into(), &[], 4, "verdict"),
        (text, &["--tokenizer", &run], 2, "leave it out"),
        (framed, &[], 0, ""),
    ] {
        fs::write(&lie, text).unwrap();
        let (found, _, stderr) = output(&[&["verdict", "check", &lie], more].concat());
        assert!(found == code && stderr.contains(says), "{says}: {found} {stderr}");
    }
    let (code, found) = check(&receipt, &["--trace", &tampered]);
    assert!(code == 4 && found["error"].as_str().unwrap().contains("its samples have the root"), "{found}");
}
