//! The chat template among a tokenizer's files, where transformers finds it.

use serde_json::{Map, Value};

use crate::SETTINGS_MAX;

/// The files that have a chat template and the texts of special tokens, as transformers reads them.
pub const FILES: [&str; 3] = ["chat_template.jinja", "tokenizer_config.json", "special_tokens_map.json"];
/// The special tokens that a template can name.
const SPECIAL: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// The most bytes of a template; those of released models have up to 20 KiB.
const TEMPLATE_MAX: usize = 1 << 20;

/// A chat template with the special tokens that it can name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    pub(super) source: String,
    /// Names of special tokens, such as `bos_token`, with their texts.
    pub(super) tokens: Map<String, Value>,
}

impl Template {
    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The template among files that `get` gives by their names: that of `chat_template.jinja`, else that of
    /// `tokenizer_config.json`. In a list of named templates it is `default`.
    ///
    /// # Errors
    /// If there is none, or a file is not understood, in words.
    pub fn of<'a>(get: impl Fn(&str) -> Option<&'a [u8]>) -> Result<Template, String> {
        let [jinja, config, map] = FILES;
        let [config, map] = [settings(config, &get)?, settings(map, &get)?];
        let source = match get(jinja) {
            Some(bytes) => String::from_utf8(bytes.to_vec()).map_err(|why| format!("{jinja}: {why}"))?,
            None => named(config.get("chat_template"))?,
        };
        if source.len() > TEMPLATE_MAX {
            return Err(format!(
                "the chat template has {} bytes; at most {TEMPLATE_MAX} are taken",
                source.len()
            ));
        }
        let text = |name: &&str| {
            let said = [&config, &map]
                .into_iter()
                .find_map(|file| file.get(*name).filter(|said| !said.is_null()))?;
            let text = said.as_str().or_else(|| said["content"].as_str())?;
            Some((name.to_string(), Value::from(text)))
        };
        let tokens = SPECIAL.iter().filter_map(text).collect();
        Ok(Template { source, tokens })
    }
}

/// The object in a file; an empty one if the file is not there.
fn settings<'a>(name: &str, get: impl Fn(&str) -> Option<&'a [u8]>) -> Result<Map<String, Value>, String> {
    let Some(bytes) = get(name) else { return Ok(Map::new()) };
    if bytes.len() > SETTINGS_MAX {
        return Err(format!("{name}: it has {} bytes; at most {SETTINGS_MAX} are taken", bytes.len()));
    }
    serde_json::from_slice(bytes).map_err(|why| format!("{name}: it is no object of JSON: {why}"))
}

/// The template that `chat_template` in `tokenizer_config.json` gives.
fn named(said: Option<&Value>) -> Result<String, String> {
    match said {
        Some(Value::String(source)) => Ok(source.clone()),
        Some(Value::Array(all)) => {
            let default = all.iter().find(|one| one["name"] == "default");
            let source = default.and_then(|one| one["template"].as_str());
            source.map(String::from).ok_or_else(|| "none of the chat templates has the name default".into())
        }
        _ => Err("the tokenizer has no chat template: a folder with chat_template.jinja is wanted, or with chat_template in \
                  tokenizer_config.json"
            .into()),
    }
}
