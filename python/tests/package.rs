//! The Python package over the library that this build made: pytest runs the tests beside this file.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The Python that has numpy, pytest and hypothesis; without one the test says so, unless TIEBREAK_REQUIRE_PYTEST makes that a failure.
fn python() -> Option<String> {
    let python = env::var("TIEBREAK_PYTEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let found = Command::new(&python).args(["-c", "import numpy, pytest, hypothesis"]).output();
    if found.is_ok_and(|output| output.status.success()) {
        return Some(python);
    }
    let missing = "no Python with numpy, pytest and hypothesis (TIEBREAK_PYTEST_PYTHON names one)";
    assert!(env::var_os("TIEBREAK_REQUIRE_PYTEST").is_none(), "{missing}");
    eprintln!("NOT TESTED: there is {missing}, so the Python package is not");
    None
}

/// The folder of this build's programs and libraries.
fn built() -> PathBuf {
    let deps = env::current_exe().unwrap().parent().unwrap().to_path_buf();
    deps.parent().unwrap().to_path_buf()
}

/// Writes the entry points of the package, by which PyTorch finds the backend of `torch.compile`, as pip does.
fn installed(here: &Path, folder: &Path) {
    let project = fs::read_to_string(here.join("pyproject.toml")).unwrap();
    let (_, points) = project.split_once("[project.entry-points.\"torch_dynamo_backends\"]\n").unwrap();
    let (points, _) = points.split_once("\n\n").unwrap();
    let info = folder.join("tiebreak-0.dist-info");
    fs::create_dir(&info).unwrap();
    fs::write(info.join("METADATA"), "Metadata-Version: 2.1\nName: tiebreak\nVersion: 0\n").unwrap();
    // The text is the same in both formats but for the quotes.
    let points = format!("[torch_dynamo_backends]\n{}\n", points.replace('"', ""));
    fs::write(info.join("entry_points.txt"), points).unwrap();
}

#[test]
fn pytest_passes() {
    let Some(python) = python() else { return };
    let (here, built) = (Path::new(env!("CARGO_MANIFEST_DIR")), built());
    let command = built.join(format!("tiebreak{}", env::consts::EXE_SUFFIX));
    if !command.exists() {
        assert!(env::var_os("TIEBREAK_REQUIRE_PYTEST").is_none(), "{} is not built", command.display());
        eprintln!(
            "NOT TESTED: the command is not built, with which the package is compared: test the whole workspace"
        );
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("tiebreak");
    fs::create_dir(&package).unwrap();
    for file in fs::read_dir(here.join("tiebreak")).unwrap() {
        let path = file.unwrap().path();
        if path.is_file() {
            fs::copy(&path, package.join(path.file_name().unwrap())).unwrap();
        }
    }
    let library = format!("{}tiebreak_python{}", env::consts::DLL_PREFIX, env::consts::DLL_SUFFIX);
    let native = if cfg!(windows) { "_native.pyd" } else { "_native.abi3.so" };
    fs::copy(built.join("deps").join(library), package.join(native)).unwrap();
    installed(here, folder.path());
    let status = Command::new(&python)
        .args(["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--durations=5"])
        .arg(here.join("tests"))
        .current_dir(folder.path())
        .env("PYTHONPATH", folder.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("HYPOTHESIS_STORAGE_DIRECTORY", folder.path().join("hypothesis"))
        .env("TIEBREAK", &command)
        .status()
        .unwrap();
    assert!(status.success(), "pytest ended with {status}");
}
