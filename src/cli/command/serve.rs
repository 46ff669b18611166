//! `tiebreak serve`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use clap::ValueEnum;
use serde_json::json;

use crate::cli::args::engine::{EngineArgs, open_exact};
use crate::cli::args::key;
use crate::cli::args::limits::Limits;
use crate::cli::args::listen::address;
use crate::cli::args::metrics::{MetricsArgs, Served};
use crate::cli::args::predicted::inputs_of;
use crate::cli::args::subject::{Named, Subject};
use crate::cli::args::terms::{beside, read_terms};
use crate::cli::view::exposition::servers::labelled;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use crate::cli::view::traces::{About, Traces};
use tiebreak_dispute::game::rules::Rules;
use tiebreak_dispute::game::terms::Terms;
use tiebreak_game::net::desk::{Desk, Refused, Respond};
use tiebreak_game::net::folder::Answers;
use tiebreak_game::net::server::{Server, ServerLimits};
use tiebreak_game::net::stop::on_stop;
use tiebreak_game::party::{Gatherer, Gathering, Party, PartyError, ReceiptParty, Replayed, challenger};
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_run::predict::Inputs;
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::{Folder, RunError};

/// Answer as a party of a dispute game, over HTTP or in a folder.
#[derive(clap::Args)]
#[command(
    after_help = "Example: tiebreak serve runs/mine --key alice.key --terms terms.json --referee-key referee.key.pub",
    after_long_help = "HTTP is without TLS. Questions and answers are signed, so nobody can change them. To keep others from reading them, put \
a reverse proxy (nginx, Caddy) in front of this address. Ctrl-C or SIGTERM ends the command. Started again, it gives the same answers.\n\n\
Examples:
  tiebreak serve runs/mine --key alice.key --terms terms.json --referee-key referee.key.pub --listen 127.0.0.1:8700
  tiebreak serve runs/mine --key alice.key --terms terms.json --referee-key referee.key.pub --files questions
  tiebreak serve --challenge runs/check --data data --key bob.key --terms terms.json --referee-key referee.key.pub"
)]
pub struct Args {
    /// Run that you answer from; with --challenge the trainer's run. In a game about a receipt, the model: a run, or weights.
    #[arg(required_unless_present = "challenge")]
    run: Option<PathBuf>,
    /// Party's private key, one of those that the terms name.
    #[arg(long, value_name = "KEY")]
    key: PathBuf,
    /// Terms of the game.
    #[arg(long, value_name = "FILE")]
    terms: PathBuf,
    /// Referee's public key: a file or its text. Nobody else is answered.
    #[arg(long, value_name = "KEY")]
    referee_key: String,
    /// Address to listen at; by default 127.0.0.1:8700, and none with --files.
    ///
    /// Port 0 takes a free one.
    #[arg(long, value_name = "HOST:PORT", value_parser = address)]
    listen: Option<String>,
    /// Folder in which the command answers questions.
    #[arg(long, value_name = "DIR")]
    files: Option<PathBuf>,
    /// Journal of your answers; by default TERMS.party-N.answers.
    ///
    /// N is your place in the terms. Answers are on disk before they are sent, so the same question gets the same answer.
    /// In a game about a receipt JOURNAL.passes keeps the digests of the passes.
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
    /// Data files of predictions, or the folder of those that the run lacks.
    ///
    /// In a game about predictions the samples are as `tiebreak predict` takes them: data files with labels, once for each. Without --data
    /// and --inputs they are those of the run's evaluations. A folder may also be an address, beside RUN.
    #[arg(long, value_name = "PATH")]
    data: Vec<PathBuf>,
    /// In a game about predictions: .npy file of inputs without labels.
    #[arg(long, value_name = "FILE", requires = "run", conflicts_with = "data")]
    inputs: Option<PathBuf>,
    /// In the logged profile: challenge the trainer's run, replayed into this folder.
    ///
    /// RUN is the trainer's then. The command replays it under its rounding logs into the folder first, and answers by the result. A
    /// replay that was interrupted goes on. Without RUN the trainer supplies the logs through the game; name the folder of the job's data
    /// files with --data.
    #[arg(long, value_name = "DIR", help_heading = "Challengers (logged profile)")]
    challenge: Option<PathBuf>,
    /// Weights that the disputed run begins from: one file each, in the job's order.
    ///
    /// The option is for a challenger without the trainer's folder.
    #[arg(long, value_name = "FILE", conflicts_with = "run", help_heading = "Challengers (logged profile)")]
    weights: Vec<PathBuf>,
    /// Run that the disputed one goes on from.
    ///
    /// The option is for a challenger without the trainer's folder. The run is the trainer's, or as the challenger replayed it.
    #[arg(long, value_name = "RUN", conflicts_with = "run", help_heading = "Challengers (logged profile)")]
    earlier_run: Option<PathBuf>,
    /// In a game about a receipt: job of the released weights that RUN names.
    #[arg(long, value_name = "JOB", requires = "run")]
    job: Option<PathBuf>,
    /// In a game about a receipt: answer with the checkpoint after this step.
    #[arg(long, value_name = "N", requires = "run", conflicts_with = "job")]
    step: Option<u32>,
    /// Most connections at a time that are not known to be the referee's.
    ///
    /// Half of them may come from one address. A new one ends the oldest.
    #[arg(
        long,
        value_name = "N",
        default_value_t = ServerLimits::default().connections,
        value_parser = clap::value_parser!(u32).range(2..=4096),
        hide_short_help = true
    )]
    connections: u32,
    /// Most requests a second of one address without the referee's pass.
    ///
    /// All addresses together have ten times as many. More requests get status 429.
    #[arg(
        long,
        value_name = "N",
        default_value_t = ServerLimits::default().requests_per_second,
        value_parser = clap::value_parser!(u32).range(1..),
        hide_short_help = true
    )]
    requests_per_second: u32,
    /// Form of the log's lines on stderr.
    #[arg(long, value_enum, default_value_t, hide_short_help = true)]
    log_format: LogFormat,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    limits: Limits,
}

/// The form of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// A JSON object a line.
    Json,
}

/// Sends log lines to stderr.
fn log(format: LogFormat) {
    let lines = tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).with_target(false);
    // A second subscriber is an error, and there is one command a process.
    let _ = match format {
        LogFormat::Text => tracing::subscriber::set_global_default(lines.finish()),
        LogFormat::Json => tracing::subscriber::set_global_default(lines.json().flatten_event(true).finish()),
    };
}

/// The answering side: a run, or a challenger of the logged profile, who replays the trainer's folder now, or gets its logs through
/// the game.
fn responder(
    printer: Printer,
    args: &Args,
    terms: Terms,
    key: PrivateKey,
    journal: &Path,
) -> Result<Box<dyn Respond>, Failure> {
    if terms.receipt.is_some() {
        return of_receipt(args, terms, key, journal);
    }
    if args.job.is_some() || args.step.is_some() || args.inputs.is_some() {
        let why = "--job, --step and --inputs are of games about receipts, and these terms are about a run: leave them out";
        return Err(Failure::new(Exit::Usage, format!("{}: {why}", args.terms.display())));
    }
    if args.data.len() > 1 {
        let why = "--data names one folder in a game about a run: give it once";
        return Err(Failure::new(Exit::Usage, format!("{}: {why}", args.terms.display())));
    }
    let mut engine = open_exact(&args.engine)?;
    let data = args.data.clone();
    let Some(run) = &args.run else {
        let out = Folder::at(args.challenge.as_deref().unwrap_or(Path::new("")));
        let progress = Box::new(|step| tracing::info!(step, "replayed under the trainer's logs"));
        let (weights, earlier) = (args.weights.clone(), args.earlier_run.clone());
        let with = Gathering { terms, out, data, weights, earlier, key, engine, progress };
        return Ok(Box::new(Gatherer::open(with)?));
    };
    let mut run = args.limits.open_with_data(run, args.data.first())?;
    if let Some(folder) = &args.challenge {
        let claim = terms.claim.as_ref().map(|claim| claim.root).ok_or_else(|| {
            let why = "--challenge is of the logged profile, and these terms are of the exact one";
            Failure::new(Exit::Usage, format!("{}: {why}", args.terms.display()))
        })?;
        let bar = printer.bar(u64::from(run.job().steps), "steps");
        let out = Folder::at(folder);
        run = challenger(&run, &claim, &out, engine.as_mut(), |step| {
            bar.set_position(u64::from(step));
            bar.set_message("replayed under the trainer's logs");
        })?
        .with_memory(args.limits.memory());
        bar.finish_and_clear();
    }
    Ok(Box::new(Party::open(terms, run, key, engine)?))
}

/// The model that a party of a game about a receipt answers from, and the samples of a receipt of predictions.
fn replayed(args: &Args, run: &Path, is_of_predictions: bool) -> Result<(Replayed, u64), Failure> {
    // The terms have the model, so a program from a file needs no network file here.
    let named = Named { of: run, job: args.job.as_deref(), network: None, step: args.step, data: &args.data };
    let subject = Subject::of(&named, &args.limits)?;
    let samples = match &args.inputs {
        _ if !is_of_predictions => None,
        Some(path) => {
            let bytes = path.metadata().map_err(RunError::io(path))?.len();
            args.limits.check("the array of --inputs", bytes)?;
            Some(inputs_of(path, &subject.program().sample()[0])?)
        }
        None => Some(Inputs::Data(Box::new(subject.data(&args.data)?.dataset))),
    };
    let held = samples.as_ref().map_or(0, Inputs::bytes);
    // Parameters lie here and on the engine.
    let bytes = subject.bytes().saturating_mul(2).saturating_add(held);
    Ok((Replayed { weights: subject.model, samples }, bytes))
}

/// The answering side of a game about a receipt: a model. The digests of its passes lie beside the journal when they are computed.
fn of_receipt(
    args: &Args,
    terms: Terms,
    key: PrivateKey,
    journal: &Path,
) -> Result<Box<dyn Respond>, Failure> {
    let refused = |why: &str| Failure::new(Exit::Usage, format!("{}: {why}", args.terms.display()));
    let run = args.run.as_ref().filter(|_| args.challenge.is_none());
    let run = run.ok_or_else(|| {
        refused("the terms are about a receipt: give RUN, its model, and leave --challenge out")
    })?;
    let rules = Rules::new(&terms).map_err(|error| RunError::malformed(&args.terms, error))?;
    let is_of_predictions = rules.is_of_predictions();
    if !is_of_predictions && (args.inputs.is_some() || !args.data.is_empty()) {
        return Err(refused(
            "the receipt is of an answer, which reads no data: leave --data and --inputs out",
        ));
    }
    let (of, bytes) = replayed(args, run, is_of_predictions)?;
    let needed = ReceiptParty::memory(&terms)?.saturating_add(bytes);
    args.limits.check("the passes of the receipt", needed)?;
    let trace = beside(&std::path::absolute(journal).map_err(RunError::io(journal))?, ".passes");
    let (engine, trace) = (open_exact(&args.engine)?, (trace, Disk::default()));
    Ok(Box::new(ReceiptParty::open_keeping(terms, of, key, engine, trace)?))
}

/// A party whose answers are told of.
struct Traced {
    party: Box<dyn Respond>,
    traces: Traces,
}

impl Respond for Traced {
    fn prepare(&mut self) -> Result<(), PartyError> {
        self.party.prepare()
    }

    fn reply(&mut self, sealed: &[u8]) -> Result<Vec<u8>, Refused> {
        let begin = Instant::now();
        let answer = self.party.reply(sealed);
        let told = [("tiebreak.end", About::Text(if answer.is_ok() { "answered" } else { "refused" }))];
        self.traces.did("answer to a referee", begin.elapsed().as_secs_f64(), &told);
        answer
    }
}

/// Answers questions until the desk is closed. Until the party is ready, only answers of the journal are sent.
fn answer(desk: &Desk, party: &mut Traced) -> Result<(), PartyError> {
    party.prepare().inspect_err(|_| desk.close())?;
    desk.work(party);
    Ok(())
}

/// The party's server.
fn start(args: &Args, listen: &str, desk: &Arc<Desk>) -> Result<Server, Failure> {
    let limits = ServerLimits {
        requests_per_second: args.requests_per_second,
        connections: args.connections,
        ..ServerLimits::default()
    };
    Server::start(listen, desk.clone(), limits).map_err(|error| {
        Failure::new(Exit::Undecided, format!("cannot listen at {listen}: {error}; give another --listen"))
    })
}

/// Refuses options of a server where there is none, and of a log that is not written.
fn refuse_unused(printer: Printer, args: &Args) -> Result<(), Failure> {
    let usual = ServerLimits::default();
    let of_server =
        args.connections != usual.connections || args.requests_per_second != usual.requests_per_second;
    let refused = |why: &str| Err(Failure::new(Exit::Usage, why));
    if of_server && args.files.is_some() && args.listen.is_none() {
        return refused("--connections and --requests-per-second are of a server: give --listen too");
    }
    if printer.quiet && args.log_format != LogFormat::default() {
        return refused("--quiet writes no log: leave --log-format out");
    }
    Ok(())
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let watch = args.limits.watch(printer);
    refuse_unused(printer, &args)?;
    let key = key::read_private(&args.key)?;
    let referee = key::read_public(&args.referee_key)?;
    let terms = read_terms(&args.terms)?;
    let (parties, named) = terms.keys().map_err(|error| RunError::malformed(&args.terms, error))?;
    let refused = |why: String| Failure::new(Exit::Usage, format!("{}: {why}", args.terms.display()));
    if named.bytes() != referee.bytes() {
        let (named, given) = (named.to_text(), referee.to_text());
        return Err(refused(format!("the terms name another referee, {named}; --referee-key is {given}")));
    }
    let own = key.public();
    let place = parties.iter().position(|party| party.bytes() == own.bytes());
    let place = place.ok_or_else(|| refused(format!("the terms name no party {}", own.to_text())))?;
    let game = terms.game();
    let logged = terms.claim.is_some();
    let path =
        args.journal.clone().unwrap_or_else(|| beside(&args.terms, &format!(".party-{place}.answers")));
    let desk = Desk::open(game, &key, referee, &path, Disk::default())?;
    let traces = Traces::of_server(printer);
    let mut party = Traced { party: responder(printer, &args, terms, key, &path)?, traces: traces.clone() };
    watch.planned();

    if !printer.quiet {
        log(args.log_format);
    }
    let desk = Arc::new(if logged { desk.carrying() } else { desk });
    let mut lines = vec![format!("party {place} ({}) of game {}", own.identified(), game.short())];
    lines.push(format!("  journal {}, {} answers", path.display(), desk.answered()));
    let listen = match (&args.listen, &args.files) {
        (Some(listen), _) => Some(listen.as_str()),
        (None, Some(_)) => None,
        (None, None) => Some("127.0.0.1:8700"),
    };
    let labels = [("game", game.to_string()), ("party", place.to_string())];
    let metrics = args
        .metrics
        .served(printer, |registry| desk.metrics().register(labelled(registry, "party", &labels)))?;
    let server = listen.map(|listen| start(&args, listen, &desk)).transpose()?;
    let address = server.as_ref().map(|server| format!("http://{}", server.address()));
    lines.extend(address.iter().map(|address| format!("  answers at {address}")));
    if let Some(folder) = &args.files {
        let (mut answers, desk) = (Answers::new(folder)?, desk.clone());
        lines.push(format!("  answers in {}", folder.display()));
        std::thread::spawn(move || answers.serve(&desk));
    }
    let ending = desk.clone();
    let stop = on_stop(move || {
        ending.close();
        server.into_iter().for_each(Server::stop);
        traces.end(Exit::Match as u8);
        // A replay may take hours, and loses nothing when it ends here: the same question is answered again.
        std::process::exit(Exit::Match as i32);
    });
    stop.map_err(|error| Failure::new(Exit::Undecided, format!("signals cannot be waited for: {error}")))?;
    printer.result(
        lines,
        &json!({
            "game": game, "party": place, "address": address, "files": args.files, "journal": path,
            "metrics": metrics.as_ref().and_then(Served::address),
        }),
    );
    answer(&desk, &mut party)?;
    // The thread that closed the desk ends the process.
    loop {
        std::thread::park();
    }
}
