//! Verdicts on a tile of a receipt that are cut down to one element, with the tile's bytes from the signer or by a guess.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;

use tiebreak_dispute::answer::{AnswerClaim, AnswerRuling, AnswerTile, AnswerVerdict};
use tiebreak_dispute::verdict::{Base64, Disclosed};
use tiebreak_engine::cpu::Cpu;
use tiebreak_record::commit::answer_trace::AnswerTrace;
use tiebreak_record::commit::receipt::Receipt;
use tiebreak_record::commit::tensor::{TILE_BYTES, tile_range};

use super::receipt_verdicts::Signer;

/// The bytes of a verdict on one element: the tile takes 5.5 KB of them.
const SMALL: usize = 16_000;

/// The receipt of a signer who flips these bits of a node's output in window 1, its trace, and the node's output.
fn lie(
    signer: &Signer,
    honest: &Receipt,
    node: usize,
    bits: &[(usize, u8)],
) -> (Receipt, AnswerTrace, Vec<u8>) {
    let mut output = Vec::new();
    let mut tamper = |window: usize, index: usize, bytes: &[u8]| {
        (window == 1 && index == node).then(|| {
            output = bytes.to_vec();
            bits.iter().for_each(|&(byte, bit)| output[byte] ^= 1 << bit);
            output.clone()
        })
    };
    let trace =
        signer.answerer().trace(&mut Cpu::new(1).unwrap(), honest, Some(&mut tamper), &mut |_| {}).unwrap();
    (signer.committed(honest, &trace), trace, output)
}

fn tile(verdict: &AnswerVerdict) -> &AnswerTile {
    match &verdict.claim {
        AnswerClaim::Tile(claim) => claim,
        claim => panic!("a claim of kind {}", claim.kind()),
    }
}

/// The verdict with another claim.
fn changed(verdict: &AnswerVerdict, change: impl FnOnce(&mut AnswerTile)) -> AnswerVerdict {
    let mut claim = tile(verdict).clone();
    change(&mut claim);
    AnswerVerdict { claim: AnswerClaim::Tile(Box::new(claim)), ..verdict.clone() }
}

/// Checks everything about a wide verdict and the signer's bytes of its tile, of which `element` is the first wrong one.
fn narrows(signer: &Signer, wide: &AnswerVerdict, bytes: &[u8], element: usize) -> AnswerVerdict {
    assert_eq!(tile(wide).disclosed, None);
    signer.convicts(wide, ": tile ");
    let narrow = wide.narrowed(bytes).unwrap().expect("an element is wrong");
    assert_eq!(tile(&narrow).disclosed, Some(Disclosed { bytes: Base64(bytes.to_vec()), element }));
    signer.convicts(&narrow, &format!(": element {element} is not "));
    assert_eq!(AnswerVerdict::from_bytes(&narrow.to_bytes()).as_ref(), Ok(&narrow));
    assert!(narrow.to_bytes().len() < SMALL, "{} bytes", narrow.to_bytes().len());
    // Other bytes are not the committed tile, and a narrow verdict is not narrowed again.
    let mut other = bytes.to_vec();
    other[7] ^= 1;
    for (bytes, says) in [(&other[..], "have the value"), (&bytes[..8], "8 bytes are disclosed")] {
        assert!(wide.narrowed(bytes).unwrap_err().to_string().contains(says), "{says}");
        let forged = changed(&narrow, |claim| claim.disclosed.as_mut().unwrap().bytes.0 = bytes.to_vec());
        assert!(signer.ruling(&forged).unwrap_err().contains(says), "{says}");
    }
    assert!(narrow.narrowed(bytes).unwrap_err().to_string().contains("about one element already"));
    for outside in [usize::MAX, element + TILE_BYTES] {
        let forged = changed(&narrow, |claim| claim.disclosed.as_mut().unwrap().element = outside);
        assert!(signer.ruling(&forged).unwrap_err().contains("is outside of tile"), "{outside}");
    }
    // The narrow verdict has the operands of that element alone, and needs each of them.
    for place in 0..tile(&narrow).inputs.len() {
        let forged = changed(&narrow, |claim| drop(claim.inputs.remove(place)));
        assert!(signer.ruling(&forged).unwrap_err().contains("is needed and not there"), "input {place}");
    }
    // A right element of a wrong tile convicts nobody.
    let right = changed(wide, |claim| {
        claim.disclosed = Some(Disclosed { bytes: Base64(bytes.to_vec()), element: element + 2 });
    });
    assert!(
        matches!(signer.ruling(&right), Ok(AnswerRuling::DoesNotConvict(_))),
        "{:?}",
        signer.ruling(&right)
    );
    narrow
}

/// The command narrows as the library does.
fn narrows_by_command(wide: &AnswerVerdict, bytes: &[u8], narrow: &AnswerVerdict) {
    let folder = tempfile::tempdir().unwrap();
    let [file, tile, out] = ["wide.json", "tile.bin", "small.json"].map(|name| folder.path().join(name));
    fs::write(&file, wide.to_bytes()).unwrap();
    fs::write(&tile, bytes).unwrap();
    let run = |words: &[&OsStr]| {
        let words = words.iter().map(|word| word.to_os_string());
        let words: Vec<OsString> = ["tiebreak", "verdict"].map(Into::into).into_iter().chain(words).collect();
        tiebreak::cli::run(&words)
    };
    let code = run(&[
        "narrow".as_ref(),
        file.as_ref(),
        "--tile".as_ref(),
        tile.as_ref(),
        "--out".as_ref(),
        out.as_ref(),
    ]);
    assert_eq!((code, fs::read(&out).unwrap()), (0, narrow.to_bytes()));
    assert_eq!(run(&["check".as_ref(), out.as_ref()]), 1);
}

#[test]
fn a_tile_of_an_answer_is_narrowed_to_one_element() {
    let signer = Signer::new(Vec::new());
    let (honest, trace) = signer.honest();
    let graph = signer.answerer().window_graphs(&honest)[1].clone();
    let (mut kinds, mut across) = (BTreeSet::new(), 0);
    for node in 0..graph.nodes.len() {
        let ty = graph.tensor(graph.nodes[node].output);
        let is_long = ty.bytes() > TILE_BYTES + 64;
        if ty.bytes() < 1024 || !kinds.insert((graph.nodes[node].primitive.name(), is_long)) {
            continue;
        }
        // Bits of two elements: nobody guesses them. Where tiles cut elements, the first one begins in the tile before.
        let size = ty.dtype.size();
        let number = usize::from(is_long);
        let range = tile_range(ty.bytes(), number);
        let (first, second) = (range.start, range.start + 9 * size);
        across += usize::from(!first.is_multiple_of(size));
        let (lie, theirs, output) = lie(&signer, &honest, node, &[(first, 0), (second, 0)]);
        let wide = signer.accused(&lie, Some(&theirs)).unwrap();
        assert_eq!((tile(&wide).node, tile(&wide).tile), (node, number));
        let narrow = narrows(&signer, &wide, &output[range.clone()], first / size);
        if graph.nodes[node].primitive.name() == "product.v1" {
            assert!(narrow.to_bytes().len() < wide.to_bytes().len());
            narrows_by_command(&wide, &output[range.clone()], &narrow);
        }
        // One bit is guessed, which gives the same verdict as the signer's bytes.
        let (lie, theirs, output) = self::lie(&signer, &honest, node, &[(second, 0)]);
        let guessed = signer.accused(&lie, Some(&theirs)).unwrap();
        assert!(guessed.to_bytes().len() < SMALL, "{}", guessed.to_bytes().len());
        let wide = signer.accuser(&signer.answerer(), &lie, &guessed.receipt, Some(&theirs), |accuser| {
            accuser.tile_claim(&mut Cpu::new(1).unwrap(), (1, node, number)).unwrap().unwrap()
        });
        assert_eq!(wide, guessed.claim);
        assert_eq!(tile(&guessed).disclosed.as_ref().unwrap().bytes.0, output[range]);
    }
    assert!(kinds.len() > 12 && across > 0, "{kinds:?}, {across} across tiles");
    // Nothing is wrong with an honest tile, and a row has none.
    let text = honest.to_text(Some(&signer.key));
    let answerer = signer.answerer();
    let (claim, row) = signer.accuser(&answerer, &honest, &text, Some(&trace), |accuser| {
        let mut cpu = Cpu::new(1).unwrap();
        let claim = accuser.tile_claim(&mut cpu, (1, 3, 0)).unwrap().unwrap();
        (claim, accuser.row_claim(&mut cpu, 9).unwrap().unwrap())
    });
    let verdict = AnswerVerdict::new(text.clone(), claim);
    let (_, _, output) = lie(&signer, &honest, 3, &[]);
    let bytes = &output[tile_range(output.len(), 0)];
    assert_eq!(verdict.narrowed(bytes), Ok(None));
    let refused = AnswerVerdict::new(text, row).narrowed(bytes).unwrap_err();
    assert!(refused.to_string().contains("only a tile verdict can be narrowed"), "{refused}");
}
