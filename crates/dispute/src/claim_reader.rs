//! Reads a claim's fields as they come: its kind is the first of them in the one encoding.
//!
//! Serde's own reader of such a type first copies all fields into values that take many times their bytes.

use std::fmt::{self, Formatter};

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use super::evidence::proven::{DataSlices, ProvenTensor, Scalar};
use super::verdict::{Claim, Fork};
use tiebreak_record::commit::digest::Digest;
use tiebreak_record::commit::proven::{Hashes, ProvenRecord};
use tiebreak_record::job::manifest::FileManifest;

/// The kinds of claims, as files write them.
const KINDS: [&str; 12] = [
    "tile",
    "rounding",
    "binding",
    "scalar",
    "initial",
    "weights",
    "learning_rate",
    "cursor",
    "batch",
    "final",
    "fork",
    "step",
];

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct BindingFields {
    outputs: Vec<Digest>,
    siblings: Hashes,
    #[serde(default)]
    before: Option<Box<ProvenRecord>>,
    #[serde(default)]
    kept: Vec<ProvenTensor>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ScalarFields {
    scalar: Scalar,
    output: Option<ProvenTensor>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchFields {
    files: Vec<FileManifest>,
    slices: Vec<DataSlices>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct FinalFields {
    last: ProvenRecord,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ForkFields {
    other: String,
    evidence: Fork,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct StepFields {
    micro_batches: Vec<u32>,
    tensors: Vec<String>,
}

struct ClaimVisitor;

impl<'de> Visitor<'de> for ClaimVisitor {
    type Value = Claim;

    fn expecting(&self, f: &mut Formatter) -> fmt::Result {
        f.write_str("a claim, whose kind comes first")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Claim, A::Error> {
        if map.next_key::<String>()?.as_deref() != Some("kind") {
            return Err(A::Error::custom("the first field of a claim is its kind"));
        }
        let kind = map.next_value::<String>()?;
        let fields = MapAccessDeserializer::new(map);
        Ok(match kind.as_str() {
            "tile" => Claim::Tile(Deserialize::deserialize(fields)?),
            "rounding" => Claim::Rounding(Deserialize::deserialize(fields)?),
            "weights" => Claim::Weights(Deserialize::deserialize(fields)?),
            "binding" => {
                let BindingFields { outputs, siblings, before, kept } = Deserialize::deserialize(fields)?;
                Claim::Binding { outputs, siblings, before, kept }
            }
            "scalar" => {
                let ScalarFields { scalar, output } = Deserialize::deserialize(fields)?;
                Claim::Scalar { scalar, output }
            }
            "batch" => {
                let BatchFields { files, slices } = Deserialize::deserialize(fields)?;
                Claim::Batch { files, slices }
            }
            "final" => {
                let FinalFields { last } = Deserialize::deserialize(fields)?;
                Claim::Final { last }
            }
            "fork" => {
                let ForkFields { other, evidence } = Deserialize::deserialize(fields)?;
                Claim::Fork { other, evidence }
            }
            "step" => {
                let StepFields { micro_batches, tensors } = Deserialize::deserialize(fields)?;
                Claim::Step { micro_batches, tensors }
            }
            "initial" => Nothing::deserialize(fields).map(|Nothing {}| Claim::Initial)?,
            "learning_rate" => Nothing::deserialize(fields).map(|Nothing {}| Claim::LearningRate)?,
            "cursor" => Nothing::deserialize(fields).map(|Nothing {}| Claim::Cursor)?,
            other => return Err(A::Error::unknown_variant(other, &KINDS)),
        })
    }
}

impl<'de> Deserialize<'de> for Claim {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Claim, D::Error> {
        from.deserialize_map(ClaimVisitor)
    }
}
