//! `tiebreak doctor`: the state of this machine in words: the parts that are here, the slow ones, and the missing ones with the way to get them.

#[cfg(feature = "gpu")]
use std::path::PathBuf;

use serde::Serialize;

use super::{Row, candidates, system};
use crate::cli::args::engine::cores;
use crate::cli::view::next::Next;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer, bytes_text};
use crate::cli::view::version;
#[cfg(feature = "cuda")]
use cuda_bridge::{cublas::BlasError, device::DeviceError, nccl::NcclError, nvrtc::NvrtcError};
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::cpu::product::Path as CpuPath;
use tiebreak_run::run::limits::machine_memory;

/// Say which engines and drivers are here, which are slow, and how to get the rest.
///
/// The command changes nothing and opens no GPU. Exit code 0 means that an engine can run. `tiebreak adapters --test` shows that the engines
/// compute this version's bits.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tiebreak doctor")]
pub struct Args {}

/// A library that an engine loads while it runs.
#[derive(Serialize)]
struct Library {
    name: &'static str,
    /// The work that needs it.
    used_for: &'static str,
    found: bool,
    /// The reason why it cannot be used.
    why: Option<String>,
    /// The way to get it, if it is missing.
    remedy: Option<String>,
}

/// The whole report.
#[derive(Serialize)]
struct Health {
    version: &'static str,
    formats: serde_json::Map<String, serde_json::Value>,
    os: String,
    arch: &'static str,
    threads: usize,
    /// The instructions that the CPU engine's products use.
    cpu_path: &'static str,
    /// The names that `TIEBREAK_CPU_PATH` takes on this machine.
    cpu_paths: Vec<&'static str>,
    memory_bytes: u64,
    engines: Vec<Row>,
    libraries: Vec<Library>,
    /// Slow things, each with its reason.
    slow: Vec<String>,
    next: [Next; 2],
}

/// The instructions of a path, in words.
fn path_text(path: CpuPath) -> &'static str {
    match path {
        CpuPath::AmxInt8 => "AMX",
        CpuPath::Avx512Vnni => "AVX-512 VNNI",
        CpuPath::Avx512 => "AVX-512",
        CpuPath::AvxVnni => "AVX-VNNI",
        CpuPath::Avx2 => "AVX2",
        CpuPath::NeonI8mm => "NEON i8mm",
        CpuPath::NeonDotprod => "NEON dotprod",
        CpuPath::Portable => "portable",
    }
}

/// Folders in which a system's loader finds libraries.
#[cfg(feature = "gpu")]
fn library_folders() -> Vec<PathBuf> {
    let given = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> =
        std::env::split_paths(&given).filter(|path| !path.as_os_str().is_empty()).collect();
    for root in ["/usr/lib", "/lib", "/usr/lib64", "/lib64", "/usr/local/lib"] {
        folders.push(root.into());
        folders.push(PathBuf::from(root).join(format!("{}-linux-gnu", std::env::consts::ARCH)));
    }
    folders
}

/// The Vulkan loader, where GPUs are reached through it.
#[cfg(feature = "gpu")]
fn vulkan(engines: &[Row]) -> Option<Library> {
    if !cfg!(all(unix, not(target_os = "macos"))) {
        return None;
    }
    let found = engines.iter().any(|row| row.engine == "wgpu")
        || library_folders().iter().any(|folder| folder.join("libvulkan.so.1").exists());
    let remedy = match (found, engines.iter().any(|row| row.engine == "wgpu")) {
        (true, true) => None,
        (true, false) => Some(format!("the loader shows no GPU: {DRIVERS}")),
        (false, _) => Some(format!("{LOADER}; {DRIVERS}")),
    };
    Some(Library { name: "Vulkan loader", used_for: "--engine wgpu", found, why: None, remedy })
}

#[cfg(feature = "gpu")]
const LOADER: &str = "Debian, Ubuntu: apt install libvulkan1; Fedora: dnf install vulkan-loader; Arch: pacman -S vulkan-icd-loader";
#[cfg(feature = "gpu")]
const DRIVERS: &str = "drivers of AMD's and Intel's GPUs, and a software one: apt install mesa-vulkan-drivers (Fedora: dnf, the same name; \
                       Arch: vulkan-radeon, vulkan-intel or vulkan-swrast)";
#[cfg(feature = "cuda")]
const NVIDIA: &str = "Ubuntu: ubuntu-drivers install; Debian: apt install nvidia-driver; Fedora: akmod-nvidia of RPM Fusion; Windows: nvidia.com/drivers";

/// NVIDIA's libraries.
#[cfg(feature = "cuda")]
fn nvidia() -> Vec<Library> {
    let mut all = Vec::new();
    // With each error: true if there is no such library, false if one is here and cannot be used.
    let mut add = |name, used_for, error: Option<(bool, String)>, get: &str| {
        let found = !matches!(error, Some((true, _)));
        let remedy = error.is_some().then(|| get.to_string());
        all.push(Library { name, used_for, found, why: error.map(|(_, why)| why), remedy });
    };
    let driver = cuda_bridge::device::devices().err();
    let driver = driver.map(|error| (matches!(error, DeviceError::NoDriver(_)), error.to_string()));
    add("NVIDIA driver", "--engine cuda", driver, NVIDIA);
    let nvrtc = cuda_bridge::nvrtc::Nvrtc::load().err();
    let nvrtc = nvrtc.map(|error| (matches!(error, NvrtcError::NotFound { .. }), error.to_string()));
    add("NVRTC", "--engine cuda", nvrtc, "pip install nvidia-cuda-nvrtc-cu12, or CUDA's toolkit");
    let cublas = cuda_bridge::cublas::available().err();
    let cublas = cublas.map(|error| (matches!(error, BlasError::NotFound { .. }), error.to_string()));
    add("cuBLAS", "--native cublas", cublas, "pip install nvidia-cublas-cu12, or CUDA's toolkit");
    let nccl = cuda_bridge::nccl::Nccl::load().err();
    let nccl = nccl.map(|error| (matches!(error, NcclError::NotFound { .. }), error.to_string()));
    add("NCCL", "--transport nccl", nccl, "pip install nvidia-nccl-cu12, or apt install libnccl2");
    all
}

/// The engines of a report that are slow, each with its reason.
fn slow(engines: &[Row], path: CpuPath, threads: usize) -> Vec<String> {
    let mut all = vec!["reference: one element after another, for checks alone".to_string()];
    let best = CpuPath::of_machine().last().unwrap_or(path);
    if path < best {
        all.push(format!("cpu: TIEBREAK_CPU_PATH is {}, and this machine has {}", path.name(), best.name()));
    } else if path == CpuPath::Portable {
        all.push(
            "cpu: products use no dot products of vectors, since the processor has none that are known here"
                .into(),
        );
    }
    if threads < 4 {
        all.push(format!("cpu: {threads} threads alone; products take all threads that there are"));
    }
    let software = engines.iter().filter(|row| row.kind == Some("software"));
    all.extend(
        software
            .map(|row| format!("{}: a software adapter runs on the CPU, slower than --engine cpu", row.name)),
    );
    if !engines.iter().any(is_gpu) {
        all.push("no GPU is here: everything runs on the CPU".into());
    }
    all
}

/// True for a device that computes by itself.
fn is_gpu(row: &Row) -> bool {
    matches!(row.engine, "wgpu" | "cuda") && row.kind.is_some_and(|kind| kind != "software")
}

fn examined() -> Health {
    let engines: Vec<Row> = candidates().into_iter().map(|candidate| candidate.row).collect();
    let threads = cores();
    let path = CpuPath::fastest();
    #[allow(unused_mut, reason = "a build without GPUs has none to add")]
    let mut libraries: Vec<Library> = Vec::new();
    #[cfg(feature = "gpu")]
    libraries.extend(vulkan(&engines));
    #[cfg(feature = "cuda")]
    libraries.extend(nvidia());
    let formats = version::formats().into_iter().map(|(name, version)| (name.to_string(), version.into()));
    Health {
        version: version::VERSION,
        formats: formats.collect(),
        os: system(),
        arch: std::env::consts::ARCH,
        threads,
        cpu_path: path_text(path),
        cpu_paths: CpuPath::of_machine().map(CpuPath::name).collect(),
        memory_bytes: machine_memory(),
        slow: slow(&engines, path, threads),
        engines,
        libraries,
        next: [
            Next::new("train, plant a cheat and convict it", "tiebreak demo"),
            Next::new("test each engine", "tiebreak adapters --test"),
        ],
    }
}

fn lines(health: &Health) -> Vec<String> {
    let Health { version, os, arch, threads, cpu_path, memory_bytes, engines, .. } = health;
    let of_kind = |software: bool| {
        engines.iter().filter(|row| row.kind.is_some() && (row.kind == Some("software")) == software).count()
    };
    let mut lines = vec![format!(
        "tiebreak {version} can run here on the CPU; GPUs: {}, software adapters: {}",
        of_kind(false),
        of_kind(true)
    )];
    lines
        .push(format!("system     {os}, {arch}, {threads} threads, {} of memory", bytes_text(*memory_bytes)));
    lines.push(format!("processor  products by {cpu_path} instructions"));
    lines.extend(version::formats().iter().map(|(name, version)| format!("format     {name}: {version}")));
    lines.extend(engines.iter().map(|row| {
        let kind = row.kind.map_or(String::new(), |kind| format!(", {kind}"));
        let driver = row.driver.as_ref().map_or(String::new(), |driver| format!(", driver {driver}"));
        let error = row.error.as_ref().map_or(String::new(), |why| format!(": {why}"));
        format!("engine     {}: {}{kind}{driver}{error}", row.engine, row.name)
    }));
    lines.extend(health.libraries.iter().map(|library| {
        let found = match (library.found, &library.why) {
            (true, None) => "found".to_string(),
            (true, Some(why)) => format!("cannot be used: {why}"),
            (false, _) => "missing".to_string(),
        };
        format!("library    {}: {found} (for {})", library.name, library.used_for)
    }));
    lines.extend(health.slow.iter().map(|why| format!("slow       {why}")));
    let missing =
        health.libraries.iter().filter_map(|library| Some((library.name, library.remedy.as_ref()?)));
    lines.extend(missing.map(|(name, remedy)| format!("to get     {name}: {remedy}")));
    let titles = ["next", ""].into_iter().zip(&health.next);
    lines.extend(titles.map(|(title, next)| format!("{title:<10} {}", next.command())));
    lines
}

pub fn run(printer: Printer, _: &Args) -> CommandResult {
    // The engine that every machine has; without it nothing runs.
    Cpu::new(0).map_err(|error| Failure::new(Exit::Undecided, error))?;
    let health = examined();
    printer.result(lines(&health), &health);
    Ok(Exit::Match)
}
