//! TEMPORARY until the elementary branch lands.
fn via(f: fn(f64) -> f64, x: u32) -> u32 {
    super::float::canonical(f(f64::from(f32::from_bits(x))) as f32)
}
pub fn exp(x: u32) -> u32 {
    via(f64::exp, x)
}
pub fn log(x: u32) -> u32 {
    via(f64::ln, x)
}
pub fn tanh(x: u32) -> u32 {
    via(f64::tanh, x)
}
pub fn erf(x: u32) -> u32 {
    via(f64::tanh, x)
}
