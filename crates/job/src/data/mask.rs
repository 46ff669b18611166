//! The pass over masks before a run begins: whether a target that counts has the label that the loss ignores, and whether one counts.

use super::batch::Dataset;
use super::part::Part;
use crate::manifest::DataError;

/// Tokens that are compared together.
const PIECE: u64 = 1 << 18;

/// The targets of masks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// The targets of all samples, each token once.
    pub all: u64,
    /// The targets that the loss counts.
    pub counted: u64,
}

/// Counts the targets of all masks; `None` if the data have no mask. The masks' bytes are 0 or 1, as a scan found.
///
/// # Errors
/// If a target that counts has the label that the loss ignores, no target counts, or a file cannot be read or does not match
/// its manifest.
pub fn targets(data: &mut Dataset) -> Result<Option<Targets>, DataError> {
    let parts = data.masked();
    let mut found = Targets::default();
    for (part, uncounted) in &parts {
        data.targets_of(part, *uncounted, &mut found)?;
    }
    let mask = parts.iter().find_map(|(part, _)| part.mask);
    match mask {
        Some(mask) if found.counted == 0 => {
            let why = "no target of the data counts: each byte of the masks that is of a target is 0. A mask has 1 for each token that the model learns to say";
            Err(DataError::invalid(data.file(mask.file).path(), why))
        }
        mask => Ok(mask.map(|_| found)),
    }
}

impl Dataset {
    fn targets_of(&mut self, part: &Part, uncounted: u32, found: &mut Targets) -> Result<(), DataError> {
        let ([tokens, _], Some(mask)) = (part.columns, part.mask) else { return Ok(()) };
        let (size, all) = (tokens.element.size(), part.tokens());
        let mut at = 0;
        while at < all {
            let many = PIECE.min(all - at);
            let ids =
                self.file_mut(tokens.file).read_passing(tokens.first + at * size, (many * size) as usize)?;
            // The mask's column begins at the first target, which is the second token.
            let counts = self.file_mut(mask.file).read_passing(mask.first - 1 + at, many as usize)?;
            let (mut place, mut counts, mut wrong) = (at, counts.into_iter(), None);
            tokens.element.integers(&ids, &mut |id| {
                let counts = counts.next() == Some(1);
                if part.is_target(place) {
                    found.all += 1;
                    found.counted += u64::from(counts);
                    if counts && id == i64::from(uncounted) {
                        wrong.get_or_insert(place);
                    }
                }
                place += 1;
            });
            if let Some(place) = wrong {
                let why = format!(
                    "token {place} (counted from 0) is {uncounted}, which loss.ignore names, and the mask counts it as a target: it would have no loss. Give loss.ignore an id that no target has"
                );
                return Err(DataError::invalid(self.file(tokens.file).path(), why));
            }
            at += many;
        }
        Ok(())
    }
}
