//! Games about a receipt of predictions by the commands.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::commands::{Folder, terminated};
use crate::common::{logistic_job, trained};
use tiebreak_dispute::game::terms::Terms;
use tiebreak_engine::cpu::Cpu;
use tiebreak_game::net::desk::Desk;
use tiebreak_game::net::folder::Answers;
use tiebreak_game::party::{ReceiptParty, Replayed};
use tiebreak_record::commit::answer_trace::claimed_root;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::predictions::Predictions;
use tiebreak_run::predict::Inputs;
use tiebreak_run::run::arrays;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::{checkpoint, names};

const NEW: &str = "referee new --receipt r.json --party alice.pub --party bob.pub --referee referee.pub --moves 5 --increment 1";

/// A run of a logistic regression, and a receipt of five predictions, which alice signed.
fn predicted() -> Folder {
    let folder = Folder(tempfile::tempdir().unwrap());
    trained(&logistic_job(folder.0.path(), [10, 3], [4, 1], "step"), &folder.0.path().join("run"), None);
    for name in ["alice", "bob", "referee"] {
        assert_eq!(folder.run(&format!("key new {name} --name {name}")).0, 0);
    }
    let files = "--inputs inputs.npy --samples 2..7 --receipt r.json --trace t --key alice";
    let (code, _, stderr) = folder.run(&format!("predict run {files}"));
    assert_eq!(code, 0, "{stderr}");
    folder
}

fn receipt(folder: &Folder) -> Predictions {
    Predictions::from_text(&fs::read_to_string(folder.path("r.json")).unwrap()).unwrap().0
}

#[test]
fn a_game_about_predictions_convicts_whoever_lies() {
    let folder = predicted();
    let said = folder.json(&format!("{NEW} --run run --replay 60 --out terms.json"), 0);
    let root = said["traces"].as_str().unwrap().to_string();
    let honest = receipt(&folder);
    let claimed = claimed_root(&honest.traces.unwrap(), &honest.root());
    let of_receipt = &said["receipt"];
    assert_eq!(
        (&of_receipt["claimed"], &of_receipt["root"]),
        (&claimed.to_string().into(), &honest.root().to_string().into())
    );
    assert_eq!(of_receipt["buffers"], honest.model.state[1].to_string());
    let terms = Terms::from_bytes(&fs::read(folder.path("terms.json")).unwrap()).unwrap();

    // The signer's command answers over HTTP.
    let serve = "run --inputs inputs.npy --key alice --terms terms.json --referee-key referee.pub --listen 127.0.0.1:0";
    let (alice, said) = folder.serve(serve);
    let (desk, threads) = lying_bob(&folder, &terms);
    let address = said["address"].as_str().unwrap();
    let play = format!("referee terms.json --key referee alice={address} bob=bob-folder --out v.json");
    let result = folder.json(&play, 1);
    assert_eq!(result["result"]["remaining"], serde_json::json!([0]), "{result}");
    assert_eq!(result["result"]["upheld"], claimed.to_string());
    let checked = folder.json("verdict check v.json --signer-key alice.pub --party-key bob.pub", 1);
    assert_eq!(checked["traces"], root);
    assert_eq!(folder.run("verdict report v.json --output v.html").0, 0);
    let page = fs::read_to_string(folder.path("v.html")).unwrap();
    for says in [
        "A dispute about a receipt of predictions",
        "commit to your passes and logits of the samples",
        "in the passes over 5 samples from sample 2 on",
        "roots of the receipt: over traces, and over samples and logits",
        "of sample 5",
    ] {
        assert!(page.contains(says), "{says}");
    }
    assert!(!page.contains("answer of") && !page.contains("window") && !page.contains("token"), "{page}");
    desk.close();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    terminated(alice);
}

/// A challenger who flips a bit of the logits of the fourth sample. It answers in `bob-folder` until its desk is closed.
fn lying_bob(folder: &Folder, terms: &Terms) -> (Arc<Desk>, [JoinHandle<()>; 2]) {
    let key = PrivateKey::from_text(&fs::read_to_string(folder.path("bob")).unwrap()).unwrap();
    let journal = folder.path("bob.answers");
    let referee = terms.keys().unwrap().1;
    let desk =
        Arc::new(Desk::open(terms.game(), &key, referee, Path::new(&journal), Disk::default()).unwrap());
    let (run, inputs, one, two) = (folder.path("run"), folder.path("inputs.npy"), desk.clone(), desk.clone());
    let terms = terms.clone();
    let works = thread::spawn(move || {
        let run = Run::open(Path::new(&run)).unwrap();
        let model = &run.program().state()[..run.program().released()];
        let weights = checkpoint::read(run.at(names::MODEL), model).unwrap();
        let array = arrays::read(Path::new(&inputs)).unwrap().pop().unwrap();
        let samples = Some(Inputs::of_array(array, &run.program().sample()[0]).unwrap());
        let mut last = 0;
        let change = move |sample: usize, node: usize, bytes: &[u8]| {
            last = last.max(node);
            (sample == 3 && node == last).then(|| bytes.iter().map(|byte| byte ^ 1).collect())
        };
        let (of, cpu) = (Replayed { weights, samples }, Box::new(Cpu::new(1).unwrap()));
        one.work(&mut ReceiptParty::open_cheating(terms, of, key, cpu, Box::new(change)).unwrap());
    });
    let mut answers = Answers::new(Path::new(&folder.path("bob-folder"))).unwrap();
    let looks = thread::spawn(move || answers.serve(&two));
    (desk, [works, looks])
}

fn answered(journal: &str) -> usize {
    fs::read(journal).map_or(0, |bytes| bytes.iter().filter(|byte| **byte == b'\n').count())
}

/// Waits until something holds.
fn until(what: &str, holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// The signer's process is killed while the referee waits for its answer, and started again.
#[test]
fn a_signer_that_is_killed_midway_loses_nothing() {
    let folder = predicted();
    let new = NEW.replace("--moves 5", "--moves 60");
    folder.json(&format!("{new} --run run --replay 60 --out terms.json"), 0);
    let terms = Terms::from_bytes(&fs::read(folder.path("terms.json")).unwrap()).unwrap();
    let serve = |listen: &str| {
        let party = "run --inputs inputs.npy --key alice --terms terms.json --referee-key referee.pub";
        folder.serve(&format!("{party} --listen {listen}"))
    };
    let (mut alice, said) = serve("127.0.0.1:0");
    let (desk, threads) = lying_bob(&folder, &terms);
    let address = said["address"].as_str().unwrap();
    let play = format!("referee terms.json --key referee alice={address} bob=bob-folder --out v.json --json");
    let referee = folder.command(&play).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();

    let [hers, his] = ["terms.json.party-0.answers", "bob.answers"].map(|name| folder.path(name));
    // The first answer: if this thread slept until the last one, no move would be due.
    until("the signer answers", || answered(&hers) > 0);
    let stop = Command::new("kill").args(["-STOP", &alice.id().to_string()]).status().unwrap();
    assert!(stop.success());
    // Both are asked the same questions, so the one that the challenger has answered is due.
    until("a move of the signer is due", || answered(&his) > answered(&hers));
    alice.kill().unwrap();
    alice.wait().unwrap();
    let before = fs::read(&hers).unwrap();
    let (alice, _) = serve(address.trim_start_matches("http://"));

    let ended = referee.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{}", String::from_utf8_lossy(&ended.stderr));
    let result: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    let honest = receipt(&folder);
    assert_eq!(result["result"]["remaining"], serde_json::json!([0]), "{result}");
    assert_eq!(result["result"]["upheld"], claimed_root(&honest.traces.unwrap(), &honest.root()).to_string());
    assert_eq!(result["result"]["absent"], serde_json::json!([]), "{result}");
    // The journal went on where the killed process left it.
    assert!(fs::read(&hers).unwrap().starts_with(&before) && answered(&hers) > 4);
    desk.close();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    terminated(alice);
}

/// A signer who withholds everything forfeits. The challenger's command reads the samples from data files, and remains.
#[test]
fn a_silent_signer_of_predictions_forfeits() {
    let folder = predicted();
    folder.json(&format!("{NEW} --job logistic.toml --replay 2 --out terms.json"), 0);
    let serve = "run --data inputs.npy --data labels.npy --key bob --terms terms.json --referee-key referee.pub --files bob-folder";
    let (bob, _) = folder.serve(serve);
    let play = "referee terms.json --key referee alice=nobody-here bob=bob-folder --out v.json";
    let result = folder.json(play, 5);
    assert_eq!(result["result"]["remaining"], serde_json::json!([1]), "{result}");
    assert_eq!(result["result"]["absent"][0]["reason"], "timeout");
    terminated(bob);
    // The digests of the passes are kept beside the journal, for a party that is started again. With other data it does not begin.
    assert!(fs::metadata(folder.path("terms.json.party-1.answers.passes")).unwrap().len() > 0);
    other_inputs(&folder);
    let serve = "run --key bob --terms terms.json --referee-key referee.pub --files bob-folder --inputs";
    let (code, stderr) = ended(&folder, &format!("{serve} other.npy"));
    assert!(code == 2 && stderr.contains("the inputs of sample 3 are"), "{code} {stderr}");
    let (bob, _) = folder.serve(&format!("{serve} inputs.npy"));
    terminated(bob);
}

/// Writes `other.npy`, whose fourth sample has another third number.
fn other_inputs(folder: &Folder) {
    let mut other = fs::read(folder.path("inputs.npy")).unwrap();
    let first = other.len() - 10 * 3 * 4;
    other[first + 3 * 12 + 8] ^= 1;
    fs::write(folder.path("other.npy"), &other).unwrap();
}

/// The exit code and stderr of a party that refuses to serve.
fn ended(folder: &Folder, args: &str) -> (i32, String) {
    let mut child = folder.command(&format!("serve {args}"));
    let mut child = child.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // A party that serves all the same would never end.
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() && begin.elapsed() < Duration::from_secs(60) {
        thread::sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
    let ended = child.wait_with_output().unwrap();
    (ended.status.code().unwrap_or(-1), String::from_utf8(ended.stderr).unwrap())
}

/// Other data are not the receipt's, and games of other kinds have other options.
#[test]
fn a_party_needs_the_samples_of_the_receipt() {
    let folder = predicted();
    folder.json(&format!("{NEW} --run run --replay 60 --out terms.json"), 0);
    other_inputs(&folder);
    let serve = |args: &str| {
        let options =
            "--key bob --terms terms.json --referee-key referee.pub --journal j --listen 127.0.0.1:0";
        ended(&folder, &format!("{args} {options}"))
    };
    for (args, says) in [
        ("run --inputs other.npy", "the inputs of sample 3 are"),
        ("run --challenge mine", "leave --challenge out"),
        ("run --inputs inputs.npy --data inputs.npy", "cannot be used with"),
        ("--challenge mine --inputs inputs.npy", "RUN"),
    ] {
        let (code, stderr) = serve(args);
        assert!(code == 2 && stderr.contains(says), "{args}: {code} {stderr}");
    }
    let (code, stderr) = serve("run --inputs labels.npy");
    assert!(code == 4 && stderr.contains("the model takes F32 [samples, 3]"), "{code} {stderr}");
    // A receipt without traces has nothing to search.
    assert_eq!(folder.run("predict run --inputs inputs.npy --receipt u.json --key alice").0, 0);
    let new = NEW.replace("r.json", "u.json");
    let (code, _, stderr) = folder.run(&format!("{new} --run run --replay 60 --out other.json"));
    assert!(code == 2 && stderr.contains("commits no traces"), "{stderr}");
}
