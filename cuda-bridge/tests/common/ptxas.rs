//! The report of NVIDIA's assembler on a kernel: registers, and spills.

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

use cuda_bridge::nvrtc::Nvrtc;
use cuda_bridge::translate::Kernel;

/// A kernel's needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub registers: u32,
    /// Bytes of registers that are spilled to memory.
    pub spilled: u32,
    /// Bytes of a thread's stack.
    pub stack: u32,
    /// Bytes of static shared memory.
    pub shared: u32,
}

/// Compiles as `Nvrtc::compile` does, and reads what the assembler prints with `-v`.
pub fn usage(nvrtc: &Nvrtc, kernel: &Kernel, architecture: &str) -> Usage {
    type Program = *mut c_void;
    type Create = unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int;
    type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
    type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
    type Log = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
    type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;
    let text = |text: &str| CString::new(text).unwrap();
    let (name, source) = (text(&kernel.name), text(&kernel.source));
    let architecture = format!("--gpu-architecture={architecture}");
    let options =
        [&architecture, "--std=c++17", "--fmad=false", "--disable-warnings", "--ptxas-options=-v"].map(text);
    let options = options.each_ref().map(|option| option.as_ptr());
    let library = nvrtc.library();
    // SAFETY: the functions have the types of nvrtc.h, and get zero-ended texts and places of the size that they ask for.
    let log = unsafe {
        let mut program = null_mut();
        let create = library.get::<Create>(b"nvrtcCreateProgram\0").unwrap();
        assert_eq!(create(&mut program, source.as_ptr(), name.as_ptr(), 0, null(), null()), 0);
        let compile = library.get::<Compile>(b"nvrtcCompileProgram\0").unwrap();
        let status = compile(program, options.len() as c_int, options.as_ptr());
        let mut size = 0;
        assert_eq!(library.get::<Size>(b"nvrtcGetProgramLogSize\0").unwrap()(program, &mut size), 0);
        let mut log = vec![0u8; size];
        assert_eq!(library.get::<Log>(b"nvrtcGetProgramLog\0").unwrap()(program, log.as_mut_ptr().cast()), 0);
        assert_eq!(library.get::<Destroy>(b"nvrtcDestroyProgram\0").unwrap()(&mut program), 0);
        let log = String::from_utf8_lossy(&log).into_owned();
        assert_eq!(status, 0, "{}: {log}", kernel.name);
        log
    };
    // "Used 168 registers, ...", "0 bytes stack frame, 0 bytes spill stores, ...", "49152 bytes smem": the number before.
    let before = |what: &str| {
        let end = log.find(what).unwrap_or_else(|| panic!("no `{what}` in {log}"));
        log[..end].split_whitespace().last().and_then(|word| word.parse().ok()).unwrap_or(0)
    };
    Usage {
        registers: before("registers"),
        spilled: before("bytes spill stores") + before("bytes spill loads"),
        stack: before("bytes stack frame"),
        // The line is absent if there is none.
        shared: if log.contains("bytes smem") { before("bytes smem") } else { 0 },
    }
}
