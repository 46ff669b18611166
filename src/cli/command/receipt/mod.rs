//! `tiebreak receipt`: checks what somebody says that a model answered.

mod args;
mod evidence;
mod predictions;

use std::ops::Range;

use clap::Subcommand;
use serde_json::{Value, json};

use args::Check;
use evidence::{NOTHING_STANDS, UNSIGNED, WITHOUT_TRACE, another_network, holds, save, trace_file, usable};

use crate::cli::args::engine::{EngineKind, open_exact};
use crate::cli::args::key::read_public;
use crate::cli::args::limits::Watch;
use crate::cli::args::sampled::Sampled;
use crate::cli::args::subject::{Subject, no_language_model};
use crate::cli::args::weight_files::tokenizer_at;
use crate::cli::view::answering::Speaker;
use crate::cli::view::outcome::signed_by;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer, named};
use tiebreak_audit::answers::Accuser;
use tiebreak_dispute::answer::AnswerVerdict;
use tiebreak_engine::Engine;
use tiebreak_record::commit::answer_trace::AnswerTrace;
use tiebreak_record::commit::keys::PublicKey;
use tiebreak_record::commit::predictions::PREDICTIONS_MAX;
use tiebreak_record::commit::receipt::Receipt;
use tiebreak_record::commit::salted_receipt::{self, AnyReceipt, OPENING_MAX, is_salted};
use tiebreak_record::commit::{Malformed, merkle};
use tiebreak_run::inference::replay::{Answerer, Difference};
use tiebreak_run::inference::traced::row_leaves;
use tiebreak_run::run::{RunError, disk};

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
    let text = disk::read_text(&args.receipt, PREDICTIONS_MAX).map_err(named)?;
    let opening = opening(args, &text)?;
    let opening = opening.as_deref();
    let (receipt, signer) = salted_receipt::read(&text, opening).map_err(|source| match &source {
        Malformed::Invalid { what: "opening", .. } | Malformed::TooLarge { what: "opening", .. } => {
            RunError::malformed(args.opening.as_deref().unwrap_or(&args.receipt), source)
        }
        _ => RunError::malformed(&args.receipt, source),
    })?;
    signed(args, signer.as_ref())?;
    let receipt = match receipt {
        AnyReceipt::Answer(receipt) => receipt,
        AnyReceipt::Predictions(receipt) => {
            if args.tokenizer.is_some() {
                let why = "--tokenizer is for receipts of answers, and this is one of predictions";
                return Err(Failure::new(Exit::Usage, why).help("leave --tokenizer out"));
            }
            return predictions::check(printer, args, &watch, ((&text, opening), &receipt, signer.as_ref()));
        }
    };
    if let Some(option) = args.data.given_of_data() {
        let why = format!("{option} is for receipts of predictions, and this is one of an answer");
        return Err(Failure::new(Exit::Usage, why).help(format!("leave {option} out")));
    }
    answer(printer, args, watch, ((&text, opening), &receipt, signer))
}

/// The text of the opening, which a salted receipt needs and no other one has.
fn opening(args: &Check, text: &str) -> Result<Option<String>, Failure> {
    let why = match (is_salted(text), &args.opening) {
        (true, Some(path)) => return Ok(Some(disk::read_text(path, OPENING_MAX).map_err(named)?)),
        (false, None) => return Ok(None),
        (true, None) => "is salted: give --opening FILE",
        (false, Some(_)) => "is not salted: leave --opening out",
    };
    let help = "`--opening` of `tiebreak generate` and `tiebreak predict` writes salted receipts with their openings";
    Err(Failure::new(Exit::Usage, format!("{} {why}", args.receipt.display())).help(help))
}

/// Refuses a receipt of another model, other weights or another tokenizer than the run's.
fn same_model(
    speaker: &Speaker,
    (answerer, of_network): (&Answerer, bool),
    receipt: &Receipt,
) -> Result<(), Failure> {
    let [model, parameters] = answerer.identity().ok_or_else(no_language_model)?;
    if of_network && receipt.model != model {
        return Err(another_network(&receipt.model, &model));
    }
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
    let why = format!("DIVERGES: the receipt is of {other}: {said}, and the model has {found}");
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

/// The signer's trace of an answer, which has to be the one that the receipt commits.
fn read_trace(args: &Check, answerer: &Answerer, receipt: &Receipt) -> Result<Option<AnswerTrace>, Failure> {
    let Some((path, traces)) = trace_file(args, receipt.traces)? else { return Ok(None) };
    let graphs = answerer.window_graphs(receipt);
    let bytes = disk::read(path, AnswerTrace::bytes_max(receipt.answer.len(), &graphs)).map_err(named)?;
    let trace = AnswerTrace::decode(&bytes, receipt.answer.len(), &graphs);
    let trace = trace.map_err(|why| RunError::malformed(path, why))?;
    holds(path, "windows", [answerer.traces_root(receipt, &trace), traces])?;
    holds(path, "rows", [merkle::root(&row_leaves(receipt, &trace.rows)), receipt.root])?;
    Ok(Some(trace))
}

/// The evidence against a signer, or the reason why there is none.
fn evidence_of(
    accuser: &Accuser,
    engine: &mut dyn Engine,
    (found, signer): (&Difference, Option<&PublicKey>),
) -> Result<Result<AnswerVerdict, &'static str>, Failure> {
    if signer.is_none() {
        return Ok(Err(UNSIGNED));
    }
    let verdict = accuser.verdict(engine, found)?;
    Ok(verdict.ok_or(match (accuser.receipt.0.traces, accuser.trace) {
        (None, _) => {
            "no verdict is written: the receipt commits other rows than the model gives, and no traces; who has the model finds the same"
        }
        (Some(_), None) => WITHOUT_TRACE,
        (Some(_), Some(_)) => NOTHING_STANDS,
    }))
}

/// Says what was found before the evidence is made: the signer chooses how long the answer is that the evidence replays.
fn announce(printer: Printer, args: &Check, watch: &Watch, found: &Difference) -> Result<(), Failure> {
    let finding = format!("DIVERGES: {}", words(found));
    printer.say(format!("{finding}; the evidence is being made"));
    watch.decided(finding, args.decided.applied(Ok(Exit::Diverges))?);
    Ok(())
}

/// Replays the receipt of an answer.
fn answer(
    printer: Printer,
    args: &Check,
    watch: Watch,
    ((text_of, opening), receipt, signer): ((&str, Option<&str>), &Receipt, Option<PublicKey>),
) -> CommandResult {
    let subject = Subject::answering(&args.run, args.data.model(), args.step, &args.limits)?;
    let ((writer, classes), kept) = (subject.writer()?, || subject.companions());
    let named = args.tokenizer.as_deref().map(tokenizer_at).transpose()?;
    let speaker = Speaker::of((subject.job(), writer, classes), subject.table(), named, kept)?;
    let answerer = speaker.answerer(&subject.model);
    same_model(&speaker, (&answerer, subject.is_of_network()), receipt)?;
    answerer.has_tokens(receipt).map_err(|source| RunError::malformed(&args.receipt, source))?;
    let needed = answerer.memory(receipt).saturating_add(subject.bytes().saturating_mul(2));
    args.limits.check("a replay of the answer", needed)?;
    watch.planned();
    let trace = read_trace(args, &answerer, receipt);
    let mut engine = open_exact(&args.engine)?;
    let draw = args.sample.map(|count| Draw::of(&answerer, receipt, (count, args.seed))).transpose()?;
    let found = difference(printer, args, engine.as_mut(), (&answerer, receipt), draw.as_ref())?;
    let trace = usable(printer, trace, found.is_some())?;
    let accuser = Accuser {
        answerer: &answerer,
        job: subject.model_text(),
        receipt: (receipt, text_of),
        tokenizer: speaker.alphabet.parts(),
        opening,
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
        verdict.show(&mut json);
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
