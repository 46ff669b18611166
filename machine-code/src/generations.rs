//! Compiles shaders for absent GPUs, one process for each generation: RADV reads from its environment which GPU to be, and a
//! driver that crashes ends only its own process.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::spirv::translate;
use crate::vulkan::{Compiled, Device};

/// Mesa's manifest of RADV on Debian; `VK_DRIVER_FILES` names another.
pub const RADV: &str = "/usr/share/vulkan/icd.d/radeon_icd.x86_64.json";

/// The results of one driver for all shaders and one GPU.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Generation {
    /// The driver's name for the GPU.
    pub device: String,
    /// The driver and its version.
    pub driver: String,
    /// The results by the shaders' names, in their order.
    pub shaders: Vec<(String, Compiled)>,
}

/// The WGSL files among the paths and in folders among them, sorted, as (name, text); names are files' names.
///
/// # Errors
/// If one cannot be read.
pub fn read(paths: &[PathBuf]) -> Result<Vec<(String, String)>, Error> {
    let unread = |path: &Path| {
        let path = path.display().to_string();
        move |error| Error::File { path, error }
    };
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        for entry in path.read_dir().map_err(unread(path))? {
            let file = entry.map_err(unread(path))?.path();
            if file.extension().is_some_and(|extension| extension == "wgsl") {
                files.push(file);
            }
        }
    }
    files.sort();
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    files.iter().map(|path| Ok((name(path), std::fs::read_to_string(path).map_err(unread(path))?))).collect()
}

/// Compiles shaders for the first device of this process's environment.
///
/// # Errors
/// If there is no device, or a shader does not compile.
pub fn here(shaders: &[(String, String)]) -> Result<Generation, Error> {
    let device = Device::open()?;
    let compile = |(name, text): &(String, String)| {
        let compiled = device.compile(&translate(name, text, device.offered())?)?;
        Ok((name.clone(), compiled))
    };
    let shaders = shaders.iter().map(compile).collect::<Result<_, Error>>()?;
    Ok(Generation { device: device.name().to_string(), driver: device.driver().to_string(), shaders })
}

impl Generation {
    /// The faults of its shaders, each with its shader's name.
    pub fn faults(&self) -> Vec<String> {
        let of = |(name, compiled): &(String, Compiled)| {
            compiled.faults().into_iter().map(|fault| format!("{name}: {fault}")).collect::<Vec<_>>()
        };
        self.shaders.iter().flat_map(of).collect()
    }
}

/// Compiles shaders for each of AMD's generations, and returns the results in the order of the generations. As many processes of
/// `program` (this crate's command) run at once as there are cores.
///
/// # Errors
/// If a process fails.
pub fn compile_all(
    program: &Path,
    generations: &[String],
    shaders: &[(String, String)],
) -> Result<Vec<Generation>, Error> {
    let folder = Folder::of(shaders)?;
    let next = AtomicUsize::new(0);
    let done = Mutex::new(BTreeMap::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(generations.len()) {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let Some(generation) = generations.get(place) else { return };
                    let compiled = compile(program, generation, &folder.0);
                    done.lock().unwrap_or_else(PoisonError::into_inner).insert(place, compiled);
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect()
}

/// A folder of shaders, which is removed when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn of(shaders: &[(String, String)]) -> Result<Folder, Error> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("machine-code-{}-{count}", std::process::id()));
        let unwritten = |path: &Path| {
            let path = path.display().to_string();
            move |error| Error::File { path, error }
        };
        std::fs::create_dir(&path).map_err(unwritten(&path))?;
        let folder = Folder(path);
        for (name, text) in shaders {
            let path = folder.0.join(name);
            std::fs::write(&path, text).map_err(unwritten(&path))?;
        }
        Ok(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // If the removal fails, the system has to clean up.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Compiles the shaders of a folder for one of AMD's generations, in a process of its own.
fn compile(program: &Path, generation: &str, folder: &Path) -> Result<Generation, Error> {
    let failed = |message: String| Error::Process { generation: generation.to_string(), message };
    let mut command = Command::new(program);
    command.arg("--here").arg("--json").arg(folder).env("RADV_FORCE_FAMILY", generation);
    // A user's own choice of RADV, for example another Mesa's, is kept.
    if std::env::var_os("VK_DRIVER_FILES").is_none_or(|files| !files.to_string_lossy().contains("radeon")) {
        command.env("VK_DRIVER_FILES", RADV);
    }
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    // Exit code 1: some shader has a fault, which the caller judges.
    if !matches!(output.status.code(), Some(0 | 1)) {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(failed(format!("{}: {}", output.status, said.trim())));
    }
    let mut all: Vec<Generation> =
        serde_json::from_slice(&output.stdout).map_err(|error| failed(error.to_string()))?;
    all.pop().ok_or_else(|| failed("it printed nothing".into()))
}
