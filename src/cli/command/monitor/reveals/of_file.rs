//! Things that a single published file tells: a pack, a verdict, a chip's log, a report, a statement, or a file of an exchange.

use std::collections::BTreeSet;
use std::io::{BufReader, Read};
use std::path::Path;

use serde_json::Value;
use tiebreak_audit::report_file;
use tiebreak_dispute::verdict::{Claim, VERDICT_MAX, Verdict};
use tiebreak_monitor::pack::error::PackError;
use tiebreak_monitor::pack::seal::{is_sealed, recipients};
use tiebreak_monitor::snapshot::log::{ChipLog, RECORDS_MAX};
use tiebreak_monitor::snapshot::record::{Event, RECORD_BYTES};
use tiebreak_monitor::statement::in_toto::PAYLOAD_TYPE;
use tiebreak_run::run::{RunError, disk};

use super::finding::Visibility::{ByGuess, Clear, Hidden, NotGuessable};
use super::finding::{Reveal, Told, Visibility};
use super::of_exchange;
use crate::cli::view::report::{Exit, Failure, named};

/// The first bytes of a file, which say of what kind it is.
const LOOKED_AT: usize = 64;
/// The most bytes of a file that is read whole.
const FILE_MAX: u64 = if VERDICT_MAX > LOG_MAX { VERDICT_MAX } else { LOG_MAX };
/// The most serial numbers that are listed; a log is of one chip.
const SERIALS_MAX: usize = 20;
const LOG_MAX: u64 = (RECORDS_MAX * RECORD_BYTES) as u64;

/// Everything that a file tells.
///
/// # Errors
/// If the file is of no kind that this program hands out, or cannot be read.
pub fn told(path: &Path) -> Result<Told, Failure> {
    let mut begin = Vec::new();
    let file = disk::open(path).map_err(named)?;
    let length = file.metadata().map_err(RunError::io(path))?.len();
    (&file).take(LOOKED_AT as u64).read_to_end(&mut begin).map_err(RunError::io(path))?;
    let reveals = match &begin[..] {
        begin if is_sealed(begin) => sealed(path, length)?,
        [b'{', ..] => of_json(path, &disk::read(path, FILE_MAX)?)?,
        _ => {
            let bytes = disk::read(path, FILE_MAX)?;
            match std::str::from_utf8(&bytes).ok().and_then(of_exchange::of_text) {
                Some(reveals) => reveals.map_err(|error| RunError::malformed(path, error))?,
                None => log(path, &bytes)?,
            }
        }
    };
    Ok(Told::new(path.display().to_string(), reveals))
}

type Reveals = Vec<(Visibility, Reveal)>;

/// The header of a pack is in the clear.
fn sealed(path: &Path, length: u64) -> Result<Reveals, Failure> {
    let recipients = recipients(BufReader::new(disk::open(path)?)).map_err(|error| match error {
        PackError::Malformed(error) => RunError::malformed(path, error),
        error => RunError::invalid(path, error.to_string()),
    })?;
    Ok(vec![(Clear, Reveal::SealedLength { bytes: length }), (Hidden, Reveal::Sealed { recipients })])
}

fn of_json(path: &Path, bytes: &[u8]) -> Result<Reveals, Failure> {
    let value: Value =
        serde_json::from_slice(bytes).map_err(|error| RunError::invalid(path, error.to_string()))?;
    let malformed = |error| RunError::malformed(path, error);
    let text = String::from_utf8_lossy(bytes);
    if let Some(reveals) = of_exchange::of_json(&text, &value) {
        return Ok(reveals.map_err(malformed)?);
    }
    if value["payloadType"] == PAYLOAD_TYPE {
        return Ok(vec![(Clear, Reveal::Result)]);
    }
    if value.get("claim").is_some() {
        return Ok(verdict(&Verdict::from_bytes(bytes).map_err(malformed)?));
    }
    report_file::decode(bytes).map_err(malformed)?;
    Ok(vec![
        (Clear, Reveal::Result),
        (ByGuess, Reveal::Computations { number: 1 }),
        (ByGuess, Reveal::DataDigests { files: 1 }),
    ])
}

/// A verdict carries the job, and the evidence.
fn verdict(verdict: &Verdict) -> Reveals {
    let claim = verdict.claim.kind();
    let data_bytes = match &verdict.claim {
        Claim::Batch { slices, .. } => slices.iter().map(|slices| slices.bytes.0.len() as u64).sum(),
        _ => 0,
    };
    let mut reveals = vec![
        (Clear, Reveal::Settings { paths: Vec::new() }),
        (Clear, Reveal::Claim { claim, data_bytes }),
        (ByGuess, Reveal::DataDigests { files: 1 }),
    ];
    if verdict.program.is_some() {
        reveals.push((Clear, Reveal::Architecture { parameters: None }));
    }
    if matches!(verdict.claim, Claim::Tile(_) | Claim::Rounding(_) | Claim::Weights(_)) {
        reveals.push((Clear, Reveal::TensorParts));
    }
    reveals
}

fn log(path: &Path, bytes: &[u8]) -> Result<Reveals, Failure> {
    let log = ChipLog::read(bytes).ok().filter(|log| !log.records.is_empty()).ok_or_else(|| {
        let why = format!("{} is of no kind that tiebreak hands out", path.display());
        let help = "give a run's folder, or a file that tiebreak wrote for others: a pack, a receipt, a verdict, a chip's log";
        Failure::new(Exit::Usage, why).help(help)
    })?;
    let events = || log.records.iter().map(|signed| &signed.record.event);
    let serials: BTreeSet<&str> = log.records.iter().map(|signed| signed.record.serial.as_str()).collect();
    let computations: BTreeSet<_> = events()
        .filter_map(|event| match event {
            Event::Attach { computation, .. } => Some(computation.0),
            _ => None,
        })
        .collect();
    let records = log.records.len();
    let idle = events().filter(|event| matches!(event, Event::Idle)).count();
    let snapshots = events().filter(|event| matches!(event, Event::Snapshot { .. })).count();
    Ok(vec![
        (
            Clear,
            Reveal::Chips { serials: serials.into_iter().take(SERIALS_MAX).map(str::to_string).collect() },
        ),
        (Clear, Reveal::ChipTimes { records, idle }),
        (ByGuess, Reveal::Computations { number: computations.len() }),
        (NotGuessable, Reveal::Snapshots { number: snapshots }),
    ])
}
