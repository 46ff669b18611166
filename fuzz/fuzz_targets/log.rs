//! Rounding logs: the index, and decisions; what decodes is canonical, and what does not is shown by one block.
#![no_main]

use tiebreak::rounding::codec::{decode, encode, unreadable};
use tiebreak::rounding::log::{BlockPlace, Log, Shown};

libfuzzer_sys::fuzz_target!(|input: (u32, u8, &[u8])| {
    let (elements, parts, bytes) = input;
    if let Ok(decisions) = decode(bytes, u64::from(elements)) {
        assert_eq!(encode(&decisions, u64::from(elements)), bytes);
    }
    let odd = unreadable(bytes, u64::from(elements));
    assert_eq!(odd.is_none(), decode(bytes, u64::from(elements)).is_ok());
    let (log, place) = (
        Log::new(&[bytes.to_vec()]),
        BlockPlace { part: 0, elements: elements.into(), block: odd.unwrap_or(0) },
    );
    let proof = log.prove(0, place.elements, place.block);
    let shows = match proof.block(&log.root(), 1, place).unwrap() {
        Shown::Block(proven) => proven.decisions().is_err(),
        Shown::Missing => false,
        Shown::Malformed(_) => true,
    };
    assert_eq!(shows, odd.is_some());
    if let Ok(log) = Log::open(bytes.to_vec(), usize::from(parts)) {
        let parts: Vec<Vec<u8>> = (0..usize::from(parts)).map(|i| log.part(i).to_vec()).collect();
        assert_eq!(Log::new(&parts).bytes(), bytes);
    }
});
