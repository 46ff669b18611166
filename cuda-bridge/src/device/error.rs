//! Why a GPU could not be used.

/// Why a GPU could not be used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error(
        "no NVIDIA driver was found ({0}): install the driver of this machine's GPU, which brings libcuda"
    )]
    NoDriver(libloading::Error),
    #[error(
        "the NVIDIA driver lacks {symbol}: it is older than CUDA 11.2; install a newer driver ({source})"
    )]
    TooOld { symbol: &'static str, source: libloading::Error },
    #[error("there is no NVIDIA GPU {index}: the driver shows {count}")]
    NoDevice { index: i32, count: i32 },
    #[error(
        "the NVIDIA driver is for CUDA {0}.{1}, and 11.2 is the oldest that is used here: install a newer driver"
    )]
    OldVersion(i32, i32),
    #[error(
        "{bytes} more bytes are not there ({free} of {total} are free): use smaller micro-batches, or another GPU"
    )]
    OutOfMemory { bytes: usize, free: usize, total: usize },
    #[error(
        "the driver (CUDA {driver}) does not take the machine code of kernel {kernel} ({message}): install a newer driver, or \
         an NVRTC that is no newer than it"
    )]
    Code { kernel: String, driver: String, message: String },
    #[error(
        "the GPU was lost or its program failed ({call}: {message}); this process cannot use it any more"
    )]
    Lost { call: &'static str, message: String },
    #[error("{call}: {message}")]
    Failed { call: &'static str, message: String },
    #[error("kernel {kernel}: {reason}")]
    Arguments { kernel: String, reason: String },
}
