//! Checks that a job's text has the keys of [`super::reference`], each with a value of its type. Reports the first error and its
//! position.
//!
//! serde would refuse the same texts, but it loses the positions inside of tables that have a `kind`.

use toml::de::{DeTable, DeValue};

use super::reference::{Key, Presence, Type, keys_of, kinds};
use super::suggest;
use tiebreak_contract::program::products::ProductClass;

/// An error in a job's text, with its position.
pub(crate) struct Wrong {
    /// The byte of the text where the error is.
    pub at: usize,
    /// The dotted key.
    pub key: String,
    /// The error, in words.
    pub why: String,
}

/// Finds the first key that is unknown, missing, or of a wrong type or value. `None` also if the text is no TOML, which is not
/// checked.
pub(crate) fn check(text: &str) -> Option<Wrong> {
    check_table(DeTable::parse(text).ok()?.get_ref())
}

/// [`check`] of a parsed text.
pub(crate) fn check_table(root: &DeTable<'_>) -> Option<Wrong> {
    Place { table: "", path: String::new(), at: 0 }.check(root).err()
}

/// A table of the job.
struct Place<'a> {
    /// The path in the reference.
    table: &'a str,
    /// The path in the text, with a class's name in place of `*`.
    path: String,
    /// The byte where the table's name is.
    at: usize,
}

impl Place<'_> {
    fn wrong(&self, at: usize, name: &str, why: impl Into<String>) -> Wrong {
        Wrong { at, key: self.child(name), why: why.into() }
    }

    fn child(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_string() } else { format!("{}.{name}", self.path) }
    }

    fn check(&self, table: &DeTable<'_>) -> Result<(), Wrong> {
        let kind = self.kind(table)?;
        let mut written: Vec<_> = table.iter().collect();
        written.sort_by_key(|(name, _)| name.span().start);
        for (name, value) in written {
            let (at, name) = (name.span().start, name.get_ref().as_ref());
            let Some(key) = self.find(kind, name) else {
                return Err(self.wrong(at, name, self.unknown(kind, name)));
            };
            if let Some(other) = key.excludes()
                && has(table, other)
            {
                let why = format!("it cannot be together with `{other}`; leave one of them out");
                return Err(self.wrong(at, name, why));
            }
            fits(&key.ty, value.get_ref()).map_err(|why| self.wrong(at, name, why))?;
            let inside = |table, at| Place { table: key.path, path: self.child(name), at }.check(table);
            match value.get_ref() {
                DeValue::Table(table) => inside(table, at)?,
                DeValue::Array(all) => all.iter().try_for_each(|each| match each.get_ref() {
                    DeValue::Table(table) => inside(table, each.span().start),
                    _ => Ok(()),
                })?,
                _ => {}
            }
        }
        let missing = keys_of(self.table, kind)
            .find(|key| key.presence == Presence::Required && !has(table, key.name()) && !has(table, key.or));
        missing.map_or(Ok(()), |key| Err(self.missing(key)))
    }

    /// The table's kind, if its keys depend on one.
    fn kind<'t>(&self, table: &'t DeTable<'_>) -> Result<Option<&'t str>, Wrong> {
        let Some((key, _)) = kinds(self.table) else { return Ok(None) };
        let Some((name, value)) = table.get_key_value("kind") else { return Err(self.missing(key)) };
        fits(&key.ty, value.get_ref()).map_err(|why| self.wrong(name.span().start, "kind", why))?;
        Ok(value.get_ref().as_str())
    }

    fn find(&self, kind: Option<&str>, name: &str) -> Option<&'static Key> {
        let class = ProductClass::ALL.iter().any(|class| class.name() == name);
        keys_of(self.table, kind).find(|key| key.name() == name || (key.name() == "*" && class))
    }

    fn missing(&self, key: &Key) -> Wrong {
        let or = if key.or.is_empty() { String::new() } else { format!("; or write `{}`", key.or) };
        self.wrong(self.at, key.name(), format!("the key is missing; it is {}{or}", key.ty))
    }

    fn unknown(&self, kind: Option<&str>, name: &str) -> String {
        let classes = ProductClass::ALL.map(ProductClass::name);
        let mut names: Vec<&str> = keys_of(self.table, kind).map(|key| key.name()).collect();
        let meant = if names == ["*"] {
            names = classes.to_vec();
            suggest::nearest(name, classes.into_iter()).map(str::to_string)
        } else {
            suggest::key(self.table, kind, name)
        };
        match meant {
            Some(meant) => format!("there is no such key; did you mean `{meant}`?"),
            None => format!("there is no such key; here are {}", names.join(", ")),
        }
    }
}

fn has(table: &DeTable<'_>, name: &str) -> bool {
    table.iter().any(|(key, _)| key.get_ref() == name)
}

fn name_of(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// Checks that a value is of this type; the error says why it is not.
fn fits(ty: &Type, value: &DeValue<'_>) -> Result<(), String> {
    let bounded = |fine: bool, is: &str| {
        if fine { Ok(()) } else { Err(format!("must be {}, is {is}", ty.bounds())) }
    };
    match (ty, ty.elements(), value) {
        (Type::Boolean, _, DeValue::Boolean(_))
        | (Type::Text | Type::Texts { .. }, _, DeValue::String(_))
        | (Type::Table, _, DeValue::Table(_)) => Ok(()),
        (Type::Integer { .. }, _, DeValue::Integer(n)) => {
            let number = i128::from_str_radix(n.as_str(), n.radix());
            bounded(number.is_ok_and(|n| ty.has_integer(n)), &n.to_string())
        }
        (Type::Number { .. }, _, DeValue::Integer(n)) => {
            let number = i128::from_str_radix(n.as_str(), n.radix()).map_or(f64::NAN, |n| n as f64);
            bounded(ty.has_number(number), &n.to_string())
        }
        (Type::Number { .. }, _, DeValue::Float(x)) => {
            bounded(ty.has_number(x.as_str().parse().unwrap_or(f64::NAN)), x.as_str())
        }
        (Type::Choice(choices), _, DeValue::String(text)) => {
            if choices.contains(&text.as_ref()) {
                return Ok(());
            }
            let meant = suggest::nearest(text, choices.iter().copied());
            let meant = meant.map_or(String::new(), |meant| format!("; did you mean \"{meant}\"?"));
            Err(format!("must be {ty}, is \"{}\"{meant}", text.chars().take(40).collect::<String>()))
        }
        (Type::Integers { .. }, Some((of, _)), DeValue::Integer(_)) => fits(&of, value),
        (_, Some((of, lens)), DeValue::Array(all)) => {
            let what = match ty {
                Type::Texts { .. } => "texts",
                Type::Tables { .. } => "tables",
                _ => "elements",
            };
            bounded(lens.contains(&all.len()), &format!("{} {what}", all.len()))?;
            all.iter().try_for_each(|element| fits(&of, element.get_ref()))
        }
        _ => Err(format!("must be {ty}, is {}", name_of(value))),
    }
}
