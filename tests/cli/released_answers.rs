//! Answers of released weights, without a run: those of the run that they come from.

use std::fs;
#[cfg(feature = "tokenizer")]
use std::path::Path;

use serde_json::json;

use crate::answers::small;
use crate::served_models::{posted, read, served};
use crate::{output, path};

/// An answer's text and its receipt, which nobody signs.
fn answered(model: &[&str], receipt: &str) -> (String, String) {
    let asked = ["generate", "--prompt", "The ", "--length", "30", "--seed", "4", "--receipt", receipt];
    let (code, stdout, stderr) = output(&[&asked[..], model].concat());
    assert_eq!(code, 0, "{model:?}: {stderr}");
    (stdout, fs::read_to_string(receipt).unwrap())
}

#[test]
fn released_weights_answer_as_their_run_does() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let run = small(folder.path(), "0.1");
    let (file, alone, job, receipt) =
        (format!("{run}/model.safetensors"), at("alone"), at("job.toml"), at("r.json"));
    fs::create_dir(&alone).unwrap();
    fs::copy(&file, format!("{alone}/model.safetensors")).unwrap();
    let expected = answered(&[&run], &receipt);
    for model in [&file, &alone] {
        assert!(answered(&[model, "--job", &job], &receipt) == expected, "{model}");
        for of in [&[model, "--job", &job][..], &[&run]] {
            let (code, stdout, stderr) = output(&[&["receipt", "check", &receipt], of].concat());
            assert!(code == 0 && stdout.starts_with("MATCHES: 30 tokens"), "{of:?}: {stdout}{stderr}");
        }
        // Without the job nobody knows what the weights are of.
        for args in
            [&["generate", model][..], &["serve-model", model], &["receipt", "check", &receipt, model]]
        {
            let (code, _, stderr) = output(args);
            assert!(code == 2 && stderr.contains("name their job with --job"), "{args:?}: {stderr}");
        }
        let (code, _, stderr) = output(&["generate", model, "--job", &job, "--step", "1"]);
        assert!(code == 2 && stderr.contains("--step"), "{stderr}");
    }
    // Other weights are another model for the receipt.
    let other = at("other");
    fs::create_dir(&other).unwrap();
    let mut bytes = fs::read(&file).unwrap();
    let last = bytes.len() - 2;
    bytes[last] ^= 1;
    fs::write(format!("{other}/model.safetensors"), bytes).unwrap();
    let (code, _, stderr) = output(&["receipt", "check", &receipt, &other, "--job", &job]);
    assert!(code == 1 && stderr.contains("the receipt is of other parameters"), "{code}: {stderr}");
    let (code, _, stderr) = output(&["generate", &alone, "--job", &job, "--max-memory", "0"]);
    assert!(code == 3 && stderr.contains("memory"), "{code}: {stderr}");

    let server = served(&alone, &["--job", &job]);
    let fields = json!({"model": "alone", "prompt": "The ", "max_tokens": 30, "temperature": 0.8, "seed": 4});
    let (status, _, body) = read(posted(&server.address, "/v1/completions", &fields));
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(status, 200, "{body}");
    let text = body["choices"][0]["text"].as_str().unwrap();
    let (code, stdout, _) =
        output(&["generate", &run, "--prompt", "The ", "--length", "30", "--seed", "4", "--json"]);
    let found: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, found["answer"].as_str()), (0, Some(text)));
}

/// An imported folder's tokenizer is the one beside its weights.
#[cfg(feature = "tokenizer")]
#[test]
fn an_imported_model_answers_with_its_own_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let run = crate::answers::trained(folder.path(), "learned", 256);
    let (released, imported) = (at("released"), at("imported"));
    let (code, _, stderr) = output(&["export", &run, "--format", "hf", "--output", &released]);
    assert_eq!(code, 0, "{stderr}");
    crate::answers::tokenizer(Path::new(&at("gpt2")));
    for name in ["vocab.json", "merges.txt"] {
        fs::copy(folder.path().join("gpt2").join(name), Path::new(&released).join(name)).unwrap();
    }
    let (code, _, stderr) = output(&["import", &released, "--output", &imported]);
    assert_eq!(code, 0, "{stderr}");
    let (job, receipt) = (format!("{imported}/job.toml"), at("r.json"));
    let own = answered(&[&released, "--job", &job, "--temperature", "0"], &receipt);
    assert!(own.0.contains("hehe"), "{own:?}");
    let named = answered(&[&run, "--tokenizer", &released, "--temperature", "0"], &receipt);
    assert!(own == named, "{own:?}\n{named:?}");
}
