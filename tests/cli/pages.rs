//! The page of an audit: what it says, that strangers' text in it is text, and that it needs nothing from elsewhere; and the terminal's summary.

use std::fs;
use std::path::Path;

use crate::common::edit::{edit, edited};
use crate::common::{gpt_job, key, trained};
use crate::{output, path};

/// A page, after the checks that hold for every page.
pub fn page(file: &str) -> String {
    let html = fs::read_to_string(file).unwrap();
    assert!(html.starts_with("<!doctype html>") && html.ends_with("</html>\n"), "{html}");
    for never in ["<script", "javascript:", "http://", "https://", "src=", "<link", "@import", "url("] {
        assert!(!html.contains(never), "{never}: {html}");
    }
    assert!(html.contains("default-src 'none'") && html.contains("prefers-color-scheme:dark"), "{html}");
    html
}

#[track_caller]
fn says(html: &str, said: &[&str]) {
    said.iter().for_each(|said| assert!(html.contains(said), "{said}\n{html}"));
}

fn audit(args: &[&str], wanted: i32) -> String {
    let (code, stdout, stderr) = output(&[&["audit"], args].concat());
    assert_eq!(code, wanted, "{args:?}: {stdout}{stderr}");
    stdout
}

#[test]
fn an_audit_is_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "step", "");
    // A folder's name is a stranger's choice.
    let out = path(folder.path(), "<script>alert(1)<!--");
    let run = trained(&job, Path::new(&out), None);
    let [file, auditor] = ["page.html", "auditor"].map(|name| path(folder.path(), name));
    assert_eq!(output(&["key", "new", &auditor, "--name", "auditor.example"]).0, 0);
    let public = key().public().to_text();
    let report = path(folder.path(), "report.json");
    let signed = ["--report", &report, "--key", &auditor];
    audit(&[&[&out[..], "--trainer-key", &public, "--page", &file], &signed[..]].concat(), 0);
    let html = page(&file);
    says(
        &html,
        &[
            "out good",
            "All 8 steps came out bit for bit",
            "Audit of the training run &lt;script&gt;alert(1)&lt;!--",
            "<rect class=\"done\" x=\"0.00\" y=\"0\" width=\"1000.00\"",
            "class=\"kept\"",
            "Replayed steps: 1..8.",
            "None. The run is of the exact profile",
            &run.id.to_string(),
            &run.computation.id.to_string(),
            &run.job().digest().to_string(),
            &run.file.summary().data.to_string(),
            "gpt, ",
            &public,
            "auditor.example+",
            "cpu (",
            "KiB",
            "tiebreak audit &#39;",
            &format!(" --trainer-key {public}\n"),
            "whether the job is the one that was ordered",
        ],
    );
    // Of a part, with the words for it.
    audit(&[&out, "--steps", "3..4", "--page", &file], 0);
    let html = page(&file);
    says(
        &html,
        &[
            "2 of 8 steps were replayed",
            "Nothing is said of the other steps",
            "6 of 8 steps were not in the plan",
            "--steps 3..4",
            "who signed the head: no --trainer-key was given",
            "nobody signed this report",
            " --trainer-key KEY --steps 3..4",
        ],
    );
    // The run names whatever key its author likes; nobody may paste it as the one that is known.
    assert!(!html.contains(&format!("--trainer-key {}", &public[..12])), "{html}");
    assert!(html.contains("x=\"250.00\" y=\"0\" width=\"250.00\""), "{html}");
    // A page that cannot be written is told, and a match is none then.
    let (code, stdout, stderr) = output(&["audit", &out, "--page", &format!("{file}/no/page")]);
    assert!(
        code == 3 && stdout.starts_with("MATCHES") && stderr.contains("the page could not be written"),
        "{stderr}"
    );
}

#[test]
fn a_difference_and_a_trainers_freedom_are_on_the_page() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "operator", "");
    let [out, file, verdict, logged] =
        ["run", "page.html", "v.json", "logged"].map(|name| path(folder.path(), name));
    trained(&job, Path::new(&out), Some("operator@5"));
    audit(&[&out, "--page", &file, "--verdict", &verdict], 1);
    says(
        &page(&file),
        &[
            "out bad",
            "Step 5 is not what its record says.",
            "class=\"differs\" x=\"500.00\"",
            "first difference in step 5",
            "Replayed steps: 1..4.",
            "the steps from 5 on: an audit stops at the first difference",
            &format!("tiebreak verdict check {verdict} --trainer-key KEY"),
            "operator ",
        ],
    );
    // A verdict's own page gives a key in a command only if its reader named it.
    let [report, public] = [path(folder.path(), "report.html"), key().public().to_text()];
    for (given, shown) in [(None, "KEY"), (Some(&public), public.as_str())] {
        let mut args = vec!["verdict", "report", &verdict, "--output", &report];
        given.iter().for_each(|key| args.extend(["--trainer-key", key]));
        assert_eq!(output(&args).0, 0);
        says(&page(&report), &[&format!("tiebreak verdict check v.json --trainer-key {shown}</pre>")]);
    }

    let trained = output(&["train", job.to_str().unwrap(), "--out", &logged, "--profile", "logged"]);
    assert_eq!(trained.0, 0, "{}", trained.2);
    audit(&[&logged, "--page", &file], 0);
    says(
        &page(&file),
        &["logged profile", "decisions in the log", "not the nearest value", "the trainer&#39;s to choose"],
    );
}

#[test]
fn reports_of_several_auditors_are_one_page() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "step", "");
    let out = path(folder.path(), "run");
    trained(&job, Path::new(&out), None);
    let [alice, bob, a, b, file] =
        ["alice", "bob", "a.json", "b.json", "page.html"].map(|name| path(folder.path(), name));
    for (key, report, steps) in [(&alice, &a, "1..2"), (&bob, &b, "5..8")] {
        let name = format!("{}.example", Path::new(key).file_name().unwrap().to_str().unwrap());
        assert_eq!(output(&["key", "new", key, "--name", &name]).0, 0);
        audit(&[&out, "--steps", steps, "--report", report, "--key", key], 0);
    }
    audit(&["merge", &a, &b, "--page", &file], 3);
    let html = page(&file);
    assert_eq!(html.matches("<figure>").count(), 3, "{html}");
    says(
        &html,
        &[
            "The reports do not decide: 6 of 8 steps were replayed.",
            "steps that nobody replayed: 3..4",
            "by alice.example",
            "by bob.example",
            "--steps 3..4 --report mine.json",
        ],
    );
    audit(&["merge", &a, &b, "--require", "0.5", "--page", &file], 0);
    says(&page(&file), &["out good", "6 of 8 steps were replayed, and each came out bit for bit"]);

    // A stranger wrote this one: nothing of it is obeyed.
    let hostile = path(folder.path(), "c.json");
    let text = fs::read_to_string(&a).unwrap();
    let unsigned = text[..text.find(",\n  \"auditor\"").unwrap()].to_string() + "\n}\n";
    let from = unsigned.find("\"engine\": \"").unwrap() + 11;
    let until = from + unsigned[from..].find('"').unwrap();
    let engine = &unsigned[from..until];
    let edits = [
        (engine, "<script>alert(1)</script>"),
        ("\"segments\": [", "\"segments\": [ [0, 4294967295], [4294967295, 0],"),
    ];
    fs::write(&hostile, edited(&unsigned, &edits)).unwrap();
    audit(&["merge", &hostile, "--unsigned", "--require", "0.1", "--page", &file], 0);
    says(&page(&file), &["&lt;script&gt;alert(1)&lt;/script&gt;"]);
    // No report, no page; and one that lacks what people read is malformed for a page alone.
    fs::remove_file(&file).unwrap();
    let (code, _, stderr) = output(&["audit", "merge", &hostile, "--page", &file]);
    assert!(
        code == 3 && stderr.contains("the page is not written") && !Path::new(&file).exists(),
        "{stderr}"
    );
    fs::write(&hostile, edited(&unsigned, &[("\"signed\"", "\"unsigned\"")])).unwrap();
    audit(&["merge", &hostile, "--unsigned", "--require", "0.1"], 0);
    audit(&["merge", &hostile, "--unsigned", "--page", &file], 4);
}

/// A terminal of 100 columns and 24 lines holds what an audit says.
#[test]
fn the_summary_of_an_audit_fits_one_screen() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "operator", "");
    let [out, logged, verdict] = ["run", "logged", "v.json"].map(|name| path(folder.path(), name));
    trained(&job, Path::new(&out), None);
    let public = key().public().to_text();
    let secret = path(folder.path(), "key");
    fs::write(&secret, key().to_text()).unwrap();
    let train = ["train", job.to_str().unwrap(), "--out", &logged, "--key", &secret, "--profile", "logged"];
    assert_eq!(output(&train).0, 0);
    let cheated = path(folder.path(), "cheated");
    trained(&job, Path::new(&cheated), Some("operator@5"));
    let lines =
        |text: &str| -> usize { text.lines().map(|line| line.chars().count().div_ceil(100).max(1)).sum() };
    // Many segments, half of which are drawn.
    edit(&job, &[("steps = 8", "steps = 120"), ("\nevery = 2", "\nevery = 1")]);
    let long = path(folder.path(), "long");
    trained(&job, Path::new(&long), None);
    for (run, exit, more) in [(&out, 0, ""), (&logged, 0, ""), (&cheated, 1, ""), (&long, 0, "--sample=0.5")]
    {
        let args: Vec<&str> = [run, "--trainer-key", &public, "--verdict", &verdict, more]
            .into_iter()
            .filter(|arg| !arg.is_empty())
            .collect();
        let told = audit(&args, exit);
        assert!(more.is_empty() || told.contains(" more ranges in "), "{told}");
        assert!(lines(&told) <= 24, "{} lines of 100 columns:\n{told}", lines(&told));
        // All that a report has to say is there: what passed, what was not checked, what to do next.
        assert!(exit == 1 || told.contains("not checked: "), "{told}");
    }
}
