//! Ed25519 keys in the text form of C2SP signed notes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signer, SigningKey, VerifyingKey};
use sha2::{Digest as _, Sha256};

use super::Malformed;

/// The signature type byte of Ed25519 in signed notes.
const ED25519: u8 = 1;
/// The signature type byte of a timestamped Ed25519 signature ([`super::cosignature`]).
pub(super) const COSIGNATURE: u8 = 4;
/// The most bytes of a key's text.
const TEXT_MAX: usize = 512;

/// A trainer's private key.
#[derive(Clone)]
pub struct PrivateKey {
    name: String,
    key: SigningKey,
}

/// The key that checks a trainer's heads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey {
    name: String,
    key: VerifyingKey,
}

/// Checks a key name: printable, without spaces and plus signs.
fn check_name(name: &str) -> Result<(), Malformed> {
    if name.is_empty()
        || name.len() > 128
        || name.chars().any(|c| c.is_whitespace() || c.is_control() || c == '+')
    {
        let why = format!(
            "it has {} bytes; 1 to 128 without spaces, control characters and '+' are wanted",
            name.len()
        );
        return Err(Malformed::invalid("key name", why));
    }
    Ok(())
}

/// The four bytes that name a key in a line of signatures of this type.
fn key_hash(kind: u8, name: &str, key: &[u8; 32]) -> [u8; 4] {
    let hash = Sha256::new().chain_update(name).chain_update([b'\n', kind]).chain_update(key).finalize();
    [hash[0], hash[1], hash[2], hash[3]]
}

/// The error for a key whose text has another hash than the key.
fn other_hash(what: &'static str, found: [u8; 4], right: [u8; 4]) -> Malformed {
    Malformed::invalid(what, format!("its hash is {}; the key gives {}", hex4(found), hex4(right)))
}

fn hex4(hash: [u8; 4]) -> String {
    hash.iter().map(|b| format!("{b:02x}")).collect()
}

/// The name, the key hash and the 32 key bytes of `name+hash+base64`, whose signatures are of this type.
fn parse(what: &'static str, kind: u8, text: &str) -> Result<(String, [u8; 4], [u8; 32]), Malformed> {
    if text.len() > TEXT_MAX {
        return Err(Malformed::TooLarge { what, limit: TEXT_MAX as u64 });
    }
    let mut parts = text.splitn(3, '+');
    let (Some(name), Some(hash), Some(data)) = (parts.next(), parts.next(), parts.next()) else {
        let found = text.split('+').count();
        return Err(Malformed::invalid(what, format!("it has {found} of the 3 parts of name+hash+base64")));
    };
    check_name(name)?;
    let bytes = STANDARD.decode(data).map_err(|error| Malformed::invalid(what, error.to_string()))?;
    // A malformed private key is quoted nowhere: its secret may stand in another field's place.
    let Some((_, key)) = bytes.split_first().filter(|(found, _)| **found == kind) else {
        return Err(Malformed::invalid(
            what,
            format!("its algorithm is not Ed25519, whose number is {kind}"),
        ));
    };
    let wrong =
        |_| Malformed::invalid(what, format!("an Ed25519 key has 32 bytes, this one has {}", key.len()));
    let key = key.try_into().map_err(wrong)?;
    let digits = hash.len() == 8 && hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let number = u32::from_str_radix(hash, 16).ok().filter(|_| digits);
    let hash = number.ok_or_else(|| {
        let found = hash.len();
        Malformed::invalid(
            what,
            format!("its hash has {found} bytes; 8 lower-case hexadecimal digits are wanted"),
        )
    })?;
    Ok((name.to_string(), hash.to_be_bytes(), key))
}

impl PrivateKey {
    /// A key from 32 bytes of the system's randomness.
    ///
    /// # Errors
    /// If the name is not one that a signed note can carry.
    ///
    /// ```
    /// use tiebreak_record::commit::keys::{PrivateKey, PublicKey};
    ///
    /// let key = PrivateKey::generate("trainer.example", [7; 32])?; // take the system's randomness
    /// let public = PublicKey::from_text(&key.public().to_text())?;
    /// let signature = key.sign(b"a head");
    /// assert!(public.verifies(b"a head", &signature) && !public.verifies(b"another", &signature));
    /// # Ok::<(), tiebreak_record::commit::Malformed>(())
    /// ```
    pub fn generate(name: &str, seed: [u8; 32]) -> Result<PrivateKey, Malformed> {
        check_name(name)?;
        Ok(PrivateKey { name: name.to_string(), key: SigningKey::from_bytes(&seed) })
    }

    /// The public key of the pair.
    pub fn public(&self) -> PublicKey {
        PublicKey { name: self.name.clone(), key: self.key.verifying_key() }
    }

    /// `PRIVATE+KEY+name+hash+base64`.
    pub fn to_text(&self) -> String {
        let data = STANDARD.encode([&[ED25519], &self.key.to_bytes()[..]].concat());
        format!("PRIVATE+KEY+{}+{}+{data}", self.name, hex4(self.public().hash()))
    }

    /// Parses the form of [`PrivateKey::to_text`]; white space at the end is ignored.
    ///
    /// # Errors
    /// If the text has another form, or its key hash does not belong to the key.
    pub fn from_text(text: &str) -> Result<PrivateKey, Malformed> {
        let what = "private key";
        let rest = text.trim_end().strip_prefix("PRIVATE+KEY+");
        let rest =
            rest.ok_or_else(|| Malformed::invalid(what, "the form is PRIVATE+KEY+name+hash+base64"))?;
        let (name, hash, seed) = parse(what, ED25519, rest)?;
        let key = PrivateKey { name, key: SigningKey::from_bytes(&seed) };
        let right = key.public().hash();
        if right != hash {
            return Err(other_hash(what, hash, right));
        }
        Ok(key)
    }

    /// The secret that this key shares with another one: X25519 (RFC 7748) of this key's scalar and the other's point in
    /// Montgomery form.
    #[doc(hidden)] // for the layers above
    pub fn shared(&self, other: &PublicKey) -> [u8; 32] {
        other.key.to_montgomery().mul_clamped(self.key.to_scalar_bytes()).to_bytes()
    }

    /// The Ed25519 signature (RFC 8032) of a message.
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.key.sign(message).to_bytes()
    }
}

impl PublicKey {
    /// The signer's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The Ed25519 public key.
    #[doc(hidden)] // for the layers above
    pub fn bytes(&self) -> [u8; 32] {
        self.key.to_bytes()
    }

    pub(super) fn hash(&self) -> [u8; 4] {
        self.hash_as(ED25519)
    }

    /// The key's hash in lines of signatures of this type.
    pub(super) fn hash_as(&self, kind: u8) -> [u8; 4] {
        key_hash(kind, &self.name, &self.bytes())
    }

    /// The fingerprint, which tells keys of one name apart: the first 12 bytes of SHA-256 over the 32 key bytes, as 24
    /// hexadecimal digits.
    #[doc(hidden)] // for the layers above
    pub fn fingerprint(&self) -> String {
        Sha256::digest(self.bytes()).iter().take(12).map(|byte| format!("{byte:02x}")).collect()
    }

    /// Name and fingerprint, for people: a key's owner may choose any name.
    #[doc(hidden)] // for the layers above
    pub fn identified(&self) -> String {
        format!("{}, key {}", self.name, self.fingerprint())
    }

    /// `name+hash+base64`.
    pub fn to_text(&self) -> String {
        let data = STANDARD.encode([&[ED25519], &self.bytes()[..]].concat());
        format!("{}+{}+{data}", self.name, hex4(self.hash()))
    }

    /// Parses the form of [`PublicKey::to_text`]; white space at the end is ignored.
    ///
    /// # Errors
    /// If the text has another form, the bytes are no Ed25519 public key, or the key hash does not belong to the key.
    pub fn from_text(text: &str) -> Result<PublicKey, Malformed> {
        PublicKey::of_type(ED25519, text)
    }

    /// Parses the key of a witness: as other signers write theirs, or as C2SP tlog-cosignature has it, whose type is that of timestamped
    /// signatures.
    ///
    /// # Errors
    /// As [`PublicKey::from_text`].
    ///
    /// ```
    /// use tiebreak_record::commit::keys::{PrivateKey, PublicKey};
    ///
    /// let key = PrivateKey::generate("witness.example", [7; 32])?.public();
    /// assert_eq!(PublicKey::from_witness_text(&key.to_witness_text())?, key);
    /// assert_eq!(PublicKey::from_witness_text(&key.to_text())?, key);
    /// // The key of a trainer has one text.
    /// assert!(PublicKey::from_text(&key.to_witness_text()).is_err());
    /// # Ok::<(), tiebreak_record::commit::Malformed>(())
    /// ```
    #[doc(hidden)] // for the layers above
    pub fn from_witness_text(text: &str) -> Result<PublicKey, Malformed> {
        PublicKey::of_type(COSIGNATURE, text).or_else(|_| PublicKey::from_text(text))
    }

    /// The key as C2SP tlog-cosignature has it, for logs that want a witness's key.
    #[doc(hidden)] // for the layers above
    pub fn to_witness_text(&self) -> String {
        let data = STANDARD.encode([&[COSIGNATURE], &self.bytes()[..]].concat());
        format!("{}+{}+{data}", self.name, hex4(self.hash_as(COSIGNATURE)))
    }

    fn of_type(kind: u8, text: &str) -> Result<PublicKey, Malformed> {
        let what = "public key";
        let (name, hash, bytes) = parse(what, kind, text.trim_end())?;
        let key =
            VerifyingKey::from_bytes(&bytes).map_err(|error| Malformed::invalid(what, error.to_string()))?;
        let key = PublicKey { name, key };
        let right = key.hash_as(kind);
        if right != hash {
            return Err(other_hash(what, hash, right));
        }
        Ok(key)
    }

    /// True if the bytes of a signature line of a signed note, which are the key's hash and a signature, are this key's signature of
    /// the note's text.
    #[doc(hidden)] // for the layers above
    pub fn verifies_note(&self, text: &str, blob: &[u8]) -> bool {
        let signature = blob.strip_prefix(&self.hash()[..]).and_then(|rest| <&[u8; 64]>::try_from(rest).ok());
        signature.is_some_and(|signature| self.verifies(text.as_bytes(), signature))
    }

    /// True if this is the key's signature of a message; only canonical signatures by keys of full order count.
    pub fn verifies(&self, message: &[u8], signature: &[u8; 64]) -> bool {
        self.key.verify_strict(message, &ed25519_dalek::Signature::from_bytes(signature)).is_ok()
    }
}
