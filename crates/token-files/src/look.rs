//! The beginning and the end of a file, which identify its format.

use std::io::{self, Read, Seek, SeekFrom};

/// The number of bytes that are read at the beginning of a file.
const START: usize = 1 << 16;
/// The number of bytes at its end.
const END: usize = 16;

/// The beginning and the end of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// The file's first bytes: 64 KiB, or all.
    pub start: Vec<u8>,
    /// The file's last bytes.
    pub end: Vec<u8>,
    /// The number of the file's bytes.
    pub bytes: u64,
}

impl Look {
    /// The look at bytes in memory.
    pub fn at(bytes: &[u8]) -> Look {
        let mut look = Look::default();
        look.add(bytes);
        look
    }

    /// The look at a file, whose position is then the beginning again.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn of(file: &mut (impl Read + Seek)) -> io::Result<Look> {
        let bytes = file.seek(SeekFrom::End(0))?;
        let mut look = Look { bytes, ..Look::default() };
        file.seek(SeekFrom::Start(bytes.saturating_sub(END as u64)))?;
        file.take(END as u64).read_to_end(&mut look.end)?;
        file.rewind()?;
        file.take(START as u64).read_to_end(&mut look.start)?;
        file.rewind()?;
        Ok(look)
    }

    fn add(&mut self, bytes: &[u8]) {
        let missing = START.saturating_sub(self.start.len()).min(bytes.len());
        self.start.extend(&bytes[..missing]);
        self.end.extend(&bytes[bytes.len().saturating_sub(END)..]);
        self.end.drain(..self.end.len().saturating_sub(END));
        self.bytes += bytes.len() as u64;
    }
}

/// A reader that looks at the bytes that pass through it.
pub struct Looking<R> {
    inner: R,
    /// The look so far.
    pub look: Look,
}

impl<R: Read> Looking<R> {
    /// A reader that looks at the bytes of `inner`.
    pub fn new(inner: R) -> Looking<R> {
        Looking { inner, look: Look::default() }
    }
}

impl<R: Read> Read for Looking<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.look.add(&buffer[..read]);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_through_a_reader_is_that_at_the_bytes() {
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        for len in [0, 1, 15, 16, 17, START - 1, START, START + 1, bytes.len()] {
            for piece in [7, 1000, 1 << 20] {
                let mut looking = Looking::new(&bytes[..len]);
                let mut buffer = vec![0; piece];
                while looking.read(&mut buffer).unwrap() > 0 {}
                let look = looking.look;
                assert!(look.bytes == len as u64 && look.start == bytes[..len.min(START)], "{len} {piece}");
                assert_eq!(look.end, bytes[len.saturating_sub(END)..len]);
                assert_eq!(look, Look::of(&mut io::Cursor::new(&bytes[..len])).unwrap());
            }
        }
    }
}
