//! Rounds of drand in draws and promises: named before, checked by their signatures. `assets/vectors/beacon.py` made the network.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use sha2::Digest as _;
use tiebreak_monitor::register::file::to_text;

use crate::{chips, output, path};

/// The network of `assets/vectors/beacon.json`, and its rounds.
fn vectors() -> Value {
    serde_json::from_str(include_str!("../../assets/vectors/beacon.json")).unwrap()
}

/// Writes the network's description, and returns its path.
pub fn chain(folder: &Path) -> String {
    let at = path(folder, "chain.json");
    fs::write(&at, vectors()["info"].to_string()).unwrap();
    at
}

/// Writes round `index` as the network's servers give it, and returns its path.
pub fn file(folder: &Path, index: usize) -> String {
    let at = path(folder, &format!("round-{index}.json"));
    fs::write(&at, vectors()["rounds"][index].to_string()).unwrap();
    at
}

/// The text that names round `index`.
pub fn name(index: usize) -> String {
    let all = vectors();
    format!("drand {} {}", all["info"]["hash"].as_str().unwrap(), all["rounds"][index]["round"])
}

/// The value of round `index`.
pub fn value(index: usize) -> String {
    vectors()["rounds"][index]["signature"].as_str().unwrap().to_string()
}

fn joined<'a>(first: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [first, more].concat()
}

fn told(args: &[&str], wanted: i32) -> String {
    let (code, stdout, stderr) = output(args);
    assert_eq!(code, wanted, "{args:?}: {stdout}{stderr}");
    stdout + &stderr
}

fn json(args: &[&str], wanted: i32) -> Value {
    let (code, stdout, stderr) = output(&[args, &["--json"]].concat());
    assert_eq!(code, wanted, "{args:?}: {stdout}{stderr}");
    serde_json::from_str(&stdout).unwrap()
}

/// A round that quicknet's servers published, as they give it.
pub const QUICKNET_1000: &str = r#"{"round":1000,"randomness":"fe290beca10872ef2fb164d2aa4442de4566183ec51c56ff3cd603d930e54fdd","signature":"b44679b9a59af2ec876b1a6b1ad52ea9b1615fc3982b19576350f93447cb1125e342b73a8dd2bacbe47e4b6b63ed5e39"}"#;

#[test]
fn rounds_are_named_before_and_checked_after() {
    let folder = tempfile::tempdir().unwrap();
    let (chain, round) = (chain(folder.path()), file(folder.path(), 1));
    let beacon = ["monitor", "beacon"];
    let ask = |more: &[&str]| json(&[&beacon[..], more].concat(), 0);
    // The first round at the time or later; quicknet has one each three seconds.
    let quicknet = ask(&["--at", "2026-12-01T12:00:01Z"]);
    let hash = "52db9ba70e0cc0f6eaf7803dd07447a1f5477735fd3f661792ba94600c84e971";
    assert_eq!(quicknet["round"], format!("drand {hash} {}", quicknet["number"]));
    assert_eq!((&quicknet["id"], &quicknet["time"]), (&json!("quicknet"), &json!(1_796_126_403)));
    let ours = ask(&["--at", "2023-11-16T13:28:20Z", "--chain", &chain]);
    assert_eq!((&ours["round"], &ours["value"]), (&json!(name(1)), &Value::Null));
    let checked = ask(&[&round, "--chain", &chain]);
    assert_eq!((&checked["round"], &checked["time"]), (&ours["round"], &ours["time"]));
    assert_eq!(checked["value"], value(1));

    // A round of a network that is not known, a round of another number, an edited description, nothing at all.
    assert!(
        told(&[&beacon[..], &[&round]].concat(), 4)
            .contains("none of the networks quicknet signed round 4711")
    );
    let moved = fs::read_to_string(&round).unwrap().replace("4711", "4712");
    fs::write(&round, moved).unwrap();
    assert!(told(&[&beacon[..], &[&round, "--chain", &chain]].concat(), 4).contains("signed round 4712"));
    let edited = fs::read_to_string(&chain).unwrap().replace("1700000000", "1600000000");
    fs::write(&chain, edited).unwrap();
    assert!(
        told(&[&beacon[..], &["--at", "2026-12-01", "--chain", &chain]].concat(), 4).contains("chain hash")
    );
    told(&beacon, 2);

    // A network with a key of its own and the name of a known one.
    let mut info = vectors()["info"].clone();
    let text = |name: &str| info[name].as_str().unwrap().to_string();
    let bytes = |text: &str| -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    };
    let number = |name: &str| info[name].as_u64().unwrap();
    let named = [
        &(number("period") as u32).to_be_bytes()[..],
        &number("genesis_time").to_be_bytes(),
        &bytes(&text("public_key")),
        &bytes(&text("groupHash")),
        b"quicknet",
    ];
    let hash = sha2::Sha256::digest(named.concat());
    info["hash"] = hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into();
    info["metadata"]["beaconID"] = "quicknet".into();
    fs::write(&chain, info.to_string()).unwrap();
    let refused = told(&[&beacon[..], &["--at", "2026-12-01", "--chain", &chain]].concat(), 4);
    assert!(refused.contains("calls itself quicknet, whose chain hash is 52db9ba7"), "{refused}");
}

#[test]
fn a_draw_by_drand_needs_nobodys_word() {
    let folder = tempfile::tempdir().unwrap();
    let [register, heads, draw] =
        ["chips.register", "heads.txt", "draw.json"].map(|name| path(folder.path(), name));
    fs::write(&register, to_text(&chips::register(), &chips::chip_key(99))).unwrap();
    fs::write(&heads, chips::closed(&chips::honest()).to_text()).unwrap();
    let (chain, round) = (chain(folder.path()), file(folder.path(), 2));
    let inputs = ["monitor", "draw", "--register", &register, "--closed", &heads];
    let made = [&inputs[..], &["--chips", "2", "--date", "2025-03-01", "--out", &draw]].concat();
    let drawn = json(&joined(&made, &["--beacon", &round, "--chain", &chain]), 0);
    assert_eq!(
        drawn["draw"]["question"]["randomness"]["beacon"],
        json!({ "round": name(2), "value": value(2) })
    );
    assert_eq!(drawn["beacon"]["time"], 4_070_908_790u64);
    // The digits with the round's text are the same draw.
    let digits = json(&joined(&made, &["--beacon", &value(2), "--round", &name(2), "--chain", &chain]), 0);
    assert_eq!(digits["draw"], drawn["draw"]);
    let check = [&inputs[..], &["--check", &draw]].concat();
    let checked = [&check[..], &["--chain", &chain]].concat();
    assert!(
        told(&checked, 0).contains(
            "the beacon's signature is valid: drand ours, round 79030294, of 2098-12-31 23:59:50 UTC"
        )
    );
    // Who does not know the network is told what is missing, and does not take the value as it is.
    assert!(told(&check, 2).contains("give --chain FILE"));

    // Another round than the named one, another round's value, digits without a round, a description that decides nothing.
    let refused = told(&joined(&made, &["--beacon", &round, "--round", &name(1), "--chain", &chain]), 2);
    assert!(refused.contains("and --round names drand"), "{refused}");
    let swapped = told(&joined(&made, &["--beacon", &value(2), "--round", &name(1), "--chain", &chain]), 1);
    assert!(swapped.contains("is not the signature of the drand network ours over round 4711"), "{swapped}");
    assert!(told(&joined(&made, &["--beacon", &value(2)]), 2).contains("--beacon needs --round"));
    let other = told(&joined(&made, &["--beacon", &value(2), "--round", "4711", "--chain", &chain]), 2);
    assert!(other.contains("no round of the drand network ours is read"), "{other}");

    // Somebody else's draw, by a value that suited: it follows from its inputs, but nobody signed the value.
    let suits = "5f".repeat(48);
    let free = json(&joined(&made, &["--beacon", &suits, "--round", "4711"]), 0);
    assert_eq!(free["beacon"], Value::Null);
    let text = fs::read_to_string(&draw).unwrap().replace("\"4711\"", &format!("\"{}\"", name(2)));
    fs::write(&draw, text).unwrap();
    let found = json(&checked, 1);
    assert_eq!(found["differs"]["kind"], "beacon", "{found}");
    let text = fs::read_to_string(&draw).unwrap().replace(&suits, &"60".repeat(48));
    fs::write(&draw, text).unwrap();
    assert_eq!(json(&checked, 1)["differs"]["why"], "the rule gives another seed");
    let forged = tiebreak_monitor::draw::Draw::from_text(&fs::read_to_string(&draw).unwrap()).unwrap();
    let again = tiebreak_monitor::draw::Draw::new(
        &chips::register(),
        &chips::closed(&chips::honest()),
        forged.question,
    );
    fs::write(&draw, again.unwrap().to_text()).unwrap();
    let found = json(&checked, 1);
    assert_eq!(found["differs"]["kind"], "beacon", "{found}");

    // A date behind the round: chips may have entered with the value known.
    let early = file(folder.path(), 1);
    let late = told(&joined(&made, &["--beacon", &early, "--chain", &chain]), 1);
    assert!(
        late.contains("the draw's date is 2025-03-01 00:00:00 UTC, and the round is of 2023-11-16"),
        "{late}"
    );
    let register = chips::register();
    let question = tiebreak_monitor::draw::Question {
        time: 1_740_787_200,
        chips: 2,
        segments: 0,
        runs: Vec::new(),
        randomness: tiebreak_monitor::randomness::Randomness::Beacon { round: name(1), value: value(1) },
    };
    let closed = chips::closed(&chips::honest());
    let made = tiebreak_monitor::draw::Draw::new(&register, &closed, question).unwrap();
    fs::write(&draw, made.to_text()).unwrap();
    assert_eq!(json(&checked, 1)["differs"]["kind"], "date");
}
