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
    #[error("GPU memory: {bytes} more bytes are not there")]
    OutOfMemory { bytes: usize },
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
/// Errors after which a context is of no more use: memory errors, illegal addresses and instructions, failed launches.
const STICKY: [Status; 9] = [214, 700, 702, 714, 715, 716, 717, 718, 719];
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
    count = "cuDeviceGetCount" (*mut c_int);
    get = "cuDeviceGet" (*mut c_int, c_int);
    name = "cuDeviceGetName" (*mut c_char, c_int, c_int);
    attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
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
        let mut text = std::ptr::null();
        // SAFETY: a place for a pointer to a literal, which stays null for a number that is not known.
        unsafe { (self.error_string)(status, &mut text) };
        let message = if text.is_null() {
            format!("error {status}")
        } else {
            // SAFETY: a literal of the driver.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Err(if STICKY.contains(&status) {
            DeviceError::Lost { call, message }
        } else {
            DeviceError::Failed { call, message }
        })
    }
}

/// A GPU in use: the primary context of one device.
pub struct Device {
    driver: Driver,
    ordinal: c_int,
    context: Handle,
    /// As the driver names it.
    pub name: String,
    /// Compute capability: (9, 0) on an H100 or H200.
    pub capability: (i32, i32),
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
        let file = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };
        // SAFETY: loading NVIDIA's driver library, as every user of it does.
        let driver = Driver::from(unsafe { Library::new(file) }.map_err(DeviceError::NoDriver)?)?;
        // SAFETY: in this block, calls as cuda.h has them with places for their results; the name is ended by a zero.
        unsafe {
            driver.check("cuInit", (driver.init)(0))?;
            let (mut count, mut ordinal) = (0, 0);
            driver.check("cuDeviceGetCount", (driver.count)(&mut count))?;
            if !(0..count).contains(&index) {
                return Err(DeviceError::NoDevice { index, count });
            }
            driver.check("cuDeviceGet", (driver.get)(&mut ordinal, index))?;
            let mut name = [0u8; 256];
            driver.check("cuDeviceGetName", (driver.name)(name.as_mut_ptr().cast(), 255, ordinal))?;
            let (mut major, mut minor) = (0, 0);
            let call = "cuDeviceGetAttribute";
            driver.check(call, (driver.attribute)(&mut major, COMPUTE_MAJOR, ordinal))?;
            driver.check(call, (driver.attribute)(&mut minor, COMPUTE_MINOR, ordinal))?;
            let mut context = null_mut();
            driver.check("cuDevicePrimaryCtxRetain", (driver.retain)(&mut context, ordinal))?;
            let name = CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned();
            Ok(Arc::new(Device { driver, ordinal, context, name, capability: (major, minor) }))
        }
    }

    /// The architecture that kernels are compiled for. From 9.0 on the `a` variants, whose code runs on that one alone, which
    /// is what code compiled at run time is for.
    pub fn architecture(&self) -> String {
        let (major, minor) = self.capability;
        format!("sm_{major}{minor}{}", if major >= 9 { "a" } else { "" })
    }

    fn current(&self) -> Result<(), DeviceError> {
        // SAFETY: a context that lives as long as the device.
        self.driver.check("cuCtxSetCurrent", unsafe { (self.driver.set_current)(self.context) })
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
            return Err(DeviceError::OutOfMemory { bytes });
        }
        self.driver.check("cuMemAlloc", status)?;
        Ok(Memory { device: self.clone(), address, bytes })
    }

    /// Memory with these words.
    ///
    /// # Errors
    /// If there is not as much, or the GPU was lost.
    pub fn upload(self: &Arc<Device>, words: &[u32]) -> Result<Memory, DeviceError> {
        let memory = self.allocate(words.len() * 4)?;
        // SAFETY: as many bytes as both sides have.
        let status = unsafe { (self.driver.upload)(memory.address, words.as_ptr().cast(), memory.bytes) };
        self.driver.check("cuMemcpyHtoD", status)?;
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

impl Memory {
    /// The words in it, once all launches before have ended.
    ///
    /// # Errors
    /// If a launch failed, or the GPU was lost.
    pub fn download(&self) -> Result<Vec<u32>, DeviceError> {
        let driver = &self.device.driver;
        self.device.current()?;
        let mut words = vec![0u32; self.bytes / 4];
        // SAFETY: waits; then as many bytes as both sides have.
        unsafe {
            driver.check("cuCtxSynchronize", (driver.synchronize)())?;
            let status = (driver.download)(words.as_mut_ptr().cast(), self.address, words.len() * 4);
            driver.check("cuMemcpyDtoH", status)?;
        }
        Ok(words)
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

impl Loaded {
    /// Starts `groups` blocks; launches run one after the other. Buffers are in the order of the kernel's parameters.
    ///
    /// # Errors
    /// If the buffers do not fit the parameters, one that is written is given twice, or the driver refuses.
    pub fn launch(&self, groups: [u32; 3], buffers: &[&Memory]) -> Result<(), DeviceError> {
        let wrong = |reason: String| DeviceError::Arguments { kernel: self.kernel.name.clone(), reason };
        let parameters = &self.kernel.parameters;
        if buffers.len() != parameters.len() {
            return Err(wrong(format!("{} buffers for {} parameters", buffers.len(), parameters.len())));
        }
        let mut values: Vec<u64> = Vec::new();
        for (i, (parameter, buffer)) in parameters.iter().zip(buffers).enumerate() {
            let (name, bytes) = (&parameter.name, buffer.bytes as u64);
            if !Arc::ptr_eq(&buffer.device, &self.device) {
                return Err(wrong(format!("`{name}` is on another device")));
            }
            let elsewhere = buffers.iter().enumerate().any(|(j, b)| i != j && b.address == buffer.address);
            if parameter.writable && elsewhere {
                return Err(wrong(format!("`{name}` is written and given twice")));
            }
            values.push(buffer.address);
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
