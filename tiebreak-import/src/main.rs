//! Texts and pictures as the files of token ids and arrays that tiebreak's jobs take (`docs/DATA.md`, "Importing").
//!
//! This program is separate, so that reviewers and builders of `tiebreak` need not handle tokenizers and picture formats. A run
//! commits to the files that are written here, whatever wrote them.

mod answers;
mod error;
mod json_lines;
mod output;
mod parquet;
mod pictures;
mod pieces;
mod progress;
mod resize;
mod text;
mod tokens;
mod whole;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use error::Error;
use serde_json::{Value, json};
use tiebreak_token_files::Width;

#[derive(Parser)]
#[command(version, about = "Texts and pictures as files that tiebreak's jobs take")]
struct Cli {
    /// Print the result as JSON; errors too, on stderr.
    #[arg(long, global = true)]
    json: bool,
    /// Threads to use; their number changes no byte. The default is all cores.
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write the token ids of texts (UTF-8) to a .npy file, for `data.kind = "tokens"`.
    ///
    /// The tokens are those of each whole text, although memory holds only pieces of a text. FILE.npy.json beside the file names
    /// the inputs, with the BLAKE3 of the tokenizer and of the texts. FILE.npy.tokenizer holds the tokenizer's files, which a run
    /// of these tokens keeps.
    #[command(
        after_help = "Examples:\n  tiebreak-import text --tokenizer gpt2 --output train.npy part1.txt part2.txt\n  tiebreak-import text --tokenizer gpt2/tokenizer.json --end-of-text '<|endoftext|>' --output train.npy pages.jsonl\n  tiebreak-import text --tokenizer gpt2 --column content --output train.npy train-00000-of-00001.parquet"
    )]
    Text {
        /// A tokenizer.json, or a folder that has one, or vocab.json and merges.txt, or GPT-2's encoder.json and vocab.bpe.
        #[arg(long, value_name = "PATH")]
        tokenizer: PathBuf,
        /// The file to write.
        #[arg(long, value_name = "FILE.npy")]
        output: PathBuf,
        /// Write this token after each text, such as "<|endoftext|>".
        #[arg(long, value_name = "TOKEN")]
        end_of_text: Option<String>,
        /// The form of the files: one text each, one text a line under a key of JSON, or one text a row of Parquet. By default
        /// .jsonl and .ndjson are JSON Lines, and Parquet is known by its bytes.
        #[arg(long, value_enum)]
        form: Option<text::Form>,
        /// The key of a line's text in JSON Lines, or the column of a row's text in Parquet; the default is text.
        #[arg(long, value_name = "NAME", visible_alias = "column")]
        json_key: Option<String>,
        /// Most seconds that the tokenizer may take for the pieces that it gets at once: 16 MiB of text at most.
        #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..=86_400))]
        tokenizer_time: u32,
        /// The texts, in order.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Write the tokens of chats, or of prompts and completions, to a .npy file, and a mask in which the answers count.
    ///
    /// Each line of the files is an object of JSON, or each row of a Parquet file, and becomes a sample of context + 1 tokens, padded behind its end. It has the
    /// strings prompt and completion, or messages, of which the tokenizer's chat template makes a text (docs/DATA.md).
    /// FILE.mask.npy beside the file is for `data.mask`: 1 at the tokens of completions, or of the assistant's messages.
    #[command(
        after_help = "Examples:\n  tiebreak-import answers --tokenizer base --context 512 --pad '<|endoftext|>' --end-of-text '<|endoftext|>' --output train.npy pairs.jsonl\n  tiebreak-import answers --tokenizer base --context 512 --pad '<pad>' --output chats.npy chats.jsonl"
    )]
    Answers {
        /// A tokenizer.json, or a folder that has one, or vocab.json and merges.txt, or GPT-2's encoder.json and vocab.bpe.
        #[arg(long, value_name = "PATH")]
        tokenizer: PathBuf,
        /// The file of tokens to write.
        #[arg(long, value_name = "FILE.npy")]
        output: PathBuf,
        /// The job's context, `model.context`.
        #[arg(long, value_name = "T", value_parser = clap::value_parser!(u32).range(1..=i64::from(answers::CONTEXT_MAX)))]
        context: u32,
        /// The token that fills a sample up; it does not count.
        #[arg(long, value_name = "TOKEN")]
        pad: String,
        /// Write this token after each completion; it counts. Not for messages.
        #[arg(long, value_name = "TOKEN")]
        end_of_text: Option<String>,
        /// The treatment of lines that are longer than a sample.
        #[arg(long, value_enum, default_value = "refuse")]
        longer: answers::Longer,
        /// Most seconds that the chat template may take for a line.
        #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
        template_time: u32,
        /// Most seconds that the tokenizer may take for a line.
        #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..=86_400))]
        tokenizer_time: u32,
        /// The files of JSON Lines or Parquet, in order.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Write raw token ids that another program wrote to a .npy file, for `data.kind = "tokens"`.
    ///
    /// llm.c's .bin files are recognised by their header, whose length field has to be right. Files that hold only ids, such as
    /// nanoGPT's .bin, need --dtype.
    #[command(
        after_help = "Examples:\n  tiebreak-import tokens fineweb_train_000001.bin --output train.npy\n  tiebreak-import tokens openwebtext/train.bin --dtype u16 --output train.npy"
    )]
    Tokens {
        /// The file with the raw ids.
        file: PathBuf,
        /// The file to write.
        #[arg(long, value_name = "FILE.npy")]
        output: PathBuf,
        /// The type of the ids, little-endian, in a file without a header: u16 or u32.
        #[arg(long, value_name = "TYPE", value_parser = dtype)]
        dtype: Option<Width>,
    },
    /// Write the pixels of PNG and JPEG pictures and their labels to .npy files, for `data.kind = "arrays"`.
    ///
    /// Each folder in FOLDER is a class, in the order of their names, as in torchvision's ImageFolder. A run commits to the
    /// decoded pixels: decoders of JPEG differ by a little.
    #[command(
        after_help = "Example:\n  tiebreak-import pictures --size 32x32 --resize --output flowers pictures/train"
    )]
    Pictures {
        /// Rows and columns of every sample.
        #[arg(long, value_name = "HxW", value_parser = size)]
        size: [u32; 2],
        /// 3 for red, green and blue; 1 for grey.
        #[arg(long, default_value_t = 3, value_parser = planes)]
        planes: u8,
        /// Cut the middle of pictures of other sizes, and take means of areas; without this option such a picture is an error.
        #[arg(long)]
        resize: bool,
        /// The treatment of damaged pictures. `keep` takes the part that can be decoded; import.json names pictures that were
        /// kept or left out.
        #[arg(long, value_enum, default_value = "refuse")]
        damaged: pictures::Damaged,
        /// The folder to make.
        #[arg(long, value_name = "DIR")]
        output: PathBuf,
        /// The folder that holds a folder for each class.
        folder: PathBuf,
    },
}

fn dtype(text: &str) -> Result<Width, String> {
    match text {
        "u16" => Ok(Width::U16),
        "u32" => Ok(Width::U32),
        _ => Err("must be u16 or u32".into()),
    }
}

fn size(text: &str) -> Result<[u32; 2], String> {
    let side = |text: &str| text.parse().ok().filter(|side| (1..=1 << 12).contains(side));
    let size = text.split_once('x').and_then(|(rows, columns)| Some([side(rows)?, side(columns)?]));
    size.ok_or_else(|| "rows and columns are wanted, 1 to 4096 each, such as 224x224".into())
}

fn planes(text: &str) -> Result<u8, String> {
    text.parse().ok().filter(|planes| [1, 3].contains(planes)).ok_or_else(|| "must be 1 or 3".into())
}

fn main() -> ExitCode {
    // This program is also the process in which chat templates and tokenizers run, and Parquet files are read.
    if let Some(code) = tiebreak_tokenizer::serve_if_asked() {
        return code;
    }
    if tiebreak_tokenizer::process::asked().as_deref() == Some(parquet::ARGUMENT) {
        return parquet::serve();
    }
    // A library's panic could quote foreign text too.
    std::panic::set_hook(Box::new(|panic| eprintln!("{}", shown(&panic.to_string()))));
    let cli = Cli::parse();
    match run(&cli) {
        Ok(made) => {
            // A reader that closes the pipe early wants no more.
            drop(std::io::Write::write_all(&mut std::io::stdout(), report(&cli, &made).as_bytes()));
            ExitCode::SUCCESS
        }
        Err(error) => {
            let code = error.exit_code();
            match cli.json {
                true => eprintln!("{}", json!({ "error": error.to_string(), "exit": code })),
                false => eprintln!("error: {}", shown(&error.to_string())),
            }
            ExitCode::from(code)
        }
    }
}

/// A line for a terminal. Errors quote foreign text, such as what a chat template raises, and a terminal obeys its control characters.
fn shown(text: &str) -> String {
    let shown = |c: char| match c {
        '"' | '\'' | '\\' => c.to_string(),
        c => c.escape_debug().to_string(),
    };
    text.chars().map(shown).collect()
}

fn run(cli: &Cli) -> Result<Value, Error> {
    let threads = usize::from(cli.threads.unwrap_or(0));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = pool.map_err(|why| Error::Machine(format!("no threads: {why}")))?;
    pool.install(|| match cli.command {
        Command::Text {
            ref tokenizer,
            ref output,
            ref end_of_text,
            form,
            ref json_key,
            tokenizer_time,
            ref files,
        } => {
            let [end_of_text, json_key] = [end_of_text, json_key].map(Option::as_deref);
            text::import(&text::Texts {
                tokenizer,
                output,
                files,
                end_of_text,
                form,
                json_key,
                tokenizer_time,
            })
        }
        Command::Answers {
            ref tokenizer,
            ref output,
            context,
            ref pad,
            ref end_of_text,
            longer,
            template_time,
            tokenizer_time,
            ref files,
        } => {
            let end_of_text = end_of_text.as_deref();
            answers::import(&answers::Answers {
                tokenizer,
                output,
                files,
                context,
                pad,
                end_of_text,
                longer,
                template_time,
                tokenizer_time,
            })
        }
        Command::Tokens { ref file, ref output, dtype } => {
            tokens::import(&tokens::Tokens { file, output, dtype })
        }
        Command::Pictures { size, planes, resize, damaged, ref output, ref folder } => {
            pictures::import(&pictures::Pictures { folder, output, size, planes, resize, damaged })
        }
    })
}

/// The report for people, with the lines of a job that takes the result.
fn report(cli: &Cli, made: &Value) -> String {
    if cli.json {
        return format!("{made:#}\n");
    }
    match &cli.command {
        Command::Text { output, .. } => format!(
            "{} tokens of {} texts, {} bytes, BLAKE3 {}\nThe tokenizer's files are in {:?}, where a run of these tokens finds them.\n\nIn a job (model.vocabulary is at least {}):\n[data]\nkind = \"tokens\"\npath = {output:?}\ndtype = {}\n",
            made["tokens"],
            made["documents"],
            made["output"]["bytes"],
            made["output"]["blake3"].as_str().unwrap_or_default(),
            output::beside(output, tiebreak_token_files::OF_TOKENS),
            made["vocabulary"],
            made["dtype"],
        ),
        Command::Answers { output, .. } => format!(
            "{} samples of {} + 1 tokens, of which {} are targets that count; {} lines were cut, {} left out\n\nIn a job (model.vocabulary is at least {}):\n[data]\nkind = \"tokens\"\npath = {output:?}\nmask = {:?}\nwindows = \"separate\"\ndtype = {}\n\n[loss]\nignore = {}\n",
            made["samples"],
            made["context"],
            made["counted"],
            made["cut"],
            made["left_out"],
            made["vocabulary"],
            answers::mask_of(output),
            made["dtype"],
            made["ignore"],
        ),
        Command::Tokens { output, .. } => format!(
            "{} tokens ({}), all below {}; BLAKE3 {}\n\nIn a job (model.vocabulary is that of the tokenizer):\n[data]\nkind = \"tokens\"\npath = {output:?}\ndtype = {}\n",
            made["tokens"],
            made["layout"].as_str().unwrap_or_default(),
            made["vocabulary"],
            made["output"]["blake3"].as_str().unwrap_or_default(),
            made["dtype"],
        ),
        Command::Pictures { output, .. } => {
            let note = |key: &str, what: &str| match made[key].as_array().map_or(0, Vec::len) {
                0 => String::new(),
                n => format!("{n} files are {what} (import.json names them)\n"),
            };
            let others = note("left_out", "no .png, .jpg or .jpeg and were left out");
            let damaged = note(
                "damaged",
                if made["damaged_kept"] == true {
                    "damaged and were kept"
                } else {
                    "damaged and were left out"
                },
            );
            let [inputs, labels] = ["inputs.npy", "labels.npy"].map(|name| output.join(name));
            format!(
                "{} pictures of {} classes\n{others}{damaged}\nIn a job:\n[data]\nkind = \"arrays\"\ninputs = {inputs:?}\nlabels = {labels:?}\ndtype = \"u8\"\n",
                made["samples"],
                made["classes"].as_array().map_or(0, Vec::len),
            )
        }
    }
}
