//! The reasons why a GPU cannot be used.

/// The reasons why a GPU could not be used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The loader does not find the driver's library, or cannot load it.
    #[error(
        "no NVIDIA driver was found ({0}): install the driver of this machine's GPU, which brings libcuda"
    )]
    NoDriver(libloading::Error),
    /// The driver lacks a function.
    #[error(
        "the NVIDIA driver lacks {symbol}: it is older than CUDA 11.2; install a newer driver ({source})"
    )]
    TooOld {
        /// The function: `cuMemAlloc_v2`.
        symbol: &'static str,
        /// The loader's error.
        source: libloading::Error,
    },
    /// No GPU has this number.
    #[error("there is no NVIDIA GPU {index}: the driver shows {count}")]
    NoDevice {
        /// The requested number.
        index: i32,
        /// The number of GPUs; the first has number 0.
        count: i32,
    },
    /// The driver is for this version of CUDA, major and minor (`cuDriverGetVersion`), which is too old.
    #[error(
        "the NVIDIA driver is for CUDA {0}.{1}, and 11.2 is the oldest that is used here: install a newer driver"
    )]
    OldVersion(i32, i32),
    /// The GPU's memory is short (CUDA_ERROR_OUT_OF_MEMORY from `cuMemAlloc`).
    #[error(
        "{bytes} more bytes are not there ({free} of {total} are free): use smaller micro-batches, or another GPU"
    )]
    OutOfMemory {
        /// The bytes that were requested at once.
        bytes: usize,
        /// The free bytes of the GPU's memory (`cuMemGetInfo`); 0 if the driver does not say.
        free: usize,
        /// The bytes of the GPU's memory; 0 if the driver does not say.
        total: usize,
    },
    /// `cuModuleLoadData` refuses machine code: the code is for another architecture, or of a later compiler than the driver
    /// knows.
    #[error(
        "the driver (CUDA {driver}) does not take the machine code of kernel {kernel} ({message}): install a newer driver, or \
         an NVRTC that is no newer than it"
    )]
    Code {
        /// The kernel's name.
        kernel: String,
        /// The driver's version of CUDA: `12.8`.
        driver: String,
        /// The driver's text.
        message: String,
    },
    /// An error after which every call fails: an illegal address or instruction, a failed launch, an uncorrectable memory error.
    /// Also an operation that does not end.
    #[error(
        "the GPU was lost or its program failed ({call}: {message}); this process cannot use it any more"
    )]
    Lost {
        /// The function that reported the error, which may belong to an earlier launch.
        call: &'static str,
        /// The driver's text (`cuGetErrorString`), or ours for an operation that does not end.
        message: String,
    },
    /// The driver refuses a call in another way.
    #[error("{call}: {message}")]
    Failed {
        /// The function: `cuLaunchKernel`.
        call: &'static str,
        /// The driver's text (`cuGetErrorString`), or ours about a function that it lacks.
        message: String,
    },
    /// The buffers of a launch do not fit the kernel's parameters: a fault of the caller's own. Nothing was launched.
    #[error("kernel {kernel}: {reason}")]
    Arguments {
        /// The kernel's name.
        kernel: String,
        /// The parameter, and what is wrong with its buffer, in words.
        reason: String,
    },
}
