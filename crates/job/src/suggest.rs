//! Suggestions for a key or a value that does not exist.

use super::reference::{keys, keys_of};

/// Names of keys in other programs, and the keys' names here. The first key that the job can have is suggested.
const SYNONYMS: &[(&str, &str)] = &[
    ("lr", "schedule.peak"),
    ("learning_rate", "schedule.peak"),
    ("max_lr", "schedule.peak"),
    ("min_lr", "schedule.floor"),
    ("warmup_steps", "schedule.warmup"),
    ("batch_size", "batch.micro_batch"),
    ("micro_batch_size", "batch.micro_batch"),
    ("accumulation_steps", "batch.micro_batches"),
    ("gradient_accumulation_steps", "batch.micro_batches"),
    ("epochs", "steps"),
    ("max_steps", "steps"),
    ("iterations", "steps"),
    ("hidden", "model.width"),
    ("hidden_size", "model.width"),
    ("hidden_size", "model.hidden"),
    ("d_model", "model.width"),
    ("n_embd", "model.width"),
    ("channels", "model.stages"),
    ("channels", "model.width"),
    ("layers", "model.hidden"),
    ("layers", "model.blocks"),
    ("depth", "model.layers"),
    ("depth", "model.blocks"),
    ("n_layer", "model.layers"),
    ("num_layers", "model.layers"),
    ("n_head", "model.heads"),
    ("num_heads", "model.heads"),
    ("block_size", "model.context"),
    ("sequence_length", "model.context"),
    ("seq_len", "model.context"),
    ("vocab", "model.vocabulary"),
    ("vocab_size", "model.vocabulary"),
    ("activation", "model.gelu"),
    ("num_classes", "model.classes"),
    ("tie_weights", "model.tied"),
    ("r", "model.lora.rank"),
    ("lora_alpha", "model.lora.alpha"),
    ("lora_dropout", "model.lora.dropout"),
    ("target_modules", "model.lora.targets"),
    ("label_smoothing", "loss.smoothing"),
    ("ignore_index", "loss.ignore"),
    ("grad_clip", "clip_norm"),
    ("max_grad_norm", "clip_norm"),
    ("wd", "optimizer.weight_decay"),
    ("eps", "optimizer.epsilon"),
    ("random_seed", "seed"),
    ("precision", "rounding.bits"),
    ("eval_every", "evaluation.every"),
    ("eval_interval", "evaluation.every"),
    ("save_every", "checkpoint.every"),
    ("save_steps", "checkpoint.every"),
    ("file", "data.path"),
    ("file", "data.images"),
    ("file", "data.inputs"),
    ("files", "data.paths"),
    ("files", "data.images"),
    ("files", "data.inputs"),
    ("shuffle", "data.sampling"),
    ("split", "data.validation_split"),
    ("validation", "data.validation_split"),
    ("val_split", "data.validation_split"),
    ("test_split", "data.validation_split"),
    ("replacement", "data.sampling"),
    ("with_replacement", "data.sampling"),
    ("targets", "data.labels"),
    ("pretrained", "init.weights"),
    ("pretrained_model", "init.weights"),
    ("checkpoint", "init.weights"),
    ("load_from", "init.weights"),
    ("resume", "init.run"),
    ("resume_from", "init.run"),
    ("freeze", "frozen"),
    ("fresh", "init.reinitialize"),
    ("new", "init.reinitialize"),
    ("reset", "init.reinitialize"),
    ("reinit", "init.reinitialize"),
    ("ignore_mismatched_sizes", "init.reinitialize"),
    ("mean", "model.image_mean"),
    ("std", "model.image_std"),
    ("do_normalize", "model.normalize"),
];

/// Longer names are compared with nothing.
const NAME_MAX: usize = 64;

/// The key that `name` in a table (its path in [`super::reference`]) of this kind may stand for: a name in the same table, or else a dotted path.
pub(crate) fn key(table: &str, kind: Option<&str>, name: &str) -> Option<String> {
    let here = |path: &str| {
        let mut keys = keys_of(table, kind);
        keys.find(|key| key.path == path).map(|key| key.name().to_string())
    };
    let elsewhere = |path: &str| {
        let found = keys().find(|key| key.path == path && key.table() != table);
        found.map(|key| key.path.to_string())
    };
    let known = SYNONYMS.iter().filter(|(other, _)| *other == name);
    // A name that is a key at the top means that key, except in the table of a synonym.
    let at_top = keys().any(|key| key.path == name);
    let known = known.map(|(_, path)| here(path).or_else(|| elsewhere(path).filter(|_| !at_top)));
    let same_name = || {
        let mut keys = keys().filter(|key| key.name() == name && !key.path.contains('*'));
        keys.find_map(|key| elsewhere(key.path))
    };
    known
        .flatten()
        .next()
        .or_else(|| nearest(name, keys_of(table, kind).map(|key| key.name())).map(str::to_string))
        .or_else(same_name)
}

/// The candidate that is nearest to `name` by few edits: at most one edit for every three letters.
pub(crate) fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > NAME_MAX {
        return None;
    }
    let most = name.chars().count().div_ceil(3);
    let distances = candidates.map(|candidate| (distance(name, candidate), candidate));
    distances.filter(|(distance, _)| *distance <= most).min_by_key(|(distance, _)| *distance).map(|(_, c)| c)
}

/// The number of letters to be inserted, deleted, replaced, or swapped with their neighbour (Damerau 1964, each letter edited
/// once).
fn distance(a: &str, b: &str) -> usize {
    let [a, b]: [Vec<char>; 2] = [a, b].map(|text| text.chars().collect());
    // rows[i][j]: the distance from the first i letters of a to the first j letters of b.
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = match (i, j) {
                (0, n) | (n, 0) => n,
                _ => {
                    let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                    let edited = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                    let swaps = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
                    if swaps { edited.min(rows[i - 2][j - 2] + 1) } else { edited }
                }
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_those_of_damerau() {
        for (a, b, wanted) in [
            ("", "", 0),
            ("", "abc", 3),
            ("layer", "layers", 1),
            ("wdith", "width", 1),
            ("kitten", "sitting", 3),
            ("ca", "abc", 3),
        ] {
            assert_eq!((distance(a, b), distance(b, a)), (wanted, wanted), "{a} {b}");
        }
    }

    #[test]
    fn every_synonym_is_of_a_key_and_names_none() {
        for (name, path) in SYNONYMS {
            let of = keys().find(|key| key.path == *path).unwrap_or_else(|| panic!("{path}"));
            assert!(
                keys().all(|key| key.path != *name || !of.table().is_empty()),
                "{name} is a key at the top"
            );
        }
    }

    #[test]
    fn what_was_meant_is_found() {
        let meant = |table, kind, name| key(table, kind, name);
        let gpt = Some("gpt");
        for (table, kind, name, wanted) in [
            ("model", gpt, "layer", "layers"),
            ("model", gpt, "wdith", "width"),
            ("model", gpt, "d_model", "width"),
            ("model", gpt, "hidden", "width"),
            ("model", Some("mlp"), "hidden_size", "hidden"),
            ("model", Some("mlp"), "layers", "hidden"),
            ("model", Some("resnet"), "num_classes", "classes"),
            ("optimizer", Some("adamw"), "lr", "schedule.peak"),
            ("optimizer", Some("sgd"), "learning_rate", "schedule.peak"),
            ("schedule", None, "lr", "peak"),
            ("batch", None, "batch_size", "micro_batch"),
            ("", None, "batch_size", "batch.micro_batch"),
            ("", None, "epochs", "steps"),
            ("batch", None, "epochs", "steps"),
            ("", None, "peak", "schedule.peak"),
            ("", None, "optimiser", "optimizer"),
            ("digits.class.*", None, "digit_a", "digits_a"),
            ("data", Some("bytes"), "file", "path"),
            ("data", Some("tokens"), "files", "paths"),
            ("data", Some("idx"), "file", "images"),
            ("data", Some("arrays"), "files", "inputs"),
            ("data", Some("bytes"), "shuffle", "sampling"),
            ("", None, "replacement", "data.sampling"),
            ("", None, "pretrained", "init.weights"),
            ("init", None, "checkpoint", "weights"),
            ("batch", None, "checkpoint", "checkpoint"),
            ("", None, "resume_from", "init.run"),
            ("model", gpt, "freeze", "frozen"),
        ] {
            assert_eq!(meant(table, kind, name).as_deref(), Some(wanted), "{table} {name}");
        }
        assert_eq!(meant("model", gpt, "colour"), None);
        assert_eq!(meant("model", gpt, &"layers".repeat(1000)), None);
    }
}
