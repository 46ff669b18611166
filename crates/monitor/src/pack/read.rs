//! Reads a pack without trust in it: lengths are bounded before anything is allocated, and names lead nowhere.

use std::io::Read;

use super::error::{PackError, invalid};
use super::name;

/// The beginning of a pack.
pub(super) const MAGIC: &[u8; 16] = b"tiebreak pack 1\n";

/// The bytes that a file takes beside its name and contents, as memory counts it.
const FILE_COST: u64 = 256;

/// The limits of a reader.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The most bytes that names and contents may take together.
    pub memory: u64,
    /// The bytes that are there at most: the length of the file that holds the pack.
    pub there: u64,
}

/// Reads a pack to its end, and hands each file to `keep`.
///
/// # Errors
/// If the bytes are no pack, its files do not fit into the bounds, or the bytes cannot be read.
pub fn read(
    mut input: impl Read,
    bounds: Bounds,
    mut keep: impl FnMut(String, Vec<u8>),
) -> Result<(), PackError> {
    let mut magic = [0; MAGIC.len()];
    input.read_exact(&mut magic)?;
    if magic != *MAGIC {
        let found = magic.escape_ascii();
        return Err(invalid(format!(
            "it begins with \"{found}\", and a pack with \"{}\"",
            MAGIC.escape_ascii()
        )));
    }
    let (mut previous, mut taken, mut left) = (None::<String>, 0u64, bounds.there);
    while let Some(name) = next_name(&mut input)? {
        if let Some(previous) = &previous {
            name::follows(previous, &name)?;
        }
        let mut length = [0; 8];
        input.read_exact(&mut length)?;
        let length = u64::from_le_bytes(length);
        if length > left {
            return Err(invalid(format!(
                "{name} has {length} bytes by its length, and at most {left} are there"
            )));
        }
        left -= length;
        taken = [length, name.len() as u64, FILE_COST].into_iter().fold(taken, u64::saturating_add);
        if taken > bounds.memory {
            return Err(PackError::Memory { needed: taken, limit: bounds.memory });
        }
        let mut contents = Vec::new();
        let size = usize::try_from(length).ok().filter(|&size| contents.try_reserve_exact(size).is_ok());
        if size.is_none() {
            return Err(PackError::Memory { needed: taken, limit: bounds.memory });
        }
        contents.resize(length as usize, 0);
        input.read_exact(&mut contents)?;
        keep(name.clone(), contents);
        previous = Some(name);
    }
    // Only at its end does a stream tell that nobody cut it off.
    match input.read(&mut [0])? {
        0 => Ok(()),
        _ => Err(invalid("bytes follow its end, which is the name of length 0")),
    }
}

/// The next file's name, or `None` at the end.
fn next_name(input: &mut impl Read) -> Result<Option<String>, PackError> {
    let mut length = [0];
    input.read_exact(&mut length)?;
    if length == [0] {
        return Ok(None);
    }
    let mut name = vec![0; length[0].into()];
    input.read_exact(&mut name)?;
    let name = String::from_utf8(name).map_err(|error| {
        invalid(format!("a file's name is no text: \"{}\"", error.as_bytes().escape_ascii()))
    })?;
    name::check(&name)?;
    Ok(Some(name))
}

#[cfg(test)]
mod tests {
    use super::super::write::Writer;
    use super::*;

    type Files = Vec<(String, Vec<u8>)>;

    fn files(bytes: &[u8], memory: u64) -> Result<Files, PackError> {
        let mut files = Vec::new();
        let bounds = Bounds { memory, there: bytes.len() as u64 };
        read(bytes, bounds, |name, contents| files.push((name, contents)))?;
        Ok(files)
    }

    fn packed(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new()).unwrap();
        for (name, contents) in files {
            writer.add(name, contents.len() as u64, &mut &contents[..]).unwrap();
        }
        writer.finish().unwrap()
    }

    /// A pack by hand, whose names nobody checked.
    fn raw(files: &[(&[u8], u64, &[u8])]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for (name, length, contents) in files {
            bytes.push(name.len() as u8);
            bytes.extend(*name);
            bytes.extend(length.to_le_bytes());
            bytes.extend(*contents);
        }
        bytes.push(0);
        bytes
    }

    fn why(bytes: &[u8]) -> String {
        files(bytes, 1 << 20).unwrap_err().to_string()
    }

    #[test]
    fn what_is_packed_comes_out() {
        let all: [(&str, &[u8]); 4] =
            [("a", b""), ("data/x.bin", &[7; 100_000]), ("data/y", b"y"), ("z", b"zz")];
        let bytes = packed(&all);
        assert_eq!(
            bytes,
            raw(&all.map(|(name, contents)| (name.as_bytes(), contents.len() as u64, contents)))
        );
        let found = files(&bytes, 1 << 20).unwrap();
        let due: Files = all.iter().map(|(name, contents)| (name.to_string(), contents.to_vec())).collect();
        assert_eq!(found, due);
        assert_eq!(files(&packed(&[]), 0).unwrap(), []);
        for end in 0..bytes.len() {
            assert!(matches!(files(&bytes[..end], 1 << 20), Err(PackError::Malformed(_))), "{end}");
        }
    }

    #[test]
    fn names_that_lead_elsewhere_and_duplicates_are_refused() {
        for name in ["/etc/passwd", "../run.json", "a/../b", "a/b/c", "", ".a", "A"] {
            if !name.is_empty() {
                assert!(why(&raw(&[(name.as_bytes(), 0, b"")])).contains("may be called"), "{name}");
            }
            assert!(Writer::new(Vec::new()).unwrap().add(name, 0, &mut &b""[..]).is_err(), "{name}");
        }
        assert!(why(&raw(&[(b"\xff", 0, b"")])).contains("no text"));
        for pair in [[b"a", b"a"], [b"b", b"a"]] {
            assert!(why(&raw(&pair.map(|name| (&name[..], 0, &b""[..])))).contains("order"));
        }
        assert!(why(&raw(&[(b"a", 0, b""), (b"a/b", 0, b"")])).contains("folder"));
        let mut writer = Writer::new(Vec::new()).unwrap();
        writer.add("a", 0, &mut &b""[..]).unwrap();
        assert!(writer.add("a", 0, &mut &b""[..]).is_err());
        assert!(writer.add("b", 2, &mut &b"x"[..]).unwrap_err().to_string().contains("2 bytes, and 1"));
    }

    #[test]
    fn lengths_are_bounded_before_anything_is_allocated() {
        // More than the file holds, whatever the memory.
        let lie = raw(&[(b"a", u64::MAX, b"x")]);
        let bounds = Bounds { memory: u64::MAX, there: lie.len() as u64 };
        let error = read(&lie[..], bounds, |_, _| panic!("nothing is there")).unwrap_err();
        assert!(error.to_string().contains("18446744073709551615 bytes by its length"), "{error}");
        // More than may be kept; names count too.
        let large = packed(&[("a", &[0; 1000]), ("b", &[0; 1000])]);
        let cost = 2 * (1000 + 1 + FILE_COST);
        assert_eq!(files(&large, cost).unwrap().len(), 2);
        let error = files(&large, cost - 1).unwrap_err();
        assert!(matches!(error, PackError::Memory { needed, limit } if needed == cost && limit == cost - 1));
        // Lengths that add up to more than the file holds.
        let twice = raw(&[(b"a", 20, &[0; 20]), (b"b", 40, &[0; 2])]);
        assert!(why(&twice).contains("at most"), "{}", why(&twice));
    }

    #[test]
    fn other_files_and_trailing_bytes_are_refused() {
        let other = MAGIC.map(|byte| if byte == b'1' { b'2' } else { byte });
        assert!(why(&[&other[..], &[0]].concat()).contains("pack 2"));
        let mut bytes = packed(&[("a", b"a")]);
        bytes.push(0);
        assert!(why(&bytes).contains("follow its end"));
    }
}
