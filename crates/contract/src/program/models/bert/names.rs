//! The names and shapes of an encoder's tensors in the files of transformers: BERT and DistilBERT, with the head that finds masked
//! tokens or with a classifier.

use crate::program::models::released::{Made, Part, Released};

/// The names that a form's tensors have in transformers.
pub(super) struct Names {
    /// The encoder without its head.
    pub(super) base: &'static str,
    /// The list of blocks.
    pub(super) blocks: &'static str,
    /// Parts of a block: ours and theirs.
    pub(super) block: [(&'static str, &'static str); 8],
    /// The layers of a classifier: before its dropout and behind it.
    classifier: [&'static str; 2],
    transform: &'static str,
    transform_norm: &'static str,
    head_bias: &'static str,
    /// Copies that some files have: theirs, the original here, and its number of dimensions.
    copies: &'static [(&'static str, &'static str, usize)],
    /// The numbers of positions, which this model lacks.
    pub(super) positions: &'static str,
    /// Layers of other heads that files of an encoder for masked tokens have.
    others: &'static [&'static str],
}

pub(super) const BERT: Names = Names {
    base: "bert",
    blocks: "bert.encoder.layer",
    block: [
        ("query", "attention.self.query"),
        ("key", "attention.self.key"),
        ("value", "attention.self.value"),
        ("attention_out", "attention.output.dense"),
        ("norm1", "attention.output.LayerNorm"),
        ("mlp_in", "intermediate.dense"),
        ("mlp_out", "output.dense"),
        ("norm2", "output.LayerNorm"),
    ],
    classifier: ["bert.pooler.dense", "classifier"],
    transform: "cls.predictions.transform.dense",
    transform_norm: "cls.predictions.transform.LayerNorm",
    head_bias: "cls.predictions.bias",
    copies: &[
        ("cls.predictions.decoder.weight", "token_embedding", 2),
        ("cls.predictions.decoder.bias", "head.bias", 1),
    ],
    positions: "bert.embeddings.position_ids",
    others: &[
        "bert.pooler.dense.weight",
        "bert.pooler.dense.bias",
        "cls.seq_relationship.weight",
        "cls.seq_relationship.bias",
    ],
};

pub(super) const DISTILBERT: Names = Names {
    base: "distilbert",
    blocks: "distilbert.transformer.layer",
    block: [
        ("query", "attention.q_lin"),
        ("key", "attention.k_lin"),
        ("value", "attention.v_lin"),
        ("attention_out", "attention.out_lin"),
        ("norm1", "sa_layer_norm"),
        ("mlp_in", "ffn.lin1"),
        ("mlp_out", "ffn.lin2"),
        ("norm2", "output_layer_norm"),
    ],
    classifier: ["pre_classifier", "classifier"],
    transform: "vocab_transform",
    transform_norm: "vocab_layer_norm",
    head_bias: "vocab_projector.bias",
    copies: &[("vocab_projector.weight", "token_embedding", 2)],
    positions: "distilbert.embeddings.position_ids",
    others: &[],
};

/// The table of released tensors, as it is written.
pub(super) struct Theirs(pub(super) Vec<Released>);

impl Theirs {
    pub(super) fn matrix(&mut self, theirs: &str, ours: &str, shape: [u32; 2]) {
        self.0.push(Released::same(format!("{theirs}.weight"), format!("param/{ours}"), &shape));
    }

    pub(super) fn linear(&mut self, theirs: &str, ours: &str, [outputs, inputs]: [u32; 2]) {
        self.0.extend(Released::linear(theirs, ours, outputs, inputs));
    }

    /// Gain and bias of a normalisation, which old files call gamma and beta.
    pub(super) fn norm(&mut self, theirs: &str, ours: &str, channels: u32) {
        for (new, old, part) in [("weight", "gamma", "gain"), ("bias", "beta", "bias")] {
            let norm = Released::same(format!("{theirs}.{new}"), format!("param/{ours}.{part}"), &[channels]);
            self.0.push(norm.or(format!("{theirs}.{old}")));
        }
    }

    /// A tensor that files may have and the model lacks.
    pub(super) fn unread(&mut self, name: &str) {
        self.0.push(Released { made: Made::Mask, ..Released::same(name, "", &[]) });
    }
}

impl Names {
    /// The head that finds masked tokens, of V tokens and C channels.
    pub(super) fn for_masked(&self, table: &mut Theirs, [v, c]: [u32; 2]) {
        table.linear(self.transform, "transform", [c, c]);
        table.norm(self.transform_norm, "transform_norm", c);
        table.0.push(Released::same(self.head_bias, "param/head.bias", &[v]));
        for (name, ours, shape) in self.copies {
            let shape = if *shape == 1 { vec![v] } else { vec![v, c] };
            let len = shape.iter().fold(1, |len: u32, &d| len.saturating_mul(d));
            let made = Made::CopyOf(vec![Part::whole(format!("param/{ours}"), len, 0)]);
            table.0.push(Released { made, ..Released::same(*name, "", &shape) });
        }
        self.others.iter().for_each(|name| table.unread(name));
    }

    /// The classifier, and the layers of other heads that its files may have.
    pub(super) fn for_classes(&self, table: &mut Theirs, [classes, c]: [u32; 2]) {
        let [pooler, classifier] = self.classifier;
        table.linear(pooler, "pooler", [c, c]);
        table.linear(classifier, "classifier", [classes, c]);
        for part in ["weight", "bias"] {
            table.unread(&format!("{}.{part}", self.transform));
        }
        for part in ["weight", "gamma", "bias", "beta"] {
            table.unread(&format!("{}.{part}", self.transform_norm));
        }
        table.unread(self.head_bias);
        self.copies.iter().for_each(|(name, ..)| table.unread(name));
        let others = self.others.iter().filter(|name| !name.starts_with(pooler));
        others.for_each(|name| table.unread(name));
    }
}
