//! The elementary functions: against mpmath's vectors, and a stratified sample against the oracle.
//! All 2^32 inputs: `tiebreak selftest --exhaustive`.

#![cfg(feature = "engine")]

use serde::Deserialize;
use tiebreak::arith::elementary;
use tiebreak::arith::elementary::oracle::{Function, check_range, judge};

#[derive(Deserialize)]
struct Vectors {
    exp: Vec<[u32; 2]>,
    log: Vec<[u32; 2]>,
    tanh: Vec<[u32; 2]>,
    erf: Vec<[u32; 2]>,
}

type Compute = fn(u32) -> u32;

const FUNCTIONS: [(Function, Compute); 4] = [
    (Function::Exp, elementary::exp),
    (Function::Log, elementary::log),
    (Function::Tanh, elementary::tanh),
    (Function::Erf, elementary::erf),
];

#[test]
fn vectors_of_mpmath() {
    let text = include_str!("../assets/vectors/elementary.json");
    let v: Vectors = serde_json::from_str(text).expect("the vectors are JSON");
    for ((function, compute), rows) in FUNCTIONS.into_iter().zip([v.exp, v.log, v.tanh, v.erf]) {
        for [x, y] in rows {
            assert_eq!(compute(x), y, "{function:?}({x:08x}) is {:08x}, not {y:08x}", compute(x));
            assert_eq!(judge(function, x).0, y, "the oracle's {function:?}({x:08x})");
        }
    }
}

/// Of each function 4096 inputs in each of the 512 binades (both signs): two million.
#[test]
fn a_stratified_sample() {
    for (function, compute) in FUNCTIONS {
        for binade in 0..512u64 {
            let first = (binade << 23) + ((binade * 0x9e37_79b9) & 0x7f_e000);
            let tally = check_range(function, compute, first..first + 4096);
            assert_eq!(tally.first_wrong, None, "{function:?}: {} wrong in binade {binade}", tally.wrong);
        }
    }
}
