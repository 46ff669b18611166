//! The register of chips: who owns which chip, where it stands, and which key signs its log. Entries are only ever added.

pub mod entry;
pub mod file;
pub mod history;
