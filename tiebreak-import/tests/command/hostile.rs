//! Hostile inputs: each is an error that says what to do, within bounds of time and memory, and leaves no file.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use crate::{error, gpt2, names, npy};

/// The exit code and the error of a command that has to end: one that hangs is killed.
fn ends(folder: &Path, mut command: Command) -> (Option<i32>, String) {
    let piped = command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let (mut child, begin) = (piped.spawn().unwrap(), Instant::now());
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
        }
        sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn import(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiebreak-import"));
    command.args(arguments);
    command
}

/// A tokenizer.json over bytes: the ids from 0 on, the token "he", and this normalizer.
fn described(he: u32, normalizer: &Value) -> String {
    let mut letters: Vec<String> = ByteLevel::alphabet().into_iter().map(String::from).collect();
    letters.sort();
    let mut ids: serde_json::Map<String, Value> = letters.into_iter().zip((0..).map(Value::from)).collect();
    ids.insert("he".into(), he.into());
    let bytes =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    json!({ "version": "1.0", "added_tokens": [], "normalizer": normalizer, "pre_tokenizer": bytes,
        "model": { "type": "BPE", "vocab": ids, "merges": ["h e"] } })
    .to_string()
}

/// One step of a chain that replaces texts.
fn replace(from: &str, to: &str) -> Value {
    json!({ "type": "Replace", "pattern": { "String": from }, "content": to })
}

#[test]
fn a_hostile_tokenizer_ends_its_own_process_alone() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("a.txt"), "he he he").unwrap();
    fs::write(at("a.jsonl"), "{\"prompt\":\"he\",\"completion\":\" he\"}\n").unwrap();
    let chain = |steps: Vec<Value>| json!({ "type": "Sequence", "normalizers": steps });
    let charsmap = |base64: &str| json!({ "type": "Precompiled", "precompiled_charsmap": base64 });
    let prepend = json!({ "type": "Prepend", "prepend": "x".repeat(1000) });
    // NFKD makes 18 characters of this one, with blanks among them.
    let unpacked =
        [replace("h", &"\u{fdfa}".repeat(1000)), json!({ "type": "NFKD" }), replace(" ", &"h".repeat(1000))];
    let too_late = "the tokenizer was stopped: it took more than 1 s; raise --tokenizer-time";
    // The trie of the first table has 2^30 numbers by its header, that of the second has an offset outside of it.
    for (he, normalizer, why) in [
        (u32::MAX, Value::Null, "the token \"he\" has the id 4294967295; ids are below 1048576"),
        (1 << 20, Value::Null, "the token \"he\" has the id 1048576"),
        (
            256,
            charsmap("/////w=="),
            "the tokenizer was stopped: it took more than 4096 MiB of memory; shorten the text",
        ),
        (256, charsmap("BAAAAP////9h"), "the tokenizer's library panics with it: use a different tokenizer"),
        (256, chain(vec![replace("h", &"h".repeat(1000)); 8]), too_late),
        (256, chain(vec![prepend; 10_000]), too_late),
        (256, chain(vec![unpacked; 8].concat()), too_late),
    ] {
        fs::write(at("t.json"), described(he, &normalizer)).unwrap();
        let before = names(folder.path());
        for command in [&["text", "a.txt"][..], &["answers", "--context", "4", "--pad", "a", "a.jsonl"]] {
            let common = ["--tokenizer", "t.json", "--tokenizer-time", "1", "--output", "out.npy"];
            let (code, error) = error(folder.path(), &[&command[..1], &common, &command[1..]].concat());
            assert!(code == 4 && error.contains(why), "{code} {error}");
            assert_eq!(names(folder.path()), before, "{why}");
        }
    }
}

/// A line or a text beyond its bound is refused before it takes memory, whose addresses are bounded here.
#[cfg(target_os = "linux")]
#[test]
fn long_lines_and_texts_are_refused_within_memory() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    gpt2(&at("gpt2"));
    let long = "he".repeat(35 << 20);
    fs::write(at("line.jsonl"), format!("{{\"text\":\"{long}\"}}\n")).unwrap();
    fs::write(at("text.txt"), &long).unwrap();
    let before = names(folder.path());
    let text = ["text", "--tokenizer", "gpt2", "--output", "out.npy"];
    let answers = ["answers", "--tokenizer", "gpt2", "--context", "4", "--pad", "h", "--output", "out.npy"];
    for (command, file, why) in [
        (&text[..], "line.jsonl", "line 1: it has more than 16777216 bytes; write long texts to"),
        (&answers, "line.jsonl", "line 1: it has more than 16777216 bytes"),
        (&text, "text.txt", "can be cut for this tokenizer in 16777216 bytes; split the file"),
    ] {
        let mut bounded = Command::new("sh");
        bounded.args(["-c", "ulimit -v 600000 && exec \"$@\"", "sh", env!("CARGO_BIN_EXE_tiebreak-import")]);
        bounded.args(["--threads", "1"]).args(command).arg(file);
        let (code, error) = ends(folder.path(), bounded);
        assert!(code == Some(4) && error.contains(why), "{code:?} {error}");
        assert_eq!(names(folder.path()), before);
    }
}

/// Opening a pipe waits for somebody who writes to it, and a device has no end.
#[cfg(unix)]
#[test]
fn pipes_and_devices_are_no_inputs() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    gpt2(&at("gpt2"));
    fs::write(at("a.txt"), "he").unwrap();
    ["kept", "described", "pictures/a"].iter().for_each(|name| fs::create_dir_all(at(name)).unwrap());
    let paths = ["pipe", "described/tokenizer.json", "pictures/a/1.png"];
    assert!(Command::new("mkfifo").current_dir(folder.path()).args(paths).status().unwrap().success());
    let before = names(folder.path());
    let text = |tokenizer, file| vec!["text", "--tokenizer", tokenizer, "--output", "out.npy", file];
    let answers = |tokenizer, file| {
        vec!["answers", "--tokenizer", tokenizer, "--context", "4", "--pad", "h", "--output", "out.npy", file]
    };
    for arguments in [
        text("pipe", "a.txt"),
        text("described", "a.txt"),
        text("gpt2", "pipe"),
        text("gpt2", "/dev/zero"),
        answers("pipe", "a.txt"),
        answers("gpt2", "pipe"),
        vec!["tokens", "pipe", "--dtype", "u16", "--output", "out.npy"],
        vec!["tokens", "/dev/zero", "--dtype", "u16", "--output", "out.npy"],
        vec!["pictures", "--size", "2x2", "--output", "out", "pictures"],
    ] {
        let (code, error) = ends(folder.path(), import(&arguments));
        assert!(
            code == Some(4) && error.contains("a plain file is wanted"),
            "{arguments:?}: {code:?} {error}"
        );
        assert_eq!(names(folder.path()), before, "{arguments:?}");
    }
}

/// What lies under a temporary name is not written through. Only what an interrupted import left is taken.
#[cfg(unix)]
#[test]
fn temporary_names_lead_to_no_other_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    gpt2(&at("gpt2"));
    fs::write(at("a.txt"), "he").unwrap();
    fs::write(at("a.jsonl"), "{\"prompt\":\"he\",\"completion\":\" he\"}\n").unwrap();
    fs::write(at("ids.bin"), [1, 0]).unwrap();
    fs::create_dir_all(at("pictures/a")).unwrap();
    image::GrayImage::new(2, 2).save(at("pictures/a/1.png")).unwrap();
    fs::create_dir(at("mine")).unwrap();
    fs::write(at("mine/victim"), "mine").unwrap();
    let text = ["text", "--tokenizer", "gpt2", "--output", "out.npy", "a.txt"];
    let answers =
        ["answers", "--tokenizer", "gpt2", "--context", "4", "--pad", "h", "--output", "out.npy", "a.jsonl"];
    let tokens = ["tokens", "ids.bin", "--dtype", "u16", "--output", "out.npy"];
    let pictures = ["pictures", "--size", "2x2", "--output", "out", "pictures"];
    let before = names(folder.path());
    for (command, name) in [
        (&text[..], "out.npy"),
        (&text, "out.npy.json"),
        (&text, "out.npy.tokenizer"),
        (&answers, "out.npy"),
        (&answers, "out.mask.npy"),
        (&answers, "out.npy.json"),
        (&answers, "out.npy.tokenizer"),
        (&tokens, "out.npy"),
        (&tokens, "out.npy.json"),
        (&pictures, "out"),
    ] {
        let partial = at(&format!("{name}.partial"));
        let plant: [fn(&Path, &Path); 5] = [
            |from, to| std::os::unix::fs::symlink(from, to).unwrap(),
            |from, to| std::os::unix::fs::symlink(from.parent().unwrap(), to).unwrap(),
            |from, to| std::os::unix::fs::symlink(from.with_file_name("nothing"), to).unwrap(),
            |from, to| fs::hard_link(from, to).unwrap(),
            |_, to| assert!(Command::new("mkfifo").arg(to).status().unwrap().success()),
        ];
        for plant in plant {
            plant(&at("mine/victim"), &partial);
            let (code, error) = ends(folder.path(), import(command));
            assert!(code == Some(2) && error.contains("is in the way"), "{command:?}: {code:?} {error}");
            fs::remove_file(&partial).unwrap();
            assert_eq!(names(folder.path()), before, "{command:?}");
            assert_eq!(names(&at("mine")), ["victim"]);
            assert_eq!(fs::read(at("mine/victim")).unwrap(), b"mine");
        }
    }
    // The remains of an interrupted import are no obstacle.
    fs::write(at("out.npy.partial"), "longer than the new array is, and longer than its header is".repeat(9))
        .unwrap();
    fs::create_dir(at("out.npy.tokenizer.partial")).unwrap();
    fs::write(at("out.npy.tokenizer.partial/old"), "old").unwrap();
    assert_eq!(ends(folder.path(), import(&text)).0, Some(0));
    assert_eq!(npy(&at("out.npy")).1, [0, 1]);
    assert_eq!(names(&at("out.npy.tokenizer")), ["encoder.json", "vocab.bpe"]);
    assert!(!names(folder.path()).iter().any(|name| name.ends_with(".partial")));
}

/// An import takes no file that another one is writing, and leaves it there.
#[test]
fn two_imports_of_one_name_do_not_meet() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    gpt2(&at("gpt2"));
    fs::write(at("a.txt"), "he").unwrap();
    let other = fs::File::create(at("out.npy.partial")).unwrap();
    other.lock().unwrap();
    let (code, error) =
        error(folder.path(), &["text", "--tokenizer", "gpt2", "--output", "out.npy", "a.txt"]);
    assert!(code == 2 && error.contains("another import is writing"), "{code} {error}");
    assert!(at("out.npy.partial").exists());
}

/// Links of folders to themselves make paths without end.
#[cfg(unix)]
#[test]
fn folders_without_end_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("pictures/a")).unwrap();
    for name in ["x", "y"] {
        std::os::unix::fs::symlink(".", folder.path().join("pictures/a").join(name)).unwrap();
    }
    let pictures = ["pictures", "--size", "2x2", "--output", "out", "pictures"];
    let (code, error) = ends(folder.path(), import(&pictures));
    assert!(code == Some(4) && error.contains("folders"), "{code:?} {error}");
    assert_eq!(names(folder.path()), ["pictures"]);
    // Three layers of links are 64 * 64 * 64 folders, none of them deep.
    let layers = ["pictures/a", "layers/1", "layers/2", "layers/3"].map(|name| folder.path().join(name));
    fs::remove_dir_all(&layers[0]).unwrap();
    layers.iter().for_each(|layer| fs::create_dir_all(layer).unwrap());
    for pair in layers.windows(2) {
        for number in 0..64 {
            std::os::unix::fs::symlink(&pair[1], pair[0].join(number.to_string())).unwrap();
        }
    }
    let (code, error) = ends(folder.path(), import(&pictures));
    assert!(code == Some(4) && error.contains("a class has at most 65536 folders"), "{code:?} {error}");
}
