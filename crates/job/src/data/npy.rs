//! The headers of NumPy's .npy files, format 1.0 to 3.0. Source: numpy.lib.format.

use crate::element::{ArrayPlace, DIMENSIONS_MAX, Element};
use tiebreak_record::commit::tensor::SLICE_BYTES;

/// The first bytes of every file.
pub const MAGIC: &[u8] = b"\x93NUMPY";
/// The most bytes before the header: the magic, the version and the header's length.
pub const PREAMBLE_MAX: usize = 12;
/// The most bytes of a header. A header is in the first slice of a file, so that a referee needs no more of it. numpy writes
/// about a hundred bytes.
pub const HEADER_MAX: usize = SLICE_BYTES - PREAMBLE_MAX;

/// The bytes of a header inside its file, from the file's first bytes ([`PREAMBLE_MAX`], or all if there are fewer).
///
/// # Errors
/// If the file is no .npy file or has an unknown version, or the header is longer than [`HEADER_MAX`].
pub fn header_bytes(preamble: &[u8]) -> Result<std::ops::Range<usize>, String> {
    let short = || "it is no .npy file: its header is cut short".to_string();
    let rest = preamble.strip_prefix(MAGIC).ok_or("it is no .npy file: its first bytes are others")?;
    let (version, rest) = rest.split_at_checked(2).ok_or_else(short)?;
    let (first, len) = match (version, rest) {
        ([1, 0], [a, b, ..]) => (10, usize::from(u16::from_le_bytes([*a, *b]))),
        ([2 | 3, 0], [a, b, c, d, ..]) => (12, u32::from_le_bytes([*a, *b, *c, *d]) as usize),
        ([1..=3, 0], _) => return Err(short()),
        _ => return Err(format!(".npy format {}.{} is unknown", version[0], version[1])),
    };
    if len > HEADER_MAX {
        return Err(format!("a header of {len} bytes; at most {HEADER_MAX} are read"));
    }
    Ok(first..first + len)
}

/// The dictionary of a header: exactly three keys, as numpy writes it.
#[derive(Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// The elements' type, such as `<f4`.
    pub descr: &'a str,
    /// The dimensions, [`DIMENSIONS_MAX`] at most.
    pub shape: Vec<u64>,
}

impl<'a> Header<'a> {
    /// Parses the bytes at the range that [`header_bytes`] gives.
    ///
    /// # Errors
    /// If the bytes are anything but a dictionary of the three keys, or the array is in Fortran order.
    pub fn parse(bytes: &'a [u8]) -> Result<Header<'a>, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "the header is not text")?;
        let wrong =
            || format!("the header is not understood: {:?}", text.chars().take(200).collect::<String>());
        let mut rest = text.trim().strip_prefix('{').and_then(|t| t.strip_suffix('}')).ok_or_else(wrong)?;
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        while !rest.trim().is_empty() {
            let (key, after) = quoted(rest).ok_or_else(wrong)?;
            let value = after.trim_start().strip_prefix(':').ok_or_else(wrong)?.trim_start();
            let end;
            match key {
                "descr" if descr.is_none() => {
                    let (text, after) = quoted(value).ok_or_else(wrong)?;
                    descr = Some(text);
                    end = after;
                }
                "fortran_order" if fortran_order.is_none() => {
                    let no = value.strip_prefix("False").map(|after| (false, after));
                    let (order, after) =
                        no.or_else(|| Some((true, value.strip_prefix("True")?))).ok_or_else(wrong)?;
                    fortran_order = Some(order);
                    end = after;
                }
                "shape" if shape.is_none() => {
                    let (inner, after) =
                        value.strip_prefix('(').and_then(|v| v.split_once(')')).ok_or_else(wrong)?;
                    let sizes = inner.split(',').map(str::trim).filter(|size| !size.is_empty());
                    let sizes: Result<Vec<u64>, _> = sizes.take(DIMENSIONS_MAX + 1).map(str::parse).collect();
                    shape = Some(sizes.ok().filter(|s| s.len() <= DIMENSIONS_MAX).ok_or_else(wrong)?);
                    end = after;
                }
                _ => return Err(wrong()),
            }
            let end = end.trim_start();
            rest = end.strip_prefix(',').unwrap_or(end);
            if rest.len() == end.len() && !end.is_empty() {
                return Err(wrong());
            }
        }
        match (descr, fortran_order, shape) {
            (Some(descr), Some(false), Some(shape)) => Ok(Header { descr, shape }),
            (Some(_), Some(true), Some(_)) => {
                Err("the array is in Fortran order; save numpy.ascontiguousarray of it".into())
            }
            _ => Err(wrong()),
        }
    }

    /// The array that follows the header, which has these bytes of the file.
    ///
    /// # Errors
    /// If its elements are not one of [`Element`].
    pub(crate) fn place(self, header: std::ops::Range<usize>) -> Result<ArrayPlace, String> {
        let element = match self.descr {
            "|u1" | "<u1" => Element::U8,
            "<u2" => Element::U16,
            "<u4" => Element::U32,
            "<i8" => Element::I64,
            "<f2" => Element::F16,
            "<f4" => Element::F32,
            other => {
                let other: String = other.chars().take(20).collect();
                let wanted = "little-endian u1, u2, u4, i8, f2 or f4";
                return Err(format!("its elements are of type {other:?}; wanted are {wanted}"));
            }
        };
        Ok(ArrayPlace { element, shape: self.shape, first: header.end as u64 })
    }
}

/// A quoted word at the beginning, and the text after it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    let quote = text.chars().next().filter(|c| ['\'', '"'].contains(c))?;
    text[1..].split_once(quote)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(version: u8, header: &str) -> Result<ArrayPlace, String> {
        let len = header.len() as u32;
        let len = if version == 1 { (len as u16).to_le_bytes().to_vec() } else { len.to_le_bytes().to_vec() };
        let file = [MAGIC, &[version, 0], &len, header.as_bytes()].concat();
        let bytes = header_bytes(&file[..file.len().min(PREAMBLE_MAX)])?;
        Header::parse(&file[bytes.clone()])?.place(bytes)
    }

    #[test]
    fn headers_are_read() {
        let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (20, 3), }   \n";
        let wanted = |first| ArrayPlace { element: Element::F32, shape: vec![20, 3], first };
        assert_eq!(place(1, header), Ok(wanted(10 + header.len() as u64)));
        assert_eq!(place(2, header), Ok(wanted(12 + header.len() as u64)));
        let bytes = "{\"shape\": (7,), 'fortran_order':False, 'descr': '|u1'}";
        assert_eq!(place(1, bytes).unwrap().shape, [7]);
    }

    #[test]
    fn bad_headers_are_errors() {
        let header = |descr: &str, order: &str, shape: &str| {
            format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}")
        };
        for (text, why) in [
            (header("<f4", "True", "(2, 3)"), "Fortran order"),
            (header(">f4", "False", "(2, 3)"), "elements are of type \">f4\""),
            (header("<f8", "False", "(2, 3)"), "elements are of type"),
            (header("<f4", "False", "(2, -3)"), "not understood"),
            (header("<f4", "False", "(99999999999999999999,)"), "not understood"),
            (header("<f4", "False", "(1, 1, 1, 1, 1)"), "not understood"),
            (header("<f4", "__import__('os')", "(1,)"), "not understood"),
            (header("<f4", "False", "(1,)").replace("'shape'", "'descr'"), "not understood"),
            ("{'descr': '<f4'}".into(), "not understood"),
            ("{".into(), "not understood"),
            (String::new(), "not understood"),
        ] {
            let error = place(1, &text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        let file = [MAGIC, &[2, 0], &[0xff; 4]].concat();
        assert!(header_bytes(&file).unwrap_err().contains("at most 1012 are read"));
        for len in 0..file.len() {
            assert!(header_bytes(&file[..len]).unwrap_err().contains("no .npy file"), "{len}");
        }
        assert!(header_bytes(&[MAGIC, &[4, 0], &[0; 4]].concat()).unwrap_err().contains("4.0 is unknown"));
    }
}
