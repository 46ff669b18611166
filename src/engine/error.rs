//! What goes wrong on this side.

/// What went wrong on this side: never the fault of the run that is trained or audited.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("{device} cannot run this program: {reason}")]
    Unsupported { device: String, reason: String },
    #[error("{device} ran out of memory: {reason}")]
    OutOfMemory { device: String, reason: String },
    #[error("{device} was lost: {reason}; the run can be resumed from its last checkpoint")]
    DeviceLost { device: String, reason: String },
    #[error("{device} failed its self-test ({check}) and is not used; try another adapter or --engine cpu")]
    SelfTest { device: String, check: String },
    #[error("a fault of tiebreak itself on {device}: {reason}; please report it")]
    Fault { device: String, reason: String },
    /// An observer stopped the run.
    #[error("{0}")]
    Stopped(String),
}
