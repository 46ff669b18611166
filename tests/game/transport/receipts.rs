//! Games about a receipt by the commands.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use sha2::{Digest as _, Sha256};

use super::commands::{Folder, terminated};
use crate::common::{gpt_job, trained};
use tiebreak_dispute::game::terms::Terms;
use tiebreak_engine::cpu::Cpu;
use tiebreak_game::net::desk::Desk;
use tiebreak_game::net::folder::Answers;
use tiebreak_game::party::ReceiptParty;
use tiebreak_record::commit::answer_trace::claimed_root;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::receipt::Receipt;
use tiebreak_record::commit::salted_receipt::{self, AnyReceipt};
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::{checkpoint, names};

const NEW: &str = "referee new --party alice.pub --party bob.pub --referee referee.pub";

/// A run of a GPT, and a salted receipt of an answer, which alice signed.
fn answered() -> Folder {
    let folder = Folder(tempfile::tempdir().unwrap());
    trained(&gpt_job(folder.0.path(), "step", ""), &folder.0.path().join("run"), None);
    for name in ["alice", "bob", "referee"] {
        assert_eq!(folder.run(&format!("key new {name} --name {name}")).0, 0);
    }
    let files = "--receipt r.json --opening o.json --trace t --key alice";
    let (code, _, stderr) = folder.run(&format!("generate run --prompt abc --length 14 {files}"));
    assert_eq!(code, 0, "{stderr}");
    folder
}

#[test]
fn a_game_about_a_receipt_convicts_whoever_lies() {
    let folder = answered();
    let about = "--receipt r.json --opening o.json --run run --moves 5 --increment 1 --replay 60";
    let said = folder.json(&format!("{NEW} {about} --out terms.json"), 0);
    let root = said["traces"].as_str().unwrap().to_string();
    let sum = Sha256::digest(fs::read(folder.path("r.json")).unwrap());
    let sum: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(said["receipt"]["sha256"], sum);
    let bytes = fs::read(folder.path("terms.json")).unwrap();
    let terms = Terms::from_bytes(&bytes).unwrap();
    let text = &terms.receipt.as_ref().unwrap().text;
    let opening = fs::read_to_string(folder.path("o.json")).unwrap();
    let (AnyReceipt::Answer(receipt), _) = salted_receipt::read(text, Some(&opening)).unwrap() else {
        panic!("a receipt of an answer")
    };
    let claimed = claimed_root(&receipt.traces.unwrap(), &receipt.root);
    // The receipt needs its opening, the signer comes first, a clock is given, and runs have other options.
    let refused = |args: &str, says: &str| {
        let (code, _, stderr) = folder.run(&format!("{args} --out other.json"));
        assert!(code == 2 && stderr.contains(says), "{args}: {code} {stderr}");
    };
    refused(&format!("{NEW} --receipt r.json --run run --replay 60"), "is salted");
    refused(&format!("{NEW} --receipt r.json --opening o.json --run run"), "give --replay");
    refused(&format!("{NEW} --receipt r.json --opening o.json --replay 60"), "--run <RUN>");
    refused(&format!("{NEW} --opening o.json --run run --replay 60"), "--receipt");
    let other = NEW.replace("alice.pub --party bob.pub", "bob.pub --party alice.pub");
    refused(&format!("{other} {about}"), "the first party is not");

    // The challenger flips a bit of an operator of the second window; the signer's command answers over HTTP.
    let serve = "run --key alice --terms terms.json --referee-key referee.pub --listen 127.0.0.1:0";
    let (alice, said) = folder.serve(serve);
    let key = PrivateKey::from_text(&fs::read_to_string(folder.path("bob")).unwrap()).unwrap();
    let journal = folder.path("bob.answers");
    let referee = terms.keys().unwrap().1;
    let desk =
        Arc::new(Desk::open(terms.game(), &key, referee, Path::new(&journal), Disk::default()).unwrap());
    let (run, one, two) = (folder.path("run"), desk.clone(), desk.clone());
    let works = thread::spawn(move || {
        let run = Run::open(Path::new(&run)).unwrap();
        let model = &run.program().state()[..run.program().released()];
        let weights = checkpoint::read(run.at(names::MODEL), model).unwrap();
        let change = |window: usize, node: usize, bytes: &[u8]| {
            (window == 1 && node == 5).then(|| bytes.iter().map(|byte| byte ^ 1).collect())
        };
        let cpu = Box::new(Cpu::new(1).unwrap());
        one.work(&mut ReceiptParty::open_cheating(terms, weights, key, cpu, Box::new(change)).unwrap());
    });
    let mut answers = Answers::new(Path::new(&folder.path("bob-folder"))).unwrap();
    let looks = thread::spawn(move || answers.serve(&two));
    let address = said["address"].as_str().unwrap();
    let play = format!("referee terms.json --key referee alice={address} bob=bob-folder --out v.json");
    let result = folder.json(&play, 1);
    assert_eq!(result["result"]["remaining"], serde_json::json!([0]), "{result}");
    assert_eq!(result["result"]["upheld"], claimed.to_string());
    let checked = folder.json("verdict check v.json --party-key bob.pub", 1);
    assert_eq!((&checked["computation"], &checked["traces"]), (&serde_json::Value::Null, &root.into()));
    // The first party is the signer. No trainer is a party, and nothing is said of a run or of records.
    let checked = folder.run("verdict check v.json --signer-key alice.pub --party-key bob.pub");
    assert!(checked.0 == 1 && checked.1.contains(&format!("receipt: the file with the SHA-256 {sum}")));
    for (option, code, says) in [
        ("--signer-key bob.pub", 4, "no signer with the key of bob"),
        ("--trainer-key alice.pub", 2, "this game is about a receipt: name the parties by --party-key"),
        ("--tokenizer run", 2, "--tokenizer is for verdicts on a token"),
    ] {
        let (found, _, stderr) = folder.run(&format!("verdict check v.json {option}"));
        assert!(found == code && stderr.contains(says), "{option}: {found} {stderr}");
    }
    assert_eq!(folder.run("verdict report v.json --output v.html").0, 0);
    let page = fs::read_to_string(folder.path("v.html")).unwrap();
    assert!(page.contains("A dispute about a receipt of an answer") && page.contains(&sum));
    assert!(page.contains("commit to your passes and rows of the answer") && !page.contains("training run"));
    assert!(!page.contains("records"), "{page}");
    desk.close();
    [works, looks].into_iter().for_each(|thread| thread.join().unwrap());
    terminated(alice);

    // Parties and games of the other kind are refused.
    for (args, says) in [
        ("serve run --challenge mine", "leave --challenge out"),
        ("serve run --data .", "leave --data and --inputs out"),
        ("serve run --inputs x.npy", "leave --data and --inputs out"),
        ("serve run --step 99", "99"),
        ("serve --challenge mine --data .", "give RUN"),
    ] {
        let (code, _, stderr) = folder.run(&format!(
            "{args} --key alice --terms terms.json --referee-key referee.pub --journal j --listen 127.0.0.1:0"
        ));
        assert!(code != 0 && stderr.contains(says), "{args}: {code} {stderr}");
    }
}

/// A signer who withholds everything forfeits; the challenger's command remains.
#[test]
fn a_silent_signer_forfeits() {
    let folder = answered();
    let about = "--receipt r.json --opening o.json --job job.toml --moves 5 --increment 1 --replay 2";
    folder.json(&format!("{NEW} {about} --out terms.json"), 0);
    let serve = "run --key bob --terms terms.json --referee-key referee.pub --files bob-folder";
    let (bob, _) = folder.serve(serve);
    let play = "referee terms.json --key referee alice=nobody-here bob=bob-folder --out v.json";
    let result = folder.json(play, 5);
    assert_eq!(result["result"]["remaining"], serde_json::json!([1]), "{result}");
    assert_eq!(result["result"]["absent"][0]["reason"], "timeout");
    terminated(bob);
    // The trace is kept beside the journal, for a party that is started again.
    assert!(fs::metadata(folder.path("terms.json.party-1.answers.passes")).unwrap().len() > 0);
    let (bob, _) = folder.serve(serve);
    terminated(bob);
}

/// A signer whose model gives another trace than it signed learns so, after it has begun to send the answers of its journal.
#[test]
fn the_journal_is_served_before_the_trace_is_there() {
    let folder = answered();
    assert_eq!(
        folder.run("generate run --prompt abc --length 14 --receipt s.json --trace u --key alice").0,
        0
    );
    let key = PrivateKey::from_text(&fs::read_to_string(folder.path("alice")).unwrap()).unwrap();
    let text = fs::read_to_string(folder.path("s.json")).unwrap();
    let (receipt, _) = Receipt::from_text(&text).unwrap();
    let other = Receipt { traces: Some(Digest([5; 32])), ..receipt };
    fs::write(folder.path("s.json"), other.to_text(Some(&key))).unwrap();
    let about = "--receipt s.json --run run --moves 5 --increment 1 --replay 60";
    folder.json(&format!("{NEW} {about} --out terms.json"), 0);
    let serve = "serve run --key alice --terms terms.json --referee-key referee.pub --listen 127.0.0.1:0";
    let (code, said, stderr) = folder.run(serve);
    assert!(said.contains("  answers at http://127.0.0.1:"), "{said}{stderr}");
    assert!(code == 2 && stderr.contains("is not the one that the receipt commits"), "{code} {stderr}");
    assert!(fs::metadata(folder.path("terms.json.party-0.answers.passes")).is_err());
}
