//! Kernels on the host: the host's C++ compiler compiles the text that NVRTC compiles, over `shim/shim.h`, and a block's threads
//! run as fibers. This is slow; it shows the bits where there is no GPU.

use std::ffi::{CStr, c_char, c_void};
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::translate::{Kernel, Parameter, ParameterKind};

/// The C++ headers that give a host CUDA's names.
const SHIM: &str = concat!(include_str!("../shim/shim.h"), include_str!("../shim/warp.h"));

/// The reasons why a kernel could not be compiled or run on the host.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The folder cannot be made, or a file in it cannot be written, renamed or removed.
    #[error("{path}: {source}")]
    Io {
        /// The file, or the folder.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The compiler cannot be started.
    #[error("cannot run the C++ compiler `{compiler}` (set CXX to another): {source}")]
    NoCompiler {
        /// The command: the value of the environment variable CXX, else `c++`.
        compiler: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The compiler ends with an error.
    #[error("the C++ compiler rejects {path}:\n{message}")]
    Rejected {
        /// The file with the rejected text, which stays there.
        path: PathBuf,
        /// The first 4000 characters of the compiler's messages.
        message: String,
    },
    /// The loader refuses the compiled library.
    #[error("the compiled kernel cannot be loaded: {0}")]
    Load(#[from] libloading::Error),
    /// The buffers do not fit the kernel's parameters: a fault of the caller's own. Nothing ran.
    #[error("kernel {kernel}: {reason}")]
    Arguments {
        /// The kernel's name.
        kernel: String,
        /// The parameter, and what is wrong with its buffer, in words.
        reason: String,
    },
    /// The kernel broke a rule of CUDA that the shim checks. Either threads of a block, or lanes of a warp, diverge where all
    /// have to meet; or the kernel wrote past the end of a buffer. The buffers' contents are then meaningless.
    #[error("kernel {kernel} failed: {reason}")]
    Failed {
        /// The kernel's name.
        kernel: String,
        /// The fault, in words.
        reason: String,
    },
}

/// Options of the compilation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// Traps undefined behaviour of C++, which ends the process. Translated text never has any.
    pub undefined: bool,
}

/// A buffer for a kernel, in the order of its parameters.
pub enum Buffer<'a> {
    /// A buffer for a parameter that the kernel only reads.
    Read(&'a [u32]),
    /// A buffer for any parameter. Afterwards it holds the kernel's results.
    Write(&'a mut [u32]),
}

impl Buffer<'_> {
    fn words(&self) -> &[u32] {
        match self {
            Buffer::Read(words) => words,
            Buffer::Write(words) => words,
        }
    }
}

/// Memory with the alignment that a GPU's allocations need for vectors.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
struct Line([u32; 4]);

/// The word behind a buffer's end while a kernel runs.
const CANARY: u32 = 0xdead_beef;
const CANARIES: usize = 64;

/// A kernel as a library in this process.
pub struct HostKernel {
    library: libloading::Library,
    name: String,
    parameters: Vec<Parameter>,
}

type Run = unsafe extern "C" fn(*const u32, *const *mut c_void, *const u32) -> *const c_char;

impl HostKernel {
    /// Compiles a kernel into `folder`, or reuses the library for the same text and compiler. Options in the environment variable
    /// CXXFLAGS come last.
    ///
    /// # Errors
    /// If there is no compiler, or it rejects the text.
    pub fn compile(kernel: &Kernel, folder: &Path, checks: Checks) -> Result<HostKernel, HostError> {
        let compiler = compiler();
        let flags = std::env::var("CXXFLAGS").unwrap_or_default();
        let mut options: Vec<&str> = OPTIONS.into_iter().chain(flags.split_whitespace()).collect();
        if checks.undefined {
            options.extend(["-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"]);
        }
        let header = header(folder, &compiler, &options)?;
        let text = format!("#include \"{header}\"\n{}", host_text(kernel));
        let stem = format!("{}-{:016x}", kernel.name, hashed(&(&text, &compiler, &options)));
        let library = folder.join(format!("{stem}{}", std::env::consts::DLL_SUFFIX));
        if !library.exists() {
            let (source, built) = (own(&library, "cpp"), own(&library, "built"));
            written(&source, &text)?;
            compiled(Command::new(&compiler).args(&options).arg("-o").args([&built, &source]), &source)?;
            renamed(&built, &library)?;
            std::fs::remove_file(&source).map_err(io(&source))?;
        }
        // SAFETY: the library is the compiler's result for our text; loading it runs no code but the C++ runtime's.
        let library = unsafe { libloading::Library::new(&library) }?;
        Ok(HostKernel { library, name: kernel.name.clone(), parameters: kernel.parameters.clone() })
    }

    /// Runs `groups` blocks. Afterwards written buffers hold the kernel's results.
    ///
    /// # Errors
    /// If the buffers do not fit the parameters, threads of a block diverge at a barrier, or the kernel wrote past a buffer.
    pub fn run(&self, groups: [u32; 3], buffers: &mut [Buffer]) -> Result<(), HostError> {
        let wrong = |reason: String| HostError::Arguments { kernel: self.name.clone(), reason };
        if buffers.len() != self.parameters.len() {
            return Err(wrong(format!("{} buffers for {} parameters", buffers.len(), self.parameters.len())));
        }
        let mut counts = Vec::new();
        let mut memory: Vec<Vec<Line>> = Vec::new();
        for (parameter, buffer) in self.parameters.iter().zip(buffers.iter()) {
            let words = buffer.words();
            let bytes = words.len() as u64 * 4;
            let name = &parameter.name;
            counts.push(match parameter.kind {
                ParameterKind::Sized { bytes: least } if bytes < u64::from(least) => {
                    return Err(wrong(format!("`{name}` takes {least} bytes and gets {bytes}")));
                }
                ParameterKind::Sized { .. } => 0,
                ParameterKind::Elements { stride } => match u32::try_from(bytes / u64::from(stride.max(1))) {
                    Ok(0) => return Err(wrong(format!("`{name}` has no element"))),
                    Ok(count) => count,
                    Err(_) => return Err(wrong(format!("`{name}` has more than 2^32 - 1 elements"))),
                },
            });
            if parameter.writable && matches!(buffer, Buffer::Read(_)) {
                return Err(wrong(format!("`{name}` is written and was given to be read")));
            }
            let mut copy = words.to_vec();
            copy.resize(words.len() + CANARIES, CANARY);
            copy.resize(copy.len().next_multiple_of(4), CANARY);
            memory.push(copy.chunks_exact(4).map(|c| Line([c[0], c[1], c[2], c[3]])).collect());
        }
        let pointers: Vec<*mut c_void> = memory.iter_mut().map(|lines| lines.as_mut_ptr().cast()).collect();
        // SAFETY: `host_text` wrote the symbol, with that type.
        let run: libloading::Symbol<Run> = unsafe { self.library.get(b"tb_run\0") }?;
        // SAFETY: as many pointers and counts as the text takes, each to as much memory as the count or the type says; an
        // index in the translated text never passes the count.
        let message = unsafe { run(groups.as_ptr(), pointers.as_ptr(), counts.as_ptr()) };
        let failed = |reason: String| HostError::Failed { kernel: self.name.clone(), reason };
        if !message.is_null() {
            // SAFETY: messages are the shim's literals, which live as long as the library.
            return Err(failed(unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()));
        }
        for ((parameter, buffer), lines) in self.parameters.iter().zip(buffers).zip(&memory) {
            let (len, after) = (buffer.words().len(), lines.iter().flat_map(|line| line.0));
            if after.clone().skip(len).any(|word| word != CANARY) {
                return Err(failed(format!("it wrote past the end of `{}`", parameter.name)));
            }
            if let Buffer::Write(words) = buffer {
                words.iter_mut().zip(after).for_each(|(word, now)| *word = now);
            }
        }
        Ok(())
    }
}

/// The stand-in for NVIDIA's driver, NVRTC, cuBLAS and NCCL.
const DRIVER: &str = concat!(
    include_str!("../shim/driver.cpp"),
    include_str!("../shim/streams.cpp"),
    include_str!("../shim/cublas.cpp"),
    include_str!("../shim/nccl.cpp")
);

/// Compiles, into `folder`, a library that plays NVIDIA's driver, NVRTC, cuBLAS and NCCL on a machine that has none of them. The
/// environment variables `TIEBREAK_CUDA_DRIVER`, `TIEBREAK_NVRTC`, `TIEBREAK_CUBLAS` and `TIEBREAK_NCCL` of a process may name
/// the library. Kernels that it compiles stay in that folder.
///
/// # Errors
/// If there is no compiler, or it rejects the text.
pub fn driver(folder: &Path) -> Result<PathBuf, HostError> {
    let compiler = compiler();
    std::fs::create_dir_all(folder).map_err(io(folder))?;
    let folder = folder.canonicalize().map_err(io(folder))?;
    // The options with which the stand-in compiles kernels.
    let options: Vec<&str> = OPTIONS.into_iter().chain(["-DSHIM_ONE_LAUNCH_AT_A_TIME"]).collect();
    let header = header(&folder, &compiler, &options)?;
    let stem = format!("driver-{:016x}", hashed(&(DRIVER, &header, &compiler, &folder)));
    let library = folder.join(format!("{stem}{}", std::env::consts::DLL_SUFFIX));
    if !library.exists() {
        let (source, built) = (own(&library, "cpp"), own(&library, "built"));
        written(&source, DRIVER)?;
        let mut command = Command::new(&compiler);
        command
            .args(["-std=c++17", "-O1", "-fPIC", "-shared", "-Wall", "-ffp-contract=off"])
            .arg(format!("-DSHIM_FOLDER=\"{}\"", folder.display()))
            .arg(format!("-DSHIM_HEADER=\"{header}\""))
            .arg("-o")
            .args([&built, &source])
            .args(["-ldl", "-pthread"]);
        compiled(&mut command, &source)?;
        renamed(&built, &library)?;
        std::fs::remove_file(&source).map_err(io(&source))?;
    }
    Ok(library)
}

/// The compiler's options, here and in the stand-in (`nvrtcCompileProgram` in `shim/driver.cpp`): a compiler uses a precompiled
/// header only with the same options.
const OPTIONS: [&str; 6] = ["-std=c++17", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-w"];

/// Writes the C++ headers into `folder`, precompiled, which halves the time that a kernel takes. Returns the file's name. Clang
/// reads the text instead.
fn header(folder: &Path, compiler: &str, options: &[&str]) -> Result<String, HostError> {
    std::fs::create_dir_all(folder).map_err(io(folder))?;
    let name = format!("shim-{:016x}.h", hashed(&(SHIM, compiler, options)));
    let path = folder.join(&name);
    let precompiled = folder.join(format!("{name}.gch"));
    if !precompiled.exists() {
        let (text, built) = (own(&path, "h"), own(&path, "gch"));
        written(&text, SHIM)?;
        renamed(&text, &path)?;
        let mut command = Command::new(compiler);
        command.args(options.iter().filter(|option| **option != "-shared")).args(["-x", "c++-header", "-o"]);
        compiled(command.args([&built, &path]), &path)?;
        renamed(&built, &precompiled)?;
    }
    Ok(name)
}

fn compiler() -> String {
    std::env::var("CXX").unwrap_or_else(|_| "c++".into())
}

fn hashed(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> HostError {
    let path = path.to_path_buf();
    move |source| HostError::Io { path, source }
}

/// A name beside `path` that only this call has: tests in several processes may make the same file, which each then renames.
fn own(path: &Path, extension: &str) -> PathBuf {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    path.with_extension(format!("{}-{number}.{extension}", std::process::id()))
}

fn written(path: &Path, text: &str) -> Result<(), HostError> {
    std::fs::write(path, text).map_err(io(path))
}

fn renamed(from: &Path, to: &Path) -> Result<(), HostError> {
    std::fs::rename(from, to).map_err(io(to))
}

/// Runs the compiler on `source`.
fn compiled(command: &mut Command, source: &Path) -> Result<(), HostError> {
    let output = command.output().map_err(|error| HostError::NoCompiler {
        compiler: command.get_program().to_string_lossy().into_owned(),
        source: error,
    })?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).chars().take(4000).collect();
        return Err(HostError::Rejected { path: source.to_path_buf(), message });
    }
    Ok(())
}

/// The kernel's text, with a C function that launches it.
fn host_text(kernel: &Kernel) -> String {
    let mut arguments = Vec::new();
    for (i, parameter) in kernel.parameters.iter().enumerate() {
        arguments.push(format!("shim::Buffer{{buffers[{i}]}}"));
        if let ParameterKind::Elements { .. } = parameter.kind {
            arguments.push(format!("counts[{i}]"));
        }
    }
    let [x, y, z] = kernel.block;
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "{}\nextern \"C\" const char* tb_run(const unsigned* grid, void* const* buffers, const unsigned* counts) {{\n    \
         return shim::launch(grid, {{{x}u, {y}u, {z}u}}, {}, [&] {{ {}({}); }});\n}}\n",
        kernel.source,
        kernel.barriers,
        kernel.name,
        arguments.join(", ")
    );
    text
}
