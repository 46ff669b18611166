//! `tiebreak-import answers`: chats, or prompts and completions, as a file of token ids, and a mask in which the answers count.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde_json::{Map, Value, json};
use tiebreak_token_files::OF_TOKENS;
use tiebreak_tokenizer::Loaded;
use tiebreak_tokenizer::chat::{Bounds, Chat, Renderer, Template};

use crate::error::Error;
use crate::json_lines::Objects;
use crate::output::{NpyFile, Unfinished, beside, digest, is_free, is_npy};
use crate::text::{TOKENIZERS, keep, source, tokenizer, tokenizer_files};

/// The most tokens of a context: as many as a job may name.
pub const CONTEXT_MAX: u32 = 1 << 20;

/// The inputs and the output of an import.
pub struct Answers<'a> {
    /// A tokenizer.json, or a folder that has one, or the two files of GPT-2.
    pub tokenizer: &'a Path,
    /// The .npy file of tokens.
    pub output: &'a Path,
    /// The files of JSON Lines, in order.
    pub files: &'a [PathBuf],
    /// The job's context T: a sample has T + 1 tokens.
    pub context: u32,
    /// The token that fills a sample up.
    pub pad: &'a str,
    /// The token that is written after each completion, and counts. A chat's template writes what ends its answers.
    pub end_of_text: Option<&'a str>,
    /// The treatment of lines that are longer than a sample.
    pub longer: Longer,
    /// The most seconds that the chat template may take for a line.
    pub template_time: u32,
    /// The most seconds that the tokenizer may take for a line.
    pub tokenizer_time: u32,
}

/// The treatment of lines that are longer than a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Longer {
    /// Such a line is an error.
    Refuse,
    /// The sample has the line's first tokens. A line without an answer's token among these is left out.
    Cut,
    /// Such a line is no sample.
    LeaveOut,
}

/// The path of the mask of a file of tokens.
pub fn mask_of(output: &Path) -> PathBuf {
    output.with_extension("mask.npy")
}

/// A line's tokens, and for each whether it counts.
type Sample = (Vec<u32>, Vec<bool>);

/// The counts of an import.
#[derive(Default)]
struct Made {
    samples: u64,
    cut: u64,
    left_out: u64,
    counted: u64,
    /// For each id whether it is a target that counts.
    targets: Vec<bool>,
}

/// Writes a sample of `context` + 1 tokens for each line, and a mask that is 1 at the tokens of answers. Beside the file are
/// its description (`.json`) and the tokenizer's files (`.tokenizer`). Returns the description.
pub fn import(answers: &Answers) -> Result<Value, Error> {
    is_npy(answers.output)?;
    let mask = mask_of(answers.output);
    let [about, kept] = [".json", OF_TOKENS].map(|more| beside(answers.output, more));
    [answers.output, &mask, &about, &kept].into_iter().try_for_each(is_free)?;
    let loaded = tokenizer(answers.tokenizer, answers.tokenizer_time)?;
    let id = |option: &str, token: &str| {
        let id = loaded.id(token).map_err(Error::Malformed)?;
        id.ok_or_else(|| Error::Usage(format!("{option}: the tokenizer has no token {token:?}")))
    };
    let pad = id("--pad", answers.pad)?;
    let end = answers.end_of_text.map(|token| id("--end-of-text", token)).transpose()?;
    let files = tokenizer_files(answers.tokenizer, &loaded)?;
    let mut reader = Reader {
        loaded: &loaded,
        end,
        files: &files,
        seconds: answers.template_time,
        renderer: None,
        template: Value::Null,
    };
    let mut unfinished = Unfinished::default();
    let made = write_samples(answers, &mut reader, pad, &mut unfinished)?;
    keep(&mut unfinished, &kept, &files)?;
    unfinished.write(&about, &serde_json::to_vec_pretty(&made).expect("JSON values can be written"))?;
    unfinished.publish()?;
    Ok(made)
}

/// Writes both files under their temporary names. Returns the description.
fn write_samples(
    answers: &Answers,
    reader: &mut Reader,
    pad: u32,
    unfinished: &mut Unfinished,
) -> Result<Value, Error> {
    let loaded = reader.loaded;
    let small = loaded.greatest <= u32::from(u16::MAX);
    let (tokens, mask) = (unfinished.file(answers.output)?, unfinished.file(&mask_of(answers.output))?);
    let outputs = [tokens.0.clone(), mask.0.clone()];
    let mut ids = NpyFile::begin(tokens, if small { "<u2" } else { "<u4" }, Vec::new())?;
    let mut counts = NpyFile::begin(mask, "|u1", Vec::new())?;
    let mut made = Made { targets: vec![false; loaded.greatest as usize + 1], ..Made::default() };
    let (len, mut sources) = (answers.context as usize + 1, Vec::new());
    for path in answers.files {
        let mut lines = Objects::open(path, &["prompt", "completion", "messages"])?;
        while let Some(line) = lines.next()? {
            let sample = reader.sample(&line).map_err(|why| lines.error(&why))?;
            let sample = made.fitted(sample, len, answers.longer).map_err(|why| lines.error(&why))?;
            let Some((mut all, counted)) = sample else { continue };
            let mut counted: Vec<u8> = counted.into_iter().map(u8::from).collect();
            counted.resize(len, 0);
            all.resize(len, pad);
            // `small`: every id is below 2^16.
            let bytes: Vec<u8> = match small {
                true => all.iter().flat_map(|&id| (id as u16).to_le_bytes()).collect(),
                false => all.iter().flat_map(|id| id.to_le_bytes()).collect(),
            };
            ids.append(&bytes)?;
            counts.append(&counted)?;
        }
        sources.push(lines.source()?);
    }
    if made.samples == 0 {
        return Err(Error::Malformed("the files give no sample".into()));
    }
    let ignore = made.targets.iter().rposition(|is_target| !is_target).ok_or_else(|| {
        Error::Malformed(
            "each id of the tokenizer is a target that counts, so loss.ignore has no id: import fewer lines"
                .into(),
        )
    })?;
    let rows = made.samples * len as u64;
    ids.finish(rows)?;
    counts.finish(rows)?;
    let output = |path: &Path| {
        let (bytes, blake3) = digest(path)?;
        Ok::<Value, Error>(json!({ "bytes": bytes, "blake3": blake3 }))
    };
    Ok(json!({
        "made_by": concat!("tiebreak-import ", env!("CARGO_PKG_VERSION")),
        "kind": "answers",
        "dtype": if small { "u16" } else { "u32" },
        "context": answers.context,
        "samples": made.samples,
        "cut": made.cut,
        "left_out": made.left_out,
        "counted": made.counted,
        "ignore": ignore,
        "vocabulary": loaded.greatest + 1,
        "pad": answers.pad,
        "end_of_text": answers.end_of_text,
        "tokenizer": loaded.files.iter().map(|(path, bytes)| source(path, bytes)).collect::<Vec<Value>>(),
        "tokenizers_version": TOKENIZERS,
        "chat_template": reader.template,
        "texts": sources,
        "output": output(&outputs[0])?,
        "mask": output(&outputs[1])?,
    }))
}

impl Made {
    /// A line's tokens as those of a sample; `None` if the line is left out.
    fn fitted(
        &mut self,
        (mut all, mut counted): Sample,
        len: usize,
        longer: Longer,
    ) -> Result<Option<Sample>, String> {
        if all.len() > len {
            match longer {
                Longer::Refuse => {
                    let why = format!(
                        "it has {} tokens, and a sample has {len}, one more than --context; --longer cut or leave-out says what else to do",
                        all.len()
                    );
                    return Err(why);
                }
                Longer::Cut if counted[1..len].contains(&true) => {
                    all.truncate(len);
                    counted.truncate(len);
                    self.cut += 1;
                }
                Longer::Cut | Longer::LeaveOut => {
                    self.left_out += 1;
                    return Ok(None);
                }
            }
        }
        self.samples += 1;
        // The first token of a sample is no target.
        for (&id, _) in all.iter().zip(&counted).skip(1).filter(|(_, counts)| **counts) {
            self.targets[id as usize] = true;
            self.counted += 1;
        }
        Ok(Some((all, counted)))
    }
}

/// Makes tokens of lines.
struct Reader<'a> {
    loaded: &'a Loaded,
    /// The token that is written after each completion.
    end: Option<u32>,
    /// The tokenizer's files by their names.
    files: &'a [(String, Vec<u8>)],
    /// The most seconds of the chat template for a line.
    seconds: u32,
    /// The chat template, from the first line with messages on.
    renderer: Option<Renderer>,
    /// Length and BLAKE3 of the template.
    template: Value,
}

impl Reader<'_> {
    /// The tokens of a line.
    fn sample(&mut self, line: &Map<String, Value>) -> Result<Sample, String> {
        let (all, counted) = match line.get("messages") {
            Some(messages) => self.chat(line, messages)?,
            None => self.pair(line)?,
        };
        if !counted[1.min(counted.len())..].contains(&true) {
            return Err("its answers have no token that is a target".into());
        }
        Ok((all, counted))
    }

    /// The tokens of a prompt and its completion.
    fn pair(&self, line: &Map<String, Value>) -> Result<Sample, String> {
        let text = |key: &str| match line.get(key) {
            Some(Value::String(text)) => Ok(&text[..]),
            Some(_) => Err(format!("what is under the key {key:?} is no string")),
            None => {
                Err(format!("it has no key {key:?}; the keys prompt and completion are wanted, or messages"))
            }
        };
        let (prompt, completion) = (text("prompt")?, text("completion")?);
        let tokens = self.loaded.ids_of(&[prompt, &format!("{prompt}{completion}")])?;
        let Ok([before, mut all]) = <[Vec<u32>; 2]>::try_from(tokens) else {
            return Err("the tokenizer gives no tokens".into());
        };
        if !all.starts_with(&before) {
            return Err("the prompt's tokens are none of the whole's: a token holds the prompt's end and the completion's beginning. End the prompt where a token ends, such as before a blank".into());
        }
        all.extend(self.end);
        let counted = (0..all.len()).map(|at| at >= before.len()).collect();
        Ok((all, counted))
    }

    /// The tokens of a chat, by the tokenizer's template.
    fn chat(&mut self, line: &Map<String, Value>, messages: &Value) -> Result<Sample, String> {
        let others = ["prompt", "completion", "tools", "documents"];
        if let Some(other) = others.iter().find(|key| line.get(**key).is_some_and(|value| !value.is_null())) {
            return Err(format!("it has messages and {other}; messages alone are taken"));
        }
        if self.end.is_some() {
            return Err(
                "it has messages, whose template writes the ends of answers: leave out --end-of-text".into(),
            );
        }
        let chat = Chat::read(messages)?;
        if self.renderer.is_none() {
            let file =
                |name: &str| self.files.iter().find(|(file, _)| file == name).map(|(_, bytes)| &bytes[..]);
            let template = Template::of(file)?;
            let source = template.source().as_bytes();
            self.template =
                json!({ "bytes": source.len(), "blake3": blake3::hash(source).to_hex().as_str() });
            let help = "shorten the messages, or raise --template-time";
            self.renderer = Some(Renderer::start(template, Bounds { seconds: self.seconds, help })?);
        }
        let Some(renderer) = &mut self.renderer else { return Err("there is no chat template".into()) };
        let rendered = renderer.answers(&chat)?;
        self.loaded.ids_and_parts(&rendered.text, &rendered.spans, rendered.said)
    }
}
