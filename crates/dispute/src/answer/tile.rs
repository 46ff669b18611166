//! The check of a claim about a tile of an operator: of a window of an answer, or of a sample's pass.

use super::AnswerTile;
use super::pass::Pass;
use super::ruling::{AnswerRuling, ruling};
use crate::evidence::leaf::{self, Slices};
use crate::evidence::proven::wrong;
use crate::evidence::tile::{agrees, check_disclosed, check_tile, check_within, first_wrong, narrowed_input};
use crate::verdict::Disclosed;
use tiebreak_contract::program::graph::{TensorId, TensorType};
use tiebreak_record::commit::proven::Base64;
use tiebreak_record::commit::{Malformed, tensor};

/// The output that a claim is about, and the slices that it carries, all under what the receipt commits.
fn verified<'p>(
    pass: &'p Pass,
    claim: &AnswerTile,
    steps: &mut Vec<String>,
) -> Result<(&'p TensorType, Slices), Malformed> {
    let count = pass.graph.nodes.len();
    let node = pass.graph.nodes.get(claim.node);
    let node =
        node.ok_or_else(|| wrong(format!("it is about node {}, and there are {count}", claim.node)))?;
    pass.traced(&claim.window.root, claim.node, &claim.output)?;
    let ty = pass.graph.tensor(node.output);
    check_tile(ty, claim.tile, claim.value.0, &claim.siblings.0, &claim.output)?;
    let tiles = tensor::tile_count(ty.bytes());
    steps.push(format!("tile {} of {tiles} of node {} is under the window's root", claim.tile, claim.node));
    let reads = pass.graph.nodes[claim.node].primitive.inputs();
    let slices = pass.inputs(&claim.window.root, &reads, &claim.inputs)?;
    let (carried, bytes) = claim
        .inputs
        .iter()
        .fold((0, 0), |(slices, bytes), input| (slices + input.slices.len(), bytes + input.bytes.0.len()));
    let tensors = claim.inputs.len();
    steps.push(format!(
        "{carried} slices ({bytes} bytes) of {tensors} inputs are under the window's root or what the receipt commits"
    ));
    Ok((ty, slices))
}

/// A claim about a tile of a pass that the receipt commits.
pub(super) fn tile(
    pass: &Pass,
    claim: &AnswerTile,
    steps: &mut Vec<String>,
) -> Result<AnswerRuling, Malformed> {
    let (ty, slices) = verified(pass, claim, steps)?;
    let tiles = tensor::tile_count(ty.bytes());
    let node = &pass.graph.nodes[claim.node];
    let (operator, primitive, of) = (&node.operator, node.primitive.name(), &pass.what);
    let place = format!("{operator} ({primitive}) of {of}, node {}", claim.node);
    let Some(Disclosed { bytes, element }) = &claim.disclosed else {
        let words = pass.expected(claim.node, leaf::tile_elements(ty, claim.tile), &slices)?;
        steps.push(format!("the scalar reference computed the tile's {} elements", words.len()));
        let expected = leaf::tile_bytes(ty, claim.tile, &words);
        let same = tensor::tile_value(&expected, claim.tile, tiles) == claim.value.0;
        let right = "the committed tile is what the operator makes of its inputs";
        let tile = claim.tile;
        let fault =
            format!("{place}: tile {tile} of {tiles} is not what the operator makes of its committed inputs");
        return Ok(ruling(same, right, fault));
    };
    check_disclosed(ty, (claim.tile, claim.value), &bytes.0)?;
    steps.push("the disclosed bytes are the committed tile".into());
    check_within(ty, claim.tile, *element)?;
    let words = pass.expected(claim.node, *element..element + 1, &slices)?;
    steps.push(format!("the scalar reference computed element {element}"));
    let same = agrees(ty, claim.tile, &bytes.0, *element, words[0]);
    let right = format!("element {element} is what the operator makes of its inputs");
    let fault =
        format!("{place}: element {element} is not {:08x}, which its committed inputs give", words[0]);
    Ok(ruling(same, right, fault))
}

/// The claim about the first wrong element in the committed bytes; nothing if every element is right.
pub(super) fn narrowed(
    pass: &Pass,
    claim: &AnswerTile,
    disclosed: &[u8],
) -> Result<Option<AnswerTile>, Malformed> {
    if claim.disclosed.is_some() {
        return Err(wrong("it is about one element already"));
    }
    let (ty, slices) = verified(pass, claim, &mut Vec::new())?;
    check_disclosed(ty, (claim.tile, claim.value), disclosed)?;
    let words = pass.expected(claim.node, leaf::tile_elements(ty, claim.tile), &slices)?;
    let Some(element) = first_wrong(ty, claim.tile, disclosed, &words) else { return Ok(None) };
    let (_, touched) = pass.recorded(claim.node, element..element + 1, &slices)?;
    let mut inputs = Vec::new();
    for input in &claim.inputs {
        inputs.extend(narrowed_input(pass.graph.tensor(TensorId(input.tensor)), input, &touched)?);
    }
    let disclosed = Some(Disclosed { bytes: Base64(disclosed.to_vec()), element });
    Ok(Some(AnswerTile { disclosed, inputs, ..claim.clone() }))
}
