//! Checks of slices and tiles of tensors against the digest that commits to them.

use std::collections::BTreeMap;

use super::leaf::{Touched, tile_elements};
use super::proven::{ProvenInput, ProvenTensor, wrong};
use tiebreak_contract::arith::words::bytes_from_words;
use tiebreak_contract::program::graph::{TensorId, TensorType};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::proven::{Base64, Hashes};
use tiebreak_record::commit::tensor::{Hash, SLICE_BYTES};
use tiebreak_record::commit::{Malformed, multiproof, tensor};

/// The slices of an input as (index, value), after a check of their lengths.
fn pieces(ty: &TensorType, input: &ProvenInput) -> Result<Vec<(usize, Hash)>, Malformed> {
    let (len, count) = (ty.bytes(), tensor::piece_count(ty.bytes(), SLICE_BYTES));
    let mut rest = input.bytes.0.as_slice();
    let mut pieces = Vec::new();
    for &slice in &input.slices {
        let wrong_place = || wrong("an input slice has the wrong place or length");
        if slice >= count {
            return Err(wrong_place());
        }
        let range = tensor::piece_range(len, SLICE_BYTES, slice);
        let bytes = rest.split_off(..range.len()).ok_or_else(wrong_place)?;
        pieces.push((slice, tensor::piece_value(bytes, SLICE_BYTES, slice, count)));
    }
    if rest.is_empty() { Ok(pieces) } else { Err(wrong("an input has bytes of no slice")) }
}

/// Checks that slices belong to the tensor whose digest is given with them.
pub(crate) fn check_slices(ty: &TensorType, input: &ProvenInput) -> Result<(), Malformed> {
    let count = tensor::piece_count(ty.bytes(), SLICE_BYTES);
    let root = multiproof::root(multiproof::blake3, count, &pieces(ty, input)?, &input.siblings.0)?;
    if tensor::digest_from_root(ty, &root) != input.commitment.digest {
        return Err(wrong("an input slice is not what the run committed to"));
    }
    Ok(())
}

/// Checks that a tensor's digest commits to this value of one of its tiles.
pub(crate) fn check_tile(
    ty: &TensorType,
    tile: usize,
    value: Hash,
    siblings: &[Hash],
    output: &ProvenTensor,
) -> Result<(), Malformed> {
    let count = tensor::tile_count(ty.bytes());
    let root = multiproof::root(multiproof::blake3, count, &[(tile, value)], siblings)?;
    let digest = tensor::digest_from_root(ty, &root);
    if digest != output.digest {
        let [found, own] = [digest, output.digest].map(|digest| digest.short());
        return Err(wrong(format!("the tile gives a tensor {found}; the run committed to {own}")));
    }
    Ok(())
}

/// Checks that disclosed bytes are the committed tile.
pub(crate) fn check_disclosed(
    ty: &TensorType,
    (tile, committed): (usize, Digest),
    bytes: &[u8],
) -> Result<(), Malformed> {
    let (found, due) = (bytes.len(), tensor::tile_range(ty.bytes(), tile).len());
    if found != due {
        return Err(wrong(format!("{found} bytes are disclosed; the committed tile has {due}")));
    }
    let value = Digest(tensor::tile_value(bytes, tile, tensor::tile_count(ty.bytes())));
    if value != committed {
        let [found, own] = [value, committed].map(|value| value.short());
        return Err(wrong(format!(
            "the disclosed bytes have the value {found}; the committed tile has {own}"
        )));
    }
    Ok(())
}

/// Checks that an element is in a tile.
pub(crate) fn check_within(ty: &TensorType, tile: usize, element: usize) -> Result<(), Malformed> {
    let within = tile_elements(ty, tile);
    if within.contains(&element) {
        return Ok(());
    }
    let (first, last) = (within.start, within.end - 1);
    Err(wrong(format!("element {element} is outside of tile {tile}, which has elements {first} to {last}")))
}

/// The first element of a tile that is not as `words` have it, in the bytes that the signer committed.
pub(crate) fn first_wrong(ty: &TensorType, tile: usize, bytes: &[u8], words: &[u32]) -> Option<usize> {
    let differs = |(element, word): &(usize, &u32)| !agrees(ty, tile, bytes, *element, **word);
    tile_elements(ty, tile).zip(words).find(differs).map(|(element, _)| element)
}

/// True if an element of a tile's bytes is `word`, as far as the element is in the tile.
pub(crate) fn agrees(ty: &TensorType, tile: usize, bytes: &[u8], element: usize, word: u32) -> bool {
    let right = bytes_from_words(ty.dtype, &[word]);
    let range = tensor::tile_range(ty.bytes(), tile);
    let first = element * ty.dtype.size();
    let in_tile =
        |(i, byte): (usize, &u8)| !range.contains(&(first + i)) || bytes[first + i - range.start] == *byte;
    right.iter().enumerate().all(in_tile)
}

/// An input with only the slices `touched`.
pub(crate) fn narrowed_input(
    ty: &TensorType,
    input: &ProvenInput,
    touched: &Touched,
) -> Result<Option<ProvenInput>, Malformed> {
    let id = TensorId(input.tensor);
    let wanted: Vec<usize> = touched.iter().filter(|(t, _)| *t == id).map(|(_, slice)| *slice).collect();
    if wanted.is_empty() {
        return Ok(None);
    }
    let count = tensor::piece_count(ty.bytes(), SLICE_BYTES);
    let siblings =
        multiproof::narrow(multiproof::blake3, count, &pieces(ty, input)?, &input.siblings.0, &wanted)?;
    let have: BTreeMap<usize, &[u8]> =
        input.slices.iter().copied().zip(input.bytes.0.chunks(SLICE_BYTES)).collect();
    let bytes = wanted.iter().filter_map(|slice| have.get(slice)).copied().collect::<Vec<_>>().concat();
    Ok(Some(ProvenInput {
        tensor: input.tensor,
        commitment: input.commitment.clone(),
        slices: wanted,
        bytes: Base64(bytes),
        siblings: Hashes(siblings),
    }))
}
