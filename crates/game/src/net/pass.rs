//! The referee's pass: a short code in a request's header that only the referee and the party can compute. With it a party knows
//! its referee before it reads a body or checks a signature.
//!
//! The secret is X25519 of one side's private and the other's public key. A stranger has neither. The code belongs to one
//! question, so that an eavesdropper can submit only this question again.

use tiebreak_record::commit::digest::{Digest, hash};
use tiebreak_record::commit::keys::{PrivateKey, PublicKey};

/// The header of the pass: the question's name and the code, 64 hexadecimal digits each.
pub const HEADER: &str = "tiebreak-pass";

/// Makes and checks passes between two keys in a game.
pub struct Pass([u8; 32]);

/// The name of a sealed question.
pub(crate) fn question_name(sealed: &[u8]) -> Digest {
    hash("tiebreak 2 sealed question", sealed)
}

impl Pass {
    /// The passes between one's own key and another's in a game: the same for both.
    pub fn new(own: &PrivateKey, other: &PublicKey, game: &Digest) -> Pass {
        Pass(hash("tiebreak 2 referee pass", &[own.shared(other), game.0].concat()).0)
    }

    fn code(&self, question: &Digest) -> blake3::Hash {
        blake3::keyed_hash(&self.0, &question.0)
    }

    /// The header for a sealed question.
    pub fn header(&self, sealed: &[u8]) -> String {
        let question = question_name(sealed);
        format!("{question}{}", self.code(&question).to_hex())
    }

    /// The name of the question that a header admits, if the header is a pass.
    pub(crate) fn lets_in(&self, header: &[u8]) -> Option<Digest> {
        let (question, code) = std::str::from_utf8(header).ok()?.split_at_checked(64)?;
        let (question, code) = (question.parse::<Digest>().ok()?, code.parse::<Digest>().ok()?);
        // The comparison of BLAKE3's crate takes constant time.
        (self.code(&question) == blake3::Hash::from_bytes(code.0)).then_some(question)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(seed: u8) -> PrivateKey {
        PrivateKey::generate("k", [seed; 32]).unwrap()
    }

    #[test]
    fn only_the_two_keys_make_a_pass_and_only_for_one_question_of_one_game() {
        let (referee, party, game) = (key(1), key(2), Digest([3; 32]));
        let made = Pass::new(&referee, &party.public(), &game).header(b"question");
        let pass = Pass::new(&party, &referee.public(), &game);
        assert_eq!(pass.lets_in(made.as_bytes()), Some(question_name(b"question")));
        let others = [
            Pass::new(&key(4), &party.public(), &game),
            Pass::new(&referee, &key(4).public(), &game),
            Pass::new(&referee, &party.public(), &Digest([4; 32])),
        ];
        for other in others {
            assert_eq!(pass.lets_in(other.header(b"question").as_bytes()), None);
        }
        let other = pass.header(b"another question");
        for wrong in [
            String::new(),
            made[..64].to_string(),
            format!("{}{}", &other[..64], &made[64..]),
            made.to_uppercase(),
            format!("{made}00"),
            "ü".repeat(64),
        ] {
            assert_eq!(pass.lets_in(wrong.as_bytes()), None, "{wrong}");
        }
    }

    /// The example of docs/TRANSPORT.md, as another implementation gives it.
    #[test]
    fn a_pass_has_known_bytes() {
        let pass = Pass::new(&key(1), &key(2).public(), &Digest([3; 32]));
        let known = [
            "ff7118121ea82343843552697e9e5e49380eb459619533f624784344b8a4455c",
            "b5a1d2747b04eea9a9457f8160e23cdf39488c8017354cd9db3156c790290f4f",
        ];
        assert_eq!(pass.header(b"question"), known.concat());
    }
}
