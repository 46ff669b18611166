//! The product's shaders for every pair of digit counts, and the bounds of their sums.

use std::collections::HashMap;
use std::fmt::Write;

use naga::Module;

// The templates are completed as the engine does it; the engine needs more of this file than is used here.
#[allow(dead_code)]
#[path = "../../crates/shaders/src/product.rs"]
mod complete;

use crate::bounds::Run;
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
        let run = |flushes: u32| -> Result<Vec<i128>, Refusal> {
            let words = flushes * flush;
            // One product of 64 rows and columns, in one block of so many words.
            let uniform = vec![1, 64, 64, words, 1, words, 0, 0];
            // |q| <= 2^(8 d - 2): the theorem `quantise`.
            let operands = match variant {
                Variant::Words => {
                    HashMap::from([("a", 1 << (8 * digits_a - 2)), ("b", 1 << (8 * digits_b - 2))])
                }
                Variant::Dot | Variant::Float => {
                    HashMap::from([("a", digits_a.into()), ("b", digits_b.into())])
                }
            };
            Run::of(&module, info.get_entry_point(0), uniform, operands)
        };
        let flushes = [run(1).map_err(inside)?, run(2).map_err(inside)?, run(3).map_err(inside)?];
        let most = i128::from(Choice::PLACES_MAX.div_ceil(4 * flush));
        let greatest = greatest(&flushes, most).map_err(inside)?;
        let spare = f64::from(i32::MAX) / greatest as f64;
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "{name}: a sum reaches {greatest} at most, with {flush} words to a flush; 2^31 is {spare:.2} times that",
        );
    }
    if out.is_empty() {
        return Err(Refusal(format!("{file} is no template of the product")));
    }
    Ok(out)
}

/// The greatest magnitude of all sums in this many flushes, derived from the results for one, two and three of them.
fn greatest(flushes: &[Vec<i128>; 3], most: i128) -> Result<i128, Refusal> {
    let [one, two, three] = flushes;
    let mut greatest = 0;
    for ((one, two), three) in one.iter().zip(two).zip(three) {
        // A sum is as great in the third flush as in the second, or it receives carries of others, which are as great each time.
        let grows = three - two;
        if grows > (two - one).max(0) {
            return Err(Refusal("a sum grows more from flush to flush".into()));
        }
        greatest = greatest.max(two + grows * (most - 2).max(0));
    }
    if greatest > i128::from(i32::MAX) {
        return Err(Refusal(format!("a sum goes on growing and reaches {greatest}, an overflow")));
    }
    Ok(greatest)
}

/// A template completed for a choice: a variant's name, both digit counts, and the bits of sums, 64 or 128.
///
/// # Errors
/// If there is no such choice.
pub fn completed(template: &str, choice: &[String]) -> Result<String, Refusal> {
    let named = |choice: &Choice| {
        let bits = if choice.wide { "128" } else { "64" };
        [choice.variant.name(), &choice.digits_a.to_string(), &choice.digits_b.to_string(), bits]
            .map(String::from)
    };
    let found = Choice::all().find(|one| named(one) == choice);
    found
        .map(|one| one.complete(template))
        .ok_or_else(|| Refusal(format!("there is no choice {}", choice.join(" "))))
}

fn constant(module: &Module, name: &str) -> Result<u32, Refusal> {
    let mut found = module.constants.iter().filter(|(_, c)| c.name.as_deref() == Some(name));
    let (handle, _) = found.next().ok_or_else(|| Refusal(format!("there is no constant {name}")))?;
    let value = Run::constant(module, handle)?[0].only();
    let value = value.and_then(|value| u32::try_from(value).ok());
    value.ok_or_else(|| Refusal(format!("the constant {name} is no word")))
}
