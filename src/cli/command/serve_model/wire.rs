//! Requests and answers of the APIs of completions and of chats, as JSON. A field that is not served is refused by its name, so that no request means
//! something else here than its sender thinks.

use serde_json::{Map, Value, json};

use crate::cli::args::random::random;
use tiebreak_contract::arith::float;
use tiebreak_contract::program::sampling::Sampling;

/// Tokens of a completion whose request names no number, as the API has it. A chat's answer has the room that is left.
const LENGTH: u32 = 16;

/// An error that a client is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: u16,
    /// A word for programs.
    pub code: &'static str,
    /// The field that is wrong.
    pub param: Option<String>,
    pub message: String,
}

impl Refusal {
    pub fn new(status: u16, code: &'static str, message: impl Into<String>) -> Refusal {
        Refusal { status, code, param: None, message: message.into() }
    }

    /// The error of a field.
    pub fn of(param: &str, code: &'static str, message: impl Into<String>) -> Refusal {
        Refusal { param: Some(param.into()), ..Refusal::new(400, code, message) }
    }

    pub fn json(&self) -> Value {
        let kind = match self.status {
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        };
        json!({ "error": { "message": self.message, "type": kind, "param": self.param, "code": self.code } })
    }
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Completion,
    Chat,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    Text(String),
    Ids(Vec<u32>),
    /// The messages of a chat, as JSON: a request that waits takes the memory of its body, and not that of many small values.
    Messages(String),
}

impl Prompt {
    /// The field that has it.
    pub fn field(&self) -> &'static str {
        match self {
            Prompt::Text(_) | Prompt::Ids(_) => "prompt",
            Prompt::Messages(_) => "messages",
        }
    }
}

/// A request for an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub prompt: Prompt,
    /// The most tokens of the answer, and the field that says so; `None` is the room that is left.
    pub length: Option<(u32, &'static str)>,
    pub sampling: Sampling,
    /// True if the answer is sent token by token.
    pub stream: bool,
    /// True if a stream's last event has the counts of tokens.
    pub usage: bool,
}

/// The fields of a request that were not read yet.
struct Fields(Map<String, Value>);

impl Fields {
    /// A field's value; null is the same as no field.
    fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    /// A field's value as `read` takes it.
    fn read<T>(
        &mut self,
        name: &str,
        wanted: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, Refusal> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match read(&value) {
            Some(value) => Ok(Some(value)),
            None => Err(Refusal::of(
                name,
                "invalid_value",
                format!("{name} is {}; it must be {wanted}", brief(&value)),
            )),
        }
    }

    /// Refuses each field that is left, unless its value asks for nothing.
    fn refuse(&self, kind: Kind) -> Result<(), Refusal> {
        let asks = |(name, value): &(&String, &Value)| match (name.as_str(), kind) {
            ("n", _) | ("best_of", Kind::Completion) => value.as_u64() != Some(1),
            ("presence_penalty" | "frequency_penalty", _) => value.as_f64() != Some(0.0),
            ("echo", Kind::Completion) | ("logprobs" | "store", Kind::Chat) => *value != &json!(false),
            ("stop", _) | ("tools", Kind::Chat) => *value != &json!([]),
            ("logit_bias", _) => *value != &json!({}),
            ("response_format", Kind::Chat) => *value != &json!({ "type": "text" }),
            ("tool_choice", Kind::Chat) => *value != &json!("none"),
            _ => true,
        };
        let left = self.0.iter().filter(|(_, value)| !value.is_null());
        match left.filter(asks).map(|(name, _)| name).next() {
            None => Ok(()),
            Some(name) => {
                let name: String = name.chars().take(60).collect();
                let why = format!("{name} is not served here: leave it out");
                Err(Refusal::of(&name, "unsupported_parameter", why))
            }
        }
    }
}

/// A value for an error, which may be long.
fn brief(value: &Value) -> String {
    match value {
        Value::Array(all) => format!("a list of {}", all.len()),
        Value::Object(_) => "an object".into(),
        other => other.to_string().chars().take(60).collect(),
    }
}

fn ids(value: &Value) -> Option<Vec<u32>> {
    let id = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
    value.as_array()?.iter().map(id).collect()
}

/// A number as binary32, with minus zero as zero.
fn number(value: &Value) -> Option<u32> {
    let rounded = value.as_f64()? as f32;
    rounded.is_finite().then(|| float::add(rounded.to_bits(), 0))
}

fn sampling(fields: &mut Fields) -> Result<Sampling, Refusal> {
    let temperature =
        fields.read("temperature", "a number from 0 to below 2^128", number)?.unwrap_or(float::ONE);
    let top_p = fields.read("top_p", "a number above 0 and at most 1", number)?.unwrap_or(float::ONE);
    let natural = |value: &Value| value.as_u64().and_then(|k| u32::try_from(k).ok());
    let top_k = fields.read("top_k", "an integer from 0, which keeps all tokens, to 2^32 - 1", natural)?;
    let seed = fields.read("seed", "an integer from 0 to 2^64 - 1", Value::as_u64)?;
    let mut sampling = Sampling { temperature, top_k: top_k.unwrap_or(0), top_p, seed: seed.unwrap_or(0) };
    if let Some(why) = sampling.error() {
        let name = if why.contains("temperature") { "temperature" } else { "top_p" };
        return Err(Refusal::of(name, "invalid_value", why));
    }
    if temperature == 0 && (sampling.top_k, sampling.top_p) != (0, float::ONE) {
        let name = if sampling.top_k != 0 { "top_k" } else { "top_p" };
        let why = format!(
            "{name} changes nothing at temperature 0, which takes the most likely token: leave it out"
        );
        return Err(Refusal::of(name, "invalid_value", why));
    }
    if seed.is_none() && temperature != 0 {
        let drawn = random().map_err(|failure| Refusal::new(500, "server_error", failure.message))?;
        sampling.seed = u64::from_le_bytes(drawn);
    }
    Ok(sampling)
}

/// The prompt of a request.
fn prompt(fields: &mut Fields, kind: Kind) -> Result<Prompt, Refusal> {
    let text = |value: &Value| value.as_str().map(|text| Prompt::Text(text.into()));
    let read = |value: &Value| text(value).or_else(|| ids(value).map(Prompt::Ids));
    let messages = |value: &Value| value.is_array().then(|| Prompt::Messages(value.to_string()));
    let (name, found) = match kind {
        Kind::Completion => ("prompt", fields.read("prompt", "one text, or a list of token ids", read)?),
        Kind::Chat => ("messages", fields.read("messages", "a list of messages", messages)?),
    };
    found.ok_or_else(|| Refusal::of(name, "invalid_value", format!("the request has no {name}")))
}

/// The most tokens of the answer, and the field that says so.
fn length(fields: &mut Fields, kind: Kind) -> Result<Option<(u32, &'static str)>, Refusal> {
    let natural = |value: &Value| {
        value.as_u64().and_then(|length| u32::try_from(length).ok()).filter(|length| *length > 0)
    };
    let mut read = |name| {
        let length = fields.read(name, "an integer, 1 or more", natural)?;
        Ok::<_, Refusal>(length.map(|length| (length, name)))
    };
    let old = read("max_tokens")?;
    if kind == Kind::Completion {
        return Ok(old.or(Some((LENGTH, "max_tokens"))));
    }
    let new = read("max_completion_tokens")?;
    if old.is_some() && new.is_some() {
        let why = "max_tokens is the old name of max_completion_tokens: leave max_tokens out";
        return Err(Refusal::of("max_tokens", "invalid_value", why));
    }
    Ok(new.or(old))
}

/// Reads a request for an answer of the model of this name.
pub fn asked(body: &[u8], model: &str, kind: Kind) -> Result<Asked, Refusal> {
    let fields: Map<String, Value> = serde_json::from_slice(body).map_err(|error| {
        Refusal::new(400, "invalid_json", format!("the body must be a JSON object: {error}"))
    })?;
    let mut fields = Fields(fields);
    let text = |value: &Value| value.as_str().map(String::from);
    let named = fields.read("model", "a model's name", text)?;
    if named.as_deref() != Some(model) {
        let why = match named {
            None => format!("the request must name the model: {model}"),
            Some(_) => format!("the model of that name is not served here; {model} is"),
        };
        return Err(Refusal { status: 404, ..Refusal::of("model", "model_not_found", why) });
    }
    let prompt = prompt(&mut fields, kind)?;
    let length = length(&mut fields, kind)?;
    let sampling = sampling(&mut fields)?;
    let stream = fields.read("stream", "true or false", Value::as_bool)?.unwrap_or(false);
    let options = fields.read("stream_options", "an object", |value| value.as_object().cloned())?;
    let mut options = Fields(options.unwrap_or_default());
    let usage = options.read("include_usage", "true or false", Value::as_bool)?.unwrap_or(false);
    let within =
        |why: Refusal| Refusal { param: why.param.map(|name| format!("stream_options.{name}")), ..why };
    options.refuse(kind).map_err(within)?;
    fields.refuse(kind)?;
    if usage && !stream {
        return Err(Refusal::of(
            "stream_options",
            "invalid_value",
            "stream_options is for a request with stream",
        ));
    }
    Ok(Asked { prompt, length, sampling, stream, usage })
}

/// What all messages of an answer begin with.
#[derive(Clone)]
pub struct Head {
    pub kind: Kind,
    pub id: String,
    pub created: u64,
    pub model: String,
}

/// The end of an answer.
#[derive(Clone, Debug)]
pub struct Ending {
    /// Tokens of the answer, and whether its last one ended the text.
    pub tokens: usize,
    pub ended: bool,
    /// The receipt's file.
    pub receipt: String,
}

impl Ending {
    fn reason(&self) -> &'static str {
        if self.ended { "stop" } else { "length" }
    }
}

impl Head {
    fn message(&self, object: &str, choices: &Value) -> Value {
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices,
        })
    }

    /// The kind of a stream's messages.
    fn streamed(&self) -> &'static str {
        match self.kind {
            Kind::Completion => "text_completion",
            Kind::Chat => "chat.completion.chunk",
        }
    }

    /// A part of an answer's text, at the place that the API has for it. The first of a chat's says whose turn it is.
    fn choice(&self, text: &str, first: bool, reason: Option<&str>) -> Value {
        let mut choice = json!({ "index": 0, "logprobs": null, "finish_reason": reason });
        match self.kind {
            Kind::Completion => choice["text"] = json!(text),
            Kind::Chat => choice["delta"] = json!({}),
        }
        if self.kind == Kind::Chat && first {
            choice["delta"]["role"] = json!("assistant");
        }
        if self.kind == Kind::Chat && (first || !text.is_empty()) {
            choice["delta"]["content"] = json!(text);
        }
        json!([choice])
    }

    /// A part of a stream's text.
    pub fn part(&self, text: &str, first: bool) -> Value {
        self.message(self.streamed(), &self.choice(text, first, None))
    }

    /// The last part of a stream's text, with the receipt.
    pub fn last(&self, text: &str, first: bool, ending: &Ending) -> Value {
        let mut message = self.message(self.streamed(), &self.choice(text, first, Some(ending.reason())));
        message["tiebreak_receipt"] = json!(ending.receipt);
        message
    }

    /// A whole answer with its receipt.
    pub fn whole(&self, text: &str, prompt: usize, ending: &Ending) -> Value {
        let mut message = self.last(text, true, ending);
        if self.kind == Kind::Chat {
            message["object"] = json!("chat.completion");
            message["choices"] = json!([{
                "index": 0, "message": { "role": "assistant", "content": text, "refusal": null }, "logprobs": null,
                "finish_reason": ending.reason(),
            }]);
        }
        Head::counted(message, prompt, ending)
    }

    /// Adds the counts of tokens to a message.
    fn counted(mut message: Value, prompt: usize, ending: &Ending) -> Value {
        let answer = ending.tokens;
        message["usage"] =
            json!({ "prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer });
        message
    }

    /// The event of a stream that has only the counts.
    pub fn usage(&self, prompt: usize, ending: &Ending) -> Value {
        Head::counted(self.message(self.streamed(), &json!([])), prompt, ending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(fields: &str) -> Result<Asked, Refusal> {
        asked(format!(r#"{{"model": "m", "prompt": [1, 2], {fields}}}"#).as_bytes(), "m", Kind::Completion)
    }

    fn of_chat(fields: &str) -> Result<Asked, Refusal> {
        asked(format!(r#"{{"model": "m", "messages": [{{}}], {fields}}}"#).as_bytes(), "m", Kind::Chat)
    }

    #[test]
    fn fields_that_are_not_served_are_refused_by_name() {
        for (field, code) in [
            (r#""stop": "x""#, "unsupported_parameter"),
            (r#""logprobs": 0"#, "unsupported_parameter"),
            (r#""n": 2"#, "unsupported_parameter"),
            (r#""best_of": 3"#, "unsupported_parameter"),
            (r#""echo": true"#, "unsupported_parameter"),
            (r#""suffix": """#, "unsupported_parameter"),
            (r#""logit_bias": {"5": 1}"#, "unsupported_parameter"),
            (r#""presence_penalty": 0.5"#, "unsupported_parameter"),
            (r#""frequency_penalty": -1"#, "unsupported_parameter"),
            (r#""user": "me""#, "unsupported_parameter"),
            (r#""max_token": 5"#, "unsupported_parameter"),
            (r#""temperature": "1""#, "invalid_value"),
            (r#""temperature": -0.1"#, "invalid_value"),
            (r#""temperature": 1e39"#, "invalid_value"),
            (r#""top_p": 0"#, "invalid_value"),
            (r#""top_p": 1.1"#, "invalid_value"),
            (r#""top_k": -1"#, "invalid_value"),
            (r#""top_k": 5, "temperature": 0"#, "invalid_value"),
            (r#""top_p": 0.5, "temperature": 0"#, "invalid_value"),
            (r#""seed": -1"#, "invalid_value"),
            (r#""max_tokens": 0"#, "invalid_value"),
            (r#""stream": 1"#, "invalid_value"),
            (r#""stream_options": {"include_usage": true}"#, "invalid_value"),
        ] {
            let refusal = of(field).expect_err(field);
            let name = field.split('"').nth(1).unwrap();
            assert_eq!(
                (refusal.status, refusal.code, refusal.param.as_deref()),
                (400, code, Some(name)),
                "{field}"
            );
            assert!(refusal.message.contains(name.trim_start_matches("top_")), "{refusal:?}");
        }
        let options = of(r#""stream": true, "stream_options": {"other": 1}"#).unwrap_err();
        assert_eq!(options.param.as_deref(), Some("stream_options.other"));
        for (body, status) in [
            (r#"{"prompt": "x"}"#, 404),
            (r#"{"model": "other", "prompt": "x"}"#, 404),
            (r#"{"model": "m"}"#, 400),
            (r#"{"model": "m", "prompt": ["a", "b"]}"#, 400),
            (r#"{"model": "m", "prompt": [4294967296]}"#, 400),
            ("[]", 400),
            ("{", 400),
        ] {
            let refusal = asked(body.as_bytes(), "m", Kind::Completion).expect_err(body);
            assert_eq!(refusal.status, status, "{body}");
        }
        for (field, code) in [
            (r#""tools": [{}]"#, "unsupported_parameter"),
            (r#""tool_choice": "auto""#, "unsupported_parameter"),
            (r#""response_format": {"type": "json_object"}"#, "unsupported_parameter"),
            (r#""logprobs": true"#, "unsupported_parameter"),
            (r#""stop": ["x"]"#, "unsupported_parameter"),
            (r#""n": 2"#, "unsupported_parameter"),
            (r#""prompt": "x""#, "unsupported_parameter"),
            (r#""echo": false"#, "unsupported_parameter"),
            (r#""best_of": 1"#, "unsupported_parameter"),
            (r#""max_completion_tokens": 0"#, "invalid_value"),
            (r#""max_tokens": 3, "max_completion_tokens": 3"#, "invalid_value"),
            (r#""temperature": -1"#, "invalid_value"),
        ] {
            let refusal = of_chat(field).expect_err(field);
            let name = field.split('"').nth(1).unwrap();
            assert_eq!((refusal.code, refusal.param.as_deref()), (code, Some(name)), "{field}");
        }
        for body in [r#"{"model": "m"}"#, r#"{"model": "m", "messages": "Hi"}"#] {
            let refusal = asked(body.as_bytes(), "m", Kind::Chat).expect_err(body);
            assert_eq!((refusal.status, refusal.param.as_deref()), (400, Some("messages")), "{body}");
        }
    }

    #[test]
    fn values_that_ask_for_nothing_are_taken() {
        let neutral = r#""n": 1, "best_of": 1, "echo": false, "logprobs": null, "suffix": null, "stop": [], "logit_bias": {},
            "presence_penalty": 0, "frequency_penalty": 0.0, "seed": 18446744073709551615, "temperature": -0.0, "top_k": 0, "top_p": 1"#;
        let asked = of(neutral).unwrap();
        let sampling = Sampling { temperature: 0, top_k: 0, top_p: float::ONE, seed: u64::MAX };
        let (prompt, length) = (Prompt::Ids(vec![1, 2]), Some((16, "max_tokens")));
        assert_eq!(asked, Asked { prompt, length, sampling, stream: false, usage: false });
        let neutral = r#""n": 1, "tools": [], "tool_choice": "none", "logprobs": false, "store": false, "top_logprobs": null, "stop": null,
            "response_format": {"type": "text"}, "temperature": 0"#;
        let asked = of_chat(neutral).unwrap();
        let (prompt, sampling) = (Prompt::Messages("[{}]".into()), Sampling { seed: 0, ..sampling });
        assert_eq!(asked, Asked { prompt, length: None, sampling, stream: false, usage: false });
        assert_eq!(of_chat(r#""max_tokens": 3"#).unwrap().length, Some((3, "max_tokens")));
        let streamed =
            of(r#""stream": true, "stream_options": {"include_usage": true}, "max_tokens": 3"#).unwrap();
        assert!(streamed.stream && streamed.usage && streamed.length == Some((3, "max_tokens")));
    }

    #[test]
    fn a_seed_that_nobody_names_is_drawn() {
        let drawn: Vec<u64> = (0..3).map(|_| of(r#""top_p": 0.5"#).unwrap().sampling.seed).collect();
        assert!(drawn[0] != drawn[1] && drawn[1] != drawn[2], "{drawn:?}");
        assert_eq!(of(r#""temperature": 0"#).unwrap().sampling.seed, 0);
    }
}
