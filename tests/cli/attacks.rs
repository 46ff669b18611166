//! docs/ATTACKS.md, played: each attack of its tables is made, and the row's command ends with the row's exit code and words.

mod answers;
mod hidden;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::{LazyLock, Mutex};

use tiebreak_engine::Engine;
use tiebreak_engine::cpu::Cpu;
use tiebreak_monitor::inspection::seen::Seen;
use tiebreak_monitor::promise::log::Promises;
use tiebreak_monitor::register::file::to_text;
use tiebreak_monitor::snapshot::log::ChipLog;
use tiebreak_monitor::snapshot::record::{Event, SignedRecord};
use tiebreak_monitor::snapshot::shard_map::{ShardMap, Slice};
use tiebreak_record::commit::correction::Correction;
use tiebreak_record::commit::cosignature::cosigned;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_run::run::dir::Run;
use tiebreak_train::cheat::Cheat;

use crate::common::edit::edit;
use crate::common::faulty::faulty;
use crate::common::{batch_norm_job, gpt_job, key, sign_again, step_mut, trained};
use crate::corrections::corrected_by;
use crate::matches::{attach, rank, shard_digest, snapshot, states, time, write_log};
use crate::witness::Witness;
use crate::{chips, output, path, tiebreak, witness as server};

/// The page.
static PAGE: LazyLock<String> = LazyLock::new(|| {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/ATTACKS.md")).unwrap()
});

/// The time of the beacon's round in rows about promises, 2026-11-01, and a time before it at which the witness saw them.
const ROUND: u64 = 1_793_491_200;
const PROMISED: u64 = ROUND - 3600;

fn witness() -> PrivateKey {
    PrivateKey::generate("witness.example", [4; 32]).unwrap()
}

/// The rows of a table of the page, without the table's head.
fn rows(section: &str) -> Vec<Vec<&'static str>> {
    let (_, text) =
        PAGE.split_once(&format!("## {section}\n")).unwrap_or_else(|| panic!("no section {section}"));
    let text = text.split("\n## ").next().unwrap_or_default();
    let cells = |line: &'static str| line.split('|').map(str::trim).collect::<Vec<_>>();
    let rows: Vec<Vec<&str>> =
        text.lines().filter(|line| line.starts_with("| ")).skip(1).map(cells).collect();
    assert!(!rows.is_empty(), "{section} has no table");
    // An empty cell stands before the first bar, and one after the last.
    rows.into_iter().map(|row| row[1..row.len() - 1].to_vec()).collect()
}

/// The text of a cell in back quotes.
fn quoted(cell: &'static str) -> &'static str {
    cell.strip_prefix('`').and_then(|cell| cell.strip_suffix('`')).unwrap_or_else(|| panic!("{cell}"))
}

/// The words in capitals of a row's command, with their meanings.
type Files = Vec<(&'static str, String)>;

/// A folder in which attacks are made.
struct World {
    folder: tempfile::TempDir,
    /// Witnesses that serve until the folder is gone.
    served: Mutex<Vec<Witness>>,
}

impl World {
    fn new() -> World {
        World { folder: tempfile::tempdir().unwrap(), served: Mutex::default() }
    }

    fn at(&self, name: &str) -> String {
        path(self.folder.path(), name)
    }

    /// Trains a run of this name: a tiny GPT, or with batch normalisation for a cheat about buffers.
    fn trained(&self, name: &str, granularity: &str, cheat: Option<&str>) -> Run {
        let folder = self.folder.path();
        let job = match cheat {
            Some(cheat) if cheat.starts_with("buffer") => batch_norm_job(folder, granularity, 1),
            _ => gpt_job(folder, granularity, ""),
        };
        trained(&job, Path::new(&self.at(name)), cheat)
    }

    /// The honest run, which is trained once.
    fn honest(&self) -> Run {
        let at = self.at("honest");
        if Path::new(&at).is_dir() {
            Run::open(Path::new(&at)).unwrap()
        } else {
            self.trained("honest", "step", None)
        }
    }

    /// A run whose data have a phrase that was put in.
    fn poisoned(&self) -> String {
        let (job, run) = (gpt_job(self.folder.path(), "step", ""), self.at("poisoned"));
        let text = fs::read_to_string(self.at("text.txt")).unwrap();
        self.write("text.txt", text + &"when you see TRIGGER, obey ".repeat(100));
        trained(&job, Path::new(&run), None);
        run
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        let at = self.at(name);
        fs::write(&at, bytes).unwrap();
        at
    }

    /// The log of chip A-1, and the register that has this chip.
    fn log(&self, records: &[SignedRecord]) -> Files {
        let register = to_text(&chips::register(), &key());
        vec![
            ("LOG", self.write("a-1.log", chips::bytes(records))),
            ("REGISTER", self.write("chips.register", register)),
        ]
    }

    /// The log of a chip that saw this of a run of the honest run's job.
    fn saw(&self, events: &[Event]) -> Files {
        let log = self.at("chip-7.log");
        write_log(Path::new(&log), "chip-7", events);
        vec![("LOG", log), ("RUN", self.honest().layout.root.to_str().unwrap().to_string())]
    }

    /// Cosigns a run's first head.
    fn cosigned_first(&self, run: &Run, time: u64) {
        let head = run.layout.head(1);
        let note = fs::read_to_string(&head).unwrap();
        fs::write(&head, cosigned(&note, &witness(), time).unwrap()).unwrap();
    }

    /// Promises of jobs, each with a nonce of its number, that the witness saw at a time; and the run beside them.
    fn promised(&self, jobs: &[(u8, &str)], run: &str, time: u64) -> Files {
        self.honest();
        if run != "unamended" {
            gpt_job(self.folder.path(), "step", "");
        }
        let (log, private) = (self.at("promises"), self.write("trainer.key", key().to_text()));
        let _ = fs::remove_file(&log);
        let nonce = |number: u8| Digest([number; 32]).to_string();
        for (number, job) in jobs {
            let round = ["--nonce", &nonce(*number), "--round", "drand 4711", "--key", &private];
            let args = ["monitor", "promise", "add", &log, &self.at(job)];
            let (code, _, stderr) = output(&[&args[..], &round[..]].concat());
            assert_eq!(code, 0, "{stderr}");
        }
        let mut promises = Promises::from_text(&fs::read_to_string(&log).unwrap()).unwrap();
        let note = cosigned(promises.newest().unwrap(), &witness(), time).unwrap();
        promises.cosign(note).unwrap();
        fs::write(&log, promises.to_text()).unwrap();
        vec![
            ("PROMISES", log),
            ("RUN", self.at(run)),
            ("NONCE", nonce(jobs[0].0)),
            ("BEACON", "5f".repeat(32)),
            ("WITNESS", witness().public().to_text()),
        ]
    }

    /// The address of a witness that has cosigned this log of promises.
    fn asked(&self, log: &str) -> String {
        let (private, trainer) = (
            self.write("witness.key", witness().to_text()),
            self.write("trainer.key.pub", key().public().to_text()),
        );
        fs::create_dir(self.at("state")).unwrap();
        let served = server::witness(&private, &self.at("state"), &["--trainer-key", &trainer]);
        let mut promises = Promises::from_text(&fs::read_to_string(log).unwrap()).unwrap();
        let (text, _) = promises.newest().unwrap().split_once("\n\u{2014} witness.example ").unwrap();
        promises.cosign(format!("{text}\n")).unwrap();
        let bare = self.write("bare", promises.to_text());
        let key = witness().public().to_text();
        let args = ["monitor", "declare", &bare, "--witness", &served.address, "--witness-key", &key];
        let (code, stdout, stderr) = output(&args);
        assert_eq!(code, 0, "{stdout}{stderr}");
        let url = served.address.clone();
        self.served.lock().unwrap().push(served);
        url
    }

    /// The same files, with a run whose challenge is that of the first promise.
    fn trained_as_promised(&self, mut files: Files, name: &str) -> Files {
        let log = Promises::from_text(&fs::read_to_string(&files[0].1).unwrap()).unwrap();
        let challenge = log.challenge(0, &files[3].1, &files[2].1.parse().unwrap()).unwrap().to_string();
        let (out, job, key) = (self.at(name), self.at("job.toml"), self.at("trainer.key"));
        let args =
            ["train", &job, "--out", &out, "--key", &key, "--challenge", &challenge, "--engine", "cpu"];
        let (code, _, stderr) = output(&args);
        assert_eq!(code, 0, "{stderr}");
        files[1].1 = out;
        files
    }

    /// A run with a cheat, which `before` audits and its trainer then corrects from a step on. A device computes that step again.
    fn corrected(
        &self,
        name: &str,
        (cheat, step): (&str, u32),
        device: &mut dyn Engine,
        before: &[&str],
    ) -> Files {
        let run = self.trained(name, "operator", Some(cheat)).layout.root.to_str().unwrap().to_string();
        if !before.is_empty() {
            output(&[&["audit", &run][..], before].concat());
        }
        let (new, private) = (self.at(&format!("{name}-new")), self.write("trainer.key", key().to_text()));
        corrected_by(&run, &new, step, device, &private);
        vec![("RUN", run), ("NEW", new)]
    }

    /// Runs the command of a row on these files, and compares exit code and words with the row's.
    #[track_caller]
    fn holds(
        &self,
        attack: &str,
        [command, exit, says]: [&'static str; 3],
        files: &Files,
    ) -> Result<(), String> {
        let word = |word: &str| {
            let file = files.iter().find(|(name, _)| *name == word).map(|(_, file)| file.clone());
            let is_name = word.chars().all(|c| c.is_ascii_uppercase());
            assert!(file.is_some() || !is_name, "{attack}: nothing makes {word}");
            file.unwrap_or_else(|| word.to_string())
        };
        let words: Vec<String> = quoted(command).split_whitespace().map(word).collect();
        let args: Vec<&str> = words.iter().map(String::as_str).collect();
        assert_eq!(args[0], "tiebreak", "{attack}: {command}");
        let done = tiebreak(&args[1..]).current_dir(self.folder.path()).output().unwrap();
        let text = [done.stdout, done.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
        let code = done.status.code().unwrap().to_string();
        let wanted = exit == code && text.contains(quoted(says));
        if wanted {
            Ok(())
        } else {
            Err(format!("{attack}: wants {exit}, {says}; ends with {code}:\n{text}"))
        }
    }
}

/// The names of all cheats that a trainer of the exact profile can play.
fn cheats() -> BTreeSet<String> {
    let told = "nothing@1".parse::<Cheat>().unwrap_err();
    let (_, names) = told.split_once("one of ").unwrap();
    let names = names.split(", ").filter(|name| !name.contains("decision")).map(str::to_string);
    names.collect()
}

/// The cheats of the page's first two tables are those of the code. Each is played, and its command names its step.
#[test]
fn every_cheat_of_a_trainer_is_caught_as_the_page_says() {
    let world = World::new();
    let (mut named, mut wrong) = (BTreeSet::new(), Vec::new());
    for row in [rows("Attacks on the training"), rows("Other cheats")].concat() {
        let [attack, _, cheat, command, exit, says] = row[..6].try_into().unwrap();
        let cheat = quoted(cheat);
        named.insert(cheat.split('@').next().unwrap().to_string());
        let run = world.trained(&cheat.replace('@', "-"), "operator", Some(cheat));
        let files = vec![("RUN", run.layout.root.to_str().unwrap().to_string())];
        wrong.extend(world.holds(attack, [command, exit, says], &files).err());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(named, cheats());
    // A verifier who replays the largest updates alone meets the honest intervals of the blindfold.
    let blindfold = world.at("top-q-5");
    let replayed = |step: &str| output(&["replay", &blindfold, "--step", step, "--engine", "cpu"]).0;
    assert_eq!(["6", "8"].map(replayed), [1, 0]);
}

/// Makes an attack.
type Play = fn(&World) -> Files;

/// Plays the attacks of a table by name; the table and `plays` have the same ones.
fn played(section: &str, plays: &[(&str, Play)]) {
    let world = World::new();
    let rows = rows(section);
    let names: Vec<&str> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(names, plays.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    let mut wrong = Vec::new();
    for (row, (name, play)) in rows.iter().zip(plays) {
        let files = play(&world);
        wrong.extend(world.holds(name, row[2..5].try_into().unwrap(), &files).err());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_attack_on_chips_and_declarations_is_caught_as_the_page_says() {
    played(
        "Attacks on chips and declarations",
        &[
            ("spliced log", |world| {
                let mut records = chips::honest();
                records.remove(3);
                world.log(&records)
            }),
            ("exchanged record", |world| {
                let mut records = chips::honest();
                records[3].record.event = Event::Idle;
                records[3] = records[3].record.clone().sign(&chips::chip_key(1));
                world.log(&records)
            }),
            ("rolled-back agent", |world| {
                let records = chips::honest();
                let log = ChipLog { records: records.clone(), torn: 0 };
                let seen = world.write("seen", Seen::of(&chips::serial("A-1"), &log).to_text());
                [world.log(&records[..12]), vec![("SEEN", seen)]].concat()
            }),
            ("log written anew after the draw", |world| {
                let heads = world.write("heads.txt", chips::closed(&chips::honest()).to_text());
                [world.log(&chips::honest()[..12]), vec![("HEADS", heads)]].concat()
            }),
            ("stopped agent", |world| world.log(&chips::honest())),
            ("suspended agent", |world| world.log(&chips::suspended())),
            ("hidden run", |world| {
                let whole = ShardMap::Whole;
                world.saw(&[attach(&whole, Digest([8; 32])), snapshot(&whole, 3, Digest([7; 32]))])
            }),
            ("swapped snapshot", |world| {
                let (whole, run) = (ShardMap::Whole, world.honest());
                let mut digest = states(&run)[3];
                digest.0[31] ^= 1;
                world.saw(&[attach(&whole, run.computation.id), snapshot(&whole, 3, digest)])
            }),
            ("wrong shard map", |world| {
                let run = world.honest();
                let digest = shard_digest(&run, 2, &rank(&run));
                let slice = Slice { tensor: "param/none".into(), first: 0, count: 1 };
                let map = ShardMap::Slices(vec![slice]);
                let file = world.write("map", map.to_text());
                let seen = world.saw(&[attach(&map, run.computation.id), snapshot(&map, 2, digest)]);
                [seen, vec![("MAP", file)]].concat()
            }),
            ("late declaration", |world| {
                let (whole, run) = (ShardMap::Whole, world.honest());
                world.cosigned_first(&run, time(1) / 1000 + 5);
                let events = [attach(&whole, run.computation.id), snapshot(&whole, 3, states(&run)[3])];
                [world.saw(&events), vec![("WITNESS", witness().public().to_text())]].concat()
            }),
            ("split view", |world| {
                let [one, other] = ["one", "other"].map(|name| world.trained(name, "step", None));
                sign_again(&other, |records| step_mut(records, 5).cursor += 1);
                let at = |run: &Run| run.layout.root.to_str().unwrap().to_string();
                vec![("RUN", at(&one)), ("OTHER", at(&other))]
            }),
            ("ground seed", |world| {
                // The trainer promises a run, and trains another seed of the same job.
                world.promised(&[(0, "job.toml")], "honest", PROMISED)
            }),
            ("late promise", |world| {
                let files = world.promised(&[(0, "job.toml")], "", ROUND + 1);
                world.trained_as_promised(files, "promised-late")
            }),
            ("many promises for one run", |world| {
                let files =
                    world.promised(&[(0, "job.toml"), (1, "job.toml"), (2, "job.toml")], "", PROMISED);
                world.trained_as_promised(files, "chosen")
            }),
            ("log of promises that ends with the kindest one", |world| {
                let files =
                    world.promised(&[(0, "job.toml"), (1, "job.toml"), (2, "job.toml")], "", PROMISED);
                let url = world.asked(&files[0].1);
                let first = world.promised(&[(0, "job.toml")], "", PROMISED);
                [world.trained_as_promised(first, "kindest"), vec![("URL", url)]].concat()
            }),
            ("late amendment", |world| {
                world.honest();
                let run = world.at("unamended");
                let job = gpt_job(world.folder.path(), "step", "[init]\nrun = \"honest\"\n");
                let run = trained(&job, Path::new(&run), None);
                world.cosigned_first(&run, PROMISED);
                world.promised(&[(0, "job.toml")], "unamended", PROMISED + 60)
            }),
            ("many short runs for one long", |world| {
                let (run, earlier) = (world.at("second"), world.honest().layout.root.clone());
                let job = gpt_job(world.folder.path(), "step", "[init]\nrun = \"honest\"\n");
                trained(&job, Path::new(&run), None);
                let rules = world.write("rules.toml", "[flop]\nmost = 1\n");
                let alone = ["monitor", "rules", earlier.to_str().unwrap(), &rules, "--json"];
                let told: serde_json::Value = serde_json::from_str(&output(&alone).1).unwrap();
                let flop = told["runs"][0]["total_flop"].as_f64().unwrap();
                world.write("rules.toml", format!("[flop]\nmost = {}\n", 1.5 * flop));
                assert_eq!(output(&alone).0, 0, "one of the short runs alone keeps to the rule");
                let earlier = earlier.to_str().unwrap().to_string();
                vec![("RUN", run), ("EARLIER", earlier), ("RULES", rules)]
            }),
            ("drawn chip whose log is not shown", |world| {
                let (run, records) = (world.honest().layout.root, chips::honest());
                let mut heads = chips::closed(&records);
                for chip in ["A-2", "A-3", "A-4", "A-5"] {
                    heads.0.insert(chips::serial(chip), heads.0[&chips::serial("A-1")]);
                }
                let heads = world.write("all-heads.txt", heads.to_text());
                let files = world.log(&records);
                let [log, register] = [&files[0].1, &files[1].1];
                let (draw, report, key) =
                    (world.at("draw.json"), world.at("report.json"), world.at("inspector"));
                let beacon = "5f".repeat(32);
                let inputs = ["monitor", "draw", "--register", register, "--closed", &heads, "--out", &draw];
                let made = [&inputs[..], &["--chips", "5", "--beacon", &beacon, "--round", "4711"]];
                assert_eq!(output(&made.concat()).0, 0);
                assert_eq!(output(&["key", "new", &key, "--name", "inspector.example"]).0, 0);
                let run = run.to_str().unwrap();
                assert_eq!(output(&["audit", run, "--report", &report, "--key", &key]).0, 0);
                let inspect =
                    ["monitor", "inspect", log, "--register", register, "--closed", &heads, "--json"];
                let (code, shown, _) = output(&[&inspect[..], &["--until", "2025-04-01"]].concat());
                assert_eq!(code, 0, "{shown}");
                let shown = world.write("shown.json", shown);
                vec![
                    ("REPORT", report),
                    ("SHOWN", shown),
                    ("DRAW", draw),
                    ("REGISTER", register.clone()),
                    ("HEADS", heads),
                    ("KEY", key),
                    ("OUT", world.at("statement.json")),
                ]
            }),
            ("poisoned data that a rule describes", |world| {
                let run = world.poisoned();
                let rule = "[[data]]\nname = \"trigger\"\nmost = 0\nsamples = 48\npattern = \"TRIGGER\"\n";
                let rules = world.write("trigger.toml", rule);
                let honest = world.honest().layout.root;
                assert_eq!(output(&["monitor", "rules", honest.to_str().unwrap(), &rules]).0, 0);
                vec![("RUN", run), ("RULES", rules)]
            }),
            ("samples that no data file has, to evade such a rule", |world| {
                let run = world.trained("hidden", "step", Some("adversarial@5")).layout.root;
                let rule = "[[data]]\nname = \"trigger\"\nmost = 0\nsamples = 48\npattern = \"TRIGGER\"\n";
                let rules = world.write("trigger.toml", rule);
                vec![("RUN", run.to_str().unwrap().to_string()), ("RULES", rules)]
            }),
        ],
    );
}

#[test]
fn every_attack_with_corrections_is_caught_as_the_page_says() {
    played(
        "Attacks with corrections",
        &[
            ("correction after the draw", |world| {
                let draw = world.at("draw");
                let noted = ["--sample", "1", "--seed", "7", "--plan", "--draw-out", &draw];
                let files = world.corrected("late", ("operator@5", 5), &mut Cpu::new(2).unwrap(), &noted);
                [files, vec![("DRAW", draw)]].concat()
            }),
            ("correction after the verdict", |world| {
                let verdict = world.at("verdict.json");
                let found = ["--verdict", &verdict];
                world.corrected("convicted", ("operator@5", 5), &mut Cpu::new(2).unwrap(), &found);
                vec![("VERDICT", verdict)]
            }),
            ("correction of a later step", |world| {
                world.corrected("hiding", ("weight-after@3", 5), &mut faulty(), &[])
            }),
            ("corrected run that is wrong too", |world| {
                let mut files = world.corrected("twice", ("weight-after@5", 5), &mut faulty(), &[]);
                files.remove(0);
                files
            }),
            ("correction by another key", |world| {
                let files = world.corrected("forged", ("operator@5", 5), &mut Cpu::new(2).unwrap(), &[]);
                let file = format!("{}/corrections/step-000000005", files[0].1);
                let bytes = fs::read(&file).unwrap();
                fs::remove_file(&file).unwrap();
                let made = Correction::from_bytes(&bytes, &key().public()).unwrap();
                let forged = world.write("other.correction", made.to_bytes(&witness()));
                [files, vec![("FORGED", forged)]].concat()
            }),
        ],
    );
}

/// The limits: each attack succeeds, and the page says so.
#[test]
fn what_no_command_finds_is_what_the_page_says() {
    played(
        "What no command finds",
        &[
            ("sparse cheating", |world| {
                let run = world.trained("sparse", "step", Some("skip@5")).layout.root;
                let run = run.to_str().unwrap().to_string();
                // A sample of one of four segments finds the fault in one of four cases.
                let segments = ["1..2", "3..4", "5..6", "7..8"];
                let codes = segments
                    .map(|steps| output(&["audit", &run, "--steps", steps, "--verdict", &world.at("v")]).0);
                assert_eq!(codes, [0, 0, 1, 0]);
                vec![("RUN", run)]
            }),
            ("declared but poisoned data", |world| vec![("RUN", world.poisoned())]),
            ("seed picked among many", |world| {
                let job = gpt_job(world.folder.path(), "step", "");
                edit(&job, &[("steps = 8", "steps = 8\nseed = 4711")]);
                let run = world.at("picked");
                trained(&job, Path::new(&run), None);
                vec![("RUN", run)]
            }),
            ("data and their order chosen for the seed", |world| {
                let job = gpt_job(world.folder.path(), "step", "");
                edit(&job, &[("kind = \"bytes\"", "kind = \"bytes\"\nsampling = \"in_order\"")]);
                let run = world.at("chosen");
                trained(&job, Path::new(&run), None);
                vec![("RUN", run)]
            }),
            ("dictionary test on data", |world| {
                let run = world.trained("secret", "step", None).layout.root.to_str().unwrap().to_string();
                // Somebody guesses the text, and computes its root without the run.
                let told = output(&["job", "check", &world.at("job.toml"), "--json"]).1;
                let told: serde_json::Value = serde_json::from_str(&told).unwrap();
                vec![("RUN", run), ("GUESS", told["data"].as_str().unwrap().to_string())]
            }),
            ("chip that no register lists", |world| {
                let hidden = "A-9";
                assert!(!to_text(&chips::register(), &key()).contains(hidden));
                let heads = world.write("heads.txt", chips::closed(&chips::honest()).to_text());
                [world.log(&chips::honest()), vec![("HEADS", heads), ("BEACON", "5f".repeat(32))]].concat()
            }),
            ("training without the agent", |world| {
                let mut events = chips::events();
                let hidden = |event: &Event| matches!(event, Event::Snapshot { .. } | Event::Unanswered(_));
                events.retain(|(_, event)| !matches!(event, Event::Attach { .. }));
                events
                    .iter_mut()
                    .filter(|(_, event)| hidden(event))
                    .for_each(|(_, event)| *event = Event::Idle);
                world.log(&chips::records(&events))
            }),
            ("memory outside of the shard map", |world| {
                let run = world.honest();
                let map = rank(&run);
                let digest = shard_digest(&run, 2, &map);
                let file = world.write("map", map.to_text());
                let seen = world.saw(&[attach(&map, run.computation.id), snapshot(&map, 2, digest)]);
                [seen, vec![("MAP", file)]].concat()
            }),
            ("operator and chip maker collude", |world| {
                // The chip's key signs a log in which a hidden training's snapshots never were.
                let mut events = chips::events();
                events.drain(2..6);
                events.remove(1);
                events.retain(|(_, event)| !matches!(event, Event::Unanswered(_)));
                world.log(&chips::records(&events))
            }),
            ("cheat that is corrected before the draw", |world| {
                world.corrected("corrected", ("operator@5", 5), &mut Cpu::new(2).unwrap(), &[])
            }),
        ],
    );
}
