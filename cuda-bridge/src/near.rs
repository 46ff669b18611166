//! The kernels that find which results of a native product may lie near a boundary of their grid, and that round them:
//! `kernels/near.cuh`, which describes their uniform words.

use crate::translate::{Kernel, Parameter};

const TEXT: &str = include_str!("../kernels/near.cuh");

/// Rows of a block of [`row_norms`].
pub const ROWS: u32 = 16;
/// Elements of a block of [`near_ties`].
pub const ELEMENTS: u32 = 256;

fn kernel(name: &str, defines: &str, words: u32, buffers: &[(&str, bool)], barriers: bool) -> Kernel {
    let arrays: Vec<_> = buffers.iter().map(|&(name, writable)| (name, 4, writable)).collect();
    Kernel {
        name: name.into(),
        source: format!("{defines}#define KERNEL {name}\n{TEXT}"),
        parameters: Parameter::by_hand(words, &arrays),
        block: [256, 1, 1],
        barriers,
        dynamic_shared: 0,
    }
}

/// The kernel for the 2-norms of a view's rows, [`ROWS`] of them a block.
pub fn row_norms() -> Kernel {
    kernel("row_norms", "#define ROW_NORMS\n", 11, &[("input", false), ("sides", true)], true)
}

/// The buffers of [`near_ties`] beside its uniform words, in order, with true if they are written.
const BUFFERS: [(&str, bool); 5] =
    [("output", false), ("absmaxes_a", false), ("absmaxes_b", false), ("sides", true), ("found", true)];

/// The kernel that finds results which may be near a tie, [`ELEMENTS`] results a block.
pub fn near_ties() -> Kernel {
    kernel("near_ties", "", 13, &BUFFERS, false)
}

/// The same search, which also writes every result, rounded to its grid, into one more buffer.
pub fn round_near_ties() -> Kernel {
    let buffers = [&BUFFERS[..], &[("rounded", true)]].concat();
    kernel("round_near_ties", "#define ROUND\n", 13, &buffers, false)
}
