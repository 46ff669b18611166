//! Corrections of a run, and the note of a draw that says which were known: the options of an audit, and the lines for people.

use std::path::PathBuf;

use crate::cli::args::part::{self, PartArgs};
use crate::cli::view::report::{Exit, Failure};
use tiebreak_audit::checks::Checked;
use tiebreak_audit::corrections::{Corrections, Listed};
use tiebreak_audit::drawn::{DRAWN_MAX, Drawn};
use tiebreak_audit::plan::Choice;
use tiebreak_run::run::RunError;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::{self, Disk};

#[derive(clap::Args, Default)]
pub struct CorrectionArgs {
    /// Correction of this run, beside those in its folder.
    ///
    /// Records that a correction takes back are not judged, and the audit ends as corrected. Give the option once for each file.
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    correction: Vec<PathBuf>,
    /// File for a note of what this audit draws, which `--draw` reads.
    ///
    /// The note has the part of the run, its head and the corrections that are known. Write it before you tell the trainer what you drew.
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    draw_out: Option<PathBuf>,
    /// Note of a draw, whose part is replayed.
    ///
    /// A correction that is not in the note came after the draw: it counts for nothing.
    #[arg(long, value_name = "FILE", hide_short_help = true, conflicts_with_all = ["steps", "sample", "draw_out"])]
    draw: Option<PathBuf>,
}

impl CorrectionArgs {
    /// The note of a draw if one is named, and the corrections that count.
    pub fn read(&self, run: &Run) -> Result<(Option<Drawn>, Corrections), Failure> {
        let drawn = self.draw.as_ref().map(|path| {
            let text = disk::read_text(path, DRAWN_MAX)?;
            Drawn::from_text(&text).map_err(|why| RunError::malformed(path, why))
        });
        let drawn = drawn.transpose()?;
        let corrections = Corrections::read(run, &self.correction)?;
        let corrections = match &drawn {
            Some(drawn) => corrections.known(&drawn.corrections)?,
            None => corrections,
        };
        Ok((drawn, corrections))
    }

    /// The part of the run that is replayed, and its last step. A new draw is noted where that is asked for.
    pub fn part(
        &self,
        drawn: Option<&Drawn>,
        run: &Run,
        checked: &Checked,
        part: &PartArgs,
    ) -> Result<(Choice, u32), Failure> {
        let last = (checked.transcript.records.len() as u32 - 1).min(run.job().steps);
        if let (Some(drawn), Some(path)) = (drawn, &self.draw) {
            let covered = drawn.hold(run, checked).map_err(|why| RunError::malformed(path, why))?;
            return Ok((drawn.choice.clone(), last.min(covered)));
        }
        let choice = part.choice()?;
        match (checked.corrections.first(), part.steps) {
            (Some(correction), Some((first, end))) if end >= correction.step => {
                let step = correction.step;
                let why =
                    format!("--steps {first}..{end}: the trainer took back the records from step {step} on");
                return Err(
                    Failure::new(Exit::Usage, why).help("give steps before it, or audit the corrected run")
                );
            }
            _ => part::check_steps(part.steps, last)?,
        }
        if let Some(path) = &self.draw_out {
            let absolute = std::path::absolute(path).map_err(RunError::io(path))?;
            Disk::default().replace(&absolute, Drawn::now(run, checked, &choice).to_text().as_bytes())?;
        }
        Ok((choice, last))
    }
}

/// The corrections of a run in words, after their number.
pub fn lines(listed: &[Listed]) -> Vec<String> {
    let mut lines = Vec::new();
    if !listed.is_empty() {
        lines.push(format!("  corrections: {}", listed.len()));
        lines.extend(listed.iter().map(|one| format!("  {}", one.line())));
    }
    lines
}
