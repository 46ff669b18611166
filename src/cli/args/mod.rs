//! Arguments of commands, and what they name: groups of options, and the files that are opened or written for them.
//! Nothing here imports a command, and of views only the printer ([`report`](crate::cli::view::report)).

pub mod around;
pub mod cache;
pub mod corrections;
pub mod decided;
pub mod device_check;
#[cfg(feature = "gpu")]
pub mod device_memory;
pub mod engine;
pub mod expect;
pub mod hosts;
pub mod job;
pub mod key;
pub mod launchers;
pub mod limits;
pub mod listen;
pub mod metrics;
#[cfg(feature = "mpi")]
pub mod mpi_ranks;
pub mod outputs;
pub mod part;
pub mod place;
pub mod predicted;
pub mod random;
pub mod ranks;
pub mod salted;
pub mod salts;
pub mod sampled;
pub mod shard;
pub mod state;
pub mod subject;
pub mod terms;
pub mod verdict_file;
pub mod weight_files;
