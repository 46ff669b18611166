//! What `tiebreak demo` leaves behind, and what its files prove to others.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::common::edit::edited;
use crate::{output, path};

/// The folder that a demo wrote, and its report as JSON.
pub struct Demo {
    pub folder: PathBuf,
    pub report: String,
}

/// The demo of all tests of this program: the first that needs it makes it, and none changes its folder. The folder lies among Cargo's
/// files, since nothing tells the last test to remove it; the program's next run replaces it.
pub fn demo() -> &'static Demo {
    static SHARED: OnceLock<Demo> = OnceLock::new();
    SHARED.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("demo");
        let _ = fs::remove_dir_all(&folder);
        let dir = folder.to_str().unwrap();
        let (code, report, stderr) = output(&["demo", "--dir", dir, "--engine", "cpu", "--json"]);
        assert_eq!(code, 0, "{stderr}");
        Demo { folder, report }
    })
}

/// Copies a folder with all that is in it.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

#[test]
fn the_demo_convicts_and_its_verdict_is_checked_from_the_file() {
    let demo = demo();
    let folder = tempfile::tempdir().unwrap();
    let dir = path(folder.path(), "demo");
    copy(&demo.folder, Path::new(&dir));
    let report: serde_json::Value = serde_json::from_str(&demo.report).unwrap();
    assert_eq!(report["honest"]["result"], "matches");
    assert_eq!((&report["cheated"]["step"], &report["cheated"]["kind"]), (&17.into(), &"operator".into()));
    assert_eq!(report["convicted"]["kind"], "element");
    assert!(report["convicted"]["what"].as_str().unwrap().contains("block0.gelu"));
    assert!(report["verdict_bytes"].as_u64().unwrap() < 100_000);
    let next = report["next"].as_array().unwrap().iter().map(|next| next["command"].as_str().unwrap());
    let begins = [" verdict check ", " verdict report ", " audit "];
    assert!(next.zip(begins).filter(|(next, begins)| next.contains(begins)).count() == 3, "{report}");

    let (verdict, public) = (format!("{dir}/verdict.json"), format!("{dir}/trainer.pub"));
    let check = |file: &str| output(&["verdict", "check", file, "--trainer-key", &public]);
    let (code, stdout, _) = check(&verdict);
    assert_eq!(code, 1);
    assert!(stdout.starts_with("tile verdict, "), "{stdout}");
    for said in [
        "is signed by trainer.demo+",
        "record 17 is under the head",
        "the scalar reference computed",
        "CONVICTS",
    ] {
        assert!(stdout.contains(said), "{stdout}");
    }
    let (code, stdout, _) = output(&["verdict", "check", &verdict, "--json"]);
    let checked: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &checked["convicts"], &checked["kind"]), (1, &true.into(), &"tile".into()), "{stdout}");
    assert_eq!(checked["decided"], "element", "{stdout}");
    assert!(checked["checked"].as_array().unwrap().len() >= 6, "{stdout}");
    let text = fs::read_to_string(&verdict).unwrap();
    let other = format!("{dir}/edited.json");
    fs::write(&other, edited(&text, &[("\"tile\":0", "\"tile\":1")])).unwrap();
    assert_eq!(check(&other).0, 4);

    let (honest, cheated) = (format!("{dir}/honest"), format!("{dir}/cheated"));
    // The engine here is right, so it does not have the bytes that the cheat committed.
    let disclose = ["verdict", "disclose", &verdict, "--run", &cheated, "--out", &other, "--engine", "cpu"];
    assert_eq!(output(&disclose).0, 3);
    assert_eq!(output(&["verify", &honest, "--trainer-key", &public]).0, 0);
    assert_eq!(output(&["audit", &honest, "--steps", "1..3"]).0, 0);
    let saved = format!("{dir}/again.json");
    assert_eq!(output(&["audit", &cheated, "--verdict", &saved]).0, 1);
    assert_eq!(output(&["replay", &cheated, "--step", "16"]).0, 0);
    assert_eq!(output(&["compare", &honest, &honest]).0, 0);
    let (code, stdout, _) = output(&["inspect", &honest]);
    assert_eq!(code, 0);
    assert!(stdout.contains("40 of 40, complete"), "{stdout}");
    let sample = |seed| output(&["generate", &honest, "--length", "20", "--seed", seed]).1;
    assert_eq!(sample("5"), sample("5"));

    // Errors say what to do.
    let (code, _, stderr) = output(&["audit", &dir]);
    assert_eq!(code, 2);
    assert!(stderr.contains("is not a run"), "{stderr}");
    assert_eq!(output(&["no-such-command"]).0, 2);
    fs::write(format!("{honest}/run.json"), "{").unwrap();
    assert_eq!(output(&["verify", &honest]).0, 4);
}
