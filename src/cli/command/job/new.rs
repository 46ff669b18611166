//! A job to begin with, made from the table of keys: what is required is written out with its example, all else stands beside it as comments.

use tiebreak_job::reference::{Key, Presence, Type, keys_of};

/// The most characters of a line of a comment.
const WIDTH: usize = 100;

/// The data and optimizer kinds that an example with a model of this kind has: (data, optimizer).
pub fn beside(model: &str) -> (&'static str, &'static str) {
    match model {
        "gpt" | "llama" | "bert" => ("bytes", "adamw"),
        "mlp" => ("idx", "sgd"),
        _ => ("cifar10", "sgd"),
    }
}

/// True if a job with a model of this kind has a table or a key that other jobs may leave out.
pub fn is_needed(model: &str, path: &str) -> bool {
    model == "bert" && ["data.masking", "loss", "loss.ignore"].contains(&path)
}

/// A job with a model of this kind, in TOML with comments. Its data files are named as the table's examples are.
pub fn job(model: &str) -> String {
    let (data, optimizer) = beside(model);
    let kinds = [("model", model), ("data", data), ("optimizer", optimizer)];
    let mut text = format!(
        "# A job of tiebreak with a model of kind {model}. A line that begins with #key = is a key that may be left out, with its default or an\n\
         # example; `tiebreak job reference` says all of every key. Check the job with: tiebreak job check FILE\n"
    );
    let (tables, scalars): (Vec<&Key>, Vec<&Key>) = keys_of("", None).partition(|key| key.is_table());
    for key in scalars {
        text += &entry(key, model, None, false);
    }
    for table in tables {
        let kind = kinds.iter().find(|(of, _)| *of == table.path).map(|(_, kind)| *kind);
        text += &section(table, model, kind);
    }
    text
}

/// A table with its keys, and the tables in it.
fn section(table: &Key, model: &str, kind: Option<&str>) -> String {
    let off = table.presence != Presence::Required && !is_needed(model, table.path);
    let name = table.path.replace('*', "head");
    let (open, close) = if matches!(table.ty, Type::Tables { .. }) { ("[[", "]]") } else { ("[", "]") };
    let mut text = format!("\n{}{}{open}{name}{close}\n", comment(table.meaning), if off { "#" } else { "" });
    let (tables, entries): (Vec<&Key>, Vec<&Key>) = keys_of(table.path, kind).partition(|key| key.is_table());
    for key in entries {
        text += &entry(key, model, kind, off);
    }
    tables.into_iter().for_each(|table| text += &section(table, model, None));
    text
}

/// A key with what it means; `off`: its table is not written, so neither is the key.
fn entry(key: &Key, model: &str, kind: Option<&str>, off: bool) -> String {
    let name = if key.name() == "*" { "head" } else { key.name() };
    let example = match (key.name(), kind) {
        ("kind", Some(kind)) => format!("{kind:?}"),
        _ => key.example.to_string(),
    };
    let (mark, value, without) = match key.presence {
        _ if is_needed(model, key.path) => ("", example, String::new()),
        Presence::Required => (if off { "#" } else { "" }, example, String::new()),
        Presence::Optional(value) => ("#", value.to_string(), String::new()),
        Presence::Absent(meaning) => ("#", example, format!(" Without it: {meaning}.")),
    };
    let unit = if key.unit.is_empty() { String::new() } else { format!(", in {}", key.unit) };
    let rule = if key.rule.is_empty() { String::new() } else { format!("; {}", key.rule) };
    let said = format!("{} ({}{unit}{rule}){without}", key.meaning, key.ty);
    format!("{}{mark}{name} = {value}\n", comment(&said))
}

/// A text as lines of comments.
fn comment(text: &str) -> String {
    let mut lines = vec![String::from("#")];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("there is a first line");
        if last.len() > 1 && last.chars().count() + 1 + word.chars().count() > WIDTH {
            lines.push(format!("# {word}"));
        } else {
            last.push(' ');
            last.push_str(word);
        }
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiebreak_contract::program::models::KINDS;
    use tiebreak_job::Job;
    use tiebreak_job::reference::keys;

    #[test]
    fn every_kind_has_a_job_that_parses_and_names_every_key() {
        for model in KINDS {
            let text = job(model);
            Job::parse(model, &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
            let (data, optimizer) = beside(model);
            let kinds = [*model, data, optimizer];
            let is_own = |key: &Key| key.kind.is_none_or(|kind| kinds.contains(&kind));
            // A table of some kinds of models, such as [model.lora], has keys without a kind.
            let is_there = |key: &Key| {
                let above = key.path.rsplit_once('.').map_or("", |(above, _)| above);
                let mut tables = keys().filter(|table| table.path == above).peekable();
                tables.peek().is_none() || tables.any(is_own)
            };
            for key in keys().filter(|key| is_own(key) && is_there(key)) {
                let name = if key.name() == "*" { "head" } else { key.name() };
                assert!(text.contains(name), "{model}: {}", key.path);
            }
        }
    }
}
