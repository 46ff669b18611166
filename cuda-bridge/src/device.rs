//! NVIDIA's driver, loaded when it is first asked for: a GPU, its memory, and launches of compiled kernels.
//!
//! Written after the driver's documentation; **nothing here has run on a GPU yet**. Tests run it where a driver is found,
//! and check what it says where none is.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use libloading::Library;

use crate::translate::{Kernel, ParameterKind};

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

type Status = c_int;
type Handle = *mut c_void;
type Address = u64;

const OUT_OF_MEMORY: Status = 2;
/// Images that a driver cannot load: invalid, none for this GPU, PTX that it is too old for.
const BAD_IMAGE: [Status; 4] = [200, 209, 218, 222];
/// Errors after which a context is of no more use: memory errors, illegal addresses and instructions, failed launches.
const STICKY: [Status; 9] = [214, 700, 702, 714, 715, 716, 717, 718, 719];
const VERSION_MIN: c_int = 11_020;
const PROCESSORS: c_int = 16;
const COMPUTE_MAJOR: c_int = 75;
const COMPUTE_MINOR: c_int = 76;

macro_rules! driver {
    ($($field:ident = $symbol:literal ($($argument:ty),*);)*) => {
        /// The driver's functions that are used here.
        struct Driver {
            $($field: unsafe extern "C" fn($($argument),*) -> Status,)*
            _library: Library,
        }

        impl Driver {
            fn from(library: Library) -> Result<Driver, DeviceError> {
                Ok(Driver {
                    $($field: {
                        // SAFETY: the declared type is that of cuda.h.
                        let symbol = unsafe { library.get(concat!($symbol, "\0").as_bytes()) };
                        *symbol.map_err(|source| DeviceError::TooOld { symbol: $symbol, source })?
                    },)*
                    _library: library,
                })
            }
        }
    };
}

driver! {
    init = "cuInit" (c_uint);
    error_string = "cuGetErrorString" (Status, *mut *const c_char);
    version = "cuDriverGetVersion" (*mut c_int);
    count = "cuDeviceGetCount" (*mut c_int);
    get = "cuDeviceGet" (*mut c_int, c_int);
    name = "cuDeviceGetName" (*mut c_char, c_int, c_int);
    attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    total = "cuDeviceTotalMem_v2" (*mut usize, c_int);
    memory = "cuMemGetInfo_v2" (*mut usize, *mut usize);
    retain = "cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    release = "cuDevicePrimaryCtxRelease_v2" (c_int);
    set_current = "cuCtxSetCurrent" (Handle);
    synchronize = "cuCtxSynchronize" ();
    load = "cuModuleLoadData" (*mut Handle, *const c_void);
    unload = "cuModuleUnload" (Handle);
    function = "cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
    allocate = "cuMemAlloc_v2" (*mut Address, usize);
    free = "cuMemFree_v2" (Address);
    upload = "cuMemcpyHtoD_v2" (Address, *const c_void, usize);
    download = "cuMemcpyDtoH_v2" (*mut c_void, Address, usize);
    launch = "cuLaunchKernel" (
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void
    );
}

impl Driver {
    fn check(&self, call: &'static str, status: Status) -> Result<(), DeviceError> {
        if status == 0 {
            return Ok(());
        }
        let message = self.message(status);
        Err(if STICKY.contains(&status) {
            DeviceError::Lost { call, message }
        } else {
            DeviceError::Failed { call, message }
        })
    }

    /// The driver's words for a status.
    fn message(&self, status: Status) -> String {
        let mut text = std::ptr::null();
        // SAFETY: a place for a pointer to a literal, which stays null for a number that is not known.
        unsafe { (self.error_string)(status, &mut text) };
        if text.is_null() {
            return format!("error {status}");
        }
        // SAFETY: a literal of the driver.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

/// The driver's library, if it is not found under its usual name.
const LIBRARY: &str = "TIEBREAK_CUDA_DRIVER";

impl Driver {
    /// Loads and starts the driver.
    fn load() -> Result<Driver, DeviceError> {
        let usual = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };
        let file = std::env::var_os(LIBRARY).unwrap_or_else(|| usual.into());
        // SAFETY: loading NVIDIA's driver library, as every user of it does.
        let driver = Driver::from(unsafe { Library::new(file) }.map_err(DeviceError::NoDriver)?)?;
        // SAFETY: a call as cuda.h has it.
        driver.check("cuInit", unsafe { (driver.init)(0) })?;
        let version = driver.version()?;
        if version < VERSION_MIN {
            return Err(DeviceError::OldVersion(version / 1000, version % 1000 / 10));
        }
        Ok(driver)
    }

    /// 1000 times the major version of CUDA plus ten times the minor one.
    fn version(&self) -> Result<c_int, DeviceError> {
        let mut version = 0;
        // SAFETY: a place for a number.
        self.check("cuDriverGetVersion", unsafe { (self.version)(&mut version) })?;
        Ok(version)
    }

    fn count(&self) -> Result<c_int, DeviceError> {
        let mut count = 0;
        // SAFETY: a place for a number.
        self.check("cuDeviceGetCount", unsafe { (self.count)(&mut count) })?;
        Ok(count)
    }

    fn describe(&self, index: c_int) -> Result<(c_int, Description), DeviceError> {
        let mut ordinal = 0;
        let mut name = [0u8; 256];
        let (mut major, mut minor, mut processors, mut memory) = (0, 0, 0, 0);
        // SAFETY: calls as cuda.h has them with places for their results; the name is ended by a zero.
        unsafe {
            self.check("cuDeviceGet", (self.get)(&mut ordinal, index))?;
            self.check("cuDeviceGetName", (self.name)(name.as_mut_ptr().cast(), 255, ordinal))?;
            let call = "cuDeviceGetAttribute";
            self.check(call, (self.attribute)(&mut major, COMPUTE_MAJOR, ordinal))?;
            self.check(call, (self.attribute)(&mut minor, COMPUTE_MINOR, ordinal))?;
            self.check(call, (self.attribute)(&mut processors, PROCESSORS, ordinal))?;
            self.check("cuDeviceTotalMem", (self.total)(&mut memory, ordinal))?;
        }
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned();
        let processors = u32::try_from(processors).unwrap_or(1);
        let memory = memory as u64;
        Ok((ordinal, Description { index, name, capability: (major, minor), processors, memory }))
    }
}

/// A GPU as people choose it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// From 0, as the driver counts.
    pub index: i32,
    /// As the driver names it.
    pub name: String,
    /// Compute capability: (9, 0) on an H100 or H200.
    pub capability: (i32, i32),
    /// Streaming multiprocessors.
    pub processors: u32,
    /// Its memory, in bytes.
    pub memory: u64,
}

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
        // SAFETY: a place for a handle.
        driver.check("cuDevicePrimaryCtxRetain", unsafe { (driver.retain)(&mut context, ordinal) })?;
        Ok(Arc::new(Device { driver, ordinal, context, description }))
    }

    /// The driver's version of CUDA: `12.8`.
    ///
    /// # Errors
    /// If the driver does not say.
    pub fn driver_version(&self) -> Result<String, DeviceError> {
        let version = self.driver.version()?;
        Ok(format!("{}.{}", version / 1000, version % 1000 / 10))
    }

    /// The architecture that kernels are compiled for. From 9.0 on the `a` variants, whose code runs on that one alone, which
    /// is what code compiled at run time is for.
    pub fn architecture(&self) -> String {
        let (major, minor) = self.description.capability;
        format!("sm_{major}{minor}{}", if major >= 9 { "a" } else { "" })
    }

    /// Makes the context that of the calling thread.
    pub(crate) fn current(&self) -> Result<(), DeviceError> {
        // SAFETY: a context that lives as long as the device.
        self.driver.check("cuCtxSetCurrent", unsafe { (self.driver.set_current)(self.context) })
    }

    /// Waits for everything that was launched.
    ///
    /// # Errors
    /// If a launch failed, or the GPU was lost.
    pub fn finish(&self) -> Result<(), DeviceError> {
        self.current()?;
        // SAFETY: no arguments.
        self.driver.check("cuCtxSynchronize", unsafe { (self.driver.synchronize)() })
    }

    /// Memory for `bytes` bytes, with any contents.
    ///
    /// # Errors
    /// If there is not as much.
    pub fn allocate(self: &Arc<Device>, bytes: usize) -> Result<Memory, DeviceError> {
        self.current()?;
        let mut address = 0;
        // SAFETY: a place for an address; no memory of zero bytes is asked for.
        let status = unsafe { (self.driver.allocate)(&mut address, bytes.max(16)) };
        if status == OUT_OF_MEMORY {
            let (mut free, mut total) = (0, 0);
            // SAFETY: two places for two sizes, which stay zero if the driver does not say.
            unsafe { (self.driver.memory)(&mut free, &mut total) };
            return Err(DeviceError::OutOfMemory { bytes, free, total });
        }
        self.driver.check("cuMemAlloc", status)?;
        Ok(Memory { device: self.clone(), address, bytes })
    }

    /// Memory with these bytes.
    ///
    /// # Errors
    /// If there is not as much, or the GPU was lost.
    pub fn upload(self: &Arc<Device>, bytes: &[u8]) -> Result<Memory, DeviceError> {
        let memory = self.allocate(bytes.len())?;
        memory.write(bytes)?;
        Ok(memory)
    }

    /// Makes machine code of a kernel ready to be launched.
    ///
    /// # Errors
    /// If the driver does not take it.
    pub fn load(self: &Arc<Device>, kernel: &Kernel, cubin: &[u8]) -> Result<Loaded, DeviceError> {
        self.current()?;
        let kernel = kernel.clone();
        let mut loaded = Loaded { device: self.clone(), module: null_mut(), function: null_mut(), kernel };
        let mut name = loaded.kernel.name.clone().into_bytes();
        name.push(0);
        // SAFETY: a cubin is an ELF file, which says how long it is; the name is ended by a zero.
        unsafe {
            let status = (self.driver.load)(&mut loaded.module, cubin.as_ptr().cast());
            if BAD_IMAGE.contains(&status) {
                let message = self.driver.message(status);
                let kernel = loaded.kernel.name.clone();
                return Err(DeviceError::Code { kernel, driver: self.driver_version()?, message });
            }
            self.driver.check("cuModuleLoadData", status)?;
            let status = (self.driver.function)(&mut loaded.function, loaded.module, name.as_ptr().cast());
            self.driver.check("cuModuleGetFunction", status)?;
        }
        Ok(loaded)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: retained when it was opened; memory and modules hold the device, so they are gone.
        unsafe { (self.driver.release)(self.ordinal) };
    }
}

/// Memory of a GPU, freed when it is dropped.
pub struct Memory {
    device: Arc<Device>,
    address: Address,
    bytes: usize,
}

/// A part of a GPU's memory.
#[derive(Clone, Copy)]
pub struct Slice<'a> {
    memory: &'a Memory,
    offset: usize,
    bytes: usize,
}

impl<'a> Slice<'a> {
    /// All of it but the first `bytes` bytes.
    ///
    /// # Panics
    /// If there are fewer: a fault of the caller's own.
    pub fn after(self, bytes: usize) -> Slice<'a> {
        let left = self.bytes.checked_sub(bytes).expect("the part lies in the slice");
        self.memory.slice(self.offset + bytes, left)
    }

    /// Its length.
    pub fn bytes(self) -> usize {
        self.bytes
    }

    pub(crate) fn address(self) -> Address {
        self.memory.address + self.offset as u64
    }
}

impl Memory {
    /// `bytes` bytes from `offset`.
    ///
    /// # Panics
    /// If they are not in it: a fault of the caller's own.
    pub fn slice(&self, offset: usize, bytes: usize) -> Slice<'_> {
        let end = offset.checked_add(bytes).expect("sizes are small");
        assert!(end <= self.bytes, "{end} bytes of {}", self.bytes);
        Slice { memory: self, offset, bytes }
    }

    /// All of it.
    pub fn whole(&self) -> Slice<'_> {
        self.slice(0, self.bytes)
    }

    /// Replaces the first bytes, once all launches before have ended.
    ///
    /// # Errors
    /// If a launch failed, or the GPU was lost.
    ///
    /// # Panics
    /// If there are more than it holds.
    pub fn write(&self, bytes: &[u8]) -> Result<(), DeviceError> {
        assert!(bytes.len() <= self.bytes, "{} bytes of {}", bytes.len(), self.bytes);
        self.device.current()?;
        // SAFETY: as many bytes as both sides have.
        let status = unsafe { (self.device.driver.upload)(self.address, bytes.as_ptr().cast(), bytes.len()) };
        self.device.driver.check("cuMemcpyHtoD", status)
    }

    /// The first `bytes` bytes, once all launches before have ended.
    ///
    /// # Errors
    /// If a launch failed, or the GPU was lost.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn read(&self, bytes: usize) -> Result<Vec<u8>, DeviceError> {
        assert!(bytes <= self.bytes, "{bytes} bytes of {}", self.bytes);
        self.device.current()?;
        let mut copy = vec![0u8; bytes];
        // SAFETY: as many bytes as both sides have. The copy waits for what was launched before it.
        let status = unsafe { (self.device.driver.download)(copy.as_mut_ptr().cast(), self.address, bytes) };
        self.device.driver.check("cuMemcpyDtoH", status)?;
        Ok(copy)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.device.current().is_ok() {
            // SAFETY: allocated on this device and not freed yet; the driver waits for launches that use it.
            unsafe { (self.device.driver.free)(self.address) };
        }
    }
}

/// A kernel on a GPU.
pub struct Loaded {
    device: Arc<Device>,
    module: Handle,
    function: Handle,
    kernel: Kernel,
}

// SAFETY: the driver's functions take handles from any thread; every method makes the context current first.
unsafe impl Send for Loaded {}
// SAFETY: as above, and launching changes nothing in a loaded kernel.
unsafe impl Sync for Loaded {}

impl Loaded {
    /// Starts `groups` blocks; launches run one after the other. Buffers are in the order of the kernel's parameters.
    ///
    /// # Errors
    /// If the buffers do not fit the parameters, one that is written is given twice, or the driver refuses.
    pub fn launch(&self, groups: [u32; 3], buffers: &[Slice]) -> Result<(), DeviceError> {
        let wrong = |reason: String| DeviceError::Arguments { kernel: self.kernel.name.clone(), reason };
        let parameters = &self.kernel.parameters;
        if buffers.len() != parameters.len() {
            return Err(wrong(format!("{} buffers for {} parameters", buffers.len(), parameters.len())));
        }
        let mut values: Vec<u64> = Vec::new();
        for (i, (parameter, buffer)) in parameters.iter().zip(buffers).enumerate() {
            let (name, bytes) = (&parameter.name, buffer.bytes as u64);
            if !Arc::ptr_eq(&buffer.memory.device, &self.device) {
                return Err(wrong(format!("`{name}` is on another device")));
            }
            let elsewhere =
                buffers.iter().enumerate().any(|(j, b)| i != j && b.memory.address == buffer.memory.address);
            if parameter.writable && elsewhere {
                return Err(wrong(format!("`{name}` is written and given twice")));
            }
            values.push(buffer.address());
            match parameter.kind {
                ParameterKind::Sized { bytes: least } if bytes < u64::from(least) => {
                    return Err(wrong(format!("`{name}` takes {least} bytes and gets {bytes}")));
                }
                ParameterKind::Sized { .. } => {}
                ParameterKind::Elements { stride } => match u32::try_from(bytes / u64::from(stride.max(1))) {
                    Ok(0) => return Err(wrong(format!("`{name}` has no element"))),
                    // The driver reads the parameter's four bytes: the low ones of this word on every host of NVIDIA's.
                    Ok(count) => values.push(count.into()),
                    Err(_) => return Err(wrong(format!("`{name}` has more than 2^32 - 1 elements"))),
                },
            }
        }
        self.device.current()?;
        let mut pointers: Vec<*mut c_void> =
            values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
        let ([gx, gy, gz], [x, y, z]) = (groups, self.kernel.block);
        // SAFETY: as many parameters as the text has, each a pointer to at least its bytes; the driver copies them now.
        let status = unsafe {
            let stream = null_mut();
            let none = null_mut();
            let launch = self.device.driver.launch;
            launch(self.function, gx, gy, gz, x, y, z, 0, stream, pointers.as_mut_ptr(), none)
        };
        self.device.driver.check("cuLaunchKernel", status)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if !self.module.is_null() && self.device.current().is_ok() {
            // SAFETY: loaded on this device and not unloaded yet.
            unsafe { (self.device.driver.unload)(self.module) };
        }
    }
}
