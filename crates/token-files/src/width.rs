//! Detects ids that are read with another width, or in the other byte order, than they were written.

/// The width of an id, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// One byte.
    U8,
    /// Two bytes.
    U16,
    /// Four bytes.
    U32,
}

impl Width {
    /// Bytes of an id.
    pub fn bytes(self) -> u64 {
        match self {
            Width::U8 => 1,
            Width::U16 => 2,
            Width::U32 => 4,
        }
    }

    /// The ids of these bytes; an incomplete id at the end is dropped.
    pub fn ids(self, bytes: &[u8]) -> Vec<u32> {
        match self {
            Width::U8 => bytes.iter().map(|&id| id.into()).collect(),
            Width::U16 => bytes.as_chunks().0.iter().map(|id| u16::from_le_bytes(*id).into()).collect(),
            Width::U32 => bytes.as_chunks().0.iter().map(|id| u32::from_le_bytes(*id)).collect(),
        }
    }
}

/// The fewest pairs of ids whose zeros decide about a width.
const PAIRS: usize = 8;

/// The reason why a file of `bytes` bytes does not hold ids of this width, if its first bytes show it. `below`: the bound on
/// every id, if it is known.
pub fn other_width(start: &[u8], bytes: u64, width: Width, below: Option<u32>) -> Option<String> {
    let ids = width.ids(start);
    doubled(&ids, bytes, width)
        .or_else(|| halved(&ids, start, width, below?))
        .or_else(|| swapped(&ids, width, below?))
}

/// Every second id is 0: wider ids were cut in two.
fn doubled(ids: &[u32], bytes: u64, width: Width) -> Option<String> {
    let pairs = ids.as_chunks::<2>().0;
    let wider = 2 * width.bytes();
    if pairs.len() < PAIRS || !bytes.is_multiple_of(wider) {
        return None;
    }
    let all = |place: usize| pairs.iter().all(|pair| pair[place] == 0);
    let (which, order) = match [all(0), all(1)] {
        [false, true] => ("second", "little-endian"),
        [true, false] => ("first", "big-endian"),
        _ => return None,
    };
    let fours = ids.as_chunks::<4>().0;
    let low = if which == "second" { 0 } else { 3 };
    let one_of_four = |four: &[u32; 4]| four.iter().enumerate().all(|(place, id)| place == low || *id == 0);
    let bits = match bytes.is_multiple_of(2 * wider) && fours.iter().all(one_of_four) {
        true => 16 * wider,
        false => 8 * wider,
    };
    if width == Width::U8 {
        return Some(format!(
            "the {which} byte of every two is 0, so it holds numbers of {bits} bits ({order}) or a text in UTF-16, not bytes"
        ));
    }
    let read = 8 * width.bytes();
    let advice = match (width, bits, order) {
        (Width::U16, 32, "little-endian") => "say dtype = \"u32\"",
        _ => "write it as little-endian ids of 16 or 32 bits",
    };
    Some(format!(
        "the {which} of every two ids is 0: it holds ids of {bits} bits ({order}), which are read as ids of {read}; {advice}. If these zeros \
         are meant, write the ids as .npy, whose header says how wide they are"
    ))
}

/// Ids of half the width: in this width some are too large, in half of it none is.
fn halved(ids: &[u32], start: &[u8], width: Width, below: u32) -> Option<String> {
    let halves = Width::U16.ids(start);
    let fit = |ids: &[u32]| ids.iter().all(|id| *id < below);
    let wrong = width == Width::U32 && !fit(ids) && fit(&halves);
    wrong.then(|| {
        let first = ids.iter().find(|id| **id >= below).copied().unwrap_or_default();
        format!(
            "it holds ids of 16 bits, which are read as ids of 32: one is {first}, not below {below}, and in halves all are; say dtype = \"u16\""
        )
    })
}

/// Ids of the other byte order: in this order some are too large, in the other none is.
fn swapped(ids: &[u32], width: Width, below: u32) -> Option<String> {
    let fit = |turn: fn(u32) -> u32| ids.iter().all(|id| turn(*id) < below);
    let turn: fn(u32) -> u32 = match width {
        Width::U8 => return None,
        Width::U16 => |id| (id as u16).swap_bytes().into(),
        Width::U32 => u32::swap_bytes,
    };
    let wrong = !fit(|id| id) && fit(turn);
    wrong.then(|| {
        let bits = 8 * width.bytes();
        format!("its ids of {bits} bits are big-endian: turned around all are below {below}; write them little-endian")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids() -> Vec<u32> {
        (0..100u32).map(|i| i * 1009 % 50_257).collect()
    }

    fn found(bytes: &[u8], width: Width, below: Option<u32>) -> String {
        other_width(bytes, bytes.len() as u64, width, below).unwrap_or_default()
    }

    #[test]
    fn other_widths_are_found_by_their_zeros_or_by_what_fits() {
        let le16: Vec<u8> = ids().iter().flat_map(|&id| (id as u16).to_le_bytes()).collect();
        let be16: Vec<u8> = ids().iter().flat_map(|&id| (id as u16).to_be_bytes()).collect();
        let le32: Vec<u8> = ids().iter().flat_map(|id| id.to_le_bytes()).collect();
        let be32: Vec<u8> = ids().iter().flat_map(|id| id.to_be_bytes()).collect();
        let le64: Vec<u8> = ids().iter().flat_map(|&id| u64::from(id).to_le_bytes()).collect();
        let be64: Vec<u8> = ids().iter().flat_map(|&id| u64::from(id).to_be_bytes()).collect();
        let vocabulary = Some(50_257);
        for (bytes, width, below, why) in [
            (&le32, Width::U16, None, "ids of 32 bits (little-endian)"),
            (&be32, Width::U16, None, "ids of 32 bits (big-endian)"),
            (&le64, Width::U16, None, "ids of 64 bits (little-endian)"),
            (&be64, Width::U16, None, "ids of 64 bits (big-endian)"),
            (&le64, Width::U32, None, "ids of 64 bits (little-endian)"),
            (&le16, Width::U32, vocabulary, "ids of 16 bits"),
            (&be16, Width::U16, vocabulary, "big-endian"),
            (&be32, Width::U32, vocabulary, "big-endian"),
        ] {
            assert!(
                found(bytes, width, below).contains(why),
                "{width:?} {why}: {}",
                found(bytes, width, below)
            );
        }
        for (bytes, width) in [(&le16, Width::U16), (&le32, Width::U32), (&le16, Width::U8)] {
            assert_eq!(found(bytes, width, vocabulary), "", "{width:?}");
        }
        let wide: Vec<u8> = "a text of letters".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert!(found(&wide, Width::U8, None).contains("UTF-16"));
    }

    #[test]
    fn few_ids_and_zeros_alone_show_nothing() {
        let pairs = |n: usize| [3u8, 0, 0, 0].repeat(n);
        assert_ne!(found(&pairs(PAIRS), Width::U16, None), "");
        assert_eq!(found(&pairs(PAIRS - 1), Width::U16, None), "");
        assert_eq!(found(&[0; 4096], Width::U16, None), "");
        // A file of 32-bit ids has a whole number of them.
        assert_eq!(found(&[&pairs(PAIRS)[..], &[1, 0]].concat(), Width::U16, None), "");
        let mut other = pairs(1000);
        *other.last_mut().unwrap() = 1;
        assert_eq!(found(&other, Width::U16, None), "");
    }
}
