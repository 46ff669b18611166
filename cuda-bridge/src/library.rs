//! The search for NVIDIA's libraries that do not come with the driver.

use std::path::{Path, PathBuf};

use libloading::Library;

/// The paths where a library with one of these file names may be, best first. If the environment variable is set, only the paths
/// that it names count (files, and folders that hold one, in the form of `PATH`), since another version would be a surprise.
/// Otherwise: the names that the loader searches, the usual folders of CUDA's toolkit, and NVIDIA's wheels in Python's usual
/// folders.
pub fn candidates(variable: &str, names: &[&str]) -> Vec<PathBuf> {
    let within = |folder: PathBuf| -> Vec<PathBuf> { names.iter().map(|name| folder.join(name)).collect() };
    if let Some(given) = std::env::var_os(variable) {
        let all = std::env::split_paths(&given);
        return all.flat_map(|path| if path.is_dir() { within(path) } else { vec![path] }).collect();
    }
    let mut folders = Vec::new();
    for variable in ["CUDA_PATH", "CUDA_HOME"] {
        if let Some(root) = std::env::var_os(variable) {
            folders.extend(["lib64", "lib", "bin"].map(|sub| PathBuf::from(&root).join(sub)));
        }
    }
    folders.push(PathBuf::from("/usr/local/cuda/lib64"));
    folders.extend(wheels());
    let in_folders = folders.into_iter().flat_map(within);
    names.iter().map(PathBuf::from).chain(in_folders).collect()
}

/// The folders `nvidia/*/lib` of Python's packages: those of the active environment, of this user, of the machine.
fn wheels() -> Vec<PathBuf> {
    let mut roots = Vec::new();
    for (variable, below) in [("VIRTUAL_ENV", ""), ("CONDA_PREFIX", ""), ("HOME", ".local")] {
        roots.extend(std::env::var_os(variable).map(|root| PathBuf::from(root).join(below)));
    }
    roots.extend(["/usr/local", "/usr", "/opt/conda"].map(PathBuf::from));
    let mut found = Vec::new();
    for python in roots.iter().flat_map(|root| entries(&root.join("lib"))) {
        let name = python.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !name.starts_with("python3") {
            continue;
        }
        for packages in ["site-packages", "dist-packages"] {
            let nvidia = entries(&python.join(packages).join("nvidia"));
            found.extend(nvidia.into_iter().map(|part| part.join("lib")));
        }
    }
    found
}

/// The entries of a folder, in the order of names; none if it does not exist.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// A library together with the companions in its folder that it opens by name alone when it needs them. The loader does not
/// search the folder of a library that was opened by its path, unless the library itself says so, and libraries of some wheels do
/// not. The loader accepts a companion that is open already.
pub struct Opened {
    pub library: Library,
    _companions: Vec<Library>,
}

impl Opened {
    /// Opens the file, after the files beside it whose names begin with `companion`.
    ///
    /// # Errors
    /// The loader's reason. A companion that cannot be opened is skipped: the code that needs it reports that.
    pub fn new(path: &Path, companion: &str) -> Result<Opened, String> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if folder.is_some() && !path.exists() {
            return Err("there is no such file".into());
        }
        let beside = folder.map(entries).unwrap_or_default();
        let companions = beside.iter().filter(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(companion))
        });
        // SAFETY: loading NVIDIA's libraries runs their initialisers, which is what every user of them does.
        let _companions = companions.filter_map(|path| unsafe { Library::new(path) }.ok()).collect();
        // SAFETY: as above.
        let library = unsafe { Library::new(path) }.map_err(|error| {
            let (reason, name) = (error.to_string(), format!("{}: ", path.display()));
            reason.strip_prefix(&name).unwrap_or(&reason).to_string()
        })?;
        Ok(Opened { library, _companions })
    }
}

/// A function that a library lacks.
pub struct Missing {
    pub symbol: &'static str,
    pub source: libloading::Error,
}

/// Declares the used functions of a library, each by its symbol, and a method `from` of their struct: it returns the functions of
/// a loaded library, or the first that it lacks. Functions return a status, an int, unless another type is given. The types are
/// those of the library's header, in which enumerations are ints; the caller of the macro vouches for them.
macro_rules! functions {
    ($(#[$doc:meta])* $name:ident: $($field:ident = $symbol:literal ($($argument:ty),*) $(-> $result:ty)?;)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $name {
            $(pub $field: unsafe extern "C" fn($($argument),*) -> $crate::library::functions!(@ $($result)?),)*
        }

        impl $name {
            pub(crate) fn from(library: &libloading::Library) -> Result<$name, $crate::library::Missing> {
                Ok($name {
                    $($field: {
                        // SAFETY: the declared type is that of the library's header.
                        let symbol = unsafe { library.get(concat!($symbol, "\0").as_bytes()) };
                        *symbol.map_err(|source| $crate::library::Missing { symbol: $symbol, source })?
                    },)*
                })
            }
        }
    };
    (@) => { std::ffi::c_int };
    (@ $result:ty) => { $result };
}
pub(crate) use functions;
