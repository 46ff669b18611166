//! The text that a decoder reads: whole samples, or new positions of sequences whose earlier ones are in a cache.

use crate::program::builder::Builder;
use crate::program::expr::BodyWriter;
use crate::program::graph::TensorId;
use crate::program::operators::{
    Cache, Dropout, Places, Rotary, Seen, attention, cached_attention, document_starts, position_embedding,
    repeat_heads, rotary_tables, rotary_tables_at, token_embedding,
};

/// The text of a forward pass.
pub(in crate::program) enum Text {
    /// Whole samples, each of as many positions as the context has.
    Whole {
        /// Samples (B).
        samples: u32,
        /// The positions that each position attends to.
        seen: Seen,
    },
    /// New positions of sequences.
    Cached {
        /// Their places.
        places: Places,
        /// The caches of all layers. The pass takes each from the front, and appends it to `filled` with the new rows.
        caches: std::vec::IntoIter<Cache>,
        /// The caches of the layers so far, with the new rows.
        filled: Vec<Cache>,
    },
}

impl Text {
    /// Whole samples of these tokens. The token `end`, if there is one, ends a document, and no position sees another document.
    pub fn whole(b: &mut Builder, samples: u32, tokens: TensorId, end: Option<u32>) -> Text {
        let starts = end.map(|end| b.scoped("documents", |b| document_starts(b, tokens, samples, end)));
        Text::Whole { samples, seen: starts.map_or(Seen::Earlier, |starts| Seen::Document { starts }) }
    }

    /// Samples, or sequences.
    pub fn samples(&self) -> u32 {
        match self {
            Text::Whole { samples, .. } => *samples,
            Text::Cached { places, .. } => places.sequences,
        }
    }

    /// x [N, C] + the row of the table [T, C] of each row's position.
    pub fn add_positions(&self, b: &mut Builder, x: TensorId, table: TensorId) -> TensorId {
        match self {
            Text::Whole { .. } => position_embedding(b, x, table),
            Text::Cached { places, .. } => {
                let rows = token_embedding(b, table, places.positions);
                b.zip("add.v1", x, rows, BodyWriter::add)
            }
        }
    }

    /// The rotary tables of all rows, for heads of 2 `pairs` channels.
    pub fn rotary(
        &self,
        b: &mut Builder,
        [context, pairs]: [u32; 2],
        turns: impl Iterator<Item = u64>,
    ) -> Rotary {
        match self {
            Text::Whole { samples, .. } => rotary_tables(b, [*samples, context, pairs], turns),
            Text::Cached { places, .. } => rotary_tables_at(b, places.positions, [context, pairs], turns),
        }
    }

    /// The next layer's attention of q [N, H D] over k and v [N, K D]; `heads` are H and K.
    pub fn attention(
        &mut self,
        b: &mut Builder,
        [q, k, v]: [TensorId; 3],
        [heads, own]: [u32; 2],
        drop: Option<(Dropout, u32)>,
    ) -> TensorId {
        match self {
            Text::Whole { samples, seen } => {
                let [k, v] = [("key_heads", k), ("value_heads", v)]
                    .map(|(name, x)| b.scoped(name, |b| repeat_heads(b, x, own, heads / own)));
                b.scoped("attention", |b| attention(b, *seen, [q, k, v], [*samples, heads], drop))
            }
            Text::Cached { places, caches, filled } => {
                assert!(drop.is_none(), "a cache holds no dropped positions");
                let cache = caches.next().expect("there is a cache for each layer");
                let (output, cache) =
                    b.scoped("attention", |b| cached_attention(b, *places, [q, k, v], [heads, own], cache));
                filled.push(cache);
                output
            }
        }
    }
}

/// The error in the token that ends a document, if there is one.
pub(super) fn document_error(end: Option<u32>, vocabulary: u32) -> Option<(&'static str, String)> {
    let why = format!("must be below vocabulary ({vocabulary})");
    (end? >= vocabulary).then_some(("document_end", why))
}
