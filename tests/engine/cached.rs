//! Inference over caches, on the scalar reference and on CPUs: the bits of a position's logits depend on the tokens up to it alone.

use tiebreak_contract::program::products::ProductTable;
use tiebreak_engine::cpu::Cpu;
use tiebreak_engine::reference::Reference;

use crate::cached_decoders::{BAD, Rows, decoder, decoders, network, network_of};

/// Logits that a script made from the page alone (`assets/vectors/inference.py`): of each decoder, each text and each position.
#[derive(serde::Deserialize)]
struct Golden {
    decoders: Vec<Vec<Rows>>,
}

/// The logits of all tokens but the bad one, which a tied head would multiply with its infinity.
fn numbers(row: &[u32]) -> impl Iterator<Item = f32> {
    row[..BAD as usize].iter().map(|word| f32::from_bits(*word))
}

#[test]
fn logits_have_the_same_bits_in_every_chunk_and_batch() {
    let Golden { decoders: golden } =
        serde_json::from_str(include_str!("../../assets/vectors/inference.json")).unwrap();
    assert_eq!(golden.len(), 3);
    for (decoder, golden) in decoders().into_iter().zip(golden) {
        let expected = decoder.expected(&mut Reference);
        assert_eq!(expected, golden, "assets/vectors/inference.json on the right");
        decoder.check(&mut Reference, &expected, &[2, 5]);
        for threads in [1, 3] {
            decoder.check(&mut Cpu::new(threads).unwrap(), &expected, &[1, 2, 5]);
        }
        // A position that holds an infinity reaches no row before it, and every row from it on that sees it by two layers.
        let seen = if decoder.has_windows() { 1..4 } else { 5..7 };
        let has_nan = |row: &Vec<u32>| {
            assert!(numbers(row).all(f32::is_nan) || numbers(row).all(f32::is_finite));
            numbers(row).any(f32::is_nan)
        };
        let bad: Vec<bool> = expected[1].iter().map(has_nan).collect();
        assert_eq!(bad, (0..7).map(|row| seen.contains(&row)).collect::<Vec<_>>());
        assert!(expected[0].iter().chain(&expected[2]).all(|row| numbers(row).all(f32::is_finite)));
    }
}

/// A network file's decoder, whose sequences have an infinity from one position on.
#[test]
fn a_network_has_the_same_bits_in_every_chunk_and_batch() {
    let decoder = network();
    let expected = decoder.expected(&mut Reference);
    decoder.check(&mut Reference, &expected, &[2, 5]);
    for threads in [1, 3] {
        decoder.check(&mut Cpu::new(threads).unwrap(), &expected, &[1, 2, 5]);
    }
    let has_nan = |row: &Vec<u32>| numbers(row).any(f32::is_nan);
    let bad: Vec<bool> = expected[1].iter().map(has_nan).collect();
    assert_eq!(bad, (0..7).map(|row| row >= 5).collect::<Vec<_>>());
    let rows: std::collections::BTreeSet<_> = expected[0].iter().collect();
    assert_eq!(rows.len(), 7, "each position has a row of its own");
}

/// Networks with the operators of a GPT and of a Llama have their logits from the same weights.
#[test]
fn networks_of_built_in_decoders_have_their_bits() {
    let gpt = r#"{"kind": "gpt", "vocabulary": 19, "context": 5, "layers": 2, "heads": 2, "width": 8}"#;
    let llama = r#"{"kind": "llama", "vocabulary": 19, "context": 5, "layers": 2, "heads": 4, "kv_heads": 2, "width": 8, "hidden": 12}"#;
    for (text, model) in [
        (include_str!("../../assets/networks/gpt.json"), gpt),
        (include_str!("../../assets/networks/llama.json"), llama),
    ] {
        let theirs = decoder(model, ProductTable::preset(), [5, 11]);
        let own = network_of(text, [5, 11]);
        let texts: [&[u32]; 2] = [&[3, 18, 0, 7, 7], &[9, 1, 1, 12, 4]];
        for chunk in [1, 2, 5] {
            let expected = theirs.cached(&mut Reference, &texts, chunk);
            assert_eq!(own.cached(&mut Reference, &texts, chunk), expected, "{model}");
            assert_eq!(own.cached(&mut Cpu::new(2).unwrap(), &texts, chunk), expected, "{model}");
        }
    }
}

/// The ordinary product of attention values groups positions, so that padding changes earlier rows: the test above tells the two
/// products apart. Without a group of positions the logits are nearly the same.
#[test]
fn logits_are_near_those_of_training_which_depend_on_the_padding() {
    for (number, decoder) in decoders().into_iter().chain([network()]).enumerate() {
        let mut cpu = Cpu::new(2).unwrap();
        let [text, _, short] = decoder.sequences();
        let short = &short[..3];
        let [first, second]: [Rows; 2] = [3, 8].map(|padding| decoder.whole(&mut cpu, short, padding));
        // The padding of the windowed decoder and of the network moves no exponent.
        assert!(first != second || number > 1);
        let trained = decoder.whole(&mut cpu, &text, 0);
        let [cached] = &decoder.cached(&mut cpu, &[&text], 1)[..] else { panic!("one text") };
        let pairs = trained.iter().zip(cached).flat_map(|(x, y)| numbers(x).zip(numbers(y)));
        let greatest = pairs.map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
        assert!(greatest > 0.0 && greatest < 0.02, "{greatest}");
    }
}
