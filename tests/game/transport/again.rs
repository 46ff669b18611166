//! One question, one answer: parties that are killed, referees that are doubled or held up, and folders that others write to.

use std::process::{Child, Stdio};

use super::commands::{Folder, liar, made, terminated};
use super::*;
use tiebreak_dispute::game::message::Tree;
use tiebreak_dispute::game::terms::Terms;

const SERVE: &str = "--key alice --terms terms.json --referee-key referee.pub --listen 127.0.0.1:0";

fn address(said: &serde_json::Value) -> SocketAddr {
    said["address"].as_str().unwrap().strip_prefix("http://").unwrap().parse().unwrap()
}

/// The answer to a question over HTTP.
fn asked_at(address: SocketAddr, sealed: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(&post(sealed)).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    assert!(bytes.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&bytes));
    let body = bytes.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
    bytes.split_off(body)
}

#[test]
fn a_party_that_is_killed_gives_the_answers_that_it_gave() {
    let folder = made();
    folder.terms("bob", "--replay 60", "terms.json");
    let game = Terms::from_bytes(&std::fs::read(folder.path("terms.json")).unwrap()).unwrap().game();
    let referee = PrivateKey::from_text(&std::fs::read_to_string(folder.path("referee")).unwrap()).unwrap();
    let question =
        |turn: u32, question: Question| Sealed::new(Asked::new(game, turn, question), &referee).to_bytes();
    let questions = [
        question(0, Question::Commit),
        question(1, Question::Reveal),
        question(2, Question::Children { tree: Tree::Transcript, first: 0, count: 5 }),
        question(3, Question::Statement { step: 2 }),
    ];
    let all = |address: SocketAddr| questions.each_ref().map(|sealed| asked_at(address, sealed));

    let (mut alice, said) = folder.serve(&format!("honest {SERVE}"));
    let answers = all(address(&said));
    assert_eq!(all(address(&said)), answers);
    // No other process answers for this party meanwhile.
    let (code, _, stderr) = folder.run(&format!("serve honest {SERVE}"));
    assert!(code != 0 && stderr.contains("another process of this party"), "{code} {stderr}");
    alice.kill().unwrap();
    alice.wait().unwrap();

    // An answer that was being written when the process was killed was never sent.
    let journal = folder.path("terms.json.party-0.answers");
    let mut text = std::fs::read(&journal).unwrap();
    text.extend(b"{\"question\":\"00");
    std::fs::write(&journal, text).unwrap();
    // The party comes back with other records: its answers stand, whatever its run says now.
    let (alice, said) = folder.serve(&format!("lying {SERVE}"));
    assert_eq!(all(address(&said)), answers);
    terminated(alice);
    // Without the journal these records give other answers; for the cheated step the engine gives none.
    let (alice, said) = folder.serve(&format!("lying {SERVE} --journal other.answers"));
    for (sealed, answer) in questions.iter().zip(&answers).take(3) {
        assert_ne!(asked_at(address(&said), sealed), *answer);
    }
    terminated(alice);
    // A journal belongs to one party and game.
    let bob = SERVE.replace("alice", "bob");
    let (code, _, stderr) = folder.run(&format!("serve honest {bob} --journal other.answers"));
    assert!(code != 0 && stderr.contains("it is the journal of alice+"), "{code} {stderr}");
}

/// A referee that plays by a journal of its own.
fn referee(folder: &Folder, alice: SocketAddr, name: &str) -> Child {
    let play = format!(
        "referee terms.json --key referee alice=http://{alice} bob=bob-folder --journal {name}.journal --out {name}.json --json"
    );
    folder.command(&play).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// A game ends with the conviction of the liar, and nothing against the honest party.
fn convicts_the_liar(folder: &Folder, child: Child, name: &str) {
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(output.status.code(), Some(1), "{}{}", text(&output.stdout), text(&output.stderr));
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(result["result"]["remaining"], serde_json::json!([0]), "{result}");
    let (code, stdout, _) = folder.run(&format!("verdict check {name}.json --party-key bob.pub"));
    let convicted = |line: &str| line.starts_with("party 1 (bob, ") && line.contains("): CONVICTED");
    assert!(code == 1 && stdout.lines().any(convicted), "{stdout}");
}

#[test]
fn two_referees_with_one_key_find_one_liar() {
    let folder = made();
    folder.terms("bob", "--replay 60", "terms.json");
    let (alice, said) = folder.serve(&format!("honest {SERVE}"));
    let (desk, threads) = liar(&folder, ["bob", "lying", "weight-before@2"], ["terms.json", "bob-folder"]);
    let both = ["one", "two"].map(|name| (name, referee(&folder, address(&said), name)));
    both.into_iter().for_each(|(name, child)| convicts_the_liar(&folder, child, name));
    // Both were given one answer to each question.
    let count = desk.answered();
    let journal = |name: &str| std::fs::read_to_string(folder.path(name)).unwrap();
    let answers = journal("terms.json.bob.answers");
    assert_eq!(answers.lines().count(), 1 + count);
    let messages = |name: &str| journal(name).matches("\"party\":1").count();
    assert_eq!([messages("one.journal"), messages("two.journal")], [count, count]);
    desk.close();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    terminated(alice);
}

#[test]
fn a_referee_that_is_held_up_counts_no_time() {
    let folder = made();
    folder.terms("bob", "--replay 60 --moves 5 --increment 1", "terms.json");
    let (alice, said) = folder.serve(&format!("honest {SERVE}"));
    let (desk, threads) = liar(&folder, ["bob", "lying", "weight-before@2"], ["terms.json", "bob-folder"]);
    let child = referee(&folder, address(&said), "held");
    let signal = |name: &str| {
        let id = child.id().to_string();
        assert!(std::process::Command::new("kill").args([name, &id]).status().unwrap().success());
    };
    let journal = || std::fs::read_to_string(folder.path("held.journal")).unwrap_or_default().lines().count();
    while journal() < 5 {
        thread::sleep(Duration::from_millis(5));
    }
    signal("-STOP");
    let stood = journal();
    // Longer than any party has with these clocks.
    thread::sleep(Duration::from_secs(7));
    assert_eq!(journal(), stood);
    signal("-CONT");
    convicts_the_liar(&folder, child, "held");
    desk.close();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    terminated(alice);
}

/// Writes to a party's folder what synchronising tools, copies and strangers write, once at each turn.
fn garbled(folder: &Path) {
    let write = |path: std::path::PathBuf, bytes: &[u8]| std::fs::write(path, bytes).unwrap();
    write(folder.join("question-1.json"), b"a copy");
    write(folder.join("question-0001 (1).json"), b"another copy");
    write(folder.join("question-9999.json"), b"{}");
    std::fs::create_dir(folder.join("question-0777.json")).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", folder.join("question-0778.json")).unwrap();
    for turn in 0..TURNS {
        let (question, answer) = (question_path(folder, turn), answer_path(folder, turn));
        while !question.exists() {
            thread::sleep(Duration::from_millis(1));
        }
        // A question that is half copied, or another turn's; an answer of zeros, an older one, one that is cut off.
        let whole = std::fs::read(&question).unwrap();
        write(question.clone(), &whole[..whole.len() / 2]);
        write(answer.clone(), &[0; 700]);
        thread::sleep(Duration::from_millis(250));
        if let Some(before) = turn.checked_sub(1) {
            write(question, &std::fs::read(question_path(folder, before)).unwrap());
            write(answer.clone(), &std::fs::read(answer_path(folder, before)).unwrap());
            thread::sleep(Duration::from_millis(250));
        }
        if let Ok(whole) = std::fs::read(&answer) {
            write(answer, &whole[..whole.len() / 2]);
        }
    }
}

#[test]
fn files_that_others_write_change_no_answer() {
    let dir = tempfile::tempdir().unwrap();
    let folders = ["a", "b"].map(|name| dir.path().join(name));
    let parties = [0, 1].map(|party| Party::folder(party, &folders[party]));
    let links = [0, 1].map(|party| link(folders[party].to_str().unwrap(), party)).into();
    let beset = {
        let folder = folders[0].clone();
        thread::spawn(move || garbled(&folder))
    };
    let transcript = played(links, &dir.path().join("journal"), LONG, |_| {}).transcript();
    beset.join().unwrap();
    assert_eq!(transcript.iter().filter(|(party, _)| *party == 0).count(), TURNS as usize);
    // Each question was answered once.
    let [first, second] = parties.each_ref().map(|party| party.answers.load(Ordering::Relaxed));
    assert_eq!([first, second], [TURNS; 2]);
    parties.into_iter().for_each(Party::end);
}
