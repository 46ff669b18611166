//! The output that people see: all text, pages and pictures, and the lines that several commands share. Nothing here imports an argument or a command.

pub mod alphabet;
pub mod answering;
pub mod chart;
pub mod chats;
pub mod color;
pub mod data;
pub mod disputed;
pub mod escape;
pub mod exposition;
pub mod heard;
pub mod help;
pub mod next;
pub mod outcome;
pub mod overview;
pub mod page;
pub mod parties;
pub mod progress;
pub mod report;
#[cfg(feature = "tokenizer")]
mod tokens;
pub mod traces;
pub mod version;
