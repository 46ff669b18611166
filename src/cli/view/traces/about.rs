//! What is told of a span.

/// A fact about a span.
#[cfg_attr(not(feature = "otel"), expect(dead_code, reason = "nothing is sent"))]
pub enum About<'a> {
    /// A number of things.
    Count(u64),
    /// A real number.
    Real(f64),
    /// A name.
    Text(&'a str),
}

/// Names of facts, and the facts.
pub type Told<'a> = [(&'static str, About<'a>)];
