//! Reports as files: JSON, signed by their auditor. The layout is in `docs/AUDIT.md`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use super::report::{Outcome, REPORT_FORMAT, Report};
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::{PrivateKey, PublicKey};

/// The most bytes of a report.
pub const REPORT_MAX: u64 = 1 << 26;
/// The prefix of the bytes that an auditor signs, which separates them from all other texts that a key signs.
const DOMAIN: &[u8] = b"tiebreak report 2\n";
/// The beginning of the last field. JSON strings contain no line end, so no string contains this text.
const SIGNATURE: &str = ",\n  \"signature\": \"";
/// The end of a signed report.
const END: &str = "\"\n}\n";

/// The fields that a merge takes from a report; other fields are for people.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Account {
    /// The run id.
    pub run: Digest,
    /// The computation that the run is of.
    pub computation: Digest,
    /// The digest of the canonical job.
    pub job: Digest,
    /// The root of the data's manifest.
    pub data: Digest,
    /// Steps of the whole run.
    pub steps: u32,
    /// The number of records that the head covers, the initial one included.
    pub head_size: u64,
    /// The root over these records.
    pub head_root: Digest,
    /// True if the head covers the final record, and the released model is the one of that record.
    pub end_checked: bool,
    /// True if the auditor's products were native ones: then no rounding was judged.
    pub native: bool,
    /// The outcome of the audit.
    pub outcome: Outcome<String>,
    /// Steps whose replay gave the committed result, as ranges first..=last; a range may be empty (last = first - 1).
    pub replayed: Vec<(u32, u32)>,
    /// The auditor's public key, as C2SP text; absent if nobody signed.
    pub auditor: Option<String>,
}

/// The version of a report, whose other fields may be unknown.
#[derive(Deserialize)]
struct Preamble {
    format: u32,
}

/// The bytes of a report's file. The report names the key, if there is one, as its auditor's.
pub fn encode(mut report: Report, key: Option<&PrivateKey>) -> Vec<u8> {
    report.auditor = key.map(|key| key.public().to_text());
    let text =
        serde_json::to_string_pretty(&report).expect("a report has no maps with keys that are no text");
    let Some(key) = key else { return format!("{text}\n").into_bytes() };
    let signature = STANDARD.encode(key.sign(&[DOMAIN, text.as_bytes()].concat()));
    let body = text.strip_suffix("\n}").expect("a report is an object with fields");
    format!("{body}{SIGNATURE}{signature}{END}").into_bytes()
}

/// True if the bytes end as a signed report does; only [`decode`] checks the signature.
pub fn is_signed(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|text| text.contains(SIGNATURE))
}

/// Reads a report and checks its auditor's signature. Without a signature the second value is `None`, and anybody can have
/// written the report.
///
/// # Errors
/// If the bytes are no report of this version, the signature is not over them, or a range of steps is not one of the run under
/// its head.
pub fn decode(bytes: &[u8]) -> Result<(Account, Option<PublicKey>), Malformed> {
    let wrong = |why: &str| Malformed::invalid("report", why);
    let text = std::str::from_utf8(bytes)
        .map_err(|error| wrong(&format!("the text is not UTF-8 from byte {} on", error.valid_up_to())))?;
    // The text that is signed, behind the domain: made once, and only of a signed report.
    let signed: Vec<u8>;
    let (text, signature) = match text.split_once(SIGNATURE) {
        None => (text.as_bytes(), None),
        Some((body, rest)) => {
            let end =
                || wrong("a signature is the last field, in the form that `tiebreak audit --key` writes");
            let signature = rest.strip_suffix(END).and_then(|rest| STANDARD.decode(rest).ok());
            let signature: [u8; 64] = signature.and_then(|bytes| bytes.try_into().ok()).ok_or_else(end)?;
            signed = [DOMAIN, body.as_bytes(), b"\n}"].concat();
            (&signed[DOMAIN.len()..], Some((signature, &signed)))
        }
    };
    let preamble: Option<Preamble> = serde_json::from_slice(text).ok();
    match preamble {
        Some(Preamble { format: REPORT_FORMAT }) => {}
        Some(Preamble { format }) => {
            return Err(wrong(&format!(
                "it has format {format}, and this program reads format {REPORT_FORMAT}: audit the run again"
            )));
        }
        None => {
            return Err(wrong("it is no report of an audit, as `tiebreak audit --report FILE` writes one"));
        }
    }
    let account: Account = serde_json::from_slice(text).map_err(|error| wrong(&error.to_string()))?;
    let auditor = match (&account.auditor, signature) {
        (None, None) => None,
        (Some(key), Some((signature, signed))) => {
            let key = PublicKey::from_text(key)?;
            if !key.verifies(signed, &signature) {
                return Err(wrong(&format!(
                    "the signature of {} is not over this text: it was changed after it was signed",
                    key.identified()
                )));
            }
            Some(key)
        }
        (Some(_), None) => return Err(wrong("it names an auditor, and carries no signature")),
        (None, Some(_)) => return Err(wrong("it carries a signature, and names no auditor")),
    };
    let last = u64::from(account.steps).min(account.head_size.saturating_sub(1));
    let fits = |&(first, end): &(u32, u32)| first > 0 && u64::from(end) <= last && end >= first - 1;
    if let Some((first, end)) = account.replayed.iter().find(|range| !fits(range)) {
        return Err(wrong(&format!(
            "it says that steps {first} to {end} are replayed; under its head the run has 1 to {last}"
        )));
    }
    Ok((account, auditor))
}
