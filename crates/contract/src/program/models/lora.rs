//! Low-rank adapters (Hu et al., 2021) beside the linear layers of a decoder, as PEFT computes them: y + ((x A^T) B^T) * (alpha /
//! rank). A decoder with adapters trains nothing else.

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use super::released::Released;
use super::sizes::times;
use super::{Init, ModelParameter, ProductSize};
use crate::arith::float;
use crate::program::builder::Builder;
use crate::program::graph::TensorId;
use crate::program::keys::Presence::{Optional, Required};
use crate::program::keys::{BELOW_ONE, Key, Type, integer, key, matches};
use crate::program::operators::{Dropout, LinearClasses, dropout, linear, residual, scaled};

/// The most names in [`Lora::targets`].
const TARGETS_MAX: usize = 256;
/// The most bytes of such a name; no projection has a longer one.
const TARGET_BYTES_MAX: usize = 256;
/// The name that stands for all projections, as PEFT has it.
const ALL: &str = "all-linear";

const RANK: Type = integer(1, 1 << 16);
const ALPHA: Type = Type::Number { least: 0.0, above: true, below: None };

#[rustfmt::skip]
const KEYS: &[Key] = &[
    key("model.lora.rank", RANK, Required, "8", "Rows of A and columns of B: PEFT's `r`."),
    key("model.lora.alpha", ALPHA, Required, "16.0", "An adapter's share is multiplied by alpha / rank: PEFT's `lora_alpha`."),
    key("model.lora.targets", Type::List { of: &Type::Text, least: 1, most: TARGETS_MAX }, Required, r#"["all-linear"]"#, "The projections that have an adapter: PEFT's `target_modules`. A name is that of a module in transformers, or the end of it behind a dot; `*` stands for any characters, and `all-linear` for every projection.").rule("each matches a projection"),
    key("model.lora.dropout", BELOW_ONE, Optional("0.0"), "0.1", "Drop probability of what A reads: PEFT's `lora_dropout`."),
];

/// The adapters of a decoder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lora {
    /// Rows of A, and columns of B.
    pub rank: u32,
    /// The numerator of the factor by which an adapter's share is multiplied; the denominator is the rank.
    pub alpha: f32,
    /// The projections that have an adapter: names of modules in transformers, or ends of these, with `*` for any characters.
    pub targets: Vec<String>,
    /// Drop probability of what A reads.
    #[serde(default)]
    pub dropout: f32,
}

/// A projection that may have an adapter: one module of transformers, which is one linear layer here, or several of one input.
pub(super) struct Projection {
    /// The start of the module's name in transformers, such as `model.layers.0`.
    pub block: String,
    /// The rest of the module's name, such as `self_attn.q_proj`.
    pub module: &'static str,
    /// The start of the name of A.
    pub name: String,
    /// The names of the linear layers; each has a B of its own.
    pub layers: Vec<String>,
    /// Outputs of each layer, and inputs.
    pub sizes: [u32; 2],
}

impl Projection {
    fn is_named(&self, target: &str) -> bool {
        let whole = format!("{}.{}", self.block, self.module);
        target == ALL || matches(target, &whole) || matches(&format!("*.{target}"), &whole)
    }

    fn a(&self) -> String {
        format!("{}.lora_a", self.name)
    }

    fn b(&self) -> impl Iterator<Item = String> {
        self.layers.iter().map(|layer| format!("{layer}.lora_b"))
    }
}

impl Lora {
    /// The keys of the table `[model.lora]`.
    pub(super) fn keys() -> &'static [Key] {
        KEYS
    }

    /// The error in the numbers and names, if there is one: (key of the model, why).
    pub(super) fn error(&self, projections: &[Projection]) -> Option<(&'static str, String)> {
        let numbers = [
            ("lora.rank", RANK, serde_json::json!(self.rank)),
            ("lora.alpha", ALPHA, serde_json::json!(self.alpha)),
            ("lora.dropout", BELOW_ONE, serde_json::json!(self.dropout)),
        ];
        if let Some(wrong) = numbers.into_iter().find_map(|(key, ty, value)| Some((key, ty.error(&value)?))) {
            return Some(wrong);
        }
        let wrong = |why| Some(("lora.targets", why));
        if !(1..=TARGETS_MAX).contains(&self.targets.len()) {
            return wrong(format!("must be 1 to {TARGETS_MAX} names, is {}", self.targets.len()));
        }
        let is_of_none = |target: &&String| {
            target.len() > TARGET_BYTES_MAX
                || !projections.iter().any(|projection| projection.is_named(target))
        };
        let target = self.targets.iter().find(is_of_none)?;
        let modules: BTreeSet<&str> = projections.iter().map(|projection| projection.module).collect();
        let there = modules.into_iter().collect::<Vec<_>>().join(", ");
        let shown: String = target.chars().take(40).collect();
        wrong(format!("no projection is named {shown:?}; every block has {there}"))
    }

    fn picked<'a>(&'a self, projections: &'a [Projection]) -> impl Iterator<Item = &'a Projection> {
        let is_picked =
            |projection: &&Projection| self.targets.iter().any(|target| projection.is_named(target));
        projections.iter().filter(is_picked)
    }

    /// The adapters' parameters, in the order of the projections: A, then the B of each layer.
    pub(super) fn parameters(&self, projections: &[Projection]) -> Vec<ModelParameter> {
        let matrix =
            |name, shape: [u32; 2], init| ModelParameter { name, shape: shape.into(), init, decayed: true };
        let of = |projection: &Projection| {
            let [outputs, inputs] = projection.sizes;
            let bound = float::div(float::ONE, float::sqrt(float::from_u32(inputs)));
            let init = Init::Uniform { bound: f32::from_bits(bound) };
            let b = projection.b().map(|name| matrix(name, [outputs, self.rank], Init::Zeros));
            [matrix(projection.a(), [self.rank, inputs], init)].into_iter().chain(b).collect::<Vec<_>>()
        };
        self.picked(projections).flat_map(of).collect()
    }

    /// The adapters' tensors in PEFT's files. The layers of one module have their B one behind the other there.
    pub(super) fn released(&self, projections: &[Projection]) -> Vec<Released> {
        let of = |projection: &Projection| {
            let [outputs, inputs] = projection.sizes;
            let name = |part: &str| {
                format!("base_model.model.{}.{}.lora_{part}.weight", projection.block, projection.module)
            };
            let b: Vec<String> = projection.b().map(|b| format!("param/{b}")).collect();
            let b: Vec<&str> = b.iter().map(String::as_str).collect();
            let a = Released::same(name("A"), format!("param/{}", projection.a()), &[self.rank, inputs]);
            let rows = outputs.saturating_mul(b.len() as u32);
            let joined = Released::joined(name("B"), &b, outputs.saturating_mul(self.rank));
            [a, Released { shape: vec![rows, self.rank], ..joined }]
        };
        self.picked(projections).flat_map(of).collect()
    }

    /// alpha / rank, and the names of each weight with its A and B.
    pub(super) fn merges(&self, projections: &[Projection]) -> (f32, Vec<[String; 3]>) {
        let of = |projection: &Projection| {
            let pair = |(layer, b): (&String, String)| [format!("{layer}.weight"), projection.a(), b];
            projection.layers.iter().zip(projection.b()).map(pair).collect::<Vec<_>>()
        };
        (self.scaling(), self.picked(projections).flat_map(of).collect())
    }

    /// The products of the adapters over `rows`, and the elements of their largest tensor.
    pub(super) fn sizes(&self, rows: u64, projections: &[Projection]) -> (Vec<ProductSize>, u64) {
        let rank = u64::from(self.rank);
        let shapes: BTreeSet<[u32; 2]> =
            self.picked(projections).map(|projection| projection.sizes).collect();
        let products = shapes.into_iter().flat_map(|[outputs, inputs]| {
            let [a, b] = [[inputs.into(), rank], [rank, outputs.into()]];
            [a, b].into_iter().flat_map(|[inputs, outputs]| ProductSize::linear(rows, inputs, outputs))
        });
        (products.collect(), times(&[rows, rank]))
    }

    /// alpha / rank.
    fn scaling(&self) -> f32 {
        f32::from_bits(float::div(self.alpha.to_bits(), float::from_u32(self.rank)))
    }
}

/// The adapters of a forward pass.
#[derive(Default)]
pub(super) struct Adapters {
    scaling: f32,
    /// For each linear layer with an adapter: its A and B, and the number of the dropout before A.
    of_layer: HashMap<String, (TensorId, TensorId, u32)>,
    drop: Option<Dropout>,
    /// x A^T, which the layers of one module share.
    inner: HashMap<TensorId, TensorId>,
}

impl Adapters {
    /// The adapters whose `tensors` are in the order of [`Lora::parameters`]. Their dropouts are numbered from `first_drop` on.
    pub fn new(
        lora: &Lora,
        projections: &[Projection],
        tensors: &[TensorId],
        (drop, first_drop): (Option<Dropout>, u32),
    ) -> Adapters {
        let (mut tensors, mut of_layer) = (tensors.iter(), HashMap::new());
        let mut next = || *tensors.next().expect("the adapters and the table of parameters list the same");
        for (number, projection) in (first_drop..).zip(lora.picked(projections)) {
            let a = next();
            of_layer.extend(projection.layers.iter().map(|layer| (layer.clone(), (a, next(), number))));
        }
        Adapters { scaling: lora.scaling(), of_layer, drop, inner: HashMap::new() }
    }

    /// The linear layer of this name over x, `samples` samples, with its adapter if it has one.
    pub fn linear(
        &mut self,
        b: &mut Builder,
        (layer, samples): (&str, u32),
        x: TensorId,
        weight: TensorId,
        bias: Option<TensorId>,
    ) -> TensorId {
        let y = linear(b, LinearClasses::HIDDEN, x, weight, bias);
        let Some(&(a, up, number)) = self.of_layer.get(layer) else { return y };
        b.scoped("lora", |b| {
            let inner = *self.inner.entry(a).or_insert_with(|| {
                let x = self.drop.map_or(x, |drop| dropout(b, drop, samples, number, x));
                linear(b, LinearClasses::HIDDEN, x, a, None)
            });
            let share = linear(b, LinearClasses::HIDDEN, inner, up, None);
            let share = scaled(b, share, self.scaling);
            residual(b, y, share)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::models::Model;

    fn of(model: &str, lora: &str) -> Model {
        serde_json::from_str(&format!("{{{model}, \"lora\": {{{lora}}}}}")).unwrap()
    }

    const GPT: &str = r#""kind": "gpt", "context": 4, "layers": 2, "heads": 2, "width": 6"#;
    const LLAMA: &str =
        r#""kind": "llama", "context": 4, "layers": 2, "heads": 2, "kv_heads": 1, "width": 8, "hidden": 5"#;

    fn adapters(model: &Model) -> Vec<String> {
        let frozen = model.frozen();
        model.parameters().into_iter().skip(frozen).map(|p| format!("{} {:?}", p.name, p.shape)).collect()
    }

    #[test]
    fn targets_are_names_as_peft_takes_them() {
        let picked = |model: &str, targets: &str| {
            let model = of(model, &format!("\"rank\": 3, \"alpha\": 4, \"targets\": [{targets}]"));
            assert_eq!(model.error(), None);
            adapters(&model)
        };
        let attention = |block: u32| {
            let part = |part: &str, shape: &str| format!("block{block}.{part} {shape}");
            let b = ["query", "key", "value"].map(|layer| part(&format!("{layer}.lora_b"), "[6, 3]"));
            [vec![part("attention_in.lora_a", "[3, 6]")], b.into()].concat()
        };
        assert_eq!(picked(GPT, r#""c_attn""#), [attention(0), attention(1)].concat());
        assert_eq!(picked(GPT, r#""transformer.h.1.attn.c_attn""#), attention(1));
        assert_eq!(picked(GPT, r#""*.1.*attn""#), attention(1));
        assert_eq!(picked(GPT, r#""c_proj""#).len(), 8);
        assert_eq!(picked(GPT, r#""mlp.c_proj""#)[0], "block0.mlp_out.lora_a [3, 24]");
        assert_eq!(picked(GPT, r#""c_proj", "mlp.c_proj""#).len(), 8);
        assert_eq!(picked(GPT, r#""all-linear""#).len(), 2 * (4 + 3 * 2));
        assert_eq!(
            picked(LLAMA, r#""layers.0.self_attn.k_proj", "down_proj""#),
            [
                "block0.key.lora_a [3, 8]",
                "block0.key.lora_b [4, 3]",
                "block0.down.lora_a [3, 5]",
                "block0.down.lora_b [8, 3]",
                "block1.down.lora_a [3, 5]",
                "block1.down.lora_b [8, 3]"
            ]
        );
        assert_eq!(picked(LLAMA, r#""all-linear""#).len(), 2 * 7 * 2);
    }

    #[test]
    fn wrong_adapters_are_refused() {
        let error = |model: &str, lora: &str| of(model, lora).error().expect(lora);
        let named =
            |target: &str| format!("\"rank\": 1, \"alpha\": 1, \"targets\": [\"c_attn\", {target:?}]");
        let (key, why) = error(GPT, &named("q_proj"));
        let there = "every block has attn.c_attn, attn.c_proj, mlp.c_fc, mlp.c_proj";
        assert_eq!((key, why), ("lora.targets", format!("no projection is named \"q_proj\"; {there}")));
        // An end of a name begins behind a dot, and a block has a number below `layers`.
        for target in ["proj", "wte", "lm_head", "transformer.h.2.attn.c_attn", ""] {
            assert_eq!(error(GPT, &named(target)).0, "lora.targets", "{target}");
        }
        assert_eq!(error(GPT, &named(&"*".repeat(257))).0, "lora.targets");
        for (lora, key) in [
            (r#""rank": 0, "alpha": 1, "targets": ["c_fc"]"#, "lora.rank"),
            (r#""rank": 65537, "alpha": 1, "targets": ["c_fc"]"#, "lora.rank"),
            (r#""rank": 1, "alpha": 0, "targets": ["c_fc"]"#, "lora.alpha"),
            (r#""rank": 1, "alpha": 1e39, "targets": ["c_fc"]"#, "lora.alpha"),
            (r#""rank": 1, "alpha": 1, "dropout": 1, "targets": ["c_fc"]"#, "lora.dropout"),
            (r#""rank": 1, "alpha": 1, "targets": []"#, "lora.targets"),
        ] {
            assert_eq!(error(GPT, lora).0, key, "{lora}");
        }
    }

    #[test]
    fn the_files_of_peft_have_every_adapter_once() {
        for (model, lora) in [(GPT, "c_attn"), (GPT, "all-linear"), (LLAMA, "all-linear"), (LLAMA, "k_proj")]
        {
            let model = of(model, &format!("\"rank\": 3, \"alpha\": 4, \"targets\": [{lora:?}]"));
            let mut sizes: HashMap<String, u64> = HashMap::new();
            for released in model.adapters() {
                let elements: u32 = released.shape.iter().product();
                let mut places: Vec<u64> = released.parts().iter().flat_map(|part| part.places()).collect();
                places.sort_unstable();
                assert!(places.into_iter().eq(0..u64::from(elements)), "{}", released.name);
                for part in released.parts() {
                    assert_eq!(sizes.insert(part.tensor.clone(), part.len()), None);
                }
            }
            let own = model.parameters().into_iter().skip(model.frozen());
            let own =
                own.map(|p| (format!("param/{}", p.name), p.shape.iter().map(|&d| u64::from(d)).product()));
            assert_eq!(sizes, own.collect());
        }
    }
}
