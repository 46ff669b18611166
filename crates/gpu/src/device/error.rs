//! The meaning of the bridge's errors about NVIDIA's libraries, for the user of a program.

use cuda_bridge::cublas::BlasError;
use cuda_bridge::device::DeviceError;

use tiebreak_engine::EngineError;

/// The meaning of an error of the bridge, for the user of a program.
pub fn engine_error(device: &str, error: DeviceError) -> EngineError {
    let (device, reason) = (device.to_string(), error.to_string());
    match error {
        DeviceError::OutOfMemory { .. } => EngineError::OutOfMemory { device, reason },
        DeviceError::Lost { .. } => EngineError::DeviceLost { device, reason },
        DeviceError::Arguments { .. } => EngineError::Fault { device, reason },
        DeviceError::NoDriver(_)
        | DeviceError::TooOld { .. }
        | DeviceError::OldVersion(..)
        | DeviceError::NoDevice { .. }
        | DeviceError::Code { .. }
        | DeviceError::Failed { .. } => EngineError::Unsupported { device, reason },
    }
}

/// The meaning of an error about cuBLAS, for the user of a program.
pub(crate) fn blas_error(device: &str, error: BlasError) -> EngineError {
    let (device, reason) = (device.to_string(), error.to_string());
    match error {
        BlasError::Device(error) => engine_error(&device, error),
        BlasError::Arguments(_) => EngineError::Fault { device, reason },
        BlasError::NotFound { .. }
        | BlasError::TooOld { .. }
        | BlasError::Emulation { .. }
        | BlasError::Capability { .. }
        | BlasError::Failed { .. } => EngineError::Unsupported { device, reason },
    }
}
