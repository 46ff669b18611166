//! Things that the files tell which trainers, users and inspectors exchange beside a run: receipts of answers and predictions, openings,
//! promises, registers, draws, and lists about chips' logs.

use serde_json::Value;
use tiebreak_job::opening::Opening;
use tiebreak_job::shard_opening::ShardOpening;
use tiebreak_monitor::closed::ClosedLogs;
use tiebreak_monitor::draw::Draw;
use tiebreak_monitor::inspection::seen::Seen;
use tiebreak_monitor::promise::log::Promises;
use tiebreak_monitor::register::entry::Change;
use tiebreak_monitor::register::file;
use tiebreak_monitor::register::history::Register;
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::salted_receipt::{AnyReceipt, read};

use super::finding::Visibility::{ByGuess, Clear, Hidden, NotGuessable};
use super::finding::{Reveal, Visibility};

type Reveals = Vec<(Visibility, Reveal)>;

/// Everything that a file of JSON with this `format` tells; `None` if the format is none of an exchange.
///
/// # Errors
/// If the file is malformed.
pub fn of_json(text: &str, value: &Value) -> Option<Result<Reveals, Malformed>> {
    let (name, _version) = value["format"].as_str()?.rsplit_once(' ')?;
    Some(match name {
        "tiebreak receipt" | "tiebreak predictions" => of_receipt(text),
        "tiebreak salted receipt" => Ok(salted(value)),
        "tiebreak receipt opening" => of_receipt(value["receipt"].as_str().unwrap_or_default()),
        "tiebreak opening" => Opening::from_text(text).map(|opening| opened(&opening)),
        // The hashes beside the shown slices are of the same tensors, without salts.
        "tiebreak shard opening" => ShardOpening::from_text(text)
            .map(|_| vec![(Clear, Reveal::TensorParts), (NotGuessable, Reveal::States { steps: 1 })]),
        "tiebreak draw" => Draw::from_text(text).map(|draw| drawn(&draw)),
        _ => return None,
    })
}

/// Everything that a file tells which begins with a line of an exchange; `None` if its first line is none.
///
/// # Errors
/// If the file is malformed.
pub fn of_text(text: &str) -> Option<Result<Reveals, Malformed>> {
    let (name, _version) = text.lines().next()?.rsplit_once(' ')?;
    Some(match name {
        "tiebreak promises" => Promises::from_text(text).map(|promises| promised(&promises)),
        "tiebreak register" => file::from_text(text, None).map(|register| registered(&register)),
        "tiebreak log heads" => ClosedLogs::from_text(text).map(|closed| closed_logs(&closed)),
        "tiebreak seen log" => Seen::from_text(text).map(|seen| {
            let serials = vec![seen.serial.as_str().to_string()];
            vec![
                (Clear, Reveal::Chips { serials }),
                (NotGuessable, Reveal::LogLinks { records: seen.links.len() }),
            ]
        }),
        _ => return None,
    })
}

/// A receipt without a salt.
fn of_receipt(text: &str) -> Result<Reveals, Malformed> {
    let (receipt, signer) = read(text, None)?;
    let mut reveals: Reveals = match receipt {
        AnyReceipt::Answer(receipt) => {
            let (prompt, answer) = (receipt.prompt.len(), receipt.answer.len());
            vec![(Clear, Reveal::Answer { prompt, answer })]
        }
        AnyReceipt::Predictions(receipt) => {
            vec![(ByGuess, Reveal::PredictedSamples { samples: receipt.samples.len() })]
        }
    };
    reveals.push((ByGuess, Reveal::WhichModel));
    reveals.extend(signer.map(|key| (Clear, Reveal::Signers { names: vec![key.identified()] })));
    Ok(reveals)
}

fn salted(value: &Value) -> Reveals {
    let signer =
        value["signer"].as_str().map(|name| (Clear, Reveal::Signers { names: vec![name.to_string()] }));
    let salted = [(ByGuess, Reveal::WhichModel), (Hidden, Reveal::SaltedReceipt)];
    salted.into_iter().chain(signer).collect()
}

fn opened(opening: &Opening) -> Reveals {
    let (files, lengths) = (opening.parts.len(), opening.parts.iter().map(|part| part.length).sum());
    let bytes = opening.parts.iter().map(|part| part.bytes.0.len() as u64).sum();
    vec![(Clear, Reveal::Data { bytes }), (Clear, Reveal::DataLengths { files, bytes: lengths })]
}

fn drawn(draw: &Draw) -> Reveals {
    let serials = draw.chips.iter().map(|serial| serial.as_str().to_string()).collect();
    vec![
        (Clear, Reveal::Chips { serials }),
        (Clear, Reveal::Drawn { monitored: draw.monitored, exempt: draw.exempt, runs: draw.segments.len() }),
    ]
}

fn promised(promises: &Promises) -> Reveals {
    let number = promises.promises().len();
    vec![
        (Clear, Reveal::Trainer { name: promises.key().identified() }),
        (Clear, Reveal::Promises { number }),
        (ByGuess, Reveal::Computations { number }),
        (ByGuess, Reveal::DataDigests { files: number }),
    ]
}

fn registered(register: &Register) -> Reveals {
    let owners = register.entries().iter().filter_map(|entry| match &entry.change {
        Change::Enter { owner, .. } | Change::Transfer { owner, .. } => Some(owner.clone()),
        _ => None,
    });
    let mut owners: Vec<String> = owners.collect();
    owners.sort();
    owners.dedup();
    vec![(Clear, Reveal::Register { chips: register.chips(), owners })]
}

fn closed_logs(closed: &ClosedLogs) -> Reveals {
    let serials = closed.0.keys().map(|serial| serial.as_str().to_string()).collect();
    let records = closed.0.values().map(|head| head.records as usize).sum();
    vec![(Clear, Reveal::Chips { serials }), (NotGuessable, Reveal::LogLinks { records })]
}
