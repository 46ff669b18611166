//! The subcommands, a file or a folder each. None imports another: what two share is in [`args`](crate::cli::args) or
//! [`view`](crate::cli::view). Only the demo runs the work of another, which is what it shows: it trains under `train`'s progress bar.

pub mod adapters;
pub mod audit;
pub mod compare;
pub mod completions;
pub mod correct;
pub mod demo;
pub mod eval;
pub mod export;
pub mod generate;
pub mod import;
pub mod inspect;
pub mod job;
pub mod key;
pub mod log;
pub mod logits;
pub mod man;
pub mod monitor;
pub mod op;
pub mod plot;
pub mod program;
pub mod publish;
pub mod receipt;
pub mod referee;
pub mod reference;
pub mod replay;
pub mod reveal;
pub mod selftest;
pub mod serve;
#[cfg(feature = "gpu")]
pub mod shaders;
pub mod sign;
pub mod train;
pub mod verdict;
pub mod verify;
pub mod witness;
