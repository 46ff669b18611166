//! Bytes from GPU to GPU, between processes: NVIDIA's NCCL, loaded when it is first asked for. It moves bytes and does not add: its
//! reductions of floats follow the ring, so none of them is even looked up.
//!
//! Written after NVIDIA's "NCCL User Guide", named by section where something rests on it, and `nccl.h`, whose types and numbers these
//! are; **nothing here has run on a GPU yet**. Tests run it over `shim/nccl.cpp`.

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

/// How to get the library, for error messages.
const INSTALL: &str = "install NVIDIA's package libnccl2, or `pip install nvidia-nccl-cu12` and set TIEBREAK_NCCL to its \
                       libnccl.so.2 or to the folder that holds it (site-packages/nvidia/nccl/lib)";

const NAMES: &[&str] = &["libnccl.so.2"];

/// The oldest version that is used: 2.13.4. Up to 2.11 a group has at most 2048 operations ("Group Calls", API of 2.11.4); the guide
/// of 2.13.4 knows no such limit, and a group here has one for each piece of a tensor.
const VERSION_MIN: c_int = 21_304;

/// How often a process that waits looks at what else may have happened.
const LOOK: Duration = Duration::from_millis(10);
/// How often the stream is asked whether the bytes are there.
const POLL: Duration = Duration::from_micros(50);
/// How long the library may take to stop what it is told to stop, or to end in peace.
const ENDING: Duration = Duration::from_secs(5);

/// Why bytes do not come.
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
    /// The library has the functions, but may not take as many transfers in a group as an exchange needs.
    #[error(
        "NCCL {version} is too old, and {} is the oldest that is used here: {INSTALL}",
        shown(VERSION_MIN)
    )]
    OldVersion {
        /// What `ncclGetVersion` says: `2.12.7`.
        version: String,
    },
    /// A call of the library's failed, or what it began: a rank that is gone, a network that is down.
    #[error("NCCL's {call}: {message} (NCCL_DEBUG=WARN says more)")]
    Failed {
        /// The function: `ncclCommInitRank`; `transfer` for what fails after the calls that began it.
        call: &'static str,
        /// The library's words (`ncclGetErrorString`), or ours where its thread has ended.
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

/// What ranks of one communicator have in common. Whoever has it can join: it is told to ranks alone.
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
    /// What `ncclGetVersion` says: `2.27.5`.
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
        // SAFETY: a place for a number.
        nccl.check("ncclGetVersion", unsafe { (nccl.functions.version)(&mut number) })?;
        // Up to 2.8 thousands are the major version, which makes a smaller number.
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

    /// Of a communicator that is to be: one process makes it, and tells the others, before any of them joins ("Creating a
    /// Communicator").
    ///
    /// # Errors
    /// If the library fails: it listens on a network interface from now on.
    pub fn unique_id(&self) -> Result<UniqueId, NcclError> {
        let mut id = UniqueId([0; UNIQUE_ID_BYTES]);
        // SAFETY: a place for an id.
        self.check("ncclGetUniqueId", unsafe { (self.functions.unique_id)(&mut id) })?;
        Ok(id)
    }

    /// Whether nothing went wrong behind the caller's back.
    fn healthy(&self, communicator: Handle) -> Result<(), NcclError> {
        let mut status = 0;
        // SAFETY: a communicator that was made and not ended, and a place for a number.
        let asked = unsafe { (self.functions.async_error)(communicator, &mut status) };
        self.check("ncclCommGetAsyncError", asked)?;
        // What is still being done is no error.
        self.check("transfer", if status == IN_PROGRESS { 0 } else { status })
    }
}

/// Bytes from or to a rank.
#[derive(Clone, Copy)]
pub struct Transfer<'a> {
    /// The other rank's number in the communicator, from 0.
    pub rank: u32,
    /// The bytes to send, or the place for those that come, on this rank's GPU.
    pub at: Slice<'a>,
}

/// The same for the thread that calls the library.
struct Call {
    sends: bool,
    rank: c_int,
    address: Address,
    bytes: usize,
}

/// One rank of a communicator, on one GPU.
///
/// A thread of its own calls the library, since `ncclCommInitRank` waits for every rank, and the end of a group may wait for those that
/// it is about ("Creating a Communicator", "Group Calls"): who waits in the library could neither hear of a rank that is gone nor give
/// up. It polls the stream and `ncclCommGetAsyncError` in turn and aborts where something is wrong, as "Asynchronous errors and error
/// handling" advises.
pub struct Communicator {
    device: Arc<Device>,
    /// `None` when it is to end.
    calls: Option<Sender<Vec<Call>>>,
    results: Receiver<Result<(), NcclError>>,
    /// Set by who has waited enough.
    stop: Arc<AtomicBool>,
}

impl Communicator {
    /// Waits for the other ranks: every one of `ranks` calls this with the id of one of them. `watch` is asked again and again
    /// meanwhile: its error ends the waiting.
    ///
    /// # Errors
    /// If the library fails (also where two ranks are on one GPU), or as `watch` says.
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

    /// Sends and receives, after everything that was launched before; when it returns, the bytes are there. What is sent to a rank
    /// arrives in the order in which it takes it ("Point-to-point communication": calls of a group about the same peer are executed
    /// in order, and none waits for another rank's), so both name the same sizes one after another. Parts have at least a byte.
    ///
    /// # Errors
    /// If the library or the GPU fails, or as `watch` says, which is asked as in [`Communicator::join`]. The communicator is of no use
    /// then, and nothing can be said of what was to be received.
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
                // The thread has aborted when it answers. If it does not, a kernel of the library's may yet write to memory that is
                // given back, and whoever frees some waits for it.
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
        // The thread ends the communicator, which other ranks may be about to do too; of one that was given up nothing is expected.
        self.calls = None;
        if !self.stop.load(Ordering::Acquire) {
            let _ = self.results.recv_timeout(ENDING);
        }
    }
}

/// Why nobody waits any more.
enum Ended<E> {
    Failed(NcclError),
    Stopped(E),
}

/// What calls the library.
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
        // Nobody may be there any more to hear it.
        if results.send(joined).is_err() || failed {
            return self.abort();
        }
        while let Ok(calls) = calls.recv() {
            let done = self.transfer(&calls);
            let failed = done.is_err();
            if failed {
                // First, so that whoever hears of it can free memory.
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

    /// Each rank is of the CUDA device that is current when it joins ("ncclCommInitRank").
    fn join(&mut self, rank: c_int, ranks: c_int, id: UniqueId) -> Result<(), NcclError> {
        self.device.current()?;
        // SAFETY: a place for a handle.
        let status = unsafe { (self.nccl.functions.init)(&mut self.communicator, ranks, id, rank) };
        self.nccl.check("ncclCommInitRank", status)
    }

    /// Stops what may still run, once.
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
        // A group's end says only that all is on the stream ("Group Calls").
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
