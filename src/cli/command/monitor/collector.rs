//! `tiebreak monitor collector`: a server that keeps chips' records, and what an inspector reads from it.

use std::path::PathBuf;

use clap::Subcommand;
use tiebreak_monitor::snapshot::record::Serial;

use super::registry::{RegisterArgs, serial};
use crate::cli::args::listen::address;
use crate::cli::args::metrics::MetricsArgs;
use crate::cli::view::report::{CommandResult, Printer};
#[cfg(not(feature = "collector"))]
use crate::cli::view::report::{Exit, Failure};

/// Keep chips' records on a server that acknowledges each before training goes on.
///
/// A build with `--features collector` has the server.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tiebreak monitor collector serve --database chips.sqlite --key collector.key --register chips.register
  tiebreak monitor collector heads --database chips.sqlite --out heads.txt
  tiebreak monitor collector export --database chips.sqlite --serial H100-0042 --out chip.log")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(Serve),
    Export(Export),
    Heads(Heads),
}

/// Take records from chips, over HTTP, and acknowledge each when it is durable.
///
/// A record is taken if the register's key for that chip at that time signed it, and if it continues the chip's log. Nothing else is
/// stored. `--key` signs the acknowledgements. The register is read again when its file changes.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  tiebreak monitor collector serve --database chips.sqlite --key collector.key --register chips.register",
    after_long_help = "HTTP is without TLS. Records and acknowledgements are signed, so nobody can change them. Ctrl-C or SIGTERM ends the command.\n\n\
Examples:
  tiebreak monitor collector serve --database chips.sqlite --key collector.key --register chips.register
  tiebreak monitor collector serve --database postgres://localhost/chips --key collector.key --register chips.register"
)]
struct Serve {
    /// Database: the path of a SQLite file, which is made if it is not there, or a URL of PostgreSQL.
    #[arg(long, value_name = "DB")]
    database: String,
    /// Collector's private key, which signs acknowledgements.
    #[arg(long, value_name = "KEY")]
    key: PathBuf,
    #[command(flatten)]
    register: RegisterArgs,
    /// Address to listen at. Port 0 takes a free one.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8702", value_parser = address)]
    listen: String,
    #[command(flatten)]
    metrics: MetricsArgs,
}

/// Write a chip's log as the chip would have written it to a file, for `monitor inspect` and `monitor match`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  tiebreak monitor collector export --database chips.sqlite --serial H100-0042 --out chip.log"
)]
struct Export {
    /// Database of the collector: the path of a SQLite file, or a URL of PostgreSQL.
    #[arg(long, value_name = "DB")]
    database: String,
    /// Serial number of the chip.
    #[arg(long, value_parser = serial, value_name = "SERIAL")]
    serial: Serial,
    /// File for the log.
    #[arg(long, short, value_name = "FILE")]
    out: PathBuf,
}

/// Write the heads of all logs, for `monitor draw --closed` and `monitor inspect --closed`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  tiebreak monitor collector heads --database chips.sqlite --out heads.txt"
)]
struct Heads {
    /// Database of the collector: the path of a SQLite file, or a URL of PostgreSQL.
    #[arg(long, value_name = "DB")]
    database: String,
    /// File for the heads.
    #[arg(long, short, value_name = "FILE")]
    out: PathBuf,
}

#[cfg(not(feature = "collector"))]
pub fn run(_printer: Printer, args: Args) -> CommandResult {
    let _unused = match args.command {
        Command::Serve(Serve { database, key, register, listen, metrics }) => {
            (database, Some((key, register, listen, metrics)), None, None)
        }
        Command::Export(Export { database, serial, out }) => (database, None, Some(serial), Some(out)),
        Command::Heads(Heads { database, out }) => (database, None, None, Some(out)),
    };
    let why = "this build has no collector: `cargo install --path . --locked --features collector` makes one that has";
    Err(Failure::new(Exit::Usage, why))
}

#[cfg(feature = "collector")]
pub fn run(printer: Printer, args: Args) -> CommandResult {
    match args.command {
        Command::Serve(args) => built::serve(printer, &args),
        Command::Export(args) => built::export(printer, &args),
        Command::Heads(args) => built::heads(printer, &args),
    }
}

#[cfg(feature = "collector")]
mod built {
    use std::io;
    use std::sync::Arc;

    use serde_json::json;
    use tiebreak_collector::metrics::CollectorMetrics;
    use tiebreak_collector::roster::Roster;
    use tiebreak_collector::server;
    use tiebreak_collector::store::{self, Store, StoreError};
    use tiebreak_game::net::stop::on_stop;
    use tiebreak_monitor::closed::LogHead;
    use tiebreak_run::run::disk::{self, Disk};
    use tiebreak_run::run::{RunError, shell};

    use super::super::registry::{unchecked, write};
    use super::{Export, Heads, Serve};
    use crate::cli::args::key;
    use crate::cli::args::metrics::Served;
    use crate::cli::view::exposition::servers::labelled;
    use crate::cli::view::next::Next;
    use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};

    fn opened(database: &str, create: bool) -> Result<Box<dyn Store>, Failure> {
        store::open(database, create).map_err(|error| failed(database, &error))
    }

    /// The error of a database. A URL may hold a password, so its text is not printed.
    fn failed(database: &str, error: &StoreError) -> Failure {
        let exit = if matches!(error, StoreError::Damaged(_)) { Exit::Malformed } else { Exit::Undecided };
        let named = if store::is_url(database) { "PostgreSQL" } else { database };
        Failure::new(exit, format!("{named}: {error}"))
            .help("give --database a path that you may write to, or the URL of a server that answers")
    }

    pub fn serve(printer: Printer, args: &Serve) -> CommandResult {
        let key = key::read_private(&args.key)?;
        let public = key.public();
        let (register, checked) = args.register.read()?;
        let chips = register.chips();
        let (path, registrar) = args.register.source()?;
        let roster = Arc::new(Roster::new(path, registrar, register));
        let mut store = opened(&args.database, true)?;
        let logs = store.heads().map_err(|error| failed(&args.database, &error))?.0.len();
        if !printer.quiet {
            let lines = tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).with_target(false);
            // A second subscriber is an error, and there is one command a process.
            let _ = tracing::subscriber::set_global_default(lines.finish());
        }
        let (counted, labels) = (CollectorMetrics::default(), [("key", public.to_text())]);
        let metrics = args
            .metrics
            .served(printer, |registry| counted.register(labelled(registry, "collector", &labels)))?;
        let collector = server::start(&args.listen, key, roster, store, counted).map_err(|error| {
            let why = format!("cannot listen at {}: {error}; give another --listen", args.listen);
            Failure::new(Exit::Undecided, why)
        })?;
        let address = format!("http://{}", collector.address());
        let stop = on_stop(move || {
            collector.stop();
            std::process::exit(Exit::Match as i32);
        });
        stop.map_err(|error| {
            Failure::new(Exit::Undecided, format!("signals cannot be waited for: {error}"))
        })?;
        let agent = format!(
            "tiebreak monitor agent --socket SOCKET --key KEY --serial SERIAL --collector {address} --collector-key {}",
            shell::word(&public.to_text())
        );
        let next = Next::new("a chip sends its records with", agent).note("KEY is the chip's key");
        let mut lines = vec![
            format!("collector {}", public.identified()),
            format!("  chips that the register ever had {chips}, logs so far {logs}"),
            format!("  listens at {address}"),
        ];
        lines.extend(unchecked(checked));
        lines.push(next.line());
        let value = json!({
            "collector": public.to_text(), "address": address, "chips": chips, "logs": logs,
            "register_checked": checked, "metrics": metrics.as_ref().and_then(Served::address), "next": [next],
        });
        printer.result(lines, &value);
        // The thread that stopped the server ends the process.
        loop {
            std::thread::park();
        }
    }

    pub fn export(printer: Printer, args: &Export) -> CommandResult {
        let mut store = opened(&args.database, false)?;
        disk::refuse_link(&args.out)?;
        let (mut bytes, mut head) = (Vec::new(), None);
        let walked = store::walk(&mut *store, &args.serial, |signed| {
            bytes.extend(signed.encode());
            head = Some(LogHead { records: signed.record.counter + 1, link: signed.link() });
            Ok::<(), StoreError>(())
        });
        walked.map_err(|error| failed(&args.database, &error))?;
        let Some(head) = head else {
            let why = format!("the collector has no records of chip {}", args.serial);
            return Err(
                Failure::new(Exit::Usage, why).help("`tiebreak monitor collector heads` lists the chips")
            );
        };
        let absolute = std::path::absolute(&args.out).map_err(RunError::io(&args.out))?;
        Disk::default().replace(&absolute, &bytes)?;
        let inspect = format!("tiebreak monitor inspect {} --register REGISTER", shell::path(&args.out));
        let next = Next::new("inspect it with", inspect);
        let lines = vec![
            format!("chip {}: {} records in {}", args.serial, head.records, args.out.display()),
            format!("head {}", head.line(&args.serial)),
            next.line(),
        ];
        let value = json!({
            "serial": args.serial, "records": head.records, "head": head.line(&args.serial), "log": args.out, "next": [next],
        });
        printer.result(lines, &value);
        Ok(Exit::Match)
    }

    pub fn heads(printer: Printer, args: &Heads) -> CommandResult {
        let mut store = opened(&args.database, false)?;
        let heads = store.heads().map_err(|error| failed(&args.database, &error))?;
        write(&args.out, &heads.to_text())?;
        let records: u64 = heads.0.values().map(|head| head.records).sum();
        let draw = format!(
            "tiebreak monitor draw --register REGISTER --closed {} --chips N --beacon HEX --round ROUND",
            shell::path(&args.out)
        );
        let next = Next::new("draw chips with", draw);
        let lines = vec![
            format!("heads of {} logs with {records} records in {}", heads.0.len(), args.out.display()),
            format!("digest {}", heads.digest()),
            next.line(),
        ];
        let value = json!({
            "logs": heads.0.len(), "records": records, "digest": heads.digest(), "heads": args.out, "next": [next],
        });
        printer.result(lines, &value);
        Ok(Exit::Match)
    }
}
