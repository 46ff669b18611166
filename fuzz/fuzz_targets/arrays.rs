//! Arrays that people bring; the first byte chooses the format.
#![no_main]

use tiebreak_run::run::arrays;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first() else { return };
    let extension = if first & 1 == 0 { "npy" } else { "safetensors" };
    for array in arrays::parse(extension, rest).into_iter().flatten() {
        assert_eq!(array.bytes.len(), array.ty.bytes());
    }
});
