//! NVIDIA's driver, loaded at the first use: its functions, and its descriptions of GPUs.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};

use libloading::Library;

use super::error::DeviceError;
use crate::library::{Missing, functions};

pub(crate) type Status = c_int;
pub(crate) type Handle = *mut c_void;
pub(crate) type Address = u64;

pub(crate) const OUT_OF_MEMORY: Status = 2;
/// The status of an operation that has not ended yet.
pub(crate) const NOT_READY: Status = 600;
/// The statuses for images that a driver cannot load: invalid, none for this GPU, or PTX that the driver is too old for.
pub(crate) const BAD_IMAGE: [Status; 4] = [200, 209, 218, 222];
/// Errors after which a context is unusable: memory errors, illegal addresses and instructions, failed launches.
const STICKY: [Status; 9] = [214, 700, 702, 714, 715, 716, 717, 718, 719];
const VERSION_MIN: c_int = 11_020;
const PROCESSORS: c_int = 16;
const COMPUTE_MAJOR: c_int = 75;
const COMPUTE_MINOR: c_int = 76;
/// The device attribute: the most shared memory of a block that asks for it.
const SHARED_OPT_IN: c_int = 97;
/// The function attribute: the dynamic shared memory that its launches may ask for.
pub(crate) const DYNAMIC_SHARED_MAX: c_int = 8;

functions! {
    /// The driver's functions that are used here.
    Calls:
    init = "cuInit" (c_uint);
    error_string = "cuGetErrorString" (Status, *mut *const c_char);
    version = "cuDriverGetVersion" (*mut c_int);
    count = "cuDeviceGetCount" (*mut c_int);
    get = "cuDeviceGet" (*mut c_int, c_int);
    name = "cuDeviceGetName" (*mut c_char, c_int, c_int);
    attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    total = "cuDeviceTotalMem_v2" (*mut usize, c_int);
    uuid = "cuDeviceGetUuid" (*mut [u8; 16], c_int);
    memory = "cuMemGetInfo_v2" (*mut usize, *mut usize);
    retain = "cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    release = "cuDevicePrimaryCtxRelease_v2" (c_int);
    set_current = "cuCtxSetCurrent" (Handle);
    synchronize = "cuCtxSynchronize" ();
    query = "cuStreamQuery" (Handle);
    load = "cuModuleLoadData" (*mut Handle, *const c_void);
    unload = "cuModuleUnload" (Handle);
    function = "cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
    set_function = "cuFuncSetAttribute" (Handle, c_int, c_int);
    allocate = "cuMemAlloc_v2" (*mut Address, usize);
    free = "cuMemFree_v2" (Address);
    upload = "cuMemcpyHtoD_v2" (Address, *const c_void, usize);
    download = "cuMemcpyDtoH_v2" (*mut c_void, Address, usize);
    copy = "cuMemcpyDtoDAsync_v2" (Address, Address, usize, Handle);
    launch = "cuLaunchKernel" (
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void
    );
}

functions! {
    /// The driver's functions for graphs of launches, from CUDA 11.4 on.
    GraphCalls:
    create = "cuGraphCreate" (*mut Handle, c_uint);
    add_kernel = "cuGraphAddKernelNode" (*mut Handle, Handle, *const Handle, usize, *const KernelNode);
    instantiate = "cuGraphInstantiateWithFlags" (*mut Handle, Handle, c_ulonglong);
    destroy = "cuGraphDestroy" (Handle);
    launch = "cuGraphLaunch" (Handle, Handle);
    destroy_executable = "cuGraphExecDestroy" (Handle);
}

functions! {
    /// The driver's functions for streams, events, and copies that return at once.
    CopyCalls:
    create_stream = "cuStreamCreate" (*mut Handle, c_uint);
    destroy_stream = "cuStreamDestroy_v2" (Handle);
    wait_event = "cuStreamWaitEvent" (Handle, Handle, c_uint);
    create_event = "cuEventCreate" (*mut Handle, c_uint);
    destroy_event = "cuEventDestroy_v2" (Handle);
    record = "cuEventRecord" (Handle, Handle);
    query = "cuEventQuery" (Handle);
    synchronize = "cuEventSynchronize" (Handle);
    allocate_host = "cuMemAllocHost_v2" (*mut *mut c_void, usize);
    free_host = "cuMemFreeHost" (*mut c_void);
    download = "cuMemcpyDtoHAsync_v2" (*mut c_void, Address, usize, Handle);
    upload = "cuMemcpyHtoDAsync_v2" (Address, *const c_void, usize, Handle);
}

functions! {
    /// The driver's functions for measurements.
    TimeCalls:
    elapsed = "cuEventElapsedTime" (*mut f32, Handle, Handle);
    profiler_start = "cuProfilerStart" ();
    profiler_stop = "cuProfilerStop" ();
}

/// CUDA_KERNEL_NODE_PARAMS in its first version, which `cuGraphAddKernelNode` takes under this name.
#[repr(C)]
pub(crate) struct KernelNode {
    pub function: Handle,
    /// Blocks.
    pub grid: [c_uint; 3],
    /// Threads of a block.
    pub block: [c_uint; 3],
    /// Bytes of dynamic shared memory.
    pub shared: c_uint,
    pub arguments: *mut *mut c_void,
    pub extra: *mut *mut c_void,
}

/// A GPU's description, by which people choose it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The GPU's number in the driver's order, from 0.
    pub index: i32,
    /// The driver's name for the GPU.
    pub name: String,
    /// Compute capability: (9, 0) on an H100 or H200.
    pub capability: (i32, i32),
    /// Streaming multiprocessors.
    pub processors: u32,
    /// Bytes of shared memory that a block may ask for.
    pub shared: u32,
    /// The GPU's memory, in bytes.
    pub memory: u64,
}

/// NVIDIA's driver in this process.
pub(crate) struct Driver {
    pub calls: Calls,
    pub graphs: Option<GraphCalls>,
    pub copies: Option<CopyCalls>,
    pub times: Option<TimeCalls>,
    _library: Library,
}

impl Driver {
    pub fn check(&self, call: &'static str, status: Status) -> Result<(), DeviceError> {
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

    /// The driver's text for a status.
    pub fn message(&self, status: Status) -> String {
        let mut text = std::ptr::null();
        // SAFETY: the pointer is valid for writing a pointer to a literal, which stays null for a number that is not known.
        unsafe { (self.calls.error_string)(status, &mut text) };
        if text.is_null() {
            return format!("error {status}");
        }
        // SAFETY: a literal of the driver.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

/// The error that the driver lacks a function.
fn too_old(Missing { symbol, source }: Missing) -> DeviceError {
    DeviceError::TooOld { symbol, source }
}

/// The environment variable with the driver's library, if the usual name does not find it.
const LIBRARY: &str = "TIEBREAK_CUDA_DRIVER";

impl Driver {
    /// Loads and starts the driver.
    pub fn load() -> Result<Driver, DeviceError> {
        let usual = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };
        let file = std::env::var_os(LIBRARY).unwrap_or_else(|| usual.into());
        // SAFETY: loading NVIDIA's driver library, as every user of it does.
        let library = unsafe { Library::new(file) }.map_err(DeviceError::NoDriver)?;
        let (calls, graphs) = (Calls::from(&library).map_err(too_old)?, GraphCalls::from(&library).ok());
        let (copies, times) = (CopyCalls::from(&library).ok(), TimeCalls::from(&library).ok());
        let driver = Driver { calls, graphs, copies, times, _library: library };
        // SAFETY: a call as cuda.h has it.
        driver.check("cuInit", unsafe { (driver.calls.init)(0) })?;
        let version = driver.version()?;
        if version < VERSION_MIN {
            return Err(DeviceError::OldVersion(version / 1000, version % 1000 / 10));
        }
        Ok(driver)
    }

    /// 1000 times the major version of CUDA plus ten times the minor one.
    pub fn version(&self) -> Result<c_int, DeviceError> {
        let mut version = 0;
        // SAFETY: the pointer is valid for writing a number.
        self.check("cuDriverGetVersion", unsafe { (self.calls.version)(&mut version) })?;
        Ok(version)
    }

    pub fn count(&self) -> Result<c_int, DeviceError> {
        let mut count = 0;
        // SAFETY: the pointer is valid for writing a number.
        self.check("cuDeviceGetCount", unsafe { (self.calls.count)(&mut count) })?;
        Ok(count)
    }

    pub fn describe(&self, index: c_int) -> Result<(c_int, Description), DeviceError> {
        let mut ordinal = 0;
        let mut name = [0u8; 256];
        let (mut major, mut minor, mut processors, mut shared, mut memory) = (0, 0, 0, 0, 0);
        // SAFETY: calls as cuda.h has them with places for their results; the name is ended by a zero.
        unsafe {
            self.check("cuDeviceGet", (self.calls.get)(&mut ordinal, index))?;
            self.check("cuDeviceGetName", (self.calls.name)(name.as_mut_ptr().cast(), 255, ordinal))?;
            let call = "cuDeviceGetAttribute";
            self.check(call, (self.calls.attribute)(&mut major, COMPUTE_MAJOR, ordinal))?;
            self.check(call, (self.calls.attribute)(&mut minor, COMPUTE_MINOR, ordinal))?;
            self.check(call, (self.calls.attribute)(&mut processors, PROCESSORS, ordinal))?;
            self.check(call, (self.calls.attribute)(&mut shared, SHARED_OPT_IN, ordinal))?;
            self.check("cuDeviceTotalMem", (self.calls.total)(&mut memory, ordinal))?;
        }
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned();
        let processors = u32::try_from(processors).unwrap_or(1);
        let memory = memory as u64;
        let shared = u32::try_from(shared).unwrap_or(0);
        Ok((ordinal, Description { index, name, capability: (major, minor), processors, shared, memory }))
    }
}
