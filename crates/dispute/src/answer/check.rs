//! The check of a verdict on a receipt: everything is derived from the file again, with the scalar reference, and reported step by
//! step. A receipt without a signature accuses nobody, so a verdict about one is malformed.

use super::pass::Pass;
use super::ruling::{AnswerRuling, ruling};
use super::tile::{narrowed, tile};
use super::{AnswerClaim, AnswerVerdict, RowClaim, TokenizerParts, predicted};
use crate::evidence::proven::wrong;
use crate::evidence::tile::check_slices;
use tiebreak_contract::arith::DType;
use tiebreak_contract::arith::words::words_from_bytes;
use tiebreak_contract::program::sampling::NoToken;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::commit::proven::Base64;
use tiebreak_record::commit::receipt::{Receipt, answer_leaf, row_digest};
use tiebreak_record::commit::salted_receipt::{self, AnyReceipt};
use tiebreak_record::commit::tensor::SLICE_BYTES;
use tiebreak_record::commit::{Malformed, merkle};

/// A check with its steps.
#[derive(Clone, Debug)]
pub struct AnswerExamination {
    /// The checks that passed, in order and in words.
    pub steps: Vec<String>,
    /// The signer of the receipt, if it holds together so far.
    pub signer: Option<PublicKey>,
    /// The result.
    pub outcome: Result<AnswerRuling, Malformed>,
}

/// A tokenizer that the checker has: its digest, and which of so many ids are candidates.
pub type Candidates<'a> = (Digest, &'a dyn Fn(u32) -> Vec<bool>);

impl AnswerVerdict {
    /// True if the check needs the tokenizer that the receipt names.
    pub fn needs_tokenizer(&self) -> bool {
        let names_one = || match salted_receipt::read(&self.receipt, self.opening.as_deref()) {
            Ok((AnyReceipt::Answer(receipt), _)) => receipt.tokenizer.is_some(),
            _ => false,
        };
        matches!(self.claim, AnswerClaim::Token { .. }) && names_one()
    }

    /// Checks the verdict, and keeps the steps of the check. `tokenizer` is the checker's own copy, for claims about a token of a
    /// receipt that names one.
    pub fn examine(&self, tokenizer: Option<Candidates>) -> AnswerExamination {
        let (mut steps, mut signer) = (Vec::new(), None);
        let outcome = self.examined(tokenizer, &mut steps, &mut signer);
        AnswerExamination { steps, signer, outcome }
    }

    /// A verdict on a tile reduced to the first wrong element in the tile's committed bytes, which the signer disclosed; `None` if
    /// every element is right.
    ///
    /// # Errors
    /// If the verdict is about no tile or contradicts itself, or the bytes are not the committed tile.
    pub fn narrowed(&self, disclosed: &[u8]) -> Result<Option<AnswerVerdict>, Malformed> {
        let AnswerClaim::Tile(claim) = &self.claim else {
            let kind = self.claim.kind();
            return Err(wrong(format!(
                "only a tile verdict can be narrowed, and this one is of kind {kind}"
            )));
        };
        let (receipt, _) = salted_receipt::read(&self.receipt, self.opening.as_deref())?;
        let pass = match &receipt {
            AnyReceipt::Answer(receipt) => Pass::of(receipt, &claim.job, claim.window.number)?,
            AnyReceipt::Predictions(receipt) => Pass::of_sample(receipt, &claim.job, claim.window.number)?,
        };
        pass.committed(&claim.window)?;
        let claim = narrowed(&pass, claim, disclosed)?;
        Ok(claim.map(|claim| AnswerVerdict { claim: AnswerClaim::Tile(Box::new(claim)), ..self.clone() }))
    }

    fn examined(
        &self,
        tokenizer: Option<Candidates>,
        steps: &mut Vec<String>,
        signer: &mut Option<PublicKey>,
    ) -> Result<AnswerRuling, Malformed> {
        let (receipt, key) = salted_receipt::read(&self.receipt, self.opening.as_deref())?;
        let key = key.ok_or_else(|| wrong("nobody signed its receipt, so that it accuses nobody"))?;
        if self.opening.is_some() {
            steps.push("the opening is that of the salted receipt".into());
        }
        let what = match &receipt {
            AnyReceipt::Answer(receipt) => format!("{} tokens", receipt.answer.len()),
            AnyReceipt::Predictions(receipt) => format!("{} predicted samples", receipt.samples.len()),
        };
        steps.push(format!("the receipt of {what} is signed by {}", key.to_text()));
        *signer = Some(key);
        let receipt = match receipt {
            AnyReceipt::Answer(receipt) => receipt,
            AnyReceipt::Predictions(receipt) => return predicted::examined(&receipt, &self.claim, steps),
        };
        match &self.claim {
            AnswerClaim::Token { number, row, proof } => {
                token(&receipt, (*number, row, proof), tokenizer, steps)
            }
            AnswerClaim::Ended { number, tokenizer } => ended(&receipt, *number, tokenizer, steps),
            AnswerClaim::Stopped { tokenizer } => stopped(&receipt, tokenizer.as_ref(), steps),
            AnswerClaim::Row(claim) => row(&receipt, claim, steps),
            AnswerClaim::Tile(claim) => {
                tile(&pass(&receipt, &claim.job, &claim.window, steps)?, claim, steps)
            }
            AnswerClaim::Class(_) | AnswerClaim::Logits(_) => {
                Err(wrong("its claim is about predictions, and its receipt is of an answer"))
            }
        }
    }
}

/// The id of the answer's token with this number.
fn said(receipt: &Receipt, number: u32) -> Result<u32, Malformed> {
    let count = receipt.answer.len();
    let id = receipt.answer.get(number as usize).copied();
    id.ok_or_else(|| wrong(format!("it is about token {number}, and the answer has {count}")))
}

/// Checks that the receipt's root commits to the digest of a token's row.
fn row_committed(receipt: &Receipt, number: u32, digest: &Digest, proof: &[Digest]) -> Result<(), Malformed> {
    let leaf = answer_leaf(number, said(receipt, number)?, digest);
    let count = receipt.answer.len() as u64;
    if merkle::root_from_proof(leaf, u64::from(number), count, proof)? != receipt.root {
        return Err(wrong(format!("the row of token {number} is not what the receipt commits")));
    }
    Ok(())
}

fn token(
    receipt: &Receipt,
    (number, row, proof): (u32, &Base64, &[Digest]),
    tokenizer: Option<Candidates>,
    steps: &mut Vec<String>,
) -> Result<AnswerRuling, Malformed> {
    let said = said(receipt, number)?;
    let bytes = &row.0;
    if bytes.is_empty() || !bytes.len().is_multiple_of(4) {
        return Err(wrong(format!("its row has {} bytes; logits have four each", bytes.len())));
    }
    let words = words_from_bytes(DType::F32, bytes);
    row_committed(receipt, number, &row_digest(&words), proof)?;
    steps.push(format!("the row of {} logits of token {number} is under the receipt's root", words.len()));
    let count = words.len() as u32;
    let known: Vec<bool> = match (receipt.tokenizer, tokenizer) {
        (None, _) if count > 256 => {
            return Err(wrong(format!("its row has {count} logits; a model over bytes has at most 256")));
        }
        (None, _) => vec![true; words.len()],
        (Some(wanted), Some((digest, known))) if wanted == digest => known(count),
        (Some(wanted), _) => return Ok(AnswerRuling::NeedsTokenizer(wanted)),
    };
    let found = receipt.sampling.token(&words, &known, number);
    steps.push("sampling.v1 chose a token from the row again".into());
    let gives = match &found {
        Ok(found) => format!("its own row gives {found}"),
        Err(why @ (NoToken::NotFinite { .. } | NoToken::NoCandidate { .. })) => {
            format!("its own row gives none: {why}")
        }
    };
    let right = format!("token {number} of the answer is the one that its row gives");
    Ok(ruling(found == Ok(said), right, format!("token {number} of the answer is {said}, and {gives}")))
}

/// Checks that the parts are those of the receipt's tokenizer.
fn named(receipt: &Receipt, tokenizer: &TokenizerParts, steps: &mut Vec<String>) -> Result<(), Malformed> {
    let found = tokenizer.digest();
    if receipt.tokenizer != Some(found) {
        let own = receipt.tokenizer.map_or("none".into(), |digest| digest.short());
        return Err(wrong(format!("its tokenizer is {}, and the receipt names {own}", found.short())));
    }
    steps.push(format!("{} ids end texts of the receipt's tokenizer", tokenizer.ends.len()));
    Ok(())
}

fn ended(
    receipt: &Receipt,
    number: u32,
    tokenizer: &TokenizerParts,
    steps: &mut Vec<String>,
) -> Result<AnswerRuling, Malformed> {
    said(receipt, number)?;
    named(receipt, tokenizer, steps)?;
    let before = number.checked_sub(1).ok_or_else(|| wrong("no token comes before token 0"))?;
    let id = said(receipt, before)?;
    let right = format!("token {before} of the answer ends no text");
    let fault = format!("token {number} of the answer comes after token {before}, {id}, which ends the text");
    Ok(ruling(!tokenizer.ends.contains(&id), right, fault))
}

fn stopped(
    receipt: &Receipt,
    tokenizer: Option<&TokenizerParts>,
    steps: &mut Vec<String>,
) -> Result<AnswerRuling, Malformed> {
    match tokenizer {
        Some(tokenizer) => named(receipt, tokenizer, steps)?,
        None if receipt.tokenizer.is_some() => {
            return Err(wrong("it carries no tokenizer, and the receipt names one"));
        }
        None => steps.push("no token ends texts over bytes".into()),
    }
    let (tokens, length) = (receipt.answer.len(), receipt.length);
    let ends = |id: &u32| tokenizer.is_some_and(|tokenizer| tokenizer.ends.contains(id));
    let is_whole = tokens >= length as usize || receipt.answer.last().is_some_and(ends);
    let fault =
        format!("the answer stops after {tokens} of {length} tokens, and its last token ends no text");
    Ok(ruling(is_whole, "the answer is whole", fault))
}

/// The window of a claim, under the receipt's root over traces.
fn pass(
    receipt: &Receipt,
    job: &str,
    window: &super::TracedWindow,
    steps: &mut Vec<String>,
) -> Result<Pass, Malformed> {
    let pass = Pass::of(receipt, job, window.number)?;
    pass.committed(window)?;
    steps.push(format!("the job has the receipt's model, and window {} is the receipt's", window.number));
    Ok(pass)
}

fn row(receipt: &Receipt, claim: &RowClaim, steps: &mut Vec<String>) -> Result<AnswerRuling, Malformed> {
    let RowClaim { job, window, number, row, logits } = claim;
    let pass = pass(receipt, job, window, steps)?;
    if !pass.numbers.contains(&(*number as usize)) {
        return Err(wrong(format!("window {} gives no row of token {number}", window.number)));
    }
    row_committed(receipt, *number, &row.digest, &row.proof)?;
    steps.push(format!("the digest of the row of token {number} is under the receipt's root"));
    let id = pass.graph.output("logits").ok_or_else(|| wrong("its graph has no logits"))?;
    if id.0 != logits.tensor {
        let (found, own) = (logits.tensor, id.0);
        return Err(wrong(format!(
            "it carries tensor {found} of the window, and the logits are tensor {own}"
        )));
    }
    let node = pass.graph.nodes.iter().position(|node| node.output == id);
    let node = node.ok_or_else(|| wrong("no operator makes the logits"))?;
    pass.traced(&window.root, node, &logits.commitment)?;
    let ty = pass.graph.tensor(id);
    check_slices(ty, logits)?;
    let len = ty.shape.last().map_or(0, |&classes| classes as usize * 4);
    let first = pass.row_place(receipt, *number as usize) * len;
    let slice = logits.slices.first().copied().unwrap_or(0);
    let in_order = logits.slices.iter().copied().eq(slice..slice + logits.slices.len());
    let bytes = first.checked_sub(slice * SLICE_BYTES).and_then(|at| logits.bytes.0.get(at..at + len));
    let bytes = bytes.filter(|_| in_order).ok_or_else(|| wrong("its slices do not hold the row"))?;
    steps.push(format!("{} slices of the logits are under the window's root", logits.slices.len()));
    let found = row_digest(&words_from_bytes(DType::F32, bytes));
    let right = format!("the row of token {number} is the one in the signer's own trace");
    let fault = format!("the row of token {number} is not the one in the signer's own trace");
    Ok(ruling(found == row.digest, right, fault))
}
