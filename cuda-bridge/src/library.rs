//! Where NVIDIA's libraries are looked for, those that do not come with the driver.

use std::path::PathBuf;

/// Where a library with one of these file names may be, best first: what the environment variable names (a file, or a folder that
/// holds it), else what the loader finds, else where CUDA's toolkit usually is.
pub fn candidates(variable: &str, names: &[&str]) -> Vec<PathBuf> {
    if let Some(given) = std::env::var_os(variable) {
        let given = PathBuf::from(given);
        // What was asked for, or nothing: another version would be a surprise.
        return if given.is_dir() {
            names.iter().map(|name| given.join(name)).collect()
        } else {
            vec![given]
        };
    }
    let mut folders = Vec::new();
    for variable in ["CUDA_PATH", "CUDA_HOME"] {
        if let Some(root) = std::env::var_os(variable) {
            folders.extend(["lib64", "lib", "bin"].map(|sub| PathBuf::from(&root).join(sub)));
        }
    }
    folders.push(PathBuf::from("/usr/local/cuda/lib64"));
    let in_folders = folders.iter().flat_map(|folder| names.iter().map(move |name| folder.join(name)));
    names.iter().map(PathBuf::from).chain(in_folders).collect()
}
