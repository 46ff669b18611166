//! Rounding logs: places of parts, and decisions. A log that decodes is canonical. One block, or the bytes that locate it, shows
//! why another log does not decode.
#![no_main]

use tiebreak_record::rounding::codec::{decode, encode, unreadable};
use tiebreak_record::rounding::log::{BlockPlace, Log, Shown, misplaced, prove, root};

libfuzzer_sys::fuzz_target!(|input: (u32, u16, u8, &[u8])| {
    let (elements, parts, change, bytes) = input;
    // Up to four groups.
    let parts = usize::from(parts % 1024);
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
    if let Ok(log) = Log::open(bytes.to_vec(), parts) {
        let parts: Vec<Vec<u8>> = (0..parts).map(|i| log.part(i).to_vec()).collect();
        assert_eq!(Log::new(&parts).bytes(), bytes);
    }
    let part = |i: usize| bytes[..i % (bytes.len().min(64) + 1)].to_vec();
    let mut changed = Log::new(&(0..parts).map(part).collect::<Vec<_>>()).bytes().to_vec();
    let at = elements as usize % changed.len();
    changed[at] ^= change;
    if let Some(part) = misplaced(&changed, parts).filter(|part| *part < parts) {
        let place = BlockPlace { part, elements: elements.into(), block: 0 };
        let proof = prove(&changed, parts, place);
        assert!(matches!(proof.block(&root(&changed), parts, place), Ok(Shown::Malformed(_))));
    }
});
