//! Records that no head covers are withdrawn: whole, with copies, after a crash at any moment; and the run goes on to honest bits.
//! Where a head covers them, a run that is begun again from the records before goes on to the same bits.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::faulty::{faulty, faulty_at, train_until};
use crate::common::planted::{Fault, Planted};
use crate::common::{begin_run, edit::edit, files, gpt_job, key, trained};
use tiebreak_engine::cpu::Cpu;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::withdraw::withdraw;
use tiebreak_run::run::{Folder, transcript};
use tiebreak_train::{Again, Silent, again, train};

/// A job whose heads are over the beginning and the end alone.
fn rarely_signed(folder: &Path) -> PathBuf {
    let job = gpt_job(folder, "operator", "");
    edit(&job, &[("head_every = 3", "head_every = 100")]);
    job
}

/// A run of which steps 5 and 6 were computed by a faulty device.
fn faulty_run(folder: &Path) -> Run {
    let run = begin_run(&Disk::default(), &rarely_signed(folder), &folder.join("run")).unwrap();
    train_until(&run, &mut Cpu::new(2).unwrap(), 4);
    train_until(&run, &mut faulty(), 6);
    run
}

/// The files of a run without copies of withdrawn ones, metrics and unfinished writes.
fn of_run(root: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = files(root);
    found.retain(|(name, _)| !name.starts_with("withdrawn") && !name.to_string_lossy().ends_with(".partial"));
    found
}

#[test]
fn withdrawn_steps_are_kept_aside_and_trained_again_to_honest_bits() {
    let folder = tempfile::tempdir().unwrap();
    let run = faulty_run(folder.path());
    let before = files(&run.layout.root);
    let of = |name: &str| before.iter().find(|(path, _)| path == Path::new(name)).unwrap().1.clone();
    let done = withdraw(&run, 5).unwrap();
    assert_eq!((done.last, done.checkpoint), (4, Some(4)));
    assert_eq!(transcript::read(&run.layout.transcript()).unwrap().0.records.len(), 5);
    let kept = |name: &str| fs::read(run.layout.root.join("withdrawn").join(name)).unwrap();
    let whole = of("transcript");
    assert!(whole.ends_with(&kept("001-transcript")) && kept("001-transcript").len() < whole.len());
    assert!(of("gradients").ends_with(&kept("001-gradients")));
    for step in [5, 6] {
        assert_eq!(kept(&format!("001-traces-step-{step:09}")), of(&format!("traces/step-{step:09}")));
    }
    let state = "step-000000006.safetensors";
    assert_eq!(kept(&format!("001-checkpoints-{state}")), of(&format!("checkpoints/{state}")));
    assert_eq!(done.kept.len(), 5, "{:?}", done.kept);
    assert!(run.unexpected_files().unwrap().is_empty());
    // Nothing more is there to withdraw; the same call says the same, another step is refused.
    assert_eq!(withdraw(&run, 5).unwrap().kept, done.kept);
    let error = withdraw(&run, 6).unwrap_err().to_string();
    assert!(
        error.contains("there is no record of step 6 to withdraw; the last record is number 4"),
        "{error}"
    );
    train(&run, &mut Cpu::new(2).unwrap(), Some(&key()), &mut Silent).unwrap();
    trained(&rarely_signed(folder.path()), &folder.path().join("honest"), None);
    assert!(
        of_run(&run.layout.root) == files(&folder.path().join("honest")),
        "other files than of an honest run"
    );
    let error = withdraw(&run, 5).unwrap_err().to_string();
    assert!(error.contains("a published head covers 10 records, that of step 5 among them"), "{error}");
}

#[test]
fn a_second_fault_is_kept_beside_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let run = faulty_run(folder.path());
    withdraw(&run, 5).unwrap();
    let first = fs::read(run.layout.root.join("withdrawn/001-transcript")).unwrap();
    let other = Fault::Output { operator: "block0.gelu", primitive: "gelu.v1", word: 9, bit: 20 };
    train_until(&run, &mut Planted { fault: other, ..faulty() }, 5);
    let done = withdraw(&run, 5).unwrap();
    assert!(done.kept.iter().all(|name| name.starts_with("withdrawn/002-")), "{:?}", done.kept);
    assert_eq!(fs::read(run.layout.root.join("withdrawn/001-transcript")).unwrap(), first);
}

/// Stops the disk at each operation in turn; the same call then ends the work, and nothing is lost.
#[test]
fn every_crash_point_of_a_withdrawal_is_taken_up_again() {
    let folder = tempfile::tempdir().unwrap();
    let run = faulty_run(folder.path());
    let before = files(&run.layout.root);
    let place = |name: &str, files: &[(PathBuf, Vec<u8>)]| {
        let root = folder.path().join(name);
        let _ = fs::remove_dir_all(&root);
        for (path, bytes) in files {
            fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            fs::write(root.join(path), bytes).unwrap();
        }
        root
    };
    let right = place("right", &before);
    withdraw(&Run::open(&right).unwrap(), 5).unwrap();
    let expected = files(&right);
    let mut crashes = 0;
    for operations in 0.. {
        let root = place("crashed", &before);
        let failing = Run::of(Folder::on(&Disk::failing_after(operations), &root)).unwrap();
        if withdraw(&failing, 5).is_ok() {
            break;
        }
        drop(failing);
        crashes += 1;
        withdraw(&Run::open(&root).unwrap(), 5).unwrap();
        let mut found = files(&root);
        found.retain(|(name, _)| !name.to_string_lossy().ends_with(".partial"));
        assert!(found == expected, "other files after a crash at operation {operations}");
    }
    assert!(crashes > 25, "only {crashes} crash points were passed");
}

#[test]
fn a_run_that_is_begun_again_has_the_bytes_of_an_honest_one() {
    let folder = tempfile::tempdir().unwrap();
    for granularity in ["step", "operator"] {
        let job = gpt_job(folder.path(), granularity, "");
        let at = |name: &str| folder.path().join(format!("{granularity}-{name}"));
        let run = faulty_at(&job, &at("run"), [8; 16], 5);
        let before = files(&run.layout.root);
        let beginning =
            Again { run: &run, step: 5, out: Folder::at(&at("new")), key: Some(&key()), nonce: [9; 16] };
        let new = again(&beginning).unwrap();
        assert_eq!((new.head_sizes().unwrap(), new.checkpoint_steps().unwrap()), (vec![1, 4], vec![0, 2, 4]));
        train(&new, &mut Cpu::new(2).unwrap(), Some(&key()), &mut Silent).unwrap();
        trained(&job, &at("honest"), None);
        assert!(
            files(&at("new")) == files(&at("honest")),
            "{granularity}: other files than of an honest run"
        );
        assert!(files(&run.layout.root) == before, "{granularity}: the old run was changed");
        // Once it is trained further, the same call leaves it as it is.
        again(&beginning).unwrap();
        assert!(files(&at("new")) == files(&at("honest")), "{granularity}: a second call changed the run");
    }
}

#[test]
fn a_run_is_begun_again_from_its_own_records_alone() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "step", "");
    let run = faulty_at(&job, &folder.path().join("run"), [8; 16], 5);
    let refused = |step: u32, out: &str, key: Option<&_>| {
        let out = Folder::at(&folder.path().join(out));
        let Err(error) = again(&Again { run: &run, step, out, key, nonce: [9; 16] }) else {
            panic!("{step}")
        };
        error.to_string()
    };
    let said = refused(11, "new", Some(&key()));
    assert!(said.contains("11 records are before step 11, and it has 10"), "{said}");
    assert!(refused(5, "new", None).contains("begun with another key"));
    let said = refused(5, "run", Some(&key()));
    assert!(said.contains("the run") && said.contains("itself, which keeps its records"), "{said}");
    trained(&job, &folder.path().join("other"), Some("weight-after@3"));
    let said = refused(5, "other", Some(&key()));
    assert!(said.contains("its records differ from the earlier run's from number 3 on, before 5"), "{said}");
}

#[test]
fn every_crash_point_of_a_run_that_is_begun_again_is_taken_up_again() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "operator", "");
    let run = faulty_at(&job, &folder.path().join("run"), [8; 16], 5);
    let key = key();
    let begun = |disk: &Disk, root: &Path| {
        let out = Folder::on(disk, root);
        again(&Again { run: &run, step: 5, out, key: Some(&key), nonce: [9; 16] })
    };
    let right = folder.path().join("right");
    begun(&Disk::default(), &right).unwrap();
    let expected = files(&right);
    let (mut crashes, root) = (0, folder.path().join("crashed"));
    for operations in 0.. {
        let _ = fs::remove_dir_all(&root);
        if begun(&Disk::failing_after(operations), &root).is_ok() {
            break;
        }
        crashes += 1;
        begun(&Disk::default(), &root).unwrap();
        let mut found = files(&root);
        found.retain(|(name, _)| !name.to_string_lossy().ends_with(".partial"));
        assert!(found == expected, "other files after a crash at operation {operations}");
    }
    assert!(crashes > 60, "only {crashes} crash points were passed");
}
