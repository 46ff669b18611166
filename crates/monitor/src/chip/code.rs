//! The digest of the code that runs on a device: here that of the running executable, which holds every kernel and shader.
//!
//! Drivers, and compilers and libraries of a GPU's vendor, are not in it (docs/MONITORING-FORMAT.md, "Code").

use std::fs::File;
use std::io;
use std::path::PathBuf;

use tiebreak_record::commit::digest::Digest;

/// BLAKE3 of the running executable, as `b3sum` prints it for the file.
///
/// # Errors
/// If the executable cannot be read, for example since it was removed where the system keeps no other way to it.
pub fn running() -> io::Result<Digest> {
    // Linux keeps the file that runs, even if another one has its name by now.
    let path = match cfg!(target_os = "linux") {
        true => PathBuf::from("/proc/self/exe"),
        false => std::env::current_exe()?,
    };
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open(path)?)?;
    Ok(Digest(*hasher.finalize().as_bytes()))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_running_code_is_the_test_itself() {
        let file = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(super::running().unwrap().0, *blake3::hash(&file).as_bytes());
    }
}
