//! The dispute game between machines: a party that answers over HTTP or in a folder, and a referee that asks, keeps a journal and goes on after
//! a crash.
//!
//! Messages are signed, so a connection is trusted with nothing: who stands between may delay a message, and read it. HTTP here is without TLS;
//! who wants to hide what is asked puts a reverse proxy in front of a party.

pub mod clock;
pub mod desk;
pub mod folder;
mod gate;
pub mod journal;
mod kept;
mod lines;
pub mod link;
pub mod pass;
pub mod referee;
pub mod server;
pub mod stop;
