//! Work on independent outputs: on all threads with the feature `threads`, one after another in the referee core, which has no
//! threads.

/// `f` of each index below `count`, in order of the indices.
pub fn map<T: Send>(count: usize, f: impl Fn(usize) -> T + Send + Sync) -> Vec<T> {
    // To ask other threads for a single value takes longer than most values.
    #[cfg(feature = "threads")]
    if count > 1 {
        use rayon::prelude::*;
        return (0..count).into_par_iter().map(f).collect();
    }
    (0..count).map(f).collect()
}
