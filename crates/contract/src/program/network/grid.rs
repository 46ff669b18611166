//! The key `grid` of network files: the grid to which each product is rounded.

use std::fmt;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};

/// The grid to which each product is rounded.
#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GridText {
    pub(super) bits: u8,
    pub(super) floor: u8,
}

/// A grid that is given, as an object by name: a list or `null` in its place is an error.
pub(super) fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<GridText>, D::Error> {
    struct Object;
    impl<'de> Visitor<'de> for Object {
        type Value = Option<GridText>;

        fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
            f.write_str("grid as {\"bits\": 16, \"floor\": 14}, or no grid for exact products")
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Option<GridText>, A::Error> {
            GridText::deserialize(MapAccessDeserializer::new(map)).map(Some)
        }
    }
    deserializer.deserialize_any(Object)
}
