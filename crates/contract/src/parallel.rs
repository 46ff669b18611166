//! Work on independent outputs: on all threads with the feature `threads`, one after another in the referee core, which has no
//! threads.

/// `f` of each index below `count`, in order of the indices.
pub fn map<T: Send>(count: usize, f: impl Fn(usize) -> T + Send + Sync) -> Vec<T> {
    #[cfg(feature = "threads")]
    {
        use rayon::prelude::*;
        (0..count).into_par_iter().map(f).collect()
    }
    #[cfg(not(feature = "threads"))]
    {
        (0..count).map(f).collect()
    }
}
