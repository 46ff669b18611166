//! A trainer whose hardware computed one step wrongly: found, corrected, and audited as corrected. A correction that comes after the
//! draw, or is not what it says, corrects nothing.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::faulty::{faulty, faulty_at, train_until};
use crate::common::{gpt_job, key, trained};
use crate::{output, path};
use tiebreak_engine::Engine;
use tiebreak_engine::cpu::Cpu;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_run::run::dir::Run;
use tiebreak_train::{Silent, train};

/// A folder with a run whose step 5 a faulty device computed, and the trainer's key.
pub struct Place(tempfile::TempDir);

impl Place {
    pub fn new() -> Place {
        Place::of("step", "")
    }

    fn of(granularity: &str, extra: &str) -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        let job = gpt_job(place.0.path(), granularity, extra);
        faulty_at(&job, Path::new(&place.at("run")), [8; 16], 5);
        fs::write(place.at("key"), key().to_text()).unwrap();
        fs::write(place.at("key.pub"), key().public().to_text()).unwrap();
        place
    }

    pub fn at(&self, name: &str) -> String {
        path(self.0.path(), name)
    }

    /// Runs a command line, whose words that are names of files have a dot before them.
    #[track_caller]
    fn ends(&self, line: &str, exit: i32) -> String {
        let words: Vec<String> = line
            .split_whitespace()
            .map(|word| word.strip_prefix("./").map_or(word.to_string(), |name| self.at(name)))
            .collect();
        let (code, stdout, stderr) = output(&words.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(code, exit, "{line}: {stdout}{stderr}");
        format!("{stdout}{stderr}")
    }

    fn json(&self, line: &str, exit: i32) -> Value {
        serde_json::from_str(&self.ends(&format!("{line} --json"), exit)).unwrap()
    }

    /// Begins the corrected run, trains it, and signs the correction.
    pub fn correct(&self) -> String {
        self.ends("correct begin ./run --step 5 --out ./new --key ./key", 0);
        self.ends("train --out ./new --resume --key ./key --engine cpu", 0);
        self.ends(
            "correct sign ./run --new ./new --step 5 --key ./key --reason device --text a-bit-of-GELU",
            0,
        );
        self.at("run/corrections/step-000000005")
    }
}

/// Corrects a run from a step on, as its trainer: the new run's step is computed by a device, and the others by a right one.
pub fn corrected_by(run: &str, new: &str, step: u32, device: &mut dyn Engine, private: &str) {
    let number = step.to_string();
    let done = |args: &[&str]| {
        let (code, stdout, stderr) = output(&[args, &["--step", &number, "--key", private]].concat());
        assert_eq!(code, 0, "{stdout}{stderr}");
    };
    done(&["correct", "begin", run, "--out", new]);
    let begun = Run::open(Path::new(new)).unwrap();
    train_until(&begun, device, step);
    train(&begun, &mut Cpu::new(2).unwrap(), Some(&key()), &mut Silent).unwrap();
    done(&["correct", "sign", run, "--new", new, "--reason", "device"]);
}

#[test]
fn an_honest_fault_is_corrected_and_audited_as_corrected() {
    let place = Place::new();
    let found = place.ends("audit ./run --verdict ./verdict", 1);
    assert!(found.contains("DIVERGES at step 5"), "{found}");
    let refused = place.ends("correct withdraw ./run --step 5", 2);
    assert!(refused.contains("what is published is not withdrawn"), "{refused}");
    assert!(refused.contains("correct begin"), "{refused}");
    place.ends("audit ./run --sample 1 --seed 7 --plan --draw-out ./before", 0);
    let file = place.correct();
    let checked = place.json("correct check ./run/corrections/step-000000005 --old ./run --new ./new", 0);
    assert_eq!(checked["held_to"], serde_json::json!(["old", "new"]));
    assert_eq!(fs::read(&file).unwrap(), fs::read(place.at("new/corrections/corrects")).unwrap());

    let report = place.json("audit ./run --trainer-key ./key.pub --report ./report --verdict ./none", 3);
    assert_eq!((&report["outcome"]["result"], &report["outcome"]["step"]), (&"corrected".into(), &5.into()));
    assert_eq!(report["outcome"]["kind"], "corrected");
    let [correction] = &report["corrections"].as_array().unwrap()[..] else { panic!("{report}") };
    assert_eq!((&correction["reason"], &correction["text"]), (&"device".into(), &"a-bit-of-GELU".into()));
    assert_eq!(correction["old"]["run"], report["run"]);
    assert_ne!(correction["old"]["record"], correction["new"]["record"]);
    assert_eq!(correction["new"]["run"], checked["correction"]["new"]["run"]);
    let said = report["checked"].to_string();
    assert!(said.contains("step 5 comes out as the corrected run's record says, not as the other"), "{said}");
    assert_eq!(report["replayed"], serde_json::json!([[1, 2], [3, 4]]));
    assert!(!Path::new(&place.at("none")).exists(), "a verdict about what was taken back");
    assert!(report["next"][0]["command"].as_str().unwrap().starts_with("tiebreak audit NEW"), "{report}");
    let merged = place.json("audit merge ./report --unsigned", 3);
    assert_eq!(merged["result"], "undecided");
    let text = place.ends("verify ./run", 3);
    assert!(text.contains("CORRECTED: the records from step 5 on are taken back"), "{text}");
    let text = place.ends("audit ./run --steps 6..7", 2);
    assert!(text.contains("the trainer took back the records from step 5 on"), "{text}");

    // The corrected run is audited on its own, and matches; the count of corrections is there too.
    let text = place.ends("audit ./new --trainer-key ./key.pub", 0);
    assert!(text.contains("MATCHES") && text.contains("corrections: 1"), "{text}");
    assert!(place.ends("verify ./new --trainer-key ./key.pub", 0).contains("corrections: 1"));

    // A draw from before the correction accepts none; one from after it does.
    let late = place.ends("audit ./run --draw ./before --verdict ./late", 1);
    assert!(late.contains("DIVERGES at step 5") && late.contains("NOT ACCEPTED"), "{late}");
    assert!(Path::new(&place.at("late")).exists(), "no verdict of a late correction");
    place.ends("audit ./run --sample 1 --seed 7 --plan --draw-out ./after", 0);
    assert!(place.ends("audit ./run --draw ./after", 3).contains("CORRECTED"));
    // Whoever drew with the correction is not told that there is none.
    fs::rename(&file, place.at("away")).unwrap();
    let absent = place.ends("audit ./run --draw ./after", 2);
    assert!(absent.contains("which is not among the 0 here"), "{absent}");
    assert!(place.ends("audit ./run --correction ./away --draw ./after", 3).contains("CORRECTED"));
}

#[test]
fn a_correction_that_is_not_what_it_says_is_refused() {
    let place = Place::new();
    let (file, other) = (place.correct(), PrivateKey::generate("trainer.example", [6; 32]).unwrap());
    let bytes = fs::read(&file).unwrap();
    fs::rename(&file, place.at("right")).unwrap();
    let audit = "audit ./run --correction";
    for (name, bytes) in [
        ("cut", bytes[..bytes.len() - 1].to_vec()),
        ("longer", [&bytes[..], b"x"].concat()),
        ("edited", bytes.iter().enumerate().map(|(i, b)| if i == 900 { b ^ 1 } else { *b }).collect()),
        ("none", b"no correction".to_vec()),
    ] {
        fs::write(place.at(name), bytes).unwrap();
        place.ends(&format!("{audit} ./{name}"), 4);
        place.ends(&format!("correct check ./{name} --old ./run"), 4);
    }
    fs::write(place.at("other.pub"), other.public().to_text()).unwrap();
    let said = place.ends("correct check ./right --trainer-key ./other.pub", 4);
    assert!(said.contains("it is not signed by the trainer's key"), "{said}");
    let said = place.ends("correct check ./right --old ./run --trainer-key ./other.pub", 4);
    assert!(said.contains("the run names the trainer key"), "{said}");
    let said = place.ends("correct check ./right --old ./new", 4);
    assert!(said.contains("the correction is of run"), "{said}");
    // A run of another trainer, and another history of the same run.
    let job = place.0.path().join("job.toml");
    trained(&job, Path::new(&place.at("honest")), None);
    let said = place.ends("audit ./honest --correction ./right", 4);
    assert!(said.contains("takes back records of run") && said.contains("and this is run"), "{said}");
    faulty_at(&job, Path::new(&place.at("forked")), [8; 16], 4);
    let said = place.ends("audit ./forked --correction ./right", 4);
    assert!(said.contains("the correction is of a head over 10 other records"), "{said}");
    // The corrected run itself is not corrected by it.
    place.ends("audit ./new --correction ./right", 4);
    // What is there is not written over, and no later step is corrected again.
    fs::rename(place.at("right"), &file).unwrap();
    let again = "correct sign ./run --new ./new --key ./key --reason device";
    let said = place.ends(&format!("{again} --step 6"), 2);
    assert!(said.contains("takes back the records from step 5 on already"), "{said}");
    let said = place.ends(&format!("{again} --step 5 --text other"), 2);
    assert!(said.contains("another correction is there"), "{said}");
    let said = place.ends(&format!("{again} --step 3"), 2);
    assert!(said.contains("both runs have the same record of step 3"), "{said}");
    place.ends(&format!("{again} --step 5 --text a-bit-of-GELU"), 0);
}

/// A cheat at step 3 is not undone by a correction from step 5 on, and a wrong step is not begun again as if it were right.
#[test]
fn a_difference_before_the_first_wrong_step_stays_a_divergence() {
    let place = Place::new();
    let late = place.ends("correct begin ./run --step 7 --out ./late --key ./key", 0);
    assert!(late.contains("train --out"), "{late}");
    let job = place.0.path().join("job.toml");
    let cheated = trained(&job, Path::new(&place.at("cheated")), Some("weight-after@3"));
    let [run, new, private] = ["cheated", "other", "key"].map(|name| place.at(name));
    corrected_by(&run, &new, 5, &mut faulty(), &private);
    let other = Run::open(Path::new(&new)).unwrap();
    let found = place.ends("audit ./cheated --verdict ./verdict", 1);
    assert!(found.contains("DIVERGES at step 3") && found.contains("corrections: 1"), "{found}");
    place.ends(
        &format!("verdict check ./verdict --trainer-key {} --run ./cheated", key().public().to_text()),
        1,
    );
    // The corrected run is no better, and its own audit says so.
    assert!(cheated.id != other.id);
    place.ends("audit ./other --verdict ./second", 1);
}

/// Training that meets a wrong record names the ways back.
#[test]
fn a_resume_that_meets_a_wrong_record_names_the_ways_back() {
    let place = Place::new();
    place.ends("correct begin ./run --step 6 --out ./late --key ./key", 0);
    let said = place.ends("train --out ./late --resume --key ./key --engine cpu", 3);
    assert!(said.contains("step 5 came out differently than before"), "{said}");
    assert!(said.contains("correct withdraw") && said.contains("--step 5"), "{said}");
}

/// In the logged profile the new run has the old one's logs, and neither record is chosen by a replay.
#[test]
fn a_logged_run_is_corrected_too() {
    let place = Place::of("operator", "\n[rounding]\n");
    assert!(place.ends("audit ./run --verdict ./verdict", 1).contains("DIVERGES at step 5"));
    place.correct();
    let told = place.ends("audit ./run", 3);
    assert!(told.contains("CORRECTED") && told.contains("or roundings are logged"), "{told}");
    assert!(place.ends("audit ./new --trainer-key ./key.pub", 0).contains("MATCHES"));
}
