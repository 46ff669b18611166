//! Rows of Parquet files, as objects of JSON. The crate `parquet` reads them in a process of its own: a stranger's file may make it
//! panic, or take any memory.

use std::io::{self, BufRead, BufWriter, Read, Write};
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use parquet::basic::{ConvertedType, Type as Physical};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::Type;
use serde_json::{Value, json};
use tiebreak_token_files::open_plain;
use tiebreak_tokenizer::process::{Process, bound_memory, watched};

use crate::error::Error;

/// The first argument of a process that reads rows.
pub const ARGUMENT: &str = "read-rows-of-parquet";
/// The memory of that process: addresses, the program's own included.
const MEMORY: u64 = 1 << 32;
/// The most seconds for a row, the groups of rows that have to be unpacked for it included.
const SECONDS: u32 = 120;
/// The most bytes of the process's messages that are no rows.
const MESSAGE_MAX: u64 = 1 << 16;
/// The most characters of an error, which may quote a stranger's text.
const WHY_MAX: usize = 1000;
/// The most columns that an error names.
const NAMED_MAX: usize = 8;
/// What the process does, in words.
const WORK: &str = "the reader of Parquet";

/// The first byte of a message: the file was opened, a row, the end after the last row, an error.
const OPENED: u8 = b'o';
const ROW: u8 = b'r';
const END: u8 = b'e';
const FAILED: u8 = b'f';

/// The rows of a file, from the process that reads it.
pub struct Rows {
    process: Process,
    /// The bytes of the columns that are read, unpacked, as the file says.
    pub unpacked: u64,
}

impl Rows {
    /// The rows of a file with all columns, or with the one of this name. Of the columns `texts`, those that are there hold texts.
    ///
    /// # Errors
    /// If there is no process for it, the file is no Parquet file or lacks the column, or a column of texts has another type.
    pub fn open(path: &Path, column: Option<&str>, texts: &[&str]) -> Result<Rows, Error> {
        let Some(name) = path.to_str() else {
            return Err(Error::Usage(format!("{path:?}: a Parquet file's path has to be UTF-8: rename it")));
        };
        let process = Process::start(ARGUMENT, WORK).map_err(Error::Machine)?;
        let mut rows = Rows { process, unpacked: 0 };
        let request = json!({ "path": name, "column": column, "texts": texts }).to_string();
        let malformed = |why: String| Error::malformed(path, why);
        // A process that ended at once says why below.
        drop(rows.process.send(&[request.as_bytes(), b"\n"]));
        match rows.message(MESSAGE_MAX).map_err(malformed)? {
            (OPENED, text) => {
                let bytes = std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok());
                rows.unpacked = bytes.ok_or_else(|| malformed(rows.silent()))?;
                Ok(rows)
            }
            _ => Err(malformed(rows.silent())),
        }
    }

    /// The next row's object, as a line of JSON of at most `most` bytes and one more; `None` after the last row.
    pub fn next(&mut self, most: usize) -> Result<Option<Vec<u8>>, String> {
        match self.message(most as u64 + 2)? {
            (ROW, line) => Ok(Some(line)),
            (END, _) => Ok(None),
            _ => Err(self.silent()),
        }
    }

    /// The next message: its first byte, and the rest of its line.
    fn message(&mut self, most: u64) -> Result<(u8, Vec<u8>), String> {
        let mut line = Vec::new();
        let read = self.process.output.by_ref().take(most).read_until(b'\n', &mut line);
        if read.is_err() || line.is_empty() {
            return Err(self.silent());
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        match (line.remove(0), line) {
            (FAILED, why) => Err(String::from_utf8_lossy(&why).into_owned()),
            message => Ok(message),
        }
    }

    /// The reason why the process gives no message that can be read.
    fn silent(&mut self) -> String {
        let help = "write the file again with smaller groups of rows, or as JSON Lines";
        let beyond = self.process.beyond(WORK, (SECONDS, MEMORY), [help; 2]);
        beyond.unwrap_or_else(|| format!("{WORK} ended without a word: {help}"))
    }
}

/// Reads the rows of the file that standard input names, to standard output.
pub fn serve() -> ExitCode {
    let mut request = Vec::new();
    if io::stdin().lock().read_until(b'\n', &mut request).is_err() {
        return ExitCode::FAILURE;
    }
    let request: Value = serde_json::from_slice(&request).unwrap_or_default();
    bound_memory(MEMORY);
    // A panic's message could quote a stranger's text; the message below says that there was one.
    panic::set_hook(Box::new(|_| {}));
    watched(move |watch| {
        let mut output = BufWriter::new(io::stdout());
        let done = panic::catch_unwind(AssertUnwindSafe(|| write_rows(&request, watch, &mut output)));
        let (kind, text) = match done {
            Ok(Ok(())) => (END, String::new()),
            Ok(Err(why)) => (FAILED, why),
            Err(_) => (FAILED, "the library that reads Parquet panics with it: write the file again".into()),
        };
        let text: String = text.chars().take(WHY_MAX).map(|c| if c == '\n' { ' ' } else { c }).collect();
        drop(written(&mut output, kind, &text).and_then(|()| output.flush()));
    })
}

fn written(output: &mut impl Write, kind: u8, text: &str) -> io::Result<()> {
    output.write_all(&[kind])?;
    output.write_all(text.as_bytes())?;
    output.write_all(b"\n")
}

/// Writes a message for each row, behind one that says how many bytes the rows have.
fn write_rows(request: &Value, watch: &Sender<Duration>, output: &mut impl Write) -> Result<(), String> {
    let turn = || {
        let _ = watch.send(Duration::from_secs(SECONDS.into()));
    };
    let closed = |why: io::Error| format!("nobody reads the rows: {why}");
    turn();
    let path = Path::new(request["path"].as_str().unwrap_or_default());
    let file = open_plain(path).map_err(|why| why.to_string())?;
    let reader = SerializedFileReader::new(file).map_err(|why| unreadable(&why))?;
    let metadata = reader.metadata();
    let schema = metadata.file_metadata().schema();
    let column = request["column"].as_str();
    for text in request["texts"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        let field = schema.get_fields().iter().find(|field| field.name() == text);
        field.map_or(Ok(()), |field| of_texts(field, text))?;
    }
    let projection = column.map(|column| projected(schema, column)).transpose()?;
    let chunks = metadata.row_groups().iter().flat_map(|group| group.columns());
    let read = chunks.filter(|chunk| {
        let name = chunk.column_path().parts().first();
        column.is_none_or(|column| name.is_some_and(|name| name == column))
    });
    let bytes = read.fold(0, |bytes: i64, chunk| bytes.saturating_add(chunk.uncompressed_size().max(0)));
    let mut rows = reader.get_row_iter(projection).map_err(|why| unreadable(&why))?;
    turn();
    written(output, OPENED, &bytes.to_string()).and_then(|()| output.flush()).map_err(closed)?;
    loop {
        turn();
        let row = rows.next().transpose().map_err(|why| unreadable(&why))?;
        let Some(row) = row.map(|row| row.to_json_value().to_string()) else { return Ok(()) };
        turn();
        written(output, ROW, &row).map_err(closed)?;
    }
}

/// Fields of a message that are read as texts, and what Parquet calls the levels of a list.
const READ: [&str; 5] = ["role", "content", "list", "element", "item"];

/// Refuses a column in which JSON would have a text, and the file has something else: bytes, a date, a decimal number. In a column of
/// messages nothing else than role and content is looked at.
fn of_texts(field: &Type, column: &str) -> Result<(), String> {
    if field.is_group() {
        let mut read =
            field.get_fields().iter().filter(|field| READ.contains(&field.name()) || field.is_group());
        return read.try_for_each(|field| of_texts(field, column));
    }
    let (physical, converted) = (field.get_physical_type(), field.get_basic_info().converted_type());
    let fine = match physical {
        Physical::BYTE_ARRAY => {
            matches!(converted, ConvertedType::UTF8 | ConvertedType::ENUM | ConvertedType::JSON)
        }
        Physical::INT96 | Physical::FIXED_LEN_BYTE_ARRAY => false,
        // Numbers and truth values stay what they are in JSON, which a text is not.
        _ => !matches!(
            converted,
            ConvertedType::DATE
                | ConvertedType::DECIMAL
                | ConvertedType::TIME_MILLIS
                | ConvertedType::TIME_MICROS
                | ConvertedType::TIMESTAMP_MILLIS
                | ConvertedType::TIMESTAMP_MICROS
        ),
    };
    if fine {
        return Ok(());
    }
    let kind = match converted {
        ConvertedType::NONE => physical.to_string(),
        converted => converted.to_string(),
    };
    Err(format!(
        "the column {column:?} has values of the type {kind}, and texts are wanted (UTF8): write it as a column of strings"
    ))
}

fn unreadable(why: &parquet::errors::ParquetError) -> String {
    format!("it does not read as Parquet: {why}")
}

/// The schema with this column alone.
fn projected(schema: &Type, column: &str) -> Result<Type, String> {
    let field = schema.get_fields().iter().find(|field| field.name() == column);
    let field: Arc<Type> = field.cloned().ok_or_else(|| {
        let names = schema.get_fields().iter().map(|field| format!("{:?}", field.name()));
        let names = names.take(NAMED_MAX).collect::<Vec<String>>().join(", ");
        format!("it has no column {column:?}; --json-key names another: {names}")
    })?;
    let group = Type::group_type_builder(schema.name()).with_fields(vec![field]);
    group.build().map_err(|why| unreadable(&why))
}
