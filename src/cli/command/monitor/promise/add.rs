//! `tiebreak monitor promise add`.

use std::path::PathBuf;

use serde_json::json;
use tiebreak_monitor::beacon::{Chain, RoundName};
use tiebreak_monitor::promise::entry::{Begin, Inputs, Promise};
use tiebreak_monitor::promise::log::Promises;
use tiebreak_monitor::randomness::commitment;

use super::log::{read_log, write_log};
use crate::cli::args::key;
use crate::cli::args::limits::Limits;
use crate::cli::args::place::job_files;
use crate::cli::command::monitor::nonce;
use crate::cli::command::monitor::registry::{exclusive, now};
use crate::cli::view::next::Next;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use tiebreak_job::Job;
use tiebreak_job::identity::program_digest;
use tiebreak_job::initial::InitialOrigin;
use tiebreak_job::manifest::files_root;
use tiebreak_record::commit::cosignature::utc;
use tiebreak_run::run::data::JobData;
use tiebreak_run::run::{JobFiles, RunError, initial, read_job, read_program, shell};

/// Promise the run of a job, with the rest of its seed still to come.
///
/// The promise has the digests of job, program and data, the origin of the weights, and the commitment of a secret nonce. It names a
/// round of a public beacon that is still to come. A witness's cosignature (`tiebreak monitor declare`) says that the promise was there before. A job
/// that goes on from another run (`init.run`) makes an amendment: it has effect after the last step of that run.
#[derive(clap::Args)]
#[command(after_help = "Example:
  tiebreak monitor promise add new.promises job.toml --key trainer.key --nonce run.nonce --round 'drand 52db9ba70e0cc0f6eaf7803dd07447a1f5477735fd3f661792ba94600c84e971 900000000'")]
pub struct Args {
    /// File of the trainer's promises; it is made if it is not there.
    log: PathBuf,
    /// Job file.
    job: PathBuf,
    /// Trainer's private key, which signs the promise, and the run later.
    #[arg(long, value_name = "KEY")]
    key: PathBuf,
    /// Secret nonce of this run: a file, or its digits.
    ///
    /// `tiebreak monitor nonce` makes one.
    #[arg(long, value_name = "NONCE")]
    nonce: String,
    /// Beacon and round that will be part of the seed: a round that comes after witnesses saw the promise.
    ///
    /// `tiebreak monitor beacon --at DATE` names a round of drand, whose time and signature the check derives.
    #[arg(long, value_name = "TEXT")]
    round: String,
    /// Another folder whose files the job may name, besides its own, or an address; once for each.
    ///
    /// A job reaches files at addresses only below the addresses given here: your credentials may open others.
    #[arg(long, value_name = "DIR")]
    data_root: Vec<PathBuf>,
    #[command(flatten)]
    limits: Limits,
}

/// The origin that a job names for its initial state.
fn begin(args: &Args, job: &Job, files: &JobFiles) -> Result<Begin, Failure> {
    if let Some(run) = &job.init.run {
        let run = initial::earlier(files, run)?.with_memory(args.limits.memory());
        let (after, optimizer_state) = (run.job().steps, job.init.optimizer_state);
        return Ok(Begin::Run { run: run.id, after, optimizer_state });
    }
    if job.init.weights.is_empty() {
        return Ok(Begin::Seed);
    }
    let weights = job.init.files().map(|path| initial::manifest_of(&files.stored("init.weights", path)?));
    let files = weights.collect::<Result<Vec<_>, RunError>>()?;
    Ok(Begin::Weights { files: InitialOrigin::Weights { files }.digest() })
}

/// The inputs of a job's computation.
fn inputs(args: &Args) -> Result<Inputs, Failure> {
    let (_, job) = read_job(&args.job)?;
    if job.hides() {
        let why = format!(
            "{}: a promise has the plain digest of the data, and the job's commitments hide (commit.scheme 1)",
            args.job.display()
        );
        let help = "set commit.scheme = 0, or train with a challenge that somebody else chose (--challenge)";
        return Err(Failure::new(Exit::Usage, why).help(help));
    }
    let files = job_files(&args.job, &args.data_root)?;
    let (program, _) = read_program(&files, &job)?;
    let data = JobData::open(&files, &job, &program)?;
    let begin = begin(args, &job, &files)?;
    let program = program_digest(&program);
    Ok(Inputs { job: job.digest(), program, data: files_root(&data.manifest), begin })
}

/// Refuses a round of quicknet that is over, since a promise that names it is late whenever a witness sees it.
fn to_come(round: &str) -> Result<(), Failure> {
    let chain = Chain::quicknet();
    let named = RoundName::parse(round).filter(|name| name.chain == chain.hash());
    let Some(time) = named.and_then(|name| chain.time(name.number)) else { return Ok(()) };
    if time > now()? {
        return Ok(());
    }
    let why =
        format!("--round: the round was at {}, and a promise names one that is still to come", utc(time));
    Err(Failure::new(Exit::Usage, why).help("name one with `tiebreak monitor beacon --at DATE`"))
}

pub fn run(printer: Printer, args: &Args) -> CommandResult {
    let _watch = args.limits.watch(printer);
    to_come(&args.round)?;
    let key = key::read_private(&args.key)?;
    let nonce = nonce::read("--nonce", &args.nonce)?;
    let working = printer.working("reading the job's data", None);
    let inputs = inputs(args)?;
    drop(working);
    let _lock = exclusive(&args.log);
    let mut log = match args.log.symlink_metadata() {
        Ok(_) => read_log(&args.log)?,
        Err(_) => Promises::new(key.public()),
    };
    let promise = Promise {
        job: inputs.job,
        program: inputs.program,
        data: inputs.data,
        begin: inputs.begin,
        amendment: log.amendment(&inputs.begin),
        nonce: commitment(&nonce),
        round: args.round.clone(),
    };
    let refused = |error| Failure::new(Exit::Usage, format!("{}: {error}", args.log.display()));
    log.append(promise.clone(), &key).map_err(refused)?;
    write_log(&args.log, &log)?;
    let number = log.promises().len() - 1;
    let mut lines =
        vec![format!("promise {number} of {}, by {}", args.log.display(), key.public().identified())];
    lines.push(format!("  job {}", promise.job));
    lines.push(format!("  data {}", promise.data));
    if let (Begin::Run { run, after, .. }, Some(amendment)) = (&promise.begin, promise.amendment) {
        lines.push(format!(
            "  amendment {amendment} of run {}: it has effect after step {after}",
            run.short()
        ));
    }
    lines.push(format!("  seed: nonce of commitment {}, and the round {}", promise.nonce, promise.round));
    let log = shell::path(&args.log);
    let command = format!("tiebreak monitor declare {log} --witness URL --witness-key KEY");
    let next = Next::new("before the round, have a witness cosign it with", command)
        .note("URL is the witness's address, KEY its public key");
    lines.push(next.line());
    printer.result(lines, &json!({ "file": args.log, "number": number, "promise": promise, "next": [next] }));
    Ok(Exit::Match)
}
