//! Runs that hold no copy of their data: their auditor says where the data are, and needs only the parts for the replayed steps.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::common::served::{Lie, Manner, Served};
use crate::common::{edit::edit, gpt_job, key, trained};
use tiebreak_audit::plan::{Choice, plan};
use tiebreak_audit::{Silent, audit, checks};
use tiebreak_engine::cpu::Cpu;
use tiebreak_run::run::dir::Run;

/// A run over one data file, longer than a group of 64 KiB; few of its samples are drawn.
fn run_without_copy(folder: &Path) -> Run {
    let job = gpt_job(folder, "microbatch", "");
    let text: Vec<u8> =
        (0..1_000_000u32).map(|i| b'a' + (u64::from(i) * u64::from(i) % 23) as u8 + (i % 3) as u8).collect();
    fs::write(folder.join("text.txt"), text).unwrap();
    edit(&job, &[("path = \"text.txt\"", "path = \"text.txt\"\ncopy = false")]);
    trained(&job, &folder.join("run"), None)
}

fn tiebreak(args: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_tiebreak")).args(args).output().unwrap();
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    (output.status.code(), text)
}

#[test]
fn an_auditor_says_where_the_data_are() {
    let folder = tempfile::tempdir().unwrap();
    let run = run_without_copy(folder.path());
    assert!(!run.layout.data_file(0).exists() && run.layout.data_tree(0).exists());
    let root = run.layout.root.to_str().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    fs::rename(folder.path().join("text.txt"), elsewhere.path().join("text.txt")).unwrap();
    let data = elsewhere.path().to_str().unwrap();

    // Facts about a run that do not depend on its data need no data.
    let (code, text) = tiebreak(&["verify", root]);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("not checked: batches: the run does not hold its data file 0 (text.txt)"),
        "{text}"
    );
    assert_eq!(tiebreak(&["inspect", root]).0, Some(0));
    let (code, text) = tiebreak(&["audit", root, "--engine", "cpu"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("(text.txt): say where it is with --data FOLDER"), "{text}");
    let (code, text) = tiebreak(&["audit", root, "--engine", "cpu", "--data", data]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("batches of all steps follow from seed and data"), "{text}");
    let (code, text) =
        tiebreak(&["audit", root, "--engine", "cpu", "--data", folder.path().to_str().unwrap()]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("say where it is with --data FOLDER"), "{text}");
}

/// The groups of 64 KiB of the data file that steps 5 and 6 draw from.
fn needed(run: &Run) -> Vec<usize> {
    let mut dataset = run.dataset().unwrap();
    for step in [5, 6] {
        run.batch(&mut dataset, step).unwrap();
    }
    let read = dataset.slices_read().unwrap();
    let mut needed: Vec<usize> =
        read.iter().flat_map(|(_, read)| read.slices.iter().map(|s| s / 64)).collect();
    needed.dedup();
    assert!(needed.len() < 1_000_000usize.div_ceil(65_536), "every group is needed: the test shows nothing");
    needed
}

#[test]
fn data_at_an_address_are_read_in_parts_and_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let run = run_without_copy(folder.path());
    let root = run.layout.root.to_str().unwrap();
    let needed = needed(&run).len();
    let text = folder.path().join("text.txt");
    let whole = fs::read(&text).unwrap();
    fs::remove_file(text).unwrap();

    let server = Served::new([("text.txt".to_string(), whole.clone())], Manner::default());
    let audit = |more: &[&str]| {
        tiebreak(&[&["audit", root, "--engine", "cpu", "--data", &server.address], more].concat())
    };
    let (code, said) = audit(&[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("batches of all steps follow from seed and data"), "{said}");
    server.sent();
    let part = ["--steps", "5..6", "--only-part"];
    assert_eq!(audit(&part).0, Some(0));
    let (_, bytes) = server.sent()["text.txt"];
    assert!(bytes <= needed as u64 * 65_536, "{bytes} bytes for {needed} groups");
    let (code, said) = tiebreak(&["replay", root, "--step", "5", "--data", &server.address]);
    assert_eq!(code, Some(0), "{said}");

    let (code, said) = tiebreak(&["eval", root, "--samples", "9", "--data", &server.address]);
    assert_eq!(code, Some(0), "{said}");

    for (lie, wanted) in [(Lie::Zeros, 4), (Lie::OtherPlace, 4), (Lie::Forbidden, 3)] {
        server.lie("text.txt", lie);
        let (code, said) = audit(&part);
        assert_eq!(code, Some(wanted), "{lie:?}: {said}");
        assert!(said.contains("text.txt"), "{lie:?}: {said}");
    }
    // The manifest says the length, and the right bytes are all that is wanted of a server.
    server.lie("text.txt", Lie::Huge);
    assert_eq!(audit(&part).0, Some(0));
    let server = Served::new([("other.txt".to_string(), whole)], Manner::default());
    let (code, said) = tiebreak(&["audit", root, "--data", &server.address]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains(&format!("nor does {}", server.address)), "{said}");
}

#[test]
fn evaluation_files_at_an_address_are_read_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "[evaluation]\nevery = 8\nfiles = [\"valid.txt.gz\"]\n");
    edit(&job, &[("path = \"text.txt\"", "path = \"text.txt\"\ncopy = false")]);
    let valid = "abcdefghij".repeat(90);
    let mut packer = GzEncoder::new(Vec::new(), Compression::best());
    packer.write_all(valid.as_bytes()).unwrap();
    let packed = packer.finish().unwrap();
    fs::write(folder.path().join("valid.txt.gz"), &packed).unwrap();
    let run = trained(&job, &folder.path().join("run"), None);
    let root = run.layout.root.to_str().unwrap();
    let here = folder.path().to_str().unwrap();
    assert_eq!(tiebreak(&["eval", root, "--data", here]).0, Some(0));
    let text = fs::read(folder.path().join("text.txt")).unwrap();
    let files = [("text.txt".to_string(), text), ("valid.txt.gz".to_string(), packed)];
    let (code, said) = tiebreak(&["eval", root, "--data", &Served::new(files, Manner::default()).address]);
    assert!(
        code == Some(4) && said.contains("a packed file is read from a folder alone"),
        "{code:?}: {said}"
    );
}

#[test]
fn only_the_parts_that_are_needed_have_to_be_there() {
    let folder = tempfile::tempdir().unwrap();
    let run = run_without_copy(folder.path());
    let text = folder.path().join("text.txt");
    let whole = fs::read(&text).unwrap();
    // The groups that steps 5 and 6 draw from, and nothing else.
    let needed = needed(&run);
    let mut part = vec![0; whole.len()];
    for &group in &needed {
        let range = group * 65_536..whole.len().min((group + 1) * 65_536);
        part[range.clone()].copy_from_slice(&whole[range]);
    }
    fs::write(&text, &part).unwrap();
    let run = Run::open(&run.layout.root).unwrap().with_data([folder.path().to_path_buf()]);
    let audited = |choice: &Choice| {
        let checked = checks::always(&run, Some(&key().public())).unwrap();
        let plan = plan(&run, &checked.checkpoints, run.job().steps, choice);
        audit(&run, &mut Cpu::new(1).unwrap(), checked, plan, None, &mut Silent)
    };
    let (report, _) = audited(&Choice::Range(5, 6)).unwrap();
    assert!(report.is_complete(), "{:?}", report.outcome);
    let note =
        report.not_checked.iter().find(|note| note.starts_with("batches of ")).expect("some are not here");
    assert!(
        note.contains("text.txt: file: bytes ") && note.contains("are not what the manifest promises"),
        "{note}"
    );
    // Missing data are named, and accuse nobody.
    let error = audited(&Choice::All).map(|(report, _)| report.outcome).unwrap_err().to_string();
    assert!(error.contains("text.txt: file: bytes "), "{error}");
    // A copy that ends early has its beginning.
    fs::write(&text, &whole[..70_000]).unwrap();
    let (code, text) = tiebreak(&["verify", run.layout.root.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{text}");
}
