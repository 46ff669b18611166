//! A run that is killed at any moment resumes to the same bits and the same head.

use crate::common::{begin_run, edit::edit, every_pair, files, gpt_job, key, trained};
use tiebreak_engine::cpu::Cpu;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::Disk;
use tiebreak_train::{Silent, train};

#[test]
fn two_trainings_write_the_same_files() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "operator", "");
    trained(&job, &folder.path().join("a"), None);
    trained(&job, &folder.path().join("b"), None);
    assert_eq!(files(&folder.path().join("a")), files(&folder.path().join("b")));
}

/// Stops the disk at each operation in turn, then resumes with a good one; without TIEBREAK_EVERY_PAIR, at two operations of five.
#[test]
fn every_crash_point_resumes_to_the_same_files() {
    every_crash_point("microbatch", "keep = 2", 8, 60);
}

#[test]
fn every_crash_point_of_a_run_with_traces_resumes_to_the_same_files() {
    every_crash_point("operator", "", 3, 40);
}

fn every_crash_point(granularity: &str, extra: &str, steps: u32, points: u32) {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), granularity, extra);
    edit(&job, &[("steps = 8", &format!("steps = {steps}"))]);
    let whole = folder.path().join("whole");
    trained(&job, &whole, None);
    let expected = files(&whole);
    let mut crashes = 0;
    let all = every_pair("three crash points of five of a training");
    for operations in (0..).filter(|operations| all || [0, 2].contains(&(operations % 5))) {
        let out = folder.path().join("crashed");
        let _ = std::fs::remove_dir_all(&out);
        let failing = Disk::failing_after(operations);
        let mut engine = Cpu::new(2).unwrap();
        let stopped = match begin_run(&failing, &job, &out) {
            Err(_) => true,
            Ok(run) => train(&run, &mut engine, Some(&key()), &mut Silent).is_err(),
        };
        if !stopped {
            break;
        }
        crashes += 1;
        // A crash before run.json was there leaves no run: the trainer begins again.
        let run = Run::open(&out).unwrap_or_else(|_| begin_run(&Disk::default(), &job, &out).unwrap());
        train(&run, &mut engine, Some(&key()), &mut Silent).unwrap();
        let mut found = files(&out);
        found.retain(|(name, _)| !name.to_string_lossy().ends_with(".partial"));
        let names = |files: &[(std::path::PathBuf, Vec<u8>)]| -> Vec<_> {
            files.iter().map(|f| f.0.clone()).collect()
        };
        assert_eq!(names(&found), names(&expected), "after {operations} operations");
        assert!(found == expected, "files differ after a crash at operation {operations}");
    }
    let points = if all { points } else { points * 2 / 5 };
    assert!(crashes > points, "only {crashes} crash points were passed");
}

#[test]
fn a_published_head_is_never_taken_back() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "");
    let out = folder.path().join("run");
    let run = trained(&job, &out, None);
    let transcript = run.layout.transcript();
    let bytes = std::fs::read(&transcript).unwrap();
    std::fs::write(&transcript, &bytes[..bytes.len() / 2]).unwrap();
    let mut engine = Cpu::new(1).unwrap();
    let error = train(&run, &mut engine, Some(&key()), &mut Silent).unwrap_err();
    assert!(error.to_string().contains("a published head covers records that are not there"), "{error}");
    // No bytes are cut either: damage in the middle looks like a torn tail.
    let mut damaged = bytes.clone();
    damaged[bytes.len() / 2..][..200].fill(0xee);
    std::fs::write(&transcript, &damaged).unwrap();
    train(&run, &mut engine, Some(&key()), &mut Silent).unwrap_err();
    assert!(std::fs::read(&transcript).unwrap() == damaged, "the refused resume changed the transcript");
}

#[cfg(unix)]
#[test]
fn a_resume_writes_through_no_link() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "");
    let outside = folder.path().join("outside");
    for name in ["lock", "transcript", ".model.safetensors.partial"] {
        let out = folder.path().join(name.trim_start_matches('.'));
        let run = begin_run(&Disk::default(), &job, &out).unwrap();
        std::fs::write(&outside, "kept").unwrap();
        symlink(&outside, out.join(name)).unwrap();
        let mut engine = Cpu::new(1).unwrap();
        let result = train(&run, &mut engine, Some(&key()), &mut Silent);
        assert_eq!(result.is_ok(), name.ends_with(".partial"), "{name}");
        assert_eq!(std::fs::read_to_string(&outside).unwrap(), "kept", "{name}");
    }
    let out = folder.path().join("folders");
    begin_run(&Disk::default(), &job, &out).unwrap();
    std::fs::rename(out.join("checkpoints"), folder.path().join("elsewhere")).unwrap();
    symlink(folder.path().join("elsewhere"), out.join("checkpoints")).unwrap();
    assert!(Run::open(&out).is_err_and(|error| error.to_string().contains("links are not followed")));
}

#[test]
fn a_run_has_one_writer() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "");
    let run = begin_run(&Disk::default(), &job, &folder.path().join("run")).unwrap();
    let _held = run.lock().unwrap();
    let mut engine = Cpu::new(1).unwrap();
    let error = train(&run, &mut engine, Some(&key()), &mut Silent).unwrap_err();
    let holder = format!("is being written by another process (process {})", std::process::id());
    assert!(error.to_string().contains(&holder), "{error}");
}

/// Every file added to a run's folder is named; links are errors.
#[test]
fn files_that_are_not_of_a_run_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let run = trained(&gpt_job(folder.path(), "operator", ""), &folder.path().join("run"), None);
    assert_eq!(run.unexpected_files().unwrap(), Vec::<String>::new());
    let added = [
        "data/data-1.bin",
        "heads/note",
        "notes.txt",
        "traces/step-1",
        "checkpoints/.step-000000002.partial",
    ];
    for name in added {
        std::fs::write(run.layout.root.join(name), "x").unwrap();
    }
    std::fs::create_dir(run.layout.root.join("data/more")).unwrap();
    let mut expected: Vec<String> = added.iter().map(|name| name.to_string()).collect();
    expected.push("data/more".into());
    expected.sort();
    assert_eq!(run.unexpected_files().unwrap(), expected);
    std::os::unix::fs::symlink("/etc/passwd", run.layout.root.join("traces/link")).unwrap();
    assert!(run.unexpected_files().unwrap_err().to_string().contains("traces/link"));
}

#[test]
fn a_new_run_does_not_take_over_the_leftovers_of_another() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "microbatch", "");
    let out = folder.path().join("run");
    trained(&job, &out, None);
    std::fs::remove_file(out.join("run.json")).unwrap();
    let Err(error) = begin_run(&Disk::default(), &job, &out) else { panic!("the folder was taken over") };
    assert!(error.to_string().contains("but no run.json: choose another folder"), "{error}");
}
