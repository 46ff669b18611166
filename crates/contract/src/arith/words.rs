//! Elements as 32-bit words, and as canonical bytes: little-endian, of [`DType::size`] bytes each.

use super::DType;

/// The word of one element's canonical bytes; integers of quantised tensors are sign-extended.
///
/// # Panics
/// If there are more bytes than a word has.
pub fn word_from_bytes(dtype: DType, bytes: &[u8]) -> u32 {
    let mut word = [0; 4];
    word[..bytes.len()].copy_from_slice(bytes);
    let word = u32::from_le_bytes(word);
    match dtype {
        DType::Q(d) => (((word << (32 - 8 * u32::from(d))) as i32) >> (32 - 8 * u32::from(d))) as u32,
        _ => word,
    }
}

/// The words of canonical bytes.
pub fn words_from_bytes(dtype: DType, bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(dtype.size()).map(|element| word_from_bytes(dtype, element)).collect()
}

/// The canonical bytes of words.
///
/// ```
/// use tiebreak_contract::arith::DType;
/// use tiebreak_contract::arith::words::{bytes_from_words, words_from_bytes};
///
/// let words = [1.0f32.to_bits(), 7];
/// assert_eq!(bytes_from_words(DType::F32, &words), [0, 0, 0x80, 0x3f, 7, 0, 0, 0]);
/// // A quantised tensor of two digits has two bytes an element; its words are sign-extended.
/// let bytes = bytes_from_words(DType::Q(2), &[(-3i32) as u32]);
/// assert_eq!((bytes.len(), words_from_bytes(DType::Q(2), &bytes)), (2, vec![(-3i32) as u32]));
/// ```
pub fn bytes_from_words(dtype: DType, words: &[u32]) -> Vec<u8> {
    let size = dtype.size();
    words.iter().flat_map(|w| w.to_le_bytes().into_iter().take(size)).collect()
}

/// The canonical bytes of binary32 patterns, or of other elements of four bytes.
pub fn bytes_of(words: &[u32]) -> Vec<u8> {
    if cfg!(target_endian = "little") {
        return bytemuck::cast_slice(words).to_vec();
    }
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Passes elements of four bytes to `f` as canonical bytes, without a copy where the byte order allows it.
pub fn with_bytes<R>(words: &[u32], f: impl FnOnce(&[u8]) -> R) -> R {
    if cfg!(target_endian = "little") { f(bytemuck::cast_slice(words)) } else { f(&bytes_of(words)) }
}

/// Passes canonical bytes of four-byte elements to `f` as words, without a copy where alignment and byte
/// order allow it.
pub fn with_words<R>(bytes: &[u8], f: impl FnOnce(&[u32]) -> R) -> R {
    match bytemuck::try_cast_slice(bytes) {
        Ok(words) if cfg!(target_endian = "little") => f(words),
        _ => f(&words_from_bytes(DType::U32, bytes)),
    }
}

/// Replaces some elements of four bytes each by words.
///
/// # Panics
/// If an element is beyond the bytes.
pub fn replace_words(bytes: &mut [u8], changes: impl IntoIterator<Item = (usize, u32)>) {
    for (place, word) in changes {
        bytes[4 * place..4 * place + 4].copy_from_slice(&word.to_le_bytes());
    }
}
