//! Opens files that somebody names: plain ones, since a pipe or a device may never end.

use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Opens a plain file; links are followed. Another kind is an error of the kind [`io::ErrorKind::InvalidData`], and is not opened:
/// opening a pipe would wait for its writer.
///
/// # Errors
/// If the path is no plain file, or cannot be opened.
pub fn open_plain(path: &Path) -> io::Result<File> {
    let is_plain = |found: &fs::Metadata| match found.is_file() {
        true => Ok(()),
        false => {
            let why = "a plain file is wanted, and this is a folder, a pipe or a device: write its contents to a file, and name that";
            Err(io::Error::new(io::ErrorKind::InvalidData, why))
        }
    };
    is_plain(&fs::metadata(path)?)?;
    let file = File::open(path)?;
    // Another one could have taken its place.
    is_plain(&file.metadata()?)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_and_devices_are_not_opened() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert!(open_plain(&folder.join("Cargo.toml")).is_ok());
        let others = [folder, Path::new("/dev/zero")];
        for other in others.into_iter().filter(|path| path.exists()) {
            assert_eq!(open_plain(other).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
        assert_eq!(open_plain(&folder.join("absent")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
