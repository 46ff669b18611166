//! Rows of Parquet files that people's tools wrote (`tiebreak-import/tests/tables/make.py`), and damaged ones.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{error, gpt2, made, names, npy};

fn table(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tables").join(name)
}

const TEXT: [&str; 6] = ["text", "--tokenizer", "gpt2", "--end-of-text", "<|endoftext|>", "--output"];

#[test]
fn a_row_is_what_the_same_line_of_json_is() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    gpt2(&at("gpt2"));
    let text = |output: &str, file: &str, more: &[&str]| {
        let file = table(file);
        made(folder.path(), &[&TEXT[..], &[output, file.to_str().unwrap()], more].concat())
    };
    let lines = text("lines.npy", "texts.jsonl", &[]);
    for kind in ["snappy", "gzip", "zstd"] {
        let (output, file) = (format!("{kind}.npy"), format!("texts-{kind}.parquet"));
        let rows = text(&output, &file, &[]);
        assert_eq!(npy(&at(&output)), npy(&at("lines.npy")), "{kind}");
        assert_eq!(rows["documents"], lines["documents"]);
        let bytes = fs::read(table(&file)).unwrap();
        let source = serde_json::json!({
            "name": file, "bytes": bytes.len(), "documents": 5, "json_key": "text",
            "blake3": blake3::hash(&bytes).to_hex().as_str(),
        });
        assert_eq!(rows["texts"][0], source);
    }
    // Files of both forms, one behind the other, on any number of threads.
    let both = |output: &str, threads: &str| {
        let second = table("texts.jsonl");
        text(output, "texts-snappy.parquet", &[second.to_str().unwrap(), "--threads", threads])
    };
    assert_eq!(both("one.npy", "1")["tokens"].as_u64(), lines["tokens"].as_u64().map(|tokens| 2 * tokens));
    both("three.npy", "3");
    assert_eq!(npy(&at("one.npy")), npy(&at("three.npy")));

    let template = "{% for m in messages %}{{ m.content }}<|endoftext|>{% endfor %}";
    fs::write(at("gpt2/chat_template.jinja"), template).unwrap();
    for name in ["pairs", "chats"] {
        let import = |kind: &str| {
            let (output, file) = (format!("{name}-{kind}.npy"), table(&format!("{name}.{kind}")));
            let arguments = ["answers", "--tokenizer", "gpt2", "--pad", "<|endoftext|>", "--context", "12"];
            made(folder.path(), &[&arguments[..], &["--output", &output, file.to_str().unwrap()]].concat());
            [npy(&at(&output)), npy(&at(&format!("{name}-{kind}.mask.npy")))]
        };
        assert_eq!(import("parquet"), import("jsonl"), "{name}");
    }
}

#[test]
fn a_table_without_the_texts_is_refused_by_its_columns() {
    let folder = tempfile::tempdir().unwrap();
    gpt2(&folder.path().join("gpt2"));
    fs::write(folder.path().join("text.txt"), "he").unwrap();
    fs::write(folder.path().join("cut.parquet"), "PAR1 and plain letters behind").unwrap();
    let before = names(folder.path());
    let too_much = match cfg!(target_os = "linux") {
        true => "the reader of Parquet was stopped: it took more than 4096 MiB of memory",
        false => "",
    };
    let tables = ["texts-snappy.parquet", "texts-lz4.parquet", "bomb.parquet"].map(table);
    let [snappy, lz4, bomb] = tables.each_ref().map(|path| path.to_str().unwrap());
    for (more, code, why) in [
        (
            &[snappy, "--column", "content"][..],
            4,
            r#"it has no column "content"; --json-key names another: "number", "text", "lacking", "bytes", "day""#,
        ),
        (&[snappy, "--json-key", "number"], 4, r#"row 1: what is under the key "number" is no string"#),
        (&[snappy, "--column", "lacking"], 4, r#"row 2: what is under the key "lacking" is no string"#),
        (&[snappy, "--column", "bytes"], 4, r#"the column "bytes" has values of the type BYTE_ARRAY"#),
        (&[snappy, "--column", "day"], 4, r#"the column "day" has values of the type DATE"#),
        (&[snappy, "--form", "json-lines"], 4, "it is a Parquet file: leave --form out"),
        (&["text.txt", "--form", "parquet"], 4, "it is no Parquet file"),
        (&["cut.parquet"], 4, "it does not begin and end as Parquet files do"),
        (&["text.txt", "--column", "a"], 2, "--json-key is for JSON Lines"),
        (&[lz4], 4, "it does not read as Parquet: "),
        (&[bomb], 4, too_much),
    ] {
        let (found, said) = error(folder.path(), &[&TEXT[..], &["out.npy"], more].concat());
        assert!(found == code && said.contains(why), "{more:?}: {found} {said}");
        assert_eq!(names(folder.path()), before);
    }
}

/// A damaged file is an error, or has other texts: Parquet has no checksum that everybody writes. Whatever the library does with it,
/// the command ends by itself.
#[test]
fn a_damaged_table_ends_the_import_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    gpt2(&folder.path().join("gpt2"));
    let whole = fs::read(table("texts-zstd.parquet")).unwrap();
    let path = folder.path().join("damaged.parquet");
    let mut failed = 0;
    let mut try_file = |bytes: &[u8], what: &str| {
        fs::write(&path, bytes).unwrap();
        drop(fs::remove_file(folder.path().join("out.npy")));
        let arguments = [&["--json"], &TEXT[..], &["out.npy", "damaged.parquet"]].concat();
        let output = crate::command(folder.path(), &arguments);
        let code = output.status.code();
        assert!(matches!(code, Some(0 | 4)), "{what}: {code:?} {}", String::from_utf8_lossy(&output.stderr));
        failed += u32::from(code == Some(4));
        for name in ["out.npy", "out.npy.json"] {
            assert_eq!(folder.path().join(name).exists(), code == Some(0), "{what}: {name}");
            drop(fs::remove_file(folder.path().join(name)));
        }
        drop(fs::remove_dir_all(folder.path().join("out.npy.tokenizer")));
    };
    // Most of the file is its footer, which says how much of what there is.
    for at in (4..whole.len()).step_by(7) {
        for value in [0xff, whole[at] ^ 0x08] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            try_file(&bytes, &format!("byte {at} is {value}"));
        }
    }
    for len in [4, 12, whole.len() / 2, whole.len() - 1] {
        try_file(&whole[..len], &format!("{len} bytes"));
    }
    try_file(&[b"PAR1", &[7; 92][..], b"PAR1"].concat(), "no table");
    assert!(failed > 30, "{failed} errors");
}
