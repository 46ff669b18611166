//! The folder of the monitoring demo: what is published, what the chips logged, and the keys.

use std::path::Path;

use super::chips::register;
use super::scenario::{CHIPS, Operator, Seed};
use crate::cli::view::report::Failure;
use tiebreak_monitor::closed::{ClosedLogs, LogHead};
use tiebreak_monitor::register::file::to_text;
use tiebreak_monitor::snapshot::log::{ChipLog, RECORDS_MAX};
use tiebreak_monitor::snapshot::record::{RECORD_BYTES, Serial};
use tiebreak_run::run::RunError;
use tiebreak_run::run::disk::{self, Disk};

/// The question of the demo.
pub struct Month<'a> {
    /// The folder, which is there and empty.
    pub folder: &'a Path,
    /// True if nobody cheats.
    pub honest: bool,
    /// The seed of keys, times and draw.
    pub seed: u64,
    /// The text that the runs are trained on.
    pub text: &'a [u8],
}

/// Writes a file of the demo's folder.
pub fn write(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), Failure> {
    let path = folder.join(name);
    let path = std::path::absolute(&path).map_err(RunError::io(&path))?;
    Ok(Disk::default().replace(&path, bytes)?)
}

/// Makes the folders, keys and register.
pub fn prepare(month: &Month, operators: &[Operator], seed: Seed) -> Result<(), Failure> {
    let (folder, disk) = (month.folder, Disk::default());
    for name in ["audits", "hidden", "inspections", "keys", "logs", "matches", "rules", "runs", "statements"]
    {
        disk.create_folder(&folder.join(name))?;
    }
    write(folder, "shakespeare.txt", month.text)?;
    let parties = ["registrar", "witness", "inspector"].map(String::from).into_iter();
    for name in parties.chain(operators.iter().map(Operator::file)) {
        let text = format!("{}\n", seed.key(&name)?.public().to_text());
        write(folder, &format!("keys/{name}.pub"), text.as_bytes())?;
    }
    let inspector = format!("{}\n", seed.key("inspector")?.to_text());
    write(folder, "keys/inspector", inspector.as_bytes())?;
    let register = register(operators, CHIPS, seed)?;
    write(folder, "chips.register", to_text(&register, &seed.key("registrar")?).as_bytes())
}

/// The log of a chip.
pub fn read_log(folder: &Path, serial: &str) -> Result<ChipLog, Failure> {
    let path = folder.join("logs").join(format!("{serial}.log"));
    let bytes = disk::read(&path, (RECORDS_MAX * RECORD_BYTES) as u64)?;
    Ok(ChipLog::read(&bytes).map_err(|error| RunError::malformed(&path, error))?)
}

/// Publishes the heads of all logs.
pub fn close(folder: &Path, operators: &[Operator]) -> Result<(), Failure> {
    let mut heads = ClosedLogs::default();
    for operator in operators {
        for chip in 0..CHIPS {
            let serial = operator.serial(chip);
            let head = LogHead::of(&read_log(folder, &serial)?);
            heads.0.extend(head.map(|head| Ok::<_, Failure>((Serial::new(&serial)?, head))).transpose()?);
        }
    }
    write(folder, "heads.txt", heads.to_text().as_bytes())
}

/// Copies the log of a drawn chip to the inspector's folder. Returns the copy's place.
///
/// # Errors
/// If a file cannot be read or written.
pub fn copy_log(folder: &Path, operator: &str, serial: &str) -> Result<String, Failure> {
    let log = folder.join(format!("logs/{serial}.log"));
    let bytes = disk::read(&log, (RECORDS_MAX * RECORD_BYTES) as u64)?;
    let place = format!("drawn/{operator}/{serial}.log");
    Disk::default().create_folder(&folder.join("drawn").join(operator))?;
    write(folder, &place, &bytes)?;
    Ok(place)
}
