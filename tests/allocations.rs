//! Whoever reads runs and verdicts of others stays within limits: memory is counted, by an allocator that does nothing else.

#![cfg(feature = "testing")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use common::{gpt_job, key, trained};
use tiebreak::audit::plan::{Choice, plan};
use tiebreak::audit::{Outcome, Silent, audit, checks};
use tiebreak::engine::cpu::Cpu;
use tiebreak::run::dir::Run;

/// The system's allocator, which counts bytes that are in use and the most that were.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(LIVE.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(LIVE.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes that `f` has in use beyond those before it. One test at a time measures.
fn peak<R>(f: impl FnOnce() -> R) -> (R, usize) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let result = f();
    (result, PEAK.load(Relaxed) - before)
}

/// What threads and the like take beside tensors and programs.
const OTHER: usize = 1 << 20;

/// A model of several layers, so that the tensors of a micro-batch are many times those of one operator.
fn deep_job(folder: &Path, granularity: &str) -> PathBuf {
    let path = gpt_job(folder, granularity, "");
    let mut text = fs::read_to_string(&path).unwrap();
    for (from, to) in
        [("steps = 8", "steps = 2"), ("layers = 1", "layers = 6"), ("context = 12", "context = 64")]
    {
        assert!(text.contains(from));
        text = text.replace(from, to);
    }
    fs::write(&path, text).unwrap();
    path
}

/// A cheat is confirmed by the scalar reference within the memory that the plan announced before anything was replayed.
#[test]
fn confirming_a_cheat_takes_the_memory_that_was_planned() {
    let folder = tempfile::tempdir().unwrap();
    for granularity in ["microbatch", "operator"] {
        let job = deep_job(folder.path(), granularity);
        let run = trained(&job, &folder.path().join(granularity), Some("operator@2"));
        // An audit's sessions keep a program each, and its graphs.
        let (opened, program) = peak(|| Run::open(&run.layout.root).unwrap());
        drop(opened);
        let ((planned, outcome), taken) = peak(|| {
            let run = Run::open(&run.layout.root).unwrap();
            let checked = checks::always(&run, Some(&key().public())).unwrap();
            let plan = plan(&run, &checked.checkpoints, run.job.steps, &Choice::All);
            let planned = plan.memory as usize;
            let (report, _) =
                audit(&run, &mut Cpu::new(1).unwrap(), checked, plan, None, &mut Silent).unwrap();
            (planned, report.outcome)
        });
        assert!(matches!(outcome, Outcome::Diverges { step: 2, .. }), "{outcome:?}");
        println!("{granularity}: planned {planned}, taken {taken}, a program {program}");
        assert!(
            taken <= planned + 4 * program + OTHER,
            "{granularity}: planned {planned} bytes, {taken} were taken"
        );
    }
}
