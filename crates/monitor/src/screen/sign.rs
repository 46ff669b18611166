//! The signs that a segment differs from an honest one, each with its weight.

use std::fmt;

use serde::Serialize;

/// The greatest weight: that of a sign that no spread explains, and the limit of all others.
pub const CERTAIN: f64 = 1000.0;

/// A sign. None is evidence: a replay of the segment decides.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Sign {
    /// Records commit other batches than seed and data draw.
    OtherBatch {
        /// Steps of such records, among those that were looked at.
        steps: Vec<u32>,
    },
    /// The parameters did not change.
    Unmoved,
    /// The segment's points are remembered less than those of segments nearby.
    WeakMemory {
        /// The share of comparisons with held-out points that the segment's points win.
        remembered: f64,
        /// The share that segments nearby lead one to expect.
        expected: f64,
    },
    /// The recorded loss of the first step is not that of the checkpoint before it.
    OtherLoss {
        /// The recorded loss.
        recorded: f64,
        /// The loss of the checkpoint on the step's batch.
        computed: f64,
    },
    /// The recorded loss jumps at a border of the segment.
    LossJump {
        /// The step before the jump.
        after: u32,
        /// The jump.
        by: f64,
    },
    /// The parameters moved less for the learning rate than in segments nearby.
    SmallStep {
        /// The change over the expected one.
        ratio: f64,
    },
    /// The parameters moved more for the learning rate than in segments nearby.
    LargeStep {
        /// The change over the expected one.
        ratio: f64,
    },
    /// The change points where that of the segment before pointed.
    Collinear {
        /// The cosine of the angle between the two.
        cosine: f64,
    },
}

/// A sign with its weight.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Weighed {
    /// The sign.
    #[serde(flatten)]
    pub sign: Sign,
    /// Standard deviations from what is expected, at most [`CERTAIN`].
    pub sigmas: f64,
}

impl Weighed {
    /// A sign of this weight.
    pub fn new(sign: Sign, sigmas: f64) -> Weighed {
        Weighed { sign, sigmas: sigmas.min(CERTAIN) }
    }
}

impl fmt::Display for Sign {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Sign::OtherBatch { steps } => {
                let steps: Vec<String> = steps.iter().take(8).map(u32::to_string).collect();
                write!(f, "records commit other batches than seed and data draw (steps {})", steps.join(", "))
            }
            Sign::Unmoved => write!(f, "the parameters did not change"),
            Sign::WeakMemory { remembered, expected } => {
                write!(
                    f,
                    "weak memory: {remembered:.3} of the comparisons are won, {expected:.3} are expected"
                )
            }
            Sign::OtherLoss { recorded, computed } => write!(
                f,
                "the first step's recorded loss is {recorded:.6}, the checkpoint before it has {computed:.6}"
            ),
            Sign::LossJump { after, by } => {
                write!(f, "the recorded loss jumps by {by:+.4} after step {after}")
            }
            Sign::SmallStep { ratio } => write!(f, "small steps: {ratio:.3} of the expected change"),
            Sign::LargeStep { ratio } => write!(f, "large steps: {ratio:.3} times the expected change"),
            Sign::Collinear { cosine } => {
                write!(f, "the change points where the one before pointed (cosine {cosine:.6})")
            }
        }
    }
}
