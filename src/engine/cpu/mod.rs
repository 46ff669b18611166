//! The CPU engine: portable Rust on all cores.
