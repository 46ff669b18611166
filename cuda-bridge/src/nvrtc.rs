//! NVIDIA's run-time compiler, loaded at the first use: it turns a kernel's text into machine code for one architecture.
//!
//! Nothing here needs a GPU or a driver. The library comes with the CUDA toolkit, or alone from PyPI.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::path::PathBuf;
use std::ptr::null_mut;

use libloading::Library;

use crate::library::{Missing, Opened, candidates, functions};

/// The advice in errors on how to get the library.
const INSTALL: &str = "install the CUDA toolkit, or `pip install nvidia-cuda-nvrtc-cu12` and set TIEBREAK_NVRTC to its \
                       libnvrtc.so.12 or to the folder that holds it (site-packages/nvidia/cuda_nvrtc/lib)";

/// The reasons why there is no machine code.
#[derive(Debug, thiserror::Error)]
pub enum NvrtcError {
    /// No file that may be the library can be loaded.
    #[error("NVIDIA's compiler NVRTC was not found ({tried}): {INSTALL}")]
    NotFound {
        /// The files that were tried, each with its problem.
        tried: String,
    },
    /// Some files can be loaded, but each lacks a function, is newer than the driver, or cannot compile a line.
    #[error("no NVRTC that was found here, NVIDIA's compiler, can be used ({tried}): {INSTALL}")]
    Unusable {
        /// The files that were tried, each with its problem.
        tried: String,
    },
    /// A library lacks a function.
    #[error("{library} lacks {symbol}, which CUDA 11.2 and later have: {source}")]
    TooOld {
        /// The file that was loaded.
        library: String,
        /// The function: `nvrtcGetCUBIN`.
        symbol: &'static str,
        /// The loader's error.
        source: libloading::Error,
    },
    /// The text does not compile.
    #[error("NVRTC rejects {kernel} for {architecture}:\n{log}")]
    Rejected {
        /// The kernel's name.
        kernel: String,
        /// The architecture that the text was compiled for: `sm_90a`, or any.
        architecture: String,
        /// The first 4000 characters of the compiler's messages (`nvrtcGetProgramLog`).
        log: String,
    },
    /// A call of the library failed in another way, or gave an unusable result.
    #[error("NVRTC {call}: {message}")]
    Failed {
        /// The function: `nvrtcCreateProgram`.
        call: &'static str,
        /// The library's text (`nvrtcGetErrorString`), or ours about its version.
        message: String,
    },
    /// A text cannot be passed to C, where a zero byte ends it.
    #[error("a kernel's {what} holds a zero byte")]
    ZeroByte {
        /// The text with the zero byte: the kernel's name, its text, or its options.
        what: &'static str,
    },
}

/// The options for every text. Contraction and flushing are off; the translated text requests each rounding by name anyway.
pub const OPTIONS: [&str; 6] = [
    "--std=c++17",
    "--fmad=false",
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    // Every text holds the whole prelude and uses only some of it.
    "--disable-warnings",
];

type Program = *mut c_void;
type Status = c_int;

functions! {
    /// The library's functions that are used here, unchanged since CUDA 11.2.
    Functions:
    error_string = "nvrtcGetErrorString" (Status) -> *const c_char;
    version = "nvrtcVersion" (*mut c_int, *mut c_int);
    create = "nvrtcCreateProgram" (
        *mut Program, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
    );
    compile = "nvrtcCompileProgram" (Program, c_int, *const *const c_char);
    destroy = "nvrtcDestroyProgram" (*mut Program);
    log_size = "nvrtcGetProgramLogSize" (Program, *mut usize);
    log = "nvrtcGetProgramLog" (Program, *mut c_char);
    cubin_size = "nvrtcGetCUBINSize" (Program, *mut usize);
    cubin = "nvrtcGetCUBIN" (Program, *mut c_char);
}

/// The compiler's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// The major version of CUDA: 12.
    pub major: i32,
    /// The minor version: 9.
    pub minor: i32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// NVRTC, loaded into this process.
pub struct Nvrtc {
    opened: Opened,
    /// The path where the library was found.
    pub path: String,
    functions: Functions,
}

/// The library's file names, best first.
const NAMES: &[&str] = if cfg!(windows) {
    &["nvrtc64_130_0.dll", "nvrtc64_120_0.dll", "nvrtc64_112_0.dll"]
} else {
    &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"]
};

/// The beginning of the names of the files that the library opens by name when it first compiles.
const BUILTINS: &str = if cfg!(windows) { "nvrtc-builtins" } else { "libnvrtc-builtins.so" };

impl Nvrtc {
    /// Finds and loads the library.
    ///
    /// # Errors
    /// If no library is there that compiles; the message names the problem of each, and how to get one.
    pub fn load() -> Result<Nvrtc, NvrtcError> {
        Nvrtc::load_for(c_int::MAX)
    }

    /// Finds and loads a library whose machine code is accepted by a driver for this major version of CUDA.
    ///
    /// # Errors
    /// The errors of [`Nvrtc::load`].
    pub fn load_for(driver: i32) -> Result<Nvrtc, NvrtcError> {
        Nvrtc::among(candidates("TIEBREAK_NVRTC", NAMES), driver)
    }

    /// The first library of these that loads, is no newer than the driver (its major version of CUDA) and compiles a kernel.
    ///
    /// # Errors
    /// If there is none, with the problem of each.
    pub fn among(paths: Vec<PathBuf>, driver: i32) -> Result<Nvrtc, NvrtcError> {
        let (mut tried, mut found) = (Vec::new(), false);
        for path in paths {
            let reason = match Opened::new(&path, BUILTINS) {
                Err(reason) => reason,
                Ok(opened) => {
                    found = true;
                    match Nvrtc::from(opened, path.display().to_string()).and_then(|n| n.try_out(driver)) {
                        Ok(nvrtc) => return Ok(nvrtc),
                        Err(error) => error.to_string(),
                    }
                }
            };
            tried.push(format!("{}: {reason}", path.display()));
        }
        let tried = format!("tried {}", tried.join("; "));
        Err(if found { NvrtcError::Unusable { tried } } else { NvrtcError::NotFound { tried } })
    }

    /// Compiles one line, since a library may load although it lacks the files that it compiles with.
    fn try_out(self, driver: i32) -> Result<Nvrtc, NvrtcError> {
        let version = self.version()?;
        if version.major > driver {
            let message = format!("{version} makes code that a driver for CUDA {driver} does not take");
            return Err(NvrtcError::Failed { call: "nvrtcVersion", message });
        }
        let text = "extern \"C\" __global__ void __launch_bounds__(1) one_line(unsigned* to) { *to = 1u; }\n";
        self.compiled("one_line", text, None)?;
        Ok(self)
    }

    fn from(opened: Opened, path: String) -> Result<Nvrtc, NvrtcError> {
        match Functions::from(&opened.library) {
            Ok(functions) => Ok(Nvrtc { opened, path, functions }),
            Err(Missing { symbol, source }) => Err(NvrtcError::TooOld { library: path, symbol, source }),
        }
    }

    fn check(&self, call: &'static str, status: Status) -> Result<(), NvrtcError> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: it returns a literal for every number.
        let message = unsafe { CStr::from_ptr((self.functions.error_string)(status)) };
        Err(NvrtcError::Failed { call, message: message.to_string_lossy().into_owned() })
    }

    /// The compiler's version.
    ///
    /// # Errors
    /// If the library does not say.
    pub fn version(&self) -> Result<Version, NvrtcError> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the pointers are valid for writing two numbers.
        self.check("nvrtcVersion", unsafe { (self.functions.version)(&mut major, &mut minor) })?;
        Ok(Version { major, minor })
    }

    /// Compiles a text to a cubin for an architecture such as `sm_90a`.
    ///
    /// # Errors
    /// If the compiler rejects it, with the compiler's own messages.
    pub fn compile(&self, name: &str, source: &str, architecture: &str) -> Result<Vec<u8>, NvrtcError> {
        let program = self.compiled(name, source, Some(architecture))?;
        program.bytes("nvrtcGetCUBIN", self.functions.cubin_size, self.functions.cubin)
    }

    /// Compiles a program: to machine code of an architecture, else to PTX for the oldest one.
    fn compiled(
        &self,
        name: &str,
        source: &str,
        architecture: Option<&str>,
    ) -> Result<Handle<'_>, NvrtcError> {
        let text = |what, text: &str| CString::new(text).map_err(|_| NvrtcError::ZeroByte { what });
        let (file, source) = (text("name", &format!("{name}.cu"))?, text("text", source)?);
        let architecture_option = architecture.map(|name| format!("--gpu-architecture={name}"));
        let options = OPTIONS.iter().copied().chain(architecture_option.as_deref());
        let options = options.map(|option| text("options", option));
        let options = options.collect::<Result<Vec<_>, _>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program = Handle { nvrtc: self, program: null_mut() };
        // SAFETY: zero-ended texts, no headers, and a place for the handle.
        let status = unsafe {
            let none = std::ptr::null();
            (self.functions.create)(&mut program.program, source.as_ptr(), file.as_ptr(), 0, none, none)
        };
        self.check("nvrtcCreateProgram", status)?;
        // SAFETY: a program that was made above, and as many options as are said.
        let status =
            unsafe { (self.functions.compile)(program.program, pointers.len() as c_int, pointers.as_ptr()) };
        if status != 0 {
            let log = program.bytes("nvrtcGetProgramLog", self.functions.log_size, self.functions.log)?;
            let log = String::from_utf8_lossy(&log).trim_end_matches('\0').chars().take(4000).collect();
            let architecture = architecture.unwrap_or("any architecture").into();
            return Err(NvrtcError::Rejected { kernel: name.into(), architecture, log });
        }
        Ok(program)
    }

    /// The library itself, for functions that are not wrapped here.
    pub fn library(&self) -> &Library {
        &self.opened.library
    }
}

/// A program that is destroyed when it is dropped.
struct Handle<'a> {
    nvrtc: &'a Nvrtc,
    program: Program,
}

impl Handle<'_> {
    /// The output of a pair of functions: the first gives the size, the second the bytes.
    fn bytes(
        &self,
        call: &'static str,
        size: unsafe extern "C" fn(Program, *mut usize) -> Status,
        read: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    ) -> Result<Vec<u8>, NvrtcError> {
        let mut len = 0;
        // SAFETY: a program of this library and a place for a size.
        self.nvrtc.check(call, unsafe { size(self.program, &mut len) })?;
        let mut bytes = vec![0u8; len];
        // SAFETY: as many bytes as it asked for.
        self.nvrtc.check(call, unsafe { read(self.program, bytes.as_mut_ptr().cast()) })?;
        Ok(bytes)
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        if !self.program.is_null() {
            // SAFETY: made by this library and not destroyed yet. There is nobody to tell of a failure.
            unsafe { (self.nvrtc.functions.destroy)(&mut self.program) };
        }
    }
}
