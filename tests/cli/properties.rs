//! Rules about data in `tiebreak monitor rules`: digests, patterns and commands over samples that a seed draws, of honest runs and others.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tiebreak_monitor::register::file::to_text;

use crate::answers::tokenizer;
use crate::common::edit::edit;
use crate::common::{gpt_job, key, resnet_job, sign_again, step_mut, trained};
use crate::{chips, output, path, tiebreak};

/// Samples of the run of [`gpt_job`]: eight steps of three micro-batches of two.
const SAMPLES: u64 = 48;

/// A folder with the file of rules.
struct World(tempfile::TempDir);

impl World {
    fn new() -> World {
        World(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> String {
        path(self.0.path(), name)
    }

    /// Trains a run of [`gpt_job`] after an edit of its job.
    fn trained(&self, name: &str, edits: &[(&str, &str)], cheat: Option<&str>) {
        let job = gpt_job(self.0.path(), "step", "");
        edit(&job, edits);
        trained(&job, Path::new(&self.at(name)), cheat);
    }

    /// Exit code, and JSON, of one rule on a run.
    fn ruled(&self, run: &str, rule: &str, more: &[&str]) -> (i32, Value) {
        let (rules, run) = (self.at("rules.toml"), self.at(run));
        fs::write(&rules, format!("[[data]]\nname = \"it\"\n{rule}\n")).unwrap();
        let (code, stdout, stderr) = output(&[&["monitor", "rules", &run, &rules, "--json"], more].concat());
        (code, serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{code} {stderr}")))
    }
}

fn share(result: &Value) -> [f64; 2] {
    ["least", "most"].map(|bound| result["rules"][0]["share"][bound].as_f64().unwrap())
}

#[track_caller]
fn undecided((code, result): (i32, Value), says: &str) {
    let evidence = result["rules"][0]["evidence"].as_str().unwrap();
    assert!(code == 3 && evidence.contains(says), "{code}: {evidence}");
}

#[test]
fn a_pattern_is_counted_over_the_samples_that_training_read() {
    let world = World::new();
    world.trained("run", &[], None);
    // As many samples as there are: each is opened once, and the share is exact.
    let whole = "samples = 48\n";
    let (code, none) = world.ruled("run", &format!("{whole}most = 0\npattern = \"[^a-y]\""), &[]);
    assert_eq!((code, share(&none)), (0, [0.0, 0.0]), "{none:#}");
    let (code, all) = world.ruled("run", &format!("{whole}most = 0.99\npattern = \"^[a-y]{{13}}$\""), &[]);
    assert_eq!((code, share(&all)), (1, [1.0, 1.0]), "{all:#}");
    // The evidence names each sample by place and digest: that of thirteen bytes of the text.
    let text = fs::read(world.at("text.txt")).unwrap();
    let windows: BTreeSet<String> =
        text.windows(13).map(|window| blake3::hash(window).to_hex().to_string()).collect();
    let against = all["rules"][0]["share"]["against"].as_array().unwrap();
    let places: BTreeSet<_> =
        against.iter().map(|one| (one["step"].as_u64(), one["place"].as_u64())).collect();
    assert_eq!((against.len() as u64, places.len() as u64), (SAMPLES, SAMPLES));
    assert!(against.iter().all(|one| windows.contains(one["digest"].as_str().unwrap())), "{all:#}");
    let evidence = all["rules"][0]["evidence"].as_str().unwrap();
    assert!(evidence.contains("48 of 48 drawn samples") && evidence.contains("sample 0 of step 1, digest "));

    // Some letters' windows: what a list of their digests counts is what the pattern counts.
    let pattern = |rule: &str| world.ruled("run", &format!("{rule}most = 0\npattern = \"^[a-h]\""), &[]);
    let (code, found) = pattern(whole);
    let named = found["rules"][0]["share"]["against"].as_array().unwrap();
    let list: Vec<String> =
        named.iter().map(|one| format!("{}  window\n", one["digest"].as_str().unwrap())).collect();
    fs::write(world.at("list"), list.concat()).unwrap();
    let (_, listed) = world.ruled("run", &format!("{whole}most = 0\nhashes = \"list\""), &[]);
    assert_eq!(code, 1);
    assert_eq!(listed["rules"][0]["share"]["with"], found["rules"][0]["share"]["with"], "{found:#}");
    let exact = share(&found)[0];
    assert!(exact > 0.05 && exact < 0.95, "{exact}");

    // Fewer samples than there are: an interval, by a seed that opens the same ones again.
    let seed = "ab".repeat(32);
    let drawn = |seed: &str| {
        let rule = "samples = 40\nconfidence = 0.999\nmost = 1\npattern = \"^[a-h]\"";
        world.ruled("run", rule, &["--seed", seed]).1
    };
    let [one, again, other] = [&seed, &seed, &"cd".repeat(32)].map(|seed| drawn(seed));
    assert_eq!(one, again);
    assert!(one["rules"][0]["share"]["against"] != other["rules"][0]["share"]["against"]);
    let [least, most] = share(&one);
    assert!(least < exact && exact < most && most - least > 0.2, "{least} {exact} {most}");
    // By the system's randomness each call opens others.
    let by = |result: &Value| (result["samples"]["by"].clone(), result["samples"]["seed"].clone());
    let [one, other] = [pattern("samples = 5\n").1, pattern("samples = 5\n").1].map(|result| by(&result));
    assert!(one.0 == "system" && one != other, "{one:?}");
}

#[test]
fn a_command_reads_samples_and_is_held_to_its_form_and_time() {
    let world = World::new();
    world.trained("run", &[], None);
    let ruled = |bound: &str, command: &str| {
        world.ruled("run", &format!("samples = 48\n{bound}\ncommand = [{command}]"), &[])
    };
    // The first sample of each step, by the line's own field.
    let first = r#"'sed', '-e', '/"place":0,/!s/.*/no/', '-e', 's/^{.*/yes/'"#;
    let (code, found) = ruled("most = 0.1", first);
    assert_eq!((code, share(&found)), (1, [1.0 / 6.0, 1.0 / 6.0]), "{found:#}");
    let against = found["rules"][0]["share"]["against"].as_array().unwrap();
    assert!(against.len() == 8 && against.iter().all(|one| one["place"] == 0), "{found:#}");
    // It sees the text, and a program beside the rules is found there.
    fs::write(world.at("reader.sh"), "sed -e '/\"text\":\"[a-h]/!s/.*/no/' -e 's/^{.*/yes/'\n").unwrap();
    let (_, by_text) = ruled("most = 0", "'sh', 'reader.sh'");
    let (_, by_pattern) = world.ruled("run", "samples = 48\nmost = 0\npattern = '^[a-h]'", &[]);
    let against = |result: &Value| result["rules"][0]["share"]["against"].clone();
    assert_eq!(against(&by_text), against(&by_pattern));

    for (command, says) in [
        ("'sed', 's/.*/maybe/'", "the command wrote more than the 192 bytes"),
        ("'sed', 's/.*/YES/'", "answer 1 of the command is neither"),
        ("'yes'", "the command wrote more than the 192 bytes"),
        ("'head', '-c', '0'", "the command gave 0 answers to 48 samples"),
        ("'false'", "the command ended with exit status: 1"),
        ("'./no-such-program'", "does not start"),
    ] {
        undecided(ruled("least = 0.5", command), says);
    }
}

/// Tells whether a process is there and runs.
#[cfg(target_os = "linux")]
fn runs(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[cfg(target_os = "linux")]
#[test]
fn a_command_that_hangs_is_killed_with_all_that_it_started() {
    let world = World::new();
    world.trained("run", &[], None);
    let begin = Instant::now();
    let rule = "most = 0.5\nseconds = 1\ncommand = ['sh', '-c', 'sleep 600 & echo $! > pid; wait']";
    undecided(world.ruled("run", rule, &[]), "the command did not end within 1 s, and was killed");
    assert!(begin.elapsed() < Duration::from_secs(60));
    let pid = fs::read_to_string(world.at("pid")).unwrap();
    let gone = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        !runs(pid.trim())
    });
    assert!(gone, "process {pid} goes on");
    // One that closes its output and goes on is killed as well.
    let rule = "most = 0.5\nseconds = 1\ncommand = ['sh', '-c', 'exec >&-; sleep 600']";
    undecided(world.ruled("run", rule, &[]), "did not end within 1 s");
}

/// Ctrl-C, or whatever ends the command, ends the inspector's program too.
#[cfg(target_os = "linux")]
#[test]
fn a_command_does_not_outlive_the_one_that_started_it() {
    let world = World::new();
    world.trained("run", &[], None);
    let rules = world.at("rules.toml");
    let rule = "[[data]]\nname = \"it\"\nmost = 0.5\nseconds = 600\n\
                command = ['sh', '-c', 'sleep 600 & echo $$ $! > pids; wait']\n";
    fs::write(&rules, rule).unwrap();
    for signal in ["-INT", "-TERM", "-KILL"] {
        let pids = world.at("pids");
        let _ = fs::remove_file(&pids);
        // Whoever runs the tests in the background has them ignore SIGINT, and children inherit that.
        let mut child = with_default_int(&tiebreak(&["monitor", "rules", &world.at("run"), &rules]))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let begun = || fs::read_to_string(&pids).is_ok_and(|text| text.ends_with('\n'));
        assert!(within(begun), "the command does not begin");
        let text = fs::read_to_string(&pids).unwrap();
        let started: Vec<&str> = text.split_whitespace().collect();
        assert!(started.len() == 2 && started.iter().all(|pid| runs(pid)), "{text}");
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        assert!(!child.wait().unwrap().success());
        assert!(within(|| !started.iter().any(|pid| runs(pid))), "{signal}: processes {text} go on");
    }
}

/// A command that SIGINT ends, whatever this process does with it.
#[cfg(target_os = "linux")]
fn with_default_int(command: &Command) -> Command {
    let mut with = Command::new("env");
    with.arg("--default-signal=INT").arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => with.env(name, value),
            None => with.env_remove(name),
        };
    }
    with
}

/// Waits until something is true, for half a minute at most.
#[cfg(target_os = "linux")]
fn within(is: impl Fn() -> bool) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(30) {
        if is() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

/// A job over tokens of two bytes each: the model of [`gpt_job`], and ids that alternate between two.
fn over_tokens(world: &World, ids: [u16; 2]) {
    let job = gpt_job(world.0.path(), "step", "");
    let file: Vec<u8> = (0..2000).flat_map(|i| ids[i % 2].to_le_bytes()).collect();
    fs::write(world.at("ids.u16"), file).unwrap();
    let tokens = "kind = \"tokens\"\npath = \"ids.u16\"\ndtype = \"u16\"";
    edit(
        &job,
        &[("kind = \"bytes\"\npath = \"text.txt\"", tokens), ("vocabulary = 128", "vocabulary = 300")],
    );
    trained(&job, Path::new(&world.at("run")), None);
}

/// The inspector says what tokens mean: the run's own word for it is the operator's.
#[test]
fn samples_of_tokens_are_text_by_the_tokenizer_that_the_inspector_names() {
    let world = World::new();
    // 256 is "he" by the tokenizer's merge, and 64 is "a".
    over_tokens(&world, [256, 64]);
    tokenizer(Path::new(&world.at("gpt2")));
    let rule = "samples = 48\nmost = 0\npattern = \"heahea\"";
    undecided(
        world.ruled("run", rule, &[]),
        "samples are tokens, and no tokenizer is named: give --tokenizer",
    );
    let named = ["--tokenizer", &world.at("gpt2")];
    #[cfg(not(feature = "tokenizer"))]
    {
        fs::write(world.at("rules.toml"), format!("[[data]]\nname = \"it\"\n{rule}\n")).unwrap();
        let (run, rules) = (world.at("run"), world.at("rules.toml"));
        let (code, _, stderr) = output(&[&["monitor", "rules", &run, &rules][..], &named].concat());
        assert!(code == 2 && stderr.contains("--features tokenizer"), "{code} {stderr}");
    }
    #[cfg(feature = "tokenizer")]
    {
        let (code, found) = world.ruled("run", rule, &named);
        assert_eq!((code, share(&found)), (1, [1.0, 1.0]), "{found:#}");
        let (code, found) = world.ruled("run", "samples = 48\nmost = 0\npattern = \"aa|hehe\"", &named);
        assert_eq!((code, share(&found)), (0, [0.0, 0.0]), "{found:#}");
        // A command reads the same text.
        let rule = "samples = 48\nleast = 1\ncommand = ['sed', '-e', '/\"text\":\"[^\"]*heahea/!s/.*/no/', '-e', 's/^{.*/yes/']";
        assert_eq!(world.ruled("run", rule, &named).0, 0);
        // A tokenizer that lacks the ids leaves the rule undecided; one that is none is an error.
        fs::write(world.at("few.json"), "{}").unwrap();
        let few = ["--tokenizer", &world.at("few.json")];
        let rules = world.at("rules.toml");
        let (code, _, stderr) = output(&[&["monitor", "rules", &world.at("run"), &rules][..], &few].concat());
        assert!(code == 4 && stderr.contains("few.json"), "{code} {stderr}");
    }
}

#[test]
fn samples_count_only_if_record_and_data_agree() {
    let world = World::new();
    let nothing = "samples = 48\nmost = 0\npattern = \"Z\"";
    // A trainer whose record commits samples of no data file.
    world.trained("adversarial", &[], Some("adversarial@5"));
    let lied = world.ruled("adversarial", nothing, &[]);
    assert_eq!(lied.1["rules"][0]["share"]["unknown"], 6);
    assert_eq!(share(&lied.1), [0.0, 6.0 / 48.0]);
    undecided(lied, "the record of step 5 commits another batch than seed and data draw");
    // Whatever its samples are, a bound that leaves room for all of them holds.
    let room = "samples = 48\nmost = 0.125\npattern = \"Z\"";
    assert_eq!(world.ruled("adversarial", room, &[]).0, 0);

    // Bytes that were exchanged after the training.
    world.trained("run", &[], None);
    assert_eq!(world.ruled("run", nothing, &[]).0, 0);
    let data = world.at("run/data/data-0.bin");
    let mut bytes = fs::read(&data).unwrap();
    bytes[2000] = b'Z';
    fs::write(&data, bytes).unwrap();
    undecided(world.ruled("run", nothing, &[]), "48 samples may be of either kind");

    // Data that the run does not hold.
    world.trained("elsewhere", &[("\"text.txt\"", "\"text.txt\"\ncopy = false")], None);
    undecided(world.ruled("elsewhere", nothing, &[]), "say where it is with --data FOLDER");
    let folder = path(world.0.path(), "");
    assert_eq!(world.ruled("elsewhere", nothing, &["--data", &folder]).0, 0);
}

#[test]
fn images_have_digests_and_no_text() {
    let world = World::new();
    let job = resnet_job(world.0.path(), "step", "");
    trained(&job, Path::new(&world.at("run")), None);
    // Four steps of eight images, of forty that are drawn without replacement.
    let images = fs::read(world.at("images")).unwrap();
    let digests = images[16..].chunks(64).map(|image| format!("{}\n", blake3::hash(image).to_hex()));
    fs::write(world.at("list"), digests.take(20).collect::<String>()).unwrap();
    let (code, found) = world.ruled("run", "most = 0\nhashes = \"list\"", &[]);
    let with = found["rules"][0]["share"]["with"].as_u64().unwrap();
    assert!(code == 1 && (12..=20).contains(&with), "{found:#}");
    undecided(world.ruled("run", "most = 0.5\npattern = \"a\"", &[]), "samples are no text");
    // A label that only a command sees.
    let rule = "least = 1\ncommand = ['sed', '-e', '/\"labels\":.[0-9]\\]}$/!s/.*/no/', '-e', 's/^{.*/yes/']";
    assert_eq!(world.ruled("run", rule, &[]).0, 0);
}

#[test]
fn a_draw_opens_samples_of_the_head_that_it_names() {
    let world = World::new();
    world.trained("run", &[], None);
    fs::write(world.at("chips.register"), to_text(&chips::register(), &key())).unwrap();
    fs::write(world.at("heads.txt"), chips::closed(&chips::honest()).to_text()).unwrap();
    let [register, heads, draw] = ["chips.register", "heads.txt", "draw.json"].map(|name| world.at(name));
    let beacon = "5f".repeat(32);
    let drawn = |runs: &[&str]| {
        let runs: Vec<String> = runs.iter().map(|run| world.at(run)).collect();
        let mut args = vec!["monitor", "draw", "--register", &register, "--closed", &heads, "--chips", "0"];
        args.extend(["--beacon", &beacon, "--round", "4711", "--out", &draw]);
        runs.iter().for_each(|run| args.extend(["--run", run, "--segments", "1"][..2].iter()));
        if !runs.is_empty() {
            args.extend(["--segments", "1"]);
        }
        let (code, _, stderr) = output(&args);
        assert_eq!(code, 0, "{stderr}");
    };
    drawn(&["run"]);
    let given = ["--draw", &draw, "--register", &register, "--closed", &heads];
    let rule = "samples = 20\nmost = 0.5\npattern = \"Z\"";
    let (code, found) = world.ruled("run", rule, &given);
    let seed = serde_json::from_str::<Value>(&fs::read_to_string(&draw).unwrap()).unwrap()["seed"].clone();
    assert_eq!((code, &found["samples"]["by"], &found["samples"]["seed"]), (0, &"draw".into(), &seed));

    // Another history than the one that the draw is over.
    let job = world.at("job.toml");
    let other = trained(Path::new(&job), Path::new(&world.at("other")), None);
    sign_again(&other, |records| step_mut(records, 5).cursor += 1);
    let rules = world.at("rules.toml");
    let args = |run: &str| [&["monitor", "rules", &world.at(run), &rules][..], &given].concat().join("\n");
    let ruled = |run: &str| output(&args(run).split('\n').collect::<Vec<_>>());
    let (code, _, stderr) = ruled("other");
    assert!(code == 1 && stderr.contains("the draw is over the root"), "{stderr}");
    // A draw of no run, and one whose file was edited.
    drawn(&[]);
    let (code, _, stderr) = ruled("run");
    assert!(code == 2 && stderr.contains("and not of run"), "{stderr}");
    let text = fs::read_to_string(&draw).unwrap();
    fs::write(&draw, text.replace(seed.as_str().unwrap(), &"00".repeat(32)).replace("4711", "4712")).unwrap();
    let (code, _, stderr) = ruled("run");
    assert!(code == 1 && stderr.contains("the rule gives another seed"), "{stderr}");
}
