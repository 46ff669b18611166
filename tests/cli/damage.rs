//! Damage to every kind of file in a run's folder: a file that the audit did not need is named by its path, a file that it needed
//! ends it.

use std::path::Path;

use serde_json::Value;

use crate::common::{edit::edit, files, gpt_job, trained};
use crate::{output, path};

/// The result of an audit of the first two steps, for a damaged file.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// The audit names the file, and needs it nowhere: exit 0, and 4 for `verify`.
    Named,
    /// The run does not hold together, or the audit needs it: exit 4.
    Needed,
    /// The run has no end that can be checked: exit 3, and 4 for `verify`.
    End,
    /// No record promises the file.
    Free,
}

/// The kind of a file, and the byte to change.
fn kind(file: &str, len: usize) -> Option<(Kind, usize)> {
    let middle = len / 2;
    Some(match file {
        "run.json" | "job.toml" | "program.bin" | "heads/000000000010" => (Kind::Needed, middle),
        "transcript" | "data/data-0.tree" => (Kind::Needed, middle),
        // The second half is kept for evaluations.
        "data/data-0.bin" => (Kind::Named, len - 1),
        "gradients" => (Kind::Named, len - 1),
        "model.safetensors" => (Kind::End, middle),
        "metrics.jsonl" | "events.out.tfevents.tiebreak" | "lock" | "evaluation/data-0.bin" => {
            (Kind::Free, 0)
        }
        "traces/step-000000007" | "logs/step-000000007" | "checkpoints/step-000000006.safetensors" => {
            (Kind::Named, middle)
        }
        "heads/000000000004" => (Kind::Named, middle),
        _ => return None,
    })
}

#[test]
fn every_damaged_file_is_named_by_an_audit_that_did_not_need_it() {
    let folder = tempfile::tempdir().unwrap();
    let extra = "\n[rounding]\n\n[evaluation]\nevery = 8\nfiles = [\"valid.txt\"]\n";
    let job = gpt_job(folder.path(), "operator", extra);
    edit(&job, &[("kind = \"bytes\"", "kind = \"bytes\"\nvalidation_split = 0.5")]);
    std::fs::write(folder.path().join("text.txt"), "to be or not to be, ".repeat(20_000)).unwrap();
    std::fs::write(folder.path().join("valid.txt"), "that is the question").unwrap();
    let run = path(folder.path(), "run");
    trained(&job, Path::new(&run), None);
    for name in ["metrics.jsonl", "events.out.tfevents.tiebreak"] {
        std::fs::write(format!("{run}/{name}"), "no metrics").unwrap(); // a library's trainer writes none
    }
    let audit = ["audit", &run, "--steps", "1..2", "--engine", "cpu"];
    let checked = |args: &[&str]| -> (i32, Value) {
        let (code, stdout, _) = output(&[args, &["--json"]].concat());
        (code, serde_json::from_str(&stdout).unwrap_or_default())
    };
    assert_eq!(checked(&audit).1["damaged"], serde_json::json!([]));
    let mut kinds = Vec::new();
    // Runs are compared without their metrics.
    let mut all = files(Path::new(&run));
    let metrics = ["metrics.jsonl", "events.out.tfevents.tiebreak"];
    all.extend(metrics.map(|name| (name.into(), b"no metrics".to_vec())));
    for (file, bytes) in all {
        let file = file.to_str().unwrap();
        let Some((kind, place)) = kind(file, bytes.len()) else {
            // One file stands for all files of its kind.
            let folder = file.split_once('/').expect(file).0;
            assert!(["heads", "traces", "logs", "checkpoints"].contains(&folder), "{file} is of no kind");
            continue;
        };
        kinds.push(file.to_string());
        let mut damaged = bytes.clone();
        damaged.resize(bytes.len().max(1), 0);
        damaged[place] ^= 1;
        std::fs::write(Path::new(&run).join(file), &damaged).unwrap();
        let ((audited, report), (verified, found)) = (checked(&audit), checked(&["verify", &run]));
        let expected = match kind {
            Kind::Named => (0, 4),
            Kind::Needed => (4, 4),
            Kind::End => (3, 4),
            Kind::Free => (0, 0),
        };
        assert_eq!((audited, verified), expected, "{file}: {report} {found}");
        let named = |json: &Value| {
            let all = json["damaged"].as_array().unwrap_or(&Vec::new()).clone();
            let only = all
                .iter()
                .all(|one| one["file"] == file && one["why"].as_str().is_some_and(|why| !why.is_empty()));
            assert!(only, "{file}: {json}");
            !all.is_empty()
        };
        let is_named = matches!(kind, Kind::Named | Kind::End);
        if kind != Kind::Needed {
            assert_eq!((named(&report), named(&found)), (is_named, is_named), "{file}");
        }
        if kind == Kind::Named {
            let (_, stdout, _) = output(&audit);
            let line = |line: &&str| line.contains("a damaged file: ") && line.contains(file);
            assert_eq!(stdout.lines().filter(line).count(), 1, "{stdout}");
        }
        std::fs::write(Path::new(&run).join(file), &bytes).unwrap();
    }
    assert_eq!(kinds.len(), 17, "{kinds:?}");
    // Bytes after the final record are no record.
    let transcript = format!("{run}/transcript");
    let bytes = std::fs::read(&transcript).unwrap();
    std::fs::write(&transcript, [&bytes[..], b"more"].concat()).unwrap();
    let (code, report) = checked(&audit);
    assert!(code == 0 && report["damaged"][0]["file"] == "transcript", "{report}");
    assert_eq!(checked(&["verify", &run]).0, 4);
}
