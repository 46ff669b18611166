//! Jobs of encoders: sequences of tokens and images that are classified.

use std::fs;
use std::path::{Path, PathBuf};

use super::npy;

pub const CONTEXT: u16 = 6;
const SEQUENCES: u16 = 20;
pub const PADDING: u16 = 30;

/// Sequences of 1 to 6 ids, then padding, row by row.
pub fn ids() -> Vec<u16> {
    let id = |sample: u16, place: u16| match place < sample * 5 % CONTEXT + 1 {
        true => (sample * 7 + place * 5) % 29 + 1,
        false => PADDING,
    };
    (0..SEQUENCES).flat_map(|sample| (0..CONTEXT).map(move |place| id(sample, place))).collect()
}

pub fn labels() -> Vec<u8> {
    (0..SEQUENCES).map(|sample| (sample * sample % 7 % 3) as u8).collect()
}

pub const BERT: &str = "token_types = 2, dropout = 0.1, attention_dropout = 0.2, classifier_dropout = 0.3";
pub const DISTILBERT: &str = "form = \"distilbert\", dropout = 0.1, classifier_dropout = 0.2";

/// Four steps of an encoder of three classes; `own` are keys of its form.
pub fn sequences_job(folder: &Path, own: &str) -> PathBuf {
    let ids: Vec<u8> = ids().iter().flat_map(|id| id.to_le_bytes()).collect();
    fs::write(folder.join("ids.npy"), npy("<u2", &format!("({SEQUENCES}, {CONTEXT})"), &ids)).unwrap();
    fs::write(folder.join("labels.npy"), npy("|u1", &format!("({SEQUENCES},)"), &labels())).unwrap();
    let text = format!(
        r#"steps = 4
clip_norm = 1.0
model = {{ kind = "bert", vocabulary = 31, context = {CONTEXT}, layers = 2, heads = 2, width = 8, hidden = 10, padding = {PADDING}, classes = 3, {own} }}
data = {{ kind = "arrays", inputs = "ids.npy", labels = "labels.npy", dtype = "u16" }}
optimizer = {{ kind = "adamw", beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.01 }}
schedule = {{ peak = 0.01 }}
batch = {{ micro_batch = 3, micro_batches = 2 }}
commit = {{ granularity = "operator" }}
checkpoint = {{ every = 2 }}
"#
    );
    fs::write(folder.join("job.toml"), text).unwrap();
    folder.join("job.toml")
}

const IMAGES: u32 = 14;
/// Two planes of 4 x 6 pixels.
const PIXELS: u32 = 2 * 4 * 6;

/// Three steps of a vision transformer of three classes on such images.
pub fn images_job(folder: &Path) -> PathBuf {
    let pixels: Vec<u8> = (0..IMAGES * PIXELS).map(|i| (i * i % 251) as u8).collect();
    let numbers: Vec<u8> =
        pixels.iter().flat_map(|&byte| (f32::from(byte) / 64.0 - 2.0).to_le_bytes()).collect();
    let shape = format!("({IMAGES}, 2, 4, 6)");
    fs::write(folder.join("pixels.npy"), npy("|u1", &shape, &pixels)).unwrap();
    fs::write(folder.join("numbers.npy"), npy("<f4", &shape, &numbers)).unwrap();
    let labels: Vec<u8> = (0..IMAGES).map(|sample| (sample * sample % 7 % 3) as u8).collect();
    fs::write(folder.join("labels.npy"), npy("|u1", &format!("({IMAGES},)"), &labels)).unwrap();
    let text = r#"steps = 3
clip_norm = 1.0
model = { kind = "vit", height = 4, width = 6, planes = 2, patch = 2, layers = 2, heads = 2, channels = 8, hidden = 10, classes = 3, dropout = 0.1, attention_dropout = 0.2, image_mean = [0.5, 0.25], image_std = [0.25, 0.5] }
data = { kind = "arrays", inputs = "pixels.npy", labels = "labels.npy", dtype = "u8", augment = { crop = 1, flip = true } }
optimizer = { kind = "adamw", beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.01 }
schedule = { peak = 0.01 }
batch = { micro_batch = 3, micro_batches = 2 }
commit = { granularity = "operator" }
checkpoint = { every = 2 }
"#;
    fs::write(folder.join("job.toml"), text).unwrap();
    folder.join("job.toml")
}
