//! Salted receipts: written with their openings, checked by them, and verdicts that carry them.

use std::fs;
use std::path::Path;

use serde_json::Value;

use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::salted_receipt::{AnyReceipt, read, salted_texts};

use super::answers::small;
use super::{output, path};

/// The JSON of a command with its exit code; an error's, if it has no result.
fn json(args: &[&str]) -> (i32, Value) {
    let (code, stdout, stderr) = output(&[args, &["--json"]].concat());
    let text = if stdout.is_empty() { &stderr } else { &stdout };
    (code, serde_json::from_str(text).unwrap_or_else(|_| panic!("{args:?}: {stdout}{stderr}")))
}

/// A lie about a receipt of each kind, which a verdict shows without a trace.
fn lie(receipt: &mut AnyReceipt) -> &'static str {
    match receipt {
        AnyReceipt::Answer(receipt) => {
            receipt.answer.truncate(3);
            "stopped"
        }
        AnyReceipt::Predictions(receipt) => {
            receipt.samples[1].predicted[2] ^= 1;
            "class"
        }
    }
}

#[test]
fn a_salted_receipt_is_checked_by_its_opening_alone() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let run = small(at, "0.01");
    let key = path(at, "me.key");
    assert_eq!(output(&["key", "new", &key, "--name", "me.example"]).0, 0);
    let generate = ["generate", &run, "--prompt", "The quick", "--length", "8", "--seed", "3"];
    let predict = ["predict", &run, "--samples", "0..3"];
    for (name, asked) in [("answer", &generate[..]), ("predictions", &predict)] {
        let at = at.join(name);
        fs::create_dir(&at).unwrap();
        is_checked(&at, asked, &run, &key);
    }
    // Without a receipt there is nothing to salt.
    let (code, _, stderr) = output(&[&predict[..], &["--opening", &path(at, "none")]].concat());
    assert!(code == 2 && stderr.contains("--receipt"), "{stderr}");
}

/// The opening has the text: others may not read it, it is no file of a run, and it is not the receipt.
fn is_kept(asked: &[&str], run: &str, opening: &str, one: &str) {
    #[cfg(unix)]
    {
        let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(opening).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
    }
    for (at, why) in [(one, "are one file"), (&*format!("{run}/opening"), "which is published")] {
        let (code, _, stderr) = output(&[asked, &["--receipt", one, "--opening", at]].concat());
        assert!(code == 2 && stderr.contains(why) && !Path::new(at).exists(), "{stderr}");
    }
}

fn is_checked(at: &Path, asked: &[&str], run: &str, key: &str) {
    let named = |name: &str| path(at, name);
    let [plain, receipt, opening, other, opened, file] =
        ["plain.json", "r.json", "opening.json", "other.json", "other.opening", "verdict.json"].map(named);
    let public = format!("{key}.pub");
    for more in [
        &["--receipt", &plain][..],
        &["--receipt", &receipt, "--opening", &opening, "--key", key],
        &["--receipt", &other, "--opening", &opened, "--key", key],
    ] {
        assert_eq!(output(&[asked, more].concat()).0, 0);
    }
    let [text, opening_of, hidden] =
        [&receipt, &opening, &plain].map(|file| fs::read_to_string(file).unwrap());
    assert!(text.len() < 1024 && !text.contains("prompt") && !text.contains("inputs"), "{text}");
    is_kept(asked, run, &opening, &named("one"));
    // Each receipt has a salt of its own, and hides the receipt that is written without one.
    assert_ne!(text, fs::read_to_string(&other).unwrap());
    let (said, _) = read(&text, Some(&opening_of)).unwrap();
    assert_eq!(read(&hidden, None).unwrap().0, said);

    let check = |receipt: &str, more: &[&str]| json(&[&["receipt", "check", receipt, run], more].concat());
    let (code, found) = check(&receipt, &["--opening", &opening, "--signer-key", &public]);
    assert_eq!((code, &found["result"]), (0, &"matches".into()), "{found}");
    assert!(found["signer"].as_str().unwrap().starts_with("me.example"), "{found}");
    for (receipt, more, code, says) in [
        (&receipt, &[][..], 2, "r.json is salted: give --opening FILE"),
        (&plain, &["--opening", &opening], 2, "plain.json is not salted: leave --opening out"),
        (&receipt, &["--opening", &opened], 4, "other.opening: opening: its salt and its receipt give"),
        (&receipt, &["--opening", &plain], 4, "plain.json: opening: "),
        (&receipt, &["--opening", "missing"], 2, "missing"),
    ] {
        let (found, json) = check(receipt, more);
        assert!(found == code && json["error"].as_str().unwrap().contains(says), "{says}: {found} {json}");
    }

    // A signer who lies is convicted by a verdict that carries the opening.
    let private = PrivateKey::from_text(&fs::read_to_string(key).unwrap()).unwrap();
    let mut lied = said;
    let kind = lie(&mut lied);
    let [text, opening_of] = salted_texts(&lied, [7; 32], Some(&private));
    fs::write(&receipt, text).unwrap();
    fs::write(&opening, &opening_of).unwrap();
    let (code, found) = check(&receipt, &["--opening", &opening, "--verdict", &file]);
    assert_eq!((code, &found["verdict_file"]), (1, &file.clone().into()), "{found}");
    let (code, found) = json(&["verdict", "check", &file, "--signer-key", &public]);
    assert_eq!((code, &found["convicts"], &found["claim"]), (1, &true.into(), &kind.into()), "{found}");
    // Without the opening, or with another one, the file does not hold together.
    let mut verdict: serde_json::Map<String, Value> =
        serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let right = fs::read_to_string(&file).unwrap();
    let quoted = serde_json::to_string(verdict.remove("opening").unwrap().as_str().unwrap()).unwrap();
    let others = serde_json::to_string(&fs::read_to_string(&opened).unwrap()).unwrap();
    for (with, says) in [
        (String::new(), "it is salted, and no opening is given"),
        (format!(",\"opening\":{others}"), "its salt and its receipt give"),
    ] {
        let changed = right.replace(&format!(",\"opening\":{quoted}"), &with);
        assert_ne!(changed, right);
        fs::write(&file, changed).unwrap();
        let (code, found) = json(&["verdict", "check", &file]);
        assert!(code == 4 && found["error"].as_str().unwrap().contains(says), "{says}: {found}");
    }
}
