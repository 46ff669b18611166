//! The receipt that a dispute game is about, for people and for programs.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use tiebreak_dispute::game::terms::Terms;
use tiebreak_record::commit::answer_trace::claimed_root;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::receipt::Receipt;
use tiebreak_record::commit::salted_receipt::{self, AnyReceipt};

/// The receipt of a game's terms.
pub struct Disputed {
    /// The SHA-256 of the receipt's file.
    sha256: String,
    receipt: Receipt,
    traces: Digest,
}

impl Disputed {
    /// The receipt of terms that hold together; `None` if they are about a run.
    pub fn of(terms: &Terms) -> Option<Disputed> {
        let disputed = terms.receipt.as_ref()?;
        let (receipt, _) = salted_receipt::read(&disputed.text, disputed.opening.as_deref()).ok()?;
        let AnyReceipt::Answer(receipt) = receipt else { return None };
        let sha256 =
            Sha256::digest(disputed.text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        Some(Disputed { sha256, traces: receipt.traces?, receipt })
    }

    /// Names and values, in order.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let tokens = self.receipt.answer.len();
        vec![
            ("receipt", format!("the file with the SHA-256 {}", self.sha256)),
            ("model", self.receipt.model.to_string()),
            ("parameters", self.receipt.parameters.to_string()),
            ("traces of the receipt", self.traces.to_string()),
            ("root of the receipt", self.receipt.root.to_string()),
            ("root over both", self.claimed().to_string()),
            (
                "compared",
                format!(
                    "each operator's output in the passes over the answer of {tokens} tokens, and each row of logits"
                ),
            ),
        ]
    }

    /// A line for each fact.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.facts().into_iter().map(|(name, value)| format!("  {name}: {value}"))
    }

    /// The root that a party with the receipt's traces and root commits to.
    fn claimed(&self) -> Digest {
        claimed_root(&self.traces, &self.receipt.root)
    }

    /// The receipt for programs.
    pub fn json(&self) -> Value {
        let Receipt { model, parameters, root, .. } = &self.receipt;
        json!({
            "sha256": self.sha256, "model": model, "parameters": parameters, "traces": self.traces, "root": root, "claimed": self.claimed()
        })
    }
}
