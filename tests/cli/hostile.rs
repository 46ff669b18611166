//! Foreign runs and texts, as hostile as possible: every command ends properly, and a terminal gets no escape sequences.

use std::path::Path;

use crate::common::{edit::edit, files, gpt_job, sign_again, trained};
use crate::{output, path, tiebreak};

/// Every command that reads a run ends, whatever is wrong with it, with an exit code of its own and a sentence.
#[test]
fn no_command_panics_on_a_damaged_run() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "[rounding]\n");
    edit(&job, &[("steps = 8", "steps = 2")]);
    let out = path(folder.path(), "run");
    let run = trained(&job, Path::new(&out), None);
    let (verdict, picture) = (path(folder.path(), "verdict.json"), path(folder.path(), "margins.svg"));
    let receipt = path(folder.path(), "receipt.json");
    let asked = ["generate", &out, "--length", "3", "--temperature", "0", "--receipt", &receipt];
    assert_eq!(output(&asked).0, 0);
    assert_eq!(output(&["receipt", "check", &receipt, &out]).0, 0);
    let predictions = path(folder.path(), "predictions.json");
    assert_eq!(output(&["predict", &out, "--samples", "0..2", "--receipt", &predictions]).0, 0);
    let every_command = |what: &str| {
        for args in [
            &["verify", &out][..],
            &["audit", &out, "--engine", "cpu", "--verdict", &verdict],
            &["replay", &out, "--step", "2", "--engine", "cpu"],
            &["inspect", &out],
            &["log", "inspect", &out, "--margins", &picture],
            &["log", "inspect", &out, "--step", "2"],
            &["compare", &out, &out, "--verdict", &verdict],
            &["generate", &out, "--prompt", "a", "--length", "2"],
            &["serve-model", &out, "--listen", "nowhere"],
            &["receipt", "check", &receipt, &out],
            &["predict", &out, "--samples", "0..1"],
            &["receipt", "check", &predictions, &out],
        ] {
            let (code, _, stderr) = output(args);
            assert!(
                (0..=4).contains(&code) && !stderr.contains("panicked"),
                "{what}: {args:?}: {code} {stderr}"
            );
        }
    };
    for (name, whole) in files(Path::new(&out)) {
        let path = Path::new(&out).join(&name);
        std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        every_command(&name.display().to_string());
        std::fs::write(&path, &whole).unwrap();
    }
    // An auditor without time decides nothing, whether the time ends while files are checked or later.
    for args in [&["audit", &out, "--engine", "cpu"][..], &["replay", &out, "--step", "2", "--engine", "cpu"]]
    {
        let (code, _, stderr) = output(&[args, &["--max-time", "0"]].concat());
        assert_eq!(code, 3, "{args:?}: {stderr}");
    }
    sign_again(&run, |records| records.truncate(1));
    every_command("a head over record 0 only");
}

#[test]
fn hostile_runs_end_as_their_list_says() {
    let folder = tempfile::tempdir().unwrap();
    let cases = path(folder.path(), "cases");
    let (code, _, stderr) = output(&["selftest", "--hostile", &cases, "-q"]);
    assert_eq!(code, 0, "{stderr}");
    let list = std::fs::read(path(folder.path(), "cases/cases.json")).unwrap();
    let list: serde_json::Value = serde_json::from_slice(&list).unwrap();
    let mut wrong = Vec::new();
    for case in list.as_array().unwrap() {
        let args = case["command"].as_array().unwrap().iter();
        let args: Vec<&str> = args.map(|arg| arg.as_str().unwrap()).collect();
        let done = tiebreak(&args).current_dir(&cases).output().unwrap();
        if done.status.code().map(i64::from) != case["exit"].as_i64() {
            let text =
                String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
            wrong.push(format!(
                "{} wants {}, ends with {:?}:\n{text}",
                case["name"],
                case["exit"],
                done.status.code()
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(output(&["selftest", "--hostile", &cases]).0, 2, "a folder that is there is not touched");

    // Parts of a step get the same judgement. The cheat is in micro-batch 0.
    let cheated = format!("{cases}/runs/cheat-operator");
    for (step, part, code) in [("5", Some("0"), 1), ("5", Some("1"), 0), ("4", None, 0), ("5", None, 1)] {
        let part = part.map_or(vec![], |part| vec!["--microbatch", part]);
        assert_eq!(
            output(&[&["replay", &cheated, "--step", step][..], &part].concat()).0,
            code,
            "{step} {part:?}"
        );
    }
}

/// Runs a command and checks that no terminal would obey a character of its output, and that every line is this program's.
fn harmless(args: &[&str]) -> (i32, String) {
    let (code, stdout, stderr) = output(args);
    let printed = stdout + &stderr;
    // A model's text has lines and tabs of its own.
    let obeyed = |c: char| (c.is_control() && !matches!(c, '\n' | '\t')) || c == '\u{202e}';
    assert!(!printed.contains(obeyed), "{args:?}: {printed:?}");
    let forged = |line: &str| line.trim_start().starts_with("FORGED");
    assert!(!printed.lines().any(forged), "{args:?}: {printed}");
    (code, printed)
}

/// A job, a run, a verdict and a program with escape sequences in every text that somebody else chose.
#[test]
#[cfg(unix)]
fn foreign_text_gives_a_terminal_no_orders() {
    const NAME: &str = "te\u{1b}]0;title\u{7}\nFORGED\u{9b}2J\u{202e}xt";
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join(format!("folder{NAME}"));
    std::fs::create_dir(&inner).unwrap();
    let job = gpt_job(&inner, "operator", "");
    std::fs::rename(inner.join("text.txt"), inner.join(NAME)).unwrap();
    let escaped = NAME.replace('\u{1b}', "\\u001b").replace('\u{7}', "\\u0007").replace('\n', "\\n");
    let named = format!("\"{}\"\ncopy = false", escaped.replace('\u{9b}', "\\u009b"));
    edit(&job, &[("steps = 8", "steps = 3"), ("\"text.txt\"", &named)]);
    let run = trained(&job, &inner.join("run"), Some("operator@2"));
    std::fs::write(run.layout.root.join(NAME), "").unwrap();
    let [at, verdict] = ["run", "verdict.json"].map(|name| path(&inner, name));
    let (job, data) = (job.to_str().unwrap(), inner.to_str().unwrap());
    let engine = ["--engine", "cpu"];

    assert_eq!(harmless(&["job", "check", job]).0, 0);
    let (code, printed) = harmless(&["verify", &at]);
    assert_eq!(code, 0, "{printed}");
    assert!(
        printed.contains("not of the run: te\\u{1b}]0;title\\u{7}\\u{a}FORGED\\u{9b}2J\\u{202e}xt"),
        "{printed}"
    );
    assert_eq!(harmless(&["verify", &at, "--json"]).0, 0);
    assert_eq!(harmless(&["inspect", &at]).0, 0);
    assert_eq!(harmless(&["compare", &at, &at]).0, 0);
    assert_eq!(harmless(&["log", "inspect", &at]).0, 2);
    assert_eq!(
        harmless(&["generate", &at, "--seed", "1", "--length", "40", "--prompt", "\u{1b}]0;x\u{7}"]).0,
        0
    );
    assert_eq!(harmless(&[&["audit", &at][..], &engine].concat()).0, 2);
    let audit = [&["audit", &at, "--data", data, "--verdict", &verdict][..], &engine].concat();
    assert_eq!(harmless(&audit).0, 1);
    assert_eq!(harmless(&[&["replay", &at, "--step", "1", "--data", data][..], &engine].concat()).0, 0);
    let (code, printed) = harmless(&["train", job, "--out", &at]);
    assert!(code == 2 && printed.contains("is a run already"), "{printed}");
    assert_eq!(harmless(&["train", job, "--out", &path(&inner, "copied")]).0, 0);

    // The program's own fields, which a decoder quotes.
    assert_eq!(harmless(&["verdict", "check", &verdict]).0, 1);
    let json = std::fs::read_to_string(&verdict).unwrap();
    let named = |field: &str| format!("\"{field}\":{}", serde_json::json!(NAME));
    for (from, to) in [
        ("\"contract\":\"tiebreak-contract-2\"", named("contract")),
        ("\"format\":2", format!("\"format\":2,{}", named(NAME))),
        ("\"kind\":\"tile\"", named("kind")),
        ("steps = 3", escaped.clone()),
    ] {
        let edited = json.replacen(from, &to, 1);
        assert_ne!(edited, json, "{from}");
        std::fs::write(&verdict, edited).unwrap();
        for args in [&["verdict", "check", &verdict][..], &["verdict", "check", &verdict, "--json"]] {
            assert_eq!(harmless(args).0, 4, "{from}");
        }
    }
    for (file, to) in
        [("run.json", format!("{{{}}}", named("contract"))), ("job.toml", format!("\"{escaped}\" = 1"))]
    {
        let file = run.layout.root.join(file);
        let good = std::fs::read(&file).unwrap();
        std::fs::write(&file, to).unwrap();
        assert_eq!(harmless(&["verify", &at]).0, 4);
        std::fs::write(&file, good).unwrap();
    }
    std::fs::write(run.layout.heads().join(NAME), "").unwrap();
    assert_eq!(harmless(&["inspect", &at]).0, 0, "it is no head");
    assert_eq!(harmless(&[NAME]).0, 2);
}
