//! The check of a claim about a tile of an operator: of a window of an answer, or of a sample's pass.

use super::AnswerTile;
use super::pass::Pass;
use super::ruling::{AnswerRuling, ruling};
use crate::evidence::leaf;
use crate::evidence::proven::wrong;
use crate::evidence::tile::check_tile;
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::tensor;

/// A claim about a tile of a pass that the receipt commits.
pub(super) fn tile(
    pass: &Pass,
    claim: &AnswerTile,
    steps: &mut Vec<String>,
) -> Result<AnswerRuling, Malformed> {
    let count = pass.graph.nodes.len();
    let node = pass.graph.nodes.get(claim.node);
    let node =
        node.ok_or_else(|| wrong(format!("it is about node {}, and there are {count}", claim.node)))?;
    pass.traced(&claim.window, claim.node, &claim.output)?;
    let ty = pass.graph.tensor(node.output);
    check_tile(ty, claim.tile, claim.value.0, &claim.siblings.0, &claim.output)?;
    let tiles = tensor::tile_count(ty.bytes());
    steps.push(format!("tile {} of {tiles} of node {} is under the window's root", claim.tile, claim.node));
    let slices = pass.inputs(&claim.window, claim.node, &claim.inputs)?;
    let (carried, bytes) = claim
        .inputs
        .iter()
        .fold((0, 0), |(slices, bytes), input| (slices + input.slices.len(), bytes + input.bytes.0.len()));
    let tensors = claim.inputs.len();
    steps.push(format!(
        "{carried} slices ({bytes} bytes) of {tensors} inputs are under the window's root or what the receipt commits"
    ));
    let words = pass.expected(claim.node, leaf::tile_elements(ty, claim.tile), &slices)?;
    steps.push(format!("the scalar reference computed the tile's {} elements", words.len()));
    let expected = leaf::tile_bytes(ty, claim.tile, &words);
    let same = tensor::tile_value(&expected, claim.tile, tiles) == claim.value.0;
    let (operator, primitive, of) = (&node.operator, node.primitive.name(), &pass.what);
    let right = "the committed tile is what the operator makes of its inputs";
    let fault = format!(
        "{operator} ({primitive}) of {of}, node {}: tile {} of {tiles} is not what the operator makes of its committed inputs",
        claim.node, claim.tile
    );
    Ok(ruling(same, right, fault))
}
