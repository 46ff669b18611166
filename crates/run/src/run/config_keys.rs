//! Keys and values of a `config.json` that transformers wrote. A key that is not known, or has a value that is not computed, is
//! refused by its name.

use serde_json::{Map, Value, json};

/// The labels of a classifier whose configuration counts none.
const LABELS: u32 = 2;

/// A `config.json`, or an object in it.
pub(super) struct Keys<'a> {
    /// The text before each key's name.
    pub prefix: &'a str,
    pub keys: &'a Map<String, Value>,
}

impl Keys<'_> {
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.keys.get(key).filter(|value| !value.is_null())
    }

    pub fn refused<T>(&self, key: &str, why: &str) -> Result<T, String> {
        // The file is anybody's, and so is the length of its keys.
        let short = |text: &str| text.chars().take(40).collect::<String>();
        let value = self.keys.get(key).map(Value::to_string).unwrap_or_default();
        Err(format!("{}{} is {}; {why}", self.prefix, short(key), short(&value)))
    }

    /// The elements of a list; 0 of anything else.
    pub fn count(&self, key: &str) -> usize {
        self.get(key).and_then(Value::as_array).map_or(0, Vec::len)
    }

    pub fn size(&self, key: &str) -> Result<Option<u32>, String> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_u64().and_then(|n| u32::try_from(n).ok()) {
            Some(size) => Ok(Some(size)),
            None => self.refused(key, "a number is wanted, from 0 to 4294967295"),
        }
    }

    pub fn needed(&self, key: &str) -> Result<u32, String> {
        self.size(key)?.ok_or_else(|| format!("{}{key} is missing", self.prefix))
    }

    pub fn number(&self, key: &str, default: f64) -> Result<f32, String> {
        match self.get(key).map_or(Some(default), Value::as_f64) {
            Some(number) => Ok(number as f32),
            None => self.refused(key, "a number is wanted"),
        }
    }

    pub fn needed_number(&self, key: &str) -> Result<f32, String> {
        match self.get(key) {
            Some(_) => self.number(key, 0.0),
            None => Err(format!("{}{key} is missing", self.prefix)),
        }
    }

    /// True or false; false where the key is absent.
    pub fn flag(&self, key: &str) -> Result<bool, String> {
        match self.get(key).map_or(Some(false), Value::as_bool) {
            Some(flag) => Ok(flag),
            None => self.refused(key, "true or false is wanted"),
        }
    }

    /// Refuses another value than `only` of a key that is there.
    pub fn only(&self, key: &str, only: &Value) -> Result<(), String> {
        match self.get(key) {
            Some(value) if value != only && value.as_f64().is_none_or(|x| Some(x) != only.as_f64()) => {
                self.refused(key, &format!("this version computes {only} only"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses another value of the keys that have one value, and keys of neither list that are there.
    pub fn known(&self, fixed: &[(&str, Value)], lists: &[&[&str]]) -> Result<(), String> {
        for (key, only) in fixed {
            self.only(key, only)?;
        }
        let is_known = |key: &str| {
            fixed.iter().any(|(name, _)| *name == key) || lists.iter().any(|list| list.contains(&key))
        };
        match self.keys.keys().find(|key| !is_known(key) && self.get(key).is_some()) {
            Some(key) => self.refused(key, "this version does not know that key"),
            None => Ok(()),
        }
    }

    /// The number of a classifier's labels, each of which excludes the others.
    pub fn labels(&self) -> Result<u32, String> {
        self.only("problem_type", &json!("single_label_classification"))?;
        let named = match self.get("id2label") {
            Some(Value::Object(labels)) => u32::try_from(labels.len()).ok(),
            Some(_) => return self.refused("id2label", "an object of the labels by their numbers is wanted"),
            None => None,
        };
        let mut counted = None;
        for key in ["num_labels", "_num_labels"] {
            let count = self.size(key)?;
            if let (Some(named), Some(count)) = (named.or(counted), count)
                && named != count
            {
                return self.refused(key, &format!("other keys count {named} labels"));
            }
            counted = counted.or(count);
        }
        match named.or(counted).unwrap_or(LABELS) {
            1 => Err("it has 1 label, which is a regression; this version learns classes".into()),
            labels => Ok(labels),
        }
    }
}

/// Writes names of so many labels, each of which excludes the others.
pub(super) fn write_labels(config: &mut Value, classes: u32) {
    let names = (0..classes).map(|number| (number, format!("LABEL_{number}")));
    let of_numbers = names.clone().map(|(number, name)| (number.to_string(), json!(name)));
    config["id2label"] = of_numbers.collect();
    config["label2id"] = names.map(|(number, name)| (name, json!(number))).collect();
    config["problem_type"] = "single_label_classification".into();
}

/// The object that a `config.json` is.
pub(super) fn object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("it is no JSON object: {error}"))
}

/// JSON in which binary32 numbers are the shortest decimals that name them: 1e-5, not 9.999999747378752e-6.
pub(super) fn shortest(value: &impl serde::Serialize) -> Value {
    let text = serde_json::to_string(value).expect("a model's numbers are JSON");
    serde_json::from_str(&text).expect("it was just written")
}
