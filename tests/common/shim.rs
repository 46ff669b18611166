//! The CUDA engine over a stand-in for NVIDIA's driver, NVRTC, cuBLAS and NCCL: `cuda-bridge/shim`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::not_tested;

/// The library that stands in for the driver, or `None` without TIEBREAK_REQUIRE_SHIM, which CI sets: the C++ compiler takes minutes of
/// processor time for its kernels.
pub fn shim() -> Option<&'static Path> {
    static SHIM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let make = || {
        if std::env::var_os("TIEBREAK_REQUIRE_SHIM").is_none() {
            not_tested(
                "the CUDA engine: TIEBREAK_REQUIRE_SHIM=1 tests it over a stand-in for NVIDIA's driver, as CI does",
            );
            return None;
        }
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-shim");
        match cuda_bridge::host::driver(&folder) {
            Ok(library) => {
                // Removes kernels that an older stand-in compiled.
                let _ = std::fs::remove_dir_all(folder.join("cache"));
                Some(library)
            }
            Err(error) => panic!("{error}"),
        }
    };
    SHIM.get_or_init(make).as_deref()
}

/// A program whose searches for NVIDIA's libraries find the stand-in.
pub fn over(shim: &Path, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for variable in ["TIEBREAK_CUDA_DRIVER", "TIEBREAK_NVRTC", "TIEBREAK_CUBLAS", "TIEBREAK_NCCL"] {
        command.env(variable, shim);
    }
    command.env("TIEBREAK_CACHE", shim.with_file_name("cache"));
    command
}

/// Runs a command with the stand-in and these environment variables; returns its exit code and its output.
pub fn tiebreak(shim: &Path, environment: &[(&str, &str)], args: &[&str]) -> (i32, String) {
    let mut command = over(shim, env!("CARGO_BIN_EXE_tiebreak"));
    let output = command.args(args).envs(environment.iter().copied()).output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(printed).unwrap())
}

/// Runs an ignored test of the calling program in a process with the stand-in and these environment variables; returns true if
/// there is a stand-in.
pub fn in_its_own_process(name: &str, environment: &[(&str, &str)]) -> bool {
    let Some(shim) = shim() else { return false };
    let mut command = over(shim, std::env::current_exe().unwrap());
    command.args(["--exact", name, "--ignored"]).envs(environment.iter().copied());
    let output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
    true
}
