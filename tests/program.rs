//! The program on the reference engine: gradients against finite differences, and a step's determinism.
