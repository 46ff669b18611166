//! The command: its files are in NumPy's form, whole or absent, and the same on any number of threads.

#[path = "command/chats.rs"]
mod chats;
#[path = "command/hostile.rs"]
mod hostile;
#[path = "command/parquet.rs"]
mod parquet;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use image::{GrayImage, Luma, Rgb, RgbImage, Rgba, RgbaImage};
use serde_json::Value;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

fn command(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tiebreak-import")).current_dir(folder).args(arguments).output().unwrap()
}

/// The command's output with --json.
fn made(folder: &Path, arguments: &[&str]) -> Value {
    let output = command(folder, &[&["--json"], arguments].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The exit code and the error.
fn error(folder: &Path, arguments: &[&str]) -> (i32, String) {
    let output = command(folder, &[&["--json"], arguments].concat());
    let error: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(error["exit"], output.status.code().unwrap());
    (output.status.code().unwrap(), error["error"].as_str().unwrap().to_string())
}

/// The names in a folder, in order.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// The header's text and the bytes of the array of a .npy file.
fn npy(path: &Path) -> (String, Vec<u8>) {
    let bytes = fs::read(path).unwrap();
    assert_eq!(bytes[..10], *b"\x93NUMPY\x01\0\x76\0");
    (String::from_utf8(bytes[10..128].to_vec()).unwrap().trim_end().to_string(), bytes[128..].to_vec())
}

/// GPT-2's files with the bytes as tokens, two merges and an end of text.
fn gpt2(folder: &Path) {
    fs::create_dir(folder).unwrap();
    let mut tokens: Vec<String> = ByteLevel::alphabet().into_iter().map(String::from).collect();
    tokens.sort();
    tokens.extend(["he", "\u{120}he", "<|endoftext|>"].map(String::from));
    let ids: serde_json::Map<String, Value> = tokens.into_iter().zip((0..).map(Value::from)).collect();
    fs::write(folder.join("encoder.json"), Value::from(ids).to_string()).unwrap();
    fs::write(folder.join("vocab.bpe"), "#version: 0.2\nh e\n\u{120} he\n").unwrap();
}

#[test]
fn texts_become_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    gpt2(&at("gpt2"));
    fs::write(at("a.txt"), "he he").unwrap();
    fs::write(at("b.txt"), "").unwrap();
    let long = "there he is\n".repeat(50_000);
    fs::write(at("c.txt"), &long).unwrap();
    let text = |output: &str, more: &[&str]| {
        let arguments = ["text", "--tokenizer", "gpt2", "--output", output, "--end-of-text", "<|endoftext|>"];
        made(folder.path(), &[&arguments, more].concat())
    };
    let said = text("ab.npy", &["a.txt", "b.txt"]);
    let (header, data) = npy(&at("ab.npy"));
    assert_eq!(header, "{'descr': '<u2', 'fortran_order': False, 'shape': (4,), }");
    assert_eq!(data, [256u16, 257, 258, 258].map(u16::to_le_bytes).concat());
    assert_eq!(
        (&said["tokens"], &said["vocabulary"], &said["dtype"]),
        (&4.into(), &259.into(), &"u16".into())
    );
    let digest = |name: &str| blake3::hash(&fs::read(at(name)).unwrap()).to_hex().to_string();
    assert_eq!(said["output"]["blake3"], digest("ab.npy"));
    assert_eq!(said["tokenizer"][0]["blake3"], digest("gpt2/encoder.json"));
    assert_eq!(
        said["texts"][1],
        serde_json::json!({ "name": "b.txt", "bytes": 0, "blake3": digest("b.txt") })
    );
    assert_eq!(serde_json::from_slice::<Value>(&fs::read(at("ab.npy.json")).unwrap()).unwrap(), said);

    // Three pieces; each word of the text is one token or several, in any piece.
    let one = text("one.npy", &["--threads", "1", "c.txt", "a.txt"]);
    let three = text("three.npy", &["--threads", "3", "c.txt", "a.txt"]);
    assert_eq!(one, three);
    assert!(fs::read(at("one.npy")).unwrap() == fs::read(at("three.npy")).unwrap());
    assert_eq!(one["tokens"], 50_000 * 9 + 1 + 2 + 1);

    let printed = command(folder.path(), &["text", "--tokenizer", "gpt2", "--output", "d.npy", "a.txt"]);
    assert!(
        String::from_utf8(printed.stdout)
            .unwrap()
            .contains("kind = \"tokens\"\npath = \"d.npy\"\ndtype = \"u16\"\n")
    );
}

#[test]
fn what_cannot_be_imported_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    gpt2(&at("gpt2"));
    fs::write(at("text"), "he").unwrap();
    fs::write(at("bytes"), b"he\xff").unwrap();
    fs::write(at("there.npy"), "mine").unwrap();
    fs::write(at("tokenizer.json"), r#"{"model":{"type":"BPE","dropout":0.1,"vocab":{},"merges":[]}}"#)
        .unwrap();
    fs::write(at("tokenizer.model"), "\n\u{e}\n\u{5}<unk>\u{15}\0\0\0\0").unwrap();
    fs::write(at("bad.jsonl"), "{\"text\":\"he\"}\n\n{\"text\":\"he\n").unwrap();
    fs::write(at("number.ndjson"), "{\"text\":5}\n").unwrap();
    fs::write(at("other.jsonl"), "{\"content\":\"he\",\"id\":5}\n").unwrap();
    fs::write(at("lines.json"), "{\"text\":\"he\"}\n").unwrap();
    fs::write(at("packed.gz"), b"\x1f\x8b\x08\0\0\0\0\0\x02\xff\x01\0").unwrap();
    fs::create_dir(at("pictures")).unwrap();
    let before = names(folder.path());
    for (arguments, code, why) in [
        (["gpt2", "out.npy", "bytes"], 4, "byte 2 is not UTF-8"),
        (["gpt2", "out.npy", "absent"], 3, "absent"),
        (["gpt2", "there.npy", "text"], 2, "is there already"),
        (["gpt2", "out.bin", "text"], 2, "ends in .npy"),
        (["text", "out.npy", "text"], 4, "this is no tokenizer.json"),
        (["pictures", "out.npy", "text"], 4, "vocab.json with merges.txt"),
        (["tokenizer.model", "out.npy", "text"], 4, "convert SentencePiece models first"),
        (["gpt2", "out.npy", "bad.jsonl"], 4, "bad.jsonl\": line 3: it is no JSON"),
        (["gpt2", "out.npy", "number.ndjson"], 4, "line 1: what is under the key \"text\" is no string"),
        (["gpt2", "out.npy", "other.jsonl"], 4, "--json-key names another: \"content\""),
        (["gpt2", "out.npy", "lines.json"], 2, "--form json-lines"),
        (["gpt2", "out.npy", "packed.gz"], 4, "packed with gzip"),
        (["tokenizer.json", "out.npy", "text"], 4, "dropout"),
        (["gpt2", "no/such/out.npy", "text"], 3, "no/such"),
    ] {
        let [tokenizer, output, text] = arguments;
        let (exit, error) =
            error(folder.path(), &["text", "--tokenizer", tokenizer, "--output", output, text]);
        assert!(exit == code && error.contains(why), "{exit} {error}");
    }
    let pictures = ["pictures", "--size", "2x2", "--output", "out", "pictures"];
    let (exit, why) = error(folder.path(), &pictures);
    assert!(exit == 4 && why.contains("each class of pictures has a folder"), "{why}");
    fs::create_dir_all(at("pictures/cat")).unwrap();
    fs::write(at("pictures/cat/a.png"), "no picture").unwrap();
    let (exit, why) = error(folder.path(), &pictures);
    assert!(exit == 4 && why.contains("a.png") && why.contains("no PNG"), "{why}");
    assert_eq!(names(folder.path()), before);
    assert_eq!(fs::read(at("there.npy")).unwrap(), b"mine");
}

#[test]
fn pictures_become_arrays() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    ["in/b/sub", "in/a"].iter().for_each(|name| fs::create_dir_all(at(name)).unwrap());
    let colours = |x: u32, y: u32| [(10 * x + y) as u8, 100 + x as u8, 200 + y as u8];
    RgbImage::from_fn(3, 2, |x, y| Rgb(colours(x, y))).save(at("in/b/2.PNG")).unwrap();
    GrayImage::from_fn(3, 2, |x, y| Luma([(x + 3 * y) as u8])).save(at("in/b/10.png")).unwrap();
    RgbaImage::from_fn(3, 2, |_, _| Rgba([1, 2, 3, 4])).save(at("in/b/sub/1.png")).unwrap();
    RgbImage::from_fn(6, 4, |x, y| Rgb([(x / 2 + y / 2 * 10) as u8; 3])).save(at("in/a/large.png")).unwrap();
    fs::write(at("in/b/notes.txt"), "not a picture").unwrap();

    let arguments = ["pictures", "--size", "2x3", "--output"];
    let (exit, why) = error(folder.path(), &[&arguments[..], &["out", "in"]].concat());
    assert!(exit == 4 && why.contains("4 x 6 pixels") && why.contains("--resize"), "{why}");
    assert_eq!(names(folder.path()), ["in"]);

    let said = made(folder.path(), &[&arguments[..], &["out", "--resize", "--threads", "1", "in"]].concat());
    let again =
        made(folder.path(), &[&arguments[..], &["again", "--resize", "--threads", "3", "in"]].concat());
    assert_eq!(said, again);
    assert_eq!(names(&at("out")), ["import.json", "inputs.npy", "labels.npy", "pictures.txt"]);
    names(&at("out")).iter().for_each(|name| {
        assert!(
            fs::read(at("out").join(name)).unwrap() == fs::read(at("again").join(name)).unwrap(),
            "{name}"
        );
    });
    let (header, pixels) = npy(&at("out/inputs.npy"));
    assert_eq!(header, "{'descr': '|u1', 'fortran_order': False, 'shape': (4, 3, 2, 3), }");
    let grey: Vec<u8> = (0..6).collect();
    let coloured: Vec<u8> = (0..3).flat_map(|c| (0..6).map(move |i| colours(i % 3, i / 3)[c])).collect();
    let transparent: Vec<u8> = [[1; 6], [2; 6], [3; 6]].concat();
    let expected = [[0, 1, 2, 10, 11, 12].repeat(3), grey.repeat(3), coloured, transparent].concat();
    assert_eq!(pixels, expected);
    let (header, labels) = npy(&at("out/labels.npy"));
    assert_eq!(header, "{'descr': '<u4', 'fortran_order': False, 'shape': (4,), }");
    assert_eq!(labels, [0u32, 1, 1, 1].map(u32::to_le_bytes).concat());
    let list = fs::read_to_string(at("out/pictures.txt")).unwrap();
    let listed: Vec<&str> = list.lines().map(|line| line.split_once("  ").unwrap().1).collect();
    assert_eq!(listed, ["a/large.png", "b/10.png", "b/2.PNG", "b/sub/1.png"]);
    assert_eq!(said["left_out"], serde_json::json!(["b/notes.txt"]));

    made(
        folder.path(),
        &["pictures", "--size", "2x3", "--planes", "1", "--output", "grey", "--resize", "in"],
    );
    let (header, pixels) = npy(&at("grey/inputs.npy"));
    assert!(header.contains("(4, 1, 2, 3)"));
    assert_eq!((&pixels[6..12], pixels[12 + 4]), (&grey[..], luma(colours(1, 1))));
}

#[test]
fn damaged_pictures_are_errors_unless_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let file = |name: &str| {
        fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pictures").join(name)).unwrap()
    };
    fs::create_dir_all(at("in/a")).unwrap();
    let whole = file("baseline.jpg");
    fs::write(at("in/a/1.jpg"), &whole).unwrap();
    let arguments = ["pictures", "--size", "21x37", "in", "--output"];
    let said = |output: &str, more: &[&str]| made(folder.path(), &[&arguments, &[output][..], more].concat());
    let refused = |more: &[&str]| error(folder.path(), &[&arguments, &["out"][..], more].concat());
    let mut bit = file("colours.png");
    let middle = bit.len() / 2;
    bit[middle] ^= 1;
    let progressive = file("progressive.jpg");
    let png = file("colours.png");
    for (name, bytes, why) in [
        ("2.jpg", &whole[..whole.len() - 60], "data end before its picture"),
        ("2.jpg", &progressive[..progressive.len() / 2], "cut short"),
        ("2.jpg", b"<!DOCTYPE html><html>", "page of HTML"),
        ("2.png", &png[..png.len() / 2], "cut short"),
        ("2.png", &png[..png.len() - 12], "end of the picture is missing"),
        ("2.png", &bit, "checksum of its IDAT chunk"),
        ("2.png", &[&png[..], b"more"].concat(), "4 bytes follow"),
    ] {
        let path = at("in/a").join(name);
        fs::write(&path, bytes).unwrap();
        let (exit, error) = refused(&[]);
        assert!(exit == 4 && error.contains(why) && error.contains(name), "{exit} {error}");
        assert!(error.contains("--damaged leave-out"), "{error}");
        let left = said("left", &["--damaged", "leave-out"]);
        assert_eq!((&left["samples"], &left["damaged"][0]["name"]), (&1.into(), &format!("a/{name}").into()));
        assert!(left["damaged"][0]["why"].as_str().unwrap().contains(why), "{left}");
        assert_eq!(fs::read_to_string(at("left/pictures.txt")).unwrap().lines().count(), 1);
        fs::remove_dir_all(at("left")).unwrap();
        fs::remove_file(path).unwrap();
    }
    fs::write(at("in/a/2.jpg"), &whole[..whole.len() - 60]).unwrap();
    let kept = said("kept", &["--damaged", "keep"]);
    assert_eq!((&kept["samples"], &kept["damaged_kept"]), (&2.into(), &true.into()));
    assert_eq!(kept["damaged"][0]["blake3"], blake3::hash(&whole[..whole.len() - 60]).to_hex().as_str());
    // The first row of blocks was decoded.
    let (_, pixels) = npy(&at("kept/inputs.npy"));
    let [first, second] = [&pixels[..3 * 21 * 37], &pixels[3 * 21 * 37..]];
    assert!(first[..4 * 37] == second[..4 * 37] && first != second);
    fs::write(at("in/a/1.jpg"), &whole[..100]).unwrap();
    let (exit, error) = refused(&["--damaged", "leave-out"]);
    assert!(exit == 4 && error.contains("every picture of the class"), "{error}");
    let (exit, error) = refused(&["--damaged", "keep"]);
    assert!(exit == 4 && error.contains("1.jpg") && error.contains("cannot be decoded"), "{error}");
}

fn luma([r, g, b]: [u8; 3]) -> u8 {
    (0.299 * f64::from(r) + 0.587 * f64::from(g) + 0.114 * f64::from(b)).round() as u8
}

#[test]
fn the_tokenizers_version_is_said_as_it_is() {
    let lock = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.lock")).unwrap();
    let (_, rest) = lock.split_once("name = \"tokenizers\"\nversion = \"").unwrap();
    let text = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/text.rs")).unwrap();
    assert!(text.contains(&format!("const TOKENIZERS: &str = \"{}\";", rest.split_once('"').unwrap().0)));
}

/// Ids of 16 bits, and the same ids of 32 bits: more than are copied at once.
fn ids() -> [Vec<u8>; 2] {
    let ids: Vec<u16> = (0..700_000u64).map(|i| (i * 7919 % 50_257) as u16).collect();
    let wide = ids.iter().flat_map(|&id| u32::from(id).to_le_bytes()).collect();
    [ids.iter().flat_map(|id| id.to_le_bytes()).collect(), wide]
}

/// A file of llm.c: a header with these numbers, and ids.
fn with_header(words: [u32; 3], ids: &[u8]) -> Vec<u8> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.resize(1024, 0);
    [&bytes[..], ids].concat()
}

/// Ids that other programs wrote, with llm.c's header or none: the file holds these ids.
#[test]
fn raw_tokens_become_arrays() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let [u16s, u32s] = ids();
    let llm_c = with_header([20_240_520, 1, 700_000], &u16s);
    let llama = with_header([20_240_801, 7, 700_000], &u32s);
    for (name, bytes, options, layout, dtype, data) in [
        ("c.bin", &llm_c, &[][..], "llm.c", "u16", &u16s),
        ("said.bin", &llm_c, &["--dtype", "u16"], "llm.c", "u16", &u16s),
        ("llama.bin", &llama, &[], "llm.c", "u32", &u32s),
        ("nano.bin", &u16s, &["--dtype", "u16"], "headerless", "u16", &u16s),
        ("wide.bin", &u32s, &["--dtype", "u32"], "headerless", "u32", &u32s),
    ] {
        fs::write(at(name), bytes).unwrap();
        let output = format!("{name}.npy");
        let said = made(folder.path(), &[&["tokens", name, "--output", &output], options].concat());
        let (header, written) = npy(&at(&output));
        let descr = if dtype == "u16" { "<u2" } else { "<u4" };
        assert_eq!(header, format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (700000,), }}"));
        assert!(written == *data, "{name}");
        assert_eq!(
            (&said["layout"], &said["dtype"], &said["tokens"]),
            (&layout.into(), &dtype.into(), &700_000.into())
        );
        assert_eq!((&said["vocabulary"], &said["source"]["bytes"]), (&50_257.into(), &bytes.len().into()));
        assert_eq!(said["source"]["blake3"], blake3::hash(bytes).to_hex().as_str());
        assert_eq!(said["output"]["blake3"], blake3::hash(&fs::read(at(&output)).unwrap()).to_hex().as_str());
        assert_eq!(
            serde_json::from_slice::<Value>(&fs::read(at(&format!("{output}.json"))).unwrap()).unwrap(),
            said
        );
        fs::remove_file(at(&output)).unwrap();
        fs::remove_file(at(&format!("{output}.json"))).unwrap();
    }
}

#[test]
fn raw_files_that_are_not_what_they_say_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let [u16s, u32s] = ids();
    let llm_c = with_header([20_240_520, 1, 700_000], &u16s);
    let llama = with_header([20_240_801, 7, 700_000], &u32s);
    fs::write(at("x.bin"), "").unwrap();
    let before = names(folder.path());
    for (bytes, options, code, why) in [
        (llm_c[..llm_c.len() - 2].to_vec(), &[][..], 4, "shorter than its header says"),
        ([&llm_c[..], &[1, 0]].concat(), &[], 4, "longer than its header says"),
        (llm_c[..1000].to_vec(), &[], 4, "cut short"),
        (with_header([20_240_520, 3, 700_000], &u16s), &[], 4, "version 3"),
        (with_header([20_240_520, 1, 0], &[]), &[], 4, "no token"),
        (with_header([20_240_522, 1, 10], &u16s), &[], 4, "multiple-choice"),
        (llama.clone(), &["--dtype", "u16"], 2, "leave --dtype out"),
        (u16s.clone(), &[], 2, "--dtype u16"),
        (u16s.clone(), &["--dtype", "i64"], 2, "must be u16 or u32"),
        (u16s[..u16s.len() - 1].to_vec(), &["--dtype", "u16"], 4, "no whole number"),
        (u32s.clone(), &["--dtype", "u16"], 4, "ids of 32 bits"),
        (Vec::new(), &["--dtype", "u16"], 4, "no token"),
        (b"<html><body>Not found</body></html>".to_vec(), &["--dtype", "u16"], 4, "a web page (HTML)"),
        (
            "to be or not to be, that is the question".repeat(3).into_bytes(),
            &["--dtype", "u16"],
            4,
            "it is text",
        ),
    ] {
        fs::write(at("x.bin"), &bytes).unwrap();
        let output = command(folder.path(), &[&["tokens", "x.bin", "--output", "x.npy"], options].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(code) && error.contains(why),
            "{why}: {:?} {error}",
            output.status
        );
        assert_eq!(names(folder.path()), before, "{why}");
    }
    fs::write(at("c.bin"), &llm_c).unwrap();
    assert_eq!(error(folder.path(), &["tokens", "c.bin", "--output", "c.bin"]).0, 2);
    assert_eq!(error(folder.path(), &["tokens", "absent", "--output", "c.npy"]).0, 3);
}

/// A folder as transformers writes it gives the tokens of its other forms. The folder is copied beside the tokens byte for byte,
/// where a run finds it.
#[test]
fn a_tokenizers_folder_is_taken_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    gpt2(&at("gpt2"));
    fs::create_dir(at("hf")).unwrap();
    fs::copy(at("gpt2/encoder.json"), at("hf/vocab.json")).unwrap();
    fs::copy(at("gpt2/vocab.bpe"), at("hf/merges.txt")).unwrap();
    fs::write(at("hf/tokenizer_config.json"), "{ \"eos_token\": \"<|endoftext|>\" }\r\n").unwrap();
    fs::write(at("hf/generation_config.json"), "{\"eos_token_id\": 258}").unwrap();
    fs::write(at("hf/README.md"), "not its").unwrap();
    fs::write(at("a.txt"), "he said <|endoftext|>").unwrap();
    let text = |tokenizer: &str, output: &str| {
        let said = made(folder.path(), &["text", "--tokenizer", tokenizer, "--output", output, "a.txt"]);
        (npy(&at(output)).1, said)
    };
    let (expected, _) = text("gpt2", "a.npy");
    assert!(expected.ends_with(&258u16.to_le_bytes()));
    assert_eq!(names(&at("a.npy.tokenizer")), ["encoder.json", "vocab.bpe"]);
    let (tokens, said) = text("hf", "b.npy");
    assert_eq!(tokens, expected);
    let kept = ["generation_config.json", "merges.txt", "tokenizer_config.json", "vocab.json"];
    assert_eq!(names(&at("b.npy.tokenizer")), kept);
    for name in kept {
        assert!(
            fs::read(at("b.npy.tokenizer").join(name)).unwrap() == fs::read(at("hf").join(name)).unwrap(),
            "{name}"
        );
        assert!(said["tokenizer_kept"].as_array().unwrap().contains(&name.into()), "{said}");
    }
    // A folder that was kept is a tokenizer again; a tokenizer.json of another name is kept under the usual name.
    assert_eq!(text("b.npy.tokenizer", "c.npy").0, expected);
    let described = r#"{"version":"1.0","added_tokens":[],"normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},"model":{"type":"BPE","vocab":{"h":0,"e":1,"he":2},"merges":["h e"]}}"#;
    fs::write(at("mine.json"), described).unwrap();
    fs::write(at("a.txt"), "hehe").unwrap();
    assert_eq!(text("mine.json", "d.npy").0, [2u16, 2].map(u16::to_le_bytes).concat());
    assert_eq!(fs::read_to_string(at("d.npy.tokenizer/tokenizer.json")).unwrap(), described);
    let (exit, why) = error(folder.path(), &["text", "--tokenizer", "hf", "--output", "a.npy", "a.txt"]);
    assert!(exit == 2 && why.contains("is there already"), "{why}");
}

/// Each line's text is a text of its own, as if it were in its own file.
#[test]
fn json_lines_are_texts() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    gpt2(&at("gpt2"));
    let texts = ["he\nsaid", "", "\u{e9} \u{1f600} \"quoted\"", "the end"];
    let (mut lines, mut other) = (String::new(), String::new());
    for (number, text) in texts.iter().enumerate() {
        fs::write(at(&format!("{number}.txt")), text).unwrap();
        lines += &format!("{}\n", serde_json::json!({ "id": number, "text": text, "body": "x" }));
        // Escapes, blank lines, the other line ending, and no line ending after the last line.
        let escaped: String = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
        other += &format!("{}{{\"body\":\"{escaped}\"}}", if number == 0 { "" } else { "\r\n \n" });
    }
    fs::write(at("a.jsonl"), &lines).unwrap();
    fs::write(at("b.NDJSON"), &other).unwrap();
    fs::write(at("c.json"), &lines).unwrap();
    let run = |output: &str, more: &[&str]| {
        let arguments = ["text", "--tokenizer", "gpt2", "--end-of-text", "<|endoftext|>", "--output", output];
        let said = made(folder.path(), &[&arguments, more].concat());
        (npy(&at(output)).1, said)
    };
    let (expected, _) = run("files.npy", &["0.txt", "1.txt", "2.txt", "3.txt"]);
    let (tokens, said) = run("a.npy", &["a.jsonl"]);
    assert_eq!(tokens, expected);
    let source = serde_json::json!({ "name": "a.jsonl", "bytes": lines.len(), "blake3": blake3::hash(lines.as_bytes()).to_hex().as_str(), "documents": 4, "json_key": "text" });
    assert_eq!((&said["documents"], &said["texts"][0]), (&4.into(), &source));
    assert_eq!(run("b.npy", &["--json-key", "body", "b.NDJSON"]).0, expected);
    assert_eq!(run("c.npy", &["--form", "json-lines", "c.json"]).0, expected);
    assert_eq!(
        run("both.npy", &["a.jsonl", "3.txt"]).0,
        [&expected[..], &run("3.npy", &["3.txt"]).0].concat()
    );
    // Read as text on demand: the quotes and braces are tokens then.
    assert_ne!(run("plain.npy", &["--form", "text", "a.jsonl"]).0, expected);
    let (exit, why) = error(
        folder.path(),
        &["text", "--tokenizer", "gpt2", "--output", "x.npy", "--json-key", "body", "0.txt"],
    );
    assert!(exit == 2 && why.contains("--json-key is for JSON Lines"), "{why}");
}

#[test]
fn answers_become_samples_whose_completions_count() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    gpt2(&at("gpt2"));
    let line = |prompt: &str, completion: &str| {
        format!("{}\n", serde_json::json!({ "prompt": prompt, "completion": completion, "id": 5 }))
    };
    // The second line has five tokens and the end, and a sample five.
    fs::write(at("a.jsonl"), line("he he", " he") + "\n" + &line("he", " he he he he")).unwrap();
    fs::write(at("b.jsonl"), line("", "hehe") + &line("he he he he he", " he")).unwrap();
    let words = |bytes: &[u8]| -> Vec<u16> {
        bytes.as_chunks().0.iter().map(|id: &[u8; 2]| u16::from_le_bytes(*id)).collect()
    };
    let common = ["answers", "--tokenizer", "gpt2", "--context", "4", "--pad", "<|endoftext|>"];
    let import = |output: &str, more: &[&str], files: &[&str]| {
        made(folder.path(), &[&common[..], &["--output", output], more, files].concat())
    };
    let end = ["--end-of-text", "<|endoftext|>"];
    let said = import("cut.npy", &[&end[..], &["--longer", "cut"]].concat(), &["a.jsonl", "b.jsonl"]);
    let (header, ids) = npy(&at("cut.npy"));
    assert_eq!(header, "{'descr': '<u2', 'fortran_order': False, 'shape': (15,), }");
    assert_eq!(
        words(&ids),
        [[256, 257, 257, 258, 258], [256, 257, 257, 257, 257], [256, 256, 258, 258, 258]].concat()
    );
    let (header, mask) = npy(&at("cut.mask.npy"));
    assert_eq!(header, "{'descr': '|u1', 'fortran_order': False, 'shape': (15,), }");
    assert_eq!(mask, [[0, 0, 1, 1, 0], [0, 1, 1, 1, 1], [1, 1, 1, 0, 0]].concat());
    let counts = ["samples", "cut", "left_out", "counted"].map(|key| said[key].as_u64().unwrap());
    assert_eq!(counts, [3, 1, 1, 8]);
    // The greatest id that is no target: 256, 257 and 258 are.
    assert_eq!((&said["ignore"], &said["vocabulary"]), (&255.into(), &259.into()));
    assert_eq!(serde_json::from_slice::<Value>(&fs::read(at("cut.npy.json")).unwrap()).unwrap(), said);
    assert_eq!(names(&at("cut.npy.tokenizer")), ["encoder.json", "vocab.bpe"]);
    let said = import("left.npy", &["--longer", "leave-out"], &["a.jsonl", "b.jsonl"]);
    assert_eq!([&said["samples"], &said["left_out"], &said["ignore"]], [3, 1, 258]);
    assert_eq!(npy(&at("left.mask.npy")).1, [[0, 0, 1, 0, 0], [0, 1, 1, 1, 1], [1, 1, 0, 0, 0]].concat());

    // Files that give no samples leave none behind.
    fs::write(at("joined.jsonl"), line("he", " he") + &line("h", "e")).unwrap();
    fs::write(at("empty.jsonl"), line("he", "")).unwrap();
    fs::write(at("chat.jsonl"), "{\"messages\":[{\"role\":\"user\",\"content\":\"he\"}]}\n").unwrap();
    fs::write(at("number.jsonl"), "{\"prompt\":\"he\",\"completion\":7}\n").unwrap();
    fs::write(at("list.jsonl"), "[1]\n").unwrap();
    fs::write(at("none.jsonl"), "\n\n").unwrap();
    fs::write(at("deep.jsonl"), "[".repeat(100_000)).unwrap();
    let before = names(folder.path());
    for (more, file, code, why) in [
        (&[][..], "a.jsonl", 4, "line 3: it has 5 tokens, and a sample has 4"),
        (&[], "joined.jsonl", 4, "line 2: the prompt's tokens are none of the whole's"),
        (&[], "empty.jsonl", 4, "line 1: its answers have no token"),
        (&[], "chat.jsonl", 4, "line 1: the tokenizer has no chat template"),
        (&[], "number.jsonl", 4, "line 1: what is under the key \"completion\" is no string"),
        (&[], "list.jsonl", 4, "line 1: it is no object of JSON"),
        (&[], "none.jsonl", 4, "the files give no sample"),
        (&[], "deep.jsonl", 4, "line 1: it is no JSON"),
        (&["--longer", "leave-out"], "long.jsonl", 3, "long.jsonl"),
        (&["--end-of-text", "<end>"], "b.jsonl", 2, "--end-of-text: the tokenizer has no token \"<end>\""),
    ] {
        let common = ["answers", "--tokenizer", "gpt2", "--context", "3", "--pad", "<|endoftext|>"];
        let arguments = [&common[..], &["--output", "out.npy"], more, &[file]].concat();
        let (exit, error) = error(folder.path(), &arguments);
        assert!(exit == code && error.contains(why), "{file}: {exit} {error}");
        assert_eq!(names(folder.path()), before, "{file}");
    }
    let (exit, error) = error(folder.path(), &[&common[..], &["--output", "left.npy", "a.jsonl"]].concat());
    assert!(exit == 2 && error.contains("is there already"), "{error}");
}
