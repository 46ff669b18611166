//! A chat template applied to a chat, in this process: the worker's part, which another process bounds.
//!
//! Source: `apply_chat_template` of transformers 5.24, and `utils/chat_template_utils.py` there.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};
use serde_json::json;

use super::template::Template;
use super::{Chat, Message, TEXT_MAX};

/// The work of one rendering, in units of the engine: an instruction of the template, or 64 bytes that it makes or reads.
const FUEL: u64 = 1 << 21;
/// The function that a block of `{% generation %}` calls. A template cannot have a function of this name by itself.
const GENERATION: &str = "generation__";

/// The text of a chat, and the parts of it that are answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendered {
    pub text: String,
    /// Where answers begin and end, in bytes of the text, in order.
    pub spans: Vec<[usize; 2]>,
    /// True if the template says by `{% generation %}` which parts are answers.
    pub said: bool,
}

/// A template that was understood.
pub struct Compiled {
    environment: Environment<'static>,
    tokens: serde_json::Map<String, serde_json::Value>,
    /// True if the template has blocks of `{% generation %}`.
    says: bool,
}

impl Compiled {
    /// Reads a template.
    ///
    /// # Errors
    /// If the template is not understood, in words.
    pub fn of(template: &Template) -> Result<Compiled, String> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|why| why.to_string())?);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise);
        environment.add_filter("tojson", to_json);
        let (source, says) = calls(&template.source);
        let added = environment.add_template_owned("chat", source);
        added.map_err(|error| format!("the chat template is not understood: {}", said(&error)))?;
        Ok(Compiled { environment, tokens: template.tokens.clone(), says })
    }

    /// The text of a chat whose answers are there, and where they are.
    ///
    /// # Errors
    /// If the template refuses the chat, or takes too much work, or the answers' parts cannot be told, in words.
    pub fn answers(&self, chat: &Chat) -> Result<Rendered, String> {
        let text = self.text(&chat.0, false, &mut self.plain())?;
        let spans = if self.says { self.said_spans(chat, &text)? } else { self.found_spans(chat, &text)? };
        Ok(Rendered { text, spans, said: self.says })
    }

    /// The text of a chat and the beginning of its next answer, of at most so many bytes.
    ///
    /// # Errors
    /// If the template refuses the chat, or takes too much work, or makes a longer text, in words.
    pub fn prompt(&self, chat: &Chat, most: u64) -> Result<String, String> {
        let text = self.text(&chat.0, true, &mut self.plain())?;
        match text.len() as u64 <= most {
            true => Ok(text),
            false => Err(too_long(text.len(), most)),
        }
    }

    /// The environment, where blocks of `{% generation %}` are their contents.
    fn plain(&self) -> Environment<'static> {
        self.marking(["", ""])
    }

    /// The environment, where blocks of `{% generation %}` are their contents between two marks.
    fn marking(&self, marks: [&str; 2]) -> Environment<'static> {
        let mut environment = self.environment.clone();
        let [begin, end] = marks.map(String::from);
        environment.add_function(GENERATION, move |state: &mut State, options: Kwargs| {
            let block: Value = options.get("caller")?;
            let text = block.call(state, &[])?;
            Ok::<String, Error>(format!("{begin}{}{end}", text.as_str().unwrap_or_default()))
        });
        environment
    }

    /// The text of messages, and the beginning of an answer if `ask`.
    fn text(&self, messages: &[Message], ask: bool, environment: &mut Environment) -> Result<String, String> {
        let message = |message: &Message| {
            Value::from_pairs(message.iter().map(|(name, text)| (name.clone(), Value::from(&text[..]))))
        };
        let mut context: Vec<(String, Value)> = Vec::new();
        let tokens = self.tokens.iter();
        context.extend(
            tokens.map(|(name, text)| (name.clone(), Value::from(text.as_str().unwrap_or_default()))),
        );
        context.push(("messages".into(), messages.iter().map(message).collect::<Vec<Value>>().into()));
        context.push(("add_generation_prompt".into(), ask.into()));
        context.extend(["tools", "documents"].map(|name| (name.into(), Value::from(()))));
        let template = environment.get_template("chat").map_err(|error| said(&error))?;
        let text = template.render(Value::from_pairs(context)).map_err(|error| said(&error))?;
        match text.len() <= TEXT_MAX {
            true => Ok(text),
            false => Err(too_long(text.len(), TEXT_MAX as u64)),
        }
    }

    /// The parts that are in blocks of `{% generation %}`.
    fn said_spans(&self, chat: &Chat, text: &str) -> Result<Vec<[usize; 2]>, String> {
        let inputs = || chat.0.iter().flatten().map(|(_, field)| &field[..]).chain([text]);
        // The first number whose marks are in none of the texts.
        let marks =
            (0u32..).map(|number| ["begin", "end"].map(|which| format!("\u{e000}{which} {number}\u{e001}")));
        let free = |marks: &[String; 2]| !inputs().any(|input| marks.iter().any(|mark| input.contains(mark)));
        let [begin, end] = marks.into_iter().find(free).expect("a chat is finite");
        let marked = self.text(&chat.0, false, &mut self.marking([&begin, &end]))?;
        let unclear = || {
            "the chat template changes the text of its {% generation %} blocks afterwards, so the answers' parts cannot be told"
                .to_string()
        };
        let (mut plain, mut spans) = (String::new(), Vec::new());
        let mut parts = marked.split(&begin[..]);
        plain.push_str(parts.next().unwrap_or_default());
        for part in parts {
            let (inside, behind) = part.split_once(&end[..]).ok_or_else(unclear)?;
            spans.push([plain.len(), plain.len() + inside.len()]);
            plain.push_str(inside);
            plain.push_str(behind);
        }
        if plain != text {
            return Err(unclear());
        }
        Ok(spans)
    }

    /// The parts between two prefixes of the text: that before an answer, with the beginning of one, and that behind it.
    fn found_spans(&self, chat: &Chat, text: &str) -> Result<Vec<[usize; 2]>, String> {
        let (mut spans, mut environment) = (Vec::new(), self.plain());
        for turn in chat.turns() {
            let before = self.text(&chat.0[..turn], true, &mut environment);
            let before = before.map_err(|why| format!("the messages before message {}: {why}", turn + 1))?;
            let behind = self.text(&chat.0[..=turn], false, &mut environment);
            let behind = behind.map_err(|why| format!("the messages up to message {}: {why}", turn + 1))?;
            if !text.starts_with(&before) || !text.starts_with(&behind) || before.len() > behind.len() {
                return Err(format!(
                    "the chat template writes the messages up to message {} in another way if others follow or an answer is asked for. \
                     Blocks of {{% generation %}} in it would say where answers are",
                    turn + 1
                ));
            }
            spans.push([before.len(), behind.len()]);
        }
        Ok(spans)
    }
}

/// A template in which blocks of `{% generation %}` are calls of a function, and whether it has any. transformers' extension of Jinja
/// makes the same of them.
fn calls(source: &str) -> (String, bool) {
    let (mut made, mut says, mut rest) = (String::new(), false, source);
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        made.push_str(before);
        let whole = tag.find("%}").map_or(tag.len(), |end| end + 2);
        let sign = |sign: char| sign == '-' || sign == '+';
        let inside = tag[2..whole].trim_end_matches("%}").trim_matches(sign);
        match inside.trim() {
            word @ ("generation" | "endgeneration") => {
                let call =
                    if word == "generation" { format!("call {GENERATION}()") } else { "endcall".into() };
                made.push_str(&tag[..whole].replacen(word, &call, 1));
                says = true;
                rest = &tag[whole..];
            }
            _ => {
                made.push_str("{%");
                rest = &tag[2..];
            }
        }
    }
    (made + rest, says)
}

fn too_long(bytes: usize, most: u64) -> String {
    format!("the chat template makes a text of {bytes} bytes; at most {most} are taken")
}

/// An error in words.
fn said(error: &Error) -> String {
    let detail = error.detail().unwrap_or_default();
    match error.kind() {
        ErrorKind::OutOfFuel => {
            format!("the chat template used up its {FUEL} units of work for these messages: shorten them")
        }
        _ if detail.starts_with(RAISED) => format!("the chat template refuses the messages: {}", &detail[RAISED.len()..]),
        ErrorKind::UnknownFunction if detail.starts_with("strftime_now") => {
            "the chat template asks for today's date (strftime_now), by which the same messages would have other tokens tomorrow: write the \
             date into the template"
                .into()
        }
        _ => format!("the chat template fails: {error}"),
    }
}

/// The beginning of the error of a template that raises.
const RAISED: &str = "raised: ";

fn raise(message: Value) -> Result<Value, Error> {
    let message: String = message.to_string().chars().take(1000).collect();
    Err(Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{message}")))
}

/// JSON as Python's `json.dumps` writes it, with characters beyond ASCII as they are.
fn to_json(state: &State, value: &Value, indent: Option<Value>, options: Kwargs) -> Result<Value, Error> {
    let named: Option<Value> = options.get("indent")?;
    let ascii: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    if ascii == Some(true) {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "tojson writes no escapes of ASCII: leave ensure_ascii out",
        ));
    }
    let indent = indent.or(named).filter(|indent| indent.kind() != ValueKind::None);
    let json = filters::tojson(value, indent, Kwargs::from_iter(std::iter::empty::<(String, Value)>()))?;
    let json = json.as_str().unwrap_or_default();
    state.consume_fuel(json.len() as u64 / 64)?;
    // The filter writes four characters so that HTML can hold them.
    let (mut made, mut rest) = (String::with_capacity(json.len()), json);
    while let Some(at) = rest.find('\\') {
        made.push_str(&rest[..at]);
        let written = [("\\u003c", '<'), ("\\u003e", '>'), ("\\u0026", '&'), ("\\u0027", '\'')];
        match written.into_iter().find(|(escape, _)| rest[at..].starts_with(escape)) {
            Some((escape, character)) => {
                made.push(character);
                rest = &rest[at + escape.len()..];
            }
            None => {
                let end = at + 1 + rest[at + 1..].chars().next().map_or(0, char::len_utf8);
                made.push_str(&rest[at..end]);
                rest = &rest[end..];
            }
        }
    }
    made.push_str(rest);
    Ok(made.into())
}

impl Rendered {
    /// The form in which a worker sends a text.
    pub(super) fn to_json(&self) -> serde_json::Value {
        json!({ "text": self.text, "spans": self.spans, "said": self.said })
    }

    /// Reads a worker's answer.
    pub(super) fn read(answer: &serde_json::Value) -> Option<Rendered> {
        let text = answer["text"].as_str()?.to_string();
        let place = |at: &serde_json::Value| {
            at.as_u64().map(|at| at as usize).filter(|&at| text.is_char_boundary(at))
        };
        let span = |span: &serde_json::Value| Some([place(&span[0])?, place(&span[1])?]);
        let spans = answer["spans"].as_array()?.iter().map(span).collect::<Option<Vec<_>>>()?;
        Some(Rendered { spans, said: answer["said"].as_bool()?, text })
    }
}
