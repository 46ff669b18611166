//! `tiebreak monitor agent`: a chip's log, by a process that stands in for firmware.

use std::path::PathBuf;

use tiebreak_monitor::chip::times::Rate;
use tiebreak_monitor::snapshot::record::Serial;
use tiebreak_record::commit::digest::Digest;

use crate::cli::args::limits::Limits;
use crate::cli::view::report::{CommandResult, Printer};
#[cfg(not(unix))]
use crate::cli::view::report::{Exit, Failure};

/// Log snapshots of training states at random times: a software stand-in for a chip's firmware.
///
/// A training that attaches itself (`tiebreak train --agent`) is asked for a snapshot whenever one is due. A second start goes on
/// with the log. Firmware would run below the operator's reach; this process runs where its user can stop it.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tiebreak key new chip.key --name chip-42.example
  tiebreak monitor agent --socket chip.sock --log chip.log --key chip.key --serial H100-0042
  tiebreak train job.toml --out runs/mine --agent chip.sock   # in another terminal")]
pub struct Args {
    /// Unix socket where trainings attach themselves; the agent makes it.
    #[arg(long, value_name = "SOCKET")]
    socket: PathBuf,
    /// Log of the chip; a log that is there is checked, and goes on.
    #[arg(long, value_name = "FILE")]
    log: PathBuf,
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
    let Args { socket, log, key, serial, rate, seed, patience, limits } = args;
    let _unused = (socket, log, key, serial, rate, seed, patience, limits);
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
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::Args;
    use crate::cli::args::key;
    use crate::cli::args::random::random;
    use crate::cli::view::escape::{self, one_line};
    use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
    use tiebreak_game::net::stop::on_stop;
    use tiebreak_monitor::chip::agent::{Agent, AgentError, Chip};
    use tiebreak_monitor::chip::clock::SystemClock;
    use tiebreak_monitor::chip::keeper::LogFile;
    use tiebreak_monitor::chip::server::{Server, Told};
    use tiebreak_monitor::chip::times::Poisson;
    use tiebreak_monitor::snapshot::record::{Event, SignedRecord};
    use tiebreak_run::run::{RunError, shell};

    pub fn run(printer: Printer, args: &Args) -> CommandResult {
        let watch = args.limits.watch(printer);
        let key = key::read_private(&args.key)?;
        let public = key.public();
        let seed = args.seed.map_or_else(random, |seed| Ok(seed.0))?;
        let server = Server::listen(&args.socket).map_err(|error| unheard(args, &error))?;
        let keeper = LogFile::open(&args.log).map_err(|error| unopened(args, error))?;
        let chip = Chip { serial: args.serial.clone(), key, patience: Duration::from_secs(args.patience) };
        let times = |counter| Poisson::new(args.rate, &seed, &args.serial, counter);
        let agent =
            Agent::begin(chip, SystemClock::start(), keeper, times).map_err(|error| failed(args, error))?;
        let stopper = server.stopper();
        on_stop(move || stopper.stop()).map_err(|error| {
            Failure::new(Exit::Undecided, format!("signals cannot be waited for: {error}"))
        })?;
        // From here on the agent takes no more memory.
        watch.planned();
        if agent.torn() > 0 {
            printer.say(format!("removed {} bytes of a record that a crash cut off", agent.torn()));
        }
        let listens = format!(
            "chip {} ({}) listens at {}: about {} snapshots a day in {}, patience {} s; a software stand-in for firmware",
            args.serial,
            public.identified(),
            args.socket.display(),
            args.rate,
            args.log.display(),
            args.patience
        );
        let about = json!({
            "event": "listening", "serial": args.serial, "key": public.to_text(), "socket": args.socket, "log": args.log,
            "rate": args.rate.to_string(), "seed": args.seed, "patience": args.patience, "records": agent.records(),
        });
        line(printer, &listens, &about);
        let mut told = |told: Told| match told {
            Told::Record(signed) if !printer.quiet => line(printer, &text_of(signed), &json_of(signed)),
            Told::Record(_) => {}
            Told::Ended(why) => printer.problem(&format!("a connection ended: {why}")),
        };
        server.run(agent, &mut told).map_err(|error| failed(args, error))?;
        Ok(Exit::Match)
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

    fn unopened(args: &Args, error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::WouldBlock => {
                let why = format!("{}: {error}", args.log.display());
                Failure::new(Exit::Usage, why).help("stop that agent, or give another --log")
            }
            io::ErrorKind::InvalidInput => {
                Failure::new(Exit::Usage, format!("{}: {error}", args.log.display()))
            }
            _ => RunError::io(&args.log)(error).into(),
        }
    }

    fn failed(args: &Args, error: AgentError) -> Failure {
        let exit = if matches!(error, AgentError::Record { .. }) { Exit::Malformed } else { Exit::Undecided };
        let help = match error {
            AgentError::Record { .. } => format!(
                "give the --key and --serial that began {}, or another --log; nobody mends a log",
                shell::path(&args.log)
            ),
            AgentError::Full => "begin another log: give another --log".into(),
            AgentError::Keeper(_) => {
                "`df -h` shows how full each disk is; a second start goes on with the log".into()
            }
        };
        Failure::new(exit, format!("{}: {error}", args.log.display())).help(help)
    }
}
