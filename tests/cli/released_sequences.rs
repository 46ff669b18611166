//! BERT and DistilBERT that classify sequences, in the names and layouts of transformers: import, training, export, evaluations,
//! predictions with receipts, and refusals.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tiebreak_run::run::checkpoint;

use crate::common::edit::{edit, edited};
use crate::common::{npy, trained};
use crate::output;
use crate::released::{Stored, command, stored};
use crate::released_encoders::{BERT, DISTILBERT, pair, tensors, with_head};

/// The configuration of a classifier of three labels.
fn config(is_bert: bool) -> String {
    let (from, own) = if is_bert { (BERT, "0.1, \"classifier_dropout\": 0.4") } else { (DISTILBERT, "0.1") };
    let labels = r#""id2label": {"0": "bad", "1": "good", "2": "other"}, "label2id": {"bad": 0, "good": 1, "other": 2}"#;
    let from = edited(
        from,
        &[
            ("ForMaskedLM", "ForSequenceClassification"),
            ("\"vocab_size\"", &format!("{labels}, \"vocab_size\"")),
        ],
    );
    match is_bert {
        true => edited(
            &from,
            &[
                ("\"classifier_dropout\": null, ", ""),
                ("dropout_prob\": 0.1", &format!("dropout_prob\": {own}")),
            ],
        ),
        false => from,
    }
}

/// The tensors of such a classifier.
fn classifier(is_bert: bool) -> Vec<Stored> {
    let pooler = if is_bert { "bert.pooler.dense" } else { "pre_classifier" };
    with_head(is_bert, pair(pooler, vec![16, 16]).into_iter().chain(pair("classifier", vec![3, 16])))
}

/// Writes a released folder with data of eight sequences, and imports it.
fn imported(folder: &Path, files: &[(&str, &[u8])], more: &[&str]) -> Result<(PathBuf, String), String> {
    fs::create_dir_all(folder).unwrap();
    for (name, bytes) in files {
        fs::write(folder.join(name), bytes).unwrap();
    }
    let (code, said) = command(&[&["import", folder.to_str().unwrap()], more].concat());
    let job = folder.join("job.toml");
    if code != 0 {
        assert!(!job.exists(), "{said}");
        return Err(said);
    }
    let id = |sample: u16, place: u16| {
        if place < sample % 7 + 5 { (sample * 31 + place * 5) % 120 + 4 } else { 3 }
    };
    let ids: Vec<u8> = (0..8).flat_map(|s| (0..12).flat_map(move |p| id(s, p).to_le_bytes())).collect();
    fs::write(folder.join("inputs.npy"), npy("<u2", "(8, 12)", &ids)).unwrap();
    fs::write(folder.join("labels.npy"), npy("|u1", "(8,)", &[0, 1, 1, 0, 1, 0, 0, 1])).unwrap();
    edit(
        &job,
        &[
            ("steps = 100", "steps = 2"),
            ("micro_batches = 8", "micro_batches = 2"),
            ("warmup = 10", "warmup = 0"),
        ],
    );
    Ok((job, said))
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_string()
}

#[test]
fn classifiers_come_out_as_they_went_in() {
    let folder = tempfile::tempdir().unwrap();
    for (is_bert, lines) in [
        (true, "form = \"bert\"\ntoken_types = 2\nclasses = 3\nclassifier_dropout = 0.4"),
        (false, "form = \"distilbert\"\nclasses = 3\nclassifier_dropout = 0.2"),
    ] {
        let at = folder.path().join(if is_bert { "bert" } else { "distilbert" });
        let (config, tensors) = (config(is_bert), classifier(is_bert));
        let file = stored(&tensors);
        let files = [("config.json", config.as_bytes()), ("model.safetensors", &file[..])];
        let (job, _) = imported(&at, &files, &[]).unwrap();
        let said = fs::read_to_string(&job).unwrap();
        let all = "kind = \"bert\"\npadding = 3\nkind = \"arrays\"\ndtype = \"u16\"";
        for line in all.lines().chain(lines.lines()) {
            assert!(said.lines().any(|own| own == line), "{line}: {said}");
        }
        assert!(!said.contains("masking") && !said.contains("reinitialize"), "{said}");
        let run = trained(&job, &at.join("run"), None);
        let state = checkpoint::read(&run.layout.checkpoint(0), &run.program().state()).unwrap();
        assert_eq!(run.program().parameters.len(), tensors.len());
        for ((theirs, .., bytes), ours) in tensors.iter().zip(&state) {
            assert!(ours == bytes, "{theirs}");
        }
        let export = |step: &str, out: &str| {
            let arguments = ["export", &text(&at.join("run")), "--format", "hf", "--step", step, "--output"];
            let (code, said) = command(&[&arguments[..], &[&text(&at.join(out))]].concat());
            assert_eq!(code, 0, "{said}");
        };
        export("0", "first");
        for (part, bytes) in files {
            assert!(fs::read(at.join("first").join(part)).unwrap() == bytes, "{part}");
        }
        export("2", "second");
        assert!(fs::read(at.join("second/model.safetensors")).unwrap() != file);
        assert_eq!(fs::read_to_string(at.join("second/config.json")).unwrap(), config);
        assert_eq!(command(&["import", &text(&at.join("second"))]).0, 0);
    }
}

/// The loss and the accuracy of the last model, and receipts of its predictions.
#[test]
fn a_classifier_is_evaluated_and_its_predictions_have_receipts() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let file = stored(&classifier(false));
    let config = config(false);
    let files = [("config.json", config.as_bytes()), ("model.safetensors", &file[..])];
    let (job, _) = imported(at, &files, &[]).unwrap();
    trained(&job, &at.join("run"), None);
    let run = text(&at.join("run"));
    let json = |arguments: &[&str]| -> (i32, Value) {
        let (code, said) = command(arguments);
        (code, serde_json::from_str(&said).unwrap_or_else(|_| panic!("{arguments:?}: {said}")))
    };
    let (code, evaluated) = json(&["eval", &run]);
    assert_eq!((code, &evaluated["labels"], &evaluated["samples"]), (0, &8.into(), &8.into()), "{evaluated}");
    assert!(evaluated["loss"].is_number() || evaluated["loss"].is_string(), "{evaluated}");
    let [inputs, receipt, trace] = ["inputs.npy", "receipt", "trace"].map(|name| text(&at.join(name)));
    let (code, found) =
        json(&["predict", &run, "--inputs", &inputs, "--receipt", &receipt, "--trace", &trace]);
    let samples = found["samples"].as_array().unwrap_or_else(|| panic!("{found}"));
    assert_eq!((code, samples.len(), &found["classes"]), (0, 8, &3.into()), "{found}");
    let labels = [0, 1, 1, 0, 1, 0, 0, 1];
    let hits = samples.iter().zip(labels).filter(|(sample, label)| sample["classes"][0] == *label).count();
    assert_eq!(evaluated["hits"], hits, "{evaluated} {found}");
    for engine in ["cpu", "reference"] {
        let check = ["receipt", "check", &receipt, &run, "--inputs", &inputs, "--engine", engine];
        assert_eq!(json(&check).0, 0);
    }
    // Another token of a sequence gives the receipt another input.
    let mut other = fs::read(&inputs).unwrap();
    let last = other.len() - 24;
    other[last] ^= 1;
    fs::write(&inputs, other).unwrap();
    let (code, said, error) = output(&["receipt", "check", &receipt, &run, "--inputs", &inputs]);
    assert!(code == 1 && said.contains("sample 7"), "{code} {said}{error}");
}

/// A classifier over the weights of an encoder for masked tokens: a new head is drawn, and BERT's pooler is kept if the files have it.
#[test]
fn an_encoder_for_masked_tokens_gets_a_classifier() {
    let folder = tempfile::tempdir().unwrap();
    let mut pretraining = tensors(true);
    pretraining.extend(with_head(true, pair("bert.pooler.dense", vec![16, 16])).split_off(37));
    pretraining.extend(with_head(true, pair("cls.seq_relationship", vec![2, 16])).split_off(37));
    for (name, config, tensors, drawn, class) in [
        ("bert", BERT, tensors(true), r#"["pooler.*","classifier.*"]"#, "\"BertForSequenceClassification\""),
        ("pretraining", BERT, pretraining, r#"["classifier.*"]"#, "\"BertForSequenceClassification\""),
        (
            "distilbert",
            DISTILBERT,
            tensors(false),
            r#"["pooler.*","classifier.*"]"#,
            "\"DistilBertForSequenceClassification\"",
        ),
    ] {
        let at = folder.path().join(name);
        let file = stored(&tensors);
        let files = [("config.json", config.as_bytes()), ("model.safetensors", &file[..])];
        let (job, said) = imported(&at, &files, &["--classes", "2"]).unwrap();
        for part in ["a new head for 2 classes", "another head's"] {
            assert!(said.contains(part), "{said}");
        }
        let written = fs::read_to_string(&job).unwrap();
        assert!(
            written.contains(&format!("reinitialize = {drawn}\n")) && written.contains("classes = 2\n"),
            "{written}"
        );
        let run = trained(&job, &at.join("run"), None);
        let state = checkpoint::read(&run.layout.checkpoint(0), &run.program().state()).unwrap();
        let named = |name: &str| {
            let table = run.program().state();
            state[table.iter().position(|tensor| tensor.name == name).unwrap()].clone()
        };
        let theirs =
            |name: &str| tensors.iter().find(|(own, ..)| own == name).map(|(.., bytes)| bytes.clone());
        assert_eq!(
            theirs("bert.pooler.dense.weight") == Some(named("param/pooler.weight")),
            name == "pretraining"
        );
        let (code, said) = command(&["export", &text(&at.join("run")), "--output", &text(&at.join("out"))]);
        assert_eq!(code, 0, "{said}");
        let written = fs::read_to_string(at.join("out/config.json")).unwrap();
        assert!([class, "\"LABEL_1\""].iter().all(|part| written.contains(part)), "{written}");
        let (code, said) = command(&["import", &text(&at.join("out")), "--classes", "2"]);
        assert!(code == 0 && said.contains("have 2 classes already"), "{said}");
    }
    let (code, said) = command(&["import", &text(&folder.path().join("bert/out")), "--classes", "1"]);
    assert!(code != 0 && said.contains("classes"), "{said}");
}

#[test]
fn what_is_no_classifier_is_refused_by_key_or_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let labels = r#"{"0": "bad", "1": "good", "2": "other"}"#;
    let id2label = format!("\"id2label\": {labels}");
    let mut number = 0;
    let mut refused = |is_bert: bool, config: &str, tensors: &[Stored], wanted: &str| {
        number += 1;
        let files = [("config.json", config.as_bytes()), ("model.safetensors", &stored(tensors)[..])];
        let said = imported(&folder.path().join(number.to_string()), &files, &[]).map(|(job, _)| job);
        match said {
            Ok(job) => assert!(wanted.is_empty(), "{wanted}: {is_bert} {}", job.display()),
            Err(said) => assert!(!wanted.is_empty() && said.contains(wanted), "{wanted}: {said}"),
        }
    };
    for (is_bert, to, wanted) in [
        (true, "\"num_labels\": 3".to_string(), ""),
        (true, format!("{id2label}, \"_num_labels\": 3"), ""),
        (false, format!("{id2label}, \"problem_type\": \"single_label_classification\""), ""),
        (
            false,
            format!("{id2label}, \"problem_type\": \"regression\""),
            "problem_type is \\\"regression\\\"",
        ),
        (true, format!("{id2label}, \"problem_type\": \"multi_label_classification\""), "problem_type is"),
        (true, format!("{id2label}, \"num_labels\": 4"), "num_labels is 4; other keys count 3 labels"),
        (true, "\"num_labels\": 3, \"_num_labels\": 2".to_string(), "_num_labels is 2; other keys count 3"),
        (true, "\"id2label\": [\"bad\"]".to_string(), "id2label is [\\\"bad\\\"]; an object"),
        (true, "\"id2label\": {\"0\": \"only\"}".to_string(), "1 label, which is a regression"),
        (false, "\"id2label\": {}".to_string(), "the model's classes: must be"),
        (true, "\"num_labels\": -3".to_string(), "num_labels is -3; a number is wanted"),
        // Two labels where there is no key.
        (true, "\"num_labels\": null".to_string(), "classifier.weight is F32 [3, 16]"),
    ] {
        refused(is_bert, &edited(&config(is_bert), &[(&id2label, &to)]), &classifier(is_bert), wanted);
    }
    let dropout = edited(&config(true), &[("\"classifier_dropout\": 0.4", "\"classifier_dropout\": 1.5")]);
    refused(true, &dropout, &classifier(true), "the model's classifier_dropout: must be");
    for is_bert in [true, false] {
        let without = |part: &str| -> Vec<Stored> {
            classifier(is_bert).into_iter().filter(|(name, ..)| !name.contains(part)).collect()
        };
        refused(is_bert, &config(is_bert), &without("classifier.bias"), "no file has the parameters");
        refused(is_bert, &config(is_bert), &tensors(is_bert), "no file has the parameters");
        let mut more = classifier(is_bert);
        more.extend(with_head(is_bert, pair("qa_outputs", vec![2, 16])).into_iter().rev().take(2));
        refused(is_bert, &config(is_bert), &more, "has no parameters qa_outputs.");
        // A classifier in a file that is said to find masked tokens.
        let masked = if is_bert { BERT } else { DISTILBERT };
        refused(is_bert, masked, &classifier(is_bert), "no file has the parameters");
    }
}
