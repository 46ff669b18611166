//! The search for NVIDIA's compiler: the first of several that compiles is taken, with the files that it opens by name alone.
//! Libraries that play NVRTC stand for broken ones. An installed NVRTC has to compile without help of the loader's path.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cuda_bridge::nvrtc::{Nvrtc, NvrtcError};
use cuda_bridge::translate::Options;

/// A library that plays NVRTC. The library opens its companion NEEDS by name, as NVRTC 13.0 does.
const TEXT: &str = r#"
#include <dlfcn.h>
#include <string.h>
const char* nvrtcGetErrorString(int status) { return "builtin operation failure"; }
int nvrtcVersion(int* major, int* minor) { *major = 13, *minor = 0; return 0; }
int nvrtcCreateProgram(void** program, const char* a, const char* b, int c, const char* const* d, const char* const* e) {
    *program = (void*)a;
    return 0;
}
int nvrtcDestroyProgram(void** program) { return 0; }
int nvrtcCompileProgram(void* program, int a, const char* const* b) { return dlopen(NEEDS, RTLD_NOW) ? 0 : 7; }
static const char log_text[] = "failed to open " NEEDS;
int nvrtcGetProgramLogSize(void* program, size_t* bytes) { *bytes = sizeof log_text; return 0; }
int nvrtcGetProgramLog(void* program, char* to) { memcpy(to, log_text, sizeof log_text); return 0; }
int nvrtcGetCUBINSize(void* program, size_t* bytes) { *bytes = 0; return 0; }
int nvrtcGetCUBIN(void* program, char* to) { return 0; }
"#;

/// Compiles a text to a library, or reports that there is no compiler; CI requires one.
fn library(text: &str, options: &[&str], to: &Path) -> bool {
    let source = to.with_extension("c");
    fs::write(&source, text).unwrap();
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-w"]).args(options).arg("-o").args([to, &source]);
    match command.arg("-ldl").status() {
        Ok(status) => assert!(status.success(), "{}", to.display()),
        Err(error) => {
            assert!(std::env::var_os("TIEBREAK_REQUIRE_SHIM").is_none(), "{error}");
            common::not_checked(&format!("which NVRTC is taken: there is no C compiler ({error})"));
            return false;
        }
    }
    fs::remove_file(source).unwrap();
    true
}

/// A library in a folder of its own, which needs a companion that is nowhere else.
fn playing(folder: &Path, needs: &str) -> Option<PathBuf> {
    fs::create_dir_all(folder).unwrap();
    let path = folder.join("libnvrtc.so.13");
    library(TEXT, &[&format!("-DNEEDS=\"{needs}\"")], &path).then_some(path)
}

#[test]
fn the_first_that_compiles_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let nowhere = at("nowhere/libnvrtc.so.13");
    let Some(broken) = playing(&at("broken"), "libnvrtc-builtins.so.98.1") else { return };
    let whole = playing(&at("whole"), "libnvrtc-builtins.so.98.2").unwrap();
    let builtins = at("whole/libnvrtc-builtins.so.98.2");
    assert!(library("int nothing;", &["-Wl,-soname,libnvrtc-builtins.so.98.2"], &builtins));
    let text = at("text");
    fs::write(&text, "no library").unwrap();

    // A companion that the library opens by name is opened before, from the library's folder.
    let all = vec![nowhere.clone(), text.clone(), broken.clone(), whole.clone()];
    let taken = Nvrtc::among(all, i32::MAX).unwrap();
    assert_eq!(Path::new(&taken.path), whole);
    assert!(taken.compile("k", "", "sm_90a").is_ok());

    let failed = |paths: &[&PathBuf], driver| {
        let paths = paths.iter().map(|path| path.to_path_buf()).collect();
        Nvrtc::among(paths, driver).err().unwrap()
    };
    // Each library with its problem.
    let error = failed(&[&nowhere, &broken], i32::MAX);
    assert!(matches!(error, NvrtcError::Unusable { .. }), "{error}");
    let said = error.to_string();
    for (path, reason) in [(&nowhere, "no such file"), (&broken, "failed to open libnvrtc-builtins.so.98.1")]
    {
        assert!(said.contains(path.to_str().unwrap()) && said.contains(reason), "{said}");
    }
    let error = failed(&[&whole], 12);
    assert!(error.to_string().contains("a driver for CUDA 12 does not take"), "{error}");
    assert!(matches!(failed(&[&nowhere, &text], 13), NvrtcError::NotFound { .. }));
}

#[test]
#[ignore = "a process of its own, which the next test starts"]
fn child() {
    println!("took {}", Nvrtc::load().unwrap_or_else(|error| panic!("{error}")).path);
}

/// The variable names files and folders, as PATH does, and no other path is tried.
#[test]
fn the_environment_lists_them() {
    let folder = tempfile::tempdir().unwrap();
    let Some(broken) = playing(&folder.path().join("broken"), "libnvrtc-builtins.so.98.3") else { return };
    let shim = cuda_bridge::host::driver(&folder.path().join("shim")).unwrap();
    let run = |paths: &[&Path]| {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.env("TIEBREAK_NVRTC", std::env::join_paths(paths).unwrap());
        let output = child.args(["--exact", "child", "--ignored", "--nocapture"]).output().unwrap();
        (
            output.status.success(),
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
        )
    };
    let (done, said) = run(&[broken.parent().unwrap(), &shim]);
    assert!(done && said.contains(&format!("took {}", shim.display())), "{said}");
    let (done, said) = run(&[broken.parent().unwrap()]);
    assert!(
        !done && said.contains("builtins.so.98.3") && said.contains("libnvrtc.so.12: there is no"),
        "{said}"
    );
}

/// NVRTC from a wheel: the loader's path does not name its folder.
#[test]
fn a_wheels_compiler_compiles() {
    let Some(nvrtc) = common::nvrtc() else { return };
    let version = nvrtc.version().unwrap();
    eprintln!("NVRTC {version} of {}", nvrtc.path);
    let folder = Path::new(&nvrtc.path).parent().unwrap();
    let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    assert!(
        folder.as_os_str().is_empty() || std::env::split_paths(&path).all(|on_path| on_path != folder),
        "LD_LIBRARY_PATH names {}, so this shows nothing",
        folder.display()
    );
    let text = "@group(0) @binding(0) var<storage, read_write> output: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) { output[id.x] = id.x; }";
    let kernel = common::try_kernel(text, Options { native: true }).unwrap();
    for architecture in ["sm_80", "sm_89", "sm_90a"] {
        let cubin = nvrtc.compile(&kernel.name, &kernel.source, architecture);
        assert!(!cubin.unwrap_or_else(|error| panic!("{error}")).is_empty(), "{architecture}");
    }
}
