//! The text that a decoder reads: whole samples, or new positions of sequences whose earlier ones are in a cache.

use crate::program::builder::Builder;
use crate::program::expr::BodyWriter;
use crate::program::graph::TensorId;
use crate::program::operators::{
    Cache, Dropout, Places, Rotary, Seen, attention, cached_attention, document_starts, position_embedding,
    repeat_heads, rotary_tables, rotary_tables_at, token_embedding, window_starts,
};

/// The text of a forward pass.
pub(in crate::program) enum Text {
    /// Whole samples, each of as many positions as the context has.
    Whole {
        /// Samples (B).
        samples: u32,
        /// The positions that each position attends to, in layers without a window and in layers with the model's.
        seen: [Seen; 2],
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
    /// Layers with a window see that many of the last positions.
    pub fn whole(
        b: &mut Builder,
        samples: u32,
        tokens: TensorId,
        end: Option<u32>,
        window: Option<u32>,
    ) -> Text {
        let t = b.tensor(tokens).len() as u32 / samples;
        let documents = end.map(|end| b.scoped("documents", |b| document_starts(b, tokens, samples, end)));
        let windows = window
            .map(|window| b.scoped("windows", |b| window_starts(b, documents, [samples, t], window)))
            .or(documents);
        let seen = |starts: Option<TensorId>| starts.map_or(Seen::Earlier, |starts| Seen::Since { starts });
        Text::Whole { samples, seen: [documents, windows].map(seen) }
    }

    /// Samples, or sequences.
    pub fn samples(&self) -> u32 {
        match self {
            Text::Whole { samples, .. } => *samples,
            Text::Cached { places, .. } => places.sequences,
        }
    }

    /// Places of a sequence in a cache (S); 0 of whole samples, which have no caches.
    pub fn places(&self) -> u32 {
        match self {
            Text::Whole { .. } => 0,
            Text::Cached { places, .. } => places.all(),
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

    /// The next layer's attention of q [N, H D] over k and v [N, K D]; `heads` are H and K. The `window` is the model's, in the
    /// layers that have it.
    pub fn attention(
        &mut self,
        b: &mut Builder,
        [q, k, v]: [TensorId; 3],
        [heads, own]: [u32; 2],
        window: Option<u32>,
        drop: Option<(Dropout, u32)>,
    ) -> TensorId {
        match self {
            Text::Whole { samples, seen } => {
                let [k, v] = [("key_heads", k), ("value_heads", v)]
                    .map(|(name, x)| b.scoped(name, |b| repeat_heads(b, x, own, heads / own)));
                let seen = seen[usize::from(window.is_some())];
                b.scoped("attention", |b| attention(b, seen, [q, k, v], [*samples, heads], drop))
            }
            Text::Cached { places, caches, filled } => {
                assert!(drop.is_none(), "a cache holds no dropped positions");
                let cache = caches.next().expect("there is a cache for each layer");
                let (output, cache) = b.scoped("attention", |b| {
                    cached_attention(b, *places, [q, k, v], [heads, own], window, cache)
                });
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

/// The error in a window of a decoder of so many positions and layers, or in the layers without it, if there is one.
pub(super) fn window_error(
    window: Option<u32>,
    full_layers: &[u32],
    [context, layers]: [u32; 2],
) -> Option<(&'static str, String)> {
    let wrong = |why: String| Some(("full_layers", why));
    match window {
        None if !full_layers.is_empty() => {
            wrong("are those without a window, but sliding_window is missing".into())
        }
        Some(window) if window >= context => {
            let why =
                format!("must be below context ({context}): a window that holds a sample hides nothing");
            Some(("sliding_window", why))
        }
        _ if !full_layers.is_sorted_by(|a, b| a < b) => wrong("must be in order, each once".into()),
        _ if full_layers.last().is_some_and(|&last| last >= layers) => {
            wrong(format!("are counted from 0, and must be below layers ({layers})"))
        }
        Some(_) if full_layers.len() == layers as usize => {
            wrong("must leave a layer that has sliding_window, or neither key is there".into())
        }
        _ => None,
    }
}
