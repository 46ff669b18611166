//! Requests to a witness, as C2SP tlog-witness has them: the old size, a consistency proof, and the checkpoint.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::tree_head::NOTE_MAX;
use tiebreak_record::commit::{Malformed, beginning};

use super::checkpoint::{Checkpoint, decimal, hash};

/// The most hashes of a consistency proof.
pub const PROOF_MAX: usize = 63;
/// The most bytes of a request.
pub const REQUEST_MAX: usize = NOTE_MAX + 64 * PROOF_MAX;
/// The content type of the answer that names the size which the witness knows.
pub const SIZE_TYPE: &str = "text/x.tlog.size";
const WHAT: &str = "request to a witness";

/// A request for a cosignature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddCheckpoint {
    /// The size of the log that the witness cosigned last, or 0.
    pub old: u64,
    /// The consistency proof from that size, of RFC 6962, section 2.1.2.
    pub proof: Vec<Digest>,
    /// The new checkpoint.
    pub checkpoint: Checkpoint,
}

impl AddCheckpoint {
    /// The request's body.
    pub fn to_text(&self) -> String {
        let proof = self.proof.iter().map(|hash| format!("{}\n", STANDARD.encode(hash.0)));
        format!("old {}\n{}\n{}", self.old, proof.collect::<String>(), self.checkpoint.note)
    }

    /// Reads a body.
    ///
    /// # Errors
    /// If it is longer than [`REQUEST_MAX`], has another form, or more than [`PROOF_MAX`] hashes.
    pub fn read(body: &str) -> Result<AddCheckpoint, Malformed> {
        let wrong = |why: String| Malformed::invalid(WHAT, why);
        if body.len() > REQUEST_MAX {
            return Err(Malformed::TooLarge { what: WHAT, limit: REQUEST_MAX as u64 });
        }
        let (head, note) = body.split_once("\n\n").ok_or_else(|| wrong("there is no blank line".into()))?;
        let mut lines = head.split('\n');
        let old = lines.next().and_then(|line| line.strip_prefix("old ")).and_then(decimal);
        let old = old.ok_or_else(|| {
            wrong(format!(
                "its first line is {:?}; `old SIZE` is wanted",
                beginning(body.lines().next().unwrap_or(""))
            ))
        })?;
        let proof = lines.enumerate().map(|(index, line)| {
            if index >= PROOF_MAX {
                return Err(Malformed::TooLarge { what: "consistency proof", limit: PROOF_MAX as u64 });
            }
            hash(line).ok_or_else(|| wrong(format!("line {} is not 32 bytes of base64", index + 2)))
        });
        let proof = proof.collect::<Result<_, _>>()?;
        Ok(AddCheckpoint { old, proof, checkpoint: Checkpoint::read(note)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The request that C2SP tlog-witness shows.
    const EXAMPLE: &str = "old 20852014\n\
        PlRNCrwHpqhGrupue0L7gxbjbMiKA9temvuZZDDpkaw=\n\
        jrJZDmY8Y7SyJE0MWLpLozkIVMSMZcD5kvuKxPC3swk=\n\
        5+pKlUdi2LeF/BcMHBn+Ku6yhPGNCswZZD1X/6QgPd8=\n\
        /6WVhPs2CwSsb5rYBH5cjHV/wSmA79abXAwhXw3Kj/0=\n\
        \n\
        example.com/behind-the-sofa\n\
        20852163\n\
        CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\
        \n\
        \u{2014} example.com/behind-the-sofa Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n\
        \u{2014} example.com/behind-the-sofa opLqBQsREYCgu6xQkYQwJr9fo45a62DN9EdmHXnZdXNqlcVGlCum2Wks+49/V6267UEjw6QUXTS5Rovnzv++qbSzm9Q=\n";

    #[test]
    fn the_example_of_the_specification_is_read_and_written() {
        let request = AddCheckpoint::read(EXAMPLE).unwrap();
        assert_eq!((request.old, request.proof.len()), (20_852_014, 4));
        assert_eq!(
            (request.checkpoint.size, &request.checkpoint.origin[..]),
            (20_852_163, "example.com/behind-the-sofa")
        );
        assert_eq!(request.to_text(), EXAMPLE);
    }

    #[test]
    fn what_is_cut_or_changed_is_refused_or_is_another_request() {
        for cut in 0..EXAMPLE.len() {
            if let Some(body) = EXAMPLE.get(..cut)
                && let Ok(request) = AddCheckpoint::read(body)
            {
                // The end of the first signature line is the only other end of a request.
                assert_eq!(request.to_text(), body);
                assert!(body.ends_with("OAYQ8=\n"), "cut at {cut}");
            }
        }
        let many = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n".repeat(PROOF_MAX + 1);
        let (_, rest) = EXAMPLE.split_once("\n\n").unwrap();
        let body = format!("old 1\n{many}\n{rest}");
        assert!(matches!(AddCheckpoint::read(&body), Err(Malformed::TooLarge { .. })));
        for old in ["old 01", "old -1", "old", "Old 1", "old 1 "] {
            assert!(AddCheckpoint::read(&format!("{old}\n\n{rest}")).is_err(), "{old}");
        }
    }
}
