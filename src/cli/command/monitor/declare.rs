//! `tiebreak monitor declare`.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use serde_json::json;

use crate::cli::args::key;
use crate::cli::args::limits::Limits;
use crate::cli::view::next::Next;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use tiebreak_game::net::witness::client::{Answer, ask};
use tiebreak_monitor::witness::checkpoint::Checkpoint;
use tiebreak_monitor::witness::request::AddCheckpoint;
use tiebreak_record::commit::cosignature::{cosigned_at, utc};
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::commit::merkle::prove_consistency;
use tiebreak_record::commit::tree_head::NOTE_MAX;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::{RunError, names, shell, transcript};

/// The most seconds between a witness's time and this machine's that pass without a warning.
const CLOCKS_MAY_DIFFER: u64 = 300;

/// Declare a run: have a witness vouch for when its head was there.
///
/// The head of size 1 binds job, program, data and initial state before the first step. A witness's cosignature says when others saw that
/// head, so that nobody can declare a run after a chip logged its weights. The cosignature is added to the head's file in the run.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  tiebreak monitor declare runs/first --witness http://witness.example:8701 --witness-key witness.key.pub",
    after_long_help = "Run the command once for each witness. With --head last the witness sees the newest head, and that the run only grew.\n\n\
Example:\n  tiebreak monitor declare runs/first --witness http://witness.example:8701 --witness-key witness.key.pub"
)]
pub struct Args {
    /// Folder of the run, which names its trainer's key.
    run: PathBuf,
    /// Witness's address: the submission prefix of C2SP tlog-witness.
    #[arg(long, value_name = "URL")]
    witness: String,
    /// Witness's public key: a file or its text.
    #[arg(long, value_name = "KEY")]
    witness_key: String,
    /// Head that the witness cosigns.
    #[arg(long, value_enum, default_value_t)]
    head: Which,
    #[command(flatten)]
    limits: Limits,
}

/// A head of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Which {
    /// The head of size 1, which declares the run before its first step.
    #[default]
    First,
    /// The newest head.
    Last,
}

/// A cosignature on a head.
struct Cosigned {
    /// The time that the witness gives, in seconds since 1970.
    time: u64,
    /// True if the head had it before.
    before: bool,
}

/// Asks for the cosignature of a head, from whatever size the witness knows, and returns the signature lines.
fn lines(args: &Args, run: &Run, checkpoint: &Checkpoint) -> Result<String, Failure> {
    let mut request = AddCheckpoint { old: 0, proof: Vec::new(), checkpoint: checkpoint.clone() };
    for _ in 0..2 {
        match ask(&args.witness, &request)? {
            Answer::Lines(lines) => return Ok(lines),
            Answer::KnowsSize(size) if size == request.old || size > checkpoint.size => {
                let why = format!(
                    "the witness cosigned {size} records of this run, and this head covers {}",
                    checkpoint.size
                );
                let help = "give --head last, or a newer copy of the run";
                return Err(Failure::new(Exit::Undecided, why).help(help));
            }
            Answer::KnowsSize(size) => {
                let (transcript, _) = transcript::read(run.at(names::TRANSCRIPT))?;
                let leaves = transcript.leaves.get(..checkpoint.size as usize).ok_or_else(|| {
                    let why = format!(
                        "it has {} records; its head covers {}",
                        transcript.leaves.len(),
                        checkpoint.size
                    );
                    RunError::invalid(&run.layout.transcript(), why)
                })?;
                request = AddCheckpoint {
                    old: size,
                    proof: prove_consistency(leaves, size as usize),
                    checkpoint: checkpoint.clone(),
                };
            }
            Answer::Refused(status, why) => {
                let why = format!("{} does not cosign: status {status}: {why:?}", args.witness);
                return Err(Failure::new(Exit::Undecided, why));
            }
        }
    }
    Err(Failure::new(Exit::Undecided, format!("{} names another size at every request", args.witness)))
}

/// Adds the witness's line to the head's file, unless it is there.
fn cosign(args: &Args, run: &Run, size: u64, witness: &PublicKey) -> Result<Cosigned, Failure> {
    let path = run.layout.head(size);
    let malformed = |error| RunError::malformed(&path, error);
    let note = run.at(names::head(size)).read_text(NOTE_MAX as u64)?;
    if let Some(time) = cosigned_at(&note, witness).map_err(malformed)? {
        return Ok(Cosigned { time, before: true });
    }
    let checkpoint = Checkpoint::read(&note).map_err(malformed)?;
    let lines = lines(args, run, &checkpoint)?;
    let wrong = |why: &str| Failure::new(Exit::Undecided, format!("{}: {why}", args.witness));
    for line in lines.lines() {
        // Lines of other keys are not the business of this command, and a line that is malformed is nobody's.
        let candidate = format!("{note}{line}\n");
        let Ok(Some(time)) = cosigned_at(&candidate, witness) else { continue };
        if candidate.len() > NOTE_MAX {
            return Err(wrong(&format!(
                "with another signature the head has {} bytes; {NOTE_MAX} are possible",
                candidate.len()
            )));
        }
        let absolute = std::path::absolute(&path).map_err(RunError::io(&path))?;
        Disk::default().replace(&absolute, candidate.as_bytes())?;
        return Ok(Cosigned { time, before: false });
    }
    Err(wrong(&format!("its answer has no cosignature of {} on this head", witness.identified())))
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let _watch = args.limits.watch(printer);
    let witness = key::read_public(&args.witness_key)?;
    let run = args.limits.open(&args.run)?;
    let refused = |why: &str| Failure::new(Exit::Usage, format!("{}: {why}", args.run.display()));
    let Some(trainer) = &run.file.trainer_key else {
        let why = "the run names no trainer's key, and a witness cosigns signed heads only";
        return Err(refused(why).help("train runs that are declared with --key"));
    };
    let trainer =
        PublicKey::from_text(trainer).map_err(|error| RunError::malformed(&run.layout.run_json(), error))?;
    let size = match args.head {
        Which::First => 1,
        Which::Last => run.head_sizes()?.last().copied().ok_or_else(|| refused("the run has no head yet"))?,
    };
    let (head, _) = run.head(size, Some(&trainer))?;
    let found = cosign(&args, &run, size, &witness)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let mut lines = vec![match found.before {
        true => format!(
            "run {}: {} cosigned its head of size {} at {}, before",
            run.id,
            witness.name(),
            head.size,
            utc(found.time)
        ),
        false => format!(
            "run {}: {} cosigned its head of size {} at {}",
            run.id,
            witness.name(),
            head.size,
            utc(found.time)
        ),
    }];
    if !found.before && now.abs_diff(found.time) > CLOCKS_MAY_DIFFER {
        lines.push(format!("the witness's clock and this one differ: here it is {}", utc(now)));
    }
    let option = key::trainer_option(None, run.file.trainer_key.as_deref());
    let next = Next::new("check the run with", format!("tiebreak verify {}{option}", shell::path(&args.run)));
    lines.push(next.line());
    printer.result(
        lines,
        &json!({
            "run": run.id,
            "witness": witness.to_text(),
            "time": found.time,
            "head_size": head.size,
            "was_there": found.before,
            "next": [next],
        }),
    );
    Ok(Exit::Match)
}
