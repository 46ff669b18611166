//! The elementary functions: against mpmath's vectors, and against CORE-MATH (https://core-math.gitlabpages.inria.fr), for a
//! sample of inputs, or for all of them (docs/ELEMENTARY.md). CORE-MATH's binary32 functions are proved to round correctly and
//! share no code with ours.

use serde::Deserialize;
use tiebreak_contract::arith::elementary;

#[derive(Deserialize)]
struct Vectors {
    exp: Vec<[u32; 2]>,
    log: Vec<[u32; 2]>,
    tanh: Vec<[u32; 2]>,
    erf: Vec<[u32; 2]>,
}

fn vectors() -> Vectors {
    let text = include_str!("../../assets/vectors/elementary.json");
    serde_json::from_str(text).expect("the vectors are JSON")
}

/// The function of one word.
type One = fn(u32) -> u32;

#[test]
fn vectors_of_mpmath() {
    let v = vectors();
    for (name, compute, rows) in [
        ("exp", elementary::exp as One, v.exp),
        ("log", elementary::log, v.log),
        ("tanh", elementary::tanh, v.tanh),
        ("erf", elementary::erf, v.erf),
    ] {
        for [x, y] in rows {
            assert_eq!(compute(x), y, "{name}({x:08x}) is {:08x}, not {y:08x}", compute(x));
        }
    }
}

/// CORE-MATH is C that Microsoft's compiler does not accept.
#[cfg(unix)]
#[path = "../common/every_input.rs"]
mod every_input;

#[cfg(unix)]
mod judged {
    use tiebreak_contract::arith::elementary;
    use tiebreak_contract::arith::float::canonical;

    use super::{One, every_input, vectors};

    /// The function of many words, as the CPU engine calls it.
    type Each = fn(&[u32], &mut [u32]);
    /// CORE-MATH's function.
    type Judge = fn(f32) -> f32;

    const FUNCTIONS: [(&str, One, Judge); 4] = [
        ("exp", elementary::exp, core_math::expf),
        ("log", elementary::log, core_math::logf),
        ("tanh", elementary::tanh, core_math::tanhf),
        ("erf", elementary::erf, core_math::erff),
    ];

    #[test]
    fn core_math_has_the_vectors_of_mpmath() {
        let v = vectors();
        for ((name, _, judge), rows) in FUNCTIONS.into_iter().zip([v.exp, v.log, v.tanh, v.erf]) {
            for [x, y] in rows {
                assert_eq!(canonical(judge(f32::from_bits(x))), y, "{name}({x:08x})");
            }
        }
    }

    /// The contract's functions equal CORE-MATH's except for NaNs, since the contract has one NaN.
    #[test]
    fn every_input_against_core_math() {
        for (name, compute, judge) in FUNCTIONS {
            let have = || |x: &[u32]| x.iter().map(|x| compute(*x)).collect();
            every_input::compare(name, have, |x| canonical(judge(f32::from_bits(x))));
        }
        for (name, each, judge) in [
            ("exp of many", elementary::exp_each as Each, core_math::expf as Judge),
            ("tanh of many", elementary::tanh_each, core_math::tanhf),
            ("erf of many", elementary::erf_each, core_math::erff),
        ] {
            let have = || {
                |x: &[u32]| {
                    let mut out = vec![0; x.len()];
                    each(x, &mut out);
                    out
                }
            };
            every_input::compare(name, have, |x| canonical(judge(f32::from_bits(x))));
        }
    }
}
