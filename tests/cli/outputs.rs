//! A command replaces no file that it reads, that it writes under another option, or that a run has. `--quiet` prints the result.

use std::fs;

use tiebreak_monitor::register::file::to_text;

use crate::common::key;
use crate::{chips, output, path};

#[test]
fn no_output_replaces_an_input_another_output_or_a_file_of_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let [log, register, run] = ["chip.log", "chips.register", "run"].map(at);
    fs::write(&log, chips::bytes(&chips::honest())).unwrap();
    fs::write(&register, to_text(&chips::register(), &key())).unwrap();
    let here = format!("{}/./chip.log", folder.path().display());
    let (_, link) = (fs::create_dir_all(&run).unwrap(), at("link.log"));
    fs::write(format!("{run}/run.json"), "{}").unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink(&log, &link).unwrap();
    let inspect =
        |out: &str| output(&["monitor", "inspect", &log, "--register", &register, "--seen-out", out]);
    let before = fs::read(&log).unwrap();
    let one = "--seen-out and LOG are one file";
    for out in [&*log, &here] {
        let (code, _, error) = inspect(out);
        assert!(code == 2 && error.contains(one), "{code}: {error}");
    }
    #[cfg(unix)]
    assert!(inspect(&link).2.contains(one));
    for name in ["run.json", "transcript", "heads/000000000008", "logs/step-000000001"] {
        let (code, _, error) = inspect(&format!("{run}/{name}"));
        assert!(code == 2 && error.contains("is a file of the run"), "{name}: {code}: {error}");
    }
    // A secret belongs nowhere in a run's folder.
    let (code, _, error) = output(&["monitor", "nonce", &at("run/heads/nonce")]);
    assert!(code == 2 && error.contains("is in a run's folder"), "{code}: {error}");
    let (code, _, error) = output(&["predict", &run, "--logits", &at("x"), "--receipt", &at("x")]);
    assert!(code == 2 && error.contains("--logits and --receipt are one file"), "{code}: {error}");
    let (code, out, _) = output(&["plot", &run, "--output", &at("run/model.safetensors"), "--json"]);
    assert!(code == 2 && out.is_empty());
    assert_eq!(fs::read(&log).unwrap(), before);
    // A file beside those of a run is the user's choice.
    let (code, _, error) = inspect(&format!("{run}/chip.seen"));
    assert!(code == 1 && fs::exists(format!("{run}/chip.seen")).unwrap(), "{error}");
}

/// The first word of what `--quiet` prints says how the check ended.
#[test]
fn quiet_checks_print_their_result() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let done = |args: &[&str], code: i32| {
        let (found, out, error) = output(args);
        assert_eq!(found, code, "{args:?}: {out}{error}");
        out
    };
    done(&["selftest", "--hostile", &at("cases"), "-q"], 0);
    let [job, run, opening] = ["cases/exact.toml", "run", "opening.json"].map(at);
    done(&["train", &job, "--out", &run, "-q"], 0);
    assert!(done(&["verify", &run, "-q"], 0).starts_with("CONSISTENT: run "));
    done(&["reveal", &run, "--step", "2", "--shards", &map(&at("map")), "--output", &opening, "-q"], 0);
    let shown = done(&["reveal", &run, "--check", &opening, "-q"], 0);
    assert_eq!(shown.trim(), "OPENS: the state after step 2 has these elements");
    for (name, code, word) in [
        ("history-batch", 1, "INCONSISTENT: step 6"),
        ("damaged-model-removed", 3, "INCOMPLETE: "),
        ("damaged-model-appended", 4, "DAMAGED: "),
    ] {
        let out = done(&["verify", &at(&format!("cases/runs/{name}")), "-q"], code);
        assert!(out.starts_with(word), "{name}: {out}");
    }
}

/// Writes a map of a few elements.
fn map(at: &str) -> String {
    fs::write(at, "tiebreak shard map 1\n0 3 param/token_embedding\n").unwrap();
    at.to_string()
}
