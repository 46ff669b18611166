//! A witness that others wrote (PyPI's aics-witness, with aics-tlog): it cosigns our heads, and its client asks our witness.

use std::fs;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{Kept, World, gpt_job, witness};

/// A Python that has the packages: `.ci/full tls` makes one.
fn python() -> String {
    std::env::var("TIEBREAK_WITNESS_PYTHON")
        .expect("TIEBREAK_WITNESS_PYTHON names a Python with aics-witness")
}

/// A command of their witness, whose key and state are in the folder `theirs`.
fn theirs(world: &World, line: &str) -> Command {
    let mut command = Command::new(python());
    command.args(["-m", "aics_witness"]).args(line.split(' '));
    command.args(["--config", "theirs/witness.json"]).current_dir(world.0.path());
    command
}

fn told(world: &World, line: &str) -> String {
    let done = theirs(world, line).output().unwrap();
    let text = [&done.stdout, &done.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(done.status.success(), "{line}: {}", text.concat());
    text[0].clone()
}

/// Promises and a run whose keys are `trainer.key`.
fn world() -> World {
    let world = World(tempfile::tempdir().unwrap());
    gpt_job(world.0.path(), "step", "");
    for name in ["trainer", "witness"] {
        world.done(&format!("key new {name}.key --name {name}.example"));
    }
    promise(&world, "first");
    world.done("train job.toml --out run --key trainer.key -q");
    world
}

fn promise(world: &World, nonce: &str) {
    world.done(&format!("monitor nonce {nonce}.nonce"));
    world.done(&format!(
        "monitor promise add promises job.toml --key trainer.key --nonce {nonce}.nonce --round 7"
    ));
}

#[test]
#[ignore = "needs a Python with aics-witness: .ci/full tls"]
fn a_witness_of_others_cosigns_promises_and_runs() {
    let world = world();
    fs::create_dir(world.at("theirs")).unwrap();
    let key = told(&world, "init --name witness.example/w1");
    let key =
        key.split_whitespace().find(|word| word.starts_with("witness.example/w1+")).unwrap().to_string();
    let trainer = fs::read_to_string(world.at("trainer.key.pub")).unwrap();
    let origin = |text: &str| text.lines().find(|line| line.starts_with("tiebreak/")).unwrap().to_string();
    for file in ["promises", "run/heads/000000000001"] {
        let origin = origin(&fs::read_to_string(world.at(file)).unwrap());
        told(&world, &format!("add-log --origin {origin} --vkey {}", trainer.trim()));
    }
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let line = format!("serve --listen 127.0.0.1:{port}");
    let child = theirs(&world, &line).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let _theirs = Kept(child);
    for _ in 0..100 {
        if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let declare = |what: &str| {
        world.output(&format!("monitor declare {what} --witness http://127.0.0.1:{port} --witness-key {key}"))
    };
    let (code, text) = declare("promises");
    assert!(
        code == 0 && text.contains("witness.example/w1 cosigned the head over 1 promises"),
        "{code} {text}"
    );
    // The log grew: their witness checks our proof.
    for nonce in ["second", "third"] {
        promise(&world, nonce);
    }
    assert_eq!(declare("promises").0, 0);
    assert_eq!(declare("run").0, 0);
    assert_eq!(declare("run --head last").0, 0);
    world.done("verify run --trainer-key trainer.key.pub");
    // Their word counts, also by the key as they publish it.
    let check =
        "monitor promise check promises run --nonce first.nonce --beacon 000102030405060708090a0b0c0d0e0f";
    let asked = format!("--witness {key} --ask http://127.0.0.1:{port}");
    let (code, text) = world.output(&format!("{check} --round-time 2099-01-01 {asked}"));
    assert!(code == 1 && text.contains("witnessed at") && text.contains("other_challenge"), "{code} {text}");
    assert!(!text.contains("withheld") && !text.contains("end_unknown"), "{text}");
    // A second history has no cosignature of theirs.
    fs::remove_file(world.at("promises")).unwrap();
    for nonce in ["a", "b", "c", "d"] {
        promise(&world, nonce);
    }
    let (code, text) = declare("promises");
    assert!(code == 3 && text.contains("status 422"), "{code} {text}");
}

#[test]
#[ignore = "needs a Python with aics-witness: .ci/full tls"]
fn a_client_of_others_is_served_by_our_witness() {
    let world = world();
    fs::create_dir(world.at("state")).unwrap();
    let feed = |address: &str, key: &str, step: &str| {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls/feed.py");
        let done =
            Command::new(python()).args([script, address, key, step]).current_dir(world.0.path()).output();
        let done = done.unwrap();
        let text = String::from_utf8(done.stdout).unwrap();
        assert!(done.status.success(), "{text}{}", String::from_utf8_lossy(&done.stderr));
        text.trim().to_string()
    };
    let log = format!("--log log.example/others={}", feed("http://none", "none", "key"));
    let (_ours, port, key) = witness(&world, &log);
    let address = format!("http://127.0.0.1:{port}");
    let grown = feed(&address, &key, "grow");
    assert_eq!(grown, "size 3: 1 cosignature\nsize 7: 1 cosignature\nsize 7: 1 cosignature");
    let forked = feed(&address, &key, "fork");
    assert!(forked.starts_with("size 7: refused: 409"), "{forked}");
}
