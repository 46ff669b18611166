//! The elements of data files, and their conversion to words of a batch tensor.

use serde::{Deserialize, Serialize};

use tiebreak_contract::arith::{DType, float};

/// The type of a file's elements, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Element {
    /// Bytes.
    U8,
    /// Unsigned integers of 16 bits.
    U16,
    /// Unsigned integers of 32 bits.
    U32,
    /// Signed integers of 64 bits.
    I64,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16: the upper half of a binary32.
    Bf16,
    /// IEEE 754 binary32.
    F32,
}

impl Element {
    /// The name in job files.
    #[doc(hidden)] // for the layers above
    pub fn name(self) -> &'static str {
        match self {
            Element::U8 => "u8",
            Element::U16 => "u16",
            Element::U32 => "u32",
            Element::I64 => "i64",
            Element::F16 => "f16",
            Element::Bf16 => "bf16",
            Element::F32 => "f32",
        }
    }

    /// Bytes of one element.
    #[doc(hidden)] // for the layers above
    pub fn size(self) -> u64 {
        match self {
            Element::U8 => 1,
            Element::U16 | Element::F16 | Element::Bf16 => 2,
            Element::U32 | Element::F32 => 4,
            Element::I64 => 8,
        }
    }

    /// The type of the batch tensor that elements become: integers U32, floats F32.
    #[doc(hidden)] // for the layers above
    pub fn dtype(self) -> DType {
        match self {
            Element::U8 | Element::U16 | Element::U32 | Element::I64 => DType::U32,
            Element::F16 | Element::Bf16 | Element::F32 => DType::F32,
        }
    }

    /// The greatest integer that an element can be; `None` for floats.
    pub(crate) fn largest(self) -> Option<i64> {
        match self {
            Element::U8 => Some(u8::MAX.into()),
            Element::U16 => Some(u16::MAX.into()),
            Element::U32 => Some(u32::MAX.into()),
            Element::I64 => Some(i64::MAX),
            Element::F16 | Element::Bf16 | Element::F32 => None,
        }
    }

    /// Passes every integer of these bytes to `show`, in order; floats have none.
    pub(crate) fn integers(self, bytes: &[u8], show: &mut impl FnMut(i64)) {
        match self {
            Element::U8 => bytes.iter().for_each(|&x| show(x.into())),
            Element::U16 => bytes.as_chunks().0.iter().for_each(|x| show(u16::from_le_bytes(*x).into())),
            Element::U32 => bytes.as_chunks().0.iter().for_each(|x| show(u32::from_le_bytes(*x).into())),
            Element::I64 => bytes.as_chunks().0.iter().for_each(|x| show(i64::from_le_bytes(*x))),
            Element::F16 | Element::Bf16 | Element::F32 => {}
        }
    }

    /// The words of elements: integers unchanged, floats as the binary32 of the same value, with the contract's NaN.
    ///
    /// # Errors
    /// If an integer is negative, or has more than 32 bits; the error is that integer.
    #[doc(hidden)] // for the layers above
    pub fn words(self, bytes: &[u8]) -> Result<Vec<u32>, i64> {
        let pairs = || bytes.as_chunks().0.iter().map(|c| u16::from_le_bytes(*c));
        let fours = || bytes.as_chunks().0.iter().map(|c| u32::from_le_bytes(*c));
        Ok(match self {
            Element::U8 => bytes.iter().map(|&x| u32::from(x)).collect(),
            Element::U16 => pairs().map(u32::from).collect(),
            Element::U32 => fours().collect(),
            Element::I64 => {
                let eights = bytes.as_chunks().0.iter().map(|c| i64::from_le_bytes(*c));
                return eights.map(|x| u32::try_from(x).map_err(|_| x)).collect();
            }
            Element::F16 => pairs().map(float::from_f16).collect(),
            Element::Bf16 => pairs().map(float::from_bf16).collect(),
            Element::F32 => fours().map(|x| float::canonical(f32::from_bits(x))).collect(),
        })
    }
}

/// An array inside a file: C order, nothing between its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayPlace {
    /// The type of the elements.
    pub element: Element,
    /// The dimensions.
    pub shape: Vec<u64>,
    /// The byte of the file at which the array begins.
    pub first: u64,
}

/// The most dimensions of an array.
pub const DIMENSIONS_MAX: usize = 4;

impl ArrayPlace {
    /// Bytes of the array; `None` if its shape is too large for any file, or has too many dimensions.
    pub fn bytes(&self) -> Option<u64> {
        let within = self.shape.len() <= DIMENSIONS_MAX;
        let bytes = self.shape.iter().try_fold(self.element.size(), |bytes, &d| bytes.checked_mul(d));
        bytes.filter(|_| within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_become_words() {
        assert_eq!(Element::U16.words(&[1, 2, 255, 255]), Ok(vec![0x201, 0xffff]));
        assert_eq!(Element::U32.words(&[1, 2, 3, 4]), Ok(vec![0x0403_0201]));
        assert_eq!(Element::I64.words(&7i64.to_le_bytes()), Ok(vec![7]));
        assert_eq!(Element::I64.words(&(-7i64).to_le_bytes()), Err(-7));
        assert_eq!(Element::I64.words(&(1i64 << 32).to_le_bytes()), Err(1 << 32));
        assert_eq!(Element::Bf16.words(&[0x80, 0x3f, 0x81, 0xff]), Ok(vec![float::ONE, float::NAN]));
        assert_eq!(Element::F16.words(&[0, 0x3c, 1, 0x7e]), Ok(vec![float::ONE, float::NAN]));
        assert_eq!(Element::F32.words(&0xffc0_0001u32.to_le_bytes()), Ok(vec![float::NAN]));
    }

    #[test]
    fn an_array_that_no_file_holds_has_no_size() {
        let array = |shape: &[u64]| ArrayPlace { element: Element::F32, shape: shape.to_vec(), first: 0 };
        assert_eq!(array(&[2, 3]).bytes(), Some(24));
        assert_eq!(array(&[1 << 40, 1 << 40]).bytes(), None);
        assert_eq!(array(&[1; 5]).bytes(), None);
    }
}
