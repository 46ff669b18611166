//! The receipt that a dispute game is about, for people and for programs.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use tiebreak_dispute::game::terms::Terms;
use tiebreak_record::commit::answer_trace::claimed_root;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::salted_receipt::{self, AnyReceipt};

/// The receipt of a game's terms.
pub struct Disputed {
    /// The SHA-256 of the receipt's file.
    sha256: String,
    receipt: AnyReceipt,
    traces: Digest,
}

impl Disputed {
    /// The receipt of terms that hold together; `None` if they are about a run.
    pub fn of(terms: &Terms) -> Option<Disputed> {
        let disputed = terms.receipt.as_ref()?;
        let (receipt, _) = salted_receipt::read(&disputed.text, disputed.opening.as_deref()).ok()?;
        let traces = match &receipt {
            AnyReceipt::Answer(receipt) => receipt.traces?,
            AnyReceipt::Predictions(receipt) => receipt.traces?,
        };
        let sha256 =
            Sha256::digest(disputed.text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        Some(Disputed { sha256, traces, receipt })
    }

    /// The digest of the model's settings, the roots over parameters and over buffers, and the root of the receipt.
    fn digests(&self) -> (Digest, Digest, Option<Digest>, Digest) {
        match &self.receipt {
            AnyReceipt::Answer(of) => (of.model, of.parameters, None, of.root),
            AnyReceipt::Predictions(of) => {
                let [parameters, buffers] = of.model.state;
                (of.model.model, parameters, Some(buffers), of.root())
            }
        }
    }

    /// In words, what parties compare.
    fn compared(&self) -> String {
        match &self.receipt {
            AnyReceipt::Answer(of) => format!(
                "each operator's output in the passes over the answer of {} tokens, and each row of logits",
                of.answer.len()
            ),
            AnyReceipt::Predictions(of) => format!(
                "each operator's output in the passes over {} samples from sample {} on, and the logits of each",
                of.samples.len(),
                of.first
            ),
        }
    }

    /// Names and values, in order.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let (model, parameters, buffers, root) = self.digests();
        let first = [
            ("receipt", format!("the file with the SHA-256 {}", self.sha256)),
            ("model", model.to_string()),
            ("parameters", parameters.to_string()),
        ];
        let last = [
            ("traces of the receipt", self.traces.to_string()),
            ("root of the receipt", root.to_string()),
            ("root over both", claimed_root(&self.traces, &root).to_string()),
            ("compared", self.compared()),
        ];
        let buffers = buffers.map(|buffers| ("buffers", buffers.to_string()));
        first.into_iter().chain(buffers).chain(last).collect()
    }

    /// A line for each fact.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.facts().into_iter().map(|(name, value)| format!("  {name}: {value}"))
    }

    /// The receipt for programs.
    pub fn json(&self) -> Value {
        let (model, parameters, buffers, root) = self.digests();
        let claimed = claimed_root(&self.traces, &root);
        let mut value = json!({
            "sha256": self.sha256, "model": model, "parameters": parameters, "traces": self.traces, "root": root, "claimed": claimed
        });
        if let Some(buffers) = buffers {
            value["buffers"] = json!(buffers);
        }
        value
    }
}
