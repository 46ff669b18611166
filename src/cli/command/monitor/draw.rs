//! `tiebreak monitor draw`.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tiebreak_monitor::beacon::{Chain, Unverified, Verified};
use tiebreak_monitor::draw::{DRAW_MAX, DeclaredRun, Draw, Question};
use tiebreak_monitor::randomness::{Randomness, Revealed, commitment};

use super::beacon::{self, ChainArgs};
use super::nonce;
use super::registry::{RegisterArgs, now, read_closed, seconds, unchecked, write};
use crate::cli::args::limits::Limits;
use crate::cli::view::next::{self, Next};
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer, named};
use tiebreak_audit::checks;
use tiebreak_record::commit::cosignature::utc;
use tiebreak_record::commit::digest::Digest;
use tiebreak_run::run::{RunError, disk, shell};

/// Draw the chips and the segments of runs to inspect, in a way that nobody foresees and anybody can repeat.
///
/// The operator publishes the heads of all chips' logs and of all runs first (--closed, --run). The randomness comes later: the value of
/// a beacon's round that both sides named before, or two nonces to which both sides committed before (`tiebreak monitor nonce`).
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tiebreak monitor draw --register chips.register --closed heads.txt --chips 3 --beacon round.json
  tiebreak monitor draw --register chips.register --closed heads.txt --check draw.json")]
pub struct Args {
    #[command(flatten)]
    register: RegisterArgs,
    /// Heads of the chips' logs, published before the randomness.
    ///
    /// `tiebreak monitor inspect` prints the line of a log.
    #[arg(long, value_name = "FILE")]
    closed: PathBuf,
    /// Chips to draw; `tiebreak monitor plan` says how many are needed.
    #[arg(long, value_name = "NUMBER", required_unless_present = "check")]
    chips: Option<u32>,
    /// Date at which a chip has to be monitored to be drawn; by default that of a round of drand, else now.
    #[arg(long, value_parser = seconds, value_name = "DATE")]
    date: Option<u64>,
    /// Folder of a declared run whose segments are drawn.
    #[arg(long, value_name = "RUN", requires = "segments")]
    run: Vec<PathBuf>,
    /// Segments to draw of each run.
    #[arg(long, value_name = "NUMBER", requires = "run")]
    segments: Option<u32>,
    /// Steps of a segment; by default the steps between two checkpoints of the run.
    #[arg(long, value_name = "NUMBER", requires = "run", value_parser = clap::value_parser!(u32).range(1..))]
    segment_steps: Option<u32>,
    /// Value of the beacon's round, in hexadecimal digits; or the file of a round of drand, as its servers give it.
    #[arg(long, value_name = "HEX|FILE")]
    beacon: Option<String>,
    /// Beacon and round that both sides named before the round.
    ///
    /// `tiebreak monitor beacon --at DATE` names a round of drand, whose signature is checked. A file of a round names the round itself.
    #[arg(long, value_name = "TEXT", requires = "beacon")]
    round: Option<String>,
    #[command(flatten)]
    chain: ChainArgs,
    /// Commitment of the inspector, then that of the operator.
    #[arg(long, value_name = "DIGEST", num_args = 2, value_parser = digest, requires = "reveal")]
    committed: Vec<Digest>,
    /// Nonce of the inspector, then that of the operator: files, or their digits.
    #[arg(
        long, value_name = "NONCE", num_args = 2, requires = "committed",
        conflicts_with = "beacon", required_unless_present_any = ["beacon", "check"]
    )]
    reveal: Vec<String>,
    /// File for the draw.
    #[arg(long, short, value_name = "FILE", default_value = "draw.json")]
    out: PathBuf,
    /// Draw that is repeated and compared.
    ///
    /// The command ends with exit code 1 if the draw does not follow from register and heads.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["chips", "date", "run", "segments", "segment_steps", "beacon", "round", "committed", "reveal", "out"])]
    check: Option<PathBuf>,
    #[command(flatten)]
    limits: Limits,
}

fn digest(text: &str) -> Result<Digest, String> {
    text.parse().map_err(|error: tiebreak_record::commit::Malformed| error.to_string())
}

/// The round's text and value. A file of a round that is not the named one is refused.
fn round_of(beacon: &str, named: Option<&str>, known: &[Chain]) -> Result<Randomness, Failure> {
    let given = beacon::given(beacon, known)?;
    let round = match (named, given.round) {
        (Some(named), Some(found)) if named != found => {
            return Err(Failure::new(
                Exit::Usage,
                format!("--beacon {beacon}: it has the round {found}, and --round names {named}"),
            ));
        }
        (named, found) => found.or(named.map(String::from)),
    };
    let why = || {
        Failure::new(
            Exit::Usage,
            "--beacon needs --round: the digits alone do not say of which round they are",
        )
    };
    Ok(Randomness::Beacon { round: round.ok_or_else(why)?, value: given.value })
}

fn randomness(args: &Args, known: &[Chain]) -> Result<Randomness, Failure> {
    if let Some(beacon) = &args.beacon {
        return round_of(beacon, args.round.as_deref(), known);
    }
    let side = |index: usize| {
        Ok::<_, Failure>(Revealed {
            commitment: args.committed[index],
            nonce: nonce::read("--reveal", &args.reveal[index])?,
        })
    };
    Ok(Randomness::Revealed { inspector: side(0)?, operator: side(1)? })
}

/// A run as it was declared: its id, and its largest head.
fn declared(args: &Args, path: &Path) -> Result<DeclaredRun, Failure> {
    let run = args.limits.open(path)?;
    let checked = checks::structure(&run, None)?;
    if let Some(found) = &checked.inconsistent {
        let why = format!("{}: step {}: {}", path.display(), found.step, found.what);
        return Err(Failure::new(Exit::Diverges, why));
    }
    // Record 0 is the initial state's; a record behind the last step's ends the run.
    let covered = checked.head.size.saturating_sub(1).min(u64::from(run.job().steps)) as u32;
    let segment = args.segment_steps.unwrap_or(run.job().checkpoint.every);
    Ok(DeclaredRun { run: run.id, size: checked.head.size, root: checked.head.root, steps: covered, segment })
}

pub fn run(printer: Printer, args: &Args) -> CommandResult {
    let _watch = args.limits.watch(printer);
    let (register, signed) = args.register.read()?;
    let closed = read_closed(&args.closed)?;
    if let Some(path) = &args.check {
        let text = disk::read_text(path, DRAW_MAX).map_err(named)?;
        let malformed = |error| RunError::malformed(path, error);
        let draw = Draw::from_text(&text).map_err(malformed)?;
        let known = args.chain.known()?;
        let (verified, unsigned) = match draw.signed(&known) {
            Err(why @ Unverified::Signature { .. }) => (None, Some(("beacon", why.to_string()))),
            Err(why @ Unverified::Date { .. }) => (None, Some(("date", why.to_string()))),
            other => (other.map_err(|why| beacon::unverified(&path.display().to_string(), &why))?, None),
        };
        if unsigned.is_none() {
            args.chain.used(&known, verified.as_ref())?;
        }
        let found = draw.check(&register, &closed).map_err(malformed)?;
        let found = found.map(|why| (why.kind(), why.to_string())).or(unsigned);
        let mut lines = vec![match &found {
            None => format!("MATCHES: the draw of {} chips follows from its inputs", draw.chips.len()),
            Some((_, why)) => format!("DIFFERS: {why}"),
        }];
        lines.extend(seed_lines(&draw, verified.as_ref()));
        lines.extend(unchecked(signed));
        let next = if found.is_none() { inspection(args, &draw) } else { None };
        lines.extend(next.iter().map(Next::line));
        let exit = if found.is_none() { Exit::Match } else { Exit::Diverges };
        let found = found.map(|(kind, why)| json!({ "kind": kind, "why": why }));
        let next = next.iter().collect::<Vec<_>>();
        printer.result(
            lines,
            &json!({ "differs": found, "register_checked": signed, "beacon": verified, "draw": draw, "next": next }),
        );
        return Ok(exit);
    }
    let known = args.chain.known()?;
    let runs = args.run.iter().map(|path| declared(args, path)).collect::<Result<Vec<_>, _>>()?;
    let randomness = randomness(args, &known)?;
    let verified = randomness.signed(&known).map_err(|why| beacon::unverified("--beacon", &why))?;
    args.chain.used(&known, verified.as_ref())?;
    let question = Question {
        time: match (args.date, &verified) {
            (Some(date), _) => date,
            (None, Some(round)) => round.time.min(now()?),
            (None, None) => now()?,
        },
        chips: args.chips.unwrap_or_default(),
        segments: args.segments.unwrap_or_default(),
        runs,
        randomness,
    };
    question.dated(verified.as_ref()).map_err(|why| beacon::unverified("--beacon", &why))?;
    let draw = Draw::new(&register, &closed, question).map_err(|error| Failure::new(Exit::Usage, error))?;
    write(&args.out, &draw.to_text())?;
    let (lines, value) = told(args, &draw, verified.as_ref(), signed);
    printer.result(lines, &value);
    Ok(Exit::Match)
}

/// The origin of the seed: a round whose signature was checked, or what the reader compares with publications. The other inputs are
/// to be compared, too: the seed does not depend on them, and who knows it could choose them.
fn seed_lines(draw: &Draw, verified: Option<&Verified>) -> Vec<String> {
    let (register, question) = (&draw.register, &draw.question);
    let published = [
        format!("register {} of {} entries, root {}", register.name, register.entries, register.root),
        format!("log heads of digest {}", draw.closed),
    ];
    let runs = question
        .runs
        .iter()
        .map(|run| format!("run {}, head of {} records, root {}", run.run.short(), run.size, run.root));
    let mut lines = origin_lines(draw, verified);
    lines.extend(
        published.into_iter().chain(runs).map(|input| format!("compare with the publication: {input}")),
    );
    lines.push(format!("the draw is of chips that were monitored on {}", utc(question.time)));
    lines
}

fn origin_lines(draw: &Draw, verified: Option<&Verified>) -> Vec<String> {
    match &draw.question.randomness {
        Randomness::Beacon { round, value } => vec![beacon::line(round, value, verified)],
        Randomness::Revealed { inspector, operator } => [("inspector", inspector), ("operator", operator)]
            .map(|(name, side)| {
                format!("compare with the {name}'s publication: commitment {}", commitment(&side.nonce))
            })
            .to_vec(),
    }
}

fn told(args: &Args, draw: &Draw, verified: Option<&Verified>, signed: bool) -> (Vec<String>, Value) {
    let mut lines = vec![format!(
        "drew {} of {} monitored chips ({} exempt ones are never drawn): {}",
        draw.chips.len(),
        draw.monitored,
        draw.exempt,
        args.out.display()
    )];
    lines.extend((draw.unclosed > 0).then(|| {
        format!("warning: {} monitored chips have no head in the list: their logs stay open", draw.unclosed)
    }));
    lines.extend(seed_lines(draw, verified));
    lines.extend(unchecked(signed));
    lines.extend(draw.chips.iter().map(|serial| format!("  chip {serial}")));
    let mut next: Vec<Next> = inspection(args, draw).into_iter().collect();
    lines.extend(next::lines(&next));
    for (segments, path) in draw.segments.iter().zip(&args.run) {
        lines.push(format!(
            "  {} of {} segments of run {}:",
            segments.steps.len(),
            segments.of,
            segments.run.short()
        ));
        let of_run: Vec<Next> = segments.steps.iter().map(|steps| replay(path, steps)).collect();
        lines.extend(next::lines(&of_run).map(|line| format!("    {line}")));
        next.extend(of_run);
    }
    let value = json!({
        "file": args.out, "register_checked": signed, "beacon": verified, "draw": draw, "next": next,
    });
    (lines, value)
}

/// The command that replays a drawn segment.
fn replay(run: &Path, (first, last): &(u32, u32)) -> Next {
    Next::new("replay it with", format!("tiebreak audit {} --steps {first}..{last}", shell::path(run)))
}

/// The command that inspects the log of the first drawn chip, and of the others likewise.
fn inspection(args: &Args, draw: &Draw) -> Option<Next> {
    let serial = draw.chips.first()?;
    let command = format!(
        "tiebreak monitor inspect LOG {} --closed {} --serial {serial}",
        args.register.options(),
        shell::path(&args.closed)
    );
    Some(Next::new("inspect each drawn chip's log with", command).note("LOG is the log of the chip"))
}
