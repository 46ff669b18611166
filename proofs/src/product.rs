//! The product's shaders for every pair of digit counts, and the bounds of their sums.

use std::collections::HashMap;
use std::fmt::Write;

use naga::Module;

// The templates are completed as the engine does it; the engine asks for more than is used here.
#[allow(dead_code)]
#[path = "../../src/shaders/product.rs"]
mod complete;

use crate::bounds::{Found, Run};
use crate::parse::validated;
use crate::refusal::Refusal;
use complete::{Choice, Variant};

/// A line for every choice that this template serves: the flush length, and the greatest magnitude of a signed sum.
///
/// # Errors
/// If a sum may overflow or be rounded, or grows from one flush to the next.
pub fn bounds(file: &str, template: &str) -> Result<String, Refusal> {
    let mut out = String::new();
    let of_file = |choice: &Choice| format!("{}.wgsl", choice.variant.file()) == file && !choice.wide;
    for choice in Choice::all().filter(of_file) {
        let Choice { variant, digits_a, digits_b, .. } = choice;
        let name = format!("{variant:?} {digits_a} x {digits_b} digits");
        let inside = |Refusal(text)| Refusal(format!("{name}: {text}"));
        let (module, info) = validated(file, &choice.complete(template)).map_err(inside)?;
        let flush = constant(&module, "FLUSH_WORDS").map_err(inside)?;
        let run = |words: u32| -> Result<Found, Refusal> {
            // One product of 64 rows and columns, in one block of so many words.
            let uniform = vec![1, 64, 64, words, 1, words, 0, 0];
            // |q| <= 2^(8 d - 2): the theorem `quantise`.
            let operands = match variant {
                Variant::Words => {
                    HashMap::from([("a", 1 << (8 * digits_a - 2)), ("b", 1 << (8 * digits_b - 2))])
                }
                Variant::Dot | Variant::Float => HashMap::new(),
            };
            Run::of(&module, info.get_entry_point(0), uniform, operands)
        };
        let one = run(flush).map_err(inside)?;
        let two = run(2 * flush).map_err(inside)?;
        match variant {
            Variant::Words => {
                if one.greatest != two.greatest || two.ends.iter().any(|(_, end)| end.only() != Some(0)) {
                    let message = "a sum goes on growing after it was added to the total";
                    return Err(Refusal(format!("{name}: {message}")));
                }
            }
            Variant::Dot | Variant::Float => {
                let three = run(3 * flush).map_err(inside)?;
                carried(digits_a + digits_b - 1, flush, [&two, &three]).map_err(inside)?;
            }
        }
        let greatest = two.greatest;
        let spare = f64::from(i32::MAX) / greatest as f64;
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "{name}: a sum reaches {} at most in {flush} words; 2^31 is {spare:.2} times that",
            greatest
        );
    }
    if out.is_empty() {
        return Err(Refusal(format!("{file} is no template of the product")));
    }
    Ok(out)
}

/// Sums that are carried: after each flush all but the highest are bytes again, so that the third length is as every later one; and what
/// the highest takes in a length leaves room for the longest K.
fn carried(weights: u32, flush: u32, [two, three]: [&Found; 2]) -> Result<(), Refusal> {
    let of = |found: &Found, weight: u32| -> Vec<(i128, i128)> {
        let prefix = format!("s{weight}_");
        let ends = found.ends.iter().filter(|(name, _)| name.starts_with(&prefix));
        ends.map(|(_, end)| (end.low, end.high)).collect()
    };
    if two.greatest != three.greatest {
        return Err(Refusal("a sum goes on growing after it was carried".into()));
    }
    for found in [two, three] {
        let bytes = |weight| {
            let ends = of(found, weight);
            !ends.is_empty()
                && ends.iter().all(|(low, high)| (0..256).contains(low) && (0..256).contains(high))
        };
        if !(0..weights).all(bytes) {
            return Err(Refusal("a sum is no byte after it was carried".into()));
        }
    }
    let highest = |found| of(found, weights).iter().map(|(low, high)| low.abs().max(high.abs())).max();
    let (Some(before), Some(after)) = (highest(two), highest(three)) else {
        return Err(Refusal("nothing is carried from the highest weight".into()));
    };
    let lengths = i128::from(Choice::PLACES_MAX.div_ceil(4 * flush));
    if before + (after - before) * lengths > i128::from(i32::MAX) {
        return Err(Refusal("what is carried from the highest weight may overflow in the longest K".into()));
    }
    Ok(())
}

fn constant(module: &Module, name: &str) -> Result<u32, Refusal> {
    let mut found = module.constants.iter().filter(|(_, c)| c.name.as_deref() == Some(name));
    let (handle, _) = found.next().ok_or_else(|| Refusal(format!("there is no constant {name}")))?;
    let value = Run::constant(module, handle)?[0].only();
    let value = value.and_then(|value| u32::try_from(value).ok());
    value.ok_or_else(|| Refusal(format!("the constant {name} is no word")))
}
