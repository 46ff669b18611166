//! How a program is executed. Every engine gives the bits that [`crate::arith`] defines.

pub mod cpu;
