//! Panics: a mistake of the program becomes an exception that says how to report it, and never the end of the interpreter.

use std::panic::{self, AssertUnwindSafe};
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;

pyo3::create_exception!(_native, Panic, pyo3::exceptions::PyException, "The native module has a bug.");

/// The place and the text of the last panic.
static LAST: Mutex<Option<String>> = Mutex::new(None);

/// Remembers each panic, and prints none.
pub fn remember() {
    panic::set_hook(Box::new(|info| {
        *LAST.lock().unwrap_or_else(PoisonError::into_inner) = Some(info.to_string());
    }));
}

/// Does work whose panic is an error.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    panic::catch_unwind(AssertUnwindSafe(work)).map_err(|_| {
        let text = LAST.lock().unwrap_or_else(PoisonError::into_inner).take();
        text.unwrap_or_else(|| "a panic without a text".into())
    })
}

/// [`caught`], without the interpreter's lock.
pub fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> PyResult<T> {
    py.detach(|| caught(work)).map_err(Panic::new_err)
}

/// Panics, for the test of what a user sees then.
#[pyfunction]
pub fn panics(py: Python<'_>, text: String) -> PyResult<()> {
    detached(py, || panic!("{text}"))
}
