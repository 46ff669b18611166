//! `tiebreak generate`.

mod prompt;

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::json;

use crate::cli::args::engine::{EngineArgs, open_exact};
use crate::cli::args::key::read_private;
use crate::cli::args::limits::Limits;
use crate::cli::args::random::random;
use crate::cli::args::salted::SaltedArgs;
use crate::cli::args::subject::{Subject, no_language_model};
use crate::cli::args::weight_files::tokenizer_at;
use crate::cli::view::alphabet::Alphabet;
use crate::cli::view::answering::Speaker;
use crate::cli::view::next::Next;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use tiebreak_contract::arith::float;
use tiebreak_contract::program::sampling::Sampling;
use tiebreak_engine::Engine;
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::keys::PrivateKey;
use tiebreak_record::commit::merkle;
use tiebreak_record::commit::receipt::{Receipt, TOKENS_MAX};
use tiebreak_record::commit::salted_receipt::AnyReceipt;
use tiebreak_run::inference::answer::{Answer, Identity};
use tiebreak_run::inference::decoder::Decoder;
use tiebreak_run::inference::replay::Answerer;
use tiebreak_run::inference::traced::row_leaves;
use tiebreak_run::run::disk::Disk;
use tiebreak_run::run::{RunError, shell};

/// Write text with a trained language model, over bytes or a tokenizer's tokens.
///
/// The text depends on the model, the prompt, the settings and the seed alone (docs/INFERENCE.md). Engine and threads change no token.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:
  tiebreak generate runs/mine --prompt 'First Citizen:' --length 400
  tiebreak generate runs/chat --system 'Answer briefly.' --message 'Two plus two?'
  tiebreak generate runs/mine --prompt 'First Citizen:' --receipt answer.json --key trainer.key",
    after_long_help = "Examples:
  tiebreak generate runs/mine --prompt 'First Citizen:' --length 400
  tiebreak generate runs/mine --step 2 --seed 7 --top-p 0.9
  tiebreak generate runs/gpt2 --tokenizer gpt2/tokenizer.json
  tiebreak generate gpt2 --job gpt2.toml --prompt 'First Citizen:'
  tiebreak generate runs/chat --system 'Answer briefly.' --message 'Two plus two?'
  tiebreak generate runs/mine --prompt 'First Citizen:' --receipt answer.json --key trainer.key
  tiebreak generate runs/mine --receipt answer.json --trace answer.trace --key trainer.key"
)]
pub struct Args {
    /// Folder of a run, or its address (http://HOST/PATH), or released weights with --job.
    ///
    /// Weights are a .safetensors file, or a folder that has them, here or at an address.
    #[arg(value_name = "RUN|MODEL")]
    run: PathBuf,
    /// Job that says which model weights are of. `tiebreak import` writes it.
    #[arg(long, value_name = "JOB")]
    job: Option<PathBuf>,
    /// Network file of a program from a file, as tiebreak.capture writes it.
    ///
    /// The network has to give the job's program. The default is the file that the run keeps, or that the job of weights names.
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    network: Option<PathBuf>,
    #[command(flatten)]
    prompt: prompt::PromptArgs,
    /// Most tokens to write.
    ///
    /// A byte is a token in a model over bytes. A token that ends texts ends this one.
    #[arg(long, value_name = "N", default_value_t = 400)]
    length: u32,
    /// Temperature; 0 always takes the most likely token.
    #[arg(long, value_name = "T", default_value_t = 0.8)]
    temperature: f32,
    /// Draw among the K most likely tokens alone.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    top_k: Option<u32>,
    /// Draw among the most likely tokens whose probabilities reach P together.
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// Seed; the same one gives the same text.
    ///
    /// Without the option a seed is drawn, and printed on stderr.
    #[arg(long)]
    seed: Option<u64>,
    /// Write with the checkpoint after this step, not with the released model.
    #[arg(long, value_name = "N", conflicts_with = "job")]
    step: Option<u32>,
    /// Tokenizer: tokenizer.json, or a folder with one, or with vocab.json and merges.txt.
    ///
    /// It may be at an address. The default is the tokenizer that the run keeps. A build with `--features tokenizer` reads them.
    #[arg(long, value_name = "PATH")]
    tokenizer: Option<PathBuf>,
    /// File for a receipt, by which others check the answer.
    ///
    /// The receipt has the digests of model and tokenizer, the settings, and the tokens of prompt and answer.
    #[arg(long, value_name = "FILE")]
    receipt: Option<PathBuf>,
    /// File for a trace of the answer, to which the receipt commits.
    ///
    /// With the trace others convict a wrong answer down to the tile. It costs one more pass over the text.
    #[arg(long, value_name = "FILE", requires = "receipt", hide_short_help = true)]
    trace: Option<PathBuf>,
    #[command(flatten)]
    salted: SaltedArgs,
    /// Private key that signs the receipt.
    #[arg(long, value_name = "KEY", requires = "receipt")]
    key: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    limits: Limits,
}

impl Args {
    /// The files that say which model answers.
    fn model(&self) -> (Option<&Path>, Option<&Path>) {
        (self.job.as_deref(), self.network.as_deref())
    }
}

/// The settings of the draws. A seed that nobody names is drawn, if it would change the text.
fn sampling(printer: Printer, args: &Args) -> Result<Sampling, Failure> {
    // Minus zero is the same temperature.
    let temperature = float::add(args.temperature.to_bits(), 0);
    let top_p = args.top_p.map_or(float::ONE, f32::to_bits);
    let mut sampling = Sampling { temperature, top_k: args.top_k.unwrap_or(0), top_p, seed: 0 };
    if let Some(why) = sampling.error() {
        return Err(Failure::new(
            Exit::Usage,
            format!("--temperature {} --top-p {}: {why}", args.temperature, f32::from_bits(top_p)),
        ));
    }
    if temperature == 0 && (args.top_k.is_some() || args.top_p.is_some()) {
        let why = "--temperature 0 takes the most likely token, so that --top-k and --top-p change nothing";
        return Err(Failure::new(Exit::Usage, why).help("leave them out, or name another temperature"));
    }
    match args.seed {
        Some(seed) => sampling.seed = seed,
        None if temperature == 0 => {}
        None => {
            sampling.seed = u64::from_le_bytes(random()?);
            printer.say(format!("seed {0} (--seed {0} writes this text again)", sampling.seed));
        }
    }
    Ok(sampling)
}

/// Writes the receipt, signed if there is a key. Returns the command that checks it.
fn write_receipt(
    args: &Args,
    engine: &mut dyn Engine,
    (speaker, answerer): (&Speaker, &Answerer),
    (prompt, answer): (&[u32], &Answer),
    key: Option<&PrivateKey>,
) -> Result<Option<Next>, Failure> {
    let Some(path) = &args.receipt else { return Ok(None) };
    let model = answerer.identity().ok_or_else(no_language_model)?;
    let identity = Identity { model, tokenizer: speaker.alphabet.digest() };
    let Some(mut receipt) = answer.receipt(&identity, prompt.to_vec()) else { return Ok(None) };
    if let Some(path) = &args.trace {
        receipt.traces = Some(write_trace(path, engine, answerer, &receipt)?);
    }
    args.salted.write(path, &AnyReceipt::Answer(receipt), key)?;
    let mut words = vec![shell::path(path), shell::path(&args.run)];
    words.extend(args.job.as_ref().map(|job| format!("--job {}", shell::path(job))));
    words.extend(args.network.as_ref().map(|file| format!("--network {}", shell::path(file))));
    words.extend(args.step.map(|step| format!("--step {step}")));
    words.extend(args.salted.words());
    words.extend(args.tokenizer.as_ref().map(|path| format!("--tokenizer {}", shell::path(path))));
    Ok(Some(Next::new("to check the receipt", format!("tiebreak receipt check {}", words.join(" ")))))
}

/// Writes the trace of an answer. Returns the root that the receipt has.
fn write_trace(
    path: &Path,
    engine: &mut dyn Engine,
    answerer: &Answerer,
    receipt: &Receipt,
) -> Result<Digest, Failure> {
    let trace = answerer.trace(engine, receipt, None, &mut |_| {})?;
    if merkle::root(&row_leaves(receipt, &trace.rows)) != receipt.root {
        let why = "the trace has other rows of logits than the answer: the engine computes them in two ways";
        return Err(Failure::new(Exit::Undecided, why).help("see `tiebreak adapters --test`"));
    }
    let at = std::path::absolute(path).map_err(RunError::io(path))?;
    Disk::default().replace(&at, &trace.encode())?;
    Ok(answerer.traces_root(receipt, &trace))
}

/// The model, and the meaning of its ids.
fn speaker<'a>(args: &Args, subject: &'a Subject) -> Result<Speaker<'a>, Failure> {
    let ((writer, classes), kept) = (subject.writer()?, || subject.companions());
    if args.prompt.ids {
        return Ok(Speaker::with(Alphabet::Ids, (writer, classes), subject.table()));
    }
    let job = (subject.job(), writer, classes);
    let named = args.tokenizer.as_deref().map(tokenizer_at).transpose()?;
    Speaker::of(job, subject.table(), named, kept).map_err(|why| match why.exit {
        Exit::Usage if why.help.is_none() => {
            why.help("--ids takes the prompt as token ids, without a tokenizer")
        }
        _ => why,
    })
}

/// Refuses a receipt that would be too long.
fn bounded(args: &Args, prompt: &[u32]) -> Result<(), Failure> {
    let longest = prompt.len().saturating_add(args.length as usize);
    if args.receipt.is_some() && longest > TOKENS_MAX {
        let why =
            format!("a receipt has at most {TOKENS_MAX} tokens, and the prompt and --length make {longest}");
        return Err(Failure::new(Exit::Usage, why));
    }
    Ok(())
}

/// The times of an answer: its begin, and when its first token was there.
struct Clock {
    begin: Instant,
    first: Option<Instant>,
}

impl Clock {
    /// Seconds to the first token, and from it to now. To the first token count the prompt and the weights' integers.
    fn seconds(&self) -> [f64; 2] {
        let first = self.first.unwrap_or_else(Instant::now);
        [first.duration_since(self.begin), first.elapsed()].map(|time| time.as_secs_f64())
    }

    /// The times in words.
    fn line(&self, prompt: usize, tokens: usize) -> String {
        let [first, rest] = self.seconds();
        let more = tokens.saturating_sub(1);
        let rate = match more {
            0 => String::new(),
            more => format!("; {more} more in {rest:.1} s, {:.1} a second", more as f64 / rest.max(1e-9)),
        };
        format!("the first token after {first:.1} s, behind a prompt of {prompt}{rate}")
    }
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let _watch = args.limits.watch(printer);
    let key = args.key.as_deref().map(read_private).transpose()?;
    let subject = Subject::answering(&args.run, args.model(), args.step, &args.limits)?;
    let speaker = speaker(&args, &subject)?;
    args.limits.check("an answer", subject.bytes().saturating_add(speaker.memory()))?;
    let answerer = speaker.answerer(&subject.model);
    let sampling = sampling(printer, &args)?;
    let text = args.prompt.text(&speaker.alphabet)?;
    let prompt = prompt::ids(&speaker.alphabet, &text, speaker.classes)?;
    bounded(&args, &prompt)?;
    let mut engine = open_exact(&args.engine)?;
    let mut clock = Clock { begin: Instant::now(), first: None };
    let parameters = answerer.upload(engine.as_mut())?;
    let mut decoder =
        Decoder::new(engine.as_mut(), answerer.model, parameters)?.ok_or_else(no_language_model)?;
    // A model was trained by somebody else, so what it writes is foreign text.
    let mut written = speaker.alphabet.written(&text, prompt.clone());
    // A receipt is of a whole answer, whether somebody reads the text or not.
    let goes_on = |text: &str| printer.json || printer.piece(text) || args.receipt.is_some();
    let mut open = args.prompt.is_chat() || goes_on(&written.begin());
    let mut answer = Answer::new(sampling, args.length, args.receipt.is_some());
    // A bar is for programs that call: people see the text itself.
    let bar = printer.json.then(|| printer.bar(args.length.into(), "tokens"));
    while open && !answer.is_whole() {
        let row = decoder.logits(&written.ids)?;
        clock.first.get_or_insert_with(Instant::now);
        let taken = answer.take(&answerer, &row).map_err(|why| Failure::new(Exit::Undecided, why))?;
        if let Some(id) = taken {
            open = goes_on(&written.push(id)?);
        }
        if let Some(bar) = &bar {
            bar.advance();
            if bar.wish().is_break() {
                return Err(Failure::new(Exit::Undecided, "the answer was stopped before its last token"));
            }
        }
    }
    let ([first, rest], line) = (clock.seconds(), clock.line(prompt.len(), answer.tokens().len()));
    drop(decoder);
    let models = (&speaker, &answerer);
    let next = write_receipt(&args, engine.as_mut(), models, (&prompt, &answer), key.as_ref())?;
    let (tokens, ended) = (answer.ids().len(), answer.ended());
    if printer.json {
        let found = json!({
            "text": written.text()?, "prompt": text, "answer": written.rest()?, "seed": sampling.seed, "tokens": tokens, "ended": ended, "ids": answer.tokens(),
            "first_seconds": first, "seconds": first + rest,
            "next": next.iter().collect::<Vec<_>>(),
        });
        printer.document("", &found);
    } else if open && goes_on(&written.end()?) {
        printer.document("", &());
    }
    printer.say(line);
    if ended {
        printer.say(format!("the model ended the text after {tokens} tokens"));
    }
    if let Some(next) = &next {
        printer.say(next.line());
    }
    Ok(Exit::Match)
}
