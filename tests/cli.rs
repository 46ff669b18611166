//! The command: exit codes, and a trainer that is killed at any moment.

#![cfg(feature = "cli")]

mod common;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use common::{files, gpt_job, program_job, sign_again, step_mut, trained};

fn tiebreak(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiebreak"));
    command.args(args).stdin(Stdio::null());
    command
}

fn output(args: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = tiebreak(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

fn path(folder: &Path, name: &str) -> String {
    folder.join(name).to_str().unwrap().to_string()
}

#[test]
fn the_demo_convicts_and_its_verdict_is_checked_from_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let dir = path(folder.path(), "demo");
    let (code, stdout, stderr) = output(&["demo", "--dir", &dir, "--engine", "cpu", "--json"]);
    assert_eq!(code, 0, "{stderr}");
    let report: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(report["honest"]["result"], "matches");
    assert_eq!(report["cheated"]["step"], 17);
    assert!(report["convicted"]["what"].as_str().unwrap().contains("block0.gelu"));
    assert!(report["verdict_bytes"].as_u64().unwrap() < 100_000);

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
    assert!(checked["checked"].as_array().unwrap().len() >= 6, "{stdout}");
    let text = std::fs::read_to_string(&verdict).unwrap();
    let edited = format!("{dir}/edited.json");
    std::fs::write(&edited, text.replacen("\"tile\":0", "\"tile\":1", 1)).unwrap();
    assert_eq!(check(&edited).0, 4);

    let (honest, cheated) = (format!("{dir}/honest"), format!("{dir}/cheated"));
    // The engine here is right, so it has not the bytes that the cheat committed.
    let disclose = ["verdict", "disclose", &verdict, "--run", &cheated, "--out", &edited, "--engine", "cpu"];
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
    let sample = |seed| output(&["sample", &honest, "--length", "20", "--seed", seed]).1;
    assert_eq!(sample("5"), sample("5"));

    // Errors say what to do.
    let (code, _, stderr) = output(&["audit", &dir]);
    assert_eq!(code, 2);
    assert!(stderr.contains("is not a run"), "{stderr}");
    assert_eq!(output(&["no-such-command"]).0, 2);
    std::fs::write(format!("{honest}/run.json"), "{").unwrap();
    assert_eq!(output(&["verify", &honest]).0, 4);
}

#[test]
fn two_histories_of_one_run_convict_wherever_they_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "");
    let [one, other] = ["one", "other"].map(|name| path(folder.path(), name));
    trained(&job, Path::new(&one), None);
    let second = trained(&job, Path::new(&other), None);
    let verdict = path(folder.path(), "verdict.json");
    let found = |args: &[&str]| {
        assert_eq!(output(&[args, &["--verdict", &verdict]].concat()).0, 1, "{args:?}");
        let (code, stdout, stderr) = output(&["verdict", "check", &verdict]);
        assert!(code == 1 && stdout.starts_with("fork verdict, "), "{stdout}{stderr}");
    };
    assert_eq!(output(&["compare", &one, &other]).0, 0);
    sign_again(&second, |records| step_mut(records, 5).cursor += 1);
    found(&["compare", &one, &other]);
    let head = second.layout.head(10).to_str().unwrap().to_string();
    found(&["audit", &one, "--head", &head]);
    // Shown no more than a beginning of the first history, an auditor who has the head of the other decides nothing.
    let beginning = path(folder.path(), "beginning");
    let shown = trained(&job, Path::new(&beginning), None);
    for size in [7, 10] {
        std::fs::remove_file(shown.layout.head(size)).unwrap();
    }
    let ended = |args: &[&str]| output(&[&["audit", &beginning, "--engine", "cpu"], args].concat());
    let (code, stdout, _) = ended(&["--prefix", "--head", &head]);
    assert!(
        code == 3 && stdout.starts_with("INCOMPLETE: the trainer signed a head over 10 records"),
        "{stdout}"
    );
    let (code, stdout, _) = ended(&["--prefix"]);
    assert!(
        code == 0 && stdout.starts_with("MATCHES: 3 of 8 steps") && stdout.contains("not its end"),
        "{stdout}"
    );
    assert_eq!(ended(&[]).0, 3);
    let (code, _, stderr) =
        output(&["verdict", "narrow", &verdict, "--tile", &head, "--out", &path(folder.path(), "small")]);
    assert_eq!(code, 4);
    assert!(stderr.contains("only a tile verdict can be narrowed"), "{stderr}");
    let (code, _, stderr) =
        output(&["verdict", "disclose", &verdict, "--run", &one, "--out", &path(folder.path(), "tile")]);
    assert_eq!(code, 2);
    assert!(stderr.contains("only a tile verdict that convicts"), "{stderr}");
}

#[test]
fn a_run_that_was_trained_without_a_key_is_signed_afterwards_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "step", "");
    let [run, key, other] = ["run", "key", "other"].map(|name| path(folder.path(), name));
    assert_eq!(output(&["train", job.to_str().unwrap(), "--out", &run, "--engine", "cpu", "-q"]).0, 0);
    for (key, name) in [(&key, "late.example"), (&other, "late.example")] {
        assert_eq!(output(&["key", "new", key, "--name", name]).0, 0);
    }
    let (public, others) = (format!("{key}.pub"), format!("{other}.pub"));
    let verify = |public: &str| output(&["verify", &run, "--trainer-key", public]);
    assert_eq!(verify(&public).0, 4);
    let (code, stdout, stderr) = output(&["sign", &run, "--key", &key]);
    assert!(code == 0 && stdout.contains("signed by late.example at 20"), "{stdout}{stderr}");
    assert!(stdout.contains("after it was trained"), "{stdout}");
    let (code, stdout, _) = verify(&public);
    assert!(code == 0 && stdout.contains("signed by late.example afterwards, at 20"), "{stdout}");
    assert!(stdout.contains("nothing binds its trainer to one history"), "{stdout}");
    assert_eq!(verify(&others).0, 4);
    assert_eq!(output(&["verify", &run]).0, 0);
    let (code, _, stderr) = output(&["sign", &run, "--key", &key]);
    assert!(code == 2 && stderr.contains("signed the run already"), "{stderr}");
    // A run that names a key has its signatures.
    let named = path(folder.path(), "named");
    trained(&job, Path::new(&named), None);
    let (code, _, stderr) = output(&["sign", &named, "--key", &key]);
    assert!(code == 2 && stderr.contains("names its trainer's key"), "{stderr}");
}

/// Trains a run of eight steps and makes the keys of two auditors; gives the paths of job, run and keys.
fn audited_by_two(folder: &Path, granularity: &str, cheat: Option<&str>) -> (String, String, [String; 2]) {
    let job = gpt_job(folder, granularity, "");
    let run = path(folder, "run");
    trained(&job, Path::new(&run), cheat);
    let keys = ["alice", "bob"].map(|name| path(folder, name));
    for key in &keys {
        let name = format!("{}.example", Path::new(key).file_name().unwrap().to_str().unwrap());
        assert_eq!(output(&["key", "new", key, "--name", &name]).0, 0);
    }
    (job.to_str().unwrap().to_string(), run, keys)
}

#[test]
fn reports_count_only_if_somebody_vouches_for_every_step() {
    let folder = tempfile::tempdir().unwrap();
    let (_, run, [alice, bob]) = audited_by_two(folder.path(), "step", None);
    let [a, b, unsigned, edited] =
        ["a.json", "b.json", "c.json", "d.json"].map(|name| path(folder.path(), name));
    let audit = |args: &[&str]| {
        assert_eq!(output(&[&["audit", &run, "--engine", "cpu"], args].concat()).0, 0, "{args:?}")
    };
    audit(&["--steps", "1..4", "--report", &a, "--key", &alice]);
    audit(&["--steps", "5..8", "--report", &b, "--key", &bob]);
    audit(&["--report", &unsigned]);
    let merged = |args: &[&str], wanted: i32, said: &[&str]| {
        let (code, stdout, stderr) = output(&[&["audit", "merge"], args].concat());
        assert_eq!(code, wanted, "{args:?}: {stdout}{stderr}");
        said.iter()
            .for_each(|said| assert!(format!("{stdout}{stderr}").contains(said), "{said}: {stdout}{stderr}"));
    };
    merged(
        &[&a, &b],
        0,
        &[
            "MATCHES: 8 of 8 steps",
            "steps 1..4, vouched for by alice.example+",
            "steps 5..8, vouched for by bob.example+",
        ],
    );
    merged(&[&a], 3, &["UNDECIDED: 4 of 8 steps", "missing: --steps 5..8"]);
    merged(&[&a, "--require", "0.5"], 0, &["MATCHES: 4 of 8 steps", "missing: --steps 5..8"]);
    merged(&[&a, "--require", "0.6"], 3, &["less than --require asks for"]);
    merged(
        &[&a, &b, "--auditor", &format!("{alice}.pub")],
        3,
        &["its auditor is none of --auditor: bob.example+"],
    );
    merged(&[&unsigned], 3, &["no report counts", "nobody vouches for it"]);
    merged(&[&a, &unsigned], 3, &["4 of 8 steps", "by 1 of 2 reports"]);
    merged(&[&unsigned, "--unsigned"], 0, &["8 of 8 steps", "vouched for by nobody"]);

    // Edited by hand: with the signature malformed, without it nobody's word.
    let text = std::fs::read_to_string(&a).unwrap();
    let wider = text.replacen("4\n    ]\n  ]", "8\n    ]\n  ]", 1);
    assert_ne!(wider, text);
    std::fs::write(&edited, &wider).unwrap();
    merged(&[&edited], 4, &["it was changed after it was signed"]);
    merged(&[&edited, "--unsigned"], 4, &["it was changed after it was signed"]);
    let stripped = wider[..wider.find(",\n  \"auditor\"").unwrap()].to_string() + "\n}\n";
    std::fs::write(&edited, &stripped).unwrap();
    merged(&[&edited, &a], 3, &["4 of 8 steps"]);
    // Steps that the run does not have, more than could be listed one by one.
    let endless = stripped.replacen("8\n    ]\n  ]", "4294967295\n    ]\n  ]", 1);
    for (text, exit) in [("{\"replayed\":[]}", 3), ("", 3), (endless.as_str(), 3)] {
        std::fs::write(&edited, text).unwrap();
        merged(&[&edited], exit, &["no report counts"]);
        merged(&[&edited, "--unsigned"], 4, &[]);
    }
    // A finished report of a part, and one without an outcome.
    let without = stripped.replacen("\"result\": \"matches\"", "", 1);
    std::fs::write(&edited, without).unwrap();
    merged(&[&edited, "--unsigned"], 4, &["result"]);
}

#[test]
fn a_divergence_is_told_whatever_the_disk_does() {
    let folder = tempfile::tempdir().unwrap();
    let (_, run, _) = audited_by_two(folder.path(), "step", Some("operator@5"));
    let (spare, nowhere) = (path(folder.path(), "spare"), path(folder.path(), "no/folder"));
    std::fs::create_dir(&spare).unwrap();
    let (lost, verdict) = (format!("{nowhere}/v.json"), path(folder.path(), "verdict.json"));
    let audit = |temporary: &str, args: &[&str]| {
        let args = [&["audit", &run, "--engine", "cpu"], args].concat();
        let Output { status, stdout, stderr } = tiebreak(&args).env("TMPDIR", temporary).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        assert_eq!(status.code(), Some(1), "{args:?}");
        (text(stdout), text(stderr))
    };
    let (stdout, stderr) = audit(&spare, &["--verdict", &lost, "--report", &format!("{nowhere}/r.json")]);
    assert!(stdout.starts_with("DIVERGES at step 5"), "{stdout}");
    for said in ["the verdict could not be written", "the report could not be written"] {
        assert!(stderr.contains(said), "{stderr}");
    }
    let saved = format!("{spare}/tiebreak-verdict.json");
    assert!(stdout.contains(&saved), "{stdout}");
    let bytes = std::fs::read(saved).unwrap();
    let (stdout, _) = audit(&nowhere, &["--verdict", &lost, "--json"]);
    let result: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((&result["outcome"]["step"], &result["verdict_file"]), (&5.into(), &serde_json::Value::Null));
    assert_eq!(result["verdict"].as_str().unwrap().as_bytes(), bytes, "the file, as a text");

    // What is there already stays.
    std::fs::write(&verdict, "somebody's").unwrap();
    let second = path(folder.path(), "verdict-2.json");
    for _ in 0..2 {
        let (stdout, _) = audit(&spare, &["--verdict", &verdict]);
        assert!(stdout.contains(&second), "{stdout}");
        assert_eq!(std::fs::read(&second).unwrap(), bytes);
    }
    assert_eq!(std::fs::read(&verdict).unwrap(), b"somebody's");
    assert!(!Path::new(&path(folder.path(), "verdict-3.json")).exists());
}

#[test]
fn a_run_is_held_to_what_was_ordered_and_its_files_to_its_records() {
    let folder = tempfile::tempdir().unwrap();
    let (job, run, _) = audited_by_two(folder.path(), "operator", None);
    let told = |args: &[&str], wanted: i32, said: &[&str]| {
        let (code, stdout, stderr) = output(args);
        assert_eq!(code, wanted, "{args:?}: {stdout}{stderr}");
        said.iter()
            .for_each(|said| assert!(format!("{stdout}{stderr}").contains(said), "{said}: {stdout}{stderr}"));
        stdout
    };
    let checked: serde_json::Value =
        serde_json::from_str(&told(&["job", "check", &job, "--json"], 0, &[])).unwrap();
    let data = checked["data"].as_str().unwrap();
    let ordered = ["verify", &run, "--expect-job", &job, "--expect-data", data];
    told(
        &ordered,
        0,
        &["the job and its program are those", "the data are those", "traces of 8 steps are those"],
    );
    told(&["verify", &run], 0, &["not checked: whether the job is the one that was ordered"]);
    let other = path(folder.path(), "other.toml");
    std::fs::write(&other, std::fs::read_to_string(&job).unwrap().replace("steps = 8", "steps = 9")).unwrap();
    told(&["verify", &run, "--expect-job", &other], 1, &["steps: 9 | 8"]);
    told(&["audit", &run, "--expect-data", &"0".repeat(64)], 1, &["the run is of other data"]);

    told(&["inspect", &run], 0, &["names trainer.example+", "signature not verified", "8 of 8, complete"]);
    let trace = |step: u32| format!("{run}/traces/step-{step:09}");
    std::fs::write(trace(3), "garbage").unwrap();
    std::fs::remove_file(trace(4)).unwrap();
    let gradients = format!("{run}/gradients");
    let mut bytes = std::fs::read(&gradients).unwrap();
    bytes[32 * 3] ^= 1; // of step 2, of 3 micro-batches each
    std::fs::write(&gradients, bytes).unwrap();
    let missing = "not checked: traces of 1 steps that records commit, the first of step 4";
    let damaged = ["DAMAGED: traces of step 3", "DAMAGED: gradients of step 2"];
    told(&["verify", &run], 4, &[&damaged[..], &[missing]].concat());
    told(&["audit", &run, "--engine", "cpu", "--steps", "7..8"], 0, &[missing]);

    // Records that no head covers end nothing.
    for entry in std::fs::read_dir(format!("{run}/heads")).unwrap() {
        let head = entry.unwrap();
        if head.file_name() != "000000000001" {
            std::fs::remove_file(head.path()).unwrap();
        }
    }
    let stdout = told(&["inspect", &run], 0, &["the last over 1 of 10 records"]);
    assert!(!stdout.contains("complete"), "{stdout}");
    told(&["audit", &run, "--engine", "cpu"], 3, &["INCOMPLETE: the head covers 0 of 8 steps"]);
    told(&["verify", &run], 3, &["INCOMPLETE: the head covers 0 of 8 steps"]);
}

#[test]
fn a_job_error_names_key_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "");
    let job = job.to_str().unwrap();
    assert_eq!(output(&["job", "check", job]).0, 0);
    std::fs::write(job, std::fs::read_to_string(job).unwrap().replace("heads = 2", "heads = 3")).unwrap();
    let (code, _, stderr) = output(&["job", "check", job]);
    assert_eq!(code, 2);
    assert!(stderr.contains("job.toml:10: model.width: must be a multiple of heads (3)"), "{stderr}");
}

/// Kills trainers (SIGKILL) 100 times at moments spread over their runs, resuming each time.
#[test]
fn a_killed_trainer_resumes_to_the_same_run() {
    const KILLS: u64 = 100;
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "operator", "");
    let text = std::fs::read_to_string(&job).unwrap().replace("steps = 8", "steps = 60");
    std::fs::write(&job, text).unwrap();
    let key = path(folder.path(), "key");
    assert_eq!(output(&["key", "new", &key, "--name", "trainer.example"]).0, 0);
    let mut kills = 0;
    for number in 0.. {
        let out = path(folder.path(), &format!("run-{number}"));
        kills = trained_between_kills(job.to_str().unwrap(), &out, &key, kills, KILLS);
        same_as_without_interruption(&out, &key, &path(folder.path(), &format!("whole-{number}")));
        if kills >= KILLS {
            break;
        }
    }
}

/// Trains a run to its end, killing the trainer until it ends by itself or `most` kills are reached. Returns the kills.
fn trained_between_kills(job: &str, out: &str, key: &str, mut kills: u64, most: u64) -> u64 {
    while kills < most {
        let mut args = vec!["train", "--out", out, "--key", key, "--threads", "1", "--quiet"];
        if Path::new(out).join("run.json").exists() {
            args.push("--resume");
        } else {
            args.push(job);
        }
        let mut child = tiebreak(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(30 + kills * 37 % 190));
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "a resumed trainer failed");
            return kills;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
    }
    let (code, _, stderr) = output(&["train", "--out", out, "--key", key, "--resume"]);
    assert_eq!(code, 0, "{stderr}");
    kills
}

/// The same identity trained without interruption writes the same files.
fn same_as_without_interruption(out: &str, key: &str, whole: &str) {
    for name in ["", "data", "heads", "checkpoints", "traces"] {
        std::fs::create_dir_all(Path::new(whole).join(name)).unwrap();
    }
    for name in ["run.json", "job.toml", "data/data-0.bin", "data/data-0.tree"] {
        std::fs::copy(Path::new(out).join(name), Path::new(whole).join(name)).unwrap();
    }
    assert_eq!(output(&["train", "--out", whole, "--key", key, "--resume"]).0, 0);
    let clean = |name: &str| {
        let mut found = files(Path::new(name));
        found.retain(|(file, _)| !file.to_string_lossy().ends_with(".partial"));
        found
    };
    assert!(clean(out) == clean(whole), "the interrupted run differs");
    let public = format!("{key}.pub");
    assert_eq!(output(&["audit", out, "--trainer-key", &public, "--sample", "0.2"]).0, 0);
}

/// Whatever is wrong with a run, every command that reads one ends with an exit code of its own and a sentence.
#[test]
fn no_command_panics_on_a_damaged_run() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "[rounding]\n");
    let text = std::fs::read_to_string(&job).unwrap().replace("steps = 8", "steps = 2");
    std::fs::write(&job, text).unwrap();
    let out = path(folder.path(), "run");
    let run = trained(&job, Path::new(&out), None);
    let (verdict, picture) = (path(folder.path(), "verdict.json"), path(folder.path(), "margins.svg"));
    let every_command = |what: &str| {
        for args in [
            &["verify", &out][..],
            &["audit", &out, "--engine", "cpu", "--verdict", &verdict],
            &["replay", &out, "--step", "2", "--engine", "cpu"],
            &["inspect", &out],
            &["log", "inspect", &out, "--margins", &picture],
            &["log", "inspect", &out, "--step", "2"],
            &["compare", &out, &out, "--verdict", &verdict],
            &["sample", &out, "--prompt", "a", "--length", "2"],
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
    // An auditor without time decides nothing, whether it runs out while files are checked or later.
    for args in [&["audit", &out, "--engine", "cpu"][..], &["replay", &out, "--step", "2", "--engine", "cpu"]]
    {
        let (code, _, stderr) = output(&[args, &["--max-time", "0"]].concat());
        assert_eq!(code, 3, "{args:?}: {stderr}");
    }
    sign_again(&run, |records| records.truncate(1));
    every_command("a head over record 0 only");
}

#[test]
fn a_program_is_exported_shown_drawn_and_trained() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "");
    let (file, picture) = (path(folder.path(), "gpt.program"), path(folder.path(), "gpt.svg"));
    let (code, stdout, stderr) =
        output(&["program", "export", job.to_str().unwrap(), "--out", &file, "--json"]);
    assert_eq!(code, 0, "{stderr}");
    let exported: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let (code, stdout, stderr) = output(&["program", "show", &file, "--json", "--svg", &picture]);
    assert_eq!(code, 0, "{stderr}");
    let shown: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((&shown["program"], &shown["bytes"]), (&exported["program"], &exported["bytes"]));
    assert_eq!((&shown["micro_batch"], &shown["micro_batches"]), (&2.into(), &3.into()));
    // 24 rows of 16 numbers by a weight of [64, 16], two digits each, exact.
    let product = serde_json::json!({
        "operator": "block0.mlp_in", "class": null, "digits": [2, 2], "block": 0, "batch": 1, "m": 24, "n": 64, "k": 16,
        "grid": null
    });
    assert!(shown["products"].as_array().unwrap().contains(&product), "{}", shown["products"]);
    let (code, text, _) = output(&["program", "show", &file]);
    assert_eq!(code, 0);
    for said in
        ["parameter  token_embedding", "normal, std 0.02", "slots m, v", "batch      tokens", "operations"]
    {
        assert!(text.contains(said), "{said}: {text}");
    }
    let drawn = std::fs::read_to_string(&picture).unwrap();
    assert!(
        drawn.starts_with("<svg ") && drawn.contains("block0.mlp_in.backward") && drawn.ends_with("</svg>\n")
    );
    std::fs::write(&file, b"no program").unwrap();
    let (code, _, stderr) = output(&["program", "show", &file]);
    assert_eq!(code, 4, "{stderr}");

    // The same program as a job's: trained, audited, told from a model kind, and not sampled.
    let job = program_job(folder.path(), "microbatch", "");
    let run = path(folder.path(), "run");
    let (code, _, stderr) = output(&["train", job.to_str().unwrap(), "--out", &run, "--engine", "cpu"]);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(output(&["audit", &run, "--engine", "cpu"]).0, 0);
    let (code, stdout, _) = output(&["inspect", &run]);
    assert!(code == 0 && stdout.contains("program read from a file"), "{stdout}");
    let (code, _, stderr) = output(&["sample", &run, "--prompt", "a", "--engine", "cpu"]);
    assert!(code == 2 && stderr.contains("only runs of a model kind can be sampled"), "{stderr}");
    assert_eq!(output(&["job", "check", job.to_str().unwrap()]).0, 0);
    std::fs::write(folder.path().join("gpt.program"), b"no program").unwrap();
    let (code, _, stderr) = output(&["job", "check", job.to_str().unwrap()]);
    assert!(code == 2 && stderr.contains("it has version"), "{stderr}");
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
        let args = case["command"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap());
        let done =
            Command::new(env!("CARGO_BIN_EXE_tiebreak")).args(args).current_dir(&cases).output().unwrap();
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

    // One judgement for parts of a step, too. The cheat is in micro-batch 0.
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

/// Nothing in it would be obeyed by a terminal, and no line but those of this program is there.
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

/// A job, a run, a verdict and a program with escape sequences in every text of theirs that somebody else chose.
#[test]
#[cfg(unix)]
fn foreign_text_gives_a_terminal_no_orders() {
    const NAME: &str = "te\u{1b}]0;title\u{7}\nFORGED\u{9b}2J\u{202e}xt";
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join(format!("folder{NAME}"));
    std::fs::create_dir(&inner).unwrap();
    let job = gpt_job(&inner, "operator", "");
    std::fs::rename(inner.join("text.txt"), inner.join(NAME)).unwrap();
    let text = std::fs::read_to_string(&job).unwrap().replace("steps = 8", "steps = 3");
    let escaped = NAME.replace('\u{1b}', "\\u001b").replace('\u{7}', "\\u0007").replace('\n', "\\n");
    let text =
        text.replace("\"text.txt\"", &format!("\"{}\"\ncopy = false", escaped.replace('\u{9b}', "\\u009b")));
    std::fs::write(&job, &text).unwrap();
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
        harmless(&["sample", &at, "--seed", "1", "--length", "40", "--prompt", "\u{1b}]0;x\u{7}"]).0,
        0
    );
    assert_eq!(harmless(&[&["audit", &at][..], &engine].concat()).0, 2);
    let audit = [&["audit", &at, "--data", data, "--verdict", &verdict][..], &engine].concat();
    assert_eq!(harmless(&audit).0, 1);
    assert_eq!(harmless(&[&["replay", &at, "--step", "1", "--data", data][..], &engine].concat()).0, 0);
    let (code, printed) = harmless(&["train", job, "--out", &at]);
    assert!(code == 2 && printed.contains("is a run already"), "{printed}");
    assert_eq!(harmless(&["train", job, "--out", &path(&inner, "copied")]).0, 0);

    // Its own fields: what a decoder quotes of them.
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

#[test]
fn a_command_line_is_meant_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "");
    let text = std::fs::read_to_string(&job).unwrap().replace("steps = 8", "steps = 2");
    std::fs::write(&job, &text).unwrap();
    let other = path(folder.path(), "other.toml");
    std::fs::write(&other, text.replace("every = 2", "every = 1")).unwrap();
    let (job, run, key) = (job.to_str().unwrap(), path(folder.path(), "run"), path(folder.path(), "key"));
    assert_eq!(output(&["key", "new", &key, "--name", "trainer.example"]).0, 0);
    let public = format!("{key}.pub");
    let refused = |args: &[&str], says: &str| {
        let (code, _, stderr) = output(args);
        assert!(code == 2 && stderr.contains(says), "{args:?}: {code} {stderr}");
        let (code, stdout, stderr) = output(&[args, &["--json"]].concat());
        let error: serde_json::Value = serde_json::from_str(&stderr).expect(&stderr);
        assert!(code == 2 && error["exit"] == 2 && stdout.is_empty(), "{error}");
        assert!(error["error"].as_str().unwrap().contains(says), "{error}");
    };
    // What would be ignored is refused.
    refused(&["train", job, "--out", &run, "--native", "gemm"], "--native is for the logged profile");
    refused(&["train", job, "--out", &run, "--adapter", "llvmpipe"], "--adapter names a GPU");
    refused(&["train", job, "--out", &run, "--threads", "99999"], "cores; give no more");
    refused(&["train", job, "--out", &run, "--engine", "reference", "--threads", "1"], "--threads is for");
    refused(&["train", "nowhere.toml", "--out", &run], "there is no such job file");
    refused(&["job", "check", "nowhere.toml"], "there is no such job file");
    refused(&["train", job, "--out", &run, "--key", "nowhere"], "nowhere");
    refused(&["train", job, "--out", &run, "--key", &public], "is the public key");
    refused(&["train", job, "--out", &run, "--no-such-option"], "--no-such-option");
    assert!(!Path::new(&run).exists());
    assert_eq!(output(&["train", job, "--out", &run, "--key", &key]).0, 0);
    let resume = ["train", "--out", &run, "--key", &key, "--resume"];
    refused(&[&resume[..], &[&other]].concat(), "is not the job that the run was begun with");
    refused(&[&resume[..], &["--challenge", &"0".repeat(64)]].concat(), "another --challenge");
    refused(&[&resume[..], &["--profile", "logged"]].concat(), "the exact profile");
    assert_eq!(output(&[&resume[..], &[job]].concat()).0, 0);
    refused(&["audit", &run, "--adapter", "llvmpipe"], "--adapter names a GPU");
    refused(&["replay", &run, "--step", "1", "--native", "gemm"], "--native is for training");
    let secret = std::fs::read_to_string(&key).unwrap();
    for given in [&key, secret.trim()] {
        refused(&["verify", &run, "--trainer-key", given], "private key");
        let (_, _, stderr) = output(&["verify", &run, "--trainer-key", given]);
        assert!(!stderr.contains(secret.trim()), "a private key is printed");
    }
    refused(&["verify", &run, "--trainer-key", &key], &format!("give {public}"));
    // One line with -q, and an error where it cannot be written.
    for (args, first) in [
        (&["verify", &run][..], "run "),
        (&["audit", &run], "MATCHES"),
        (&["compare", &run, &run], "no difference"),
    ] {
        let (code, stdout, stderr) = output(&[args, &["-q"]].concat());
        assert!(code == 0 && stdout.starts_with(first) && stderr.is_empty(), "{stdout}{stderr}");
        assert_eq!(stdout.matches('\n').count(), 1, "{stdout}");
    }
    #[cfg(target_os = "linux")]
    for args in
        [&["inspect", &run][..], &["compare", &run, &run], &["verify", &run, "--json"], &["job", "reference"]]
    {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = tiebreak(args).stdout(full).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{args:?}: {stderr}");
        assert!(stderr.contains("could not be written to standard output"), "{stderr}");
    }
}
