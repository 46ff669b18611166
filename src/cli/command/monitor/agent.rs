//! `tiebreak monitor agent`: a chip's log, by a process that stands in for firmware.

use std::path::PathBuf;

use tiebreak_monitor::chip::times::Rate;
use tiebreak_monitor::snapshot::record::Serial;
use tiebreak_record::commit::digest::Digest;

use crate::cli::args::limits::Limits;
use crate::cli::view::report::{CommandResult, Printer};
#[cfg(not(unix))]
use crate::cli::view::report::{Exit, Failure};

/// A software stand-in for a chip's firmware: log snapshots of states at random times.
///
/// A training that attaches itself (`tiebreak train --agent`) is asked for a snapshot whenever one is due. A second start goes on
/// with the log. Firmware would run below the operator's reach; this process runs where its user can stop it.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tiebreak key new chip.key --name chip-42.example
  tiebreak monitor agent --socket chip.sock --log chip.log --key chip.key --serial H100-0042
  tiebreak train job.toml --out runs/mine --agent chip.sock   # in another terminal
  tiebreak monitor agent --socket chip.sock --collector http://127.0.0.1:8702 --collector-key collector.key.pub --key chip.key --serial A-1")]
pub struct Args {
    /// Unix socket where trainings attach themselves; the agent makes it.
    #[arg(long, value_name = "SOCKET")]
    socket: PathBuf,
    /// Log of the chip; a log that is there is checked, and goes on.
    #[arg(long, value_name = "FILE", required_unless_present = "collector")]
    log: Option<PathBuf>,
    /// Address of a collector that keeps the records, in place of --log or beside it.
    ///
    /// A record counts as kept when the collector has acknowledged it. The training waits until then, also while the collector is
    /// down.
    #[arg(long, value_name = "URL", requires = "collector_key")]
    collector: Option<String>,
    /// Public key of the collector, which signs what it acknowledges: a file, or the key's text.
    #[arg(long, value_name = "KEY", requires = "collector")]
    collector_key: Option<String>,
    /// Seconds that a record may wait for the collector, after which the agent ends; by default it waits on.
    #[arg(long, value_name = "SECONDS", requires = "collector", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    hold: Option<u64>,
    /// Chip's private key, which signs the records (`tiebreak key new` makes one).
    #[arg(long, value_name = "KEY")]
    key: PathBuf,
    /// Serial number of the chip: up to 31 letters, digits, '.', '_', ':' or '-'.
    #[arg(long, value_name = "SERIAL")]
    serial: Serial,
    /// Snapshots that the chip logs in a day, on average.
    #[arg(long, default_value = "0.1", value_name = "NUMBER")]
    rate: Rate,
    /// Seed of the random times, 64 hexadecimal digits, such as a beacon's value.
    ///
    /// Anybody who has the seed derives the times. By default the system draws one at each start, and nobody has it.
    #[arg(long, value_name = "DIGEST")]
    seed: Option<Digest>,
    /// Seconds that a training has to answer when a snapshot is due.
    ///
    /// A step of the training has to fit in. Later answers leave a record that says `unanswered`.
    #[arg(long, default_value_t = 600, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    patience: u64,
    #[command(flatten)]
    limits: Limits,
}

#[cfg(not(unix))]
pub fn run(_printer: Printer, args: Args) -> CommandResult {
    let Args { socket, log, collector, collector_key, hold, key, serial, rate, seed, patience, limits } =
        args;
    let _unused = (socket, log, collector, collector_key, hold, key, serial, rate, seed, patience, limits);
    let why = "an agent listens at a Unix socket, which this system does not have";
    Err(Failure::new(Exit::Usage, why).help("run the agent and the training on Linux or macOS"))
}

#[cfg(unix)]
pub fn run(printer: Printer, args: Args) -> CommandResult {
    unix::run(printer, &args)
}

#[cfg(unix)]
mod unix {
    use std::io;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::Args;
    use crate::cli::args::key;
    use crate::cli::args::random::random;
    use crate::cli::view::escape::{self, one_line};
    use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
    use tiebreak_collector::both::Both;
    use tiebreak_collector::client::{Remote, Settings, Word};
    use tiebreak_game::net::stop::on_stop;
    use tiebreak_monitor::chip::agent::{Agent, Chip};
    use tiebreak_monitor::chip::clock::SystemClock;
    use tiebreak_monitor::chip::keeper::{Keeper, KeeperError, LogFile};
    use tiebreak_monitor::chip::server::{Peer, Server, Told};
    use tiebreak_monitor::chip::times::Poisson;
    use tiebreak_monitor::snapshot::record::{Event, SignedRecord};
    use tiebreak_run::run::{RunError, shell};

    pub fn run(printer: Printer, args: &Args) -> CommandResult {
        let watch = args.limits.watch(printer);
        let key = key::read_private(&args.key)?;
        let server = Server::listen(&args.socket).map_err(|error| unheard(args, &error))?;
        let (stopper, stopped) = (server.stopper(), Arc::new(AtomicBool::new(false)));
        let remote = remote(printer, args, server.peer(), stopped.clone())?;
        let stop = on_stop(move || {
            stopped.store(true, Relaxed);
            stopper.stop();
        });
        stop.map_err(|error| {
            Failure::new(Exit::Undecided, format!("signals cannot be waited for: {error}"))
        })?;
        let chip = Chip { serial: args.serial.clone(), key, patience: Duration::from_secs(args.patience) };
        let file = |path: &Path| LogFile::open(path).map_err(|error| unopened(path, error));
        // From where the agent begins it takes no more memory.
        let planned = || watch.planned();
        match (args.log.as_deref(), remote) {
            (Some(path), None) => serve(printer, args, server, chip, file(path)?, planned),
            (Some(path), Some(remote)) => {
                serve(printer, args, server, chip, Both::new(file(path)?, remote), planned)
            }
            (None, Some(remote)) => serve(printer, args, server, chip, remote, planned),
            (None, None) => {
                Err(Failure::new(Exit::Usage, "nobody keeps the records: give --log or --collector"))
            }
        }
    }

    /// The collector that the arguments name.
    fn remote(
        printer: Printer,
        args: &Args,
        peer: Peer,
        stopped: Arc<AtomicBool>,
    ) -> Result<Option<Remote>, Failure> {
        let (Some(url), Some(key)) = (&args.collector, &args.collector_key) else { return Ok(None) };
        let (key, hold) = (key::read_public(key)?, args.hold.map(Duration::from_secs));
        let told = move |word: &Word| match word {
            Word::Waits(seconds, why) => {
                printer.problem(&format!(
                    "no acknowledgement for {seconds} s, so a training has to wait: {why}"
                ));
                peer.waits();
            }
            Word::GoesOn(seconds) => printer.say(format!("the collector acknowledged after {seconds} s")),
        };
        let settings = Settings { url: url.clone(), key, hold, stopped };
        let remote = Remote::new(settings, told);
        remote.map(Some).map_err(|error| Failure::new(Exit::Usage, error.to_string()))
    }

    /// Runs the agent of a chip whose records this keeper has.
    fn serve<K: Keeper>(
        printer: Printer,
        args: &Args,
        server: Server,
        chip: Chip,
        keeper: K,
        planned: impl FnOnce(),
    ) -> CommandResult {
        let (public, seed) = (chip.key.public(), args.seed.map_or_else(random, |seed| Ok(seed.0))?);
        let times = |counter| Poisson::new(args.rate, &seed, &args.serial, counter);
        let agent =
            Agent::begin(chip, SystemClock::start(), keeper, times).map_err(|error| failed(args, error))?;
        planned();
        if agent.torn() > 0 {
            printer.say(format!("removed {} bytes of a record that a crash cut off", agent.torn()));
        }
        let listens = format!(
            "chip {} ({}) listens at {}: about {} snapshots a day in {}, patience {} s; a software stand-in for firmware",
            args.serial,
            public.identified(),
            args.socket.display(),
            args.rate,
            place(args),
            args.patience
        );
        let mut about = json!({
            "event": "listening", "serial": args.serial, "key": public.to_text(), "socket": args.socket, "log": args.log,
            "rate": args.rate.to_string(), "seed": args.seed, "patience": args.patience, "records": agent.records(),
        });
        if args.collector.is_some() {
            (about["collector"], about["hold"]) = (json!(args.collector), json!(args.hold));
        }
        line(printer, &listens, &about);
        let mut told = |told: Told| match told {
            Told::Record(signed) if !printer.quiet => line(printer, &text_of(signed), &json_of(signed)),
            Told::Record(_) => {}
            Told::Ended(why) => printer.problem(&format!("a connection ended: {why}")),
        };
        server.run(agent, &mut told).map_err(|error| failed(args, error))?;
        Ok(Exit::Match)
    }

    /// The place where the records are kept, for people.
    fn place(args: &Args) -> String {
        let log = args.log.as_ref().map(|log| log.display().to_string());
        let both: Vec<String> = log.into_iter().chain(args.collector.clone()).collect();
        both.join(" and ")
    }

    /// Prints a line on stdout, as text or as JSON.
    fn line(printer: Printer, text: &str, json: &Value) {
        let line = match printer.json {
            true => escape::json(&json.to_string()).into_owned(),
            false => one_line(text).into_owned(),
        };
        // A reader who has enough does not end the log.
        let _ = printer.piece(&format!("{line}\n"));
    }

    fn text_of(signed: &SignedRecord) -> String {
        let (record, name) = (&signed.record, signed.record.event.name());
        let head = format!("{} {name}", record.counter);
        match record.event {
            Event::Begin | Event::Idle => head,
            Event::Clock => format!("{head}: set back to {} ms", record.time),
            Event::Attach { shard, computation } => {
                format!(
                    "{head}: computation {}, map {}, code {}",
                    computation.short(),
                    shard.map.short(),
                    shard.code.short()
                )
            }
            Event::Unanswered(shard) => {
                format!("{head}: the training did not answer in time, map {}", shard.map.short())
            }
            Event::Snapshot { step, digest, .. } => format!("{head}: after step {step}, digest {digest}"),
        }
    }

    fn json_of(signed: &SignedRecord) -> Value {
        let record = &signed.record;
        let mut json = json!({ "event": record.event.name(), "record": record.counter, "time": record.time });
        let (shard, more) = match record.event {
            Event::Begin | Event::Clock | Event::Idle => return json,
            Event::Attach { shard, computation } => (shard, json!({ "computation": computation })),
            Event::Unanswered(shard) => (shard, json!({})),
            Event::Snapshot { shard, step, digest } => (shard, json!({ "step": step, "digest": digest })),
        };
        (json["map"], json["code"]) = (json!(shard.map), json!(shard.code));
        for (name, value) in more.as_object().into_iter().flatten() {
            json[name] = value.clone();
        }
        json
    }

    fn unheard(args: &Args, error: &io::Error) -> Failure {
        let why = format!("cannot listen at {}: {error}", args.socket.display());
        let exit = match error.kind() {
            io::ErrorKind::AddrInUse | io::ErrorKind::AlreadyExists | io::ErrorKind::InvalidInput => {
                Exit::Usage
            }
            _ => Exit::Undecided,
        };
        Failure::new(exit, why).help("give another --socket: a short path in a folder that you may write to")
    }

    fn unopened(log: &Path, error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::WouldBlock => {
                let why = format!("{}: {error}", log.display());
                Failure::new(Exit::Usage, why).help("stop that agent, or give another --log")
            }
            io::ErrorKind::InvalidInput => Failure::new(Exit::Usage, format!("{}: {error}", log.display())),
            _ => RunError::io(log)(error).into(),
        }
    }

    fn failed(args: &Args, error: KeeperError) -> Failure {
        let exit =
            if matches!(error, KeeperError::Record { .. }) { Exit::Malformed } else { Exit::Undecided };
        let help = match error {
            KeeperError::Record { .. } => format!(
                "give the --key and --serial that began {}, or another --log; nobody mends a log",
                args.log.as_deref().map_or(String::new(), shell::path)
            ),
            KeeperError::Full => "begin another log: give another --log".into(),
            KeeperError::Io(_) => {
                "`df -h` shows how full each disk is; a second start goes on with the log".into()
            }
            KeeperError::Refused(_) => {
                "compare the chip's --key, --serial and clock with the collector's register, and read the collector's own log".into()
            }
            KeeperError::Unacknowledged(_) => {
                "start the collector, then this agent again, and the training with --resume".into()
            }
        };
        Failure::new(exit, format!("{}: {error}", place(args))).help(help)
    }
}
