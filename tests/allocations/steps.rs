//! Commands about runs of few steps, twice and four times as many: their work grows with the steps, not with their square.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use crate::common::trained;
use crate::{alone, spent};

/// A job of numbers that take no time, with a head and a trace at every step.
fn job(folder: &Path, steps: u32, rounding: &str) -> PathBuf {
    fs::write(folder.join("text.txt"), [0, 1, 1].repeat(140)).unwrap();
    let text = format!(
        r#"steps = {steps}
model = {{ kind = "gpt", vocabulary = 2, context = 2, layers = 1, heads = 1, width = 2 }}
data = {{ kind = "bytes", path = "text.txt" }}
optimizer = {{ kind = "sgd", momentum = 0.9, weight_decay = 0.0 }}
schedule = {{ peak = 1e-3 }}
batch = {{ micro_batch = 1, micro_batches = 2 }}
commit = {{ granularity = "operator", head_every = 1 }}
checkpoint = {{ every = 10 }}
{rounding}"#
    );
    let path = folder.join(format!("{steps}.toml"));
    fs::write(&path, text).unwrap();
    path
}

/// Runs a command in this process, whose allocations are counted. A run of so few numbers leaves its trainer more freedom than an
/// audit accepts.
fn command(line: &str, run: &str) {
    let words = format!("tiebreak {line} -q").replace("RUN", run);
    let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
    let code = tiebreak::cli::run(&words);
    assert!(code == 0 || code == 3 && run.contains("logged"), "{words:?}: {code}");
}

const COMMANDS: [&str; 9] = [
    "verify RUN",
    "inspect RUN",
    "compare RUN RUN",
    "plot RUN --output RUN.svg",
    "plot RUN --quantity norm --output RUN.svg",
    "export RUN --output OUT",
    "audit RUN --plan --threads 1",
    "audit RUN --sample 0 --seed 1 --threads 1",
    "replay RUN --step 5 --threads 1",
];

/// True if the costs for so many steps, twice and four times as many, grow in proportion. Costs that do not depend on steps are
/// in all three, and so in no difference; for a square, the second difference is four times the first one.
fn grows_as_steps([once, twice, four_times]: [[f64; 2]; 3], grain: [f64; 2]) -> bool {
    (0..2).all(|i| four_times[i] - twice[i] < 3.0 * (twice[i] - once[i]).max(0.0) + grain[i])
}

/// Compares the costs of `work` for each of three runs. A busy machine disturbs the clock, so a failing comparison is repeated.
fn compare<T>(what: &str, subjects: &[T; 3], work: impl Fn(&T)) {
    for attempt in 0.. {
        let found = subjects.each_ref().map(|subject| spent(|| work(subject)));
        let bytes = found.map(|[_, bytes]| bytes as u64 / 1000);
        let times = found.map(|[time, _]| (time / 1e6) as u64);
        println!("{what}: {bytes:?} KB in {times:?} ms");
        // 30 ms and 30 KB: the grain of the clock, and of growing vectors.
        if grows_as_steps(found, [30e6, 3e4]) {
            return;
        }
        assert!(attempt < 4, "{what} takes {bytes:?} KB and {times:?} ms for N, 2 N and 4 N steps");
        thread::sleep(Duration::from_secs(1));
    }
}

#[test]
fn work_is_in_proportion_to_steps() {
    let square = [[1.0; 2], [4.0; 2], [16.0; 2]].map(|[time, bytes]| [time * 1e8, bytes * 1e6]);
    let line = [[1.0; 2], [2.0; 2], [4.0; 2]].map(|[time, bytes]| [time * 1e8, bytes * 1e6]);
    assert!(!grows_as_steps(square, [30e6, 3e4]) && grows_as_steps(line, [30e6, 3e4]));
    let _alone = alone();
    // Use a folder in memory, if there is one: there are many steps, and each is on disk before the next.
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    let numbers = AtomicU32::new(0);
    let fresh = |name: &str| folder.path().join(format!("{name}-{}", numbers.fetch_add(1, Relaxed)));
    for (profile, rounding) in [("exact", ""), ("logged", "[rounding]\n")] {
        let jobs = [60, 120, 240].map(|steps| job(folder.path(), steps, rounding));
        let runs = jobs.each_ref().map(|job| {
            let root = fresh(profile);
            trained(job, &root, None);
            root.to_str().unwrap().to_string()
        });
        let logged = ["log inspect RUN --step 7"].into_iter().filter(|_| profile == "logged");
        for line in COMMANDS.into_iter().chain(logged) {
            compare(&format!("{profile}: {line}"), &runs, |run| {
                command(&line.replace("OUT", fresh("out").to_str().unwrap()), run);
            });
        }
        compare(&format!("{profile}: train"), &jobs, |job| {
            let again = fresh("again");
            trained(job, &again, None);
            fs::remove_dir_all(again).unwrap();
        });
    }
}
