//! Commitments: digests and proofs of tensors, records, signed tree heads.
//!
//! A tensor has a digest, and each of its tiles a value:
//!
//! ```
//! use tiebreak::arith::DType;
//! use tiebreak::commit::tensor::{digest, tile_count, tile_values};
//! use tiebreak::program::graph::TensorType;
//!
//! let ty = TensorType { dtype: DType::F32, shape: vec![2, 1024] };
//! let mut bytes = vec![0; 8192];
//! let (before, tiles) = (digest(&ty, &bytes), tile_values(&bytes));
//! bytes[5000] = 1;
//! assert!(digest(&ty, &bytes) != before);
//! assert_eq!((tile_count(8192), tile_values(&bytes)[0] == tiles[0], tile_values(&bytes)[1] == tiles[1]), (2, true, false));
//! ```
//!
//! A leaf is proven against a root:
//!
//! ```
//! use tiebreak::commit::merkle::{leaf, prove, root, root_from_proof};
//!
//! let leaves: Vec<_> = (0..5u8).map(|i| leaf(&[i])).collect();
//! let proof = prove(&leaves, 3);
//! assert_eq!(root_from_proof(leaves[3], 3, 5, &proof)?, root(&leaves));
//! assert!(root_from_proof(leaves[2], 3, 5, &proof)? != root(&leaves));
//! # Ok::<(), tiebreak::commit::Malformed>(())
//! ```
//!
//! A trainer signs a head, and anybody verifies it:
//!
//! ```
//! use tiebreak::commit::digest::Digest;
//! use tiebreak::commit::keys::PrivateKey;
//! use tiebreak::commit::tree_head::{Head, Signed};
//!
//! let key = PrivateKey::generate("trainer.example", [7; 32])?;
//! let head = Head { run: Digest([1; 32]), size: 42, root: Digest([2; 32]) };
//! let note = head.to_note(Some(&key));
//! assert_eq!(Head::from_note(&note, Some(&key.public()))?, (head, Signed::By));
//! assert!(Head::from_note(&note.replace("42", "43"), Some(&key.public())).is_err());
//! # Ok::<(), tiebreak::commit::Malformed>(())
//! ```
//!
//! A witness adds a signature with its time:
//!
//! ```
//! use tiebreak::commit::cosignature::{cosigned, cosigned_at};
//! use tiebreak::commit::digest::Digest;
//! use tiebreak::commit::keys::PrivateKey;
//! use tiebreak::commit::tree_head::Head;
//!
//! let [trainer, witness] = [("trainer.example", 1), ("witness.example", 2)].map(|(name, seed)| PrivateKey::generate(name, [seed; 32]).unwrap());
//! let note = Head { run: Digest([1; 32]), size: 42, root: Digest([2; 32]) }.to_note(Some(&trainer));
//! let note = cosigned(&note, &witness, 1_700_000_000)?;
//! assert_eq!(cosigned_at(&note, &witness.public())?, Some(1_700_000_000));
//! # Ok::<(), tiebreak::commit::Malformed>(())
//! ```
//!
//! A key is a line of text:
//!
//! ```
//! use tiebreak::commit::keys::{PrivateKey, PublicKey};
//!
//! let key = PrivateKey::generate("auditor.example", [3; 32])?;
//! let public = PublicKey::from_text(&key.public().to_text())?;
//! assert!(public.verifies(b"a message", &key.sign(b"a message")));
//! assert!(!public.verifies(b"another", &key.sign(b"a message")));
//! # Ok::<(), tiebreak::commit::Malformed>(())
//! ```

#[doc(inline)]
pub use tiebreak_record::commit::Malformed;

/// A witness's signature with its time, added to a signed head.
pub mod cosignature {
    #[doc(inline)]
    pub use tiebreak_record::commit::cosignature::{cosigned, cosigned_at};
}

/// Digests of 32 bytes.
pub mod digest {
    #[doc(inline)]
    pub use tiebreak_record::commit::digest::{Digest, hash};
}

/// Keys of trainers, auditors, referees and witnesses, as lines of text.
pub mod keys {
    #[doc(inline)]
    pub use tiebreak_record::commit::keys::{PrivateKey, PublicKey};
}

/// The Merkle tree of RFC 6962: roots, and proofs of leaves and of prefixes.
pub mod merkle {
    #[doc(inline)]
    pub use tiebreak_record::commit::merkle::{
        leaf, prove, prove_consistency, root, root_from_proof, verify_consistency,
    };
}

/// Proofs as JSON files hold them.
pub mod proven {
    #[doc(inline)]
    pub use tiebreak_record::commit::proven::{Base64, Hashes, ProvenRecord};
}

/// The records of a transcript.
pub mod record {
    #[doc(inline)]
    pub use tiebreak_record::commit::record::{Record, StepRecord};
}

/// The salt key of a run whose commitments hide.
pub mod salts {
    #[doc(inline)]
    pub use tiebreak_record::commit::salts::SaltKey;
}

/// The digest of a state, and proofs of its tensors.
pub mod state {
    #[doc(inline)]
    pub use tiebreak_record::commit::state::{
        StateRoots, digest_from_proof, prove, state_digest, tensor_digests,
    };
}

/// The digests of tensors, and the values of their tiles.
pub mod tensor {
    #[doc(inline)]
    pub use tiebreak_record::commit::tensor::{
        Hash, TILE_BYTES, digest, digest_from_root, root, tile_count, tile_values,
    };
}

/// The tensors of one step, by digests.
pub mod trace {
    #[doc(inline)]
    pub use tiebreak_record::commit::trace::{Trace, TracedNode};
}

/// Signed heads: the size and the root of a transcript.
pub mod tree_head {
    #[doc(inline)]
    pub use tiebreak_record::commit::tree_head::{Head, Signed};
}
