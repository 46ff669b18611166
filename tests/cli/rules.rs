//! `tiebreak monitor rules`: rules that runs keep, break, or leave open.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::edit::edit;
use crate::common::{gpt_job, trained};
use crate::{output, path};

/// FLOP of the run of [`gpt_job`]: six for each weight that is multiplied and each token, and attention.
const FLOP: u64 = {
    let (width, vocabulary, context, tokens) = (16, 128, 12, 2 * 12);
    let weights = 12 * width * width + width * vocabulary;
    let attention = 6 * tokens * 2 * context * width;
    // Eight steps of three micro-batches.
    8 * 3 * (6 * weights * tokens + attention)
};

#[test]
fn rules_hold_are_violated_or_cannot_be_decided() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let job = gpt_job(folder.path(), "step", "");
    let base = trained(&job, Path::new(&at("base")), None);
    let child = at("child.toml");
    fs::copy(&job, &child).unwrap();
    edit(Path::new(&child), &[("[checkpoint]", "[init]\nrun = \"base\"\n[checkpoint]")]);
    trained(Path::new(&child), Path::new(&at("child")), None);
    let rules = at("rules.toml");
    let ruled = |runs: &[&str], text: &str, more: &[&str]| -> (i32, Value) {
        fs::write(&rules, text).unwrap();
        let runs: Vec<String> = runs.iter().map(|run| at(run)).collect();
        let mut args = vec!["monitor", "rules"];
        args.extend(runs.iter().map(String::as_str));
        args.extend([&rules, "--json"]);
        args.extend(more);
        let (code, stdout, stderr) = output(&args);
        (code, serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{code} {stderr}")))
    };
    let most = |flop: u64| format!("[flop]\nmost = {flop}\n");
    let (code, result) = ruled(&["base"], &most(FLOP), &[]);
    assert_eq!((code, &result["runs"][0]["total_flop"]), (0, &(FLOP as f64).into()), "{result:#}");
    assert_eq!(ruled(&["base"], &most(FLOP - 1), &[]).0, 1);
    // A run that begins from another one counts with it, and without it only a violation is certain.
    let both = ["base", "child"];
    let (code, result) = ruled(&both, &most(2 * FLOP), &[]);
    let counts = |result: &Value| {
        ["holds", "violated", "undecided"].map(|ruling| result["counts"][ruling].as_u64().unwrap())
    };
    assert_eq!((code, counts(&result)), (0, [2, 0, 0]), "{result:#}");
    let (code, result) = ruled(&both, &most(2 * FLOP - 1), &[]);
    assert_eq!((code, counts(&result)), (1, [1, 1, 0]), "{result:#}");
    let (code, result) = ruled(&["child"], &most(2 * FLOP), &[]);
    assert_eq!((code, counts(&result)), (3, [0, 0, 1]));
    let evidence = result["rules"][0]["evidence"].as_str().unwrap();
    assert!(evidence.contains(&format!("the parent {} is not among", base.id)), "{evidence}");
    assert_eq!(ruled(&["child"], &most(FLOP - 1), &[]).0, 1);

    let settings = "[learning_rate]\nmost = 0.01\n[samples]\nleast = 6\nmost = 6\n[steps]\nmost = 8\n";
    let kinds = "[model]\nallowed = [\"gpt\"]\n[optimizer]\nforbidden = [\"sgd\"]\n";
    let (code, result) = ruled(&["base"], &format!("{settings}{kinds}"), &[]);
    assert_eq!((code, counts(&result)), (0, [5, 0, 0]), "{result:#}");
    assert_eq!(ruled(&["base"], "[model]\nforbidden = [\"gpt\"]\n", &[]).0, 1);
    assert_eq!(ruled(&["base"], "[learning_rate]\nmost = 0.009\n", &[]).0, 1);
    // A group of parameters moves at its factor of the records' rate.
    let grouped = at("grouped.toml");
    let group = "[[optimizer.group]]\nparameters = [\"token_embedding\"]\nrate_factor = 2.0\n[checkpoint]";
    fs::copy(&job, &grouped).unwrap();
    edit(Path::new(&grouped), &[("[checkpoint]", group)]);
    trained(Path::new(&grouped), Path::new(&at("grouped")), None);
    assert_eq!(ruled(&["grouped"], "[learning_rate]\nmost = 0.01\n", &[]).0, 1);
    assert_eq!(ruled(&["grouped"], "[learning_rate]\nmost = 0.02\n", &[]).0, 0);

    let report = at("eval.json");
    assert_eq!(output(&["eval", &at("base"), "--samples", "5", "--report", &report]).0, 0);
    let found: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    let loss = found["found"]["loss"].as_f64().unwrap();
    let on_data = |bound: f64| format!("[loss]\nmost = {bound}\ndata = {}\n", found["data"]);
    let given = ["--evaluation", &report];
    fs::write(at("eval.toml"), "[steps]\nleast = 1\n").unwrap();
    assert_eq!(ruled(&["base"], &on_data(loss + 0.01), &given).0, 0);
    assert_eq!(ruled(&["base"], &on_data(loss - 0.01), &given).0, 1);
    assert_eq!(ruled(&["base"], &on_data(9.0), &[]).0, 3);
    assert_eq!(ruled(&["base"], &format!("{}samples = 6\n", on_data(9.0)), &given).0, 3);
    let (code, _, stderr) =
        output(&["monitor", "rules", &at("base"), &at("eval.toml"), "--evaluation", &report]);
    assert!(code == 2 && stderr.contains("has no rule about a result"), "{stderr}");
    // The report is of another run's model.
    assert_eq!(ruled(&both, &on_data(9.0), &given).0, 3);

    fs::write(&rules, "[flop]\nmots = 1\n").unwrap();
    let (code, _, stderr) = output(&["monitor", "rules", &at("base"), &rules]);
    assert!(
        code == 2 && stderr.contains("flop.mots: there is no such key; there are least, most"),
        "{stderr}"
    );
}
