//! Keys of a job file as data: the rows of the table that `job::reference` collects. The file of a model has the model's keys.

use std::ops::RangeInclusive;

use serde_json::Value;

/// The type of a key's value, with its bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Type {
    /// An integer from `least` to `most`.
    Integer {
        /// The least value.
        least: i128,
        /// The greatest value.
        most: i128,
    },
    /// A finite number; it is rounded to binary32 and compared then.
    Number {
        /// The number is at least this, or above it if `above`.
        least: f32,
        /// True if `least` itself is not allowed.
        above: bool,
        /// The number is below this.
        below: Option<f32>,
    },
    /// `true` or `false`.
    Boolean,
    /// Any text.
    Text,
    /// A text, or a list of texts.
    Texts {
        /// The most texts.
        most: usize,
    },
    /// An integer from `least` to `most`, or a list of them.
    Integers {
        /// The least value.
        least: i128,
        /// The greatest value.
        most: i128,
        /// The most elements of a list.
        elements: usize,
    },
    /// One of these texts.
    Choice(&'static [&'static str]),
    /// A list whose elements are all of one type.
    List {
        /// The type of an element.
        of: &'static Type,
        /// The fewest elements.
        least: usize,
        /// The most elements.
        most: usize,
    },
    /// A table; its keys have entries of their own.
    Table,
    /// A list of tables; the keys of each have entries of their own.
    Tables {
        /// The most tables.
        most: usize,
    },
}

/// The presence of a key: it must be written, or it has a meaning when it is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The key must be written, if its table is.
    Required,
    /// The key may be left out; then this value holds, as TOML.
    Optional(&'static str),
    /// The key may be left out; this text says what that means.
    Absent(&'static str),
}

/// A key of a job file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Key {
    /// The dotted path; `*` stands for the name of a product class ([`super::products::ProductClass::name`]).
    pub path: &'static str,
    /// The `kind` of the key's table that has it; `None` = every kind, or a table without kinds.
    pub kind: Option<&'static str>,
    /// Type and bounds.
    pub ty: Type,
    /// The presence of the key: whether it must be written, and what its absence means.
    pub presence: Presence,
    /// The key of the same table that may replace this one, and must not be written beside it; empty if there is none.
    pub or: &'static str,
    /// The key of the same table that must not be written beside it; empty if there is none, or `or` names it.
    pub not_with: &'static str,
    /// Keys of the same table without which the example is wrong, as lines of TOML; empty if it needs none.
    pub beside: &'static str,
    /// The unit of the value; empty if it has none.
    pub unit: &'static str,
    /// Bounds that the type does not say; empty if there are none.
    pub rule: &'static str,
    /// The purpose of the key.
    pub meaning: &'static str,
    /// A value, as TOML. The examples of all required keys of a table fit each other.
    pub example: &'static str,
}

impl Key {
    /// The path of the table that has the key; empty for the top of the file.
    pub fn table(&self) -> &'static str {
        self.path.rsplit_once('.').map_or("", |(table, _)| table)
    }

    /// The last part of the path.
    pub fn name(&self) -> &'static str {
        self.path.rsplit_once('.').map_or(self.path, |(_, name)| name)
    }

    /// True if the value has keys of its own.
    pub fn is_table(&self) -> bool {
        matches!(self.ty, Type::Table | Type::Tables { .. })
    }

    /// The key of the same table that must not be written beside this one.
    pub fn excludes(&self) -> Option<&'static str> {
        [self.or, self.not_with].into_iter().find(|name| !name.is_empty())
    }

    /// This key, of the tables of one kind only.
    pub const fn kind(self, kind: &'static str) -> Key {
        Key { kind: Some(kind), ..self }
    }

    /// This key, where either this key or the named one must be present.
    pub const fn or(self, or: &'static str) -> Key {
        Key { or, ..self }
    }

    /// This key, which excludes the named one.
    pub const fn not_with(self, not_with: &'static str) -> Key {
        Key { not_with, ..self }
    }

    /// This key, with lines that its example needs in the same table.
    pub const fn beside(self, beside: &'static str) -> Key {
        Key { beside, ..self }
    }

    /// This key, with the unit of its value.
    pub const fn unit(self, unit: &'static str) -> Key {
        Key { unit, ..self }
    }

    /// This key, with a bound that its type does not say.
    pub const fn rule(self, rule: &'static str) -> Key {
        Key { rule, ..self }
    }
}

/// True if a pattern, in which `*` stands for any characters, matches the name.
pub fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or("");
    let Some(last) = parts.next_back() else { return pattern == name };
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// A key with these columns, and nothing in the others.
pub const fn key(
    path: &'static str,
    ty: Type,
    presence: Presence,
    example: &'static str,
    meaning: &'static str,
) -> Key {
    Key {
        path,
        kind: None,
        ty,
        presence,
        or: "",
        not_with: "",
        beside: "",
        unit: "",
        rule: "",
        meaning,
        example,
    }
}

/// An integer from `least` to `most`.
pub const fn integer(least: i128, most: i128) -> Type {
    Type::Integer { least, most }
}

/// Any number of 32 bits.
pub const U32_MAX: i128 = u32::MAX as i128;
/// 0 and above.
pub const NOT_NEGATIVE: Type = Type::Number { least: 0.0, above: false, below: None };
/// A probability that is not 1, or a rate of decay.
pub const BELOW_ONE: Type = Type::Number { least: 0.0, above: false, below: Some(1.0) };

impl std::fmt::Display for Type {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match self {
            Type::Integer { .. } => "an integer",
            Type::Number { .. } => "a number",
            Type::Boolean => "true or false",
            Type::Text => "a text",
            Type::Texts { .. } => "a text, or a list of texts",
            Type::Integers { .. } => "an integer, or a list of integers",
            Type::Choice(_) => "one of",
            Type::List { .. } => "a list",
            Type::Table => "a table",
            Type::Tables { .. } => "a list of tables",
        };
        f.write_str(name)?;
        let bounds = self.bounds();
        match self {
            _ if bounds.is_empty() => Ok(()),
            Type::Choice(_) => write!(f, " {bounds}"),
            _ => write!(f, ", {bounds}"),
        }
    }
}

impl Type {
    /// The error in a value that is not of this type or out of bounds, if there is one. Texts are not checked: serde reads
    /// choices.
    pub(crate) fn error(&self, value: &Value) -> Option<String> {
        let fits = match (self, self.elements(), value) {
            (Type::Integer { .. }, _, Value::Number(n)) => n.as_i128().is_some_and(|n| self.has_integer(n)),
            (Type::Number { .. }, ..) => value.as_f64().is_some_and(|x| self.has_number(x)),
            (Type::Integers { .. }, Some((of, _)), Value::Number(_)) => return of.error(value),
            (_, Some((of, lens)), Value::Array(all)) if lens.contains(&all.len()) => {
                return all.iter().find_map(|element| of.error(element));
            }
            (_, _, element) => !element.is_array(),
        };
        let finite = if matches!(self, Type::Number { .. }) { "a finite number " } else { "" };
        let is =
            || value.as_array().map_or_else(|| value.to_string(), |all| format!("{} elements", all.len()));
        (!fits).then(|| format!("must be {finite}{}, is {}", self.bounds(), is()))
    }

    /// True if an integer is within the bounds.
    #[doc(hidden)] // for the layers above
    pub fn has_integer(&self, n: i128) -> bool {
        matches!(self, Type::Integer { least, most } if (*least..=*most).contains(&n))
    }

    /// True if a number is within the bounds, compared as binary32, in which the program computes.
    #[doc(hidden)] // for the layers above
    pub fn has_number(&self, x: f64) -> bool {
        let Type::Number { least, above, below } = *self else { return false };
        let x = x as f32;
        let enough = if above { x > least } else { x >= least };
        x.is_finite() && enough && below.is_none_or(|below| x < below)
    }

    /// The type of a list's elements, and the range of their number; `None` where no list is allowed.
    #[doc(hidden)] // for the layers above
    pub fn elements(&self) -> Option<(Type, RangeInclusive<usize>)> {
        Some(match *self {
            Type::List { of, least, most } => (*of, least..=most),
            Type::Texts { most } => (Type::Text, 1..=most),
            Type::Tables { most } => (Type::Table, 1..=most),
            Type::Integers { least, most, elements } => (integer(least, most), 1..=elements),
            _ => return None,
        })
    }

    /// The bounds in words; empty if there are none.
    #[doc(hidden)] // for the layers above
    pub fn bounds(&self) -> String {
        match self {
            Type::Integer { least, most } if *most >= U32_MAX => format!("at least {least}"),
            Type::Integer { least, most } => format!("{least} to {most}"),
            Type::Number { least, above, below } => {
                let least = format!("{} {least}", if *above { "above" } else { "at least" });
                below.map_or(least.clone(), |below| format!("{least} and below {below}"))
            }
            Type::Choice(choices) => {
                choices.iter().map(|choice| format!("\"{choice}\"")).collect::<Vec<_>>().join(", ")
            }
            Type::List { of, least, most } => format!("{least} to {most} elements, each {of}"),
            Type::Texts { most } | Type::Tables { most } => format!("1 to {most}"),
            Type::Integers { least, most, elements } => {
                format!("{least} to {most}, and a list has 1 to {elements} elements")
            }
            Type::Boolean | Type::Text | Type::Table => String::new(),
        }
    }
}
