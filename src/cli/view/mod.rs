//! What people see: all output, pages and pictures, and what several commands say alike. Nothing here imports an argument or a command.

pub mod chart;
pub mod data;
pub mod escape;
pub mod help;
pub mod outcome;
pub mod page;
pub mod parties;
pub mod report;
