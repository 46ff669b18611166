//! The names of a vision transformer's tensors in the files of transformers: `ViTForImageClassification`.

use crate::program::models::released::{Made, Released};

/// The encoder without its classifier. Files of the encoder alone leave the prefix out.
const BASE: &str = "vit.";
/// The convolution over patches.
pub(super) const PATCHES: &str = "embeddings.patch_embeddings.projection";
/// Parts of a block: ours and theirs.
pub(super) const BLOCK: [(&str, &str); 8] = [
    ("norm1", "layernorm_before"),
    ("query", "attention.attention.query"),
    ("key", "attention.attention.key"),
    ("value", "attention.attention.value"),
    ("attention_out", "attention.output.dense"),
    ("norm2", "layernorm_after"),
    ("mlp_in", "intermediate.dense"),
    ("mlp_out", "output.dense"),
];
/// Tensors of other heads, which files of an encoder may have.
const OTHERS: [&str; 3] = ["pooler.dense.weight", "pooler.dense.bias", "embeddings.mask_token"];

/// A state tensor in their dimensions, which may have leading ones.
pub(super) fn same(theirs: &str, ours: &str, shape: &[u32]) -> Released {
    Released::same(theirs, format!("param/{ours}"), shape)
}

/// Gain and bias of a normalisation.
pub(super) fn norm(theirs: &str, ours: &str, channels: u32) -> [Released; 2] {
    let part = |part: &str, of_ours: &str| {
        same(&format!("{theirs}.{part}"), &format!("{ours}.{of_ours}"), &[channels])
    };
    [part("weight", "gain"), part("bias", "bias")]
}

/// The tensors of an encoder, and those of other heads, under the names of files with a classifier and of files without one.
pub(super) fn of_encoder(table: Vec<Released>) -> impl Iterator<Item = Released> {
    let unread = |name: &str| Released { made: Made::Mask, ..Released::same(name, "", &[]) };
    table.into_iter().chain(OTHERS.map(unread)).map(|released| {
        let alone = released.name.clone();
        released.behind(BASE).or(alone)
    })
}
