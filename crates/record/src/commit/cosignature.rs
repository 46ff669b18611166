//! Signatures with a time, added to a head that already exists: C2SP tlog-cosignature, `cosignature/v1`. The time comes from the
//! signer's clock, and so is the signer's claim.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::Malformed;
use super::keys::{COSIGNATURE, PrivateKey, PublicKey};

/// The signed message: a line that names the kind of signature, the time, and the head's three lines.
fn message(text: &str, time: u64) -> Vec<u8> {
    format!("cosignature/v1\ntime {time}\n{text}").into_bytes()
}

/// The three lines of a note, and its signature lines.
fn parts(note: &str) -> Result<(String, &str), Malformed> {
    let (text, signatures) =
        note.split_once("\n\n").ok_or_else(|| Malformed::invalid("head", "there is no blank line"))?;
    Ok((format!("{text}\n"), signatures))
}

/// The note with one more line, in which `key` signs the note at `time`, in seconds since 1970 (UTC).
///
/// # Errors
/// If the text is no note.
///
/// ```
/// use tiebreak_record::commit::cosignature::{cosigned, cosigned_at, utc};
/// use tiebreak_record::commit::digest::Digest;
/// use tiebreak_record::commit::keys::PrivateKey;
/// use tiebreak_record::commit::tree_head::Head;
///
/// let trainer = PrivateKey::generate("trainer.example", [7; 32])?;
/// let witness = PrivateKey::generate("witness.example", [8; 32])?;
/// let head = Head { run: Digest([1; 32]), size: 42, root: Digest([2; 32]) };
/// let note = cosigned(&head.to_note(Some(&trainer)), &witness, 1_700_000_000)?;
/// assert_eq!(cosigned_at(&note, &witness.public())?, Some(1_700_000_000));
/// assert_eq!(utc(1_700_000_000), "2023-11-14 22:13:20 UTC");
/// // The trainer's signature stands as before.
/// assert_eq!(Head::from_note(&note, Some(&trainer.public()))?.0, head);
/// # Ok::<(), tiebreak_record::commit::Malformed>(())
/// ```
pub fn cosigned(note: &str, key: &PrivateKey, time: u64) -> Result<String, Malformed> {
    let (text, _) = parts(note)?;
    let signature = key.sign(&message(&text, time));
    let public = key.public();
    let blob = [&public.hash_as(COSIGNATURE)[..], &time.to_be_bytes(), &signature].concat();
    Ok(format!("{note}\u{2014} {} {}\n", public.name(), STANDARD.encode(blob)))
}

/// The earliest time at which `key` cosigned a note, in seconds since 1970 (UTC); `None` if it did not.
///
/// # Errors
/// If the text is no note, or a cosignature of this key does not verify.
pub fn cosigned_at(note: &str, key: &PublicKey) -> Result<Option<u64>, Malformed> {
    let (text, signatures) = parts(note)?;
    let mut earliest = None;
    for line in signatures.lines() {
        let signed = line.strip_prefix("\u{2014} ").and_then(|rest| rest.split_once(' '));
        let Some((_, blob)) = signed.filter(|(name, _)| *name == key.name()) else { continue };
        let wrong = |why: String| Malformed::invalid("head", why);
        let blob =
            STANDARD.decode(blob).map_err(|error| wrong(format!("a signature is not base64: {error}")))?;
        let Some((hash, rest)) = blob.split_first_chunk::<4>() else { continue };
        if *hash != key.hash_as(COSIGNATURE) {
            continue;
        }
        let signature = rest.split_first_chunk::<8>().and_then(|(time, signature)| {
            Some((u64::from_be_bytes(*time), <&[u8; 64]>::try_from(signature).ok()?))
        });
        let (time, signature) = signature
            .ok_or_else(|| wrong(format!("a cosignature has 76 bytes, this one has {}", rest.len() + 4)))?;
        if !key.verifies(&message(&text, time), signature) {
            let key = key.to_text();
            return Err(wrong(format!("the signature that was added later does not verify by {key}")));
        }
        earliest = Some(earliest.map_or(time, |earlier: u64| earlier.min(time)));
    }
    Ok(earliest)
}

/// Seconds since 1970 as a date, in the proleptic Gregorian calendar. Source: H. Hinnant, "chrono-compatible low-level date
/// algorithms", `civil_from_days`.
pub fn utc(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{}-{month:02}-{date:02} {hour:02}:{minute:02}:{second:02} UTC", era * 400 + year + later)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit::digest::Digest;
    use crate::commit::tree_head::{Head, Signed};

    #[test]
    fn a_later_signature_says_when_and_every_changed_byte_is_seen() {
        let key = PrivateKey::generate("trainer.example", [7; 32]).unwrap();
        let public = key.public();
        let head = Head { run: Digest([1; 32]), size: 42, root: Digest([2; 32]) };
        let note = head.to_note(None);
        assert_eq!(cosigned_at(&note, &public), Ok(None));
        let signed = cosigned(&note, &key, 1_700_000_000).unwrap();
        assert_eq!(cosigned_at(&signed, &public), Ok(Some(1_700_000_000)));
        // The head is unchanged, and still not signed as a trainer signs it.
        assert_eq!(Head::from_note(&signed, None), Ok((head.clone(), Signed::Unknown)));
        assert!(Head::from_note(&signed, Some(&public)).is_err());
        assert_eq!(cosigned_at(&head.to_note(Some(&key)), &public), Ok(None));
        for i in 0..signed.len() {
            let mut bytes = signed.clone().into_bytes();
            bytes[i] ^= 1;
            if let Ok(changed) = String::from_utf8(bytes) {
                let found = cosigned_at(&changed, &public);
                assert!(matches!(found, Err(_) | Ok(None)), "byte {i}: {found:?}");
            }
        }
        assert_eq!(utc(1_700_000_000), "2023-11-14 22:13:20 UTC");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00:00 UTC");
        assert!(utc(u64::MAX).ends_with("UTC"));
    }
}
