//! in-toto Statements v1 about inspections. The predicate is our own; its fields are in docs/MONITORING-FORMAT.md, "Statements".

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::keys::{PrivateKey, PublicKey};
use tiebreak_record::commit::tree_head::Head;

use super::dsse;

/// The type of the envelope's payload.
pub const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";
/// The type of statements.
pub const STATEMENT_TYPE: &str = "https://in-toto.io/Statement/v1";
/// The type of our predicate.
pub const PREDICATE_TYPE: &str = "https://tiebreak.example/attestation/inspection/v1";
const WHAT: &str = "statement";

/// A subject, named by digests of its bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Subject {
    /// The subject's name.
    pub name: String,
    /// The digests, in lower-case hexadecimal.
    pub digest: Digests,
}

/// The digests of a subject's bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Digests {
    /// SHA-256.
    pub sha256: String,
    /// BLAKE3 without key or context. The name is an extension: in-toto has none for BLAKE3.
    pub blake3: String,
}

impl Subject {
    /// The head of a run: its three lines, each with its line end, which are a head's file without its signatures.
    pub fn of_head(head: &Head) -> Subject {
        let note = head.to_note(None);
        let text = note.strip_suffix('\n').unwrap_or(&note);
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        Subject {
            name: format!("tiebreak/run/{}/heads/{:012}", head.run, head.size),
            digest: Digests {
                sha256: hex(&Sha256::digest(text)),
                blake3: blake3::hash(text.as_bytes()).to_hex().to_string(),
            },
        }
    }
}

/// A statement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Statement {
    /// [`STATEMENT_TYPE`].
    #[serde(rename = "_type")]
    pub kind: String,
    /// The things that the statement is about.
    pub subject: Vec<Subject>,
    /// [`PREDICATE_TYPE`].
    #[serde(rename = "predicateType")]
    pub predicate_type: String,
    /// The findings about the subject.
    pub predicate: Value,
}

impl Statement {
    /// A statement about the head of a run.
    pub fn about(head: &Head, predicate: Value) -> Statement {
        Statement {
            kind: STATEMENT_TYPE.into(),
            subject: vec![Subject::of_head(head)],
            predicate_type: PREDICATE_TYPE.into(),
            predicate,
        }
    }

    /// The statement in an envelope that the key signed.
    pub fn signed(&self, key: &PrivateKey) -> String {
        let body =
            serde_json::to_string_pretty(self).expect("a statement has no maps with keys that are no text");
        dsse::sign(PAYLOAD_TYPE, body.as_bytes(), key)
    }

    /// Reads a statement from an envelope that `key` signed.
    ///
    /// # Errors
    /// If the envelope does not hold together, the key did not sign it, or it holds another kind of statement.
    pub fn open(envelope: &str, key: &PublicKey) -> Result<Statement, Malformed> {
        let body = dsse::open(envelope, PAYLOAD_TYPE, key)?;
        let wrong = |why: String| Malformed::invalid(WHAT, why);
        let statement: Statement = serde_json::from_slice(&body).map_err(|error| wrong(error.to_string()))?;
        for (found, expected) in
            [(&statement.kind, STATEMENT_TYPE), (&statement.predicate_type, PREDICATE_TYPE)]
        {
            if found != expected {
                return Err(wrong(format!("its type is {found:?}, and {expected:?} is expected")));
            }
        }
        Ok(statement)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tiebreak_record::commit::digest::Digest;

    #[test]
    fn a_statement_is_about_the_bytes_of_a_head_and_opens_with_its_key() {
        let head = Head { run: Digest([1; 32]), size: 9, root: Digest([2; 32]) };
        let key = PrivateKey::generate("inspector.example", [7; 32]).unwrap();
        let statement = Statement::about(&head, json!({ "n": 3 }));
        let envelope = statement.signed(&key);
        assert_eq!(Statement::open(&envelope, &key.public()).unwrap(), statement);
        let other = Statement { predicate_type: "https://example.com/other".into(), ..statement.clone() };
        assert!(Statement::open(&other.signed(&key), &key.public()).is_err());
        // The subject is the head's file up to its signatures, whoever signed it.
        let signed = head.to_note(Some(&key));
        let text = signed.split_once("\n\n").unwrap().0.to_string() + "\n";
        let sha256: String = Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(statement.subject[0].digest.sha256, sha256);
        assert_eq!(statement.subject[0].digest.blake3, blake3::hash(text.as_bytes()).to_hex().as_str());
    }
}
