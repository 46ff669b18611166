//! Errors on this side.

/// An error on this side: never the fault of the run that is trained or audited.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The device lacks what the program needs.
    #[error("{device} cannot run this program: {reason}")]
    Unsupported {
        /// The device's name.
        device: String,
        /// The missing feature, in words.
        reason: String,
    },
    /// No GPU here has the name that was asked for, or there is none at all.
    #[error("{api} finds no adapter {wanted}; adapters here: {here}")]
    NoAdapter {
        /// The way to reach GPUs: `wgpu` or `cuda`.
        api: &'static str,
        /// The name in quotes, or that any would do.
        wanted: String,
        /// The names of those that are here.
        here: String,
    },
    /// A tensor could not be allocated.
    #[error("{device} ran out of memory: {reason}")]
    OutOfMemory {
        /// The device's name.
        device: String,
        /// The size or the device's message.
        reason: String,
    },
    /// The device stopped working.
    #[error("{device} was lost: {reason}; the run can be resumed from its last checkpoint")]
    DeviceLost {
        /// The device's name.
        device: String,
        /// The device's message.
        reason: String,
    },
    /// The place outside of memory has no room, fails, or gives back other bytes ([`super::outside`]).
    #[error("the folder of --offload failed: {0}")]
    Outside(std::io::Error),
    /// The device computed a known result wrongly.
    #[error("{device} failed its self-test ({check}) and is not used; try another adapter or --engine cpu")]
    SelfTest {
        /// The device's name.
        device: String,
        /// The check that failed.
        check: String,
        /// The fingerprint that it computed, if the test got as far.
        fingerprint: Option<String>,
    },
    /// The device computed a result wrongly, which a check of its results found ([`crate::device_check`]).
    #[error(
        "{device} is wrong: {operator}, {part}, element {element} (tile {tile}) is {found:08x}, and {expected:08x} is right"
    )]
    WrongResult {
        /// The device's name.
        device: String,
        /// The operator of the node.
        operator: String,
        /// The part of the node's result.
        part: WrongPart,
        /// The element of the tensor.
        element: usize,
        /// The tile of 4096 bytes that holds the element.
        tile: usize,
        /// The word that the device gave.
        found: u32,
        /// The right word.
        expected: u32,
    },
    /// A kernel that this crate does not have failed in a native product ([`super::cpu::kernel`]).
    #[error("the native kernel {kernel} failed in {operator}: {reason}")]
    Kernel {
        /// The kernel's name.
        kernel: String,
        /// The operator of the product.
        operator: String,
        /// The kernel's reason, or what is missing.
        reason: String,
    },
    /// A fault of this crate's code.
    #[error("a fault of tiebreak itself on {device}: {reason}; please report it")]
    Fault {
        /// The device's name.
        device: String,
        /// The fault, in words.
        reason: String,
    },
    /// A time limit was reached ([`super::session::Session::stop_at`]).
    #[error("the time limit (--max-time) was reached")]
    OutOfTime,
    /// An observer stopped the run.
    #[error("{0}")]
    Stopped(String),
}

/// The part of a node's result that a device computed wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrongPart {
    /// A product, which Freivalds' test refused.
    Product,
    /// An exact sum that the device handed out beside a right product.
    Sum,
    /// An element of another tensor, by the scalar reference.
    Element,
    /// The BLAKE3 root of a tensor.
    Root,
}

impl WrongPart {
    /// The name for programs, which no version changes.
    #[doc(hidden)] // for the layers above
    pub fn kind(self) -> &'static str {
        match self {
            WrongPart::Product => "product",
            WrongPart::Sum => "sum",
            WrongPart::Element => "element",
            WrongPart::Root => "root",
        }
    }
}

impl std::fmt::Display for WrongPart {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            WrongPart::Product => "a product",
            WrongPart::Sum => "an exact sum of a product",
            WrongPart::Element => "its output",
            WrongPart::Root => "its first word",
        })
    }
}
