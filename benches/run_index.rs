//! The index of declared runs at scale: `cargo bench --bench run_index [-- STATES]`, 10^8 states of 10^5 runs by default.
//!
//! Prints the seconds to write it, its bytes, and the times of questions right after it was opened and later, when the system has read
//! more of the file before. The states are synthetic digests.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::time::Instant;

use tiebreak_monitor::matching::run_index::{Entry, IndexedRun, RunIndex, write};
use tiebreak_record::commit::digest::Digest;

/// States of a run.
const STEPS: u64 = 1000;
/// Questions of each kind.
const QUESTIONS: u64 = 10_000;

fn state(number: u64) -> Digest {
    Digest(blake3::hash(&number.to_le_bytes()).into())
}

/// The median and the greatest of the times of questions, in microseconds. Each has its answer.
fn asked(
    index: &mut RunIndex<BufReader<File>>,
    numbers: impl Iterator<Item = u64>,
    states: u64,
) -> (f64, f64) {
    let mut times: Vec<f64> = numbers
        .map(|number| {
            let (state, start) = (state(number), Instant::now());
            let found = index.find(&state).unwrap();
            let seconds = start.elapsed().as_secs_f64();
            let due: &[u32] = if number < states { &[(number / STEPS) as u32] } else { &[] };
            assert_eq!(found, due, "state {number}");
            1e6 * seconds
        })
        .collect();
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], times[times.len() - 1])
}

fn main() {
    let states =
        std::env::args().skip(1).find_map(|argument| argument.parse::<f64>().ok()).unwrap_or(1e8) as u64;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let start = Instant::now();
    let runs: Vec<IndexedRun> = (0..states.div_ceil(STEPS))
        .map(|run| {
            let [id, computation] = [state(u64::MAX - 2 * run), state(u64::MAX - 2 * run - 1)];
            IndexedRun { path: format!("/srv/runs/{run}"), run: id, computation, records: STEPS + 1 }
        })
        .collect();
    let entries: Vec<Entry> =
        (0..states).map(|number| Entry::new(&state(number), (number / STEPS) as u32)).collect();
    println!("{states} states of {} runs made in {:.1} s", runs.len(), start.elapsed().as_secs_f64());
    let start = Instant::now();
    let mut out = BufWriter::with_capacity(1 << 20, File::create(&path).unwrap());
    write(&mut out, &runs, entries).unwrap();
    out.flush().unwrap();
    out.get_ref().sync_all().unwrap();
    let bytes = std::fs::metadata(&path).unwrap().len();
    println!("sorted and written in {:.1} s: {bytes} bytes", start.elapsed().as_secs_f64());
    let start = Instant::now();
    let mut index = RunIndex::open(BufReader::new(File::open(&path).unwrap())).unwrap();
    println!("opened in {:.3} s", start.elapsed().as_secs_f64());
    let step = (states / QUESTIONS).max(1);
    for (what, first) in
        [("states that are there", 0), ("the same again", 0), ("states that are not there", states)]
    {
        let (median, most) = asked(&mut index, (0..QUESTIONS.min(states)).map(|i| first + i * step), states);
        println!("{what}: median {median:.0} us, at most {most:.0} us");
    }
}
