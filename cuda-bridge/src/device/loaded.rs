//! Kernels on a GPU, and launches of them.

use std::ffi::{c_int, c_void};
use std::hash::{Hash, Hasher};
use std::ptr::null_mut;
use std::sync::Arc;

use super::driver::{BAD_IMAGE, DYNAMIC_SHARED_MAX, Handle, KernelNode};
use super::error::DeviceError;
use super::gpu::{Device, Slice};
use crate::translate::{Kernel, ParameterKind};

/// A kernel on a GPU.
pub struct Loaded {
    device: Arc<Device>,
    module: Handle,
    function: Handle,
    kernel: Kernel,
}

impl Device {
    /// Loads machine code of a kernel, ready for launches.
    ///
    /// # Errors
    /// If the driver refuses it.
    pub fn load(self: &Arc<Device>, kernel: &Kernel, cubin: &[u8]) -> Result<Loaded, DeviceError> {
        self.current()?;
        let kernel = kernel.clone();
        let mut loaded = Loaded { device: self.clone(), module: null_mut(), function: null_mut(), kernel };
        let mut name = loaded.kernel.name.clone().into_bytes();
        name.push(0);
        // SAFETY: a cubin is an ELF file, which says how long it is; the name is ended by a zero.
        unsafe {
            let status = (self.driver().calls.load)(&mut loaded.module, cubin.as_ptr().cast());
            if BAD_IMAGE.contains(&status) {
                let message = self.driver().message(status);
                let kernel = loaded.kernel.name.clone();
                return Err(DeviceError::Code { kernel, driver: self.driver_version()?, message });
            }
            self.driver().check("cuModuleLoadData", status)?;
            let status =
                (self.driver().calls.function)(&mut loaded.function, loaded.module, name.as_ptr().cast());
            self.driver().check("cuModuleGetFunction", status)?;
            let bytes = loaded.kernel.dynamic_shared;
            if bytes > 0 {
                // Sizes of shared memory are some hundred thousand bytes at most.
                let status =
                    (self.driver().calls.set_function)(loaded.function, DYNAMIC_SHARED_MAX, bytes as c_int);
                self.driver().check("cuFuncSetAttribute", status)?;
            }
        }
        Ok(loaded)
    }
}

// SAFETY: the driver's functions take handles from any thread; every method makes the context current first.
unsafe impl Send for Loaded {}
// SAFETY: as above, and launching changes nothing in a loaded kernel.
unsafe impl Sync for Loaded {}

impl Loaded {
    /// Starts `groups` blocks; launches run one after the other. Buffers are in the order of the kernel's parameters.
    ///
    /// # Errors
    /// If the buffers do not fit the parameters, a buffer that is written is given twice, or the driver refuses.
    pub fn launch(&self, groups: [u32; 3], buffers: &[Slice]) -> Result<(), DeviceError> {
        self.start(groups, &self.arguments(buffers)?)
    }

    /// The values of the parameters: addresses and numbers of elements.
    fn arguments(&self, buffers: &[Slice]) -> Result<Vec<u64>, DeviceError> {
        let wrong = |reason: String| DeviceError::Arguments { kernel: self.kernel.name.clone(), reason };
        let parameters = &self.kernel.parameters;
        if buffers.len() != parameters.len() {
            return Err(wrong(format!("{} buffers for {} parameters", buffers.len(), parameters.len())));
        }
        let mut values: Vec<u64> = Vec::with_capacity(2 * buffers.len());
        for (i, (parameter, buffer)) in parameters.iter().zip(buffers).enumerate() {
            let (name, bytes) = (&parameter.name, buffer.bytes() as u64);
            if !Arc::ptr_eq(buffer.device(), &self.device) {
                return Err(wrong(format!("`{name}` is on another device")));
            }
            let elsewhere =
                buffers.iter().enumerate().any(|(j, other)| i != j && other.in_one_memory_with(*buffer));
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
                    // The driver reads the parameter's four bytes: the low ones of this word, on every host that NVIDIA supports.
                    Ok(count) => values.push(count.into()),
                    Err(_) => return Err(wrong(format!("`{name}` has more than 2^32 - 1 elements"))),
                },
            }
        }
        Ok(values)
    }

    fn start(&self, groups: [u32; 3], arguments: &[u64]) -> Result<(), DeviceError> {
        self.device.current()?;
        let mut pointers = pointers(arguments);
        let ([gx, gy, gz], [x, y, z]) = (groups, self.kernel.block);
        // SAFETY: as many parameters as the text has, each a pointer to at least its bytes; the driver copies them now.
        let status = unsafe {
            let launch = self.device.driver().calls.launch;
            let shared = self.kernel.dynamic_shared;
            launch(self.function, gx, gy, gz, x, y, z, shared, null_mut(), pointers.as_mut_ptr(), null_mut())
        };
        self.device.check("cuLaunchKernel", status)
    }
}

/// Pointers to the arguments in the driver's form; the driver only reads them.
fn pointers(arguments: &[u64]) -> Vec<*mut c_void> {
    arguments.iter().map(|argument| std::ptr::from_ref(argument).cast_mut().cast()).collect()
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if !self.module.is_null() && self.device.current().is_ok() {
            // SAFETY: loaded on this device and not unloaded yet.
            unsafe { (self.device.driver().calls.unload)(self.module) };
        }
    }
}

/// A launch whose arguments were checked. Two calls are equal if they start the same blocks of the same kernel with the same
/// arguments. A call neither describes nor keeps the memory that its arguments point to.
#[derive(Clone)]
pub struct Call {
    kernel: Arc<Loaded>,
    groups: [u32; 3],
    arguments: Vec<u64>,
}

impl Call {
    /// A launch of `groups` blocks with buffers in the order of the kernel's parameters. Nothing runs yet.
    ///
    /// # Errors
    /// The errors of [`Loaded::launch`], except the driver's.
    pub fn new(kernel: &Arc<Loaded>, groups: [u32; 3], buffers: &[Slice]) -> Result<Call, DeviceError> {
        Ok(Call { kernel: kernel.clone(), groups, arguments: kernel.arguments(buffers)? })
    }

    /// The kernel's name, and the number of blocks.
    pub(crate) fn what(&self) -> (&str, [u32; 3]) {
        (&self.kernel.kernel.name, self.groups)
    }

    /// Starts the launch, after everything that was launched before.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn launch(&self) -> Result<(), DeviceError> {
        self.kernel.start(self.groups, &self.arguments)
    }

    /// Shows the launch in the form in which the driver takes it for a graph.
    pub(crate) fn with_node<R>(&self, show: impl FnOnce(&KernelNode) -> R) -> R {
        let mut pointers = pointers(&self.arguments);
        let Kernel { block, dynamic_shared, .. } = self.kernel.kernel;
        show(&KernelNode {
            function: self.kernel.function,
            grid: self.groups,
            block,
            shared: dynamic_shared,
            arguments: pointers.as_mut_ptr(),
            extra: null_mut(),
        })
    }
}

impl PartialEq for Call {
    fn eq(&self, other: &Call) -> bool {
        Arc::ptr_eq(&self.kernel, &other.kernel)
            && (self.groups, &self.arguments) == (other.groups, &other.arguments)
    }
}

impl Eq for Call {}

impl Hash for Call {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (Arc::as_ptr(&self.kernel), self.groups, &self.arguments).hash(hasher);
    }
}
