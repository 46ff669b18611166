//! The output of audits: reports of several auditors, divergences that no full disk loses, runs that are held to an order.

use std::path::Path;
use std::process::{Output, Stdio};

use crate::common::edit::{edit, edited};
use crate::common::{gpt_job, key, mlp_job, trained};
use crate::{output, path, tiebreak};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::tree_head::Head;
use tiebreak_run::run::dir::Run;

/// Trains a run of eight steps and makes the keys of two auditors; returns the paths of job, run and keys.
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
    let [a, b, unsigned, changed] =
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
    // Neither auditor named the trainer's key, and the merge says so, once.
    let (_, stdout, _) = output(&["audit", "merge", &a, &b]);
    assert_eq!(stdout.matches("  head        consistent, signer unknown").count(), 1, "{stdout}");
    merged(&[&a], 3, &["UNDECIDED: 4 of 8 steps", "missing: --steps 5..8"]);
    merged(&[&a, "--require", "0.5"], 0, &["MATCHES: 4 of 8 steps", "missing: --steps 5..8"]);
    merged(&[&a, "--require", "0.6"], 3, &["less than --require asks for"]);
    merged(
        &[&a, &b, "--auditor", &format!("{alice}.pub")],
        3,
        &["its auditor is none of --auditor: bob.example+"],
    );
    merged(&[&unsigned], 3, &["no report counts", "no signature ends it, or it was cut off"]);
    merged(&[&format!("{a}.none")], 2, &["a.json.none"]);
    merged(&[&a, &unsigned], 3, &["4 of 8 steps", "by 1 of 2 reports"]);
    merged(&[&unsigned, "--unsigned"], 0, &["8 of 8 steps", "vouched for by nobody"]);

    // A report edited by hand: with the signature it is malformed, without it nobody vouches for it.
    let text = std::fs::read_to_string(&a).unwrap();
    let wider = edited(&text, &[("4\n    ]\n  ]", "8\n    ]\n  ]")]);
    std::fs::write(&changed, &wider).unwrap();
    merged(&[&changed], 4, &["it was changed after it was signed"]);
    merged(&[&changed, "--unsigned"], 4, &["it was changed after it was signed"]);
    let stripped = wider[..wider.find(",\n  \"auditor\"").unwrap()].to_string() + "\n}\n";
    std::fs::write(&changed, &stripped).unwrap();
    merged(&[&changed, &a], 3, &["4 of 8 steps"]);
    // Steps that the run does not have, more than could be listed one by one.
    let endless = edited(&stripped, &[("8\n    ]\n  ]", "4294967295\n    ]\n  ]")]);
    for (text, exit) in [("{\"replayed\":[]}", 3), ("", 3), (endless.as_str(), 3)] {
        std::fs::write(&changed, text).unwrap();
        merged(&[&changed], exit, &["no report counts"]);
        merged(&[&changed, "--unsigned"], 4, &[]);
    }
    // A difference is told with its step.
    let differs = edited(
        &stripped,
        &[("\"result\": \"matches\"", "\"result\": \"diverges\", \"step\": 3, \"what\": \"x\"")],
    );
    std::fs::write(&changed, differs).unwrap();
    let said = ["DIVERGES", "diverges at step 3, steps 1..8", "1 report does not end with a match"];
    merged(&[&changed, &b, "--unsigned"], 1, &said);
    // A finished report of a part, and one without an outcome.
    let without = edited(&stripped, &[("\"result\": \"matches\"", "")]);
    std::fs::write(&changed, without).unwrap();
    merged(&[&changed, "--unsigned"], 4, &["result"]);
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
    assert_eq!(result["outcome"]["kind"], "step");
    assert_eq!(result["verdict"].as_str().unwrap().as_bytes(), bytes, "the file, as a text");

    // An existing file stays.
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
    std::fs::copy(&job, &other).unwrap();
    edit(&other, &[("steps = 8", "steps = 9")]);
    told(&["verify", &run, "--expect-job", &other], 1, &["(ordered | run): steps: 9 | 8"]);
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

/// Tasks of an array divide an audit without knowing of each other. A task that runs again does nothing, and the merge names those
/// that have to.
#[test]
fn shards_of_an_audit_are_tasks_of_an_array() {
    let folder = tempfile::tempdir().unwrap();
    let (_, run, [alice, bob]) = audited_by_two(folder.path(), "step", None);
    let report = |shard: &str| path(folder.path(), &format!("{shard}.json"));
    let audit = |variable: Option<(&str, &str)>, args: &[&str], wanted: i32, said: &[&str]| {
        let mut command = tiebreak(&[&["audit", &run, "--engine", "cpu"], args].concat());
        for name in ["SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX", "AWS_BATCH_JOB_ARRAY_INDEX"] {
            command.env_remove(name);
        }
        let done = command.envs(variable).output().unwrap();
        let text = [done.stdout, done.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
        assert_eq!(done.status.code(), Some(wanted), "{args:?}: {text}");
        said.iter().for_each(|said| assert!(text.contains(said), "{said}: {text}"));
    };
    let (first, second, third) = (report("first"), report("second"), report("third"));
    audit(None, &["--shard", "1/3", "--report", &first, "--key", &alice], 0, &["4 of 8 steps"]);
    let slurm = Some(("SLURM_ARRAY_TASK_ID", "2"));
    audit(slurm, &["--shard", "auto/3", "--report", &third, "--key", &alice], 0, &["2 of 8 steps"]);
    // What is done is not done again: not by this auditor, under this head, for this shard.
    let before = std::fs::read(&first).unwrap();
    audit(None, &["--shard", "1/3", "--report", &first, "--key", &alice], 0, &["ALREADY DONE: shard 1/3"]);
    assert_eq!(std::fs::read(&first).unwrap(), before);
    let merge = |wanted: i32, reports: &[&String], said: &str| {
        let reports: Vec<&str> = reports.iter().map(|report| report.as_str()).collect();
        let (code, stdout, stderr) = output(&[&["audit", "merge"], &reports[..]].concat());
        assert!(code == wanted && stdout.contains(said), "{said}: {code} {stdout}{stderr}");
    };
    merge(3, &[&first], "missing: shards 2-3 of 3, in an array of Slurm --array=1-2");
    merge(3, &[&first, &third], "missing: shards 2 of 3, in an array of Slurm --array=1");
    audit(
        Some(("JOB_COMPLETION_INDEX", "1")),
        &["--shard", "auto/3", "--report", &second, "--key", &bob],
        0,
        &["2 of 8 steps"],
    );
    merge(0, &[&first, &second, &third], "MATCHES: 8 of 8 steps");
    // Another auditor's report, another shard's and a damaged one are no reason to do nothing.
    for (shard, key) in [("1/3", &bob), ("2/3", &alice), ("1/2", &alice)] {
        let copy = report("copy");
        std::fs::copy(&first, &copy).unwrap();
        audit(None, &["--shard", shard, "--report", &copy, "--key", key], 0, &["MATCHES"]);
    }
    // A report of more steps than a run can have panics nothing.
    let text = String::from_utf8(before.clone()).unwrap();
    let unsigned = text[..text.find(",\n  \"auditor\"").unwrap()].to_string() + "\n}\n";
    let edits = [
        ("\"steps\": 8,", "\"steps\": 4294967295,"),
        ("\"head_size\": 10,", "\"head_size\": 4294967296,"),
        ("\"replayed\": [", "\"replayed\": [ [1, 4294967295],"),
    ];
    let copy = report("copy");
    std::fs::write(&copy, edited(&unsigned, &edits)).unwrap();
    audit(None, &["--shard", "1/3", "--report", &copy, "--key", &alice], 0, &["MATCHES"]);
    // Nor is one that nobody signed, or an audit that also checks its device.
    let open = report("open");
    for _ in 0..2 {
        audit(None, &["--shard", "1/3", "--report", &open], 0, &["MATCHES"]);
    }
    audit(
        None,
        &["--shard", "1/3", "--report", &first, "--key", &alice, "--check-device"],
        0,
        &["device checked"],
    );
    std::fs::write(&third, "{}").unwrap();
    audit(slurm, &["--shard", "auto/3", "--report", &third, "--key", &alice], 0, &["MATCHES"]);
    // What the first audit could not know is found although the report is there: a head of another history.
    let of_run = Run::open(Path::new(&run)).unwrap().id;
    let note = Head { run: of_run, size: 5, root: Digest([7; 32]) }.to_note(Some(&key()));
    let fork = report("fork");
    std::fs::write(&fork, note).unwrap();
    let done = ["--shard", "1/3", "--report", &first, "--key", &alice, "--verdict", &report("v")];
    audit(None, &done, 0, &["ALREADY DONE"]);
    audit(None, &[&done[..], &["--head", &fork]].concat(), 1, &["DIVERGES", "without a replay"]);
    // A contradiction that needs no replay is found by every shard, however many there are.
    let cheat = path(folder.path(), "cheat");
    trained(&folder.path().join("job.toml"), Path::new(&cheat), Some("init@0"));
    for shard in ["1/3", "7/9"] {
        let (code, stdout, stderr) = output(&["audit", &cheat, "--shard", shard, "--verdict", &report("v")]);
        assert!(code == 1 && stdout.contains("without a replay"), "{shard}: {code} {stdout}{stderr}");
    }
    // Refusals.
    audit(None, &["--shard", "auto/3"], 2, &["none of SLURM_ARRAY_TASK_ID", "as in --shard 1/3"]);
    audit(
        Some(("AWS_BATCH_JOB_ARRAY_INDEX", "3")),
        &["--shard", "auto/3"],
        2,
        &["is \"3\", and the last index is 2"],
    );
    audit(
        None,
        &["--shard", "5/5"],
        2,
        &["has nothing to replay: the plan has 4 segments", "divide by 4 at most", "[checkpoint] every"],
    );
    audit(None, &["--shard", "1/2", "--sample", "0.5"], 2, &["needs --seed"]);
    audit(None, &["--shard", "4/3"], 2, &["the form is K/N with 1 <= K <= N <= 65536, or auto/N"]);
    // Shards of one draw have its segments, each once.
    let planned = |args: &[&str]| -> Vec<serde_json::Value> {
        let common = ["audit", &run, "--sample", "0.75", "--seed", "5", "--plan", "--json"];
        let (_, stdout, _) = output(&[&common, args].concat());
        let plan: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        plan["plan"]["segments"].as_array().unwrap().clone()
    };
    let shards = [planned(&["--shard", "1/2"]), planned(&["--shard", "2/2"])];
    assert_eq!(shards.each_ref().map(Vec::len), [2, 1]);
    let mut both = shards.concat();
    both.sort_by_key(|segment| segment[0].as_u64());
    assert_eq!(both, planned(&[]));
}

/// A shard that is killed goes on from its own signed report, and ends with the report of one that was not. Nobody else's report is taken
/// over.
#[test]
fn a_killed_shard_goes_on_from_its_own_report() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "step", "");
    edit(&job, &[("steps = 8", "steps = 60")]);
    let at = |name: &str| path(folder.path(), name);
    let run = at("run");
    trained(&job, Path::new(&run), None);
    let [alice, bob] = ["alice", "bob"].map(|name| {
        assert_eq!(output(&["key", "new", &at(name), "--name", &format!("{name}.example")]).0, 0);
        at(name)
    });
    let (whole, cut, copy) = (at("whole"), at("cut"), at("copy"));
    let base = ["audit", &run, "--engine", "cpu", "--threads", "1", "--shard"];
    let audit = |args: &[&str], said: &[&str]| {
        let (code, stdout, stderr) = output(&[&base[..], args].concat());
        let text = format!("{stdout}{stderr}");
        assert_eq!(code, 0, "{args:?}: {text}");
        said.iter().for_each(|said| assert!(text.contains(said), "{said}: {text}"));
        text
    };
    let fresh = audit(&["1/2", "--report", &whole, "--key", &alice], &["MATCHES: 30 of 60 steps"]);
    assert!(!fresh.contains("goes on") && !fresh.contains("is there"), "{fresh}");
    let read = |file: &str| std::fs::read_to_string(file).unwrap();
    let json = |file: &str| -> serde_json::Value { serde_json::from_str(&read(file)).unwrap() };
    // Killed after some segments; an audit that was faster begins again.
    for _ in 0..20 {
        let _ = std::fs::remove_file(&cut);
        let args = [&base[..], &["1/2", "--report", &cut, "--key", &alice]].concat();
        let mut child = tiebreak(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while !Path::new(&cut).exists() && child.try_wait().unwrap().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        if json(&cut)["replayed"].as_array().unwrap().len() < 15 {
            break;
        }
    }
    let done = json(&cut)["replayed"].as_array().unwrap().len();
    assert!((1..15).contains(&done), "{done} segments");
    // A merge takes it for what it is: unfinished.
    let (code, stdout, _) = output(&["audit", "merge", &cut]);
    let missing = "missing: shards 1-2 of 2, in an array of Slurm --array=0-1";
    assert!(code == 3 && stdout.contains(missing), "{code} {stdout}");
    for (why, args) in [
        ("alice.example, key", &["1/2", "--key", &bob][..]),
        ("it is of other segments", &["2/2", "--key", &alice]),
        ("and here it is 2 x cpu (1 thread)", &["1/2", "--key", &alice, "--jobs", "2"]),
    ] {
        std::fs::copy(&cut, &copy).unwrap();
        let said = "The audit begins with its first segment";
        audit(&[args, &["--report", &copy]].concat(), &[why, said, "MATCHES: 30 of 60 steps"]);
    }
    let more = edited(&read(&cut), &[("\"end_checked\": true", "\"end_checked\": false")]);
    for (text, key) in [(more, Some(&alice)), (read(&cut), None)] {
        std::fs::write(&copy, text).unwrap();
        let key = key.map_or(vec![], |key| vec!["--key", key]);
        let said = audit(&[&["1/2", "--report", &copy][..], &key].concat(), &["MATCHES: 30 of 60 steps"]);
        assert!(!said.contains("goes on"), "{said}");
    }
    // A device that is to be checked is checked in all segments.
    std::fs::copy(&cut, &copy).unwrap();
    let args = ["1/2", "--report", &copy, "--key", &alice, "--check-device"];
    assert!(!audit(&args, &["device checked"]).contains("goes on"));
    let said = format!("goes on: {done} of 15 segments match");
    audit(&["1/2", "--report", &cut, "--key", &alice], &[&said, "MATCHES: 30 of 60 steps"]);
    let [a, b] = [&whole, &cut].map(|file| {
        let mut said = json(file);
        (said["seconds"], said["signature"]) = (0.into(), 0.into());
        said
    });
    assert_eq!(a, b);
    audit(&["1/2", "--report", &cut, "--key", &alice], &["ALREADY DONE: shard 1/2"]);
}

/// Several jobs share the cores, and are held to the limit of memory together. Their number changes nothing that is found.
#[test]
fn jobs_replay_segments_at_once_within_the_memory() {
    let folder = tempfile::tempdir().unwrap();
    let job = mlp_job(folder.path(), "step", 4, 1);
    edit(&job, &[("hidden = [33, 20]", "hidden = [3000, 1000]"), ("\nevery = 2", "\nevery = 1")]);
    let run = path(folder.path(), "run");
    trained(&job, Path::new(&run), None);
    let audit = |args: &[&str]| output(&[&["audit", &run, "--engine", "cpu", "--json"], args].concat());
    let json = |args: &[&str]| -> serde_json::Value {
        let (code, stdout, stderr) = audit(args);
        assert_eq!(code, 0, "{stdout}{stderr}");
        serde_json::from_str(&stdout).unwrap()
    };
    let planned = json(&["--plan"]);
    let memory = planned["plan"]["memory"].as_u64().unwrap();
    assert_eq!((&planned["jobs"], planned["plan"]["segments"].as_array().unwrap().len()), (&1.into(), 4));
    // Three replays fit, and not four.
    let limit = (memory * 7 / 2 / (1 << 20)).to_string();
    let (code, stdout, stderr) = audit(&["--jobs", "4", "--max-memory", &limit]);
    let said = format!("{stdout}{stderr}");
    assert!(
        code == 3 && said.contains("4 replays at once, one of which confirms a difference, need"),
        "{code} {said}"
    );
    assert!(said.contains("--jobs 3, or --jobs 0"), "{said}");
    let (one, three) = (json(&[]), json(&["--jobs", "3", "--max-memory", &limit]));
    assert!(three["engine"].as_str().unwrap().starts_with("3 x cpu ("), "{three}");
    for field in ["outcome", "replayed", "checked", "not_checked", "plan"] {
        assert_eq!(one[field], three[field], "{field}");
    }
    // As many as there are cores, segments and memory.
    let all = json(&["--jobs", "0", "--plan", "--max-memory", &limit]);
    let cores = std::thread::available_parallelism().unwrap().get();
    assert_eq!(all["jobs"], cores.min(3));
    // A difference that one job can confirm is confirmed in several, too.
    let confirming = planned["memory_to_confirm"].as_u64().unwrap();
    assert!(confirming > memory, "{confirming} of {memory}");
    let limit = ((2 * memory + confirming) / (1 << 20) - 1).to_string();
    let (code, stdout, stderr) = audit(&["--jobs", "3", "--max-memory", &limit]);
    let said = format!("{stdout}{stderr}");
    assert!(
        code == 3 && said.contains("3 replays at once, one of which confirms a difference, need"),
        "{code} {said}"
    );
    let two = json(&["--jobs", "2", "--plan", "--max-memory", &limit]);
    assert_eq!((&two["jobs"], two["memory_to_confirm"].as_u64().unwrap()), (&2.into(), memory + confirming));
    let all = json(&["--jobs", "100", "--threads", "1", "--plan"]);
    assert_eq!(all["jobs"], 4, "as many as there are segments");
}

/// A plan file names the segments of each shard. It is foreign: it leaves out steps only by name, and fits one head, one version and one
/// number of shards.
#[test]
fn a_plan_file_names_the_segments_of_each_shard() {
    let folder = tempfile::tempdir().unwrap();
    let (_, run, [alice, _]) = audited_by_two(folder.path(), "step", None);
    let at = |name: &str| path(folder.path(), name);
    let told = |args: &[&str], wanted: i32, said: &[&str]| {
        let (code, stdout, stderr) = output(args);
        let text = format!("{stdout}{stderr}");
        assert_eq!(code, wanted, "{args:?}: {text}");
        said.iter().for_each(|said| assert!(text.contains(said), "{said}: {text}"));
        stdout
    };
    let read = |name: &str| std::fs::read_to_string(at(name)).unwrap();
    let (plan, again) = (at("plan.json"), at("again.json"));
    for out in [&plan, &again] {
        let next = format!("--plan-file {out} --shard 1/3");
        let args = ["audit", &run, "--engine", "cpu", "--plan", "--plan-out", out, "--shards", "3"];
        told(&args, 0, &["4 of 4 segments", "of 3 shards", &next]);
    }
    assert_eq!(read("plan.json"), read("again.json"));
    let planned: serde_json::Value = serde_json::from_str(&read("plan.json")).unwrap();
    let segments = |shard: usize| planned["shards"][shard]["segments"].clone();
    assert_eq!([0, 1, 2].map(segments).map(|all| all.to_string()), ["[[1,2],[7,8]]", "[[3,4]]", "[[5,6]]"]);
    // A replay of what a plan file says.
    let audit = |plan: &str, shard: &str, more: &[&str], wanted: i32, said: &[&str]| {
        let base = ["audit", &run, "--engine", "cpu", "--plan-file", plan, "--shard", shard];
        told(&[&base, more].concat(), wanted, said)
    };
    let replayed = |plan: &str, name: &str| -> Vec<String> {
        let reports: Vec<String> = (1..=3).map(|number| at(&format!("{name}-{number}.json"))).collect();
        for (number, report) in (1..).zip(&reports) {
            audit(plan, &format!("{number}/3"), &["--report", report, "--key", &alice], 0, &["MATCHES: "]);
        }
        reports
    };
    let merged = |reports: &[String], wanted: i32, said: &[&str]| {
        let reports: Vec<&str> = reports.iter().map(String::as_str).collect();
        let json = told(&[&["audit", "merge", "--json"], &reports[..]].concat(), wanted, &[]);
        told(&[&["audit", "merge"], &reports[..]].concat(), wanted, said);
        serde_json::from_str::<serde_json::Value>(&json).unwrap()
    };
    let whole = replayed(&plan, "whole");
    for (number, report) in whole.iter().enumerate() {
        let said: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(report).unwrap()).unwrap();
        assert_eq!(said["plan"]["segments"], segments(number));
        assert_eq!(said["plan"]["file"].as_str().unwrap().len(), 64);
    }
    merged(&whole, 0, &["MATCHES: 8 of 8 steps"]);
    let part = merged(&whole[1..2], 3, &["missing: shards 1,3 of 3, in an array of Slurm --array=0,2"]);
    assert_eq!((&part["missing_array"], &part["omitted"]), (&"0,2".into(), &serde_json::json!([])));
    audit(&plan, "2/3", &["--report", &whole[1], "--key", &alice], 0, &["ALREADY DONE"]);
    // Steps that the plan leaves out are named, by each task and by the merge.
    let changed = |from: &str, to: &str| {
        std::fs::write(&again, edited(&read("plan.json"), &[(from, to)])).unwrap();
    };
    changed("[[1,2],[7,8]]", "[[1,2]]");
    audit(&again, "2/3", &[], 0, &["not checked: steps 7..8, which the plan file gives to no shard"]);
    let fewer = replayed(&again, "fewer");
    let left = merged(&fewer, 3, &["omitted: steps 7..8", "missing: --steps 7..8"]);
    assert_eq!((&left["omitted"], &left["missing_array"]), (&serde_json::json!([[7, 8]]), &().into()));
    merged(&fewer[..1], 3, &["omitted: steps 7..8", "missing: shards 2-3 of 3"]);
    // Shards of two plans are no division.
    merged(&[whole[0].clone(), fewer[1].clone()], 3, &["missing: --steps 5..6"]);
    // Refusals.
    let of = |field: &str| format!("\"{field}\":{}", planned[field]);
    for (from, to, why) in [
        ("[[3,4]]", "[[3,3]]", "it has a segment 3..3"),
        ("[[3,4]]", "[[3,4],[9,9]]", "it has a segment 9..9"),
        ("\"head_size\":10", "\"head_size\":9", "under a head over 9 records"),
        ("\"verifier\":\"", "\"verifier\":\"9.", "version \"9."),
        ("\"contract\":\"tiebreak-contract-2\"", "\"contract\":\"another\"", "for contract \"another\""),
        (&of("run"), &of("head_root").replace("head_root", "run"), "it is of run "),
    ] {
        changed(from, to);
        audit(&again, "1/3", &[], 2, &[why, "help: write one anew, by --plan --plan-out FILE --shards N"]);
    }
    audit(&plan, "1/4", &[], 2, &["it has 3 shards, and this is shard 1/4"]);
    audit(&plan, "1/3", &["--seed", "5"], 2, &["cannot be used with"]);
    audit(&at("none.json"), "1/3", &[], 2, &["none.json"]);
    changed("[[3,4]]", "[[1,2]]");
    audit(&again, "1/3", &[], 4, &["it has a segment 1..2, out of order, twice"]);
    let args = ["audit", &run, "--plan", "--plan-out", &again, "--shards", "5"];
    told(&args, 2, &["the plan has 4 segments: divide by 1 to 4"]);
    // A sample whose seed somebody else chose is said to be that.
    let args =
        ["audit", &run, "--plan", "--plan-out", &again, "--shards", "2", "--sample", "0.5", "--seed", "5"];
    told(&args, 0, &[]);
    audit(&again, "1/2", &[], 0, &["the plan file has its seed, 5, and nobody says who drew it"]);
}
