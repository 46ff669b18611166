//! A result ends with the next command: for people as a line, in JSON as the field `next`. Both are the same command, and it works.

use std::fs;
use std::path::Path;

use serde_json::Value;

use tiebreak_monitor::register::file::to_text;

use crate::chips;
use crate::command_line::words;
use crate::common::{edit::edited, gpt_job, key, trained};
use crate::{output, path, tiebreak};

#[test]
fn results_end_with_the_next_command_and_it_works() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "operator", "");
    let (run, private) = (path(folder.path(), "my run"), path(folder.path(), "key"));
    let (code, public, stderr) = output(&["key", "new", &private, "--name", "trainer.example"]);
    assert!(
        code == 0 && public.lines().count() == 1 && stderr.contains(&format!("--key {private}")),
        "{public}{stderr}"
    );
    let (code, stdout, stderr) =
        output(&["train", job.to_str().unwrap(), "--out", &run, "--key", &private, "--engine", "cpu"]);
    assert_eq!(code, 0, "{stderr}");
    let next = |text: &str, begins: &str| {
        let line = text
            .lines()
            .find_map(|line| line.trim().strip_prefix(begins))
            .unwrap_or_else(|| panic!("{begins}: {text}"));
        words(line.trim())
    };
    let works = |words: &[String], codes: &[i32]| {
        let arguments: Vec<&str> = words[1..].iter().map(String::as_str).collect();
        let (code, stdout, stderr) = output(&arguments);
        assert!(codes.contains(&code), "{words:?}: {code} {stdout}{stderr}");
        stdout
    };
    let ended = &stdout;
    assert!(next(ended, "audit it with: ").contains(&format!("{private}.pub")), "{ended}");
    works(&next(ended, "export it with: "), &[0]);
    works(&next(ended, "audit it with: "), &[0]);
    let verified = works(&next(ended, "check it with: "), &[0]);
    assert!(verified.contains("signed by trainer.example"), "{verified}");
    works(&next(&verified, "audit it with: "), &[0]);
    // A run that diverges: the verdict is checked, and shown to people.
    let cheated = path(folder.path(), "cheated");
    trained(&job, Path::new(&cheated), Some("operator@5"));
    let trainer = key().public().to_text();
    let verdict = path(folder.path(), "verdict.json");
    let (code, stdout, _) =
        output(&["audit", &cheated, "--engine", "cpu", "--trainer-key", &trainer, "--verdict", &verdict]);
    assert_eq!(code, 1, "{stdout}");
    let checked = works(&next(&stdout, "anybody can check it: "), &[1]);
    assert!(checked.contains("signed by the trainer's key"), "{checked}");
    let mut page = next(&checked, "show it to people: ");
    let place = page.iter().position(|word| word == "report.html").unwrap();
    page[place] = path(folder.path(), "report.html");
    works(&page, &[0]);
    let (_, compared, _) =
        output(&["compare", &run, &cheated, "--verdict", &path(folder.path(), "fork.json")]);
    works(&next(&compared, "audit it with: "), &[0]);
    let (_, replayed, _) = output(&["replay", &cheated, "--step", "5", "--engine", "cpu"]);
    let mut audit = next(&replayed, "write the verdict with: ");
    audit.extend(["--verdict".into(), path(folder.path(), "second.json")]);
    works(&audit, &[1]);
}

/// A folder in which command lines run.
struct Place(tempfile::TempDir);

impl Place {
    fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        let mut command = tiebreak(arguments);
        let output = command.current_dir(self.0.path()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    /// Runs a command line for people and as JSON, and returns the next commands. `OUT` stands for a name that each run has for
    /// itself. Each command of the JSON is a line for people, and the other way round.
    fn next(&self, line: &str, code: i32) -> Vec<Vec<String>> {
        let outcome = |out: &str, more: &[&str]| {
            let line = line.replace("OUT", out);
            let arguments: Vec<&str> = line.split(' ').chain(more.iter().copied()).collect();
            let (found, stdout, stderr) = self.run(&arguments);
            assert_eq!(found, code, "{line}: {stdout}{stderr}");
            (stdout.replace(out, "OUT"), stderr.replace(out, "OUT"))
        };
        let (stdout, stderr) = outcome("out-a", &[]);
        let people = stdout + &stderr;
        let (stdout, _) = outcome("out-b", &["--json"]);
        let json: Value = serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"));
        let next = json["next"].as_array().unwrap_or_else(|| panic!("{line}: no field next in {stdout}"));
        let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("{line}: {stdout}")).to_string();
        for one in next {
            let (why, command) = (text(&one["why"]), text(&one["command"]));
            let note = one.get("note").map_or(String::new(), |note| format!(" ({})", text(note)));
            let shown = |said: &str| said.trim() == format!("{why}: {command}{note}");
            assert!(people.lines().any(shown), "{line}: {why}: {command}{note} is not in\n{people}");
        }
        assert_eq!(people.matches(": tiebreak ").count(), next.len(), "{line}: {people}{stdout}");
        let commands = next.iter().map(|one| text(&one["command"]).replace("OUT", "out-b"));
        commands.map(|command| words(&command)).collect()
    }

    /// Runs the next commands of a command line; the last of them ends with `codes`.
    fn goes_on(&self, line: &str, code: i32, codes: &[i32]) {
        let commands = self.next(line, code);
        assert_eq!(commands.len(), codes.len(), "{line}: {commands:?}");
        for (command, code) in commands.iter().zip(codes) {
            let arguments: Vec<&str> = command[1..].iter().map(String::as_str).collect();
            let (found, stdout, stderr) = self.run(&arguments);
            assert_eq!(found, *code, "{line}: {command:?}: {stdout}{stderr}");
        }
    }
}

#[test]
fn json_has_the_next_commands_that_people_read_and_they_work() {
    let place = Place(tempfile::tempdir().unwrap());
    let job = gpt_job(place.0.path(), "operator", "");
    trained(&job, &place.0.path().join("cheated"), Some("operator@5"));
    let done = |line: &str| {
        let (code, stdout, stderr) = place.run(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(code, 0, "{line}: {stdout}{stderr}");
    };
    done("key new trainer.key --name trainer.example");
    done("train job.toml --out mine --key trainer.key -q");
    place.goes_on("key new OUT.key --name another.example", 0, &[0, 0]);
    place.goes_on("train job.toml --out OUT --key trainer.key", 0, &[0, 0, 0]);
    place.goes_on("verify mine --trainer-key trainer.key.pub", 0, &[0]);
    assert!(place.next("audit mine --steps 1..1", 0).is_empty());
    let cheat = "audit cheated --engine cpu --verdict OUT.json";
    place.goes_on(cheat, 1, &[1]);
    fs::rename(place.0.path().join("out-b.json"), place.0.path().join("found.json")).unwrap();
    place.goes_on("verdict check found.json", 1, &[0]);
    place.goes_on("compare mine cheated", 1, &[0, 1, 0]);
    place.goes_on("replay cheated --step 5 --engine cpu", 1, &[1]);
    place.goes_on("export mine --output OUT-tuned", 0, &[0]);
    place.goes_on("eval mine --samples 3 --report OUT.report", 0, &[0]);
    place.goes_on("predict mine --samples 1..3 --receipt OUT.receipt", 0, &[0]);
    done("train job.toml --out out-a-late -q");
    done("train job.toml --out out-b-late -q");
    place.goes_on("sign OUT-late --key trainer.key", 0, &[0]);
    // A run that ends early goes on.
    let edits =
        [("peak = 1e-2", "peak = 1e38"), ("warmup = 3", "warmup = 0"), ("floor = 1e-3", "floor = 1e38")];
    let diverging = edited(&fs::read_to_string(&job).unwrap(), &edits);
    fs::write(place.0.path().join("diverging.toml"), diverging).unwrap();
    place.goes_on("train diverging.toml --out OUT-stopped", 3, &[0, 0]);
    let register = to_text(&chips::register(), &key());
    fs::write(place.0.path().join("fleet.register"), register).unwrap();
    fs::write(place.0.path().join("heads.txt"), chips::closed(&chips::honest()).to_text()).unwrap();
    fs::write(place.0.path().join("rules.toml"), "[steps]\nmost = 8\n").unwrap();
    let draw = format!(
        "monitor draw --register fleet.register --closed heads.txt --date 2026-11-01 --beacon {}",
        "5f".repeat(32)
    );
    place.goes_on(&format!("{draw} --round 7 --out OUT.json --chips 0 --run mine --segments 2"), 0, &[0, 0]);
    place.goes_on("monitor rules mine rules.toml", 0, &[0]);
    place.goes_on("monitor rules mine cheated rules.toml", 0, &[0, 1]);
    place.goes_on("monitor simulate --chips 1000 --run 1e24 --days 30 --operators 2", 0, &[0]);
    done("monitor register new chips.register --name example --key trainer.key");
    place.goes_on("monitor register new OUT.register --name example --key trainer.key", 0, &[0]);
    let chip = "--serial A-1 --chip-key trainer.key.pub --model h100 --owner Alice --site north";
    place.goes_on(
        &format!("monitor register add chips.register --key trainer.key {chip} --out OUT.longer"),
        0,
        &[0],
    );
    fs::rename(place.0.path().join("out-b.longer"), place.0.path().join("longer.register")).unwrap();
    let shown = place.next("monitor register show longer.register", 0);
    assert!(shown.len() == 1 && shown[0][..3] == ["tiebreak", "monitor", "draw"], "{shown:?}");
    assert!(place.next("monitor register show chips.register", 0).is_empty());
    done("monitor nonce run.nonce");
    let promise = "job.toml --key trainer.key --nonce run.nonce --round 7";
    done(&format!("monitor promise add promises {promise}"));
    let declare = place.next(&format!("monitor promise add OUT.promises {promise}"), 0);
    assert!(declare.len() == 1 && declare[0][..3] == ["tiebreak", "monitor", "declare"], "{declare:?}");
    let beacon = "--nonce run.nonce --beacon 000102030405060708090a0b0c0d0e0f";
    let mut train = place.next(&format!("monitor promise challenge promises {beacon}"), 0).remove(0);
    for word in &mut train {
        *word = match word.as_str() {
            "JOB" => "job.toml".to_string(),
            "RUN" => "promised".to_string(),
            "KEY" => "trainer.key".to_string(),
            _ => continue,
        };
    }
    done(&train[1..].join(" "));
    assert!(
        place
            .next(&format!("monitor promise check promises promised {beacon} --round-time 2099-01-01"), 3)
            .is_empty()
    );
    // These wait for data, or take long: their commands are only parsed.
    let chips = format!("{draw} --round 7 --out OUT.json --chips 2");
    let plan = "monitor plan --chips 1e5 --run chinchilla-1t";
    let parsed =
        ["job new gpt --output OUT.toml", "import cheated-tuned --output OUT-job", "adapters", &chips, plan];
    done("export cheated --output cheated-tuned");
    for line in parsed {
        let commands = place.next(line, 0);
        assert!(!commands.is_empty(), "{line}");
        for command in commands {
            let found = tiebreak::cli::command().try_get_matches_from(&command);
            assert!(found.is_ok(), "{line}: {command:?}: {}", found.unwrap_err());
        }
    }
}
