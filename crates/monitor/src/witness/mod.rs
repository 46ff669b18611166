//! Witnesses: others who say when they first saw a log's head, and that the log only grew since. The protocol is C2SP's
//! tlog-witness, so that public witnesses serve our logs, and ours serve others'.

pub mod checkpoint;
pub mod policy;
pub mod request;
