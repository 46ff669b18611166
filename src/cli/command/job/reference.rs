//! The reference of every job key, rendered: Markdown (`docs/JOB.md`) and a JSON Schema (`docs/job.schema.json`).

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::new;
use tiebreak_contract::program::models;
use tiebreak_contract::program::products::ProductClass;
use tiebreak_job::reference::{self, Key, Presence, Type, keys, keys_of};

const INTRODUCTION: &str = "# The job file

A job says everything that decides the bits of a run, in TOML. Keys that are not listed here are refused;
`tiebreak job check FILE` names the line that is wrong. `tiebreak job reference` prints this page, and
`tiebreak job reference --json-schema` prints [job.schema.json](job.schema.json) for editors.

- A number is rounded to binary32 before anything is computed with it (ARITHMETIC.md, section 1).
- A table may be written as `[batch]` with `micro_batch = 4` under it, or inline as `batch = { micro_batch = 4 }`.
- Paths are relative to the job file, and stay in its folder. `--data-root DIR` allows another folder too.
- Data, weights and an earlier run may have addresses, which `--data-root ADDRESS` allows ([DATA.md](DATA.md)).
";

/// The tables in the order of the reference, each with its kinds; a table without kinds has `None`.
fn tables() -> Vec<(&'static str, Vec<Option<&'static str>>)> {
    let mut all = vec![""];
    // A table is followed by those in it.
    for top in keys().filter(|key| key.table().is_empty() && key.is_table()) {
        let within = |key: &&Key| key.path.split('.').next() == Some(top.path) && key.is_table();
        all.extend(keys().filter(within).map(|key| key.path));
        // Several kinds of a table may have the same table in them.
        all.dedup();
    }
    all.into_iter().map(|table| (table, kinds(table))).collect()
}

fn kinds(table: &str) -> Vec<Option<&'static str>> {
    reference::kinds(table).map_or_else(|| vec![None], |(_, kinds)| kinds.iter().copied().map(Some).collect())
}

/// The page.
pub fn markdown() -> String {
    let mut page = INTRODUCTION.to_string();
    page += "\nThe shortest job of each model has the keys that are required:\n";
    let example = |job: String| format!("\n```toml\n{job}```\n");
    for &model in models::KINDS {
        let (data, optimizer) = new::beside(model);
        page += &example(shortest(&[("model", model), ("data", data), ("optimizer", optimizer)], ""));
    }
    page += "\nA job may name a program file in place of `model`, `optimizer` and `batch`:\n";
    page += &example(shortest(&[("data", "bytes")], "program"));
    for (table, kinds) in tables() {
        for kind in kinds {
            let rows: Vec<String> = keys_of(table, kind).map(|key| row(key, kind)).collect();
            if rows.is_empty() {
                continue;
            }
            let of_kind = kind.map_or(String::new(), |kind| format!(" of kind `{kind}`"));
            let title = match keys().find(|key| key.path == table) {
                None => "The top of the file".into(),
                Some(Key { ty: Type::Tables { .. }, .. }) => format!("`[[{table}]]`"),
                Some(_) => format!("`[{table}]`{of_kind}"),
            };
            page += &format!(
                "\n## {title}\n\n| key | type, bounds | without it | unit | meaning | example |\n|---|---|---|---|---|---|\n{}\n",
                rows.join("\n")
            );
        }
    }
    let classes: Vec<String> = ProductClass::ALL.iter().map(|class| format!("`{}`", class.name())).collect();
    let classes: Vec<String> = classes.chunks(8).map(|some| some.join(", ")).collect();
    page += &format!("\n`*` is one of the classes of products:\n{}.\n", classes.join(",\n"));
    page + &defaults()
}

/// Every key that may be left out, and what holds then; a number's binary32 pattern too.
fn defaults() -> String {
    let row = |key: &Key| {
        let kind = key.kind.map_or(String::new(), |kind| format!("`{kind}`"));
        let without = match (key.presence, key.ty) {
            (Presence::Required, _) => return None,
            (Presence::Absent(meaning), _) => meaning.to_string(),
            (Presence::Optional(value), Type::Number { .. }) => {
                let number = value.parse::<f64>().map_or(f32::NAN, |number| number as f32);
                format!("`{value}`, pattern `{:08x}`", number.to_bits())
            }
            (Presence::Optional(value), _) => format!("`{value}`"),
        };
        Some(format!("| `{}` | {kind} | {without} |\n", key.path))
    };
    let rows: String = keys().filter_map(row).collect();
    format!(
        "\n## Index of defaults\n\nEvery key that may be left out, and what holds then. ARITHMETIC.md, section 8.1, has the digits of products, and\nROUNDING.md, section 3, the thresholds.\n\n| key | kind | without it |\n|---|---|---|\n{rows}"
    )
}

fn row(key: &Key, kind: Option<&str>) -> String {
    let without = match key.presence {
        Presence::Required if key.or.is_empty() => "required".into(),
        Presence::Required => format!("required, or `{}` in its place", key.or),
        Presence::Optional(value) => format!("`{value}`"),
        Presence::Absent(meaning) => meaning.into(),
    };
    let rules: String = rules(key).iter().map(|rule| format!("; {rule}")).collect();
    let beside: String = key.beside.lines().map(|line| format!(" beside `{line}`")).collect();
    let example = match (key.ty, key.name(), kind) {
        (Type::Table | Type::Tables { .. }, ..) => String::new(),
        (_, "kind", Some(kind)) => format!("`kind = \"{kind}\"`"),
        (_, "*", _) => format!("`head = {}`", key.example),
        (_, name, _) => format!("`{name} = {}`{beside}", key.example),
    };
    format!(
        "| `{}` | {}{rules} | {without} | {} | {} | {example} |",
        key.name(),
        key.ty,
        key.unit,
        key.meaning
    )
}

/// The rules for a key's value, and for the keys beside it, that its type does not say.
fn rules(key: &Key) -> Vec<String> {
    let not_with = (!key.not_with.is_empty()).then(|| format!("not together with `{}`", key.not_with));
    let rule = (!key.rule.is_empty()).then(|| key.rule.to_string());
    rule.into_iter().chain(not_with).collect()
}

/// A job with the examples of all required keys of these kinds: (table, kind). The key `instead` stands where it may.
fn shortest(kinds: &[(&str, &str)], instead: &str) -> String {
    let mut text = String::new();
    let model = kinds.iter().find(|(of, _)| *of == "model").map_or("", |(_, model)| *model);
    let is_needed = |key: &Key| new::is_needed(model, key.path);
    let required = |table: &str, kind: Option<&str>| -> Vec<Key> {
        let keys = keys_of(table, kind).filter(|key| match key.presence {
            Presence::Required => instead.is_empty() || key.or != instead,
            _ => key.path == instead || is_needed(key),
        });
        keys.copied().collect()
    };
    let (tables, scalars): (Vec<Key>, Vec<Key>) =
        required("", None).into_iter().partition(|key| key.ty == Type::Table);
    for key in scalars {
        text += &format!("{} = {}\n", key.path, key.example);
    }
    for table in tables {
        let kind = kinds.iter().find(|(of, _)| *of == table.path).map(|(_, kind)| *kind);
        text += &format!("\n[{}]\n", table.path);
        let (within, entries): (Vec<Key>, Vec<Key>) =
            required(table.path, kind).into_iter().partition(Key::is_table);
        for key in entries {
            match (key.name(), kind) {
                ("kind", Some(kind)) => text += &format!("kind = \"{kind}\"\n"),
                _ => text += &format!("{} = {}\n", key.name(), key.example),
            }
        }
        for table in within {
            text += &format!("\n[{}]\n", table.path);
            required(table.path, None).iter().for_each(|key| {
                text += &format!("{} = {}\n", key.name(), key.example);
            });
        }
    }
    text
}

/// The schema (draft 2020-12).
pub fn schema() -> Value {
    let mut schema = table_schema("");
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("A tiebreak job");
    schema
}

/// The schema of a table: one object, or one for each kind.
fn table_schema(table: &str) -> Value {
    let mut all: Vec<Value> = kinds(table).into_iter().map(|kind| object(table, kind)).collect();
    if all.len() == 1 { all.remove(0) } else { json!({ "type": "object", "oneOf": all }) }
}

/// Keys of a job that want another one beside them.
const BESIDE: [(&[&str], &str); 2] = [(&["network"], "program"), (&["program", "evaluation"], "network")];

fn object(table: &str, kind: Option<&str>) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    // Keys in whose place one other may stand, by that key; and pairs of which there is one at most.
    let (mut replaced, mut pairs) = (BTreeMap::<&str, Vec<&str>>::new(), Vec::new());
    for key in keys_of(table, kind) {
        let mut schema = match key.ty {
            Type::Table => table_schema(key.path),
            Type::Tables { most } => {
                json!({ "type": "array", "items": table_schema(key.path), "minItems": 1, "maxItems": most })
            }
            ty => type_schema(&ty),
        };
        if let (Some(kind), "kind") = (kind, key.name()) {
            schema = json!({ "const": kind });
        }
        schema["description"] = json!(description(key));
        if let Presence::Optional(value) = key.presence {
            schema["default"] = from_toml(value);
        }
        if key.name() == "*" {
            let classes = ProductClass::ALL.map(ProductClass::name);
            return json!({ "type": "object", "propertyNames": { "enum": classes }, "additionalProperties": schema });
        }
        match (key.presence, key.or) {
            (Presence::Required, "") => required.push(key.name()),
            (Presence::Required, or) => replaced.entry(or).or_default().push(key.name()),
            _ => {}
        }
        pairs.extend(key.excludes().map(|other| json!({ "not": { "required": [key.name(), other] } })));
        properties.insert(key.name().into(), schema);
    }
    let mut object = json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false });
    let either = |(or, keys)| json!({ "anyOf": [{ "required": keys }, { "required": [or] }] });
    let beside = if table.is_empty() { BESIDE.to_vec() } else { Vec::new() };
    let beside = beside
        .into_iter()
        .map(|(with, other)| json!({ "if": { "required": with }, "then": { "required": [other] } }));
    let all: Vec<Value> = replaced.into_iter().map(either).chain(pairs).chain(beside).collect();
    if !all.is_empty() {
        object["allOf"] = json!(all);
    }
    object
}

fn description(key: &Key) -> String {
    let mut text = key.meaning.to_string();
    for (name, more) in [("Unit", key.unit), ("Bounds", &rules(key).join("; "))] {
        if !more.is_empty() {
            text += &format!(" {name}: {more}.");
        }
    }
    match key.presence {
        Presence::Absent(meaning) => format!("{text} Without it: {meaning}."),
        _ => text,
    }
}

fn type_schema(ty: &Type) -> Value {
    if let Some((of, lens)) = ty.elements() {
        let one = type_schema(&of);
        let many = json!({ "type": "array", "items": one, "minItems": lens.start(), "maxItems": lens.end() });
        return if matches!(ty, Type::List { .. }) { many } else { json!({ "oneOf": [one, many] }) };
    }
    match ty {
        Type::Integer { least, most } => {
            json!({ "type": "integer", "minimum": least, "maximum": most })
        }
        Type::Number { least, above, below } => {
            let lower = if *above { "exclusiveMinimum" } else { "minimum" };
            let mut schema = json!({ "type": "number", lower: least });
            if let Some(below) = below {
                schema["exclusiveMaximum"] = json!(below);
            }
            schema
        }
        Type::Boolean => json!({ "type": "boolean" }),
        Type::Choice(choices) => json!({ "enum": choices }),
        Type::Table => json!({ "type": "object" }),
        _ => json!({ "type": "string" }),
    }
}

/// A default of the reference: a number, a text, true or false.
fn from_toml(value: &str) -> Value {
    serde_json::from_str(value).expect("such values are written alike in TOML and JSON")
}
