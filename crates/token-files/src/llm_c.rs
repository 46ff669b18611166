//! The token files of llm.c. Source: dev/data/data_common.py and llmc/dataloader.h of karpathy/llm.c.

use crate::width::Width;

/// Bytes of the header: 256 integers of 32 bits. The first three are used; the others are 0.
const HEADER: usize = 1024;
/// The magic number, the version and the ids' width of each kind of token file.
const KINDS: [(u32, u32, Width); 2] = [(20_240_520, 1, Width::U16), (20_240_801, 7, Width::U32)];
/// The magic numbers of llm.c's other files, which hold more than tokens.
const OTHERS: [(u32, &str); 2] = [
    (20_240_522, "a file of multiple-choice questions of llm.c"),
    (20_240_326, "a file of llm.c that holds the weights of a model"),
];

/// The header of a token file of llm.c.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LlmC {
    /// The width of an id.
    pub width: Width,
    /// The number of ids.
    pub ids: u64,
}

impl LlmC {
    /// Bytes before the first id.
    pub const HEADER: u64 = HEADER as u64;

    /// Reads a file's first bytes; `None` if the file is none of llm.c's.
    ///
    /// # Errors
    /// If the file is one of llm.c's, and its ids cannot be read.
    pub fn of(start: &[u8]) -> Option<Result<LlmC, String>> {
        let words: Vec<u32> =
            start.as_chunks().0.iter().take(HEADER / 4).map(|b| u32::from_le_bytes(*b)).collect();
        let [magic, version, ids, rest @ ..] = &words[..] else { return None };
        if let Some((_, what)) = OTHERS.iter().find(|(other, _)| other == magic).filter(|_| *version < 100) {
            return Some(Err(format!("it is {what}; token files are wanted")));
        }
        let (_, known, width) = *KINDS.iter().find(|(kind, ..)| kind == magic)?;
        if start.len() < HEADER {
            return Some(Err("it begins as a token file of llm.c, and its header is cut short".into()));
        }
        if rest.iter().any(|word| *word != 0) {
            // The magic number alone could be two ids.
            return (*version == known).then(|| {
                Err("it begins as a token file of llm.c, and its header holds more than three numbers".into())
            });
        }
        if *version != known {
            return Some(Err(format!(
                "it is a token file of llm.c of version {version}; version {known} of this kind ({magic}) is known"
            )));
        }
        Some(Ok(LlmC { width, ids: u64::from(*ids) }))
    }

    /// Checks that a file of so many bytes is as long as its header says.
    ///
    /// # Errors
    /// If it is not.
    pub fn fits(self, bytes: u64) -> Result<(), String> {
        let LlmC { width, ids } = self;
        let wanted = LlmC::HEADER + ids * width.bytes();
        if bytes == wanted {
            return Ok(());
        }
        let than = if bytes > wanted { "longer" } else { "shorter" };
        Err(format!(
            "the file is {than} than its header says: {ids} ids of {} bits take {wanted} bytes with the header, and it has {bytes}",
            8 * width.bytes()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(words: &[u32]) -> Vec<u8> {
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.resize(HEADER, 0);
        bytes
    }

    #[test]
    fn headers_are_read_or_named() {
        let of = |words: &[u32]| LlmC::of(&header(words));
        let short = LlmC { width: Width::U16, ids: 1000 };
        assert_eq!(of(&[20_240_520, 1, 1000]), Some(Ok(short)));
        assert_eq!(of(&[20_240_801, 7, 9]), Some(Ok(LlmC { width: Width::U32, ids: 9 })));
        for (words, why) in [
            (&[20_240_520, 7, 1000][..], "version 7"),
            (&[20_240_801, 1, 1000], "version 1"),
            (&[20_240_520, 1, 1000, 4], "more than three"),
            (&[20_240_522, 1, 10], "multiple-choice"),
            (&[20_240_326, 5, 10], "weights"),
        ] {
            assert!(of(words).unwrap().unwrap_err().contains(why), "{words:?}");
        }
        let cut = &header(&[20_240_520, 1, 1000])[..HEADER - 1];
        assert!(LlmC::of(cut).unwrap().unwrap_err().contains("cut short"));
        // Two ids that equal the magic number, and others after them.
        assert_eq!(of(&[20_240_520, 70_000, 12, 4]), None);
        assert_eq!([of(&[0]), of(&[20_240_521, 1, 5]), LlmC::of(&[0x88, 0xd8])], [const { None }; 3]);
        assert_eq!(short.fits(3024), Ok(()));
        assert!(short.fits(3022).unwrap_err().contains("shorter"));
        assert!(short.fits(3026).unwrap_err().contains("longer"));
    }
}
