//! The check of a verdict on a receipt of predictions. Each fact is under a digest that the signer signed.

use super::pass::Pass;
use super::ruling::{AnswerRuling, ruling};
use super::tile::tile;
use super::{AnswerClaim, ClassClaim, LogitsClaim, TracedWindow};
use crate::evidence::proven::{ProvenInput, ProvenTensor, wrong};
use crate::evidence::tile::check_slices;
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::words_from_bytes;
use tiebreak_contract::program::graph::TensorType;
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::predictions::{PredictedSample, Predictions, predicted};
use tiebreak_record::commit::tensor::SLICE_BYTES;

/// The most logits of a sample: those of the largest tensor.
const LOGITS_MAX: u64 = 1 << 31;

/// Checks a claim about a signed receipt.
pub(super) fn examined(
    receipt: &Predictions,
    claim: &AnswerClaim,
    steps: &mut Vec<String>,
) -> Result<AnswerRuling, Malformed> {
    match claim {
        AnswerClaim::Class(claim) => class(receipt, claim, steps),
        AnswerClaim::Logits(claim) => logits(receipt, claim, steps),
        AnswerClaim::Tile(claim) => tile(&pass(receipt, &claim.job, &claim.window, steps)?, claim, steps),
        AnswerClaim::Token { .. }
        | AnswerClaim::Ended { .. }
        | AnswerClaim::Stopped { .. }
        | AnswerClaim::Row(_) => {
            Err(wrong("its claim is about an answer, and its receipt is of predictions"))
        }
    }
}

/// A sample of the receipt.
fn said(receipt: &Predictions, place: usize) -> Result<&PredictedSample, Malformed> {
    let count = receipt.samples.len();
    let sample = receipt.samples.get(place);
    sample.ok_or_else(|| wrong(format!("it is about sample {place}, and the receipt has {count}")))
}

/// The pass of a claim's sample, under the receipt's root over traces.
fn pass(
    receipt: &Predictions,
    job: &str,
    window: &TracedWindow,
    steps: &mut Vec<String>,
) -> Result<Pass, Malformed> {
    let pass = Pass::of_sample(receipt, job, window.number)?;
    pass.committed(window)?;
    steps.push(format!(
        "the job or the network file has the receipt's model, and the pass of {} is the receipt's",
        pass.what
    ));
    Ok(pass)
}

fn class(
    receipt: &Predictions,
    claim: &ClassClaim,
    steps: &mut Vec<String>,
) -> Result<AnswerRuling, Malformed> {
    let ClassClaim { sample: place, row, slices, bytes, siblings } = claim;
    let (rows, classes) = (receipt.model.rows, receipt.model.classes);
    let sample = said(receipt, *place as usize)?;
    let number = u64::from(receipt.first) + u64::from(*place);
    let said = sample.predicted.get(*row as usize);
    let said = *said.ok_or_else(|| wrong(format!("it is about row {row}, and a sample has {rows}")))?;
    if u64::from(rows) * u64::from(classes) > LOGITS_MAX {
        return Err(wrong(format!(
            "its receipt has {rows} rows of {classes} logits, more than a tensor has"
        )));
    }
    let ty = TensorType { dtype: DType::F32, shape: vec![rows, classes] };
    let input = ProvenInput {
        tensor: 0,
        commitment: ProvenTensor { digest: sample.logits, proof: Vec::new() },
        slices: slices.clone(),
        bytes: bytes.clone(),
        siblings: siblings.clone(),
    };
    check_slices(&ty, &input)?;
    let len = classes as usize * DType::F32.size();
    let (start, slice) = (*row as usize * len, slices.first().copied().unwrap_or(0));
    let in_order = slices.iter().copied().eq(slice..slice + slices.len());
    let found = start.checked_sub(slice * SLICE_BYTES).and_then(|at| bytes.0.get(at..at + len));
    let found = found.filter(|_| in_order).ok_or_else(|| wrong("its slices do not hold the row"))?;
    steps.push(format!("{} slices are those of the logits that the receipt commits", slices.len()));
    let found = predicted(&words_from_bytes(DType::F32, found));
    steps.push(format!("the class of the row's {classes} logits was found again"));
    let right = format!("row {row} of sample {number} predicts the class of its logits");
    let gives = found.map_or("give none, since one is a NaN".into(), |class| format!("give {class}"));
    let fault = format!(
        "row {row} of sample {number} is said to predict class {said}, and the logits that the receipt commits {gives}"
    );
    Ok(ruling(found == Some(said), right, fault))
}

fn logits(
    receipt: &Predictions,
    claim: &LogitsClaim,
    steps: &mut Vec<String>,
) -> Result<AnswerRuling, Malformed> {
    let LogitsClaim { job, window, logits } = claim;
    let pass = pass(receipt, job, window, steps)?;
    let id = pass.graph.output("logits").ok_or_else(|| wrong("its graph has no logits"))?;
    let node = pass.graph.nodes.iter().position(|node| node.output == id);
    let node = node.ok_or_else(|| wrong("no operator makes the logits"))?;
    pass.traced(&window.root, node, logits)?;
    steps.push("the digest of the logits is under the window's root".into());
    let same = said(receipt, window.number)?.logits == logits.digest;
    let (right, fault) = ("are those of the signer's own trace", "are not those of the signer's own trace");
    let of = |text| format!("the logits of {} {text}", pass.what);
    Ok(ruling(same, of(right), of(fault)))
}
