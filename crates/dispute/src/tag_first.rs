//! Reads an enum whose kind is the first of an object's fields, as the one encoding has it.
//!
//! Serde's own reader of such a type first copies all fields into values that take many times their bytes.

/// The error about an object that begins with another field than the one that has its kind.
pub(crate) fn other_first(found: Option<String>, due: &str) -> String {
    match found {
        None => format!("the object is empty, and its first field has to be {due:?}"),
        Some(found) => {
            let found: String = found.chars().take(40).collect();
            format!("the first field is {found:?}, and {due:?} is due")
        }
    }
}

/// Makes the reader of an enum: the field that has the kind, and the kinds as files write them, with their fields or `(_)`.
macro_rules! tag_first {
    ($type:ident, $tag:literal, { $($kind:literal => $variant:ident $body:tt,)* }) => {
        const _: () = {
            use std::fmt::{Formatter, Result as Written};

            use serde::de::value::MapAccessDeserializer;
            use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

            struct Tagged;

            impl<'de> Visitor<'de> for Tagged {
                type Value = $type;

                fn expecting(&self, f: &mut Formatter) -> Written {
                    f.write_str(concat!("an object that begins with \"", $tag, "\""))
                }

                fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<$type, A::Error> {
                    let first = map.next_key::<String>()?;
                    if first.as_deref() != Some($tag) {
                        return Err(A::Error::custom(crate::tag_first::other_first(first, $tag)));
                    }
                    let kind = map.next_value::<String>()?;
                    let fields = MapAccessDeserializer::new(map);
                    Ok(match kind.as_str() {
                        $($kind => tag_first!(@fields $type, $variant, fields, $body),)*
                        other => return Err(A::Error::unknown_variant(other, &[$($kind),*])),
                    })
                }
            }

            impl<'de> Deserialize<'de> for $type {
                fn deserialize<D: Deserializer<'de>>(from: D) -> Result<$type, D::Error> {
                    from.deserialize_map(Tagged)
                }
            }
        };
    };
    (@fields $type:ident, $variant:ident, $from:ident, (_)) => {
        $type::$variant(Deserialize::deserialize($from)?)
    };
    (@fields $type:ident, $variant:ident, $from:ident, { $($(#[$meta:meta])* $field:ident: $of:ty),* $(,)? }) => {{
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Fields {
            $($(#[$meta])* $field: $of),*
        }
        let Fields { $($field),* } = Deserialize::deserialize($from)?;
        $type::$variant { $($field),* }
    }};
}

pub(crate) use tag_first;
