//! Promised runs: the seed comes from a beacon after a witness saw the promise, and an amendment goes on from a run with other data.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use serde_json::Value;

use crate::beacons;
use crate::common::{self, edit::edited, gpt_job};
use crate::witness::witness;
use crate::{output, path};

const BEACON: &str = "1f0e2d3c4b5a69788796a5b4c3d2e1f01f0e2d3c4b5a69788796a5b4c3d2e1f0";

/// A beacon whose values somebody has to look up.
const FREE: &str = "drand 7";

/// The rounds that promises name, and the options that give their values: one of another beacon, and two of our own drand network, of the
/// years 2099 and 2023.
fn round(nonce: &str, world: &World) -> (String, Vec<String>) {
    let text = |words: &[&str]| words.iter().map(|word| word.to_string()).collect();
    let chain = beacons::chain(world.folder.path());
    match nonce {
        "second.nonce" => {
            let file = beacons::file(world.folder.path(), 2);
            (beacons::name(2), text(&["--beacon", &file, "--chain", &chain]))
        }
        "third.nonce" => (beacons::name(1), text(&["--beacon", &beacons::value(1), "--chain", &chain])),
        _ => (FREE.into(), text(&["--beacon", BEACON])),
    }
}

/// A trainer and its log, with a witness.
struct World {
    folder: tempfile::TempDir,
    /// The witness's address.
    asked: OnceLock<String>,
}

impl World {
    fn at(&self, name: &str) -> String {
        path(self.folder.path(), name)
    }

    fn json(&self, args: &[&str], code: i32) -> Value {
        let (found, stdout, stderr) = output(&[args, &["--json"]].concat());
        assert_eq!(found, code, "{args:?}: {stdout}{stderr}");
        serde_json::from_str(&stdout).unwrap()
    }

    /// Promises a job, with the nonce of this name.
    fn promise(&self, job: &str, nonce: &str) -> Value {
        let named = round(nonce, self).0;
        let (nonce, key) = (self.at(nonce), self.at("trainer.key"));
        self.json(&["monitor", "nonce", &nonce], 0);
        let (log, job) = (self.at("promises"), self.at(job));
        let args =
            ["monitor", "promise", "add", &log, &job, "--key", &key, "--nonce", &nonce, "--round", &named];
        self.json(&args, 0)
    }

    /// Trains a job with the challenge of the promise of this nonce.
    fn train(&self, job: &str, nonce: &str, out: &str) {
        let given = round(nonce, self).1;
        let given: Vec<&str> = given.iter().map(String::as_str).collect();
        let (log, nonce) = (self.at("promises"), self.at(nonce));
        let args = ["monitor", "promise", "challenge", &log, "--nonce", &nonce];
        let told = self.json(&[&args[..], &given].concat(), 0);
        let challenge = told["challenge"].as_str().unwrap();
        assert!(told["next"][0]["command"].as_str().unwrap().ends_with(challenge), "{told}");
        let (job, out, key) = (self.at(job), self.at(out), self.at("trainer.key"));
        let args = ["train", &job, "--out", &out, "--key", &key, "--challenge", challenge, "--engine", "cpu"];
        let (code, _, stderr) = output(&args);
        assert_eq!(code, 0, "{stderr}");
    }

    /// Checks a run with a nonce: the kinds of the findings.
    fn check(&self, run: &str, nonce: &str, more: &[&str], code: i32) -> (Value, Vec<String>) {
        let given = round(nonce, self).1;
        let mut given: Vec<&str> = given.iter().map(String::as_str).collect();
        if given[1] == BEACON && !more.contains(&"--round-time") {
            given.extend(["--round-time", "2099-01-01"]);
        }
        let (log, run, nonce) = (self.at("promises"), self.at(run), self.at(nonce));
        let witness = self.at("witness.key.pub");
        let args = ["monitor", "promise", "check", &log, &run, "--nonce", &nonce];
        let asked = self.asked.get().map_or(vec![], |address| vec!["--ask", address]);
        let told = self.json(&[&args[..], &given, &["--witness", &witness], &asked, more].concat(), code);
        let kinds =
            told["findings"].as_array().unwrap().iter().map(|one| one["kind"].as_str().unwrap().into());
        let kinds = kinds.collect();
        (told, kinds)
    }
}

#[test]
fn a_seed_comes_from_a_beacon_and_data_come_later() {
    let world = World { folder: tempfile::tempdir().unwrap(), asked: OnceLock::new() };
    let job = gpt_job(world.folder.path(), "step", "");
    let text = fs::read_to_string(&job).unwrap();
    for name in ["trainer", "witness"] {
        let key = world.at(&format!("{name}.key"));
        assert_eq!(output(&["key", "new", &key, "--name", &format!("{name}.example")]).0, 0);
    }
    let state = world.at("state");
    fs::create_dir(&state).unwrap();
    let trainer = world.at("trainer.key.pub");
    let served = witness(&world.at("witness.key"), &state, &["--trainer-key", &trainer]);
    let declare = |what: &str| {
        let (what, key) = (world.at(what), world.at("witness.key.pub"));
        world.json(&["monitor", "declare", &what, "--witness", &served.address, "--witness-key", &key], 0)
    };
    let promised = world.promise("job.toml", "first.nonce");
    assert_eq!((&promised["number"], &promised["promise"]["begin"]), (&0.into(), &"seed".into()));
    let seen = declare("promises");
    assert_eq!((&seen["promises"], &seen["was_there"]), (&1.into(), &false.into()));
    assert_eq!(declare("promises")["was_there"], true);
    world.train("job.toml", "first.nonce", "first");
    declare("first");
    // Nobody was asked whether later promises are withheld.
    assert_eq!(world.check("first", "first.nonce", &[], 3).1, ["end_unknown"]);
    world.asked.set(served.address.clone()).unwrap();
    let short = fs::read(world.at("promises")).unwrap();
    let (told, kinds) = world.check("first", "first.nonce", &[], 0);
    assert_eq!((kinds.len(), &told["witnessed"]), (0, &seen["time"]), "{told}");
    assert_eq!(world.check("first", "first.nonce", &["--round-time", "2020-01-01"], 1).1, ["late"]);

    // Other data come later: a run that goes on from the first one.
    fs::write(world.at("more.txt"), fs::read_to_string(world.at("text.txt")).unwrap().to_uppercase())
        .unwrap();
    let from = |data: &str| {
        edited(&text, &[("\"text.txt\"", data), ("[checkpoint]", "[init]\nrun = \"first\"\n[checkpoint]")])
    };
    fs::write(world.at("second.toml"), from("\"more.txt\"")).unwrap();
    fs::write(world.at("third.toml"), from("\"text.txt\"")).unwrap();
    let amended = world.promise("second.toml", "second.nonce");
    let first = world.json(&["verify", &world.at("first"), "--trainer-key", &trainer], 0)["run"].clone();
    let begin = &amended["promise"]["begin"]["run"];
    assert_eq!(
        (&amended["promise"]["amendment"], &begin["run"], &begin["after"]),
        (&1.into(), &first, &8.into())
    );
    declare("promises");
    world.train("second.toml", "second.nonce", "second");
    assert_eq!(world.check("second", "second.nonce", &[], 0).1, [""; 0]);
    // The first promise now has a head over it that the same witness cosigned twice; the earlier time counts.
    assert_eq!(world.check("first", "first.nonce", &[], 0).0["witnessed"], seen["time"]);

    // A second amendment of the same run, whose data are the first run's.
    assert_eq!(world.promise("third.toml", "third.nonce")["promise"]["amendment"], 2);
    world.train("third.toml", "third.nonce", "third");
    assert_eq!(world.check("third", "third.nonce", &[], 3).1, ["unwitnessed", "several", "end_unknown"]);
    declare("promises");
    // A log that ends with the first promise, where the witness knows two more.
    let whole = fs::read(world.at("promises")).unwrap();
    fs::write(world.at("promises"), short).unwrap();
    let (told, kinds) = world.check("first", "first.nonce", &[], 3);
    assert_eq!(
        (&kinds[..], &told["findings"][0]["known"]),
        (&["withheld".to_string()][..], &3.into()),
        "{told}"
    );
    fs::write(world.at("promises"), whole).unwrap();
    let other = world.at("first");
    let (told, kinds) =
        world.check("third", "third.nonce", &["--other", &other, &world.at("first.nonce"), BEACON], 1);
    assert_eq!(kinds, ["late"], "the network's schedule says 2023");
    // The promise of other data is no other choice of this seed, and people are told of it.
    assert_eq!(told["different"], serde_json::json!([1]));
    // The checked run stands for no other promise, and a run stands for the one whose nonce and value give its challenge.
    let (third, nonce) = (world.at("third"), world.at("third.nonce"));
    let own = ["--other", &third, &nonce, &beacons::value(1)];
    assert_eq!(world.check("third", "third.nonce", &own, 1).1, ["late", "several"]);
    for (run, nonce, value, why) in [
        (&third, "first.nonce", BEACON, "keeps no promise of the log: the run begins from something else"),
        (&other, "first.nonce", &*"00".repeat(32), "keeps no promise of the log: promise, beacon and nonce"),
        (&other, "witness.key.pub", BEACON, "--other"),
    ] {
        let mut args = vec!["monitor", "promise", "check"];
        let [log, nonce, own] = ["promises", nonce, "third.nonce"].map(|name| world.at(name));
        let (value_of_third, chain) = (beacons::value(1), beacons::chain(world.folder.path()));
        args.extend([&log, &third, "--nonce", &own, "--beacon", &value_of_third, "--chain", &chain]);
        args.extend(["--other", run, &nonce, value]);
        let (code, stdout, stderr) = output(&args);
        assert!(code == 2 && stderr.contains(why), "{code} {stdout}{stderr}");
    }
    // The network that --chain describes may be that of another run alone.
    let chain = beacons::chain(world.folder.path());
    let (second, nonce) = (world.at("second"), world.at("second.nonce"));
    let other = ["--chain", &chain, "--other", &second, &nonce, &beacons::value(2)];
    let (told, kinds) = world.check("first", "first.nonce", &other, 3);
    assert_eq!((&kinds[..], &told["different"]), (&["several".to_string()][..], &serde_json::json!([])));
    assert_eq!(told["findings"][0]["promises"], serde_json::json!([2]));
    // A witness that is down decides nothing: the result says that nobody vouches for the log's end.
    let deaf = ["--ask", "http://127.0.0.1:1"];
    let (_, kinds) = world.check("first", "first.nonce", &deaf, 3);
    assert!(kinds.contains(&"end_unknown".into()), "{kinds:?}");
    let (told, _) = world.check("second", "second.nonce", &["--round-time", "2098-12-31T23:59:50Z"], 0);
    assert_eq!(
        (&told["verified"]["id"], &told["verified"]["time"]),
        (&"ours".into(), &4_070_908_790u64.into())
    );

    // A second implementation of the format reads the log, and finds the same challenge and time.
    if common::has_python() {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/vectors/promises.py");
        let read = |text: String| {
            fs::write(world.at("read"), text).unwrap();
            let nonce = fs::read_to_string(world.at("second.nonce")).unwrap();
            let witness = fs::read_to_string(world.at("witness.key.pub")).unwrap();
            let mut python = std::process::Command::new("python3");
            let value = beacons::value(2);
            python.args(["-B", script, &world.at("read"), &value, nonce.trim(), witness.trim()]);
            python.output().unwrap()
        };
        let text = fs::read_to_string(world.at("promises")).unwrap();
        let told = read(text.clone());
        let told: Value = serde_json::from_slice(&told.stdout).unwrap_or_else(|_| panic!("{told:?}"));
        let run: Value = serde_json::from_slice(&fs::read(world.at("second/run.json")).unwrap()).unwrap();
        assert_eq!((&told["promises"], &told["number"]), (&3.into(), &1.into()));
        assert_eq!(told["challenge"], run["challenge"]);
        assert_eq!(told["witnessed"], world.check("second", "second.nonce", &[], 0).0["witnessed"]);
        for (from, to) in [(FREE, "drand 8"), ("\n\u{2014} witness.example ", "\n\u{2014} witness.example A")]
        {
            assert!(!read(text.replacen(from, to, 1)).status.success(), "{from}");
        }
    }

    // Nothing else is the promised run.
    let kinds = world.check("second", "third.nonce", &[], 1).1;
    assert_eq!(kinds, ["other_data", "other_challenge", "late", "several"]);
    let kinds = world.check("first", "third.nonce", &[], 1).1;
    assert!(kinds.contains(&"other_beginning".into()), "{kinds:?}");
    fs::write(world.at("stranger.nonce"), "ab".repeat(32)).unwrap();
    assert_eq!(world.check("first", "stranger.nonce", &[], 1).1, ["unpromised"]);

    // A witness that knows another history of the log cosigns no second one.
    let log = world.at("promises");
    fs::remove_file(Path::new(&log)).unwrap();
    world.promise("job.toml", "again.nonce");
    let (key, args) = (world.at("witness.key.pub"), ["monitor", "declare"]);
    let more = [log.as_str(), "--witness", &served.address, "--witness-key", &key];
    let (code, _, stderr) = output(&[&args[..], &more].concat());
    assert!(code == 3 && stderr.contains("cosigned size 3"), "{code} {stderr}");
}
