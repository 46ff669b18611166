//! `tiebreak receipt check`: honest receipts on two engines, each lie that a receipt can tell, and verdicts on signers who lie.

use std::fs;

use serde_json::Value;

use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::merkle;
use tiebreak_record::commit::receipt::{Receipt, answer_leaf};

use super::answers::small;
use super::{output, path};

/// The result of a check, with its exit code; an error's text is its `difference`.
fn checked(receipt: &str, run: &str, more: &[&str]) -> (i32, Value) {
    let (code, stdout, stderr) = output(&[&["receipt", "check", receipt, run, "--json"], more].concat());
    let found: Value = serde_json::from_str(if stdout.is_empty() { &stderr } else { &stdout }).unwrap();
    (code, found)
}

#[test]
fn each_lie_of_a_receipt_is_caught() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["one", "two"].map(|name| folder.path().join(name));
    fs::create_dir(&first).unwrap();
    fs::create_dir(&second).unwrap();
    let (run, other) = (small(&first, "0.01"), small(&second, "0.02"));
    let [signed, plain, key] = ["signed.json", "plain.json", "me.key"].map(|name| path(folder.path(), name));
    assert_eq!(output(&["key", "new", &key, "--name", "me.example"]).0, 0);
    let asked =
        ["--prompt", "The quick", "--length", "50", "--temperature", "2", "--top-k", "40", "--seed", "9"];
    let write = |more: &[&str]| {
        let (code, stdout, stderr) = output(&[&["generate", &run, "--json"], &asked[..], more].concat());
        assert_eq!(code, 0, "{stderr}");
        serde_json::from_str::<Value>(&stdout).unwrap()
    };
    let answer = write(&["--receipt", &signed, "--key", &key]);
    assert_eq!(answer["ids"], write(&["--receipt", &plain])["ids"]);

    let public = format!("{key}.pub");
    for engine in ["cpu", "reference"] {
        for (receipt, more) in [(&signed, &["--signer-key", &public][..]), (&plain, &[])] {
            let (code, found) = checked(receipt, &run, &[more, &["--engine", engine]].concat());
            assert_eq!(
                (code, &found["result"], &found["tokens"]),
                (0, &"matches".into(), &50.into()),
                "{found}"
            );
            assert_eq!(
                found["text"].as_str().unwrap(),
                &answer["text"].as_str().unwrap()["The quick".len()..]
            );
        }
    }

    // A field that is changed, and what the check says of it.
    let text = fs::read_to_string(&plain).unwrap();
    let fields: Value = serde_json::from_str(&text).unwrap();
    let ids: Vec<u64> = fields["answer"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    let list = |ids: &[u64]| serde_json::to_string(ids).unwrap();
    let (said, edited) = (list(&ids), path(folder.path(), "edited.json"));
    let mut wrong = ids.clone();
    wrong[17] = (wrong[17] + 1) % 128;
    let outside = ids.iter().map(|id| id + 1000).collect::<Vec<_>>();
    let root = format!("\"root\":{}", fields["root"]);
    let zeros = format!("\"root\":\"{}\"", "0".repeat(64));
    for (from, to, code, why) in [
        (&said[..], &list(&wrong)[..], 1, "token 17 of the answer is"),
        (&said, &list(&ids[..49]), 1, "the answer stops after 49 of 50 tokens"),
        ("\"seed\":\"0000000000000009\"", "\"seed\":\"0000000000000008\"", 1, " of the answer is"),
        ("\"temperature\":\"40000000\"", "\"temperature\":\"40800000\"", 1, " of the answer is"),
        ("\"prompt\":[84,", "\"prompt\":[85,", 1, ""),
        (&root, &zeros, 1, "all tokens follow, and the root"),
        (&said, &list(&outside), 4, "those of the model are below 128"),
        ("\"length\":50", "\"length\":49", 4, "its length is 49"),
        ("{\"format\"", " {\"format\"", 4, "one encoding"),
        ("receipt 1", "receipt 9", 4, "its format is"),
    ] {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text, "{from}");
        fs::write(&edited, changed).unwrap();
        let (found, json) = checked(&edited, &run, &[]);
        let words =
            [&json["difference"], &json["error"]].map(|text| text.as_str().unwrap_or_default()).concat();
        assert!(found == code && words.contains(why), "{from} -> {to}: {json}");
    }
    // The reference finds the same without being asked to confirm it.
    fs::write(&edited, text.replacen(&said, &list(&wrong), 1)).unwrap();
    let [cpu, reference] = ["cpu", "reference"].map(|engine| checked(&edited, &run, &["--engine", engine]));
    assert_eq!(cpu, reference);
    assert_eq!((cpu.0, &cpu.1["token"]), (1, &17.into()));
    assert_eq!(checked(&edited, &run, &["--decided-is-success"]).0, 0);

    // Other weights, another checkpoint, another model.
    for (of, more) in [(&other, &[][..]), (&run, &["--step", "1"])] {
        let (code, json) = checked(&plain, of, more);
        assert!(code == 1 && json["error"].as_str().unwrap().contains("is of other parameters"), "{json}");
    }
    let model = fields["model"].as_str().unwrap();
    for (changed, code, why) in [("0".repeat(64), 1, "of another model"), (format!("00{model}"), 4, "")] {
        fs::write(&edited, text.replacen(model, &changed, 1)).unwrap();
        let (found, json) = checked(&edited, &run, &[]);
        assert!(found == code && json["error"].as_str().unwrap().contains(why), "{json}");
    }

    // Signatures: a changed text, nobody's, and somebody else's.
    fs::write(&edited, fs::read_to_string(&signed).unwrap().replacen("\"length\":50", "\"length\":51", 1))
        .unwrap();
    let (code, json) = checked(&edited, &run, &[]);
    assert!(code == 4 && json["error"].as_str().unwrap().contains("is not over this text"), "{json}");
    let (code, json) = checked(&plain, &run, &["--signer-key", &public]);
    assert!(code == 4 && json["error"].as_str().unwrap().contains("signed by nobody"), "{json}");
    let stranger = path(folder.path(), "stranger.key");
    assert_eq!(output(&["key", "new", &stranger, "--name", "me.example"]).0, 0);
    assert_eq!(checked(&signed, &run, &["--signer-key", &format!("{stranger}.pub")]).0, 4);
    assert_eq!(checked("none.json", &run, &[]).0, 2);
}

/// The file of the released model is a container. Whoever reads the model holds the file to the final record.
#[test]
fn a_model_that_no_record_commits_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["one", "two"].map(|name| folder.path().join(name));
    fs::create_dir(&first).unwrap();
    fs::create_dir(&second).unwrap();
    let (run, other) = (small(&first, "0.01"), small(&second, "0.02"));
    let receipt = path(folder.path(), "receipt.json");
    let write = ["--prompt", "The", "--length", "3", "--temperature", "0", "--receipt", &receipt];
    assert_eq!(output(&[&["generate", &other], &write[..]].concat()).0, 0);
    let inputs = path(&second, "text.txt");
    fs::copy(first.join("run/model.safetensors"), second.join("run/model.safetensors")).unwrap();
    let all = |says: &str| {
        for args in [
            [&["generate", &other], &write[..]].concat(),
            vec!["receipt", "check", &receipt, &other],
            vec!["eval", &other, "--data", &inputs],
        ] {
            let (code, _, stderr) = output(&args);
            assert!(code == 4 && stderr.contains(says), "{args:?}: {code}: {stderr}");
        }
    };
    all(
        "model.safetensors: file: the released model is not the final state's parameters and buffers: a root is ",
    );
    // The same file in a run whose last record is missing.
    let transcript = second.join("run/transcript");
    let bytes = fs::read(&transcript).unwrap();
    let length = bytes.len() as u64;
    let records = tiebreak_run::run::transcript::read(&transcript).unwrap().0.records;
    let last = records.last().unwrap().encode().len() as u64;
    fs::OpenOptions::new().write(true).open(&transcript).unwrap().set_len(length - last - 12).unwrap();
    all("no final record commits the model: finish the training, or name a checkpoint by --step");
    assert_eq!(output(&["generate", &run, "--length", "3"]).0, 0);
}

/// A sample replays the windows that it needs, finds a lie that it draws, and says what can be wrong where it finds none.
#[test]
fn drawn_tokens_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let run = small(folder.path(), "0.01");
    let [receipt, lie, verdict, key] =
        ["a.json", "lie.json", "v.json", "me.key"].map(|name| path(folder.path(), name));
    assert_eq!(output(&["key", "new", &key, "--name", "me.example"]).0, 0);
    let asked = ["--prompt", "The quick", "--length", "50", "--temperature", "2", "--seed", "9"];
    assert_eq!(
        output(&[&["generate", &run], &asked[..], &["--receipt", &receipt, "--key", &key]].concat()).0,
        0
    );
    let sample = |receipt: &str, count: &str, more: &[&str]| {
        checked(receipt, &run, &[&["--sample", count], more].concat())
    };
    // The greatest w with C(50 - w, K) / C(50, K) > 0.05, computed in Python.
    for (count, drawn, wrong) in [("10", 10, 11), ("1", 1, 47), ("50", 50, 0), ("1000", 50, 0)] {
        let (code, found) = sample(&receipt, count, &[]);
        let said = &found["sample"];
        assert_eq!(
            (code, &said["drawn"], &said["wrong_at_most"]),
            (0, &drawn.into(), &wrong.into()),
            "{found}"
        );
        let replayed = said["replayed"].as_u64().unwrap();
        assert!((drawn..=50).contains(&replayed), "{found}");
        // The printed seed draws the same tokens again.
        let seed = said["seed"].as_u64().unwrap().to_string();
        assert_eq!(sample(&receipt, count, &["--seed", &seed, "--engine", "reference"]), (0, found));
    }
    // One wrong token: draws that reach it name it, and no other draw does.
    let (honest, _) = Receipt::from_text(&fs::read_to_string(&receipt).unwrap()).unwrap();
    let private = PrivateKey::from_text(&fs::read_to_string(&key).unwrap()).unwrap();
    let mut other = honest;
    other.answer[49] ^= 1;
    fs::write(&lie, other.to_text(Some(&private))).unwrap();
    let mut codes = [0, 0];
    for seed in 0..24 {
        let (code, found) = sample(&lie, "12", &["--seed", &seed.to_string(), "--verdict", &verdict]);
        codes[code as usize] += 1;
        if code == 1 {
            assert_eq!(found["token"], 49, "{found}");
        }
    }
    // Drawn with a probability of 12 / 50: of 24 draws 5.8 reach it, with a standard deviation of 2.1.
    assert!((1..=14).contains(&codes[1]), "{codes:?}");
    // An answer that stops is a difference, whatever is drawn.
    other.answer.truncate(20);
    fs::write(&lie, other.to_text(None)).unwrap();
    let (code, found) = sample(&lie, "1", &[]);
    assert!(code == 1 && found["difference"].as_str().unwrap().contains("stops after 20"), "{found}");
}

/// A signer who changes the last token, or stops early, is convicted by whoever has the verdict's file alone.
#[test]
fn a_wrong_answer_convicts_without_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let run = small(folder.path(), "0.01");
    let named = |name: &str| path(folder.path(), name);
    let [receipt, trace, key, lie, verdict] =
        ["answer.json", "answer.trace", "me.key", "lie.json", "verdict.json"].map(named);
    assert_eq!(output(&["key", "new", &key, "--name", "me.example"]).0, 0);
    let (public, private) = (format!("{key}.pub"), fs::read_to_string(&key).unwrap());
    let private = PrivateKey::from_text(&private).unwrap();
    let asked = ["--prompt", "The quick", "--length", "50", "--temperature", "2", "--seed", "9"];
    let written = ["--receipt", &receipt, "--trace", &trace, "--key", &key];
    assert_eq!(output(&[&["generate", &run], &asked[..], &written[..]].concat()).0, 0);
    for more in [&[][..], &["--trace", &trace], &["--verdict", &verdict]] {
        assert_eq!(checked(&receipt, &run, more).1["result"], "matches");
    }
    assert!(!fs::exists(&verdict).unwrap(), "nothing is wrong");

    // The rows of the trace give the root over the other token.
    let (honest, _) = Receipt::from_text(&fs::read_to_string(&receipt).unwrap()).unwrap();
    let bytes = fs::read(&trace).unwrap();
    let row = |place: usize| Digest(bytes[4 + 32 * place..][..32].try_into().unwrap());
    let mut other = honest.clone();
    other.answer[49] ^= 1;
    let leaves = (0..).zip(&other.answer).map(|(place, id)| answer_leaf(place, *id, &row(place as usize)));
    other.root = merkle::root(&leaves.collect::<Vec<_>>());
    let short = Receipt { answer: honest.answer[..20].to_vec(), traces: None, ..honest.clone() };
    let plain = Receipt { traces: None, ..other.clone() };
    for (number, (said, more, kind)) in (0..).zip([
        (&other, &["--trace", &trace][..], "token"),
        (&plain, &[], "token"),
        (&short, &[], "stopped"),
    ]) {
        fs::write(&lie, said.to_text(Some(&private))).unwrap();
        let file = named(&format!("verdict-{number}.json"));
        let (code, found) = checked(&lie, &run, &[more, &["--verdict", &file]].concat());
        if kind == "stopped" {
            // The root over fewer tokens is none of the signer's: the length alone convicts.
            assert_eq!((code, &found["verdict_file"]), (1, &file.clone().into()), "{found}");
        }
        let (code, stdout, stderr) = output(&["verdict", "check", &file, "--signer-key", &public, "--json"]);
        let found: Value = serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{code} {stderr}"));
        assert_eq!((code, &found["convicts"], &found["claim"]), (1, &true.into(), &kind.into()), "{found}");
        assert!(found["text"].as_str().unwrap().starts_with("CONVICTS me.example"), "{found}");
    }
    let file = named("verdict-0.json");
    assert_eq!(output(&["verdict", "check", &file, "--decided-is-success"]).0, 0);

    // Somebody else's key, an option of other verdicts, a file of other commands, an edited file, an honest receipt.
    let stranger = named("stranger.key");
    assert_eq!(output(&["key", "new", &stranger, "--name", "me.example"]).0, 0);
    let text = fs::read_to_string(&file).unwrap();
    let quoted = |receipt: &Receipt| serde_json::to_string(&receipt.to_text(Some(&private))).unwrap();
    let framed = text.replace(&quoted(&other), &quoted(&honest));
    assert_ne!(framed, text);
    fs::write(named("framed.json"), framed).unwrap();
    fs::write(named("edited.json"), text.replacen("\"number\":49", "\"number\":48", 1)).unwrap();
    let [framed, edited] = ["framed.json", "edited.json"].map(named);
    let page = named("page.html");
    for (args, code, says) in [
        (&["check", &file, "--signer-key", &format!("{stranger}.pub")][..], 4, "--signer-key is me.example"),
        (&["check", &file, "--run", &run], 2, "--run is for verdicts on a run"),
        (&["check", &file, "--tokenizer", &run], 2, "leave it out"),
        (&["check", &file, "--referee-key", &public], 2, "dispute games"),
        (&["report", &file, "--output", &page], 2, "is a verdict on a receipt"),
        (&["check", &edited], 4, "the row of token 48 is not what the receipt commits"),
    ] {
        let (found, _, stderr) = output(&[&["verdict"], args].concat());
        assert!(found == code && stderr.contains(says), "{args:?}: {found} {stderr}");
    }

    // The rows are the honest ones, so the evidence is true of the honest receipt, and accuses nobody.
    let (code, stdout, _) = output(&["verdict", "check", &framed]);
    assert!(code == 0 && stdout.contains("does not convict: token 49 of the answer is the one"), "{stdout}");

    // Nobody signed; a trace of another answer; a trace that no receipt commits.
    fs::write(&lie, other.to_text(None)).unwrap();
    let (code, found) = checked(&lie, &run, &["--verdict", &verdict]);
    assert!(code == 1 && found["no_verdict"].as_str().unwrap().contains("nobody signed"), "{found}");
    let traced = Receipt { traces: Some(Digest([1; 32])), ..other };
    fs::write(&lie, traced.to_text(Some(&private))).unwrap();
    // It hides no lie that shows without it.
    let (code, found) = checked(&lie, &run, &["--trace", &trace, "--verdict", &verdict]);
    assert!(code == 1 && found["verdict_file"].is_string(), "{found}");
    fs::write(&lie, plain.to_text(Some(&private))).unwrap();
    let (code, found) = checked(&lie, &run, &["--trace", &trace]);
    assert!(code == 2 && found["error"].as_str().unwrap().contains("commits no traces"), "{found}");
}
