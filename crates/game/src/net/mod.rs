//! The dispute game between machines: a party that answers over HTTP or in a folder, and a referee that asks, keeps a journal and
//! resumes after a crash.
//!
//! Messages are signed, so no connection is trusted: an attacker in between can only delay a message, or read it. HTTP here is
//! without TLS; to hide the questions, put a reverse proxy in front of a party.

pub mod clock;
pub mod connection;
pub mod desk;
pub mod folder;
pub mod gate;
pub mod journal;
mod kept;
mod lines;
pub mod link;
pub mod metrics;
pub mod pass;
pub mod referee;
pub mod server;
pub mod stop;
pub mod witness;
