//! Writes a pack as a stream: no file of it has to fit into memory.

use std::io::{self, Read, Write};

use super::error::{PackError, invalid};
use super::name;
use super::read::MAGIC;

/// Writes the files of a pack, one after the other.
pub struct Writer<W: Write> {
    out: W,
    previous: Option<String>,
}

impl<W: Write> Writer<W> {
    /// Begins a pack.
    ///
    /// # Errors
    /// If the bytes cannot be written.
    pub fn new(mut out: W) -> Result<Writer<W>, PackError> {
        out.write_all(MAGIC).map_err(PackError::Io)?;
        Ok(Writer { out, previous: None })
    }

    /// Adds a file of `length` bytes. Files come in the order of [`name::order`].
    ///
    /// # Errors
    /// If the name may not be there, the contents end early, or the bytes cannot be read or written.
    pub fn add(&mut self, name: &str, length: u64, contents: &mut dyn Read) -> Result<(), PackError> {
        name::check(name)?;
        if let Some(previous) = &self.previous {
            name::follows(previous, name)?;
        }
        self.previous = Some(name.to_string());
        let header = [&[name.len() as u8], name.as_bytes(), &length.to_le_bytes()].concat();
        self.out.write_all(&header).map_err(PackError::Io)?;
        let copied = io::copy(&mut contents.take(length), &mut self.out).map_err(PackError::Io)?;
        if copied < length {
            return Err(invalid(format!("{name} had {length} bytes, and {copied} of them came")));
        }
        Ok(())
    }

    /// Ends the pack.
    ///
    /// # Errors
    /// If the bytes cannot be written.
    pub fn finish(mut self) -> Result<W, PackError> {
        self.out.write_all(&[0]).map_err(PackError::Io)?;
        Ok(self.out)
    }
}
