//! `--recompute`: less memory, the same bits.

use crate::common::edit::edit;
use crate::common::gpt_job;
use crate::{output, path};

/// A figure of a command's JSON, in bytes.
fn bytes(args: &[&str], name: &str) -> u64 {
    let (code, stdout, stderr) = output(&[args, &["--json"]].concat());
    assert_eq!(code, 0, "{args:?}: {stderr}");
    let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    json.pointer(name).and_then(serde_json::Value::as_u64).unwrap_or_else(|| panic!("{name}: {stdout}"))
}

#[test]
fn recomputing_takes_less_memory_and_gives_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "step", "");
    edit(
        &job,
        &[
            ("layers = 1", "layers = 8"),
            ("context = 12", "context = 64"),
            ("micro_batch = 2", "micro_batch = 12"),
            ("steps = 8", "steps = 2"),
        ],
    );
    let (job, [one, two]) = (job.to_str().unwrap(), ["one", "two"].map(|name| path(folder.path(), name)));
    let [all, less] =
        ["/step_bytes", "/recomputed_step_bytes"].map(|name| bytes(&["job", "check", job], name));
    assert!(less * 3 < all, "{less} of {all}");

    assert_eq!(output(&["train", job, "--out", &two, "-q"]).0, 0);
    let memory = |args: &[&str]| bytes(&[&["audit", &two, "--plan"], args].concat(), "/plan/memory");
    let [whole, saving] = [memory(&[]), memory(&["--recompute"])];
    assert_eq!(whole - saving, all - less);

    // Where the whole does not fit, the error says what to do.
    let between = ((whole >> 20) - 1).to_string();
    let train = ["train", job, "--out", &one, "--max-memory", &between];
    let (code, _, stderr) = output(&train);
    assert!(code == 3 && stderr.contains("help: --recompute needs about"), "{code}: {stderr}");
    std::fs::remove_dir_all(&one).unwrap();
    let (code, _, stderr) = output(&[&train[..], &["--recompute"]].concat());
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(output(&["compare", &one, &two]).0, 0);

    // A shard of a plan file takes the memory of its own auditor.
    let plan = path(folder.path(), "plan.json");
    let (code, stdout, stderr) =
        output(&["audit", &two, "--plan", "--plan-out", &plan, "--shards", "1", "--recompute"]);
    assert!(code == 0 && stdout.contains("--shard 1/1 --recompute"), "{stdout}{stderr}");
    for jobs in ["0", "1"] {
        let shard =
            ["audit", &two, "--plan-file", &plan, "--shard", "1/1", "--jobs", jobs, "--max-memory", &between];
        let (code, _, stderr) = output(&shard);
        assert!(code == 3 && stderr.contains("help: --recompute needs about"), "{code}: {stderr}");
        let (code, stdout, stderr) = output(&[&shard[..], &["--recompute"]].concat());
        assert!(code == 0 && stdout.contains("MATCHES"), "{jobs}: {stdout}{stderr}");
    }

    // An auditor may compute again, or not.
    for args in [&[][..], &["--recompute", "--check-device", "--jobs", "2"]] {
        let (code, stdout, stderr) = output(&[&["audit", &one], args].concat());
        assert!(code == 0 && stdout.contains("MATCHES"), "{args:?}: {stdout}{stderr}");
    }
    // So does whoever replays one step, or watches a run.
    let replay = ["replay", &one, "--step", "2"];
    let watch = ["watch", &one, "--idle", "1"];
    for args in [&["audit", &one][..], &replay, &watch] {
        let args = [args, &["--max-memory", &between]].concat();
        let (code, _, stderr) = output(&args);
        assert!(code == 3 && stderr.contains("help: --recompute needs about"), "{args:?}: {code}: {stderr}");
        let (code, stdout, stderr) = output(&[&args[..], &["--recompute"]].concat());
        assert!(code == 0 && stdout.contains("MATCHES"), "{args:?}: {stdout}{stderr}");
        // A watch announces no plan, and has the engines of an audit.
        let is_said = stderr.contains("cpu (2 threads), which computes tensors again");
        assert!(is_said || args[0] == "watch", "{args:?}: {stderr}");
    }

    // The ranks of one machine all compute again.
    let ranks = path(folder.path(), "ranks");
    let (code, _, stderr) = output(&["train", job, "--out", &ranks, "--ranks", "3", "--recompute"]);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(output(&["audit", &ranks]).0, 0);
}

#[test]
fn logged_jobs_keep_their_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "step", "[rounding]\n");
    let out = path(folder.path(), "run");
    let (code, _, stderr) = output(&["train", job.to_str().unwrap(), "--out", &out, "--recompute"]);
    assert!(code == 2 && stderr.contains("--recompute is for exact jobs"), "{code}: {stderr}");
    assert_eq!(output(&["train", job.to_str().unwrap(), "--out", &out, "-q"]).0, 0);
    for args in [&["audit", &out][..], &["replay", &out, "--step", "1"], &["watch", &out]] {
        let (code, _, stderr) = output(&[args, &["--recompute"]].concat());
        assert!(code == 2 && stderr.contains("leave --recompute out"), "{args:?}: {code}: {stderr}");
    }
}
