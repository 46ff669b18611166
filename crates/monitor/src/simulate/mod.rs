//! Simulated fleets, on which the planner's probabilities are measured with the code that draws and inspects real ones.

pub mod fleet;
pub mod measure;
