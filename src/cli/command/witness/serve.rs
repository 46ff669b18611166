//! `tiebreak witness serve`.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;

use crate::cli::args::key;
use crate::cli::args::listen::address;
use crate::cli::args::metrics::{MetricsArgs, Served};
use crate::cli::view::exposition::servers::labelled;
use crate::cli::view::next::Next;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use tiebreak_game::net::stop::on_stop;
use tiebreak_game::net::witness::Keeper;
use tiebreak_game::net::witness::server;
use tiebreak_monitor::promise::log as promises;
use tiebreak_monitor::witness::policy::{Log, Logs};
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_run::run::{Folder, shell};

/// Cosign the heads of others' logs, over HTTP.
///
/// A cosignature says that the log had this head at this time, and that the log only grew since the witness saw it first. The protocol is
/// C2SP's tlog-witness, so the witness serves any log of that kind, not only runs.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  tiebreak witness serve --key witness.key --state witness --trainer-key trainer.key.pub",
    after_long_help = "The state folder is all that keeps a witness from cosigning two histories of one log. A witness that lost the folder must not \
go on under the same key: make another key.\n\n\
HTTP is without TLS, for which a proxy stands before it. Requests and cosignatures are signed, so nobody can change them. Ctrl-C or SIGTERM ends the command.\n\n\
Examples:
  tiebreak witness serve --key witness.key --state witness --trainer-key trainer.key.pub
  tiebreak witness serve --key witness.key --state witness --log example.com/log=log.pub --listen 0.0.0.0:8701"
)]
pub struct Args {
    /// Witness's private key.
    #[arg(long, value_name = "KEY")]
    key: PathBuf,
    /// Folder of the last head of each log. It has to exist: a witness that lost its state must not go on.
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// Public key of a trainer, all of whose runs and promises are served: a file or its text.
    #[arg(long, value_name = "KEY", required_unless_present = "log")]
    trainer_key: Vec<String>,
    /// Another log: its origin line, and the public key that signs its heads.
    ///
    /// An origin that ends with a slash stands for all origins that begin with it.
    #[arg(long, value_name = "ORIGIN=KEY")]
    log: Vec<String>,
    /// Most logs of one key that are kept; a trainer has one for each run, and one for promises.
    ///
    /// A file of at most 16 KiB is kept for each log. A new log of a key that has as many is refused.
    #[arg(long, value_name = "NUMBER", default_value_t = 65_536, value_parser = clap::value_parser!(u64).range(1..))]
    logs_at_most: u64,
    /// Address to listen at. Port 0 takes a free one.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8701", value_parser = address)]
    listen: String,
    #[command(flatten)]
    metrics: MetricsArgs,
}

/// The logs that the arguments name.
fn logs(args: &Args) -> Result<Vec<Log>, Failure> {
    let trainers = args.trainer_key.iter().map(|text| key::read_public(text));
    let trainers = trainers.collect::<Result<Vec<_>, Failure>>()?;
    let own = |key: PublicKey| {
        let promises = Log { origin: promises::origin(&key), key: key.clone() };
        [Log { origin: "tiebreak/run/".into(), key }, promises]
    };
    let runs = trainers.into_iter().flat_map(own).map(Ok);
    let others = args.log.iter().map(|text| {
        let (origin, key) = text
            .split_once('=')
            .filter(|(origin, key)| !origin.is_empty() && !key.is_empty())
            .ok_or_else(|| {
                Failure::new(
                    Exit::Usage,
                    format!("--log {text}: the form is ORIGIN=KEY, such as example.com/log=log.pub"),
                )
            })?;
        Ok(Log { origin: origin.to_string(), key: key::read_public(key)? })
    });
    runs.chain(others).collect()
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let private = key::read_private(&args.key)?;
    let logs = logs(&args)?;
    if !args.state.is_dir() {
        let why = format!(
            "{}: there is no such folder, which would hold the heads that this witness cosigned",
            args.state.display()
        );
        let help = format!("for a new witness make it: mkdir {}", shell::path(&args.state));
        return Err(Failure::new(Exit::Usage, why).help(help));
    }
    let public = private.public();
    let served = logs.len();
    let kept = Keeper::open(private, Logs::new(logs), Folder::at(&args.state), args.logs_at_most);
    let failed = |error: io::Error| {
        let used = if error.kind() == io::ErrorKind::WouldBlock { " is used by" } else { ":" };
        Failure::new(Exit::Undecided, format!("{}{used} {error}", args.state.display()))
    };
    let keeper = Arc::new(kept.map_err(failed)?);
    let seen = keeper.seen().map_err(failed)?;
    if !printer.quiet {
        let lines = tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).with_target(false);
        // A second subscriber is an error, and there is one command a process.
        let _ = tracing::subscriber::set_global_default(lines.finish());
    }
    let labels = [("key", public.to_text())];
    let metrics = args
        .metrics
        .served(printer, |registry| keeper.metrics().register(labelled(registry, "witness", &labels)))?;
    let metrics = metrics.as_ref().map(Served::address);
    let server = server::start(&args.listen, keeper).map_err(|error| {
        Failure::new(
            Exit::Undecided,
            format!("cannot listen at {}: {error}; give another --listen", args.listen),
        )
    })?;
    let address = format!("http://{}", server.address());
    let stop = on_stop(move || {
        server.stop();
        std::process::exit(Exit::Match as i32);
    });
    stop.map_err(|error| Failure::new(Exit::Undecided, format!("signals cannot be waited for: {error}")))?;
    let declare = format!(
        "tiebreak monitor declare RUN --witness {address} --witness-key {}",
        shell::word(&public.to_text())
    );
    let next = Next::new("declare a run to it with", declare).note("RUN is the run's folder");
    printer.result(
        vec![
            format!("witness {}", public.identified()),
            format!("  keys of logs {served}, logs seen so far {seen}"),
            format!("  key for logs of others {}", public.to_witness_text()),
            format!("  listens at {address}"),
            next.line(),
        ],
        &json!({ "witness": public.to_text(), "cosignature_key": public.to_witness_text(), "address": address, "logs": seen, "metrics": metrics, "next": [next] }),
    );
    // The thread that stopped the server ends the process.
    loop {
        std::thread::park();
    }
}
