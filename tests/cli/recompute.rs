//! `--recompute` and `--offload`: less memory, the same bits.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use crate::common::edit::edit;
use crate::common::{files, gpt_job, trained};
use crate::{output, path, tiebreak};

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
            ("micro_batch = 2", "micro_batch = 15"),
            ("steps = 8", "steps = 1"),
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
    let replay = ["replay", &one, "--step", "1"];
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

/// The files of a run, but for those that depend on the number that each run draws.
fn committed(run: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = files(Path::new(run));
    all.retain(|(name, _)| name != Path::new("run.json") && !name.starts_with("heads"));
    assert!(all.len() > 8, "{}", all.len());
    all
}

/// The JSON of a command that replays, without its times and its memory, then its verdict and its memory.
fn replayed(command: &[&str], verdict: &str) -> ((i32, serde_json::Value, Option<Vec<u8>>), u64) {
    let (code, stdout, stderr) = output(&[command, &["--json"]].concat());
    let mut json: serde_json::Value =
        serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{code} {stdout}{stderr}"));
    json.as_object_mut().unwrap().remove("seconds").expect("a replay takes time");
    let memory = json["plan"].as_object_mut().unwrap().remove("memory").expect("a plan needs memory");
    if command[0] == "replay" {
        // The next command has the same options.
        json.as_object_mut().unwrap().remove("next").expect("a replay says what is next");
    }
    let bytes = fs::read(verdict).ok();
    if bytes.is_some() {
        fs::remove_file(verdict).unwrap();
    }
    ((code, json, bytes), memory.as_u64().unwrap())
}

#[test]
fn offloading_takes_less_memory_and_gives_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let job = gpt_job(folder.path(), "operator", "");
    // The parameters are most of the memory, and four micro-batches leave two sums waiting.
    edit(
        &job,
        &[
            ("micro_batch = 2", "micro_batch = 1"),
            ("micro_batches = 3", "micro_batches = 4"),
            ("width = 16", "width = 64"),
            ("steps = 8", "steps = 5"),
        ],
    );
    let job = job.to_str().unwrap();
    let [all, less, audited, offloaded] =
        ["/step_bytes", "/offloaded_step_bytes", "/audit_bytes", "/offloaded_audit_bytes"]
            .map(|name| bytes(&["job", "check", job], name));
    assert!(3 * less < 2 * all && 3 * offloaded < 2 * audited, "{less} of {all}, {offloaded} of {audited}");

    let (away, nowhere) = (at("away"), at("nowhere"));
    fs::create_dir(&away).unwrap();
    let offload = ["--offload", &away];
    let is_empty = || fs::read_dir(&away).unwrap().count() == 0;
    let [whole, two, killed] = ["whole", "two", "killed"].map(at);
    let train = |out: &str, args: &[&str]| {
        let (code, _, stderr) = output(&[&["train", job, "--out", out, "-q"][..], args].concat());
        assert_eq!(code, 0, "{args:?}: {stderr}");
    };
    train(&whole, &[]);
    train(&two, &[&offload[..], &["--recompute", "--check-device"]].concat());
    assert!(committed(&whole) == committed(&two), "the files differ");
    assert!(is_empty());

    // A trainer that is killed between two steps leaves nothing in the folder, and a resume gives the same files.
    let args = [&["train", job, "--out", &killed, "-q"][..], &offload].concat();
    let mut child = tiebreak(&args).spawn().unwrap();
    let begun = Path::new(&killed).join("heads");
    while fs::read_dir(&begun).map_or(0, Iterator::count) == 0 {
        sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(is_empty());
    let (code, _, stderr) = output(&[&["train", "--out", &killed, "--resume", "-q"][..], &offload].concat());
    assert_eq!(code, 0, "{stderr}");
    assert!(committed(&whole) == committed(&killed), "the files of the resumed run differ");

    // Ranks take the option over.
    train(&at("ranks"), &[&offload[..], &["--ranks", "2"]].concat());
    assert_eq!(output(&["compare", &whole, &at("ranks")]).0, 0);

    // An audit finds the same, and makes the same verdict: the state before a step comes out of the folder.
    let cheat = at("cheat");
    trained(Path::new(job), Path::new(&cheat), Some("operator@3"));
    for (run, due) in [(&whole, 0), (&cheat, 1)] {
        let verdict = at("verdict");
        // So do a watch and the replay of a step, which writes no verdict.
        for command in [
            &["audit", run, "--verdict", &verdict][..],
            &["watch", run, "--verdict", &verdict],
            &["replay", run, "--step", "3"],
        ] {
            let (plain, memory) = replayed(command, &verdict);
            assert_eq!((plain.0, plain.2.is_some()), (due, due == 1 && command[0] != "replay"));
            let (same, less) = replayed(&[command, &offload].concat(), &verdict);
            assert!(same == plain, "{command:?}: they differ");
            assert!(5 * less < 4 * memory, "{command:?}: {less} of {memory}");
        }
    }
    assert!(is_empty());
    let (code, stdout, stderr) = output(&[&["replay", &cheat, "--step", "3"][..], &offload].concat());
    assert!(code == 1 && stdout.contains(&format!("--steps 3..3 --offload {away}")), "{stdout}{stderr}");

    // Only the CPU engine has the option, and the folder has to be there.
    let (code, _, stderr) = output(&["audit", &whole, "--engine", "reference", "--max-memory", "1"]);
    assert!(code == 3 && !stderr.contains("--offload"), "{code}: {stderr}");
    let file = at("plan");
    let plan = ["audit", &whole, "--plan", "--shards", "1", "--plan-out", &file];
    let (code, stdout, stderr) = output(&[&plan[..], &offload].concat());
    assert!(code == 0 && stdout.contains(&format!(" --offload {away}")), "{code}: {stdout}{stderr}");
    for command in [&["audit", &whole][..], &["watch", &whole], &["replay", &whole, "--step", "1"]] {
        let (code, _, stderr) = output(&[command, &["--offload", &nowhere]].concat());
        assert!(code == 3 && stderr.contains("nowhere"), "{command:?}: {code}: {stderr}");
        let (code, _, stderr) = output(&[command, &["--engine", "reference"], &offload[..]].concat());
        assert!(code == 2 && stderr.contains("--offload is for the CPU engine"), "{code}: {stderr}");
    }
    let gradient = ["replay", &whole, "--step", "1", "--microbatch", "0"];
    let (code, _, stderr) = output(&[&gradient[..], &offload].concat());
    assert!(code == 2 && stderr.contains("--offload is for whole steps"), "{code}: {stderr}");
}
