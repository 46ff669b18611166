//! `tiebreak receipt check`: honest receipts on two engines, and each lie that a receipt can tell.

use std::fs;

use serde_json::Value;

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
