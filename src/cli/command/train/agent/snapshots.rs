//! Snapshots of a training's state, as the training loop sees them.

use tiebreak_engine::session::Session;
use tiebreak_run::step::StepError;

/// The agent's side of a training: it wants a snapshot now and then.
pub trait Snapshots {
    /// Takes the snapshots that are due: gives the agent the digest of the state, and waits until the log has it. Returns a warning,
    /// if there is one.
    fn take(&mut self, step: u32, session: &mut Session) -> Result<Option<String>, StepError>;
}
