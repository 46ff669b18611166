//! `tiebreak serve-model`.

mod http;
mod queue;
mod scheduler;
mod stream;
mod tokenizing;
mod wire;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::cli::args::engine::{EngineArgs, open_exact};
use crate::cli::args::key::read_private;
use crate::cli::args::limits::Limits;
use crate::cli::args::listen::address;
use crate::cli::args::metrics::{MetricsArgs, Served};
use crate::cli::args::subject::{Subject, no_language_model};
use crate::cli::args::weight_files::tokenizer_at;
use crate::cli::view::answering::Speaker;
use crate::cli::view::chats::Chats;
use crate::cli::view::escape::one_line;
use crate::cli::view::report::{CommandResult, Exit, Failure, Printer};
use crate::cli::view::traces::Traces;
use http::Desk;
use queue::Queue;
use scheduler::{Signing, work};
use tiebreak_engine::{Engine, Tensor};
use tiebreak_game::net::connection::Server;
use tiebreak_game::net::stop::on_stop;
use tiebreak_record::commit::receipt::TOKENS_MAX;
use tiebreak_run::inference::answer::Identity;
use tiebreak_run::inference::batch::Batch;
use tokenizing::Shared;

/// Answer completions and chats as OpenAI's APIs do, with a receipt in each answer.
///
/// Several answers are computed together. The text of an answer and its receipt depend on the request alone, and are those of
/// `tiebreak generate --receipt` with the same settings (docs/how-to/serve-a-model.md). Chats are served if the tokenizer has a chat
/// template.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  tiebreak serve-model runs/mine --key me.key",
    after_long_help = "HTTP is without TLS and without passwords: whoever reaches the address can ask. To serve others, put a reverse proxy (nginx, \
Caddy) in front of this address. Ctrl-C or SIGTERM ends the command.\n\n\
Examples:
  tiebreak serve-model runs/mine
  tiebreak serve-model gpt2 --job gpt2.toml
  tiebreak serve-model runs/gpt2 --key me.key --seats 16 --listen 127.0.0.1:8704"
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
    /// Address to listen at. Port 0 takes a free one.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8704", value_parser = address)]
    listen: String,
    /// Private key that signs the receipts.
    #[arg(long, value_name = "KEY")]
    key: Option<PathBuf>,
    /// Name that requests have to give; by default that of the run's folder, or of the weights.
    #[arg(long)]
    name: Option<String>,
    /// Answer with the checkpoint after this step, not with the released model.
    #[arg(long, value_name = "N", conflicts_with = "job")]
    step: Option<u32>,
    /// Tokenizer: tokenizer.json, or a folder with one, or with vocab.json and merges.txt.
    ///
    /// It may be at an address. The default is the tokenizer that the run keeps. A build with `--features tokenizer` reads them.
    #[arg(long, value_name = "PATH")]
    tokenizer: Option<PathBuf>,
    /// Most answers that are computed together.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    seats: u32,
    /// Most requests that wait for a seat. More requests get status 429.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(0..=4096))]
    waiting: u32,
    /// Most tokens of a prompt and its answer; by default the positions of the model's context.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=TOKENS_MAX as i64), hide_short_help = true)]
    most_tokens: Option<u32>,
    /// Most seconds from a request to the end of its answer.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=86_400), hide_short_help = true)]
    answer_time: u32,
    /// Seconds that answers have to become whole when the command is asked to end.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=3600), hide_short_help = true)]
    grace: u32,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    limits: Limits,
}

/// The model's name for requests.
fn name(args: &Args) -> String {
    let folder = || Some(Path::new(&args.run).file_name()?.to_string_lossy().into_owned());
    args.name.clone().or_else(folder).unwrap_or_else(|| "model".into())
}

/// Starts the server, and what ends it.
fn start(args: &Args, desk: Desk) -> Result<Server, Failure> {
    let queue = desk.queue.clone();
    let server = http::start(&args.listen, desk).map_err(|error| {
        let why = format!("cannot listen at {}: {error}; give another --listen", args.listen);
        Failure::new(Exit::Undecided, why)
    })?;
    let grace = Duration::from_secs(args.grace.into());
    let stop = on_stop(move || queue.end(grace));
    stop.map_err(|error| Failure::new(Exit::Undecided, format!("signals cannot be waited for: {error}")))?;
    Ok(server)
}

/// What people and scripts are told when the server listens.
fn announce(
    printer: Printer,
    address: &str,
    desk: (&str, usize, Option<&str>, Option<String>),
    seats: u32,
    signing: &Signing,
) {
    let (name, most, no_chat, metrics) = desk;
    let [model, parameters] = signing.identity.model;
    let signer = signing.key.as_ref().map(|key| key.public());
    let by = signer.as_ref().map_or("receipts are not signed".into(), |key| {
        format!("receipts are signed by {}", key.identified())
    });
    let lines = vec![
        format!("serves the model {name} at {address}/v1"),
        format!("  {seats} answers together, {most} tokens of a prompt and its answer; {by}"),
        no_chat
            .map_or("  chats are served".into(), |why| format!("  chats are not served: {}", one_line(why))),
        "  requests and answers are not encrypted; Ctrl-C ends the server".into(),
    ];
    printer.result(
        lines,
        &json!({
            "address": address, "model": name, "model_digest": model, "parameters": parameters,
            "tokenizer": signing.identity.tokenizer, "chat": no_chat.is_none(), "seats": seats, "most_tokens": most,
            "signer": signer.map(|key| key.to_text()), "metrics": metrics,
        }),
    );
}

/// The weights on an engine, and the digests by which receipts name the model.
fn loaded(
    args: &Args,
    speaker: &Speaker,
    weights: &[Vec<u8>],
    engine: &mut dyn Engine,
) -> Result<(Vec<Tensor>, Identity), Failure> {
    let answerer = speaker.answerer(weights);
    let bytes = weights.iter().map(|tensor| tensor.len() as u64).sum::<u64>().saturating_mul(2);
    if !Batch::fits(answerer.model, args.seats) {
        let why = format!("a step of {} answers has tensors of too many elements", args.seats);
        return Err(Failure::new(Exit::Usage, why).help("give a smaller --seats"));
    }
    let needed = Batch::memory(answerer.model, args.seats).saturating_add(bytes);
    args.limits.check("answers of all seats", needed)?;
    let model = answerer.identity().ok_or_else(no_language_model)?;
    Ok((answerer.upload(engine)?, Identity { model, tokenizer: speaker.alphabet.digest() }))
}

pub fn run(printer: Printer, args: Args) -> CommandResult {
    let watch = args.limits.watch(printer);
    let key = args.key.as_deref().map(read_private).transpose()?;
    let model = (args.job.as_deref(), args.network.as_deref());
    let mut subject = Subject::answering(&args.run, model, args.step, &args.limits)?;
    let weights = std::mem::take(&mut subject.model);
    let ((writer, classes), kept) = (subject.writer()?, || subject.companions());
    let named = args.tokenizer.as_deref().map(tokenizer_at).transpose()?;
    let speaker = Speaker::of((subject.job(), writer, classes), subject.table(), named, kept)?;
    let mut engine = open_exact(&args.engine)?;
    let engine_name = engine.describe();
    let (parameters, identity) = loaded(&args, &speaker, &weights, engine.as_mut())?;
    drop(weights);
    let signing = Signing { identity, key };
    // The engine has the weights, and no answer reads them again from here.
    let answerer = speaker.answerer(&[]);
    let batch = Batch::new(engine.as_mut(), answerer.model, parameters, args.seats)?;
    let mut batch = batch.ok_or_else(no_language_model)?;
    let (name, seats) = (name(&args), args.seats as usize);
    let most = args.most_tokens.unwrap_or(answerer.model.context()) as usize;
    let traces = Traces::of_server(printer);
    let queue = Arc::new(Queue::new(seats + args.waiting as usize, traces.clone()));
    let [model, parameters] = signing.identity.model;
    let chats = Chats::start(&speaker.alphabet).map(|chats| Arc::new(tokio::sync::Mutex::new(chats)));
    let no_chat = chats.as_ref().err().cloned();
    let desk = Desk {
        alphabet: Shared::new(speaker.alphabet.clone()),
        chats,
        classes: speaker.classes,
        name: name.clone(),
        digests: json!({ "model": model, "parameters": parameters, "tokenizer": signing.identity.tokenizer }),
        most,
        time: Duration::from_secs(args.answer_time.into()),
        queue: queue.clone(),
    };
    let metrics = args.metrics.served(printer, |registry| queue.metrics.register(registry))?;
    let metrics = metrics.as_ref().and_then(Served::address);
    let server = start(&args, desk)?;
    queue.metrics.begin(&name, &model.to_string(), &engine_name, args.seats);
    watch.planned();
    let desk = (&name[..], most, no_chat.as_deref(), metrics);
    announce(printer, &format!("http://{}", server.address()), desk, args.seats, &signing);
    let worked = work(printer, &queue, (&mut batch, seats), answerer, &signing);
    // After a failure of the engine too, nobody may wait for an answer.
    queue.end(Duration::ZERO);
    server.stop();
    traces.around(worked.map(|()| Exit::Match).map_err(Failure::from))
}
