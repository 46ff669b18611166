//! The engine that needs no GPU.

pub mod product;
