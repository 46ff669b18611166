//! The layout of tensors in GPU memory. Everything but quantised tensors has the canonical layout. Quantised tensors
//! are digit planes, or words of whole q's, as the adapter's product variant reads them.

use tiebreak_contract::arith::words::words_from_bytes;
use tiebreak_contract::arith::{DType, digits};
use tiebreak_contract::program::graph::TensorType;
use tiebreak_shaders::product::Variant;

/// Groups of four elements in a row of a quantised tensor: K padded with zeros to whole steps of the products. A group
/// is a word of a digit plane, or four words.
pub(crate) fn words_of_k(k: u32) -> u32 {
    k.div_ceil(16) * 4
}

/// Bytes of a tensor in GPU memory.
pub(crate) fn bytes(ty: &TensorType, variant: Variant) -> u64 {
    match ty.dtype {
        DType::Q(d) => {
            let rows = u64::from(ty.shape[0]) * u64::from(ty.shape[1]);
            let planes = if variant == Variant::Words { 4 } else { u64::from(d) };
            planes * rows * u64::from(words_of_k(ty.shape[2])) * 4
        }
        DType::U8 | DType::Bf16 => ty.bytes() as u64,
        DType::F32 | DType::U32 => ty.len() as u64 * 4,
    }
}

/// The reason why a tensor is too large, if it has more words than shaders count; `what` names it for people.
pub(crate) fn uncountable(what: &str, ty: &TensorType, variant: Variant) -> Option<String> {
    let bytes = bytes(ty, variant);
    (bytes.div_ceil(4) > u64::from(u32::MAX)).then(|| {
        let shape = &ty.shape;
        format!(
            "{what} {shape:?} takes {bytes} bytes, more words than shaders count; use smaller micro-batches"
        )
    })
}

/// The number of rows and the padded length of rows of a quantised tensor.
fn extent(ty: &TensorType) -> (usize, usize) {
    (ty.shape[0] as usize * ty.shape[1] as usize, words_of_k(ty.shape[2]) as usize * 4)
}

/// The canonical bytes of a tensor of `d` digits: little-endian two's complement, row-major.
pub(crate) fn to_canonical(ty: &TensorType, d: u8, variant: Variant, stored: &[u8]) -> Vec<u8> {
    let ((rows, width), k) = (extent(ty), ty.shape[2] as usize);
    let mut bytes = Vec::with_capacity(ty.bytes());
    for at in (0..rows).flat_map(|row| (0..k).map(move |j| row * width + j)) {
        if variant == Variant::Words {
            bytes.extend(&stored[4 * at..][..d as usize]);
        } else {
            let digit = |p: usize| i64::from(stored[p * rows * width + at] as i8);
            let q: i64 = (0..d as usize).map(|p| digit(p) << (8 * p)).sum();
            bytes.extend(&q.to_le_bytes()[..d as usize]);
        }
    }
    bytes
}

/// The inverse of [`to_canonical`].
pub(crate) fn from_canonical(ty: &TensorType, d: u8, variant: Variant, bytes: &[u8]) -> Vec<u8> {
    let ((rows, width), k) = (extent(ty), ty.shape[2] as usize);
    let mut stored = vec![0; if variant == Variant::Words { 4 } else { d as usize } * rows * width];
    for (i, word) in words_from_bytes(ty.dtype, bytes).into_iter().enumerate() {
        let at = i / k * width + i % k;
        if variant == Variant::Words {
            stored[4 * at..][..4].copy_from_slice(&word.to_le_bytes());
        } else {
            let split = digits::balanced_digits(word as i32, u32::from(d));
            for (p, digit) in split.iter().take(d as usize).enumerate() {
                stored[p * rows * width + at] = *digit as u8;
            }
        }
    }
    stored
}
