//! The process that makes tokens for another one. A message is a line of JSON, and as many bytes behind it as the line says.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use rayon::prelude::*;
use serde_json::{Value, json};

use crate::local::Local;
use crate::process::{STACK, bound_memory, watched};
use crate::{Cuts, Error};

/// The first argument of a process that makes tokens.
pub const ARGUMENT: &str = "make-tokens-of-standard-input";
/// The memory of the process that makes tokens: addresses, the program's own included.
pub const MEMORY: u64 = 1 << 32;
/// More addresses for each thread: its stack, and what the allocator reserves for it.
const MEMORY_OF_THREAD: u64 = 1 << 27;
/// The most bytes of an answer.
pub const ANSWER_MAX: usize = 1 << 28;
/// The most characters of an error, which may quote a stranger's text.
const WHY_MAX: usize = 1000;

/// The line and the bytes of a message.
type Message = (Value, Vec<u8>);

/// Writes a message.
pub fn written(out: &mut impl Write, mut line: Value, bytes: &[u8]) -> io::Result<()> {
    line["bytes"] = bytes.len().into();
    writeln!(out, "{line}")?;
    out.write_all(bytes)?;
    out.flush()
}

/// Reads a message of at most so many bytes; `None` if there is none, or it is none.
pub fn read(input: &mut impl BufRead, most: usize) -> Option<Message> {
    let mut line = Vec::new();
    input.take(most as u64).read_until(b'\n', &mut line).ok()?;
    let line: Value = serde_json::from_slice(&line).ok()?;
    let len = line["bytes"].as_u64().filter(|&len| len <= most as u64)?;
    let mut bytes = Vec::new();
    input.take(len).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 == len).then_some((line, bytes))
}

/// The numbers in a list of JSON.
pub fn numbers(list: &Value) -> Option<Vec<usize>> {
    list.as_array()?.iter().map(|number| number.as_u64().map(|number| number as usize)).collect()
}

/// Ids as bytes, little-endian.
pub fn to_bytes(ids: &[u32]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.to_le_bytes()).collect()
}

/// Ids from their bytes.
pub fn to_ids(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|id| u32::from_le_bytes(*id)).collect()
}

/// The parts of bytes with these lengths, which together are the bytes.
pub fn parts<'a>(bytes: &'a [u8], lens: &[usize]) -> Option<Vec<&'a [u8]>> {
    let mut rest = bytes;
    let parts = lens.iter().map(|&len| rest.split_off(..len)).collect::<Option<Vec<_>>>();
    parts.filter(|_| rest.is_empty())
}

/// Answers requests from standard input until it ends. The first has the bounds and the tokenizer's files.
pub fn serve() -> ExitCode {
    let mut input = BufReader::new(io::stdin());
    let mut first = Vec::new();
    if input.read_until(b'\n', &mut first).is_err() {
        return ExitCode::FAILURE;
    }
    let bounds: Value = serde_json::from_slice(&first).unwrap_or_default();
    let number = |key: &str| bounds[key].as_u64().unwrap_or(1);
    let (time, threads) = (Duration::from_secs(number("seconds")), number("threads"));
    bound_memory(MEMORY.saturating_add(threads.saturating_mul(MEMORY_OF_THREAD)));
    // A panic's message could quote a stranger's text; the answer says that there was one.
    panic::set_hook(Box::new(|_| {}));
    watched(move |watch| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads as usize).stack_size(STACK).build();
        let mut local = None;
        while let Some((line, bytes)) = read(&mut input, usize::MAX) {
            let _ = watch.send(time);
            let done = panic::catch_unwind(AssertUnwindSafe(|| match &pool {
                Ok(pool) => pool.install(|| answered(&line, &bytes, &mut local)),
                Err(why) => Err(json!({ "error": format!("no threads for the tokenizer: {why}") })),
            }));
            let _ = watch.send(time);
            let failed = done.is_err();
            // What a panic leaves half done is not asked again.
            let done = done.unwrap_or_else(|_| {
                Err(json!({ "error": "the tokenizer's library panics with it: use a different tokenizer", "ends": true }))
            });
            let (line, bytes) = done.unwrap_or_else(|refusal| (refusal, Vec::new()));
            if written(&mut io::stdout().lock(), line, &bytes).is_err() || failed {
                return;
            }
        }
    })
}

/// The answer to a request, or the object of an error.
fn answered(line: &Value, bytes: &[u8], local: &mut Option<Local>) -> Result<Message, Value> {
    let refused = |why: String| json!({ "error": why.chars().take(WHY_MAX).collect::<String>() });
    let wrong = || refused("the request has no meaning".into());
    let lens = || numbers(&line["lens"]).and_then(|lens| parts(bytes, &lens)).ok_or_else(wrong);
    let text = |bytes| std::str::from_utf8(bytes).map_err(|_| wrong());
    let Some(own) = local else {
        let names = line["names"].as_array().ok_or_else(wrong)?;
        let names = names.iter().map(|name| PathBuf::from(name.as_str().unwrap_or_default()));
        let files: Vec<(PathBuf, Vec<u8>)> = names.zip(lens()?.into_iter().map(<[u8]>::to_vec)).collect();
        let opened = Local::of(Path::new(line["path"].as_str().unwrap_or_default()), &files);
        let opened = opened.map_err(|why| match why {
            Error::Malformed(path, why) => {
                let mut error = refused(why);
                error["path"] = path.display().to_string().into();
                error
            }
            why => refused(why.to_string()),
        })?;
        let answer = (json!({ "cuts": opened.cuts.number() }), to_bytes(&opened.ids));
        *local = Some(opened);
        return Ok(answer);
    };
    let (line, bytes) = match line["do"].as_str() {
        Some("ids") => {
            let texts = lens()?.into_iter().map(text).collect::<Result<Vec<&str>, Value>>()?;
            let ids = texts.par_iter().map(|text| own.ids(text)).collect::<Result<Vec<_>, _>>();
            let ids = ids.map_err(refused)?;
            let lens: Vec<usize> = ids.iter().map(Vec::len).collect();
            (json!({ "lens": lens }), ids.iter().flat_map(|ids| to_bytes(ids)).collect())
        }
        Some(kind @ ("said" | "found")) => {
            let ends = numbers(&line["parts"]).ok_or_else(wrong)?;
            let (text, parts) = (text(bytes)?, ends.as_chunks::<2>().0);
            let (ids, inside) = match kind {
                "said" => own.ids_and_parts(text, parts),
                _ => own.ids_and_answers(text, parts),
            }
            .map_err(refused)?;
            (json!({}), to_bytes(&ids).into_iter().chain(inside.into_iter().map(u8::from)).collect())
        }
        Some("id") => (json!({ "id": own.tokenizer.token_to_id(text(bytes)?) }), Vec::new()),
        Some("text") => (json!({}), own.text(&to_ids(bytes)).map_err(refused)?.into_bytes()),
        _ => return Err(wrong()),
    };
    match bytes.len() <= ANSWER_MAX {
        true => Ok((line, bytes)),
        false => Err(refused(format!(
            "the tokenizer makes {} bytes of it; at most {ANSWER_MAX} are taken",
            bytes.len()
        ))),
    }
}

impl Cuts {
    const ALL: [Cuts; 3] = [Cuts::WhiteSpace, Cuts::Blank, Cuts::Nowhere];

    fn number(self) -> Option<usize> {
        Cuts::ALL.iter().position(|cuts| *cuts == self)
    }

    /// The cuts that an answer names.
    pub(crate) fn of(answer: &Value) -> Option<Cuts> {
        Cuts::ALL.get(answer.as_u64()? as usize).copied()
    }
}
