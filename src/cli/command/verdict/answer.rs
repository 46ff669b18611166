//! `tiebreak verdict check` of a verdict on a receipt of an answer.

use std::path::Path;

use serde_json::json;

use crate::cli::args::key;
use crate::cli::args::weight_files::tokenizer_at;
use crate::cli::view::alphabet::Alphabet;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer, bytes_text, named};
use tiebreak_dispute::answer::{AnswerRuling, AnswerVerdict};
use tiebreak_dispute::verdict::VERDICT_MAX;
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_run::run::{RunError, disk};

/// The first bytes of these files: the first field tells the kinds of verdicts apart.
pub const BEGIN: &[u8] = b"{\"answer\":";

/// The verdict on a receipt, and its size; nothing if the file is another kind of verdict.
pub fn read(file: &Path) -> Result<Option<(AnswerVerdict, u64)>, Failure> {
    let bytes = disk::read(file, VERDICT_MAX).map_err(named)?;
    if !bytes.starts_with(BEGIN) {
        return Ok(None);
    }
    let verdict = AnswerVerdict::from_bytes(&bytes).map_err(|error| RunError::malformed(file, error))?;
    Ok(Some((verdict, bytes.len() as u64)))
}

/// The key of a receipt's signer and the tokenizer that it names, as the command line has them.
pub struct Named<'a> {
    pub signer_key: Option<&'a str>,
    pub tokenizer: Option<&'a Path>,
}

/// Derives the verdict in a file again.
pub fn check(
    printer: Printer,
    file: &Path,
    (verdict, size): (&AnswerVerdict, u64),
    given: Named,
) -> CommandResult {
    let wanted = given.signer_key.map(key::read_public).transpose()?;
    if given.tokenizer.is_some() && !verdict.needs_tokenizer() {
        let why = "--tokenizer is for verdicts on a token of a receipt that names a tokenizer: leave it out";
        return Err(Failure::new(Exit::Usage, why));
    }
    let alphabet = given.tokenizer.map(tokenizer_at).transpose()?.map(Alphabet::named).transpose()?;
    let known = |count| alphabet.as_ref().map(|alphabet| alphabet.known(count)).unwrap_or_default();
    let digest = alphabet.as_ref().and_then(Alphabet::digest);
    let examination = verdict.examine(digest.map(|digest| (digest, &known as &dyn Fn(u32) -> Vec<bool>)));
    let kind = verdict.claim.kind();
    let mut lines = vec![format!("{kind} verdict on a receipt, {}", bytes_text(size))];
    lines.extend(examination.steps.iter().map(|step| format!("  ok: {step}")));
    let outcome = examination.outcome.map_err(|error| {
        printer.say(std::mem::take(&mut lines));
        RunError::malformed(file, error)
    })?;
    let signer = examination.signer.as_ref();
    if let (Some(wanted), Some(signer)) = (&wanted, signer)
        && wanted != signer
    {
        let (found, wanted) = (signer.identified(), wanted.identified());
        let why = format!("its receipt is signed by {found}, and --signer-key is {wanted}");
        return Err(RunError::malformed(file, Malformed::invalid("verdict", why)).into());
    }
    let by = signer.map(|signer| signer.identified()).unwrap_or_default();
    let (convicts, text) = match outcome {
        AnswerRuling::NeedsTokenizer(wanted) => {
            let why = match digest {
                Some(found) => format!("the tokenizer is {found}, and the receipt names {wanted}"),
                None => format!("the receipt names the tokenizer {wanted}: give --tokenizer PATH"),
            };
            let help = "the model's publisher has its tokenizer; `tiebreak generate --tokenizer` takes the same path";
            return Err(Failure::new(Exit::Usage, why).help(help));
        }
        AnswerRuling::DoesNotConvict(right) => (false, format!("does not convict: {right}")),
        AnswerRuling::Convicts(fault) => {
            let known = match wanted {
                Some(_) => "the key that --signer-key gives",
                None => "give --signer-key to establish whose key that is",
            };
            (true, format!("CONVICTS {by} ({known}) from this file alone\n{fault}"))
        }
    };
    if printer.quiet {
        lines.clear(); // what came out is to be the first line
    }
    lines.extend(text.lines().map(str::to_string));
    let value = json!({
        "kind": "answer", "claim": kind, "bytes": size, "checked": examination.steps, "convicts": convicts,
        "signer": signer.map(PublicKey::to_text), "signer_key_given": wanted.is_some(), "text": text,
    });
    printer.result(lines, &value);
    Ok(if convicts { Exit::Diverges } else { Exit::Match })
}
