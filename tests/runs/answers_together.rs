//! Answers that are computed together have the tokens and the receipts that each has alone.

use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::reference::Reference;

use crate::together::{all_decoders, alone, together};

#[test]
fn answers_together_are_those_alone() {
    for decoder in all_decoders() {
        let expected = alone(&decoder, &mut Reference);
        // The answers are no empty ones, and not all of them end in the same way.
        let lengths: Vec<usize> =
            expected.iter().map(|receipts| receipts.last().unwrap().answer.len()).collect();
        assert!(
            lengths.contains(&0) && lengths.iter().filter(|length| **length > 12).count() >= 2,
            "{lengths:?}"
        );
        for threads in [1, 3] {
            let mut cpu = Cpu::new(threads).unwrap();
            assert_eq!(alone(&decoder, &mut cpu), expected);
            for texts in [1, 2, 3, 5, 8] {
                together(&decoder, &mut cpu, &expected, texts);
            }
        }
        together(&decoder, &mut Reference, &expected, 4);
    }
}
