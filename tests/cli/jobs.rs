//! `tiebreak job`: jobs to begin with.

use std::fs;
use std::path::Path;

use tiebreak::job::reference::{Type, keys};

use super::common::many_files_job;
use super::{output, path};

/// Data files of the names that the table of keys has as examples: a few samples each.
fn write_data(folder: &Path) {
    let header = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_be_bytes()).collect() };
    let images = [header(&[0x803, 8, 28, 28]), vec![7; 8 * 784]].concat();
    fs::write(folder.join("text.txt"), "to be or not to be, that is the question. ".repeat(20)).unwrap();
    fs::write(folder.join("train-images-idx3-ubyte"), images).unwrap();
    fs::write(folder.join("train-labels-idx1-ubyte"), [header(&[0x801, 8]), vec![3; 8]].concat()).unwrap();
    fs::write(folder.join("data_batch_1.bin"), vec![5; 8 * 3073]).unwrap();
}

#[test]
fn a_new_job_of_every_kind_passes_its_check() {
    let folder = tempfile::tempdir().unwrap();
    write_data(folder.path());
    let models = keys().find(|key| key.path == "model.kind").unwrap();
    let Type::Choice(models) = models.ty else { panic!("kinds are a choice") };
    for model in models {
        let file = path(folder.path(), &format!("{model}.toml"));
        let (code, _, stderr) = output(&["job", "new", model, "--output", &file]);
        assert_eq!(code, 0, "{stderr}");
        let (code, stdout, stderr) = output(&["job", "check", &file]);
        assert_eq!(code, 0, "{model}: {stderr}");
        assert!(stdout.contains("40 steps"), "{stdout}");
        let (code, _, stderr) = output(&["job", "new", model, "--output", &file]);
        assert!(code == 2 && stderr.contains("is there already"), "{stderr}");
    }
    let (code, _, stderr) = output(&["job", "new", "lstm"]);
    assert!(code == 2 && stderr.contains("gpt"), "{stderr}");
}

/// Of 19 files of .npy an element of a batch is shown in 64 KiB; of more the check says how much it takes.
#[test]
fn a_job_with_many_data_files_is_told_what_a_dispute_takes() {
    for (files, warned) in [(19, false), (20, true), (200, true)] {
        let folder = tempfile::tempdir().unwrap();
        let job = many_files_job(folder.path(), files);
        let (code, _, stderr) = output(&["job", "check", job.to_str().unwrap()]);
        let warning = "warning: in a dispute an element of a batch is shown with the manifests and headers of all data files";
        assert_eq!((code, stderr.contains(warning)), (0, warned), "{files}: {stderr}");
        assert_eq!(stderr.contains("where 64.00 KiB are meant to do"), warned, "{files}: {stderr}");
    }
}
