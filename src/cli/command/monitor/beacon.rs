//! `tiebreak monitor beacon`, and rounds of a beacon as arguments of other commands.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tiebreak_monitor::beacon::{self, Chain, FILE_MAX, RoundName, Unverified, Verified};

use super::cosign::CLOCKS_MAY_DIFFER;
use super::registry::{now, seconds};
use crate::cli::args::limits::Limits;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer, named};
use tiebreak_record::commit::cosignature::utc;
use tiebreak_run::run::{RunError, disk};

/// Name a round of drand that is still to come, or check the signature of one that came.
///
/// drand is a public beacon: its servers sign the number of each round together, and nobody knows a signature before its time. A
/// round's text has the hash of the network's key and schedule, so everybody derives the time and checks the signature from it.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tiebreak monitor beacon --at 2026-12-01T12:00:00Z
  tiebreak monitor beacon round.json")]
#[group(id = "what", required = true, args = ["file", "at"])]
pub struct Args {
    /// Round as the network's servers give it, in JSON.
    file: Option<PathBuf>,
    /// Time whose round is named: the first one at it or later.
    #[arg(long, value_parser = seconds, value_name = "DATE")]
    at: Option<u64>,
    #[command(flatten)]
    chain: ChainArgs,
    #[command(flatten)]
    limits: Limits,
}

/// The network of drand that a command knows besides quicknet.
#[derive(clap::Args)]
pub struct ChainArgs {
    /// Description of another drand network than quicknet, as its servers give it at `/CHAIN/info`.
    #[arg(long, value_name = "FILE")]
    chain: Option<PathBuf>,
}

impl ChainArgs {
    /// The networks whose signatures can be checked: quicknet, and behind it the one of `--chain`.
    ///
    /// # Errors
    /// If the description is malformed, or contradicts its chain hash.
    pub fn known(&self) -> Result<Vec<Chain>, Failure> {
        let mut known = vec![Chain::quicknet()];
        if let Some(path) = &self.chain {
            let text = disk::read_text(path, FILE_MAX).map_err(named)?;
            let chain = Chain::from_text(&text).map_err(|error| RunError::malformed(path, error))?;
            if let Some(other) = known.iter().find(|it| it.id() == chain.id() && it.hash() != chain.hash()) {
                let why = format!(
                    "the network calls itself {}, whose chain hash is {}, and this one is {}",
                    other.id(),
                    other.hash(),
                    chain.hash()
                );
                return Err(RunError::invalid(path, why).into());
            }
            known.push(chain);
        }
        Ok(known)
    }

    /// Refuses a description that decided nothing: `verified` are the rounds that were checked.
    ///
    /// # Errors
    /// If `--chain` describes another network than that of any round.
    pub fn used<'a>(
        &self,
        known: &[Chain],
        verified: impl IntoIterator<Item = &'a Verified>,
    ) -> Result<(), Failure> {
        let Some(path) = &self.chain else { return Ok(()) };
        let mut verified = verified.into_iter();
        let other = known.last().filter(|chain| verified.all(|it| it.chain != chain.hash()));
        let why = |chain: &Chain| {
            format!("--chain {}: no round of the drand network {} is read", path.display(), chain.id())
        };
        other.map_or(Ok(()), |chain| Err(Failure::new(Exit::Usage, why(chain))))
    }
}

/// The value of a beacon's round, as the option `--beacon` gives it.
pub struct Given {
    /// The round's text, if the value names its round.
    pub round: Option<String>,
    /// The value, in hexadecimal digits.
    pub value: String,
}

/// A value: the digits themselves, or the file of a round, whose signature is checked.
///
/// # Errors
/// If the file is no round that a known network signed.
pub fn given(argument: &str, known: &[Chain]) -> Result<Given, Failure> {
    let path = Path::new(argument);
    if !path.exists() {
        return Ok(Given { round: None, value: argument.to_string() });
    }
    let text = disk::read_text(path, FILE_MAX).map_err(named)?;
    let (value, verified) = beacon::read(&text, known).map_err(|error| RunError::malformed(path, error))?;
    Ok(Given { round: Some(name(&verified).to_string()), value })
}

/// The value of a promised round.
pub struct Promised {
    /// The value, in hexadecimal digits.
    pub value: String,
    /// The round of drand, if the promise names one.
    pub verified: Option<Verified>,
}

/// The value of the round that a promise names, from the option `--beacon`.
///
/// # Errors
/// If a file has another round, or the value is not the signature of a round of drand that the promise names.
pub fn of_round(argument: &str, round: &str, chain: &ChainArgs) -> Result<Promised, Failure> {
    let known = chain.known()?;
    let promised = among(argument, round, &known)?;
    chain.used(&known, promised.verified.as_ref())?;
    Ok(promised)
}

/// [`of_round`] among networks that are known. Who reads several rounds refuses a `--chain` that is of none of them
/// ([`ChainArgs::used`]).
pub fn among(argument: &str, round: &str, known: &[Chain]) -> Result<Promised, Failure> {
    let given = given(argument, known)?;
    if let Some(found) = given.round.filter(|found| found != round) {
        let why = format!("--beacon {argument}: it has the round {found}, and the promise names {round}");
        return Err(Failure::new(Exit::Usage, why));
    }
    let verified = beacon::verify(round, &given.value, known).map_err(|why| unverified("--beacon", &why))?;
    Ok(Promised { value: given.value, verified })
}

/// The error that a round's value was not checked, or is another one. `what` names the value's origin.
pub fn unverified(what: &str, why: &Unverified) -> Failure {
    match why {
        Unverified::Chain(_) => Failure::new(Exit::Usage, format!("{what}: {why}"))
            .help("give --chain FILE: what a server of the network says at /CHAIN/info"),
        Unverified::Signature { .. } => Failure::new(Exit::Diverges, format!("{what}: {why}"))
            .help("ask a server of the network for the round, at /CHAIN/public/NUMBER"),
        Unverified::Date { .. } => Failure::new(Exit::Diverges, format!("{what}: {why}"))
            .help("draw with a date before the round: --date, whose default is the round's time"),
    }
}

/// A line about the round: its checked signature, or what the reader has to look up.
pub fn line(round: &str, value: &str, verified: Option<&Verified>) -> String {
    match verified {
        Some(it) => format!(
            "the beacon's signature is valid: drand {}, round {}, of {}; chain {}{}",
            it.id,
            it.number,
            utc(it.time),
            it.chain,
            if now().is_ok_and(|now| it.time > now.saturating_add(CLOCKS_MAY_DIFFER)) {
                "; WARNING: this time is still to come, and no honest network signs before it"
            } else {
                ""
            }
        ),
        None => format!("compare with the beacon: round {round}, value {value}"),
    }
}

fn name(verified: &Verified) -> RoundName {
    RoundName { chain: verified.chain, number: verified.number }
}

/// A round for programs.
fn told(name: &RoundName, verified: &Verified, value: Option<&str>) -> Value {
    json!({
        "round": name.to_string(), "chain": verified.chain, "id": verified.id, "number": verified.number,
        "time": verified.time, "value": value,
    })
}

pub fn run(printer: Printer, args: &Args) -> CommandResult {
    let _watch = args.limits.watch(printer);
    let known = args.chain.known()?;
    if let Some(path) = &args.file {
        let text = disk::read_text(path, FILE_MAX).map_err(named)?;
        let (value, verified) =
            beacon::read(&text, &known).map_err(|error| RunError::malformed(path, error))?;
        args.chain.used(&known, Some(&verified))?;
        let name = name(&verified);
        let lines = vec![
            name.to_string(),
            format!("  {}", line("", "", Some(&verified))),
            format!("  value {value}"),
        ];
        printer.result(lines, &told(&name, &verified, Some(&value)));
        return Ok(Exit::Match);
    }
    let chain = known.last().ok_or_else(|| Failure::new(Exit::Usage, "no network is known"))?;
    let name = chain.round_from(args.at.unwrap_or_default());
    let why = || {
        Failure::new(
            Exit::Usage,
            format!("--at: drand {} has no round before the year 10000 then", chain.id()),
        )
    };
    let time = chain.time(name.number).ok_or_else(why)?;
    let round = Verified { chain: name.chain, id: chain.id().to_string(), number: name.number, time };
    let lines = vec![
        name.to_string(),
        format!(
            "  drand {}, signed from {} on; servers give it at /{}/public/{}",
            chain.id(),
            utc(time),
            name.chain,
            name.number
        ),
    ];
    printer.result(lines, &told(&name, &round, None));
    Ok(Exit::Match)
}
