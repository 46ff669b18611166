//! A GPU in use, and its memory.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::driver::{
    Address, CopyCalls, Description, Driver, GraphCalls, Handle, NOT_READY, OUT_OF_MEMORY, Status,
};
use super::error::DeviceError;

/// The GPUs that the driver shows.
///
/// # Errors
/// If there is no driver, or it is too old.
pub fn devices() -> Result<Vec<Description>, DeviceError> {
    let driver = Driver::load()?;
    (0..driver.count()?).map(|index| Ok(driver.describe(index)?.1)).collect()
}

/// A GPU in use: the primary context of one device.
pub struct Device {
    driver: Driver,
    ordinal: c_int,
    context: Handle,
    /// True if an operation runs on the GPU that does not end.
    abandoned: AtomicBool,
    /// The driver's description of the GPU when it was opened.
    pub description: Description,
}

// SAFETY: the driver's functions may be called from any thread; every method makes the context current first.
unsafe impl Send for Device {}
// SAFETY: as above; the driver locks what it shares.
unsafe impl Sync for Device {}

impl Device {
    /// Opens a GPU by its number.
    ///
    /// # Errors
    /// If there is no driver, or no such GPU.
    pub fn open(index: i32) -> Result<Arc<Device>, DeviceError> {
        let driver = Driver::load()?;
        let count = driver.count()?;
        if !(0..count).contains(&index) {
            return Err(DeviceError::NoDevice { index, count });
        }
        let (ordinal, description) = driver.describe(index)?;
        let mut context = null_mut();
        // SAFETY: the pointer is valid for writing a handle.
        driver.check("cuDevicePrimaryCtxRetain", unsafe { (driver.calls.retain)(&mut context, ordinal) })?;
        Ok(Arc::new(Device { driver, ordinal, context, abandoned: AtomicBool::new(false), description }))
    }

    /// The UUID, which tells this GPU from every other one on any machine.
    ///
    /// # Errors
    /// If the driver does not say.
    pub fn uuid(&self) -> Result<[u8; 16], DeviceError> {
        let mut uuid = [0; 16];
        // SAFETY: the pointer is valid for writing a CUuuid, which is 16 bytes.
        self.check("cuDeviceGetUuid", unsafe { (self.driver.calls.uuid)(&mut uuid, self.ordinal) })?;
        Ok(uuid)
    }

    /// The driver's version of CUDA: `12.8`.
    ///
    /// # Errors
    /// If the driver does not say.
    pub fn driver_version(&self) -> Result<String, DeviceError> {
        let version = self.driver.version()?;
        Ok(format!("{}.{}", version / 1000, version % 1000 / 10))
    }

    /// The major version of CUDA that the driver is for: the driver refuses machine code of a later version's compiler.
    ///
    /// # Errors
    /// If the driver does not say.
    pub fn driver_major(&self) -> Result<i32, DeviceError> {
        Ok(self.driver.version()? / 1000)
    }

    /// The architecture that kernels are compiled for. From 9.0 on these are the `a` variants. Their code runs on that
    /// architecture alone, which suits code compiled at run time.
    pub fn architecture(&self) -> String {
        let (major, minor) = self.description.capability;
        format!("sm_{major}{minor}{}", if major >= 9 { "a" } else { "" })
    }

    pub(crate) fn driver(&self) -> &Driver {
        &self.driver
    }

    /// The driver's functions for graphs, if it has them.
    pub(crate) fn graph_calls(&self) -> Option<&GraphCalls> {
        self.driver.graphs.as_ref()
    }

    /// The driver's functions for copies that return at once, if it has them.
    pub(crate) fn copy_calls(&self) -> Option<&CopyCalls> {
        self.driver.copies.as_ref()
    }

    /// The error that a status means, if it means one.
    pub(crate) fn check(&self, call: &'static str, status: Status) -> Result<(), DeviceError> {
        self.driver.check(call, status)
    }

    /// Makes the context the calling thread's current one.
    pub(crate) fn current(&self) -> Result<(), DeviceError> {
        if self.abandoned.load(Ordering::Acquire) {
            let message = "something that was begun on it does not end".into();
            return Err(DeviceError::Lost { call: "cuCtxSetCurrent", message });
        }
        // SAFETY: a context that lives as long as the device.
        self.driver.check("cuCtxSetCurrent", unsafe { (self.driver.calls.set_current)(self.context) })
    }

    /// Waits for everything that was launched.
    ///
    /// # Errors
    /// If a launch failed, or the GPU was lost.
    pub fn finish(&self) -> Result<(), DeviceError> {
        self.current()?;
        // SAFETY: no arguments.
        self.driver.check("cuCtxSynchronize", unsafe { (self.driver.calls.synchronize)() })
    }

    /// True if everything that was launched has ended.
    ///
    /// # Errors
    /// If a launch failed, or the GPU was lost.
    pub(crate) fn is_idle(&self) -> Result<bool, DeviceError> {
        self.current()?;
        // SAFETY: null is the stream of all launches.
        let status = unsafe { (self.driver.calls.query)(null_mut()) };
        if status == NOT_READY {
            return Ok(false);
        }
        self.check("cuStreamQuery", status).map(|()| true)
    }

    /// Stops all use of this GPU, because an operation runs on it that does not end: every wait for it, also by freeing memory,
    /// would last for ever. The GPU's memory is freed when the process ends.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
    }

    /// Copies a part of memory to one of the same size, after everything that was launched before.
    ///
    /// # Errors
    /// If a launch failed, or the GPU was lost.
    ///
    /// # Panics
    /// If the sizes differ: a fault of the caller's own.
    pub fn copy(&self, from: Slice, to: Slice) -> Result<(), DeviceError> {
        assert_eq!(from.bytes, to.bytes, "parts of one size");
        self.current()?;
        // SAFETY: as many bytes as both sides have; null is the stream of all launches.
        let status =
            unsafe { (self.driver.calls.copy)(to.address(), from.address(), from.bytes, null_mut()) };
        self.check("cuMemcpyDtoDAsync", status)
    }

    /// Memory for `bytes` bytes, with any contents.
    ///
    /// # Errors
    /// If there is not as much free memory.
    pub fn allocate(self: &Arc<Device>, bytes: usize) -> Result<Memory, DeviceError> {
        self.current()?;
        let mut address = 0;
        // SAFETY: the pointer is valid for writing an address; no memory of zero bytes is asked for.
        let status = unsafe { (self.driver.calls.allocate)(&mut address, bytes.max(16)) };
        if status == OUT_OF_MEMORY {
            let (mut free, mut total) = (0, 0);
            // SAFETY: the pointers are valid for writing two sizes, which stay zero if the driver does not say.
            unsafe { (self.driver.calls.memory)(&mut free, &mut total) };
            return Err(DeviceError::OutOfMemory { bytes, free, total });
        }
        self.driver.check("cuMemAlloc", status)?;
        Ok(Memory { device: self.clone(), address, bytes })
    }

    /// Memory with these bytes.
    ///
    /// # Errors
    /// If there is not as much free memory, or the GPU was lost.
    pub fn upload(self: &Arc<Device>, bytes: &[u8]) -> Result<Memory, DeviceError> {
        let memory = self.allocate(bytes.len())?;
        memory.write(bytes)?;
        Ok(memory)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if !*self.abandoned.get_mut() {
            // SAFETY: retained when it was opened; memory and modules hold the device, so they are gone.
            unsafe { (self.driver.calls.release)(self.ordinal) };
        }
    }
}

/// Memory of a GPU, freed when it is dropped.
pub struct Memory {
    device: Arc<Device>,
    address: Address,
    bytes: usize,
}

/// A range of a GPU's memory.
#[derive(Clone, Copy)]
pub struct Slice<'a> {
    memory: &'a Memory,
    offset: usize,
    bytes: usize,
}

impl<'a> Slice<'a> {
    /// The slice without its first `bytes` bytes.
    ///
    /// # Panics
    /// If the slice has fewer: a fault of the caller's own.
    pub(crate) fn after(self, bytes: usize) -> Slice<'a> {
        let left = self.bytes.checked_sub(bytes).expect("the part lies in the slice");
        self.memory.slice(self.offset + bytes, left)
    }

    /// The slice's length in bytes.
    pub fn bytes(self) -> usize {
        self.bytes
    }

    pub(crate) fn device(&self) -> &'a Arc<Device> {
        &self.memory.device
    }

    pub(crate) fn in_one_memory_with(self, other: Slice) -> bool {
        self.memory.address == other.memory.address
    }

    pub(crate) fn address(self) -> Address {
        self.memory.address + self.offset as u64
    }
}

impl Memory {
    /// The slice of `bytes` bytes from `offset`.
    ///
    /// # Panics
    /// If the memory does not hold them: a fault of the caller's own.
    pub fn slice(&self, offset: usize, bytes: usize) -> Slice<'_> {
        let end = offset.checked_add(bytes).expect("sizes are small");
        assert!(end <= self.bytes, "{end} bytes of {}", self.bytes);
        Slice { memory: self, offset, bytes }
    }

    /// The slice of the whole memory.
    pub fn whole(&self) -> Slice<'_> {
        self.slice(0, self.bytes)
    }

    /// Replaces the first bytes, once all earlier launches have ended.
    ///
    /// # Errors
    /// If a launch failed, or the GPU was lost.
    ///
    /// # Panics
    /// If there are more bytes than the memory holds.
    pub fn write(&self, bytes: &[u8]) -> Result<(), DeviceError> {
        assert!(bytes.len() <= self.bytes, "{} bytes of {}", bytes.len(), self.bytes);
        self.device.current()?;
        // SAFETY: as many bytes as both sides have.
        let status =
            unsafe { (self.device.driver.calls.upload)(self.address, bytes.as_ptr().cast(), bytes.len()) };
        self.device.driver.check("cuMemcpyHtoD", status)
    }

    /// The first `bytes` bytes, once all earlier launches have ended.
    ///
    /// # Errors
    /// If a launch failed, or the GPU was lost.
    ///
    /// # Panics
    /// If the memory has fewer.
    pub fn read(&self, bytes: usize) -> Result<Vec<u8>, DeviceError> {
        assert!(bytes <= self.bytes, "{bytes} bytes of {}", self.bytes);
        self.device.current()?;
        let mut copy = vec![0u8; bytes];
        // SAFETY: as many bytes as both sides have. The copy waits for earlier launches.
        let status =
            unsafe { (self.device.driver.calls.download)(copy.as_mut_ptr().cast(), self.address, bytes) };
        self.device.driver.check("cuMemcpyDtoH", status)?;
        Ok(copy)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.device.current().is_ok() {
            // SAFETY: allocated on this device and not freed yet; the driver waits for launches that use it.
            unsafe { (self.device.driver.calls.free)(self.address) };
        }
    }
}
