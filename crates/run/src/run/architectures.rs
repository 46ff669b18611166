//! The networks over images that torchvision and timm name, as models; and the `config.json` that timm writes.
//!
//! Sources: `torchvision.models`, and `save_config_for_hf` of timm. The residual networks have the same tensors in both, by name and shape; the VGGs do not.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use tiebreak_contract::program::models::{Model, Normalize};

/// The networks' names in torchvision.
pub const NAMES: [&str; 12] = [
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "resnext50_32x4d",
    "resnext101_32x8d",
    "resnext101_64x4d",
    "wide_resnet50_2",
    "wide_resnet101_2",
    "vgg11",
    "vgg11_bn",
];
/// Rows and columns of the images that they were released for.
const SIZE: u32 = 224;
/// Classes of ImageNet.
const CLASSES: u32 = 1000;
const PLANES: u32 = 3;

/// The model of this name, for images of `[planes, height, width]`; `None` if there is none.
pub(crate) fn model(name: &str, [planes, height, width]: [u32; 3], classes: u32) -> Option<Model> {
    let [three, deep, deepest] = [[3, 4, 6, 3], [3, 4, 23, 3], [3, 8, 36, 3]];
    let resnet = |block: &str, blocks: [u32; 4], [groups, width_per_group]: [u32; 2]| {
        json!({ "kind": "resnet", "stem": "imagenet", "order": "post", "norm": "batch", "stages": [64, 128, 256, 512], "block": block,
            "blocks": blocks, "groups": groups, "width_per_group": width_per_group })
    };
    let bottleneck = |blocks, groups| resnet("bottleneck", blocks, groups);
    let mut keys = match name {
        "resnet18" => resnet("basic", [2; 4], [1, 64]),
        "resnet34" => resnet("basic", three, [1, 64]),
        "resnet50" => bottleneck(three, [1, 64]),
        "resnet101" => bottleneck(deep, [1, 64]),
        "resnet152" => bottleneck(deepest, [1, 64]),
        "resnext50_32x4d" => bottleneck(three, [32, 4]),
        "resnext101_32x8d" => bottleneck(deep, [32, 8]),
        "resnext101_64x4d" => bottleneck(deep, [64, 4]),
        "wide_resnet50_2" => bottleneck(three, [1, 128]),
        "wide_resnet101_2" => bottleneck(deep, [1, 128]),
        "vgg11" => json!({ "kind": "vgg11" }),
        "vgg11_bn" => json!({ "kind": "vgg11", "norm": "batch" }),
        _ => return None,
    };
    for (key, value) in [("planes", planes), ("height", height), ("width", width), ("classes", classes)] {
        keys[key] = value.into();
    }
    serde_json::from_value(keys).ok()
}

/// The model of this name whose tensors have these shapes. The shapes decide what they can; everything else is as torchvision
/// released it.
pub fn of_shapes(name: &str, shape: impl Fn(&str) -> Option<Vec<u64>>) -> Option<Model> {
    let dimension = |names: [&str; 2], at: usize| {
        let shape = names.into_iter().find_map(&shape)?;
        u32::try_from(*shape.get(at)?).ok()
    };
    let planes = dimension(["conv1.weight", "features.0.weight"], 1).unwrap_or(PLANES);
    let classes = dimension(["fc.weight", "classifier.6.weight"], 0).unwrap_or(CLASSES);
    model(name, [planes, SIZE, SIZE], classes)
}

/// The keys of timm's `config.json` that decide the computation. Older versions have the keys about pixels beside the others.
#[derive(Deserialize)]
struct Timm {
    architecture: String,
    num_classes: Option<u32>,
    global_pool: Option<String>,
    model_args: Option<Map<String, Value>>,
    pretrained_cfg: Option<Pixels>,
    #[serde(flatten)]
    beside: Pixels,
}

#[derive(Deserialize)]
struct Pixels {
    input_size: Option<[u32; 3]>,
    mean: Option<Vec<f32>>,
    std: Option<Vec<f32>>,
}

/// The model that timm's `config.json` describes.
///
/// # Errors
/// If it is no such object, or describes a network that this version does not have.
pub(crate) fn timm(text: &str) -> Result<Model, String> {
    let Timm { architecture, num_classes, global_pool, model_args, pretrained_cfg, beside } =
        serde_json::from_str(text).map_err(|error| format!("it is no configuration of timm's: {error}"))?;
    if let Some(pool) = global_pool.filter(|pool| pool != "avg") {
        return Err(format!("global_pool is {:?}; this version computes \"avg\" only", short(&pool)));
    }
    if let Some(key) = model_args.iter().flat_map(Map::keys).find(|key| *key != "num_classes") {
        return Err(format!(
            "model_args has {:?}, which makes another network than this version computes",
            short(key)
        ));
    }
    let Pixels { input_size, mean, std } = pretrained_cfg.unwrap_or(beside);
    let size = input_size.unwrap_or([PLANES, SIZE, SIZE]);
    let is_same = !architecture.starts_with("vgg");
    let model = model(&architecture, size, num_classes.unwrap_or(CLASSES)).filter(|_| is_same);
    let mut model = model.ok_or_else(|| {
        let known: Vec<&str> = NAMES.into_iter().filter(|name| !name.starts_with("vgg")).collect();
        let other = short(&architecture);
        format!(
            "its architecture is timm's {other:?}; of timm's networks these can be imported: {}",
            known.join(", ")
        )
    })?;
    if let (Some(mean), Some(std)) = (mean, std) {
        model.normalize(None, [mean, std]);
        let own = model.normalization().and_then(|own| own.constants());
        let mut named = model.clone();
        named.normalize(Some(Normalize::Imagenet), Default::default());
        if size[0] == PLANES && own == named.normalization().and_then(|named| named.constants()) {
            return Ok(named);
        }
    }
    Ok(model)
}

/// Foreign text, shortened for a message.
fn short(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers are torchvision's own: `sum(p.numel() for p in torchvision.models.NAME().parameters())`.
    #[test]
    fn networks_have_as_many_parameters_as_torchvisions() {
        let counts = [
            11_689_512,
            21_797_672,
            25_557_032,
            44_549_160,
            60_192_808,
            25_028_904,
            88_791_336,
            83_455_272,
            68_883_240,
            126_886_696,
            132_863_336,
            132_868_840,
        ];
        for (name, count) in NAMES.into_iter().zip(counts) {
            let model = of_shapes(name, |_| None).unwrap();
            assert_eq!(model.parameter_count(), count, "{name}");
            assert!(model.released().is_some() && model.error().is_none(), "{name}");
        }
    }

    #[test]
    fn timms_configurations_are_read() {
        let text = r#"{"architecture":"resnet50","num_classes":10,"num_features":2048,"global_pool":"avg",
            "pretrained_cfg":{"tag":"a1_in1k","input_size":[3,160,128],"mean":[0.485,0.456,0.406],"std":[0.229,0.224,0.225]}}"#;
        let mut wanted = model("resnet50", [3, 160, 128], 10).unwrap();
        wanted.normalize(Some(Normalize::Imagenet), Default::default());
        assert_eq!(timm(text).unwrap(), wanted);
        let old = r#"{"architecture":"resnet18","input_size":[1,28,28],"mean":[0.5],"std":[0.25]}"#;
        let mut wanted = model("resnet18", [1, 28, 28], 1000).unwrap();
        wanted.normalize(None, [vec![0.5], vec![0.25]]);
        assert_eq!(timm(old).unwrap(), wanted);
        for (from, to, why) in [
            ("resnet50", "resnet50d", "is timm's \"resnet50d\""),
            ("resnet50", "vgg11", "is timm's \"vgg11\""),
            ("\"avg\"", "\"max\"", "global_pool is \"max\""),
            (
                "\"num_features\":2048",
                "\"model_args\":{\"output_stride\":8}",
                "model_args has \"output_stride\"",
            ),
            ("[3,160,128]", "[3,160]", "no configuration"),
        ] {
            let error = timm(&text.replace(from, to)).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
