//! A command as a function that can be watched and stopped.

use std::ffi::OsString;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;
use tiebreak::cli::{self, Amount, Ended, Heard};

use crate::kernel::PythonKernel;
use crate::panics::{Panic, caught};

/// The time between two looks at a command: for signals, and for the progress that the caller sees.
pub const LOOKED_EVERY: Duration = Duration::from_millis(50);

/// The stack of a command's thread, as a program's first thread has it.
pub const STACK: usize = 8 << 20;

/// The exit code, the result as JSON, and the error with its help.
pub type Told = (u8, Option<String>, Option<(String, Option<String>)>);

/// Runs a command line of tiebreak in this process.
///
/// `heard(progress, lines)` is called every 50 ms with news, and once at the end. An exception in it, or a signal such as Ctrl-C, asks the
/// command to stop, and is raised once the command has: training has written a checkpoint then. A second signal is raised at once, and so
/// is the first one if `waits` is false. A kernel computes the native products of the CPU engine; then no signal is raised at once, since
/// an interpreter that ends while another thread is in the kernel aborts.
#[pyfunction]
#[pyo3(signature = (words, heard, waits, kernel=None))]
pub fn call(
    py: Python<'_>,
    words: Vec<OsString>,
    heard: Bound<'_, PyAny>,
    waits: bool,
    kernel: Option<PythonKernel>,
) -> PyResult<Told> {
    let stays = kernel.is_some();
    let said = Arc::new(Heard::with_kernel(kernel.map(PythonKernel::shared)));
    let (sender, ended) = channel();
    let ended = Mutex::new(ended);
    let saying = said.clone();
    let thread = thread::Builder::new().name("tiebreak".into()).stack_size(STACK);
    thread.spawn(move || {
        // Nobody listens any more where a signal was raised at once.
        let _ = sender.send(caught(|| cli::call(&words, &saying)));
    })?;
    let mut interrupted: Option<PyErr> = None;
    loop {
        let ended = py.detach(|| wait(&ended));
        let news = if interrupted.is_none() { tell(&said, &heard) } else { Ok(()) };
        if let Err(error) = py.check_signals().and(news) {
            said.stop();
            if !stays && (interrupted.is_some() || !waits) {
                return Err(error);
            }
            interrupted = Some(error);
        }
        match (ended, interrupted.take()) {
            (None, before) => interrupted = before,
            (Some(_), Some(error)) => return Err(error),
            (Some(Err(panic)), None) => return Err(Panic::new_err(panic)),
            (Some(Ok(Ended { exit, result, error })), None) => return Ok((exit, result, error)),
        }
    }
}

/// The end of a command, if it comes soon.
fn wait(ended: &Mutex<Receiver<Result<Ended, String>>>) -> Option<Result<Ended, String>> {
    match ended.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(LOOKED_EVERY) {
        Ok(ended) => Some(ended),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => Some(Err("a command ended without a word".into())),
    }
}

/// Passes on what there is to hear.
pub fn tell(said: &Heard, heard: &Bound<'_, PyAny>) -> PyResult<()> {
    let progress = said.amount().map(|Amount { done, all, what, message }| (done, all, what, message));
    heard.call1((progress, said.said())).map(drop)
}
