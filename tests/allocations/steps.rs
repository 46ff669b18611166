//! Commands about runs of few steps and of four times as many: their work grows with the steps, and not with their square.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::common::trained;
use crate::{alone, spent};

/// A job of numbers that take no time, with a head and a trace a step.
fn job(folder: &Path, steps: u32, rounding: &str) -> PathBuf {
    fs::write(folder.join("text.txt"), [0, 1].repeat(200)).unwrap();
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

/// Runs a command in this process, whose allocations are counted.
fn command(line: &str, run: &str) {
    let words = format!("tiebreak {line} -q").replace("RUN", run);
    let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
    assert_eq!(tiebreak::cli::run(&words), 0, "{words:?}");
}

const COMMANDS: [&str; 9] = [
    "verify RUN",
    "inspect RUN",
    "compare RUN RUN",
    "plot RUN --output RUN.svg",
    "plot RUN --quantity norm --output RUN.svg",
    "export RUN --output RUN.RANDOM",
    "audit RUN --plan --threads 1",
    "audit RUN --sample 0 --seed 1 --threads 1",
    "replay RUN --step 5 --threads 1",
];

/// What a thing takes for a run of some steps and for one of four times as many, compared.
fn compare(what: &str, [few, many]: [[f64; 2]; 2]) {
    let [time, bytes] = [many[0] / few[0], many[1] / few[1]];
    println!("{what}: {:.1} ms, x {time:.1}; {} KB, x {bytes:.1}", many[0] / 1e6, many[1] as u64 / 1000);
    assert!(bytes < 6.0, "{what} takes {bytes} times the bytes for 4 times the steps");
    // What is over in a moment has more of the clock's grain than of work.
    assert!(time < 10.0 || many[0] < 20e6, "{what} takes {time} times the time for 4 times the steps");
}

#[test]
fn work_is_in_proportion_to_steps() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let numbers = AtomicU32::new(0);
    let fresh = |name: &str| folder.path().join(format!("{name}-{}", numbers.fetch_add(1, Relaxed)));
    for (profile, rounding) in [("exact", ""), ("logged", "[rounding]\n")] {
        let jobs = [60, 240].map(|steps| job(folder.path(), steps, rounding));
        let runs = jobs.each_ref().map(|job| {
            let root = fresh(profile);
            trained(job, &root, None);
            root.to_str().unwrap().to_string()
        });
        let train = |job: &PathBuf| spent(|| drop(trained(job, &fresh("again"), None)));
        compare(&format!("{profile}: train"), jobs.each_ref().map(train));
        let logged = ["log inspect RUN --step 7"].into_iter().filter(|_| profile == "logged");
        for line in COMMANDS.into_iter().chain(logged) {
            let each = |run: &String| {
                spent(|| {
                    let out = fresh("out");
                    command(&line.replace("RUN.RANDOM", out.to_str().unwrap()), run);
                })
            };
            compare(&format!("{profile}: {line}"), runs.each_ref().map(each));
        }
    }
}
