//! A recording as an object: each batch goes to the thread that trains, and its loss comes back.

use std::ffi::OsString;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use tiebreak::cli::{self, Ended, Heard};
use tiebreak_record::commit::record::StepRecord;
use tiebreak_run::run::RunError;
use tiebreak_train::fed::{Feed, Part};

use crate::call::{self, LOOKED_EVERY, STACK};
use crate::kernel::PythonKernel;
use crate::panics::{Panic, caught};
use crate::run::Failed;

/// The news of the thread that trains.
enum Reply {
    /// Steps that are there, and the parts of a batch.
    Ready(u32, Vec<Part>),
    /// A step is done, with its loss.
    Kept(u32, f32),
    /// The batch is none.
    Refused(u8, String, Option<String>),
    /// The thread has ended.
    Ended(Result<Ended, String>),
}

/// The batches on their way.
struct Fed {
    batches: Receiver<Vec<Vec<u8>>>,
    replies: Sender<Reply>,
}

impl Fed {
    fn reply(&self, reply: Reply) {
        // Nobody listens any more where a signal was raised at once.
        let _ = self.replies.send(reply);
    }
}

impl Feed for Fed {
    fn begin(&mut self, done: u32, parts: Vec<Part>) {
        self.reply(Reply::Ready(done, parts));
    }

    fn next(&mut self, _: u32) -> Option<Vec<Vec<u8>>> {
        self.batches.recv().ok()
    }

    fn refused(&mut self, why: RunError) {
        let (exit, message, help) = cli::explained(why);
        self.reply(Reply::Refused(exit, message, help));
    }

    fn kept(&mut self, record: &StepRecord) {
        self.reply(Reply::Kept(record.step, f32::from_bits(record.loss)));
    }
}

/// Steps that are done, the loss of the last one, the parts of a batch, and the end.
type News = (u32, f32, Vec<(&'static str, Vec<u64>)>, Option<call::Told>);

/// A recording that runs in a thread of its own.
#[pyclass(frozen)]
pub struct Recording {
    heard: Arc<Heard>,
    batches: Mutex<Option<Sender<Vec<Vec<u8>>>>>,
    replies: Mutex<Receiver<Reply>>,
}

#[pymethods]
impl Recording {
    /// Begins, or goes on with, the recording that the words name. A kernel computes the native products of the CPU engine.
    #[new]
    #[pyo3(signature = (words, kernel=None))]
    fn new(words: Vec<OsString>, kernel: Option<PythonKernel>) -> PyResult<Recording> {
        let heard = Arc::new(Heard::with_kernel(kernel.map(PythonKernel::shared)));
        let ((batches, fed), (replies, news)) = (channel(), channel());
        let (saying, ended) = (heard.clone(), replies.clone());
        let thread = thread::Builder::new().name("tiebreak".into()).stack_size(STACK);
        thread.spawn(move || {
            let mut feed = Fed { batches: fed, replies };
            let end = caught(|| cli::record(&words, &saying, &mut feed));
            let _ = ended.send(Reply::Ended(end));
        })?;
        Ok(Recording { heard, batches: Mutex::new(Some(batches)), replies: Mutex::new(news) })
    }

    /// Passes a batch on: bytes for each data file.
    fn put(&self, parts: Vec<PyBackedBytes>) {
        let parts = parts.iter().map(|part| part.to_vec()).collect();
        if let Some(batches) = &*self.batches.lock().unwrap_or_else(PoisonError::into_inner) {
            // A thread that has ended says so itself.
            let _ = batches.send(parts);
        }
    }

    /// Says that no batch comes any more.
    fn close(&self) {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Waits for the next news; with `patient` for the end. `heard(progress, lines)` is called as `call` does.
    ///
    /// A refused batch is `Failed`. A signal is raised at once; if `patient`, it is raised after the end, and a second one at once.
    fn wait(&self, py: Python<'_>, heard: Bound<'_, PyAny>, patient: bool) -> PyResult<News> {
        let mut interrupted: Option<PyErr> = None;
        loop {
            let reply = py.detach(|| {
                self.replies.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(LOOKED_EVERY)
            });
            let news = if interrupted.is_none() { call::tell(&self.heard, &heard) } else { Ok(()) };
            if let Err(error) = py.check_signals().and(news) {
                if interrupted.is_some() || !patient {
                    return Err(error);
                }
                interrupted = Some(error);
            }
            match reply {
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Panic::new_err("a recording ended without a word"));
                }
                Ok(Reply::Ended(Err(panic))) => return Err(Panic::new_err(panic)),
                Ok(Reply::Ended(Ok(Ended { exit, result, error }))) => {
                    return match interrupted {
                        Some(error) => Err(error),
                        None => Ok((0, 0.0, Vec::new(), Some((exit, result, error)))),
                    };
                }
                Ok(_) if patient => {}
                Ok(Reply::Refused(exit, message, help)) => {
                    return Err(Failed::new_err((exit, message, help)));
                }
                Ok(Reply::Kept(step, loss)) => return Ok((step, loss, Vec::new(), None)),
                Ok(Reply::Ready(done, parts)) => {
                    let parts = parts.into_iter().map(|part| (part.element, part.shape)).collect();
                    return Ok((done, 0.0, parts, None));
                }
            }
        }
    }
}
