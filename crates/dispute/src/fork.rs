//! Two signed histories of one run.

use super::check::{Shown, shown};
use super::evidence::context::Context;
use super::evidence::proven::wrong;
use super::fact::Fact;
use super::verdict::{Fork, ProvenRecord};
use tiebreak_record::commit::tree_head::Head;
use tiebreak_record::commit::{Malformed, merkle};

impl Context {
    /// The result of two heads of one run. Both must bear the signature of the key that the run names: the second
    /// head is no evidence against anybody else.
    pub fn fork(
        &self,
        record: Option<&ProvenRecord>,
        other: &str,
        evidence: &Fork,
        steps: &mut Vec<String>,
    ) -> Result<Shown, Malformed> {
        let key = self.key.as_ref().ok_or_else(|| wrong("nobody signed the heads of a run without a key"))?;
        let (other, _) = Head::from_note(other, Some(key))?;
        if other.run != self.run {
            let [found, own] = [other.run, self.run].map(|run| run.short());
            return Err(wrong(format!(
                "the other head is of run {found}, and the verdict is about run {own}"
            )));
        }
        steps.push(format!("another head of this run, over {} records, has the same signer", other.size));
        match (evidence, record) {
            (Fork::Prefix { proof }, None) => {
                let (small, large) =
                    if self.head.size < other.size { (&self.head, &other) } else { (&other, &self.head) };
                let (part, all) = merkle::roots_from_prefix_proof(small.size, large.size, proof)?;
                if all != large.root {
                    let [found, own] = [all, large.root].map(|root| root.short());
                    return Err(wrong(format!(
                        "the proof gives the root {found}; the larger head has {own}"
                    )));
                }
                steps.push(format!(
                    "the first {} records of the larger head's history have a root",
                    small.size
                ));
                Ok(shown(0, part == small.root, Fact::History { records: small.size }))
            }
            (Fork::Record { record: there }, Some(here)) => {
                self.proven(here, &self.head)?;
                self.proven(there, &other)?;
                if here.index != there.index {
                    return Err(wrong(format!(
                        "the two records are at places {} and {}; a fork is at one place",
                        here.index, there.index
                    )));
                }
                steps.push(format!("each head covers a record {}", here.index));
                let step = u32::try_from(here.index).unwrap_or(0);
                Ok(shown(step, here.record == there.record, Fact::Record { index: here.index }))
            }
            _ => Err(wrong("a fork is shown by two heads alone or by two records")),
        }
    }
}
