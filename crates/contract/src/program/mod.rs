//! The training step: operators, their gradients, models and optimizers, as graphs of primitives.

pub mod builder;
pub mod catalogue;
pub mod decoding;
pub mod element;
pub mod encoding;
pub mod evaluation;
pub mod expr;
pub mod graph;
pub mod im2col;
pub mod inference;
pub mod init;
mod inputs;
pub mod keys;
pub mod known_bodies;
pub mod logged;
pub mod logged_element;
pub mod models;
pub mod network;
pub mod operators;
pub mod optimizer;
pub mod phase;
pub mod products;
pub mod sampling;
pub(crate) mod scale_groups;
pub mod schedule;
pub mod step;
mod validate;
