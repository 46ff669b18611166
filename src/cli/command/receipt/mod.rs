//! `tiebreak receipt`: checks what somebody says that a model answered.

mod predictions;

use std::ops::Range;
use std::path::PathBuf;

use clap::Subcommand;
use serde_json::{Value, json};

use crate::cli::args::decided::Decided;
use crate::cli::args::engine::{EngineArgs, EngineKind, open_exact};
use crate::cli::args::key::read_public;
use crate::cli::args::limits::{Limits, Watch};
use crate::cli::args::predicted::DataArgs;
use crate::cli::args::sampled::Sampled;
use crate::cli::args::state::released;
use crate::cli::args::verdict_file;
use crate::cli::view::answering::{Speaker, no_language_model};
use crate::cli::view::next::Next;
use crate::cli::view::outcome::signed_by;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer, bytes_text, named};
use tiebreak_audit::answers::Accuser;
use tiebreak_dispute::answer::AnswerVerdict;
use tiebreak_engine::Engine;
use tiebreak_record::commit::answer_trace::AnswerTrace;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::commit::predictions::{PREDICTIONS_MAX, Predictions, is_of_predictions};
use tiebreak_record::commit::receipt::Receipt;
use tiebreak_record::commit::{Malformed, merkle};
use tiebreak_run::inference::replay::{Answerer, Difference};
use tiebreak_run::inference::traced::row_leaves;
use tiebreak_run::run::{RunError, disk, shell};

/// Check the receipt of an answer or of predictions.
///
/// `tiebreak generate --receipt` and `tiebreak predict --receipt` write receipts.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tiebreak receipt check answer.json runs/mine")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Check(Check),
}

/// Replay the receipt of an answer or of predictions.
///
/// Model, tokenizer and data are yours; nothing of the receipt vouches for them. All tokens or samples are checked unless --sample draws
/// some. A difference that another engine finds is confirmed by the scalar reference.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tiebreak receipt check answer.json runs/mine
  tiebreak receipt check answer.json runs/mine --signer-key trainer.key.pub --engine reference
  tiebreak receipt check answer.json runs/mine --trace answer.trace --verdict verdict.json
  tiebreak receipt check answer.json runs/mine --sample 20
  tiebreak receipt check predictions.json runs/mine --inputs images.npy")]
pub struct Check {
    /// The receipt.
    receipt: PathBuf,
    /// Folder or address of a run, or a .safetensors file of weights with --job.
    ///
    /// Weights are for receipts of predictions.
    #[arg(value_name = "RUN|MODEL")]
    run: PathBuf,
    #[command(flatten)]
    data: DataArgs,
    /// Public key of the signer: a file, or the text itself.
    #[arg(long, value_name = "KEY")]
    signer_key: Option<String>,
    /// Check K tokens or samples that are drawn at random.
    ///
    /// Tokens before a drawn one in its window are replayed too, and no root of an answer is compared. The result says how many can be
    /// wrong.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    sample: Option<u32>,
    /// Seed of the draw, to draw the same ones again.
    ///
    /// Without the option the system gives one after the receipt was read, so that no signer knows it before.
    #[arg(long, requires = "sample")]
    seed: Option<u64>,
    /// Trace of the answer, if the receipt commits one.
    ///
    /// `tiebreak generate --trace` writes it. With it a verdict names the tile of an operator that is wrong.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// File for a verdict on a signer whose answer does not follow.
    ///
    /// Anybody checks the verdict without the model, by `tiebreak verdict check`.
    #[arg(long, value_name = "FILE")]
    verdict: Option<PathBuf>,
    /// Replay with the checkpoint after this step, not with the released model.
    #[arg(long, value_name = "N")]
    step: Option<u32>,
    /// Tokenizer, as `tiebreak generate` takes one.
    #[arg(long, value_name = "PATH")]
    tokenizer: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    decided: Decided,
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    match args.command {
        Command::Check(args) => {
            let decided = args.decided;
            decided.applied(check(printer, &args))
        }
    }
}

/// Checks that a receipt's signature is that of the key that is named.
fn signed(args: &Check, signer: Option<&PublicKey>) -> Result<(), Failure> {
    let wanted = args.signer_key.as_deref().map(read_public).transpose()?;
    let Some(wanted) = wanted.filter(|wanted| signer != Some(wanted)) else { return Ok(()) };
    let found = signer.map_or("nobody".into(), |signer| signer.identified());
    let why = format!("it is signed by {found}, and --signer-key is {}", wanted.identified());
    Err(RunError::malformed(&args.receipt, Malformed::invalid("receipt", why)).into())
}

/// Checks a receipt of either kind.
fn check(printer: Printer, args: &Check) -> CommandResult {
    let watch = args.limits.watch(printer);
    let malformed = |source| RunError::malformed(&args.receipt, source);
    let text = disk::read_text(&args.receipt, PREDICTIONS_MAX).map_err(named)?;
    if is_of_predictions(&text) {
        let (receipt, signer) = Predictions::from_text(&text).map_err(malformed)?;
        signed(args, signer.as_ref())?;
        if let Some(option) = of_answers(args) {
            let why = format!("{option} is for receipts of answers, and this is one of predictions");
            return Err(Failure::new(Exit::Usage, why).help(format!("leave {option} out")));
        }
        let Check { run, data, step, sample, seed, engine, limits, .. } = args;
        let (step, sample, seed) = (*step, *sample, *seed);
        let check = predictions::Check { of: (run, data), step, sample, seed, engine, limits };
        return predictions::check(printer, &check, &watch, (&receipt, signer.as_ref()));
    }
    let (receipt, signer) = Receipt::from_text(&text).map_err(malformed)?;
    signed(args, signer.as_ref())?;
    if let Some(option) = args.data.given() {
        let why = format!("{option} is for receipts of predictions, and this is one of an answer");
        return Err(Failure::new(Exit::Usage, why).help(format!("leave {option} out")));
    }
    answer(printer, args, watch, (&text, &receipt, signer))
}

/// The first option that only receipts of answers have, if one is given.
fn of_answers(args: &Check) -> Option<&'static str> {
    let options = [("--trace", &args.trace), ("--verdict", &args.verdict), ("--tokenizer", &args.tokenizer)];
    options.into_iter().find(|(_, value)| value.is_some()).map(|(name, _)| name)
}

/// Refuses a receipt of another model, other weights or another tokenizer than the run's.
fn same_model(speaker: &Speaker, answerer: &Answerer, receipt: &Receipt) -> Result<(), Failure> {
    let [model, parameters] = answerer.identity().ok_or_else(no_language_model)?;
    let of = |digest: Option<_>| digest.map_or("none".to_string(), |digest| format!("{digest}"));
    let pairs = [
        ("another model", Some(receipt.model), Some(model)),
        ("other parameters", Some(receipt.parameters), Some(parameters)),
        ("another tokenizer", receipt.tokenizer, speaker.alphabet.digest()),
    ];
    let Some((other, said, found)) = pairs.into_iter().find(|(_, said, found)| said != found) else {
        return Ok(());
    };
    let (said, found) = (of(said), of(found));
    let why = format!("DIVERGES: the receipt is of {other}: {said}, and the run has {found}");
    Err(Failure::new(Exit::Diverges, why)
        .help("name the run, --step and --tokenizer of the model that answered"))
}

/// What differs, in words.
fn words(difference: &Difference) -> String {
    match difference {
        Difference::Token { number, said, found: Ok(found) } => {
            format!("token {number} of the answer is {said}, and the model gives {found}")
        }
        Difference::Token { number, said, found: Err(why) } => {
            format!("token {number} of the answer is {said}, and the model gives none: {why}")
        }
        Difference::Ended { number } => {
            format!("token {number} of the answer comes after a token that ends the text")
        }
        Difference::Stopped { tokens, length } => {
            format!("the answer stops after {tokens} of {length} tokens, and its last token ends no text")
        }
        Difference::Root { said, found } => {
            format!(
                "all tokens follow, and the root over the rows of logits is {said}; the model gives {found}"
            )
        }
        Difference::Traces { said, found } => {
            format!("all rows follow, and the root over the traces is {said}; the model gives {found}")
        }
    }
}

/// The first difference. Where another engine than the scalar reference finds one, the reference has to find the same.
fn difference(
    printer: Printer,
    args: &Check,
    engine: &mut dyn Engine,
    (answerer, receipt): (&Answerer, &Receipt),
    draw: Option<&Draw>,
) -> Result<Option<Difference>, Failure> {
    let all = 0..receipt.answer.len();
    let bar = printer.bar(draw.map_or(all.end, |draw| draw.tokens()) as u64, "tokens");
    let mut progress = |done| {
        bar.set_position(done);
        bar.set_message("");
    };
    let found = match draw {
        Some(draw) => answerer.drawn_difference(engine, receipt, &draw.replayed, &mut progress)?,
        None => answerer.difference(engine, receipt, all, &mut progress)?,
    };
    if let Some(difference) = &found
        && args.engine.engine != EngineKind::Reference
        && !answerer.confirms(receipt, difference, &mut progress)?
    {
        let why = format!(
            "{}: {}; the scalar reference gives another result, so nothing is decided",
            engine.describe(),
            words(difference)
        );
        return Err(Failure::new(Exit::Undecided, why)
            .help("see `tiebreak adapters --test`, or give --engine reference"));
    }
    bar.finish_and_clear();
    Ok(found)
}

/// Tokens that are drawn.
struct Draw {
    sampled: Sampled,
    /// The windows that hold them, with the tokens that are replayed.
    replayed: Vec<(usize, Range<usize>)>,
}

impl Draw {
    fn of(
        answerer: &Answerer,
        receipt: &Receipt,
        (count, seed): (u32, Option<u64>),
    ) -> Result<Draw, Failure> {
        let sampled = Sampled::draw(receipt.answer.len(), count, seed)?;
        let replayed = answerer.replayed(receipt, &sampled.drawn);
        Ok(Draw { sampled, replayed })
    }

    /// The number of tokens that are replayed.
    fn tokens(&self) -> usize {
        self.replayed.iter().map(|(_, numbers)| numbers.len()).sum()
    }

    fn line(&self, tokens: usize, by: &str) -> String {
        let (count, replayed, wrong) =
            (self.sampled.drawn.len(), self.tokens(), self.sampled.wrong_at_most());
        format!(
            "MATCHES: {count} of {tokens} tokens, drawn with seed {}, and {} before them follow; with 95 % confidence at most {wrong} are \
             wrong; no root is compared ({by})",
            self.sampled.seed,
            replayed - count
        )
    }

    fn json(&self) -> Value {
        let Sampled { drawn, seed, .. } = &self.sampled;
        json!({
            "drawn": drawn.len(), "replayed": self.tokens(), "seed": seed, "confidence": 0.95,
            "wrong_at_most": self.sampled.wrong_at_most(),
        })
    }
}

/// The signer's trace, which has to be the one that the receipt commits.
fn read_trace(args: &Check, answerer: &Answerer, receipt: &Receipt) -> Result<Option<AnswerTrace>, Failure> {
    let Some(path) = &args.trace else { return Ok(None) };
    let holds = |what: &str, found: Digest, own: Digest| {
        let why = format!("its {what} have the root {found}, and the receipt commits {own}");
        let wrong = || RunError::malformed(path, Malformed::invalid("trace", why));
        if found == own { Ok(()) } else { Err(wrong()) }
    };
    let Some(traces) = receipt.traces else {
        let why = format!("{} commits no traces: leave --trace out", args.receipt.display());
        return Err(Failure::new(Exit::Usage, why));
    };
    let graphs = answerer.window_graphs(receipt);
    let bytes = disk::read(path, AnswerTrace::bytes_max(receipt.answer.len(), &graphs)).map_err(named)?;
    let trace = AnswerTrace::decode(&bytes, receipt.answer.len(), &graphs);
    let trace = trace.map_err(|why| RunError::malformed(path, why))?;
    holds("windows", answerer.traces_root(receipt, &trace), traces)?;
    holds("rows", merkle::root(&row_leaves(receipt, &trace.rows)), receipt.root)?;
    Ok(Some(trace))
}

/// The evidence against a signer, or the reason why there is none.
fn evidence_of(
    accuser: &Accuser,
    engine: &mut dyn Engine,
    (found, signer): (&Difference, Option<&PublicKey>),
) -> Result<Result<AnswerVerdict, &'static str>, Failure> {
    if signer.is_none() {
        return Ok(Err("no verdict is written: nobody signed the receipt, so that it accuses nobody"));
    }
    let verdict = accuser.verdict(engine, found)?;
    Ok(verdict.ok_or(match (accuser.receipt.0.traces, accuser.trace) {
        (None, _) => {
            "no verdict is written: the receipt commits other rows than the model gives, and no traces; who has the model finds the same"
        }
        (Some(_), None) => {
            "no verdict is written: the receipt commits traces; ask the signer for the trace's file, and give it by --trace"
        }
        (Some(_), Some(_)) => {
            "no verdict is written: no evidence stands without the model; who has the model finds the same"
        }
    }))
}

/// The trace for the evidence. One that is not the signer's hides no difference that shows without it.
fn usable(
    printer: Printer,
    trace: Result<Option<AnswerTrace>, Failure>,
    found: Option<&Difference>,
) -> Result<Option<AnswerTrace>, Failure> {
    match trace {
        Err(bad) if found.is_some() && bad.exit == Exit::Malformed => {
            printer.problem(&format!("the trace is left out: {}", bad.message));
            Ok(None)
        }
        trace => trace,
    }
}

/// Says what was found before the evidence is made: the signer chooses how long the answer is that the evidence replays.
fn announce(printer: Printer, args: &Check, watch: &Watch, found: &Difference) -> Result<(), Failure> {
    let finding = format!("DIVERGES: {}", words(found));
    printer.say(format!("{finding}; the evidence is being made"));
    watch.decided(finding, args.decided.applied(Ok(Exit::Diverges))?);
    Ok(())
}

/// A verdict's file, or why there is none.
struct Saved {
    file: Option<PathBuf>,
    line: String,
    next: Option<Next>,
}

fn save(args: &Check, evidence: Option<Result<AnswerVerdict, &str>>) -> Result<Option<Saved>, Failure> {
    Ok(match (&args.verdict, evidence) {
        (Some(path), Some(Ok(verdict))) => {
            let bytes = verdict.to_bytes();
            let file = verdict_file::save_bytes(path, &bytes)?;
            let (kind, size) = (verdict.claim.kind(), bytes_text(bytes.len() as u64));
            let line = format!("  {kind} verdict ({size}): {}", file.display());
            let command = format!("tiebreak verdict check {}", shell::path(&file));
            Some(Saved { file: Some(file), line, next: Some(Next::new("anybody can check it", command)) })
        }
        (_, Some(Err(why))) => Some(Saved { file: None, line: format!("  {why}"), next: None }),
        _ => None,
    })
}

/// Replays the receipt of an answer.
fn answer(
    printer: Printer,
    args: &Check,
    watch: Watch,
    (text_of, receipt, signer): (&str, &Receipt, Option<PublicKey>),
) -> CommandResult {
    let speaker = Speaker::of(args.limits.open(&args.run)?, args.tokenizer.as_deref())?;
    let weights = released(&speaker.run, args.step)?;
    let answerer = speaker.answerer(&weights)?;
    same_model(&speaker, &answerer, receipt)?;
    answerer.has_tokens(receipt).map_err(|source| RunError::malformed(&args.receipt, source))?;
    let needed = answerer.memory(receipt).saturating_add(speaker.run.state_memory());
    speaker.run.within_memory("a replay of the answer", needed)?;
    watch.planned();
    let trace = read_trace(args, &answerer, receipt);
    let mut engine = open_exact(&args.engine)?;
    let draw = args.sample.map(|count| Draw::of(&answerer, receipt, (count, args.seed))).transpose()?;
    let found = difference(printer, args, engine.as_mut(), (&answerer, receipt), draw.as_ref())?;
    let trace = usable(printer, trace, found.as_ref())?;
    let accuser = Accuser {
        answerer: &answerer,
        job: &speaker.run.job_text,
        receipt: (receipt, text_of),
        tokenizer: speaker.alphabet.parts(),
        trace: trace.as_ref(),
    };
    let evidence = found.as_ref().filter(|_| args.verdict.is_some());
    evidence.map(|found| announce(printer, args, &watch, found)).transpose()?;
    let evidence = evidence.map(|found| evidence_of(&accuser, engine.as_mut(), (found, signer.as_ref())));
    let verdict = save(args, evidence.transpose()?)?;
    let by = signed_by(signer.as_ref());
    let tokens = receipt.answer.len();
    let first = match (&found, &draw) {
        (None, Some(draw)) => draw.line(tokens, &by),
        (None, None) => {
            format!("MATCHES: {tokens} tokens follow from the model, the prompt and the settings ({by})")
        }
        (Some(difference), _) => format!("DIVERGES: {} ({by})", words(difference)),
    };
    let text = speaker.alphabet.text(&receipt.answer[..tokens - usize::from(ended(&answerer, receipt))])?;
    let mut json = json!({
        "result": if found.is_none() { "matches" } else { "diverges" },
        "tokens": tokens,
        "text": text,
        "signer": signer.as_ref().map(PublicKey::to_text),
        "root": receipt.root,
    });
    if let Some(draw) = &draw {
        json["sample"] = draw.json();
    }
    if let Some(difference) = &found {
        json["difference"] = json!(words(difference));
        json["token"] = match difference {
            Difference::Token { number, .. } | Difference::Ended { number } => json!(number),
            Difference::Stopped { .. } | Difference::Root { .. } | Difference::Traces { .. } => json!(null),
        };
    }
    let lines = [Some(first), verdict.as_ref().map(|verdict| verdict.line.clone())];
    if let Some(verdict) = &verdict {
        json["verdict_file"] = json!(verdict.file);
        json["no_verdict"] = json!(verdict.file.is_none().then_some(&verdict.line));
        json["next"] = json!(verdict.next);
    }
    printer.result(lines.into_iter().flatten().collect::<Vec<_>>(), &json);
    if let Some(next) = verdict.and_then(|verdict| verdict.next) {
        printer.say(next.line());
    }
    Ok(if found.is_none() { Exit::Match } else { Exit::Diverges })
}

/// True if the last token ends the text, and is none of it.
fn ended(answerer: &Answerer, receipt: &Receipt) -> bool {
    receipt.answer.last().is_some_and(|last| answerer.ends.contains(last))
}
