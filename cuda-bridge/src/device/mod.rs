//! A GPU through NVIDIA's driver: its memory, and compiled kernels ready for launches.
//!
//! Written after the driver's documentation; **nothing here has run on a GPU yet**. Tests run it where a driver is found, and
//! check the error where none is.

pub(crate) mod driver;
mod error;
mod gpu;
mod loaded;

pub use driver::Description;
pub use error::DeviceError;
pub use gpu::{Device, Memory, Slice, devices};
pub use loaded::{Call, Loaded};
