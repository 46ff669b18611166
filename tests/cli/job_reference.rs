//! The reference of job keys: the page and the schema equal the command's output, the table lists exactly what serde accepts, and
//! every example parses.

use std::collections::BTreeSet;
use std::process::Command;

use tiebreak_contract::program::network::compile;
use tiebreak_contract::program::products::ProductClass;
use tiebreak_job::Job;
use tiebreak_job::parse::JobText;
use tiebreak_job::reference::{self, Key, Presence, Type, keys, keys_of};
use tiebreak_job::spec::{DataSpec, OptimizerSpec};
use toml::{Table, Value};

fn printed(args: &[&str]) -> String {
    let output =
        Command::new(env!("CARGO_BIN_EXE_tiebreak")).args(["job", "reference"]).args(args).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_page_of_programs_is_what_is_printed() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_tiebreak")).args(["program", "reference"]).output().unwrap();
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(
        page == include_str!("../../docs/PROGRAMS.md"),
        "run `tiebreak program reference > docs/PROGRAMS.md`"
    );
}

#[test]
fn the_page_of_networks_is_what_is_printed_and_its_example_compiles() {
    let output = Command::new(env!("CARGO_BIN_EXE_tiebreak")).args(["program", "networks"]).output().unwrap();
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(
        page == include_str!("../../docs/NETWORKS.md"),
        "run `tiebreak program networks > docs/NETWORKS.md`"
    );
    let example = page.split("```").nth(1).and_then(|block| block.strip_prefix("json\n")).unwrap();
    assert_eq!(compile(example).unwrap().parameter_count(), 5 * 7 + 5 + 3 * 5 + 3);
}

#[test]
fn the_page_and_the_schema_are_what_is_printed() {
    let again = "run `tiebreak job reference > docs/JOB.md` and `tiebreak job reference --json-schema > docs/job.schema.json`";
    assert!(printed(&[]) == include_str!("../../docs/JOB.md"), "{again}");
    assert!(printed(&["--json-schema"]) == include_str!("../../docs/job.schema.json"), "{again}");
}

/// A value of TOML text.
fn value(text: &str) -> Value {
    toml::from_str::<Table>(&format!("x = {text}"))
        .unwrap_or_else(|e| panic!("{text}: {e}"))
        .remove("x")
        .unwrap()
}

/// A value as TOML, tables inline.
fn inline(value: &Value) -> String {
    let list = |items: Vec<String>| items.join(", ");
    match value {
        Value::String(text) => format!("{text:?}"),
        Value::Integer(n) => n.to_string(),
        Value::Float(x) => format!("{x:?}").to_lowercase(),
        Value::Boolean(b) => b.to_string(),
        Value::Array(values) => format!("[{}]", list(values.iter().map(inline).collect())),
        Value::Table(table) => {
            format!(
                "{{ {} }}",
                list(table.iter().map(|(name, v)| format!("{name} = {}", inline(v))).collect())
            )
        }
        Value::Datetime(_) => panic!("no key is a date"),
    }
}

/// A job as TOML.
fn text(job: &Table) -> String {
    job.iter().map(|(name, value)| format!("{name} = {}\n", inline(value))).collect()
}

/// The table of the job at `path`, where `*` means the class head; made with its required keys if it is absent.
fn table_at<'a>(job: &'a mut Table, path: &str, kind: Option<&str>) -> &'a mut Table {
    let mut table = job;
    let parts: Vec<&str> = path.split('.').filter(|part| !part.is_empty()).collect();
    for depth in 0..parts.len() {
        let name = if parts[depth] == "*" { "head" } else { parts[depth] };
        let path = parts[..=depth].join(".");
        let is_list = keys().any(|key| key.path == path && matches!(key.ty, Type::Tables { .. }));
        let new = || Value::Table(required(&path, kind));
        let inner =
            table.entry(name).or_insert_with(|| if is_list { Value::Array(vec![new()]) } else { new() });
        table = match inner {
            Value::Array(tables) => tables[0].as_table_mut().unwrap(),
            inner => inner.as_table_mut().unwrap(),
        };
    }
    table
}

/// The required keys of a table, with their examples.
fn required(table: &str, kind: Option<&str>) -> Table {
    let keys = keys_of(table, kind).filter(|key| key.presence == Presence::Required && !key.is_table());
    let example = |key: &Key| match (key.name(), kind) {
        ("kind", Some(kind)) => Value::String(kind.into()),
        _ => value(key.example),
    };
    keys.map(|key| (key.name().to_string(), example(key))).collect()
}

/// The kinds of a table, or none.
fn kinds(table: &str) -> Vec<Option<&'static str>> {
    reference::kinds(table).map_or_else(|| vec![None], |(_, kinds)| kinds.iter().copied().map(Some).collect())
}

/// The shortest job in which `table` is of this kind.
fn job_with(table: &str, kind: Option<&str>) -> Table {
    let model = match (table, kind) {
        ("model", Some(kind)) => kind,
        ("data", Some("idx" | "arrays")) => "mlp",
        ("data", Some("cifar10" | "cifar100")) | ("data.augment", _) => "resnet",
        ("data.masking", _) => "bert",
        _ => "gpt",
    };
    let data = match (table, kind, model) {
        ("data", Some(kind), _) => kind,
        (_, _, "gpt" | "llama" | "bert") => "bytes",
        (_, _, "mlp") => "idx",
        _ => "cifar10",
    };
    let optimizer = if table == "optimizer" { kind.unwrap_or("adamw") } else { "adamw" };
    let mut job = required("", None);
    for key in keys_of("", None).filter(|key| key.ty == Type::Table && key.presence == Presence::Required) {
        let kind = match key.path {
            "model" => Some(model),
            "data" => Some(data),
            "optimizer" => Some(optimizer),
            _ => None,
        };
        job.insert(key.path.into(), Value::Table(required(key.path, kind)));
    }
    if table == "init" {
        // One of its keys is for a model with adapters.
        let lora = Value::Table(required("model.lora", None));
        job["model"].as_table_mut().expect("it is a table").insert("lora".into(), lora);
    }
    if (table, kind) == ("data", Some("tokens")) || model == "bert" {
        // Masks and masking need the label of the targets that do not count.
        job.insert("loss".into(), value("{ ignore = 0 }"));
    }
    if model == "bert" {
        let masking = Value::Table(required("data.masking", None));
        job["data"].as_table_mut().expect("it is a table").insert("masking".into(), masking);
    }
    job
}

/// Every table with each of its kinds.
fn tables() -> impl Iterator<Item = (&'static str, Option<&'static str>)> {
    let paths = [""].into_iter().chain(keys().filter(|key| key.is_table()).map(|key| key.path));
    paths.flat_map(|path| kinds(path).into_iter().map(move |kind| (path, kind)))
}

/// Writes a key of a table with this value, with the keys that its example needs and without those that it excludes.
fn write(job: &mut Table, key: &Key, kind: Option<&str>, example: &str) {
    let rivals = keys_of(key.table(), kind).filter(|other| other.excludes() == Some(key.name()));
    let mut rivals: Vec<&str> = rivals.map(Key::name).chain(key.excludes()).collect();
    let beside = toml::from_str::<Table>(key.beside).unwrap();
    let excluded = |key: &&Key| key.excludes().is_some_and(|other| beside.contains_key(other));
    rivals.extend(
        keys_of(key.table(), kind).filter(excluded).map(Key::name).filter(|name| *name != key.name()),
    );
    let table = table_at(job, key.table(), kind);
    rivals.into_iter().for_each(|name| drop(table.remove(name)));
    table.extend(beside);
    table.insert(if key.name() == "*" { "head" } else { key.name() }.into(), value(example));
}

fn parse(job: &Table) -> Result<Job, String> {
    Job::parse("job.toml", &text(job)).map_err(|error| error.to_string())
}

#[test]
fn every_example_parses_and_bounds_are_kept() {
    for (path, kind) in tables() {
        let job = job_with(path, kind);
        parse(&job).unwrap_or_else(|error| panic!("the shortest job of {path} {kind:?}: {error}"));
        for key in
            keys_of(path, kind).filter(|key| (key.name() != "kind" || kind.is_none()) && !key.is_table())
        {
            let with = |example: &str| {
                let mut job = job.clone();
                if key.kind == Some("bert") && ["classes", "classifier_dropout"].contains(&key.name()) {
                    // An encoder with classes takes labelled ids in place of masked tokens.
                    job["data"] =
                        value(r#"{ kind = "arrays", inputs = "x.npy", labels = "y.npy", dtype = "u16" }"#);
                }
                write(&mut job, key, kind, example);
                parse(&job)
            };
            if let Err(error) = with(key.example) {
                panic!("the example of {}: {error}", key.path);
            }
            if let Presence::Optional(default) = key.presence {
                with(default).unwrap_or_else(|error| panic!("the default of {}: {error}", key.path));
            }
            for wrong in outside(&key.ty) {
                let error = with(&wrong).expect_err(key.path);
                let named = key.path.replace('*', "head");
                assert!(error.contains(&format!("{named}: must be ")), "{named} = {wrong}: {error}");
            }
        }
    }
}

#[test]
fn keys_that_exclude_each_other_are_refused_together() {
    let mut pairs = 0;
    for (path, kind) in tables() {
        for key in keys_of(path, kind) {
            let Some(other) = key.excludes() else { continue };
            let other = keys_of(path, kind).find(|key| key.name() == other).expect(key.path);
            let mut job = job_with(path, kind);
            write(&mut job, other, kind, other.example);
            let example = if key.ty == Type::Table { "{}" } else { key.example };
            table_at(&mut job, path, kind).insert(key.name().into(), value(example));
            let error = parse(&job).expect_err(key.path);
            // The order in the text decides which of the two the error names.
            let why = |key: &Key, other: &Key| {
                format!("{}: it cannot be together with `{}`", key.path, other.name())
            };
            let fine = [why(key, other), why(other, key)].iter().any(|why| error.contains(why));
            assert!(fine, "{} and {}: {error}", key.path, other.path);
            pairs += 1;
        }
    }
    assert!(pairs > 10, "{pairs}");
}

/// A missing required key is an error, unless its alternative is there.
#[test]
fn required_keys_are_missed() {
    for (path, kind) in tables() {
        for key in keys_of(path, kind).filter(|key| key.presence == Presence::Required) {
            let mut job = job_with(path, kind);
            table_at(&mut job, path, kind).remove(key.name()).expect(key.path);
            let error = parse(&job).expect_err(key.path);
            let or = if key.or.is_empty() { String::new() } else { format!("; or write `{}`", key.or) };
            assert!(error.contains("the key is missing; it is ") && error.ends_with(&or), "{error}");
        }
    }
}

/// Values that are just outside of a type's bounds, or of another type.
fn outside(ty: &Type) -> Vec<String> {
    match ty {
        Type::Integer { least, most } => {
            let above = (*most < i128::from(i64::MAX)).then(|| (most + 1).to_string());
            [(least - 1).to_string(), "1.5".into()].into_iter().chain(above).collect()
        }
        Type::Number { least, above, below } => {
            let mut wrong = vec!["-1e-30".into(), "nan".into(), "inf".into(), "\"1\"".into()];
            wrong.extend(above.then(|| format!("{least:?}")));
            wrong.extend(below.map(|below| format!("{below:?}")));
            wrong
        }
        Type::Boolean => vec!["1".into()],
        Type::Text => vec!["true".into()],
        Type::Texts { .. } => vec!["[1]".into(), "[]".into()],
        Type::Integers { least, .. } => {
            vec![(least - 1).to_string(), format!("[{}]", least - 1), "[]".into()]
        }
        Type::Choice(_) => vec!["\"no such thing\"".into()],
        Type::List { of, .. } => vec![format!("[{}]", outside(of)[0])],
        Type::Table | Type::Tables { .. } => Vec::new(),
    }
}

/// The names in backticks after "expected", which serde lists for an unknown name.
fn expected(message: &str) -> BTreeSet<String> {
    let (_, list) = message.split_once("expected").unwrap_or_else(|| panic!("{message}"));
    list.split('`').skip(1).step_by(2).map(str::to_string).collect()
}

fn refusal(job: &Table) -> String {
    let refused = toml::from_str::<JobText>(&text(job)).expect_err("the job has a key that does not exist");
    refused.message().to_string()
}

/// The keys of a table that serde does not list, since they are beside a flattened enum. A missing field here is a compile error.
fn beside_flattened(path: &str) -> Vec<String> {
    match path {
        "data" => {
            let job = parse(&job_with(path, Some("bytes"))).unwrap();
            let DataSpec {
                sampling: _,
                copy: _,
                augment: _,
                masking: _,
                validation_split: _,
                uncounted: _,
                files: _,
            } = job.data;
            ["sampling", "copy", "augment", "masking", "validation_split"].map(str::to_string).to_vec()
        }
        "optimizer" => {
            let job = parse(&job_with(path, Some("sgd"))).unwrap();
            let OptimizerSpec { decay: _, groups: _, optimizer: _ } = &job.model().unwrap().optimizer;
            ["decay", "group"].map(str::to_string).to_vec()
        }
        _ => Vec::new(),
    }
}

#[test]
fn the_table_lists_the_keys_that_serde_accepts() {
    let classes: BTreeSet<String> = ProductClass::ALL.iter().map(|class| class.name().to_string()).collect();
    for (path, kind) in tables() {
        let mut job = job_with(path, kind);
        let any = value("{ digits_a = 1, digits_b = 1 }");
        table_at(&mut job, path, kind).insert("no_such_key".into(), any);
        let listed: BTreeSet<String> = keys_of(path, kind)
            .map(|key| key.name())
            .filter(|name| *name != "kind" || kind.is_none())
            .map(str::to_string)
            .collect();
        let listed = if listed == BTreeSet::from(["*".to_string()]) { classes.clone() } else { listed };
        let mut accepted = expected(&refusal(&job));
        for name in beside_flattened(path) {
            assert!(accepted.insert(name.clone()), "serde lists {name} itself");
        }
        assert_eq!(accepted, listed, "{path} {kind:?}");
    }
}

#[test]
fn the_table_lists_the_choices_that_serde_accepts() {
    let chosen = |key: &Key| match key.ty {
        Type::Choice(choices) => choices.iter().map(|choice| choice.to_string()).collect(),
        _ => BTreeSet::new(),
    };
    for key in keys().filter(|key| matches!(key.ty, Type::Choice(_))) {
        let mut job = job_with(key.table(), key.kind);
        table_at(&mut job, key.table(), key.kind).insert(key.name().into(), value("\"no such thing\""));
        let mut listed = chosen(key);
        if key.path == "data.dtype" {
            // One serde type serves the choices of all kinds of data.
            listed.extend(keys().filter(|other| other.path == key.path).flat_map(chosen));
            assert!(listed.insert("i64".into()), "only labels are i64, and no key says so");
        }
        assert_eq!(expected(&refusal(&job)), listed, "{}", key.path);
    }
}
