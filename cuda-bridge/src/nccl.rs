//! Bytes from GPU to GPU, between processes: NVIDIA's NCCL, loaded at the first use. NCCL moves bytes here and does not add: the
//! order of its float reductions follows the ring, so none of these functions is even looked up.
//!
//! Written after NVIDIA's "NCCL User Guide", whose sections are named where the code relies on them, and after `nccl.h`, the
//! source of the types and numbers. **Nothing here has run on a GPU yet**. Tests run it over `shim/nccl.cpp`.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use libloading::Library;

use crate::device::driver::{Address, Handle};
use crate::device::{Device, DeviceError, Slice};
use crate::library::{Missing, candidates, functions};

/// The advice in errors on how to get the library.
const INSTALL: &str = "install NVIDIA's package libnccl2, or `pip install nvidia-nccl-cu12` and set TIEBREAK_NCCL to its \
                       libnccl.so.2 or to the folder that holds it (site-packages/nvidia/nccl/lib)";

const NAMES: &[&str] = &["libnccl.so.2"];

/// The oldest version that is used: 2.13.4. Up to 2.11 a group has at most 2048 operations ("Group Calls", API of 2.11.4). The
/// guide of 2.13.4 names no such limit, and a group here has one operation for each piece of a tensor.
const VERSION_MIN: c_int = 21_304;

/// The interval at which a waiting process checks for other events.
const LOOK: Duration = Duration::from_millis(10);
/// The interval at which the stream is polled for the end of a transfer.
const POLL: Duration = Duration::from_micros(50);
/// The time that the library has to stop an operation that was aborted, or to end in peace.
const ENDING: Duration = Duration::from_secs(5);

/// The reasons why bytes do not arrive.
#[derive(Debug, thiserror::Error)]
pub enum NcclError {
    /// No file that may be the library can be loaded.
    #[error("NVIDIA's library NCCL was not found ({tried}): {INSTALL}")]
    NotFound {
        /// The files that were tried, each with the loader's words.
        tried: String,
    },
    /// The library lacks a function.
    #[error("{library} lacks {symbol}, which NCCL has had since 2.7: {source}")]
    TooOld {
        /// The file that was loaded.
        library: String,
        /// The function: `ncclSend`.
        symbol: &'static str,
        /// The loader's error.
        source: libloading::Error,
    },
    /// The library has the functions, but may not support as many transfers in a group as an exchange needs.
    #[error(
        "NCCL {version} is too old, and {} is the oldest that is used here: {INSTALL}",
        shown(VERSION_MIN)
    )]
    OldVersion {
        /// The version from `ncclGetVersion`: `2.12.7`.
        version: String,
    },
    /// A call of the library failed, or an operation that it began: a rank is gone, or a network is down.
    #[error("NCCL's {call}: {message} (NCCL_DEBUG=WARN says more)")]
    Failed {
        /// The function: `ncclCommInitRank`; `transfer` for a failure after the calls that began it.
        call: &'static str,
        /// The library's text (`ncclGetErrorString`), or ours if its thread has ended.
        message: String,
    },
    /// The driver failed, or the GPU was lost.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A version as people write it.
fn shown(number: c_int) -> String {
    format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100)
}

/// Bytes of a [`UniqueId`].
pub const UNIQUE_ID_BYTES: usize = 128;

/// The id that the ranks of one communicator share. Every holder of the id can join, so it is told to ranks alone.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct UniqueId(pub [u8; UNIQUE_ID_BYTES]);

/// `ncclUint8`.
const UINT8: c_int = 1;
/// `ncclInProgress`.
const IN_PROGRESS: c_int = 7;

functions! {
    /// The library's functions that are used here.
    Functions:
    version = "ncclGetVersion" (*mut c_int);
    error_string = "ncclGetErrorString" (c_int) -> *const c_char;
    unique_id = "ncclGetUniqueId" (*mut UniqueId);
    init = "ncclCommInitRank" (*mut Handle, c_int, UniqueId, c_int);
    destroy = "ncclCommDestroy" (Handle);
    abort = "ncclCommAbort" (Handle);
    async_error = "ncclCommGetAsyncError" (Handle, *mut c_int);
    group_start = "ncclGroupStart" ();
    group_end = "ncclGroupEnd" ();
    send = "ncclSend" (*const c_void, usize, c_int, c_int, Handle, Handle);
    receive = "ncclRecv" (*mut c_void, usize, c_int, c_int, Handle, Handle);
}

/// NCCL, loaded into this process.
pub struct Nccl {
    functions: Functions,
    _library: Library,
    /// The version from `ncclGetVersion`: `2.27.5`.
    pub version: String,
}

impl Nccl {
    /// Finds and loads the library.
    ///
    /// # Errors
    /// If it is not there or too old; the message says how to get it.
    pub fn load() -> Result<Arc<Nccl>, NcclError> {
        let mut tried = Vec::new();
        for path in candidates("TIEBREAK_NCCL", NAMES) {
            // SAFETY: loading NVIDIA's library runs its initialisers, which is what every user of it does.
            match unsafe { Library::new(&path) } {
                Ok(library) => {
                    let named = path.display().to_string();
                    let functions = Functions::from(&library).map_err(|Missing { symbol, source }| {
                        NcclError::TooOld { library: named, symbol, source }
                    })?;
                    return Nccl::with(functions, library).map(Arc::new);
                }
                Err(error) => tried.push(format!("{}: {error}", path.display())),
            }
        }
        Err(NcclError::NotFound { tried: format!("tried {}", tried.join(", ")) })
    }

    fn with(functions: Functions, _library: Library) -> Result<Nccl, NcclError> {
        let mut nccl = Nccl { functions, _library, version: String::new() };
        let mut number = 0;
        // SAFETY: the pointer is valid for writing a number.
        nccl.check("ncclGetVersion", unsafe { (nccl.functions.version)(&mut number) })?;
        // Up to 2.8 the thousands are the major version, which makes a smaller number.
        if number < VERSION_MIN {
            let old = if number < 10_000 {
                format!("{}.{}.{}", number / 1000, number / 100 % 10, number % 100)
            } else {
                shown(number)
            };
            return Err(NcclError::OldVersion { version: old });
        }
        nccl.version = shown(number);
        Ok(nccl)
    }

    fn check(&self, call: &'static str, status: c_int) -> Result<(), NcclError> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: every number has a text, which is a literal of the library.
        let text = unsafe { (self.functions.error_string)(status) };
        let message = if text.is_null() {
            format!("error {status}")
        } else {
            // SAFETY: as above.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Err(NcclError::Failed { call, message })
    }

    /// The id of a new communicator: one process makes it, and tells the others, before any of them joins ("Creating a
    /// Communicator").
    ///
    /// # Errors
    /// If the library fails. On success it listens on a network interface from now on.
    pub fn unique_id(&self) -> Result<UniqueId, NcclError> {
        let mut id = UniqueId([0; UNIQUE_ID_BYTES]);
        // SAFETY: the pointer is valid for writing an id.
        self.check("ncclGetUniqueId", unsafe { (self.functions.unique_id)(&mut id) })?;
        Ok(id)
    }

    /// Checks for errors that happened in the background.
    fn healthy(&self, communicator: Handle) -> Result<(), NcclError> {
        let mut status = 0;
        // SAFETY: a communicator that was made and not ended, and a place for a number.
        let asked = unsafe { (self.functions.async_error)(communicator, &mut status) };
        self.check("ncclCommGetAsyncError", asked)?;
        // An operation that is still running is no error.
        self.check("transfer", if status == IN_PROGRESS { 0 } else { status })
    }
}

/// Bytes from or to a rank.
#[derive(Clone, Copy)]
pub struct Transfer<'a> {
    /// The other rank's number in the communicator, from 0.
    pub rank: u32,
    /// The bytes to send, or the memory for those that arrive, on this rank's GPU.
    pub at: Slice<'a>,
}

/// A transfer in the form for the thread that calls the library.
struct Call {
    sends: bool,
    rank: c_int,
    address: Address,
    bytes: usize,
}

/// One rank of a communicator, on one GPU.
///
/// A separate thread calls the library, since `ncclCommInitRank` waits for every rank, and the end of a group may wait for the
/// peers of its operations ("Creating a Communicator", "Group Calls"). A thread that waits in the library could neither notice a
/// rank that is gone nor give up. The thread polls the stream and `ncclCommGetAsyncError` in turn and aborts on an error, as
/// "Asynchronous errors and error handling" advises.
pub struct Communicator {
    device: Arc<Device>,
    /// The queue of calls; `None` when the thread is to end.
    calls: Option<Sender<Vec<Call>>>,
    results: Receiver<Result<(), NcclError>>,
    /// Set by a caller that has waited enough.
    stop: Arc<AtomicBool>,
}

impl Communicator {
    /// Joins, and waits for the other ranks: every one of `ranks` calls this with the id of one of them. `watch` is called again
    /// and again meanwhile; its error ends the waiting.
    ///
    /// # Errors
    /// If the library fails (also where two ranks are on one GPU), or the error of `watch`.
    pub fn join<E: From<NcclError>>(
        nccl: &Arc<Nccl>,
        device: &Arc<Device>,
        [rank, ranks]: [u32; 2],
        id: UniqueId,
        watch: &mut dyn FnMut() -> Result<(), E>,
    ) -> Result<Communicator, E> {
        let (calls, to_make) = channel();
        let (made, results) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let place = [rank, ranks].map(|number| c_int::try_from(number).expect("ranks are few"));
        let thread = Thread {
            nccl: nccl.clone(),
            device: device.clone(),
            communicator: null_mut(),
            stop: stop.clone(),
        };
        std::thread::spawn(move || thread.run(place, id, &to_make, &made));
        let communicator = Communicator { device: device.clone(), calls: Some(calls), results, stop };
        communicator.wait(watch).map_err(|ended| match ended {
            Ended::Failed(error) => error.into(),
            // The thread may wait in the library for ever: it touches no memory of ours.
            Ended::Stopped(error) => {
                communicator.stop.store(true, Ordering::Release);
                error
            }
        })?;
        Ok(communicator)
    }

    /// Sends and receives, after everything that was launched before; on return, all bytes have arrived. Bytes sent to a rank
    /// arrive in the order in which that rank receives them. ("Point-to-point communication": calls of a group about the same
    /// peer are executed in order, and none waits for another rank's.) So both ranks name the same sizes one after another. Every
    /// part has at least one byte.
    ///
    /// # Errors
    /// If the library or the GPU fails, or the error of `watch`, which is called as in [`Communicator::join`]. The communicator
    /// is unusable then, and the contents of the receiving memory are undefined.
    pub fn exchange<E: From<NcclError>>(
        &mut self,
        send: &[Transfer],
        receive: &[Transfer],
        watch: &mut dyn FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        let call = |sends| {
            move |transfer: &Transfer| Call {
                sends,
                rank: c_int::try_from(transfer.rank).expect("ranks are few"),
                address: transfer.at.address(),
                bytes: transfer.at.bytes(),
            }
        };
        let calls = send.iter().map(call(true)).chain(receive.iter().map(call(false))).collect();
        let gone = || NcclError::Failed { call: "transfer", message: "it has failed before".into() };
        self.calls.as_ref().and_then(|to| to.send(calls).ok()).ok_or_else(gone)?;
        match self.wait(watch) {
            Ok(()) => Ok(()),
            Err(Ended::Failed(error)) => Err(error.into()),
            Err(Ended::Stopped(error)) => {
                self.stop.store(true, Ordering::Release);
                // The thread has aborted when it answers. If it does not answer, a kernel of the library may still write to
                // memory that is given back, and freeing memory waits for that kernel.
                if self.results.recv_timeout(ENDING).is_err() {
                    self.device.abandon();
                }
                Err(error)
            }
        }
    }

    fn wait<E>(&self, watch: &mut dyn FnMut() -> Result<(), E>) -> Result<(), Ended<E>> {
        loop {
            match self.results.recv_timeout(LOOK) {
                Ok(result) => return result.map_err(Ended::Failed),
                Err(RecvTimeoutError::Timeout) => watch().map_err(Ended::Stopped)?,
                Err(RecvTimeoutError::Disconnected) => {
                    let message = "its thread has ended".into();
                    return Err(Ended::Failed(NcclError::Failed { call: "transfer", message }));
                }
            }
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // The thread ends the communicator, which other ranks may be about to do too. A thread that was given up is not waited
        // for.
        self.calls = None;
        if !self.stop.load(Ordering::Acquire) {
            let _ = self.results.recv_timeout(ENDING);
        }
    }
}

/// The reasons why a wait ends.
enum Ended<E> {
    Failed(NcclError),
    Stopped(E),
}

/// The thread that calls the library.
struct Thread {
    nccl: Arc<Nccl>,
    device: Arc<Device>,
    communicator: Handle,
    stop: Arc<AtomicBool>,
}

// SAFETY: the communicator is made, used and ended by the one thread that this is moved to.
unsafe impl Send for Thread {}

impl Thread {
    fn run(
        mut self,
        [rank, ranks]: [c_int; 2],
        id: UniqueId,
        calls: &Receiver<Vec<Call>>,
        results: &Sender<Result<(), NcclError>>,
    ) {
        let joined = self.join(rank, ranks, id);
        let failed = joined.is_err();
        // The receiver may be gone.
        if results.send(joined).is_err() || failed {
            return self.abort();
        }
        while let Ok(calls) = calls.recv() {
            let done = self.transfer(&calls);
            let failed = done.is_err();
            if failed {
                // The abort comes first, so that the receiver of the result can free memory.
                self.abort();
            }
            if results.send(done).is_err() || failed {
                return self.abort();
            }
        }
        // SAFETY: made and not ended. It waits for operations to complete ("Error handling and communicator destruction"), and all
        // have.
        unsafe { (self.nccl.functions.destroy)(self.communicator) };
    }

    /// Each rank belongs to the CUDA device that is current when it joins ("ncclCommInitRank").
    fn join(&mut self, rank: c_int, ranks: c_int, id: UniqueId) -> Result<(), NcclError> {
        self.device.current()?;
        // SAFETY: the pointer is valid for writing a handle.
        let status = unsafe { (self.nccl.functions.init)(&mut self.communicator, ranks, id, rank) };
        self.nccl.check("ncclCommInitRank", status)
    }

    /// Stops all running operations, once.
    fn abort(&mut self) {
        let communicator = std::mem::replace(&mut self.communicator, null_mut());
        if !communicator.is_null() {
            // SAFETY: made and not ended. It ends kernels that still run ("ncclCommAbort").
            unsafe { (self.nccl.functions.abort)(communicator) };
        }
    }

    fn transfer(&self, calls: &[Call]) -> Result<(), NcclError> {
        let Functions { group_start, group_end, send, receive, .. } = &self.nccl.functions;
        self.device.current()?;
        // SAFETY: no arguments.
        self.nccl.check("ncclGroupStart", unsafe { group_start() })?;
        let started = calls.iter().try_for_each(|call| self.start(*send, *receive, call));
        // A group that was begun is ended, whatever became of it. SAFETY: no arguments.
        let ended = self.nccl.check("ncclGroupEnd", unsafe { group_end() });
        started.and(ended)?;
        // A group's end says only that all operations are on the stream ("Group Calls").
        loop {
            let idle = self.device.is_idle()?;
            self.nccl.healthy(self.communicator)?;
            if idle {
                return Ok(());
            }
            if self.stop.load(Ordering::Acquire) {
                let message = "it was stopped".into();
                return Err(NcclError::Failed { call: "transfer", message });
            }
            std::thread::sleep(POLL);
        }
    }

    fn start(
        &self,
        send: unsafe extern "C" fn(*const c_void, usize, c_int, c_int, Handle, Handle) -> c_int,
        receive: unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Handle, Handle) -> c_int,
        call: &Call,
    ) -> Result<(), NcclError> {
        let &Call { sends, rank, address, bytes } = call;
        let (communicator, stream) = (self.communicator, null_mut());
        if sends {
            // SAFETY: the bytes are in memory of this device that stays as it is until the result was heard, or for ever
            // (`Communicator::exchange`); the null stream is that of all launches.
            let status = unsafe { send(address as *const c_void, bytes, UINT8, rank, communicator, stream) };
            return self.nccl.check("ncclSend", status);
        }
        // SAFETY: as above.
        let status = unsafe { receive(address as *mut c_void, bytes, UINT8, rank, communicator, stream) };
        self.nccl.check("ncclRecv", status)
    }
}
