//! Runs of trainers and audits that compute tensors again instead of keeping them, or keep them in a place that changes them.

use std::io;
use std::sync::Arc;

use tiebreak_audit::plan::{Choice, plan};
use tiebreak_audit::{AuditError, Report, Silent, audit, checks};
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::outside::{Held, Outside};
use tiebreak_engine::{Engine, recompute};
use tiebreak_run::run::dir::Run;

use crate::common::edit::edit;
use crate::common::{audited, files, gpt_job, key, trained, trained_on};

/// Honest and cheating trainers write the same files, and audits find the same, on either side.
#[test]
fn computing_again_changes_no_file_and_no_finding() {
    let folder = tempfile::tempdir().unwrap();
    let job = gpt_job(folder.path(), "operator", "");
    edit(&job, &[("layers = 1", "layers = 4"), ("steps = 8", "steps = 3")]);
    let mut again = recompute::engine(Cpu::new(2).unwrap(), true);
    for cheat in [None, Some("operator@2"), Some("weight-after@3")] {
        let [whole, less] = ["whole", "less"].map(|name| folder.path().join(format!("{name}-{cheat:?}")));
        let run = trained(&job, &whole, cheat);
        let (repeated, _) = recompute::repeated_nodes(run.program());
        assert!(repeated > 100, "{repeated}");
        let other = trained_on(&mut *again, &job, &less, cheat);
        assert!(files(&whole) == files(&less), "{cheat:?}: the files differ");
        let (expected, verdict) = audited(&run, &mut Cpu::new(2).unwrap());
        let (report, same_verdict) = audited(&other, &mut *again);
        assert_eq!(report.outcome, expected.outcome);
        assert_eq!(verdict.is_some(), cheat.is_some());
        assert!(same_verdict == verdict, "{cheat:?}: the verdicts differ");
    }
}

/// The outcome of an audit on an engine that keeps the slots there.
fn audited_with(outside: Arc<dyn Outside>, run: &Run) -> Result<Report, AuditError> {
    let mut cpu = Cpu::new(1).unwrap();
    assert!(cpu.use_outside(outside));
    let checked = checks::always(run, Some(&key().public())).unwrap();
    let plan = plan(run, &checked.checkpoints, run.job().steps, &Choice::All);
    audit(run, &mut cpu, checked, plan, None, &mut Silent).map(|(report, _)| report)
}

/// A place that gives back other words, and says nothing.
struct Lying;

struct Changed(Vec<u32>);

impl Outside for Lying {
    fn put(&self, words: &[u32]) -> io::Result<Box<dyn Held>> {
        Ok(Box::new(Changed(words.to_vec())))
    }
}

impl Held for Changed {
    fn get(&self, words: &mut [u32]) -> io::Result<()> {
        words.copy_from_slice(&self.0);
        words[0] ^= 1 << 24;
        Ok(())
    }
}

/// The state before a step lies in that place too, so the scalar reference would begin from the same wrong slots.
#[test]
fn an_auditor_whose_memory_changes_the_state_accuses_nobody() {
    let folder = tempfile::tempdir().unwrap();
    for granularity in ["step", "operator"] {
        let job = gpt_job(folder.path(), granularity, "");
        let run = trained(&job, &folder.path().join(granularity), None);
        let why = audited_with(Arc::new(Lying), &run).unwrap_err().to_string();
        assert!(why.starts_with("step 1 is not judged: this machine changed the state before it"), "{why}");
    }
}

/// A folder whose file somebody else writes to, once the file has some words.
#[cfg(target_os = "linux")]
mod changed {
    use std::fs::{self, File};
    use std::os::unix::fs::FileExt;
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    use tiebreak_run::run::disk::Disk;
    use tiebreak_run::run::spilled::Spilled;
    use tiebreak_train::train;

    use super::*;
    use crate::common::begin_run;

    struct Written {
        file: Spilled,
        folder: PathBuf,
        puts: AtomicU32,
    }

    impl Written {
        fn into(folder: &Path) -> Arc<Written> {
            let folder = folder.canonicalize().unwrap();
            let file = Spilled::in_folder(&folder).unwrap();
            Arc::new(Written { file, folder, puts: AtomicU32::new(0) })
        }

        /// Changes a bit of each 64 bytes of the file, which has no name.
        fn write(&self) {
            let open = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
            let is_ours = |path: &PathBuf| fs::read_link(path).is_ok_and(|to| to.starts_with(&self.folder));
            let path = open.into_iter().find(is_ours).expect("the file is open");
            let file = File::options().read(true).write(true).open(path).unwrap();
            for at in (0..file.metadata().unwrap().len()).step_by(64) {
                let mut byte = [0];
                file.read_exact_at(&mut byte, at).unwrap();
                file.write_all_at(&[byte[0] ^ 4], at).unwrap();
            }
        }
    }

    impl Outside for Written {
        fn put(&self, words: &[u32]) -> io::Result<Box<dyn Held>> {
            let held = self.file.put(words)?;
            if self.puts.fetch_add(1, SeqCst) == 200 {
                self.write();
            }
            Ok(held)
        }
    }

    #[test]
    fn a_folder_that_gives_back_other_bytes_ends_training_and_audits() {
        let folder = tempfile::tempdir().unwrap();
        let job = gpt_job(folder.path(), "microbatch", "");
        let honest = trained(&job, &folder.path().join("honest"), None);
        let away = tempfile::tempdir().unwrap();
        let other = "it gave back other bytes than were written";

        let mut cpu = Cpu::new(1).unwrap();
        assert!(cpu.use_outside(Written::into(away.path())));
        let run = begin_run(&Disk::default(), &job, &folder.path().join("other")).unwrap();
        let trained = train(&run, &mut cpu, Some(&key()), &mut tiebreak_train::Silent);
        let why = trained.map(|_| ()).unwrap_err().to_string();
        assert!(why.starts_with("the folder of --offload failed: ") && why.ends_with(other), "{why}");
        drop(cpu);

        let why = audited_with(Written::into(away.path()), &honest).unwrap_err().to_string();
        assert!(why.starts_with("the folder of --offload failed: ") && why.ends_with(other), "{why}");
    }
}
