//! `tiebreak monitor statement`: what audits established, signed, and verified by this program and by libraries of others.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use tiebreak_monitor::register::file::to_text;

use crate::common::{gpt_job, key, not_tested, trained};
use crate::{chips, output, path};

/// The Python that has the libraries; without one the test says so, unless TIEBREAK_REQUIRE_DSSE makes that a failure.
fn python() -> Option<String> {
    let python = std::env::var("TIEBREAK_DSSE_PYTHON").unwrap_or_else(|_| "python3".into());
    let found =
        Command::new(&python).args(["-c", "import securesystemslib.dsse, in_toto_attestation.v1"]).output();
    if found.is_ok_and(|output| output.status.success()) {
        return Some(python);
    }
    let missing = "no Python with securesystemslib and in-toto-attestation (TIEBREAK_DSSE_PYTHON names one)";
    assert!(std::env::var_os("TIEBREAK_REQUIRE_DSSE").is_none(), "{missing}");
    not_tested(&format!("there is {missing}, so no library of others verifies a statement"));
    None
}

#[test]
fn a_statement_says_what_was_replayed_and_libraries_of_others_verify_it() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let job = gpt_job(folder.path(), "step", "");
    let run = trained(&job, Path::new(&at("run")), None);
    let done = |args: &[&str], wanted: i32| {
        let (code, stdout, stderr) = output(args);
        assert_eq!(code, wanted, "{args:?}: {stdout}{stderr}");
        format!("{stdout}{stderr}")
    };
    for name in ["alice", "bob", "inspector"] {
        done(&["key", "new", &at(name), "--name", &format!("{name}.example")], 0);
    }
    let audited = |report: &str, more: &[&str]| {
        let (run, report) = (at("run"), at(report));
        done(&[&["audit", &run, "--report", &report], more].concat(), 0);
    };
    // One of four segments, and the same one again by another auditor.
    let sample = ["--sample", "0.25", "--seed", "1"];
    audited("alice.json", &[&sample[..], &["--key", &at("alice")]].concat());
    audited("bob.json", &[&sample[..], &["--key", &at("bob")]].concat());
    audited("unsigned.json", &["--steps", "1..2"]);
    audited("whole.json", &["--key", &at("bob")]);
    let public = at("inspector.pub");
    let stated = |reports: &[&str], more: &[&str]| -> Value {
        let (key, out) = (at("inspector"), at("statement.json"));
        let reports: Vec<String> = reports.iter().map(|report| at(report)).collect();
        let mut args = vec!["monitor", "statement", "--key", &key, "--out", &out];
        reports.iter().for_each(|report| args.extend(["--report", report]));
        args.extend(more);
        done(&args, 0);
        let said = done(&["monitor", "statement", "--check", &out, "--key", &public, "--json"], 0);
        serde_json::from_str(&said).unwrap()
    };
    let statement = stated(&["alice.json", "bob.json"], &["--confidence", "0.7"]);
    let audits = &statement["predicate"]["audits"];
    // Two bad ones of four are missed by one draw with probability 1/2, three with 1/4.
    assert_eq!(
        audits["text"],
        "of 4 segments 1 were replayed exactly, so with confidence 0.7 at most 50.00 % deviate"
    );
    assert_eq!(audits["segments"]["deviatingAtMost"], 2, "{audits:#}");
    assert_eq!(audits["reports"].as_array().unwrap().len(), 2);
    let whole = stated(&["alice.json", "whole.json"], &[]);
    assert_eq!(whole["predicate"]["audits"]["segments"]["deviatingAtMost"], 0, "{whole:#}");

    // Results of other commands about the same run.
    fs::write(at("rules.toml"), "[steps]\nmost = 7\n").unwrap();
    fs::write(at("rules.json"), done(&["monitor", "rules", &at("run"), &at("rules.toml"), "--json"], 1))
        .unwrap();
    let with_rules = stated(&["whole.json"], &["--rules", &at("rules.json")]);
    assert_eq!(with_rules["predicate"]["rules"]["result"], "violated", "{with_rules:#}");

    // The log of a chip, inspected and matched; the statement says who checked what.
    fs::write(at("chips.register"), to_text(&chips::register(), &key())).unwrap();
    fs::write(at("chip.log"), chips::bytes(&chips::honest())).unwrap();
    let register = at("chips.register");
    let (log, until) = (at("chip.log"), ["--register", &register, "--until", "2025-04-01", "--json"]);
    fs::write(at("fine.json"), done(&[&["monitor", "inspect", &log][..], &until].concat(), 0)).unwrap();
    let rare = [&["monitor", "inspect", &log, "--rate", "10"][..], &until].concat();
    fs::write(at("rare.json"), done(&rare, 1)).unwrap();
    fs::write(at("match.json"), done(&["monitor", "match", &log, "--run", &at("run"), "--json"], 3)).unwrap();
    let [fine, rare, matched] = ["fine.json", "rare.json", "match.json"].map(at);
    let said = stated(&["whole.json"], &["--inspection", &fine, "--inspection", &rare, "--match", &matched]);
    let inspections = &said["predicate"]["inspections"];
    assert_eq!((&inspections[0]["chip"], &inspections[0]["result"]), (&"A-1".into(), &"matches".into()));
    assert_eq!(inspections[1]["findings"], serde_json::json!(["too_rare"]), "{inspections:#}");
    assert_eq!(said["predicate"]["match"]["logsChecked"], false, "{said:#}");
    let told = done(&["monitor", "statement", "--check", &at("statement.json"), "--key", &public], 0);
    assert!(told.contains("match: nobody checked who wrote the logs"), "{told}");
    assert!(told.contains("inspection of chip A-1: differs (too_rare)"), "{told}");

    let (statement, other) = (at("statement.json"), at("alice.pub"));
    done(&["monitor", "statement", "--check", &statement, "--key", &other], 4);
    let out = at("none.json");
    let said = done(
        &["monitor", "statement", "--report", &at("unsigned.json"), "--key", &at("inspector"), "--out", &out],
        2,
    );
    assert!(said.contains("nobody signed the report"), "{said}");

    let Some(python) = python() else { return };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/vectors/dsse.py");
    let head = run.layout.head(10);
    let verified = |key: &str, file: &str| {
        let key = fs::read_to_string(key).unwrap();
        let output =
            Command::new(&python).arg("-B").arg(script).args([file, key.trim()]).arg(&head).output().unwrap();
        (
            output.status.success(),
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
        )
    };
    let (fine, said) = verified(&public, &statement);
    assert!(fine && said.contains(&run.id.to_string()), "{said}");
    assert!(!verified(&other, &statement).0, "another key verifies the statement");
    let text = fs::read_to_string(&statement).unwrap();
    let payload = text.find("\"payload\": \"").unwrap() + 30;
    let mut bytes = text.into_bytes();
    bytes[payload] = if bytes[payload] == b'A' { b'B' } else { b'A' };
    fs::write(&statement, bytes).unwrap();
    assert!(!verified(&public, &statement).0, "an edited statement is verified");
    done(&["monitor", "statement", "--check", &statement, "--key", &public], 4);
}
