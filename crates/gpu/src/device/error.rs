//! What errors of the bridge to NVIDIA's libraries mean for who runs a program.

use cuda_bridge::cublas::BlasError;
use cuda_bridge::device::DeviceError;

use tiebreak_engine::EngineError;

/// What an error of the bridge means for who runs a program.
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

/// The same for errors about cuBLAS: what they mean for who runs a program.
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
