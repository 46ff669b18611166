//! The inputs of operators as data: names, shapes by letters, and types, with the check of shapes that are given.

use crate::arith::DType;

/// An input of an operator.
#[derive(Clone, Copy, Debug)]
pub struct Input {
    /// The name on the command line.
    pub name: &'static str,
    /// Letters stand for dimensions, and equal letters for equal dimensions; `*` is any shape, the same for all
    /// inputs that have it. `..` in front is any number of dimensions.
    pub shape: &'static str,
    /// The elements' type.
    pub dtype: DType,
}

pub(super) const fn input(name: &'static str, shape: &'static str) -> Input {
    Input { name, shape, dtype: DType::F32 }
}

pub(super) const fn integers(name: &'static str, shape: &'static str) -> Input {
    Input { name, shape, dtype: DType::U32 }
}

/// The error in inputs of these shapes, if there is one. Dimensions are at least 1.
pub(crate) fn shape_error(inputs: &[Input], shapes: &[Vec<u32>]) -> Option<String> {
    let mut known: Vec<(&str, &[u32])> = Vec::new();
    for (input, shape) in inputs.iter().zip(shapes) {
        let wants = |why: &str| Some(format!("{} has shape {shape:?}, but {why}", input.name));
        let elements = shape.iter().fold(1u64, |n, &d| n.saturating_mul(d.into()));
        if elements == 0 || elements >= 1 << 31 || !(1..=4).contains(&shape.len()) {
            return wants("arrays have 1 to 4 dimensions and 1 to 2^31 - 1 elements");
        }
        let words: Vec<&str> = input.shape.split(' ').collect();
        let parts: Vec<(&str, &[u32])> = match words[..] {
            ["*"] => vec![("*", &shape[..])],
            ["..", last] => vec![(last, &shape[shape.len() - 1..])],
            _ if words.len() == shape.len() => words.iter().copied().zip(shape.chunks(1)).collect(),
            _ => return wants(&format!("[{}] is wanted", words.join(", "))),
        };
        for (word, dims) in parts {
            let first = known.iter().find(|(w, _)| *w == word).map(|(_, d)| *d);
            let fixed: Option<u32> = word.parse().ok();
            if first.is_some_and(|d| d != dims) || fixed.is_some_and(|d| dims != [d]) {
                return wants(&format!("[{}] is wanted, as the inputs before it are", words.join(", ")));
            }
            known.push((word, dims));
        }
    }
    None
}
