//! Functions of one word over 1024 inputs in each of the 512 binades. If TIEBREAK_EVERY_INPUT is 1 or the beginning of the
//! function's name: over all 2^32, which takes minutes for each function.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// The ranges of inputs that are computed at once.
fn stretches(name: &str) -> Vec<Range<u64>> {
    let every = std::env::var("TIEBREAK_EVERY_INPUT");
    if every.is_ok_and(|every| every == "1" || name.starts_with(&every)) {
        const LEN: u64 = 1 << 16;
        return (0..(1 << 32) / LEN).map(|i| i * LEN..(i + 1) * LEN).collect();
    }
    // Each binade begins at another offset.
    let first = |binade: u64| (binade << 23) + ((binade * 0x9e37_79b9) & 0x7f_fc00);
    (0..512).map(|binade| first(binade)..first(binade) + 1024).collect()
}

/// Passes all inputs, a range at a time, to functions; each thread makes its own. Returns the number of inputs, and the seconds.
pub fn give<F: FnMut(&[u32])>(name: &str, make: impl Fn() -> F + Sync) -> (u64, f64) {
    let start = Instant::now();
    let (stretches, next) = (stretches(name), AtomicUsize::new(0));
    let work = || {
        let mut take = make();
        while let Some(stretch) = stretches.get(next.fetch_add(1, Ordering::Relaxed)) {
            take(&stretch.clone().map(|x| x as u32).collect::<Vec<u32>>());
        }
    };
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    (stretches.iter().map(|stretch| stretch.end - stretch.start).sum(), start.elapsed().as_secs_f64())
}

/// Compares a function of many words with a function of one. Each thread makes the former for itself.
///
/// # Panics
/// If they differ; the message names the first input by its pattern, and says how many there are.
pub fn compare<F: FnMut(&[u32]) -> Vec<u32>>(
    name: &str,
    have: impl Fn() -> F + Sync,
    want: impl Fn(u32) -> u32 + Sync,
) {
    // The number of wrong inputs, and the first of them with both results.
    let found = Mutex::new((0, None::<[u32; 3]>));
    let (inputs, seconds) = give(name, || {
        let mut have = have();
        let (found, want) = (&found, &want);
        move |inputs: &[u32]| {
            let outputs = have(inputs);
            assert_eq!(inputs.len(), outputs.len(), "{name} gives a word for each");
            let all = inputs.iter().zip(outputs).map(|(&x, y)| [x, y, want(x)]);
            let wrong: Vec<[u32; 3]> = all.filter(|[_, have, want]| have != want).collect();
            let mut found = found.lock().unwrap();
            found.0 += wrong.len();
            found.1 = found.1.into_iter().chain(wrong.first().copied()).min();
        }
    });
    let (wrong, first) = *found.lock().unwrap();
    if let Some([x, have, want]) = first {
        panic!("{name}: {wrong} of {inputs} inputs are wrong, first {x:08x}: {have:08x}, not {want:08x}");
    }
    println!("{name}: {inputs} inputs, none wrong, {seconds:.0} s");
}
