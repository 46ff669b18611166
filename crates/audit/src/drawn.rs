//! An auditor's note of a draw: which part of a run was drawn, under which head, and the corrections that were known then.
//!
//! The auditor keeps the note. A correction that is not in it came after the draw, and counts for nothing.

use serde::{Deserialize, Serialize};

use super::checks::Checked;
use super::plan::Choice;
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::merkle;
use tiebreak_run::run::dir::Run;

/// The most bytes of a note.
pub const DRAWN_MAX: u64 = 1 << 16;
/// The version of notes.
const FORMAT: &str = "tiebreak audit draw 1";

/// A draw of an audit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drawn {
    /// The version of the note.
    format: String,
    /// The run id.
    run: Digest,
    /// The number of records that the run's head covered.
    head_size: u64,
    /// The root over these records.
    head_root: Digest,
    /// The part that was drawn.
    pub choice: Choice,
    /// The digests of the corrections that were known.
    pub corrections: Vec<Digest>,
}

impl Drawn {
    /// The note of a draw that is made now.
    pub fn now(run: &Run, checked: &Checked, choice: &Choice) -> Drawn {
        Drawn {
            format: FORMAT.into(),
            run: run.id,
            head_size: checked.head.size,
            head_root: checked.head.root,
            choice: choice.clone(),
            corrections: checked.corrections.digests(),
        }
    }

    /// The note's file.
    pub fn to_text(&self) -> String {
        let text = serde_json::to_string_pretty(self).expect("a draw has no maps with keys that are no text");
        format!("{text}\n")
    }

    /// Reads a note.
    ///
    /// # Errors
    /// If the text is no note of this version, or its part of the run makes no sense.
    pub fn from_text(text: &str) -> Result<Drawn, Malformed> {
        let wrong = |why: String| Malformed::invalid("draw", why);
        let drawn: Drawn = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        if drawn.format != FORMAT {
            return Err(wrong(format!(
                "its format is {:?}, and this program reads {FORMAT:?}",
                drawn.format
            )));
        }
        drawn.choice.check().map_err(wrong)?;
        match drawn.head_size {
            0 => Err(wrong("it is of a head over 0 records".into())),
            _ => Ok(drawn),
        }
    }

    /// Holds a run to the head under which the audit was drawn. Returns the last step that this head covers.
    ///
    /// # Errors
    /// If the note is of another run, or the run's records are fewer or others than they were.
    pub fn hold(&self, run: &Run, checked: &Checked) -> Result<u32, Malformed> {
        let wrong = |why: String| Err(Malformed::invalid("draw", why));
        if self.run != run.id {
            return wrong(format!("it is of run {}, and this is run {}", self.run, run.id));
        }
        let (size, leaves) = (self.head_size, &checked.transcript.leaves);
        let Some(covered) = usize::try_from(size).ok().and_then(|size| leaves.get(..size)) else {
            return wrong(format!(
                "it is of a head over {size} records, and the run's head here covers {}",
                leaves.len()
            ));
        };
        let root = merkle::root(covered);
        if root != self.head_root {
            let roots = root.not(&self.head_root);
            return wrong(format!("it is of a head over {size} other records: the root of these is {roots}"));
        }
        Ok(u32::try_from(size - 1).unwrap_or(u32::MAX))
    }
}
