//! `tiebreak monitor promise check`.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tiebreak_monitor::beacon::{Chain, Verified};
use tiebreak_monitor::matching::provenance::Weight;
use tiebreak_monitor::promise::entry::{Begin, Inputs, Promise};
use tiebreak_monitor::promise::examine::{Examined, Finding, Given, Shown, examine, kept};
use tiebreak_monitor::promise::log::Promises;

use super::log::read_log;
use crate::cli::args::decided::Decided;
use crate::cli::args::key;
use crate::cli::args::limits::Limits;
use crate::cli::command::monitor::beacon::{self, ChainArgs, Promised};
use crate::cli::command::monitor::cosign::known_size;
use crate::cli::command::monitor::nonce;
use crate::cli::command::monitor::registry::seconds;
use crate::cli::view::next::Next;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use tiebreak_record::commit::cosignature::{cosigned_at, utc};
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::commit::tree_head::NOTE_MAX;
use tiebreak_run::run::dir::Run;
use tiebreak_run::run::{RunError, names, shell};

/// Check that a run is the one that its trainer promised, with the seed that the beacon gave.
///
/// The command derives the challenge again, compares job, program, data and origin with the promise, and compares the witness's time with
/// that of the round. The exit code is 1 if something differs, and 3 if something is missing that would decide.
#[derive(clap::Args)]
#[command(after_help = "Example:
  tiebreak monitor promise check trainer.promises runs/mine --nonce run.nonce --beacon round.json --witness witness.key.pub")]
#[command(
    override_usage = "tiebreak monitor promise check LOG RUN --nonce NONCE --beacon HEX|FILE [OPTIONS]"
)]
pub struct Args {
    /// File of the trainer's promises.
    log: PathBuf,
    /// Folder of the run.
    run: PathBuf,
    /// Nonce that the trainer revealed: a file, or its digits.
    #[arg(long, value_name = "NONCE")]
    nonce: String,
    /// Value of the promised round, in hexadecimal digits; or the file of a round of drand, as its servers give it.
    ///
    /// A signature of drand is checked. The value of another beacon is taken as it is: ask the beacon, and not the trainer.
    #[arg(long, value_name = "HEX|FILE")]
    beacon: String,
    #[command(flatten)]
    chain: ChainArgs,
    /// Time at which the value of the round came out, by the beacon's schedule. A round of drand has its time from its network.
    #[arg(long, value_parser = seconds, value_name = "DATE")]
    round_time: Option<u64>,
    /// Public key of a witness: a file or its text.
    ///
    /// With several witnesses the earliest time counts.
    #[arg(long, value_name = "KEY")]
    witness: Vec<String>,
    /// Address of a witness, to learn whether the log has later promises; its key has to be given with --witness.
    ///
    /// Without an answer the result is undecided: a trainer can show a log that ends with the kindest promise. Give the option once
    /// for each witness that the trainer uses.
    #[arg(long, value_name = "URL", requires = "witness")]
    ask: Vec<String>,
    /// Certificates, in PEM, of the authorities that vouch for an https:// address; by default those of the web count.
    #[arg(long, value_name = "FILE", requires = "ask", hide_short_help = true)]
    ca: Option<PathBuf>,
    /// Another run of this trainer, its nonce and the value of its round, so that its promise counts as kept.
    ///
    /// Nonce and value have the forms of --nonce and --beacon.
    #[arg(long, num_args = 3, value_names = ["RUN", "NONCE", "BEACON"], action = clap::ArgAction::Append)]
    other: Vec<String>,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    decided: Decided,
}

/// The inputs of a run's computation.
fn inputs(run: &Run) -> Result<Inputs, RunError> {
    let malformed = |error| RunError::malformed(&run.layout.run_json(), error);
    Inputs::of(run.job().digest(), &run.file.summary()).map_err(malformed)
}

/// The earliest time at which one of these witnesses cosigned the run's first head.
fn declared(
    run: &Run,
    witnesses: &[PublicKey],
    trainer: Option<&PublicKey>,
) -> Result<Option<u64>, RunError> {
    let first = run.at(names::head(1));
    if !first.is_here() {
        return Ok(None);
    }
    run.head(1, trainer)?;
    let note = first.read_text(NOTE_MAX as u64)?;
    let times = witnesses.iter().map(|key| cosigned_at(&note, key));
    let times = times.collect::<Result<Vec<_>, _>>();
    Ok(times.map_err(|error| RunError::malformed(first.path(), error))?.into_iter().flatten().min())
}

/// The most promises of the log that a witness knows; `None` if none is asked, or one of them gives no answer.
fn known(
    printer: Printer,
    args: &Args,
    log: &Promises,
    witnesses: &[PublicKey],
) -> Result<Option<u64>, Failure> {
    let Some(note) = log.newest() else { return Ok(None) };
    let malformed = |error| RunError::malformed(&args.log, error).into();
    let (mut most, mut silent) = (None, false);
    for url in &args.ask {
        match known_size(url, args.ca.as_deref(), note, witnesses, malformed) {
            Ok(size) => most = most.max(Some(size)),
            Err(failure) if failure.exit == Exit::Undecided => {
                printer.say(format!("no answer: {}", failure.message));
                silent = true;
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(most.filter(|_| !silent))
}

pub fn run(printer: Printer, args: &Args) -> CommandResult {
    args.decided.applied(checked(printer, args))
}

fn checked(printer: Printer, args: &Args) -> CommandResult {
    let _watch = args.limits.watch(printer);
    let log = read_log(&args.log)?;
    let nonce = nonce::read("--nonce", &args.nonce)?;
    let witnesses = args.witness.iter().map(|text| key::read_witness(text)).collect::<Result<Vec<_>, _>>()?;
    let run = args.limits.open(&args.run)?;
    let malformed = |error| RunError::malformed(&run.layout.run_json(), error);
    let trainer = run.file.summary().named_key().map_err(malformed)?;
    let declared = declared(&run, &witnesses, trainer.as_ref())?;
    let shown = Shown { key: trainer, inputs: inputs(&run)?, challenge: run.file.challenge, declared };
    let chains = args.chain.known()?;
    let others = args.other.chunks_exact(3);
    let others = others.map(|given| other(args, &log, &chains, [&given[0], &given[1], &given[2]]));
    let others = others.collect::<Result<Vec<_>, Failure>>()?;
    let known = known(printer, args, &log, &witnesses)?;
    let promise = log.of_nonce(&nonce).and_then(|number| log.promises().nth(number));
    let (promised, time) = round(args, &chains, promise)?;
    if promise.is_some() {
        let rounds = others.iter().filter_map(|(_, verified)| verified.as_ref());
        args.chain.used(&chains, promised.verified.iter().chain(rounds))?;
    }
    let others: Vec<usize> = others.into_iter().map(|(number, _)| number).collect();
    let given = Given {
        known,
        value: &promised.value,
        round_time: time,
        nonce,
        witnesses: &witnesses,
        others: &others,
    };
    let examined =
        examine(&log, &shown, &given).map_err(|error| Failure::new(Exit::Usage, error.to_string()))?;
    let worst = examined.findings.iter().map(|finding| finding.weight()).max().unwrap_or(Weight::Matched);
    let (word, result, exit) = match worst {
        Weight::Matched => ("MATCHES", "matches", Exit::Match),
        Weight::Undecided => ("UNDECIDED", "undecided", Exit::Undecided),
        Weight::Finding => ("DIFFERS", "differs", Exit::Diverges),
    };
    let next = Next::new("replay the run with", format!("tiebreak audit {}", shell::path(&args.run)));
    let mut lines = vec![format!("{word}: run {}", run.id.short())];
    lines.extend(promise_lines(args, &log, &examined, &promised));
    lines.extend(examined.findings.iter().map(|finding| format!("  {}: {finding}", finding.kind())));
    lines.extend((exit == Exit::Match).then(|| next.line()));
    let promise = examined.promise.and_then(|number| log.promises().nth(number));
    let next = if exit == Exit::Match { vec![next] } else { Vec::new() };
    let value: Value = json!({
        "result": result, "run": run.id, "number": examined.promise, "promise": promise,
        "witnessed": examined.witnessed, "round_time": time, "beacon": promised.value,
        "verified": promised.verified, "declared": declared, "known": known, "findings": examined.findings,
        "different": examined.different, "next": next,
    });
    printer.result(lines, &value);
    Ok(exit)
}

/// The number of the promise that another run keeps, and its round of drand. `given` are the run, its nonce and its round's value.
fn other(
    args: &Args,
    log: &Promises,
    chains: &[Chain],
    [path, nonce, value]: [&str; 3],
) -> Result<(usize, Option<Verified>), Failure> {
    let run = args.limits.open(Path::new(path))?;
    let nonce = nonce::read("--other", nonce)?;
    let malformed = |error| RunError::malformed(&run.layout.run_json(), error);
    let key = run.file.summary().named_key().map_err(malformed)?;
    let shown = Shown { key, inputs: inputs(&run)?, challenge: run.file.challenge, declared: None };
    let refused = |why: String| Failure::new(Exit::Usage, format!("--other {path}: {why}"));
    let promise = log.of_nonce(&nonce).and_then(|number| log.promises().nth(number));
    let Promised { value, verified } = match promise {
        Some(promise) => beacon::among(value, &promise.round, chains)?,
        None => Promised { value: value.into(), verified: None },
    };
    let (number, findings) = kept(log, &shown, &value, &nonce).map_err(|error| refused(error.to_string()))?;
    match (number, findings.first()) {
        (Some(number), None) => Ok((number, verified)),
        (_, found) => {
            let why = found.map(Finding::to_string).unwrap_or_default();
            Err(refused(format!("the run keeps no promise of the log: {why}")))
        }
    }
}

/// The value and the time of the promised round. Without a promise neither decides anything.
fn round(args: &Args, chains: &[Chain], promise: Option<&Promise>) -> Result<(Promised, u64), Failure> {
    let Some(promise) = promise else {
        let unread = Promised { value: args.beacon.clone(), verified: None };
        return Ok((unread, args.round_time.unwrap_or_default()));
    };
    let promised = beacon::among(&args.beacon, &promise.round, chains)?;
    let time = match (&promised.verified, args.round_time) {
        (Some(verified), Some(given)) if verified.time != given => {
            let why = format!("--round-time: the promised round is of {}", utc(verified.time));
            return Err(Failure::new(Exit::Usage, why).help("leave the option out"));
        }
        (Some(verified), _) => verified.time,
        (None, Some(given)) => given,
        (None, None) => {
            let why = format!(
                "--round-time is missing: no network of drand gives the time of round {}",
                promise.round
            );
            return Err(Failure::new(Exit::Usage, why));
        }
    };
    Ok((promised, time))
}

/// The promise of the run, in words.
fn promise_lines(args: &Args, log: &Promises, examined: &Examined, round: &Promised) -> Vec<String> {
    let number = examined.promise;
    let Some(promise) = number.and_then(|number| log.promises().nth(number)) else { return Vec::new() };
    let seen = examined
        .witnessed
        .map_or("which no given witness saw".into(), |time| format!("witnessed at {}", utc(time)));
    let mut lines = vec![format!(
        "  promise {} of {}, {seen}",
        number.unwrap_or_default(),
        Path::new(&args.log).display()
    )];
    lines.push(format!("  {}", beacon::line(&promise.round, &round.value, round.verified.as_ref())));
    if let (Begin::Run { run, after, .. }, Some(amendment)) = (promise.begin, promise.amendment) {
        lines.push(format!("  amendment {amendment} of run {}, with effect after step {after}", run.short()));
    }
    lines.extend((!examined.different.is_empty()).then(|| {
        format!(
            "  ask what the promises {:?} were for: they are of other programs or data, and no run of them is given",
            examined.different
        )
    }));
    lines
}
