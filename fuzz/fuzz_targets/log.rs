//! Rounding logs: the index, and decisions; what decodes is canonical.
#![no_main]

use tiebreak::rounding::codec::{decode, encode};
use tiebreak::rounding::log::Log;

libfuzzer_sys::fuzz_target!(|input: (u32, u8, &[u8])| {
    let (elements, parts, bytes) = input;
    if let Ok(decisions) = decode(bytes, u64::from(elements)) {
        assert_eq!(encode(&decisions, u64::from(elements)), bytes);
    }
    if let Ok(log) = Log::open(bytes.to_vec(), usize::from(parts)) {
        let parts: Vec<Vec<u8>> = (0..usize::from(parts)).map(|i| log.part(i).to_vec()).collect();
        assert_eq!(Log::new(&parts).bytes(), bytes);
    }
});
