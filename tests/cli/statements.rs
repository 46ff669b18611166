//! `tiebreak monitor statement`: what audits established, signed, and verified by this program and by libraries of others.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use tiebreak_monitor::closed::{ClosedLogs, LogHead};
use tiebreak_monitor::draw::Draw;
use tiebreak_monitor::randomness::Randomness;
use tiebreak_monitor::register::file::to_text;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::merkle::verify_consistency;
use tiebreak_run::run::dir::Run;

use crate::common::edit::edit;
use crate::common::{files, gpt_job, key, not_tested, sign_again, step_mut, trained};
use crate::{beacons, chips, output, path};

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
    assert_eq!(inspections[1]["findings"], serde_json::json!(["silent", "too_rare"]), "{inspections:#}");
    assert_eq!(said["predicate"]["match"]["logsChecked"], false, "{said:#}");
    let told = done(&["monitor", "statement", "--check", &at("statement.json"), "--key", &public], 0);
    assert!(told.contains("match: nobody checked who wrote the logs"), "{told}");
    assert!(told.contains("inspection of chip A-1: differs (silent, too_rare)"), "{told}");

    let (statement, other) = (at("statement.json"), at("alice.pub"));
    done(&["monitor", "statement", "--check", &statement, "--key", &other], 4);
    // Nothing of a draw is compared by the check, so it takes none.
    let draw = ["--draw", "draw.json", "--register", "chips.register", "--closed", "heads.txt"];
    done(&[&["monitor", "statement", "--check", &statement, "--key", &public], &draw[..]].concat(), 2);
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

/// A folder with the run of [`gpt_job`], keys of an auditor and an inspector, a register, and the heads of five chips' logs.
struct Drawn {
    folder: tempfile::TempDir,
}

impl Drawn {
    fn new() -> Drawn {
        let world = Drawn { folder: tempfile::tempdir().unwrap() };
        let job = gpt_job(world.folder.path(), "step", "");
        trained(&job, Path::new(&world.at("run")), None);
        for name in ["alice", "inspector"] {
            world.done(&["key", "new", &world.at(name), "--name", &format!("{name}.example")], 0);
        }
        fs::write(world.at("chips.register"), to_text(&chips::register(), &key())).unwrap();
        let mut heads = chips::closed(&chips::honest());
        // have none.
        heads.0.insert(chips::serial("A-2"), LogHead { records: 7, link: Digest([7; 32]) });
        fs::write(world.at("heads.txt"), heads.to_text()).unwrap();
        fs::write(world.at("chip.log"), chips::bytes(&chips::honest())).unwrap();
        world
    }

    fn at(&self, name: &str) -> String {
        path(self.folder.path(), name)
    }

    fn done(&self, args: &[&str], wanted: i32) -> String {
        let (code, stdout, stderr) = output(args);
        assert_eq!(code, wanted, "{args:?}: {stdout}{stderr}");
        format!("{stdout}{stderr}")
    }

    /// Draws chips, and segments of a run.
    fn draw(&self, chips: &str, run: &str, segments: &str) -> Value {
        let [register, heads, draw, run] =
            ["chips.register", "heads.txt", "draw.json", run].map(|name| self.at(name));
        let (chain, round) = (beacons::chain(self.folder.path()), beacons::file(self.folder.path(), 2));
        let inputs = ["monitor", "draw", "--register", &register, "--closed", &heads, "--out", &draw];
        let asked =
            ["--chips", chips, "--run", &run, "--segments", segments, "--beacon", &round, "--chain", &chain];
        self.done(&[&inputs[..], &asked].concat(), 0);
        serde_json::from_str(&fs::read_to_string(draw).unwrap()).unwrap()
    }

    /// Replays steps, and returns the report's file.
    fn audited(&self, steps: &Value) -> String {
        let steps = format!("{}..{}", steps[0], steps[1]);
        let (run, report, key) = (self.at("run"), self.at(&format!("{steps}.json")), self.at("alice"));
        self.done(&["audit", &run, "--steps", &steps, "--report", &report, "--key", &key], 0);
        report
    }

    /// The predicate of a statement by the draw, and what the command says.
    fn stated(&self, more: &[&str]) -> (Value, String) {
        let [register, heads, draw, chain, key, out] =
            ["chips.register", "heads.txt", "draw.json", "chain.json", "inspector", "statement.json"]
                .map(|name| self.at(name));
        let given = ["--draw", &draw, "--register", &register, "--closed", &heads, "--chain", &chain];
        let args = ["monitor", "statement", "--key", &key, "--out", &out];
        let told = self.done(&[&args[..], &given, more].concat(), 0);
        let public = self.at("inspector.pub");
        let said = self.done(&["monitor", "statement", "--check", &out, "--key", &public, "--json"], 0);
        let statement: Value = serde_json::from_str(&said).unwrap();
        (statement["predicate"].clone(), told)
    }

    /// An inspection of chip A-1's log.
    fn inspected(&self, name: &str, more: &[&str], wanted: i32) -> String {
        let [log, register, file] = ["chip.log", "chips.register", name].map(|name| self.at(name));
        let args = ["monitor", "inspect", &log, "--register", &register, "--until", "2025-04-01", "--json"];
        fs::write(&file, self.done(&[&args[..], more].concat(), wanted)).unwrap();
        file
    }
}

#[test]
fn replayed_segments_of_a_draw_count_as_drawn() {
    let world = Drawn::new();
    let draw = world.draw("0", "run", "2");
    let steps = draw["segments"][0]["steps"].as_array().unwrap();
    let [one, two] = [0, 1].map(|number| world.audited(&steps[number]));
    let confidence = ["--confidence", "0.7"];
    let both = [&["--report", &one, "--report", &two][..], &confidence].concat();
    let (said, _) = world.stated(&both);
    let segments = &said["audits"]["segments"];
    // One bad segment of four is missed by two draws with probability 1/2, two with 1/6.
    assert_eq!((&segments["drawn"], &segments["deviatingAtMost"]), (&2.into(), &1.into()), "{segments:#}");
    assert_eq!(
        (&segments["drawnByDraw"], &segments["drawnNotReplayed"]),
        (&true.into(), &serde_json::json!([]))
    );
    // A drawn segment that nobody replayed may be one that deviates: of three at most one is met with probability 1/2.
    let (said, told) = world.stated(&[&["--report", &one][..], &confidence].concat());
    let segments = &said["audits"]["segments"];
    assert_eq!((&segments["drawn"], &segments["deviatingAtMost"]), (&2.into(), &3.into()), "{segments:#}");
    assert_eq!(segments["drawnNotReplayed"], serde_json::json!([steps[1]]));
    assert!(told.contains("at most 75.00 % deviate; 1 of 2 drawn segments were not replayed"), "{told}");
    // Without the draw, ranges that somebody chose count as no draw.
    let (key, out) = (world.at("inspector"), world.at("other.json"));
    let args = ["monitor", "statement", "--key", &key, "--out", &out, "--json"];
    let said: Value = serde_json::from_str(&world.done(&[&args[..], &both].concat(), 0)).unwrap();
    let segments = &said["statement"]["predicate"]["audits"]["segments"];
    assert!(segments.is_null() || segments["drawn"] == 0, "{segments:#}");

    // A draw that somebody edited, and a draw over another history of the run.
    let inputs = ["--register", "chips.register", "--closed", "heads.txt", "--chain", "chain.json"];
    let args: Vec<String> = [&["--draw", "draw.json"][..], &inputs]
        .concat()
        .iter()
        .map(|word| if word.starts_with("--") { word.to_string() } else { world.at(word) })
        .collect();
    let given: Vec<&str> = args.iter().map(String::as_str).collect();
    let base = ["monitor", "statement", "--key", &key, "--out", &out, "--report", &one];
    let text = fs::read_to_string(world.at("draw.json")).unwrap();
    fs::write(world.at("draw.json"), text.replace(" 79030294", " 79030295")).unwrap();
    assert!(world.done(&[&base[..], &given].concat(), 1).contains("over round 79030295"));
    let other = trained(Path::new(&world.at("job.toml")), Path::new(&world.at("other")), None);
    sign_again(&other, |records| step_mut(records, 5).cursor += 1);
    world.draw("0", "other", "2");
    assert!(world.done(&[&base[..], &given].concat(), 2).contains("the draw is over 10 records of root"));
    // A draw that follows from its inputs, by a value that nobody signed.
    let mut question = Draw::from_text(&text).unwrap().question;
    let Randomness::Beacon { value, .. } = &mut question.randomness else { panic!("{question:?}") };
    *value = "5f".repeat(48);
    let heads = ClosedLogs::from_text(&fs::read_to_string(world.at("heads.txt")).unwrap()).unwrap();
    let forged = Draw::new(&chips::register(), &heads, question).unwrap();
    fs::write(world.at("draw.json"), forged.to_text()).unwrap();
    assert!(world.done(&[&base[..], &given].concat(), 1).contains("over round 79030294"));
}

#[test]
fn a_draw_of_an_earlier_head_is_joined_to_the_reports_by_the_runs_records() {
    let world = Drawn::new();
    // The run as it was when its head covered six steps.
    let [run, earlier] = ["run", "earlier"].map(|name| world.at(name));
    for (name, bytes) in files(Path::new(&run)) {
        let file = Path::new(&earlier).join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, bytes).unwrap();
    }
    fs::remove_file(format!("{earlier}/heads/000000000010")).unwrap();
    let draw = world.draw("0", "earlier", "2");
    assert_eq!(draw["question"]["runs"][0]["size"], 7, "{draw:#}");
    let steps = draw["segments"][0]["steps"].as_array().unwrap();
    let [one, two] = [0, 1].map(|number| world.audited(&steps[number]));
    let (key, out) = (world.at("inspector"), world.at("statement.json"));
    let [file, register, heads, chain] =
        ["draw.json", "chips.register", "heads.txt", "chain.json"].map(|name| world.at(name));
    let given = ["--draw", &file, "--register", &register, "--closed", &heads, "--chain", &chain];
    let base = ["monitor", "statement", "--key", &key, "--out", &out, "--report", &one, "--report", &two];
    let stated = |more: &[&str], wanted: i32| world.done(&[&base[..], &given, more].concat(), wanted);
    let said = stated(&[], 2);
    assert!(said.contains("the draw is over 7 records of root") && said.contains("(--run RUN)"), "{said}");
    let joined = ["--run", &run, "--confidence", "0.7", "--json"];
    let said: Value = serde_json::from_str(&stated(&joined, 0)).unwrap();
    let segments = &said["statement"]["predicate"]["audits"]["segments"];
    let counted =
        ["all", "drawn", "replayed", "deviatingAtMost"].map(|name| segments[name].as_u64().unwrap());
    // Two bad ones of three are always met by two draws, one with probability 2/3: so one may be bad.
    assert_eq!(counted, [3, 2, 2, 1], "{segments:#}");
    // Anybody checks that one head continues the other.
    let size = |side: &str| -> (u64, Digest) {
        let head = &segments["heads"][side];
        (head["records"].as_u64().unwrap(), head["root"].as_str().unwrap().parse().unwrap())
    };
    let proof = segments["heads"]["consistency"].as_array().unwrap();
    let proof: Vec<Digest> = proof.iter().map(|hash| hash.as_str().unwrap().parse().unwrap()).collect();
    let ((old, _), (new, _)) = (size("old"), size("new"));
    assert_eq!((old, new), (7, 10));
    verify_consistency(size("old"), size("new"), &proof).unwrap();
    // Another run, one with fewer records, and another history of the run.
    let job = world.at("job.toml");
    edit(Path::new(&job), &[("steps = 8", "steps = 9")]);
    let other = world.at("other");
    trained(Path::new(&job), Path::new(&other), None);
    assert!(stated(&["--run", &other], 2).contains("name the run that the reports are about"));
    let transcript = format!("{earlier}/transcript");
    let bytes = fs::read(&transcript).unwrap();
    fs::write(&transcript, &bytes[..bytes.len() - 300]).unwrap();
    assert!(stated(&["--run", &earlier], 2).contains("records, and a head covers 10"));
    let changed = Run::open(Path::new(&run)).unwrap();
    sign_again(&changed, |records| step_mut(records, 8).cursor += 1);
    let said = stated(&["--run", &run], 1);
    assert!(said.contains("do not join the heads over 7 and 10 records"), "{said}");
}

#[test]
fn a_statement_is_about_the_chips_of_one_owner() {
    let world = Drawn::new();
    world.draw("5", "run", "1");
    let report = world.audited(&serde_json::json!([1, 2]));
    let heads = world.at("heads.txt");
    let fine = world.inspected("fine.json", &["--closed", &heads], 0);
    let (all, _) = world.stated(&["--report", &report, "--inspection", &fine]);
    assert!(all["draw"]["owner"].is_null());
    let register = chips::register();
    let owner = |chip: &str| register.chip_at(&chips::serial(chip), u64::MAX).unwrap().owner.to_string();
    let own = owner("A-1");
    let count = (1..=5).filter(|number| owner(&format!("A-{number}")) == own).count();
    let (said, told) = world.stated(&["--report", &report, "--inspection", &fine, "--owner", &own]);
    assert_eq!((&said["draw"]["owner"], &said["draw"]["monitored"]), (&own.clone().into(), &count.into()));
    assert!(told.contains(&format!("of {count} monitored chips of {own} {count} were drawn")), "{told}");
}

#[test]
fn a_drawn_chip_whose_log_nobody_inspected_is_named() {
    let world = Drawn::new();
    world.draw("5", "run", "1");
    let report = world.audited(&serde_json::json!([1, 2]));
    let heads = world.at("heads.txt");
    let fine = world.inspected("fine.json", &["--closed", &heads], 0);
    let (said, told) = world.stated(&["--report", &report, "--inspection", &fine]);
    let apart = &said["draw"]["apart"];
    assert_eq!(apart["notInspected"], serde_json::json!(["A-2"]), "{said:#}");
    assert_eq!(apart["notClosed"].as_array().unwrap().len(), 3);
    // All chips were drawn, and four of five may be anything.
    assert_eq!(said["draw"]["notInOrderAtMost"], 4);
    assert_eq!(said["draw"]["beacon"]["id"], "ours");
    assert!(told.contains("of 5 monitored chips 5 were drawn; the logs of 1 are in order"), "{told}");
    assert!(told.contains("those of at most 80.00 % of the chips are not; 1 have no inspection"), "{told}");
    // An inspection that did not look at the published head, and one that found a defect.
    let open = world.inspected("open.json", &[], 0);
    let (said, _) = world.stated(&["--report", &report, "--inspection", &open]);
    assert_eq!(said["draw"]["apart"]["notInspected"].as_array().unwrap().len(), 2, "{said:#}");
    let rare = world.inspected("rare.json", &["--closed", &heads, "--rate", "10"], 1);
    let (said, _) = world.stated(&["--report", &report, "--inspection", &fine, "--inspection", &rare]);
    assert_eq!(said["draw"]["apart"]["withDefects"], serde_json::json!(["A-1"]), "{said:#}");
    assert_eq!(said["draw"]["notInOrderAtMost"], 5);
    // A match that leaves the log's snapshots open.
    let (log, run, file) = (world.at("chip.log"), world.at("run"), world.at("match.json"));
    fs::write(&file, world.done(&["monitor", "match", &log, "--run", &run, "--json"], 3)).unwrap();
    let (said, told) = world.stated(&["--report", &report, "--inspection", &fine, "--match", &file]);
    assert_eq!(said["draw"]["apart"]["notMatched"], serde_json::json!(["A-1"]), "{said:#}");
    assert!(told.contains("1 have snapshots that nobody matched"), "{told}");
    // Without a draw nobody knows which chips had to be inspected, and the statement says so.
    let (key, out) = (world.at("inspector"), world.at("other.json"));
    let args =
        ["monitor", "statement", "--key", &key, "--out", &out, "--report", &report, "--inspection", &fine];
    assert!(world.done(&args, 0).contains("no draw says which chips had to be inspected"));
}
