//! `tiebreak demo --monitor`: both cheats are found, nobody else is accused, and what remains can be checked by anybody.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::command_line::words;
use crate::pages::page;
use crate::{output, path, tiebreak};

/// Lets a month pass in a new folder: the folder and the result.
fn month(folder: &Path, more: &[&str]) -> (String, Value) {
    let dir = path(folder, "month");
    let (code, stdout, stderr) = output(&[&["demo", "--monitor", "--dir", &dir, "--json"], more].concat());
    assert_eq!(code, 0, "{stdout}{stderr}");
    (dir, serde_json::from_str(&stdout).unwrap())
}

fn read(dir: &str, name: &str) -> Value {
    serde_json::from_slice(&fs::read(format!("{dir}/{name}")).unwrap()).unwrap()
}

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect()
}

/// The number of a chip in its serial number.
fn number(serial: &str) -> u32 {
    serial.rsplit_once('-').unwrap().1.parse().unwrap()
}

/// Runs a command of the page in the folder of the page.
fn in_folder(dir: &str, line: &str, wanted: i32) -> String {
    let words = words(line);
    let arguments: Vec<&str> = words[1..].iter().map(String::as_str).collect();
    let output = tiebreak(&arguments).current_dir(dir).output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert_eq!(output.status.code(), Some(wanted), "{line}: {said}");
    said
}

#[test]
fn a_hidden_run_and_a_split_run_are_found_and_nobody_else_is_accused() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, result) = month(folder.path(), &[]);
    assert_eq!((&result["as_expected"], &result["chips"]), (&true.into(), &60.into()), "{result:#}");
    assert!(result["probability"].as_f64().unwrap() >= 0.99, "{result:#}");
    let [alder, birch, cedar] = [0, 1, 2].map(|i| &result["operators"][i]);
    // Only chips that the hidden run used are accused, and only of what nobody declared.
    let matched = read(&dir, "matches/birch.json");
    let weights = |list: &str| -> Vec<(String, u32)> {
        let all = matched[list].as_array().unwrap().iter().filter(|one| one["weight"] != "matched");
        all.map(|one| (one["kind"].as_str().unwrap().into(), number(one["chip"].as_str().unwrap()))).collect()
    };
    let found = [weights("snapshots"), weights("silent")].concat();
    assert!(!found.is_empty(), "{matched:#}");
    for (kind, chip) in &found {
        assert!(["undeclared", "undeclared_training"].contains(&&kind[..]) && *chip > 8, "{kind} {chip}");
    }
    let drawn = texts(&birch["drawn"]);
    let used = drawn.iter().filter(|chip| number(chip) > 8).count();
    assert!(used > 0, "{drawn:?}");
    assert_eq!(birch["snapshots"]["undeclared"], found.len(), "{birch:#}");
    for honest in [alder, cedar] {
        assert_eq!(
            (&honest["snapshots"]["undeclared"], &honest["defects"]),
            (&0.into(), &0.into()),
            "{honest:#}"
        );
    }
    // The second half of the split run violates the limit, by the sum, and neither half alone does.
    let rules = read(&dir, "rules/cedar.json");
    let limit = result["limit_flop"].as_f64().unwrap();
    let runs = rules["runs"].as_array().unwrap();
    assert!(runs.iter().all(|run| run["flop"].as_f64().unwrap() < limit), "{rules:#}");
    let above: Vec<&Value> = runs.iter().filter(|run| run["total_flop"].as_f64().unwrap() > limit).collect();
    assert_eq!((above.len(), &above[0]["folder"]), (1, &"runs/cedar-2".into()), "{rules:#}");
    assert_eq!(cedar["violated"].as_array().unwrap().len(), 1, "{cedar:#}");
    for kept in [alder, birch] {
        assert_eq!(kept["violated"], Value::Array(Vec::new()), "{kept:#}");
    }
    // The draw is the same everywhere.
    let seed = read(&dir, "draw.json")["seed"].as_str().unwrap().to_string();
    assert_eq!(seed, SEED, "training, logs or the draw's rule have changed");
    let next: Vec<&str> =
        result["next"].as_array().unwrap().iter().map(|next| next["command"].as_str().unwrap()).collect();
    for ((command, begins), wanted) in next
        .iter()
        .zip([" monitor draw ", " monitor match ", " monitor rules ", " monitor statement "])
        .zip([0, 1, 1, 0])
    {
        assert!(command.contains(begins), "{command}");
        let words = words(command);
        let arguments: Vec<&str> = words[1..].iter().map(String::as_str).collect();
        let (code, stdout, stderr) = output(&arguments);
        assert_eq!(code, wanted, "{command}: {stdout}{stderr}");
    }
    assert_eq!(next.len(), 4, "{next:?}");
    on_the_page(&dir, &result);
    by_the_draw(&dir, &result);
    // A draw over other heads is not the one that was made.
    let heads = fs::read_to_string(format!("{dir}/heads.txt")).unwrap();
    let shorter: String = heads.split_inclusive('\n').filter(|line| !line.starts_with("BIRCH-20 ")).collect();
    fs::write(format!("{dir}/other.txt"), shorter).unwrap();
    let check = "tiebreak monitor draw --register chips.register --closed other.txt --check draw.json";
    assert!(in_folder(&dir, check, 1).contains("DIFFERS"));
    let (code, _, stderr) = output(&["demo", "--monitor", "--dir", &dir]);
    assert!(code == 2 && stderr.contains("is there already"), "{stderr}");
}

/// Each statement is by the draw, about the chips of its operator alone: those that were drawn of twenty, and what follows.
fn by_the_draw(dir: &str, result: &Value) {
    for (operator, run) in [(0, "alder"), (1, "birch"), (2, "cedar-1"), (2, "cedar-2")] {
        let (operator, file) = (&result["operators"][operator], format!("{dir}/statements/{run}.dsse.json"));
        let key = format!("{dir}/keys/inspector.pub");
        let (code, stdout, stderr) =
            output(&["monitor", "statement", "--check", &file, "--key", &key, "--json"]);
        assert_eq!(code, 0, "{stderr}");
        let said: Value = serde_json::from_str(&stdout).unwrap();
        let draw = &said["predicate"]["draw"];
        let mut drawn = texts(&draw["drawn"]);
        drawn.sort_unstable();
        assert_eq!((&draw["owner"], &draw["monitored"]), (&operator["operator"], &20.into()), "{draw:#}");
        assert_eq!(drawn, texts(&operator["drawn"]));
        let accused = texts(&draw["apart"]["notMatched"]).len();
        assert_eq!(accused > 0, run == "birch", "{draw:#}");
        let most = draw["notInOrderAtMost"].as_u64().unwrap();
        assert!(most >= accused as u64 && most < 20, "{draw:#}");
        let text = draw["text"].as_str().unwrap();
        let begins = format!(
            "of 20 monitored chips of {} {} were drawn",
            operator["operator"].as_str().unwrap(),
            drawn.len()
        );
        assert!(text.starts_with(&begins), "{text}");
    }
    let (file, key) = (format!("{dir}/audits/alder.json"), format!("{dir}/keys/inspector"));
    let mut args: Vec<String> = vec!["monitor".into(), "statement".into(), "--report".into(), file];
    for (option, file) in [("draw", "draw.json"), ("register", "chips.register"), ("closed", "heads.txt")] {
        args.extend([format!("--{option}"), format!("{dir}/{file}")]);
    }
    let out = format!("{dir}/nobody.json");
    args.extend(["--key", &key, "--out", &out, "--owner", "Dogwood"].map(String::from));
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (code, _, stderr) = output(&args);
    assert!(code == 2 && stderr.contains("the owners are Alder, Birch, Cedar"), "{stderr}");
}

/// The seed of the draw.
const SEED: &str = "0dbd1d7c4c8d38f605f6aa1924f93d2119ea855c475f0c29e2e079401d568b8a";

/// The page says what the files say, and its commands work in its folder.
fn on_the_page(dir: &str, result: &Value) {
    let html = page(&format!("{dir}/report.html"));
    let samples = result["samples"].as_u64().unwrap() as usize;
    let drawn: Vec<&str> = texts(&result["drawn"]);
    assert_eq!(drawn.len(), samples);
    for said in [
        "Birch and Cedar broke the rules.",
        "Alder has nothing to answer for.",
        &format!("{samples} of 60 chips were drawn."),
        "the month of 30 days passed in seconds, by a simulated clock",
        "follow from the seed 0",
        "What this does not show",
        "class=\"curve c0\"",
        "of 4 segments 4 were replayed exactly, so with confidence 0.95 at most 0.00 % deviate",
    ] {
        assert!(html.contains(said), "{said}\n{html}");
    }
    for chip in &drawn {
        assert!(html.contains(&format!("\" title=\"{chip}\"")) && html.contains(&format!(">{chip}</text>")));
    }
    let squares = |class: &str| html.matches(&format!("<i class=\"{class}\" title=")).count();
    assert_eq!(squares("ground") + samples, 60);
    let birch = read(dir, "matches/birch.json");
    let all = ["snapshots", "silent"].into_iter().flat_map(|list| birch[list].as_array().unwrap());
    let mut accused: Vec<&str> =
        all.filter(|one| one["weight"] == "finding").map(|one| one["chip"].as_str().unwrap()).collect();
    accused.sort_unstable();
    accused.dedup();
    assert_eq!((squares("differs"), squares("done")), (accused.len(), samples - accused.len()));
    let commands: Vec<&str> = html.lines().map(|line| line.trim_start_matches("<pre>")).collect();
    let commands: Vec<&str> = commands.into_iter().filter(|line| line.starts_with("tiebreak ")).collect();
    assert_eq!(commands.len(), 5, "{commands:?}");
    for command in commands {
        let said = in_folder(dir, command.trim_end_matches("</pre>"), 0);
        assert!(said.contains("MATCHES") || said.contains("is signed by inspector.demo"), "{said}");
    }
}

#[test]
fn a_month_without_cheats_accuses_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, result) = month(folder.path(), &["--honest", "--seed", "3"]);
    for operator in result["operators"].as_array().unwrap() {
        assert_eq!((&operator["cheat"], &operator["as_expected"]), (&"none".into(), &true.into()));
        assert_eq!((&operator["snapshots"]["undeclared"], &operator["defects"]), (&0.into(), &0.into()));
    }
    assert!(!Path::new(&dir).join("hidden/birch-hidden").exists());
    let draw = read(&dir, "draw.json");
    assert!(
        draw["seed"] != SEED && draw["question"]["randomness"]["beacon"]["round"] == "demo-seed-3",
        "{draw:#}"
    );
    let html = page(&format!("{dir}/report.html"));
    for said in [
        "Nothing was found that was not declared",
        "Alder, Birch and Cedar have nothing to answer for.",
        "follow from the seed 3",
    ] {
        assert!(html.contains(said), "{said}\n{html}");
    }
    assert!(!html.contains("class=\"differs\" title"), "{html}");
}
