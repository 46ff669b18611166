//! Statements: what an inspection established, as an in-toto Statement in a DSSE envelope, which tools of others verify.

pub mod bound;
pub mod dsse;
pub mod in_toto;
