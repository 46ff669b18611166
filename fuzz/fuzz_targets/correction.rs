//! Corrections: files that a trainer edited and signed. One that is accepted has one encoding.
#![no_main]

use std::sync::LazyLock;

use tiebreak_record::commit::correction::{Correction, History, Reason};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::merkle;
use tiebreak_record::commit::record::{Record, StepRecord};
use tiebreak_record::commit::tree_head::Head;

static KEY: LazyLock<PrivateKey> =
    LazyLock::new(|| PrivateKey::generate("trainer.example", [5; 32]).expect("the name is one"));
/// The body of a correction of step 3, without its signature.
static BODY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let computation = Digest([1; 32]);
    let record = |step: u32, state: u8| {
        let (state, batch) = (Digest([state; 32]), Digest([9; 32]));
        if step == 0 {
            return Record::Initial { computation, state };
        }
        let cursor = u64::from(step);
        let (gradients, trace, log) = (None, None, None);
        let step = StepRecord {
            step,
            state,
            batch,
            gradients,
            trace,
            log,
            learning_rate: 0,
            clip: 0,
            loss: 0,
            cursor,
        };
        Record::Step { computation, step }
    };
    let history = |run: u8, size: u32, other: u8| {
        let records: Vec<Record> = (0..size).map(|n| record(n, if n < 3 { 2 } else { other })).collect();
        let leaves: Vec<Digest> = records.iter().map(|record| merkle::leaf(&record.encode())).collect();
        let head = Head { run: Digest([run; 32]), size: u64::from(size), root: merkle::root(&leaves) };
        let note = head.to_note(Some(&KEY));
        (History::new(&note, &KEY.public(), &leaves, (3, &records[3])).expect("it fits"), leaves)
    };
    let ((old, leaves), (new, _)) = (history(3, 9, 7), history(4, 7, 8));
    let shared = (&record(2, 2), &leaves[..3]);
    let made = Correction::new([old, new], shared, (Reason::Device, "a bit")).expect("it fits");
    let mut bytes = made.to_bytes(&KEY);
    bytes.truncate(bytes.len() - 64);
    bytes
});

// Three bytes are an edit: a position, and the byte that is put there. The bytes that are left come at the end.
libfuzzer_sys::fuzz_target!(|edits: &[u8]| {
    let mut body = BODY.clone();
    let (edits, rest) = edits.as_chunks::<3>();
    for &[low, high, byte] in edits {
        let at = usize::from(u16::from_le_bytes([low, high])) % body.len();
        body[at] = byte;
    }
    body.extend(rest);
    let signature = KEY.sign(&[b"tiebreak 2 correction\n", &body[..]].concat());
    let bytes = [&body[..], &signature].concat();
    if let Ok(correction) = Correction::from_bytes(&bytes, &KEY.public()) {
        assert_eq!(correction.to_bytes(&KEY), bytes);
    }
});
