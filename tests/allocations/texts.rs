//! Texts that say that they hold more than they do: an opening of a shard, a receipt.

use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::receipt::Receipt;

/// An opening that says that it shows a tensor of a million elements, and has none of them.
pub fn shard() -> String {
    let digest = Digest([7; 32]);
    let range = format!(
        r#"{{"tensor":"param/token_embedding","first":0,"count":{},"bytes":"","siblings":[],"salt":"{digest}","proof":[]}}"#,
        256 * 4096
    );
    format!(r#"{{"format":"tiebreak shard opening 1","run":"{digest}","step":1,"ranges":[{range}]}}"#)
}

/// A receipt of a million tokens, and nothing else.
pub fn receipt() -> String {
    format!("{{\"prompt\":[0{}]}}", ",0".repeat(1 << 20))
}

/// Reads a receipt, which has to be refused.
pub fn read_receipt(bytes: &[u8]) {
    assert!(Receipt::from_text(&String::from_utf8_lossy(bytes)).is_err());
}
